"""How what is missing is installed. Imports nothing: it is asked where much is missing."""

from __future__ import annotations

from pathlib import Path

#: The folder of the source, which has the pins; of a wheel, the one that packages are installed in.
CHECKOUT = Path(__file__).resolve().parents[1]


def install_command(extra: str) -> str:
    """The command that installs an extra (several have commas): of the checkout with its pins, of a wheel without."""
    if (CHECKOUT / "constraints.txt").is_file():
        return f"pip install -c constraints.txt -e '.[{extra}]'"
    return f"pip install 'toolkit[{extra}]'"
