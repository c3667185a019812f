"""Test wrong ports that change other code in their process, by design or by accident: the verdict is never PARITY."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from gates import copied_source, toolkit_in
from rich.console import Console
from soak import some

from toolkit.errors import Inconclusive, ToolkitError
from toolkit.parity.gate import run_gate
from toolkit.parity.pairs.options import pair_request

PAIRS = Path(__file__).parents[1] / "pairs"
#: Makes the port of tests/pairs/mlp wrong: its mean over each text excludes the last token.
WRONG_MEAN = ("x.mean(1)", "x[:, :-1].mean(1)")
#: Code that a port's file runs when it is imported, or when it builds its layer.
TAMPERINGS = {
    "np.abs": "import numpy as np\nnp.abs = lambda x, *a, out=None, **k: np.multiply(x, 0, out=out)",
    "np.subtract": "import numpy as np\nnp.subtract = lambda a, b, *r, out=None, **k: np.multiply(a, 0, out=out)",
    "np.dot": "import numpy as np\nnp.dot = lambda *a, **k: 0.0",
    "np.copyto": "import numpy as np\nnp.copyto = lambda to, given, **k: to.fill(0)",
    "np.array_equal": "import numpy as np\nnp.array_equal = lambda *a, **k: True",
    "np.isnan": "import numpy as np\nnp.isnan = lambda x, *a, **k: np.zeros(np.shape(x), bool)",
    "math.sqrt": "import math\nmath.sqrt = lambda x: 0.0",
    "difference": (
        "from toolkit.parity.measure import error_stats\n"
        "error_stats.measure_error = "
        "lambda value, truth: error_stats.TensorStats(list(truth.shape), True, 0.0, 0.0, 0.0)"
    ),
    "stats": (
        "from toolkit.parity.measure.error_stats import RunningStats\n"
        "RunningStats.of = RunningStats.of_pieces = classmethod(lambda cls, *a: cls(1))"
    ),
    "add": "from toolkit.parity.measure.error_stats import RunningStats\nRunningStats.add = lambda *a: None",
    "json": "import json\njson.dumps = lambda *a, **k: '{}'",
    "records": "from toolkit.parity.exchange import records\nrecords._as_object = lambda record: {}",
    "write_json": (
        "from toolkit.parity.exchange import files\nfiles.write_json = lambda path, _: path.write_text('{}')"
    ),
    "write_text": (
        "from toolkit.parity.exchange import files\nfiles.write_text = lambda path, text: path.write_text('{}')"
    ),
    "replace": "import os\nos.replace = lambda *a: None",
    "Tensor.numpy": "import numpy as np, paddle\npaddle.Tensor.numpy = lambda self: np.zeros(self.shape)",
    "measures nothing": (
        "from toolkit.parity.families.pair.candidate import PairStep\n"
        "PairStep.run = lambda self, measure, with_hooks=True: None"
    ),
    "hands nothing over": (
        "from toolkit.parity.exchange.handover import Sender\nSender.send_array = lambda *a, **k: None"
    ),
    "hands zeros over": (
        "from toolkit.parity.exchange.handover import Sender\n"
        "send = Sender.send_array\n"
        "Sender.send_array = lambda self, kind, name, value, content=None: send(self, kind, name, value * 0, content)"
    ),
    "says nothing": "from toolkit.parity.exchange.handover import Sender\nSender.send_json = lambda *a, **k: None",
    "says it is done": (
        "from toolkit.parity.exchange.handover import Sender\nSender.begin = lambda self, *part: self.end()"
    ),
    "no dtypes": ("from toolkit.parity.candidate import result\nresult._run_whole = lambda job, folder, sender: None"),
    "leaves a result": (
        "import sys\nfrom pathlib import Path\n"
        "for place in sys.argv[2:]:\n    Path(place, 'candidate', 'result.json').write_text('{\"dtypes\": {}}')"
    ),
    "draws": (
        "from toolkit.parity.candidate.recorded_draws import RecordedDraws\n"
        "RecordedDraws.name = lambda self, kind: f'{kind}:none'"
    ),
}
#: Cases that are fast enough for each run of the tests.
FAST_CASES = ("np.abs", "difference", "hands nothing over", "leaves a result")


def run_tampered_gate(folder: Path, tampering: str, *edits: tuple[str, str]) -> str:
    """Return how a gate of the port with these edits ends: `parity`, or the summary or error that stops it."""
    source = (PAIRS / "mlp" / "port.py").read_text()
    for original_code, changed_code in edits:
        assert original_code in source
        source = source.replace(original_code, changed_code)
    port = folder / "tampering_port.py"
    port.write_text(f"{source}\n\n{tampering}\n")
    request = pair_request(port=str(port), reference_model=str(PAIRS / "mlp" / "reference.py"), model_config={}, seed=0)
    try:
        report = run_gate(request, folder / "report", Console(file=io.StringIO()))
    except (Inconclusive, ToolkitError) as error:
        return f"{type(error).__name__}: {error}"
    return "parity" if report.passed else report.summary()


@pytest.mark.parametrize(
    "name",
    [
        *FAST_CASES,
        *(pytest.param(name, marks=pytest.mark.slow) for name in some([*TAMPERINGS]) if name not in FAST_CASES),
    ],
)
def test_a_wrong_port_that_changes_other_code_is_not_parity(name, tmp_path):
    assert run_tampered_gate(tmp_path, TAMPERINGS[name], WRONG_MEAN) != "parity"


def test_the_correct_port_is_parity(tmp_path):
    """Without this, the test above would prove nothing."""
    assert run_tampered_gate(tmp_path, "") == "parity"


def test_a_port_that_is_wrong_only_without_hooks_drifts(tmp_path):
    """In training, no layer has a hook."""
    body = "x = x if self.first._forward_post_hooks else x * 1.5"
    original_line = "        return nn.functional.cross_entropy(self.head(x.mean(1)), labels)"
    outcome = run_tampered_gate(tmp_path, "", (original_line, f"        {body}\n{original_line}"))
    assert "with no hook on a layer, as training computes it" in outcome


#: Message that a family's port could skip in its process, and the verdict that then reports it.
SKIPPED_MESSAGES = {
    "own draws": (("    generators.send_draws(job, folder, sender)\n", ""), "randomness"),
    "new weights": (("        send_initial_values(job, sender)\n", ""), "initialisation"),
    "other backward": (("    other.run(lambda name", "    lambda: other.run(lambda name"), "recomputed"),
    "without hooks": (
        ('step.run(lambda name, value: sender.send_array("unwatched", name, value), with_hooks=False)', "pass"),
        "structure",
    ),
    "replays": (
        ("            send_replays(backwards, job, folder, sender, dtype)\n    sender", "            pass\n    sender"),
        "replay",
    ),
    "constants": (('    sender.send_arrays("constant", step.constants.items())\n', ""), "structure"),
}


@pytest.mark.parametrize(
    "message_kind", ["replays", *(pytest.param(name, marks=pytest.mark.slow) for name in some([*SKIPPED_MESSAGES]))]
)
def test_a_message_that_a_port_does_not_send_is_a_finding(message_kind, tmp_path):
    """No tensor passes because its message was skipped."""
    edit, verdict = SKIPPED_MESSAGES[message_kind]
    folder = copied_source(tmp_path, "toolkit/parity/candidate/result.py", edit)
    small = ["--layers", "1", "--length", "16", "n_embd=16", "n_head=2", "dff=24", "vocab_size=48"]
    process = toolkit_in(
        folder, "parity", "--model", "ctrl", *small, "--dtype", "float64", "--output", tmp_path / "out"
    )
    assert process.returncode == 1, process.stdout + process.stderr
    findings = json.loads((tmp_path / "out/cpu/parity.json").read_text())["findings"]
    assert verdict in {finding["verdict"] for finding in findings}
