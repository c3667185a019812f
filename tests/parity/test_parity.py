"""The gate as a user meets it: right ports pass, each fault is stopped and named, nothing is left behind."""

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

#: Head, kind of weights, and what is changed of the small Reformer.
RIGHT_REFORMERS = [
    ("sequence_classification", "heavy-tailed", {"local_num_chunks_after": 1, "lsh_num_chunks_after": 1}),
    ("causal_lm", "random", {"num_hashes": 4, "chunk_size_lm_head": 32, "chunk_size_feed_forward": 64}),
    ("masked_lm", "large-gains", {"axial_pos_embds": False, "num_buckets": [2, 4], "hidden_act": "gelu_new"}),
    ("question_answering", "random", {"num_labels": 2}),
    ("token_classification", "heavy-tailed", {"num_labels": 5, "classifier_dropout": 0.3}),
]
RIGHT_CTRLS = [("causal_lm", "heavy-tailed"), ("sequence_classification", "large-gains")]
#: Kinds of labels beside classes, and how many outputs there are: a number, several numbers, several labels.
OTHER_LABELS = [("regression", 1), ("regression", 3), ("multi_label_classification", 5)]


def right_reformer(head: str, kind: str, changes: dict) -> GateRequest:
    return reformer_request({**TINY_REFORMER, **changes}, head, kind)


def right_ctrl(head: str, kind: str) -> GateRequest:
    return request_for("ctrl", head, CTRL_TRIAL, 24, kind)


def of_labels(model: str, problem: str, outputs: int) -> GateRequest:
    config = {"reformer": {**TINY_REFORMER, "attn_layers": ["local"]}, "ctrl": {**CTRL_TRIAL, "n_layer": 1}}[model]
    config = {**config, "problem_type": problem, "num_labels": outputs}
    return request_for(model, "sequence_classification", config, {"reformer": 128, "ctrl": 24}[model])


def in_float64() -> GateRequest:
    return reformer_request(TINY_REFORMER, dtypes=("float64",))


@pytest.fixture(scope="module")
def tokenized(tmp_path_factory) -> Callable[[str], GateRequest]:
    """A gate that compares a tokenizer, by its kind; SentencePiece's model is made of text that ships with Python."""
    import pydoc_data.topics

    from models.reformer.tokenizer import MODEL_FILE, train_sentencepiece

    folder = tmp_path_factory.mktemp("pieces")
    train_sentencepiece(list(pydoc_data.topics.topics.values())[:20], 300, folder)
    paths = {"bytes": None, "sentencepiece": str(folder / MODEL_FILE)}

    def request(kind: str) -> GateRequest:
        tokenizer = TokenizerJob(kind, ["une maison", "the statement"], 8, paths[kind])
        return reformer_request(TINY_REFORMER, dtypes=("float64",), tokenizer=tokenizer)

    return request


@pytest.fixture(scope="module")
def prepared(tmp_path_factory, tokenized) -> PreparedGates:
    requests = [
        *(right_reformer(*one) for one in RIGHT_REFORMERS),
        *(right_ctrl(*one) for one in RIGHT_CTRLS),
        *(of_labels(model, *one) for model in FAMILIES for one in OTHER_LABELS),
        *(tokenized(kind) for kind in ("bytes", "sentencepiece")),
        in_float64(),
    ]
    return PreparedGates(tmp_path_factory.mktemp("jobs"), requests)


@pytest.mark.parametrize(("head", "kind", "changes"), RIGHT_REFORMERS)
def test_a_right_port_passes_in_both_dtypes(prepared, tmp_path, head, kind, changes):
    report, text = prepared.run(right_reformer(head, kind, changes), tmp_path)
    assert report.passed, report.summary()
    assert text.startswith("PARITY")
    stored = json.loads((tmp_path / "parity.json").read_text())
    assert stored["passed"] and stored["exit_status"] == 0
    # Every parameter's gradient, in both dtypes, was compared: nothing passes by being left out.
    compared = {(t["name"], t["dtype"]) for t in stored["tensors"]}
    for name in weights.parameters(schema.resolve(report.request.config), head):
        assert {(f"gradient:{name}", "float64"), (f"gradient:{name}", "float32")} <= compared
    assert {"paddlepaddle", "numpy"} <= set(stored["versions"]["candidate"])


