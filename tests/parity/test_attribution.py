"""Test that an inaccurate compiled loop is named by the operation it computes, and that no other loop is named."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import paddle
import pytest
from gates import ROOT, copied_source, quiet, toolkit_in
from handed import measure_messages

from models.operations import compiled, kernels, loop_code, ops
from models.operations.loop_arguments import DECLARED
from toolkit.machine.runtime import cache_folder
from toolkit.parity.bundle.cache import MEASUREMENTS
from toolkit.parity.candidate import attribution as candidate
from toolkit.parity.candidate import forced_input, loop_errors
from toolkit.parity.comparator import attribution as compared_attribution
from toolkit.parity.comparator import forced_input as compared_forced_input
from toolkit.parity.exchange import files
from toolkit.parity.exchange.handover import Sender
from toolkit.parity.exchange.results import AttributionResult, ReferenceResult, read_results
from toolkit.parity.exchange.tensor_file import TensorFile
from toolkit.parity.families.ctrl.trial import CONFIG as CTRL_TRIAL
from toolkit.parity.followup import attribution, trace
from toolkit.parity.followup.attribution import Substitution
from toolkit.parity.judge import loops
from toolkit.parity.measure.error_stats import TensorRecord, TensorStats
from toolkit.parity.measure.loop_accuracy import LoopError
from toolkit.parity.mutants import LOOPS, faults_of_loops, find_mutant
from toolkit.parity.processes.processes import run_workers
from toolkit.parity.request.build import workers_of, write_request
from toolkit.parity.trials.mutation import trial_request

pytestmark = pytest.mark.skipif(not kernels.can_compile(), reason="needs Numba")

#: Operations of each family.
CTRL_LOOPS = ("softmax", "cross_entropy", "layer_norm", "dropout", "bias")
REFORMER_LOOPS = [loop for loop in compiled.LOOPS if loop != "softmax"]
FAULTS = [
    *(("ctrl", loop, mutant.name) for loop in CTRL_LOOPS for mutant in LOOPS[loop]),
    *(("reformer", loop, mutant.name) for loop in REFORMER_LOOPS for mutant in LOOPS[loop]),
]


@pytest.fixture(scope="module")
def finished_job(tmp_path_factory):
    """Return a function from a family to a job that a correct port has finished, and the results of its reference."""
    finished_jobs: dict[str, tuple[Path, ReferenceResult]] = {}

    def run_job(model: str) -> tuple[Path, ReferenceResult]:
        if model not in finished_jobs:
            request = replace(trial_request(model, "random", 0), dtypes=("float64", "float32"))
            job = tmp_path_factory.mktemp(model) / "job"
            write_request(request, request.weights, job)
            run_workers([job], quiet(), workers_of(request))
            finished_jobs[model] = job, read_results(job)[0]
        return finished_jobs[model]

    return run_job


def measure_float32_step(job: Path) -> dict[str, TensorStats]:
    """Return the errors of the float32 step."""
    content = files.read_job(job)

    def send(sender: Sender) -> None:
        sender.begin("nothing")
        candidate.send_step(content, job, sender)
        sender.send_json("used", "kernel", "nothing")

    return measure_messages(compared_attribution.Ledger(content, job), send).kernels["nothing"]


def compare_composed_loops(job: Path, reference: ReferenceResult, monkeypatch) -> list[Substitution]:
    """Return the errors that composed loops remove."""
    monkeypatch.setenv(kernels.VARIABLE, kernels.COMPILED)
    content = files.read_job(job)

    measurements = measure_messages(
        compared_attribution.Ledger(content, job),
        lambda sender: candidate.send_steps_with_composed_loops(content, job, sender),
    )
    return attribution.compare_substitutions(
        reference, measure_float32_step(job), AttributionResult(loops=measurements.loops)
    )


@pytest.mark.slow
@pytest.mark.parametrize(("model", "loop", "fault"), FAULTS)
def test_an_inaccurate_compiled_loop_is_named_by_its_operation(model, loop, fault, finished_job, monkeypatch):
    job, reference = finished_job(model)
    with find_mutant(fault).in_force():
        substitutions = compare_composed_loops(job, reference, monkeypatch)
    assert attribution.describe_inaccurate_operation(substitutions) == f"the compiled loop that loses digits: {loop}"
    assert attribution.describe_substitutions(substitutions)[0].startswith(f"with {loop} composed, not compiled: ")
    assert (
        substitutions[0].before > 1
        and sum(substitution.is_loop and substitution.restores for substitution in substitutions) == 1
    )


@pytest.fixture(scope="module")
def traced_job(finished_job):
    """Return the Reformer's finished job, its reference results and the noise of each operation."""
    job, _ = finished_job("reformer")
    content = files.read_job(job)
    run_workers([job], quiet(), {"reference": sys.executable}, task=trace.TASK)
    return content, job, files.read(files.result_path(job, "reference", trace.TASK), dict[str, TensorRecord])


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "operation"), [("float32-keys", "key:"), ("float32-keys-backward", "gradient:")])
def test_the_trace_shows_the_loop_of_the_run(fault, operation, traced_job, monkeypatch):
    """In addition, the operations inside the loop are shown, computed by composed code."""
    monkeypatch.setenv(kernels.VARIABLE, kernels.COMPILED)
    job, folder, records = traced_job
    truth = TensorFile(folder / "reference" / "forced_input.safetensors")

    def send(sender: Sender) -> None:
        sender.begin("", "float32")
        with find_mutant(fault).in_force():
            forced_input.send_step(job, folder, sender, truth, "float32")

    measurements = measure_messages(compared_forced_input.Ledger(job, folder), send).dtypes["float32"]
    summary = trace.summarize_trace(records, {"float32": measurements})
    assert summary.faulty[0].name.startswith(operation), summary.faulty
    inside = ("mean_square:", "gradient:mean_square:", "masked_scores:")
    assert all(any(name.startswith(operation_name) for name in measurements.tensors) for operation_name in inside)
    assert all(operation_name.name.startswith((operation, "gradient:")) for operation_name in summary.faulty)


