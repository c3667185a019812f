"""Test the gate as a user runs it: correct ports pass, each fault is stopped and named, and no files are left."""

from __future__ import annotations

import dataclasses
import io
import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gates import TINY_REFORMER, PreparedGates, copied_source, quiet, reformer_request, request_for, run, toolkit_in
from rich.console import Console

from models.families import FAMILIES, part
from models.reformer import ReformerConfig, ReformerForSequenceClassification, schema, weights
from toolkit.errors import Inconclusive, UserError
from toolkit.parity import gate
from toolkit.parity.families.ctrl.trial import CONFIG as CTRL_TRIAL
from toolkit.parity.inputs.synthetic import SyntheticWeights, random_batch, randomize_constants
from toolkit.parity.inputs.texts import FULL
from toolkit.parity.job.job import TokenizerJob
from toolkit.parity.judge.findings import Finding, Verdict
from toolkit.parity.judge.verdict import judge
from toolkit.parity.mutants import catalogue
from toolkit.parity.options import make_configuration, make_request, select_devices
from toolkit.parity.request import build, stretch
from toolkit.parity.request.gate_options import GateOptions
from toolkit.parity.request.request import GateRequest
from toolkit.parity.trials import mutation
from toolkit.parity.trials.limits import find_limits, is_sensitive
from toolkit.parity.trials.mutation import Trial, Trials, print_trials, trial_request, try_mutants

#: Head, kind of weights, and changes to the small Reformer.
CORRECT_REFORMERS = [
    ("sequence_classification", "heavy-tailed", {"local_num_chunks_after": 1, "lsh_num_chunks_after": 1}),
    ("causal_lm", "random", {"num_hashes": 4, "chunk_size_lm_head": 32, "chunk_size_feed_forward": 64}),
    ("masked_lm", "large-gains", {"axial_pos_embds": False, "num_buckets": [2, 4], "hidden_act": "gelu_new"}),
    ("question_answering", "random", {"num_labels": 2}),
    ("token_classification", "heavy-tailed", {"num_labels": 5, "classifier_dropout": 0.3}),
]
#: Head of a case of :data:`CORRECT_REFORMERS` -> kind of tokenizer that its gate also compares.
TOKENIZERS = {"sequence_classification": "bytes", "causal_lm": "sentencepiece"}
CORRECT_CTRLS = [("causal_lm", "heavy-tailed"), ("sequence_classification", "large-gains")]
#: Kinds of labels other than classes, with the number of outputs: a number, several numbers, several labels.
OTHER_LABELS = [("regression", 1), ("regression", 3), ("multi_label_classification", 5)]


def make_ctrl_request(head: str, kind: str) -> GateRequest:
    return request_for("ctrl", head, CTRL_TRIAL, 24, kind)


def make_label_request(model: str, problem: str, outputs: int) -> GateRequest:
    config = {"reformer": {**TINY_REFORMER, "attn_layers": ["local"]}, "ctrl": {**CTRL_TRIAL, "n_layer": 1}}[model]
    config = {**config, "problem_type": problem, "num_labels": outputs}
    return request_for(model, "sequence_classification", config, {"reformer": 128, "ctrl": 24}[model])


@pytest.fixture(scope="module")
def make_reformer_request(tmp_path_factory) -> Callable[[str, str, dict], GateRequest]:
    """Return a function from a case of :data:`CORRECT_REFORMERS` to its gate.

    Some of these gates also compare a tokenizer (:data:`TOKENIZERS`). SentencePiece is trained on Python's texts.
    """
    import pydoc_data.topics

    from models.reformer.tokenizer import MODEL_FILE, train_sentencepiece

    folder = tmp_path_factory.mktemp("pieces")
    train_sentencepiece(list(pydoc_data.topics.topics.values())[:20], 300, folder)
    paths = {"bytes": None, "sentencepiece": str(folder / MODEL_FILE)}

    tokenizers = {
        head: TokenizerJob(kind, ["une maison", "the statement"], 8, paths[kind]) for head, kind in TOKENIZERS.items()
    }

    def request(head: str, kind: str, changes: dict) -> GateRequest:
        return reformer_request({**TINY_REFORMER, **changes}, head, kind, tokenizer=tokenizers.get(head))

    return request


