"""Files that a node keeps on disk: the update log, its identity, and the folder that holds both.

This package does not know links, peers, models or the event loop. It turns every error of the disk into a
`UserError`.
"""