@pytest.mark.parametrize("model", ["ctrl", "reformer"])
def test_every_loop_of_a_model_is_substituted_and_none_is_blamed_without_need(model, finished_job, monkeypatch):
    substitutions = compare_composed_loops(*finished_job(model), monkeypatch)
    assert {substitution.kind for substitution in substitutions if substitution.is_loop} == set(
        CTRL_LOOPS if model == "ctrl" else REFORMER_LOOPS
    )
    assert all(substitution.before <= 1 and substitution.after <= 1 for substitution in substitutions)
    # all kinds are within their bounds, so no kind stands out
    assert attribution.describe_inaccurate_operation(substitutions) == ""


def test_every_loop_is_accurate_in_isolation_and_measured_once(monkeypatch):
    """If the machine code changes, the loops are measured again."""
    monkeypatch.setenv(kernels.VARIABLE, kernels.COMPILED)
    errors = loop_errors.cached_errors()
    sources = "".join(Path(loop_code.__file__).with_name(name).read_text() for name in loop_code.LOOP_FILES)
    loops_of_files = {name for name in DECLARED if f"\ndef {name}(" in sources}
    assert {error.loop for error in errors} == loops_of_files - {"draw_mask"} and len(errors) > 25
    assert list(loops.faults(errors)) == []
    for error in errors:
        file, _, line = error.where.partition(":")
        assert (ROOT / file).read_text().splitlines()[int(line) - 1].startswith(f"def {error.loop}(")
    with monkeypatch.context() as patch:
        patch.setattr(loop_errors, "measure_errors", lambda: pytest.fail("the loops were measured again"))
        assert loop_errors.cached_errors() == errors
    monkeypatch.setattr(loop_code, "code_key", lambda: "of other loops")
    monkeypatch.setattr(loop_errors, "measure_errors", lambda: errors[:1])
    assert loop_errors.cached_errors() == errors[:1]


def test_a_damaged_cache_of_errors_is_measured_again(monkeypatch, capsys):
    monkeypatch.setenv(kernels.VARIABLE, kernels.COMPILED)
    monkeypatch.setattr(loop_code, "code_key", lambda: "of a damaged entry")
    monkeypatch.setattr(loop_errors, "measure_errors", lambda: [LoopError("keep", "keep", [], 0.515625, 1.0)])
    errors = loop_errors.cached_errors()
    (cache_file,) = [file for file in cache_folder().rglob(MEASUREMENTS) if "0.515625" in file.read_text()]
    cache_file.write_text(cache_file.read_text().replace("0.515625", "0.25"))
    assert loop_errors.cached_errors() == errors
    assert "the cache is damaged" in capsys.readouterr().err


def test_no_loops_are_measured_if_operations_are_composed(monkeypatch):
    monkeypatch.setenv(kernels.VARIABLE, kernels.COMPOSED)
    assert loop_errors.cached_errors() == loop_errors.measure_errors() == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "fault"), [(model, fault.name) for model in ("ctrl", "reformer") for fault in faults_of_loops(model)]
)
def test_an_error_too_small_for_the_step_is_found_in_isolation(model, fault, finished_job, monkeypatch):
    monkeypatch.setenv(kernels.VARIABLE, kernels.COMPILED)
    job, reference = finished_job(model)
    with find_mutant(fault).in_force():
        faulty_loops = [f"loop:{loop}" for loop, _ in loops.faults(loop_errors.measure_errors())]
        free_run, _ = attribution.find_largest_error(reference, measure_float32_step(job))
    assert faulty_loops == [find_mutant(fault).culprit]
    assert free_run <= 1