@pytest.fixture(scope="module")
def prepared_gates(tmp_path_factory, make_reformer_request) -> PreparedGates:
    requests = [
        *(make_reformer_request(*case) for case in CORRECT_REFORMERS),
        *(make_ctrl_request(*case) for case in CORRECT_CTRLS),
        *(make_label_request(model, *case) for model in FAMILIES for case in OTHER_LABELS),
    ]
    return PreparedGates(tmp_path_factory.mktemp("jobs"), requests)


@pytest.mark.parametrize(("head", "kind", "changes"), CORRECT_REFORMERS)
def test_a_correct_port_passes_in_both_dtypes(prepared_gates, make_reformer_request, tmp_path, head, kind, changes):
    report, text = prepared_gates.run(make_reformer_request(head, kind, changes), tmp_path)
    assert report.passed, report.summary()
    assert text.startswith("PARITY")
    saved_report = json.loads((tmp_path / "parity.json").read_text())
    assert saved_report["passed"] and saved_report["exit_status"] == 0
    # The gradient of every parameter was compared in both dtypes: none passes because it was left out.
    tensor_keys = {(t["name"], t["dtype"]) for t in saved_report["tensors"]}
    for name in weights.parameters(schema.resolve(report.request.config), head):
        assert {(f"gradient:{name}", "float64"), (f"gradient:{name}", "float32")} <= tensor_keys
    assert {"paddlepaddle", "numpy"} <= set(saved_report["versions"]["candidate"])


@pytest.mark.slow
def test_a_long_text_gives_the_same_figures_with_less_memory(tiny_config, tmp_path, monkeypatch):
    reports = []
    request = reformer_request(tiny_config)
    small_memory_request = dataclasses.replace(request, max_memory=1.5 * stretch.memory_of(request) / 1e9)
    all_runs, few_runs = build.NOISE_RUNS, build.FEW_NOISE_RUNS
    gates = [
        (build.LONG, all_runs, request),
        (1, all_runs, request),
        (1, all_runs, small_memory_request),
        (1, few_runs, request),
    ]
    for number, (tokens, runs, gate_request) in enumerate(gates):
        monkeypatch.setattr(build, "LONG", tokens)
        monkeypatch.setattr(build, "FEW_NOISE_RUNS", runs)
        run(gate_request, tmp_path / str(number))
        reports.append(json.loads((tmp_path / str(number) / "parity.json").read_text()))
    for key in ("passed", "notes", "recomputed"):
        assert reports[0][key] == reports[1][key], key
    # The bounds differ in float64, because recomputed sums are reordered again.
    figures = [[(t["name"], t["dtype"], t["error"], t["error_max"]) for t in report["tensors"]] for report in reports]
    assert figures[0] == figures[1]
    rounding = [[t for t in report["tensors"] if t["dtype"] == "float32"] for report in reports]
    assert rounding[0] == rounding[1]
    # The results do not depend on whether both workers run at once.
    assert reports[1]["tensors"] == reports[2]["tensors"]
    # The fewer runs that measure the noise of a long text make no bound wider.
    assert figures[3] == figures[0] and reports[3]["passed"]
    few, many = (np.array([(t["bound"], t["bound_max"]) for t in reports[n]["tensors"]]) for n in (3, 1))
    assert (few <= many).all() and (few < many).any()


@pytest.mark.parametrize(("head", "kind"), CORRECT_CTRLS)
def test_a_correct_ctrl_passes_in_both_dtypes(prepared_gates, tmp_path, head, kind):
    request = make_ctrl_request(head, kind)
    report, text = prepared_gates.run(request, tmp_path)
    assert report.passed and text.startswith("PARITY"), report.summary()
    for dtype in ("float64", "float32"):
        assert {f"gradient:{name}" for name in request.weights} <= set(report.candidate.dtypes[dtype].tensors)
    # The language-model loss is not computed in float64, which is reported as a fault of the reference.
    assert ("reference computes in float32 at loss_utils.py" in text) == (head == "causal_lm")


@pytest.mark.parametrize("model", FAMILIES)
@pytest.mark.parametrize(("problem", "outputs"), OTHER_LABELS)
def test_regression_and_multi_label_heads_are_gated_in_float64(prepared_gates, tmp_path, model, problem, outputs):
    """The reference's loss of several labels has the dtype of the labels.

    Float32 labels would reduce the precision of R64.
    """
    report, text = prepared_gates.run(make_label_request(model, problem, outputs), tmp_path)
    assert report.passed and text.startswith("PARITY"), report.summary()
    assert report.verdict.reference_faults == [] and report.reference.own_loss.given > 0
    assert {c.dtype for c in report.verdict.comparisons if c.name == "loss"} == {"float64", "float32"}


