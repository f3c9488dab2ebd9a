"""Entry point for `python -m sfnode`, the same as `sfnode`."""

from sfnode.cli.main import main

main()
