"""Places for the numbers of a training run: files, TensorBoard, Weights & Biases, trackio."""