@pytest.mark.parametrize(
    ("problem", "outputs", "dtype", "shape"),
    [
        (None, 4, np.int64, (3,)),
        (None, 1, np.float32, (3,)),
        ("regression", 1, np.float32, (3,)),
        ("regression", 4, np.float32, (3, 4)),
        ("multi_label_classification", 1, np.float32, (3, 1)),
        ("multi_label_classification", 4, np.float32, (3, 4)),
        ("single_label_classification", 1, np.int64, (3,)),
    ],
)
def test_a_batch_has_labels_for_the_configured_problem_type(problem, outputs, dtype, shape):
    config = {**CTRL_TRIAL, "problem_type": problem, "num_labels": outputs}
    labels = random_batch(config, "sequence_classification", 3, 24, 0, "ctrl")["labels"]
    assert (labels.dtype, labels.shape) == (dtype, shape)


def test_the_faults_of_the_catalogues_are_found_by_name():
    distinct = {mutant for mutants in map(catalogue, FAMILIES) for mutant in mutants}
    assert len({mutant.name for mutant in distinct}) == len(distinct)


#: By family, a fault for each verdict that names it, and a harmless change without a verdict.
SOME_FAULTS = {
    "reformer": {
        "padding-bucket": "buckets",
        "dropout-rate": "structure",
        "fresh-dropout-mask": "replay",
        "norm-backward": "semantics",
        "block-gradient-slightly": "recomputed",
        "own-masks-striped": "randomness",
        "dropout-backward-leaks": "semantics",
        "line-breaks-as-blanks": "",
        "offsets-by-one": "tokenizer",
        "reformer-loads-query-as-key": "structure",
        "reformer-new-twice-as-wide": "initialisation",
        "trainer-first-mask": "semantics",
    },
    "ctrl": {
        "ctrl-norms-swapped": "semantics",
        "ctrl-padding-float32": "",
        "ctrl-table-shifted": "structure",
        "ctrl-recompute-fresh-mask": "replay",
        "beta2-off": "semantics",
        "ctrl-pad-side": "tokenizer",
        "ctrl-loads-in-float16": "structure",
        "ctrl-new-uniform": "initialisation",
        "trainer-first-mask": "semantics",
    },
}
#: By family, other verdicts that find one of these faults.
OTHER_VERDICTS = {"reformer": set(), "ctrl": {"signs"}}


@pytest.mark.parametrize("model", SOME_FAULTS)
def test_each_verdict_names_a_fault_and_none_a_harmless_change(model, monkeypatch):
    verdicts = []
    monkeypatch.setattr(mutation, "judge", lambda *sides: verdicts.append(judge(*sides)) or verdicts[-1])
    trials = try_mutants(trial_request(model, "random", 0), quiet(), list(SOME_FAULTS[model]))
    assert {trial.mutant.name: trial.verdict for trial in trials} == SOME_FAULTS[model]
    assert [(t.mutant.name, t.verdict, t.culprit) for t in trials if not t.passed] == []
    finding_verdicts = {finding.verdict for verdict in verdicts for finding in verdict.findings}
    assert finding_verdicts == {*filter(None, SOME_FAULTS[model].values()), *OTHER_VERDICTS[model]}


#: Faults of code that all families share, in the training loop and the optimizer: they are tried with one family.
SHARED_FAULTS = set.intersection(*(set(catalogue(model)) for model in FAMILIES))


@pytest.mark.slow
@pytest.mark.parametrize("model", ["reformer", "ctrl"])
def test_every_fault_of_the_catalogue_is_named_and_harmless_changes_pass(model):
    mutants = [mutant for mutant in catalogue(model) if model == "ctrl" or mutant not in SHARED_FAULTS]
    trials = try_mutants(trial_request(model, "random", 0), quiet(), [mutant.name for mutant in mutants])
    assert [trial.mutant for trial in trials] == mutants and len(SHARED_FAULTS) >= 25
    assert [(t.mutant.name, t.verdict, t.culprit) for t in trials if not t.passed] == []


def test_one_fault_of_the_catalogue_is_tried_by_its_name(command_line):
    status, out, err = command_line("parity", "mutants", "--model", "ctrl", "--only", "ctrl-gelu")
    assert (status, err) == (0, "") and "1 of 1 faults caught, 1 named" in out
    status, _, err = command_line("parity", "mutants", "--model", "reformer", "--only", "ctrl-gelu")
    assert (status, err) == (2, "error: --only ctrl-gelu: this model has no such fault in this dtype\n")


