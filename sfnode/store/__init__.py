"""Files that a node keeps on disk: the update log, its identity, and the folder that holds both.

Nothing here knows links, peers, models or the event loop. Every error of the disk leaves this package as a
`UserError`.
"""
