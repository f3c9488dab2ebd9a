"""The engine. It computes weights from a set of updates, and the next update from weights and data.

It knows tensors and data, and reads models and data from disk; it knows no network and no event loop.
"""
