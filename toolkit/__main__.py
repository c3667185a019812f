"""``python -m toolkit``: the same program as ``toolkit``."""

from toolkit.cli import main

main()
