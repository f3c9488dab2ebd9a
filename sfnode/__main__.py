"""`python -m sfnode` is `sfnode`."""

from sfnode.cli.main import main

main()
