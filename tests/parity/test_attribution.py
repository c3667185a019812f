"""A compiled loop that loses digits is named by what it computes, and nothing else is named with it."""

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

#: What a family computes with.
OF_CTRL = ("softmax", "cross_entropy", "layer_norm", "dropout", "bias")
OF_REFORMER = [loop for loop in compiled.LOOPS if loop != "softmax"]
FAULTS = [
    *(("ctrl", loop, mutant.name) for loop in OF_CTRL for mutant in LOOPS[loop]),
    *(("reformer", loop, mutant.name) for loop in OF_REFORMER for mutant in LOOPS[loop]),
]


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """By family, a job that both workers have done with a right port, and the reference's results."""
    kept: dict[str, tuple[Path, ReferenceResult]] = {}

    def of(model: str) -> tuple[Path, ReferenceResult]:
        if model not in kept:
            request = replace(trial_request(model, "random", 0), dtypes=("float64", "float32"))
            job = tmp_path_factory.mktemp(model) / "job"
            write_request(request, request.weights, job)
            run_workers([job], quiet(), workers_of(request))
            kept[model] = job, read_results(job)[0]
        return kept[model]

    return of


def free_run_of(job: Path) -> dict[str, TensorStats]:
    """The errors of the float32 step."""
    content = files.read_job(job)

    def send(sender: Sender) -> None:
        sender.begin("nothing")
        candidate.send_step(content, job, sender)
        sender.send_json("used", "kernel", "nothing")

    return measure_messages(compared_attribution.Ledger(content, job), send).kernels["nothing"]


def tried(job: Path, reference: ReferenceResult, monkeypatch) -> list[Substitution]:
    """What is restored by loops that are composed."""
    monkeypatch.setenv(kernels.VARIABLE, kernels.COMPILED)
    content = files.read_job(job)

    composed = measure_messages(
        compared_attribution.Ledger(content, job),
        lambda sender: candidate.send_steps_with_composed_loops(content, job, sender),
    )
    return attribution.compare_substitutions(reference, free_run_of(job), AttributionResult(loops=composed.loops))


@pytest.mark.slow
@pytest.mark.parametrize(("model", "loop", "fault"), FAULTS)
def test_a_compiled_loop_that_loses_digits_is_named_by_what_it_computes(model, loop, fault, done, monkeypatch):
    job, reference = done(model)
    with find_mutant(fault).in_force():
        found = tried(job, reference, monkeypatch)
    assert attribution.describe_inaccurate_operation(found) == f"the compiled loop that loses digits: {loop}"
    assert attribution.describe_substitutions(found)[0].startswith(f"with {loop} composed, not compiled: ")
    assert found[0].before > 1 and sum(one.is_loop and one.restores for one in found) == 1


@pytest.fixture(scope="module")
def traced(done):
    """The Reformer's job of :func:`done`, and what the reference is off by in each operation."""
    job, _ = done("reformer")
    content = files.read_job(job)
    run_workers([job], quiet(), {"reference": sys.executable}, task=trace.TASK)
    return content, job, files.read(files.result_path(job, "reference", trace.TASK), dict[str, TensorRecord])


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "operation"), [("float32-keys", "key:"), ("float32-keys-backward", "gradient:")])
def test_the_trace_shows_the_loop_that_the_run_takes(fault, operation, traced, monkeypatch):
    """And beside it what lies inside, of the loop taken apart."""
    monkeypatch.setenv(kernels.VARIABLE, kernels.COMPILED)
    job, folder, records = traced
    truth = TensorFile(folder / "reference" / "forced_input.safetensors")

    def send(sender: Sender) -> None:
        sender.begin("", "float32")
        with find_mutant(fault).in_force():
            forced_input.send_step(job, folder, sender, truth, "float32")

    found = measure_messages(compared_forced_input.Ledger(job, folder), send).dtypes["float32"]
    judged = trace.summarize_trace(records, {"float32": found})
    assert judged.faulty[0].name.startswith(operation), judged.faulty
    inside = ("mean_square:", "gradient:mean_square:", "masked_scores:")
    assert all(any(name.startswith(one) for name in found.tensors) for one in inside)
    assert all(one.name.startswith((operation, "gradient:")) for one in judged.faulty)


@pytest.mark.parametrize("model", ["ctrl", "reformer"])
def test_every_loop_that_a_model_computes_with_is_tried_and_none_is_blamed_without_need(model, done, monkeypatch):
    found = tried(*done(model), monkeypatch)
    assert {one.kind for one in found if one.is_loop} == set(OF_CTRL if model == "ctrl" else OF_REFORMER)
    assert all(one.before <= 1 and one.after <= 1 for one in found)
    assert attribution.describe_inaccurate_operation(found) == ""  # all kinds are within their bounds: none stands out


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
    (stored,) = [file for file in cache_folder().rglob(MEASUREMENTS) if "0.515625" in file.read_text()]
    stored.write_text(stored.read_text().replace("0.515625", "0.25"))
    assert loop_errors.cached_errors() == errors
    assert "the cache is damaged" in capsys.readouterr().err