@pytest.mark.slow
def test_a_long_text_gives_the_same_figures_with_less_memory(tiny_config, tmp_path, monkeypatch):
    stored = []
    request = reformer_request(tiny_config)
    apart = dataclasses.replace(request, max_memory=1.5 * stretch.memory_of(request) / 1e9)
    all_runs, few_runs = build.NOISE_RUNS, build.FEW_NOISE_RUNS
    gates = [(build.LONG, all_runs, request), (1, all_runs, request), (1, all_runs, apart), (1, few_runs, request)]
    for number, (tokens, runs, asked) in enumerate(gates):
        monkeypatch.setattr(build, "LONG", tokens)
        monkeypatch.setattr(build, "FEW_NOISE_RUNS", runs)
        run(asked, tmp_path / str(number))
        stored.append(json.loads((tmp_path / str(number) / "parity.json").read_text()))
    for key in ("passed", "notes", "recomputed"):
        assert stored[0][key] == stored[1][key], key
    # The bounds are not the same in float64: sums that are computed again are reordered again.
    figures = [[(t["name"], t["dtype"], t["error"], t["error_max"]) for t in one["tensors"]] for one in stored]
    assert figures[0] == figures[1]
    rounding = [[t for t in one["tensors"] if t["dtype"] == "float32"] for one in stored]
    assert rounding[0] == rounding[1]
    # Whether both workers run at once changes nothing.
    assert stored[1]["tensors"] == stored[2]["tensors"]
    # And the few runs by which a long text's noise is measured make no bound wider.
    assert figures[3] == figures[0] and stored[3]["passed"]
    few, many = (np.array([(t["bound"], t["bound_max"]) for t in stored[n]["tensors"]]) for n in (3, 1))
    assert (few <= many).all() and (few < many).any()


@pytest.mark.parametrize(("head", "kind"), RIGHT_CTRLS)
def test_a_right_ctrl_passes_in_both_dtypes(prepared, tmp_path, head, kind):
    request = right_ctrl(head, kind)
    report, text = prepared.run(request, tmp_path)
    assert report.passed and text.startswith("PARITY"), report.summary()
    for dtype in ("float64", "float32"):
        assert {f"gradient:{name}" for name in request.weights} <= set(report.candidate.dtypes[dtype].tensors)
    # The language-model loss leaves float64, which is a fault of the reference and is said to be one.
    assert ("reference computes in float32 at loss_utils.py" in text) == (head == "causal_lm")


@pytest.mark.parametrize("model", FAMILIES)
@pytest.mark.parametrize(("problem", "outputs"), OTHER_LABELS)
def test_numbers_and_several_labels_a_text_are_gated_and_float64_stays_float64(
    prepared, tmp_path, model, problem, outputs
):
    """The reference's loss of several labels has the labels' dtype: float32 labels would cost R64 its digits."""
    report, text = prepared.run(of_labels(model, problem, outputs), tmp_path)
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
def test_a_batch_has_labels_of_the_kind_that_the_configuration_says(problem, outputs, dtype, shape):
    config = {**CTRL_TRIAL, "problem_type": problem, "num_labels": outputs}
    labels = random_batch(config, "sequence_classification", 3, 24, 0, "ctrl")["labels"]
    assert (labels.dtype, labels.shape) == (dtype, shape)


def test_the_faults_of_the_catalogues_are_found_by_name():
    distinct = {mutant for mutants in map(catalogue, FAMILIES) for mutant in mutants}
    assert len({mutant.name for mutant in distinct}) == len(distinct)


