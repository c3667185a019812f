"""Commands that install missing packages. Imports only the standard library, because packages may be missing."""

from __future__ import annotations

from pathlib import Path

#: The source folder, which has the pins; for a wheel, the folder of installed packages.
CHECKOUT = Path(__file__).resolve().parents[2]
#: Name of this distribution (`setup.cfg`). `toolkit`, the command and the import, is another project on PyPI.
DISTRIBUTION = "paddle-parity-toolkit"
#: Variable that names the reference's Python if no option does; `make` sets it if the wheel is for GPUs.
REFERENCE_PYTHON = "TOOLKIT_REFERENCE_PYTHON"
#: Index of Paddle's GPU wheels: pypi.org has none of Paddle 3. There are cu118, cu126, cu129 and cu130.
GPU_INDEX = "https://www.paddlepaddle.org.cn/packages/stable/cu126/"


def install_command(extra: str) -> str:
    """Return the command that installs extras (comma-separated); a source checkout adds the pinned versions."""
    index = f" --extra-index-url {GPU_INDEX}" if "gpu" in extra.split(",") else ""
    if (CHECKOUT / "constraints.txt").is_file():
        return f"pip install -c constraints.txt{index} -e '.[{extra}]'"
    return f"pip install{index} '{DISTRIBUTION}[{extra}]'"
