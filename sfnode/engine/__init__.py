"""The engine: from a set of updates to weights, and from weights and data to the next update.

It knows tensors and data, and reads models and data from disk; it knows no network and no event loop.
"""