def test_no_loops_are_measured_where_operations_are_composed(monkeypatch):
    monkeypatch.setenv(kernels.VARIABLE, kernels.COMPOSED)
    assert loop_errors.cached_errors() == loop_errors.measure_errors() == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "fault"), [(model, fault.name) for model in ("ctrl", "reformer") for fault in faults_of_loops(model)]
)
def test_a_loop_that_is_wrong_by_less_than_a_step_shows_is_named_by_itself(model, fault, done, monkeypatch):
    monkeypatch.setenv(kernels.VARIABLE, kernels.COMPILED)
    job, reference = done(model)
    with find_mutant(fault).in_force():
        found = [f"loop:{loop}" for loop, _ in loops.faults(loop_errors.measure_errors())]
        free_run, _ = attribution.find_largest_error(reference, free_run_of(job))
    assert found == [find_mutant(fault).culprit]
    assert free_run <= 1


def test_a_loop_comes_before_the_kernels_that_take_its_place():
    loop = Substitution("softmax", 9.0, 0.3, "loss", is_loop=True)
    kernel, other = Substitution("softmax", 9.0, 0.2, "loss"), Substitution("keys", 9.0, 8.9, "loss", is_loop=True)
    found = attribution.describe_substitutions([kernel, loop, other])
    assert found[0] == "with softmax composed, not compiled: 9 -> 0.3 of the bound"
    assert found[1] == "with other loops composed, worst tensor in units of its bound: keys 8.9" and len(found) == 2
    assert (
        attribution.describe_inaccurate_operation([kernel, loop, other])
        == "the compiled loop that loses digits: softmax"
    )
    assert attribution.describe_inaccurate_operation([kernel, other]) == "the kernel that loses digits: softmax"
    assert attribution.describe_inaccurate_operation([other]) == ""


#: Of each loop, an operation that runs it, on (3, 4) and (4,).
CALLS = {
    "softmax": lambda x, row: ops.softmax(x),
    "cross_entropy": lambda x, row: ops.cross_entropy(x, paddle.to_tensor([0, 3, 1])),
    "layer_norm": lambda x, row: ops.layer_norm(x, row, row, 1e-6),
    "keys": lambda x, row: ops.unit_mean_square(x, 1e-6, 2.0),
    "dropout": lambda x, row: ops.keep_masked(x, x > 0, 0.5),
    "bias": lambda x, row: ops.add_bias(x, row),
}


@pytest.mark.parametrize("loop", CALLS)
def test_a_loop_that_is_left_out_is_composed_forward_and_backward_and_no_other_is(loop, monkeypatch):
    monkeypatch.setenv(kernels.VARIABLE, kernels.COMPILED)
    ran: list[str] = []

    def watched(name: str):
        plain = getattr(compiled, name)
        return lambda *given: ran.append(name) or plain(*given)

    backward = ("softmax_backward", "cross_entropy_backward", "layer_norm_backward", "keys_backward")
    for name in ("softmax", "cross_entropy", "layer_norm", "keys", "keep", "add_row_", *backward):
        monkeypatch.setattr(compiled, name, watched(name))

    def run() -> np.ndarray:
        x, row = paddle.to_tensor(np.arange(12.0, dtype="float32").reshape(3, 4)), paddle.ones([4])
        x.stop_gradient = False
        CALLS[loop](x, row).sum().backward()
        return x.grad.numpy()

    expected = run()
    assert ran
    ran.clear()
    with compiled.compose_loops([loop]) as asked:
        found = run()
    assert ran == [] and asked[loop] > 0
    np.testing.assert_allclose(found, expected, atol=1e-6)
    with compiled.compose_loops(set(compiled.LOOPS) - {loop}):
        run()
    assert ran


@pytest.mark.slow
def test_the_command_names_the_loop_in_its_first_lines(tmp_path, monkeypatch):
    monkeypatch.setenv(kernels.VARIABLE, kernels.COMPILED)
    size = [f"{key}={CTRL_TRIAL[key]}" for key in ("n_embd", "n_head", "dff", "vocab_size")]
    right = '    return _run_loop("norm_rows", '
    wrong = f"    x = x.astype('float16').astype('float32')\n{right}"
    source = copied_source(tmp_path, "models/operations/compiled.py", (right, wrong))
    done = toolkit_in(source, "parity", "--model", "ctrl", "--layers", "1", *size, "--output", "out")
    assert done.returncode == 1, done.stdout + done.stderr
    first, second, *_ = [line for line in done.stdout.splitlines() if not line.startswith("parity gate")]
    assert first.startswith("DRIFT transformer.h.0.layernorm1 (LayerNorm, models/ctrl/layers.py:")
    assert second.endswith("; the compiled loop that loses digits: layer_norm")
    stored = json.loads((tmp_path / "out" / "cpu" / "parity.json").read_text())
    assert stored["attribution"][0]["is_loop"] and stored["attribution"][0]["kind"] == "layer_norm"
    assert stored["culprit"]["headline"].endswith("layer_norm")


@pytest.mark.slow
def test_the_command_names_a_loop_that_only_it_shows(tmp_path, monkeypatch):
    monkeypatch.setenv(kernels.VARIABLE, kernels.COMPILED)
    size = [f"{key}={CTRL_TRIAL[key]}" for key in ("n_embd", "n_head", "dff", "vocab_size")]
    source = copied_source(
        tmp_path, "models/operations/loops.py", ("rest * (S5 + rest * (S6 + rest * S7))", "rest * S5")
    )
    done = toolkit_in(source, "parity", "--model", "ctrl", "--layers", "1", *size, "--output", "out")
    assert done.returncode == 1, done.stdout + done.stderr
    first, second, *_ = [line for line in done.stdout.splitlines() if not line.startswith("parity gate")]
    assert first.startswith("DRIFT loop:softmax_rows (compiled loop, models/operations/loops.py:")
    assert "units of rounding (RMS)" in second and "4 and 16 are allowed" in second
