"""The engine: from a set of updates to weights, and from weights and data to the next update (DESIGN 3, 6).

It knows tensors and data; it knows no network, no event loop and no disk but the model's and the data's.
"""