@pytest.mark.parametrize(
    "head", ["sequence_classification", pytest.param("question_answering", marks=pytest.mark.slow)]
)
def test_wrong_padding_is_caught_on_a_single_text_without_padding(head):
    request = trial_request("reformer", "random", 0)
    config = {**request.config, "num_labels": 2}
    batch = random_batch(config, head, 1, 112, 0, "reformer", [FULL])
    assert batch["attention_mask"].all()
    synthetic_weights = SyntheticWeights(schema.resolve(config), head, 0, "random", "reformer")
    single = dataclasses.replace(request, head=head, config=config, batch=batch, weights=synthetic_weights)
    trials = try_mutants(single, quiet(), ["eval-no-padding-kept"])
    assert [(trial.is_caught, trial.culprit.split("/")[0]) for trial in trials] == [(True, "unpadded")]


def test_a_fault_is_named_only_with_its_operation_if_a_tensor_can_show_it():
    mutant = next(entry for entry in catalogue("ctrl") if entry.name == "ctrl-last-norm-epsilon")
    own_operation, other_operation = mutant.operation, "scores:transformer.h.0.multi_head_attention"
    by_structure = {"verdict": "structure", "culprit": "epsilon:transformer.layernorm"}
    by_size = {"verdict": "semantics", "culprit": "output:transformer.layernorm"}
    for is_named, operation, trial_facts in (
        (True, own_operation, by_size),
        (False, other_operation, by_size),
        (False, None, by_size),
        (True, None, by_structure),
        (False, other_operation, by_structure),
        (False, "", by_structure),
    ):
        trial = Trial(mutant, True, margin=None, operation=operation, **trial_facts)
        assert trial.passed == is_named
        out = io.StringIO()
        print_trials(Trials([trial]), Console(file=out, width=300))
        assert (f", not {mutant.culprit} and {mutant.operation}" in out.getvalue()) == (not is_named)
        assert f"1 of 1 faults caught, {int(is_named)} named" in out.getvalue()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "original_code", "faulty_code", "culprit_place"),
    [
        (
            "models/ctrl/continuation.py",
            "return paddle.matmul(hidden_states, self.weight, transpose_y=True) + self.bias",
            "return paddle.matmul(hidden_states, self.weight, transpose_y=True)",
            "(Continuation.__call__, models/ctrl/continuation.py:",
        ),
        (
            "models/ctrl/continuation.py",
            "paddle.full_like(tokens, position)",
            "paddle.full_like(tokens, position - 1)",
            "(Continuation.__call__, models/ctrl/continuation.py:",
        ),
        (
            "models/operations/decoder_loops.py",
            "root = math.sqrt(np.float32(depth))",
            "root = math.sqrt(np.float32(depth + 1))",
            "decoder_step (compiled loop, models/operations/decoder_loops.py:",
        ),
        (
            "models/operations/decoder_loops.py",
            "divisor, squares = math.sqrt(np.float32(depth))",
            "divisor, squares = math.sqrt(np.float32(depth + 1))",
            "reversible_step (compiled loop, models/operations/decoder_loops.py:",
        ),
    ],
    ids=["scores", "position", "compiled", "key"],
)
def test_a_fault_of_generation_is_named_at_its_line(file, original_code, faulty_code, culprit_place, tmp_path):
    source = copied_source(tmp_path, file, (original_code, faulty_code))
    small = ["--model", "ctrl", "--layers", "1", "--length", "16", "n_embd=16", "n_head=2", "dff=24", "vocab_size=48"]
    if "reversible" in culprit_place:
        small = ["--model", "reformer", "--head", "causal_lm", "--layers", "2", "--length", "64"]
    process = toolkit_in(source, "parity", *small, "--dtype", "float64", "--output", tmp_path / "out")
    assert process.returncode == 1, process.stdout + process.stderr
    report = json.loads((tmp_path / "out" / "cpu" / "parity.json").read_text())
    assert culprit_place in report["culprit"]["place"], report["culprit"]


