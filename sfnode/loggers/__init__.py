"""Where numbers of a training run go: files, TensorBoard, Weights & Biases, trackio."""
