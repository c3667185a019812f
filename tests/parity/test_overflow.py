"""Test weights that are too large for float32 or not finite.

The port is not blamed, and such a model is not trained.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from gates import PreparedGates
from safetensors.numpy import save_file

from models.families import part
from toolkit import cli
from toolkit.parity.request.request import GateRequest
from toolkit.parity.trials.mutation import trial_request

#: The last map of a block of the first layer, whose size the following tensors have.
LAST_MAP = {
    "reformer": "reformer.encoder.layers.0.feed_forward.output.dense.weight",
    "ctrl": "transformer.h.0.ffn.2.weight",
}


BOTH = ("float64", "float32")
NOT_FINITE = "INCONCLUSIVE the reference itself is not finite in float32 here and in"
#: Model, dtypes, exit status, and start of the report.
GATES = [("reformer", BOTH, 3, NOT_FINITE), ("ctrl", BOTH, 3, NOT_FINITE), ("ctrl", ("float64",), 0, "PARITY")]


def make_overflow_request(model: str, dtypes: tuple[str, ...]) -> GateRequest:
    request = trial_request(model, "random", 0)
    large = np.float32(3e38) * request.weights[LAST_MAP[model]]
    assert np.isfinite(large).all()
    weights = {**request.weights, LAST_MAP[model]: large}
    return dataclasses.replace(request, weights=weights, dtypes=dtypes, trace=True)


@pytest.fixture(scope="module")
def prepared_gates(tmp_path_factory) -> PreparedGates:
    return PreparedGates(
        tmp_path_factory.mktemp("jobs"), [make_overflow_request(*gate_case[:2]) for gate_case in GATES]
    )


@pytest.mark.slow
@pytest.mark.parametrize(("model", "dtypes", "status", "title"), GATES)
def test_weights_too_large_for_float32_end_inconclusive_and_pass_in_float64(
    prepared_gates, model, dtypes, status, title, tmp_path
):
    report, text = prepared_gates.run(make_overflow_request(model, dtypes), tmp_path)
    assert text.startswith(title) and report.exit_status == status
    assert report.trace.faulty == [] and "are right, the worst at" in text
    assert ("not finite in the reference, and not compared" in text) == (status == 3)
    assert f">{title.split()[0]}</span>" in (tmp_path / "parity.html").read_text()
    assert max(c.relative for c in report.verdict.comparisons if c.dtype == "float64") > 0


@pytest.mark.parametrize(("value", "count"), [(np.nan, 1), (-np.inf, 2)])
def test_a_checkpoint_with_nonfinite_values_is_wrong_input(value, count, tmp_path, capsys):
    request = trial_request("ctrl", "random", 0)
    tensors = dict(request.weights)
    name = LAST_MAP["ctrl"]
    tensors[name] = tensors[name].copy()
    tensors[name][:count, 0] = value
    part("ctrl", "config").CONFIG_CLASS(**request.config).save_pretrained(tmp_path)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(SystemExit) as exit_error:
        cli.main(["parity", "--model", "ctrl", "--weights", str(tmp_path), "--length", "32"])
    message = f"{name}: {count} of its {tensors[name].size} values are NaN or infinite"
    assert exit_error.value.code == 2 and capsys.readouterr().err == f"error: --weights {tmp_path}: {message}\n"