def test_a_fault_in_the_source_is_stopped_with_its_module_and_line(tmp_path):
    """Edit one constant of the port, and run the real command on a copy of the source."""
    edit = ("_normalize_rows(x, epsilon)[0] * gain", "_normalize_rows(x, 10 * epsilon)[0] * gain")
    arguments = ("--model", "reformer", "--layers", "2", "--length", "64", "--weights", "random")
    arguments += ("--dtype", "float64", "--output", "out")
    process = toolkit_in(copied_source(tmp_path, "models/operations/ops.py", edit), "parity", *arguments)
    assert process.returncode == 1, process.stderr
    assert (
        "DRIFT reformer.encoder.layers.0.attention.layer_norm (LayerNorm, models/reformer/modeling.py:"
        in process.stdout
    )
    report = json.loads((tmp_path / "out" / "cpu" / "parity.json").read_text())
    assert report["culprit"]["verdict"] == "semantics"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    """Return a saved classifier with random weights."""
    folder = tmp_path_factory.mktemp("checkpoint")
    port = ReformerForSequenceClassification(ReformerConfig(**TINY_REFORMER))
    weights.load(port, dict(reformer_request(TINY_REFORMER).weights))
    port.save_pretrained(folder)
    return folder


@pytest.mark.slow
def test_a_loader_that_swaps_query_and_key_is_stopped_though_the_step_agrees(checkpoint, tmp_path):
    """Both sides run the step with the weights that the port's loader read, so the weights themselves are compared."""
    edit = (
        "yield ALIASES.get(name, name), value",
        "yield name.replace('.query.', '.q.').replace('.key.', '.query.').replace('.q.', '.key.'), value",
    )
    source = copied_source(tmp_path, "models/reformer/weights.py", edit)
    arguments = ("--model", "reformer", "--weights", checkpoint, "--length", "128", "--dtype", "float64")
    process = toolkit_in(source, "parity", *arguments, "--output", "out")
    assert process.returncode == 1, process.stderr
    assert "DRIFT reformer.encoder.layers.0.attention.self_attention.query (Linear, " in process.stdout
    assert (
        "query.weight: from the checkpoint (models/reformer/weights.py): 1024 of 1024 values are not" in process.stdout
    )


def test_the_body_of_a_checkpoint_passes_with_a_new_head(checkpoint, tmp_path):
    options = GateOptions(
        model="reformer", head="masked_lm", length=128, batch_size=1, weights_from=str(checkpoint), dtype="float64"
    )
    request = make_request(options)
    report, _ = run(request, tmp_path)
    assert report.passed and report.candidate.loading_problems == {} and request.checkpoint == str(checkpoint)


@pytest.mark.parametrize("head", TOKENIZERS)
def test_tokens_of_the_runs_own_texts_are_compared(prepared_gates, make_reformer_request, tmp_path, head):
    case = next(case for case in CORRECT_REFORMERS if case[0] == head)
    report, text = prepared_gates.run(make_reformer_request(*case), tmp_path)
    assert report.passed, report.summary()
    assert len(report.reference.tokens) > 20 and "texts tokenized alike" in text
    assert report.reference.tokens[0].error is None


def test_constant_initial_weights_are_randomized(tiny_config):
    config = schema.resolve(tiny_config)
    initial_weights = weights.initial_weights(config, "sequence_classification", 0)
    new_weights, count = randomize_constants(initial_weights, 0)
    constant = [name for name, value in initial_weights.items() if (value == value.flat[0]).all()]
    assert count == len(constant) > 0
    assert all(np.ptp(value) > 0 for value in new_weights.values())
    second_weights, second_count = randomize_constants(new_weights, 0)
    assert second_count == 0 and all((second_weights[name] == new_weights[name]).all() for name in new_weights)


@pytest.mark.slow
def test_large_gains_are_gated_without_a_false_alarm_and_the_noise_is_named(tmp_path):
    config = {**TINY_REFORMER, "attn_layers": ["local", "lsh"] * 4}
    report, _ = run(reformer_request(config, kind="large-gains", judge_reference_reversible=True), tmp_path)
    assert report.passed, report.summary()
    port_error = max(gradient.relative for gradient in report.verdict.recomputed)
    assert max(gradient.margin for gradient in (*report.verdict.recomputed, *report.verdict.replay)) < 0.5
    assert port_error < 1e-5
    # In float32, the error of the reference's reversible backward on the same weights is large.
    assert max(report.reference.own_backward["float32"].values()) > 100 * port_error