#: By family, faults of all kinds with the verdict that names each, and a harmless change, which none does.
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
#: What finds one of these beside the verdict that names it.
BESIDE = {"reformer": set(), "ctrl": {"signs"}}


@pytest.mark.parametrize("model", SOME_FAULTS)
def test_each_verdict_catches_a_fault_which_is_named_and_none_a_harmless_change(model, monkeypatch):
    judged = []
    monkeypatch.setattr(mutation, "judge", lambda *sides: judged.append(judge(*sides)) or judged[-1])
    trials = try_mutants(trial_request(model, "random", 0), quiet(), list(SOME_FAULTS[model]))
    assert {trial.mutant.name: trial.verdict for trial in trials} == SOME_FAULTS[model]
    assert [(t.mutant.name, t.verdict, t.culprit) for t in trials if not t.passed] == []
    found = {finding.verdict for verdict in judged for finding in verdict.findings}
    assert found == {*filter(None, SOME_FAULTS[model].values()), *BESIDE[model]}


#: Faults of code that all families share, in the training loop and the optimizer: tried with one family.
SHARED_FAULTS = set.intersection(*(set(catalogue(model)) for model in FAMILIES))


@pytest.mark.slow
@pytest.mark.parametrize("model", ["reformer", "ctrl"])
def test_every_fault_of_the_catalogue_is_caught_and_named_and_the_harmless_pass(model):
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
def test_how_much_padding_is_left_out_is_judged_on_a_single_text_too_which_fills_the_batch(head):
    request = trial_request("reformer", "random", 0)
    config = {**request.config, "num_labels": 2}
    batch = random_batch(config, head, 1, 112, 0, "reformer", [FULL])
    assert batch["attention_mask"].all()
    made_up = SyntheticWeights(schema.resolve(config), head, 0, "random", "reformer")
    single = dataclasses.replace(request, head=head, config=config, batch=batch, weights=made_up)
    trials = try_mutants(single, quiet(), ["eval-no-padding-kept"])
    assert [(trial.is_caught, trial.culprit.split("/")[0]) for trial in trials] == [(True, "unpadded")]


def test_a_fault_is_named_only_with_its_operation_unless_no_tensor_can_show_it():
    mutant = next(one for one in catalogue("ctrl") if one.name == "ctrl-last-norm-epsilon")
    here, elsewhere = mutant.operation, "scores:transformer.h.0.multi_head_attention"
    by_structure = {"verdict": "structure", "culprit": "epsilon:transformer.layernorm"}
    by_size = {"verdict": "semantics", "culprit": "output:transformer.layernorm"}
    for named, operation, found in (
        (True, here, by_size),
        (False, elsewhere, by_size),
        (False, None, by_size),
        (True, None, by_structure),
        (False, elsewhere, by_structure),
        (False, "", by_structure),
    ):
        trial = Trial(mutant, True, margin=None, operation=operation, **found)
        assert trial.passed == named
        out = io.StringIO()
        print_trials(Trials([trial]), Console(file=out, width=300))
        assert (f", not {mutant.culprit} and {mutant.operation}" in out.getvalue()) == (not named)
        assert f"1 of 1 faults caught, {int(named)} named" in out.getvalue()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "before", "after", "named"),
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
def test_a_fault_of_generation_is_named_where_it_is_made(file, before, after, named, tmp_path):
    source = copied_source(tmp_path, file, (before, after))
    small = ["--model", "ctrl", "--layers", "1", "--length", "16", "n_embd=16", "n_head=2", "dff=24", "vocab_size=48"]
    if "reversible" in named:
        small = ["--model", "reformer", "--head", "causal_lm", "--layers", "2", "--length", "64"]
    done = toolkit_in(source, "parity", *small, "--dtype", "float64", "--output", tmp_path / "out")
    assert done.returncode == 1, done.stdout + done.stderr
    stored = json.loads((tmp_path / "out" / "cpu" / "parity.json").read_text())
    assert named in stored["culprit"]["place"], stored["culprit"]