def test_a_loop_is_listed_before_its_replacement_kernels():
    loop = Substitution("softmax", 9.0, 0.3, "loss", is_loop=True)
    kernel, accurate_loop = (
        Substitution("softmax", 9.0, 0.2, "loss"),
        Substitution("keys", 9.0, 8.9, "loss", is_loop=True),
    )
    descriptions = attribution.describe_substitutions([kernel, loop, accurate_loop])
    assert descriptions[0] == "with softmax composed, not compiled: 9 -> 0.3 of the bound"
    assert (
        descriptions[1] == "with other loops composed, worst tensor in units of its bound: keys 8.9"
        and len(descriptions) == 2
    )
    assert (
        attribution.describe_inaccurate_operation([kernel, loop, accurate_loop])
        == "the compiled loop that loses digits: softmax"
    )
    assert attribution.describe_inaccurate_operation([kernel, accurate_loop]) == "the kernel that loses digits: softmax"
    assert attribution.describe_inaccurate_operation([accurate_loop]) == ""


#: By loop, an operation that runs it on tensors of shape (3, 4) and (4,).
LOOP_CALLS = {
    "softmax": lambda x, row: ops.softmax(x),
    "cross_entropy": lambda x, row: ops.cross_entropy(x, paddle.to_tensor([0, 3, 1])),
    "layer_norm": lambda x, row: ops.layer_norm(x, row, row, 1e-6),
    "keys": lambda x, row: ops.unit_mean_square(x, 1e-6, 2.0),
    "dropout": lambda x, row: ops.keep_masked(x, x > 0, 0.5),
    "bias": lambda x, row: ops.add_bias(x, row),
}


@pytest.mark.parametrize("loop", LOOP_CALLS)
def test_only_an_excluded_loop_is_composed_forward_and_backward(loop, monkeypatch):
    monkeypatch.setenv(kernels.VARIABLE, kernels.COMPILED)
    executed_loops: list[str] = []

    def record_calls(name: str):
        original = getattr(compiled, name)
        return lambda *arguments: executed_loops.append(name) or original(*arguments)

    backward = ("softmax_backward", "cross_entropy_backward", "layer_norm_backward", "keys_backward")
    for name in ("softmax", "cross_entropy", "layer_norm", "keys", "keep", "add_row_", *backward):
        monkeypatch.setattr(compiled, name, record_calls(name))

    def run() -> np.ndarray:
        x, row = paddle.to_tensor(np.arange(12.0, dtype="float32").reshape(3, 4)), paddle.ones([4])
        x.stop_gradient = False
        LOOP_CALLS[loop](x, row).sum().backward()
        return x.grad.numpy()

    compiled_gradient = run()
    assert executed_loops
    executed_loops.clear()
    with compiled.compose_loops([loop]) as num_composed_calls:
        composed_gradient = run()
    assert executed_loops == [] and num_composed_calls[loop] > 0
    np.testing.assert_allclose(composed_gradient, compiled_gradient, atol=1e-6)
    with compiled.compose_loops(set(compiled.LOOPS) - {loop}):
        run()
    assert executed_loops


@pytest.mark.slow
def test_the_command_names_the_loop_in_its_first_lines(tmp_path, monkeypatch):
    monkeypatch.setenv(kernels.VARIABLE, kernels.COMPILED)
    size = [f"{key}={CTRL_TRIAL[key]}" for key in ("n_embd", "n_head", "dff", "vocab_size")]
    correct_code = '    return _run_loop("norm_rows", '
    faulty_code = f"    x = x.astype('float16').astype('float32')\n{correct_code}"
    source = copied_source(tmp_path, "models/operations/compiled.py", (correct_code, faulty_code))
    process = toolkit_in(source, "parity", "--model", "ctrl", "--layers", "1", *size, "--output", "out")
    assert process.returncode == 1, process.stdout + process.stderr
    first, second, *_ = [line for line in process.stdout.splitlines() if not line.startswith("parity gate")]
    assert first.startswith("DRIFT transformer.h.0.layernorm1 (LayerNorm, models/ctrl/layers.py:")
    assert second.endswith("; the compiled loop that loses digits: layer_norm")
    report = json.loads((tmp_path / "out" / "cpu" / "parity.json").read_text())
    assert report["attribution"][0]["is_loop"] and report["attribution"][0]["kind"] == "layer_norm"
    assert report["culprit"]["headline"].endswith("layer_norm")


@pytest.mark.slow
def test_the_command_names_a_loop_that_is_wrong_only_in_isolation(tmp_path, monkeypatch):
    monkeypatch.setenv(kernels.VARIABLE, kernels.COMPILED)
    size = [f"{key}={CTRL_TRIAL[key]}" for key in ("n_embd", "n_head", "dff", "vocab_size")]
    source = copied_source(
        tmp_path, "models/operations/loops.py", ("rest * (S5 + rest * (S6 + rest * S7))", "rest * S5")
    )
    process = toolkit_in(source, "parity", "--model", "ctrl", "--layers", "1", *size, "--output", "out")
    assert process.returncode == 1, process.stdout + process.stderr
    first, second, *_ = [line for line in process.stdout.splitlines() if not line.startswith("parity gate")]
    assert first.startswith("DRIFT loop:softmax_rows (compiled loop, models/operations/loops.py:")
    assert "units of rounding (RMS)" in second and "4 and 16 are allowed" in second
