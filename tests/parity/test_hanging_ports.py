"""Test that a user's port that does not end, or leaves a process running, does not block the gate."""

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
#: The return statement of the port's forward.
RETURNS = "        return nn.functional.cross_entropy(self.head(x.mean(1)), labels)"


def run_edited_gate(folder: Path, edit: tuple[str, str], **options: object) -> bool:
    """Return whether a gate of the edited port of tests/pairs/mlp passes."""
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
    for limit in (6, 30, 150):  # seconds; a busy machine may need more than the shortest limit to reach the port's code
        with pytest.raises(UserError, match=f"the port has not ended after {limit} s") as raised_error:
            run_edited_gate(tmp_path / str(limit), edit, time_limit=float(limit))
        if "it is at" in str(raised_error.value):
            break
    assert re.search(f"after {limit} s: {where}; --time-limit SECONDS gives it more", str(raised_error.value))


@pytest.mark.parametrize(
    "leftover_code",
    [
        "import threading, time\nthreading.Thread(target=time.sleep, args=[10**6]).start()\n",
        pytest.param("import os, time\nif not os.fork():\n    time.sleep(10**6)\n", marks=pytest.mark.slow),
        pytest.param("import atexit, time\natexit.register(time.sleep, 10**6)\n", marks=pytest.mark.slow),
    ],
    ids=["thread", "process", "at exit"],
)
def test_processes_and_threads_of_a_port_do_not_block_the_gate(leftover_code, tmp_path):
    assert run_edited_gate(
        tmp_path, ("from paddle import nn\n", f"from paddle import nn\n{leftover_code}"), time_limit=600.0
    )


def test_the_option_is_for_a_pair(command_line):
    status, _, err = command_line("parity", "--model", "ctrl", "--time-limit", "5")
    assert status == 2 and "--time-limit: is for a --port and a --reference-model of yours" in err