def test_a_fault_in_the_source_is_stopped_with_its_module_and_line(tmp_path):
    """One constant of the port edited, as a developer would; the real command, on a copy of the source."""
    edit = ("_normalize_rows(x, epsilon)[0] * gain", "_normalize_rows(x, 10 * epsilon)[0] * gain")
    arguments = ("--model", "reformer", "--layers", "2", "--length", "64", "--weights", "random", "--output", "out")
    done = toolkit_in(copied_source(tmp_path, "models/operations/ops.py", edit), "parity", *arguments)
    assert done.returncode == 1, done.stderr
    assert (
        "DRIFT reformer.encoder.layers.0.attention.layer_norm (LayerNorm, models/reformer/modeling.py:" in done.stdout
    )
    stored = json.loads((tmp_path / "out" / "cpu" / "parity.json").read_text())
    assert stored["culprit"]["verdict"] == "semantics"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    """A saved classifier of random weights."""
    folder = tmp_path_factory.mktemp("checkpoint")
    port = ReformerForSequenceClassification(ReformerConfig(**TINY_REFORMER))
    weights.load(port, dict(reformer_request(TINY_REFORMER).weights))
    port.save_pretrained(folder)
    return folder


@pytest.mark.slow
def test_a_loader_that_exchanges_query_and_key_is_stopped_though_the_step_agrees(checkpoint, tmp_path):
    """Both sides run the step with what the port's loader has read: it is compared with what the reference reads."""
    edit = (
        "yield ALIASES.get(name, name), value",
        "yield name.replace('.query.', '.q.').replace('.key.', '.query.').replace('.q.', '.key.'), value",
    )
    source = copied_source(tmp_path, "models/reformer/weights.py", edit)
    arguments = ("--model", "reformer", "--weights", checkpoint, "--length", "128", "--dtype", "float64")
    done = toolkit_in(source, "parity", *arguments, "--output", "out")
    assert done.returncode == 1, done.stderr
    assert "DRIFT reformer.encoder.layers.0.attention.self_attention.query (Linear, " in done.stdout
    assert "query.weight: from the checkpoint (models/reformer/weights.py): 1024 of 1024 values are not" in done.stdout


def test_the_body_of_a_checkpoint_passes_under_a_head_that_both_sides_make_anew(checkpoint, tmp_path):
    options = GateOptions(
        model="reformer", head="masked_lm", length=128, batch_size=1, weights_from=str(checkpoint), dtype="float64"
    )
    request = make_request(options)
    report, _ = run(request, tmp_path)
    assert report.passed and report.candidate.loading_problems == {} and request.checkpoint == str(checkpoint)


@pytest.mark.parametrize("kind", ["bytes", "sentencepiece"])
def test_tokens_of_the_runs_own_texts_are_compared(prepared, tokenized, tmp_path, kind):
    report, text = prepared.run(tokenized(kind), tmp_path)
    assert report.passed, report.summary()
    assert len(report.reference.tokens) > 20 and "texts tokenized alike" in text
    assert report.reference.tokens[0].error is None


def test_new_weights_are_randomized_so_that_no_bias_can_be_dropped_unseen(tiny_config):
    config = schema.resolve(tiny_config)
    given = weights.initial_weights(config, "sequence_classification", 0)
    randomized, count = randomize_constants(given, 0)
    constant = [name for name, value in given.items() if (value == value.flat[0]).all()]
    assert count == len(constant) > 0
    assert all(np.ptp(value) > 0 for value in randomized.values())
    again, none = randomize_constants(randomized, 0)
    assert none == 0 and all((again[name] == randomized[name]).all() for name in randomized)


