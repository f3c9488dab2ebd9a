"""What a node keeps on disk: the update log, its identity, and the folder that holds both.

Nothing here knows links, links' peers, models or the event loop. Whatever a disk does wrong leaves this
package as a `UserError`.
"""
