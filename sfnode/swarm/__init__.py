"""Local swarms: node processes on this machine."""
