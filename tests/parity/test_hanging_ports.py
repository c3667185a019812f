"""A port of a user's that does not end, or leaves something running, does not keep the gate."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from toolkit.errors import UserError
from toolkit.parity.gate import run_gate
from toolkit.parity.pairs.options import pair_request

PAIRS = Path(__file__).parents[1] / "pairs" / "mlp"
#: Of a port's forward.
RETURNS = "        return nn.functional.cross_entropy(self.head(x.mean(1)), labels)"


def gate(folder: Path, edit: tuple[str, str], **options: object) -> bool:
    """Whether a gate of the port of tests/pairs/mlp, edited, passes."""
    source = (PAIRS / "port.py").read_text()
    assert edit[0] in source
    folder.mkdir(exist_ok=True)
    port = folder / "hanging_port.py"
    port.write_text(source.replace(*edit))
    request = pair_request(
        port=str(port),
        reference_model=str(PAIRS / "reference.py"),
        model_config={},
        seed=0,
        dtypes=("float64",),
        **options,
    )
    return run_gate(request, folder / "report", Console(file=io.StringIO())).passed


BUILD = "def build(config):\n"


@pytest.mark.parametrize(
    ("edit", "function"),
    [
        ((RETURNS, f"        while True:\n            pass\n{RETURNS}"), "forward"),
        pytest.param((BUILD, f"{BUILD}    import time\n    time.sleep(10**6)\n"), "build", marks=pytest.mark.slow),
    ],
)
def test_a_port_that_hangs_is_ended_and_its_line_named(edit, function, tmp_path):
    where = f"it is at .*hanging_port.py:.*, in {function}"
    for limit in (6, 30, 150):  # seconds; a busy machine needs more than the shortest to reach the port's code
        with pytest.raises(UserError, match=f"the port has not ended after {limit} s") as raised:
            gate(tmp_path / str(limit), edit, time_limit=float(limit))
        if "it is at" in str(raised.value):
            break
    assert re.search(f"after {limit} s: {where}; --time-limit SECONDS gives it more", str(raised.value))


@pytest.mark.parametrize(
    "left",
    [
        "import threading, time\nthreading.Thread(target=time.sleep, args=[10**6]).start()\n",
        pytest.param("import os, time\nif not os.fork():\n    time.sleep(10**6)\n", marks=pytest.mark.slow),
        pytest.param("import atexit, time\natexit.register(time.sleep, 10**6)\n", marks=pytest.mark.slow),
    ],
    ids=["thread", "process", "at exit"],
)
def test_what_a_port_leaves_running_does_not_keep_the_gate(left, tmp_path):
    assert gate(tmp_path, ("from paddle import nn\n", f"from paddle import nn\n{left}"), time_limit=600.0)


def test_the_option_is_for_a_pair(command_line):
    status, _, err = command_line("parity", "--model", "ctrl", "--time-limit", "5")
    assert status == 2 and "--time-limit: is for a --port and a --reference-model of yours" in err
