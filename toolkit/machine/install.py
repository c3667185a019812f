"""How what is missing is installed. Imports nothing: it is asked where much is missing."""

from __future__ import annotations

from pathlib import Path

#: The folder of the source, which has the pins; of a wheel, the one that packages are installed in.
CHECKOUT = Path(__file__).resolve().parents[2]
#: Names the Python that runs the reference where no option does; `make` sets it where the wheel is for GPUs.
REFERENCE_PYTHON = "TOOLKIT_REFERENCE_PYTHON"
#: Of Paddle's wheels for GPUs: pypi.org has none of Paddle 3. There are cu118, cu126, cu129 and cu130.
GPU_INDEX = "https://www.paddlepaddle.org.cn/packages/stable/cu126/"


def install_command(extra: str) -> str:
    """The command that installs an extra (several have commas): of the checkout with its pins, of a wheel without."""
    index = f" --extra-index-url {GPU_INDEX}" if "gpu" in extra.split(",") else ""
    if (CHECKOUT / "constraints.txt").is_file():
        return f"pip install -c constraints.txt{index} -e '.[{extra}]'"
    return f"pip install{index} 'toolkit[{extra}]'"
