"""``python -m toolkit``: the same program as ``toolkit``."""

import os
import sys
from pathlib import Path

# Python looks for modules in the current folder first, where a stray random.py of the user's would be run.
if sys.path[0] == os.getcwd() != str(Path(__file__).resolve().parents[1]):
    del sys.path[0]

from toolkit.cli import main

main()