def test_an_equal_gate_is_cached_and_any_change_runs_again(prepared_gates, tmp_path, monkeypatch):
    request = make_label_request("reformer", *OTHER_LABELS[0])
    first, _ = prepared_gates.run(request, tmp_path / "first")

    def no_workers(*_):
        raise AssertionError("the workers ran")

    monkeypatch.setattr(gate, "run_workers", no_workers)
    second, text = run(request, tmp_path / "second")
    assert second.passed and second.cached and not first.cached
    assert text.startswith("PARITY") and re.search(r" s, cached$", text, re.MULTILINE)
    reports = [json.loads((tmp_path / name / "parity.json").read_text()) for name in ("first", "second")]
    assert reports[0]["tensors"] == reports[1]["tensors"] and reports[1]["cached"]
    new_weights = dict(request.weights)
    name = "reformer.encoder.layer_norm.bias"
    new_weights[name] = np.nextafter(new_weights[name], np.float32(np.inf))
    for new_request in (
        dataclasses.replace(request, config={**request.config, "layer_norm_eps": 1e-11}),
        dataclasses.replace(request, seed=1),
        dataclasses.replace(request, weights=new_weights),
    ):
        with pytest.raises(AssertionError, match="the workers ran"):
            run(new_request, tmp_path / "third")


def test_a_drift_is_not_cached(prepared_gates, tmp_path, monkeypatch):
    request = make_label_request("reformer", *OTHER_LABELS[0])
    with monkeypatch.context() as drifting:
        drift = Finding("tokenizer", "text 0", "made up")  # the finding is not traced to an operation
        drifting.setattr(gate, "judge", lambda *_: Verdict(findings=[drift]))
        assert not prepared_gates.run(request, tmp_path)[0].passed
    monkeypatch.setattr(gate, "run_workers", lambda *_: pytest.fail("not cached, as it should be"))
    with pytest.raises(pytest.fail.Exception):
        run(request, tmp_path)


def test_a_reference_that_cannot_run_is_inconclusive_with_the_reason(tiny_config, tmp_path):
    request = reformer_request(tiny_config)
    request.batch["input_ids"] = request.batch["input_ids"] + 10**6
    with pytest.raises(Inconclusive, match=r"reference could not run.*index out of range"):
        run(request, tmp_path)
    assert not (tmp_path / "parity.json").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"overrides": ["num_hash=4"]}, "num_hash: unknown key, did you mean num_hashes"),
        ({"overrides": ["num_hashes"]}, "expected KEY=VALUE"),
        (
            {"length": 1000, "overrides": ["axial_pos_shape=[8, 16]"]},
            r"--length 1000: axial_pos_shape: .* set --length to 128, or axial_pos_shape to \[32, 32\]",
        ),
        ({"weights_from": "no-such-folder/x", "layers": None}, "--weights no-such-folder/x"),
        ({"model": "ctrl", "length": 300, "overrides": ["n_positions=256"]}, "n_positions: 256 is less than 300"),
    ],
)
def test_an_impossible_model_is_reported_in_one_line(options, message, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    arguments = {"model": "reformer", "overrides": [], "length": 128, "layers": 2, "weights_from": "random", **options}
    with pytest.raises(UserError, match=message):
        make_configuration(head="masked_lm", attention="mixed", **arguments)


def test_a_missing_gpu_is_wrong_usage():
    import paddle

    if paddle.is_compiled_with_cuda() and paddle.device.cuda.device_count():
        pytest.skip("Paddle sees a GPU here")
    with pytest.raises(UserError, match="sees no GPU"):
        select_devices("gpu")
    assert select_devices("all") == ["cpu"]


@pytest.mark.gpu
def test_a_correct_port_passes_on_the_gpu(tiny_config, tmp_path):
    report, _ = run(reformer_request(tiny_config, device="gpu"), tmp_path)
    assert report.passed, report.summary()


@pytest.mark.slow
def test_a_change_of_1e_10_in_any_matrix_and_of_1e_8_in_any_gradient_is_caught():
    limits = find_limits(trial_request("ctrl", "heavy-tailed", 1), quiet())
    assert {limit.name for limit in limits} == set(
        part("ctrl", "weights").parameters(part("ctrl", "schema").resolve(CTRL_TRIAL), "causal_lm")
    )
    assert all(is_sensitive(limit) for limit in limits)
    blind = {limit.name for limit in limits if limit.gradient > 1e-8}  # softmax does not depend on a key's bias
    assert blind <= {f"transformer.h.{layer}.multi_head_attention.Wk.bias" for layer in range(3)}
