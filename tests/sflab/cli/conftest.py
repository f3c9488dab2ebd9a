"""The command line as in tests/cli."""

from tests.cli.conftest import answers, home, received, sfnode

__all__ = ["answers", "home", "received", "sfnode"]
