"""The running node: puts log, machine, transport, engine and control API together."""