@pytest.mark.slow
def test_large_gains_are_gated_without_a_false_alarm_and_the_noise_is_named(tmp_path):
    config = {**TINY_REFORMER, "attn_layers": ["local", "lsh"] * 4}
    report, _ = run(reformer_request(config, kind="large-gains", judge_reference_reversible=True), tmp_path)
    assert report.passed, report.summary()
    ours = max(one.relative for one in report.verdict.recomputed)
    assert max(one.margin for one in (*report.verdict.recomputed, *report.verdict.replay)) < 0.5
    assert ours < 1e-5
    # The reference's own reversible backward, on the same weights, is far off in float32.
    assert max(report.reference.own_backward["float32"].values()) > 100 * ours


def test_an_equal_gate_is_not_paid_for_twice_and_any_change_is(prepared, tmp_path, monkeypatch):
    request = in_float64()
    first, _ = prepared.run(request, tmp_path / "first")

    def no_workers(*_):
        raise AssertionError("the workers ran")

    monkeypatch.setattr(gate, "run_workers", no_workers)
    second, text = run(request, tmp_path / "second")
    assert second.passed and second.cached and not first.cached
    assert text.startswith("PARITY") and re.search(r" s, cached$", text, re.MULTILINE)
    stored = [json.loads((tmp_path / name / "parity.json").read_text()) for name in ("first", "second")]
    assert stored[0]["tensors"] == stored[1]["tensors"] and stored[1]["cached"]
    changed = dict(request.weights)
    name = "reformer.encoder.layer_norm.bias"
    changed[name] = np.nextafter(changed[name], np.float32(np.inf))
    for other in (
        reformer_request({**TINY_REFORMER, "layer_norm_eps": 1e-11}, dtypes=("float64",)),
        reformer_request(TINY_REFORMER, dtypes=("float64",), seed=1),
        dataclasses.replace(request, weights=changed),
    ):
        with pytest.raises(AssertionError, match="the workers ran"):
            run(other, tmp_path / "third")


def test_a_drift_is_not_remembered(prepared, tmp_path, monkeypatch):
    request = in_float64()
    with monkeypatch.context() as drifting:
        drift = Finding("tokenizer", "text 0", "made up")  # which is not traced to an operation
        drifting.setattr(gate, "judge", lambda *_: Verdict(findings=[drift]))
        assert not prepared.run(request, tmp_path)[0].passed
    monkeypatch.setattr(gate, "run_workers", lambda *_: pytest.fail("not cached, as it should be"))
    with pytest.raises(pytest.fail.Exception):
        run(request, tmp_path)


def test_a_reference_that_cannot_run_is_inconclusive_and_says_why(tiny_config, tmp_path):
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
def test_a_model_that_cannot_be_is_one_line(options, message, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    given = {"model": "reformer", "overrides": [], "length": 128, "layers": 2, "weights_from": "random", **options}
    with pytest.raises(UserError, match=message):
        make_configuration(head="masked_lm", attention="mixed", **given)


def test_a_gpu_that_is_not_there_is_wrong_usage():
    import paddle

    if paddle.is_compiled_with_cuda() and paddle.device.cuda.device_count():
        pytest.skip("Paddle sees a GPU here")
    with pytest.raises(UserError, match="sees no GPU"):
        select_devices("gpu")
    assert select_devices("all") == ["cpu"]


@pytest.mark.gpu
def test_a_right_port_passes_on_the_gpu(tiny_config, tmp_path):
    report, _ = run(reformer_request(tiny_config, device="gpu"), tmp_path)
    assert report.passed, report.summary()


@pytest.mark.slow
def test_a_change_of_1e_10_in_any_matrix_and_of_1e_8_in_any_gradient_is_caught():
    limits = find_limits(trial_request("ctrl", "heavy-tailed", 1), quiet())
    assert {limit.name for limit in limits} == set(
        part("ctrl", "weights").parameters(part("ctrl", "schema").resolve(CTRL_TRIAL), "causal_lm")
    )
    assert all(is_sensitive(limit) for limit in limits)
    blind = {limit.name for limit in limits if limit.gradient > 1e-8}  # softmax does not see a key's bias
    assert blind <= {f"transformer.h.{layer}.multi_head_attention.Wk.bias" for layer in range(3)}
