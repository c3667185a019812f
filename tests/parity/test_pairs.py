"""Test pairs of a user's port and reference: matching, the gate, trials, and one-line errors for bad input."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest
from soak import some

from toolkit.errors import ParityDrift, UserError
from toolkit.parity.job import user_code
from toolkit.parity.job.pair import BufferFacts, Description, DrawFacts, ModuleFacts, ParameterFacts, batch_of
from toolkit.parity.measure.error_stats import TensorRecord, TensorStats
from toolkit.parity.pairs.match import match_draws, propose_map

PAIRS = Path(__file__).parents[1] / "pairs"
#: The score that the trial of the mixture of experts prints.
MOE_SCORE = "19 of 19 faults caught, 19 named; 2 of 2 harmless changes passed"


def make_parameter(name: str, shape: list[int], order: int, role: str = "linear") -> ParameterFacts:
    module, _, leaf = name.rpartition(".")
    return ParameterFacts(name, shape, role, role == "linear" and leaf == "weight", module, "Linear", order)


def make_description(*parameters: ParameterFacts) -> Description:
    modules = [ModuleFacts(fact.module, fact.kind, (2, *fact.shape[:1])) for fact in parameters]
    return Description(list(parameters), modules)


# -- matching ---------------------------------------------------------------------------------------------------------


def test_names_and_order_together_are_certain():
    theirs = make_description(*(make_parameter(f"layer.{n}.{word}.weight", [4, 4], 2 * n + place)
                         for n in range(2) for place, word in enumerate(("query", "key"))))  # fmt: skip
    ours = make_description(*(make_parameter(f"h.{n}.{word}_proj.weight", [4, 4], 2 * n + place)
                       for n in range(2) for place, word in enumerate(("q", "k"))))  # fmt: skip
    matches = propose_map(theirs, ours)
    assert [(match.reference, match.port, match.certain) for match in matches.parameters] == [
        ("layer.0.query.weight", "h.0.q_proj.weight", True),
        ("layer.0.key.weight", "h.0.k_proj.weight", True),
        ("layer.1.query.weight", "h.1.q_proj.weight", True),
        ("layer.1.key.weight", "h.1.k_proj.weight", True),
    ]
    assert matches.modules["layer.1.key"] == "h.1.k_proj"


def test_a_name_wins_over_the_order_and_is_a_guess():
    """PaddleNLP's attention maps the key before the query."""
    theirs = make_description(
        make_parameter("self.query.weight", [4, 4], 0), make_parameter("self.key.weight", [4, 4], 1)
    )
    ours = make_description(
        make_parameter("attn.k_proj.weight", [4, 4], 0), make_parameter("attn.q_proj.weight", [4, 4], 1)
    )
    matched_names = {match.reference: (match.port, match.certain) for match in propose_map(theirs, ours).parameters}
    assert matched_names == {
        "self.query.weight": ("attn.q_proj.weight", False),
        "self.key.weight": ("attn.k_proj.weight", False),
    }


@pytest.mark.parametrize(
    ("theirs", "ours", "is_compared"),
    [
        ((1, 17, 16), (3, 17, 16), False),  # positions that are looked up once, or for each text
        ((17, 16), (3, 17, 16), False),
        ((3, 17, 16), (51, 16), True),
        ((3, 8, 6, 6), (3, 8, 5, 5), True),  # a finding
        ((3, 17, 16), None, False),
    ],
)
def test_outputs_are_compared_unless_broadcasting_explains_their_shapes(theirs, ours, is_compared):
    sides = [make_description(make_parameter("up.weight", [16, 16], 0)) for _ in range(2)]
    for side, shape in zip(sides, (theirs, ours), strict=True):
        side.modules = [ModuleFacts("up", "Linear", shape)]
    assert ("up" in propose_map(*sides).modules) == is_compared


def test_norms_on_both_sides_of_a_certain_layer_keep_their_order():
    """Meta's `attention_norm` is before the attention; the similarly named norm of transformers is behind it."""
    layers = (("input_layernorm", "attention_norm"), ("self_attn.o_proj", "attention.wo"),
              ("post_attention_layernorm", "ffn_norm"), ("mlp.down_proj", "feed_forward.w2"))  # fmt: skip
    sides = [
        make_description(
            *(
                make_parameter(
                    f"layers.{n}.{names[side]}.weight",
                    [4] if "norm" in names[side] else [4, 4 + place],
                    4 * n + place,
                    "other" if "norm" in names[side] else "linear",
                )
                for n in range(2)
                for place, names in enumerate(layers)
            )
        )
        for side in (0, 1)
    ]
    matched_names = {match.reference: match.port for match in propose_map(*sides).parameters}
    expected_names = [
        (f"layers.{n}.{theirs}.weight", f"layers.{n}.{ours}.weight") for n in range(2) for theirs, ours in layers
    ]
    assert matched_names == dict(expected_names)


def test_the_users_map_wins():
    theirs = make_description(make_parameter("a.weight", [4, 4], 0), make_parameter("b.weight", [4, 4], 1))
    ours = make_description(make_parameter("a.weight", [4, 4], 0), make_parameter("b.weight", [4, 4], 1))
    user_map = {"a.weight": ["b.weight"], "b.weight": ["a.weight"]}
    assert {match.reference: [match.port] for match in propose_map(theirs, ours, user_map).parameters} == user_map


def test_shapes_and_roles_must_agree():
    theirs = make_description(make_parameter("one.weight", [4, 8], 0), make_parameter("two.weight", [4], 1, "norm"))
    ours = make_description(make_parameter("one.weight", [8, 4], 0), make_parameter("two.bias", [4], 1, "norm"))
    assert propose_map(theirs, ours).parameters == []


def test_a_users_layer_may_name_its_weight_freely_and_scalars_match_one_element():
    """CLIP's projections in PaddleNLP are parameters of the model itself, transposed; its scale has one element."""
    theirs = make_description(
        make_parameter("text_projection.weight", [4, 8], 0), make_parameter("logit_scale", [], 1, "other")
    )
    ours = make_description(
        make_parameter("text_projection", [8, 4], 0, "other"), make_parameter("logit_scale", [1], 1, "other")
    )
    matches = propose_map(theirs, ours).parameters
    assert [(match.reference, match.port) for match in matches] == [
        ("text_projection.weight", "text_projection"),
        ("logit_scale", "logit_scale"),
    ]
    bias = make_description(make_parameter("text_projection", [8], 0, "other"))
    assert propose_map(make_description(make_parameter("head.bias", [8], 0)), bias).parameters == []


def test_a_draw_of_only_the_port_does_not_shift_the_others():
    """PaddleNLP's OPT drops embeddings; transformers' does not."""
    theirs = [
        DrawFacts(f"dropout:layers.{n}@{k}" if k else f"dropout:layers.{n}", [3, 4]) for n in (0, 1) for k in (0, 1)
    ]
    ours = [DrawFacts("dropout:embeddings", [12])]
    ours += [DrawFacts(f"dropout:layers.{n}.dropout{k}", [12]) for n in (0, 1) for k in (1, 2)]
    assert list(match_draws(theirs, ours).items()) == [
        ("dropout:layers.0.dropout1", "dropout:layers.0"),
        ("dropout:layers.0.dropout2", "dropout:layers.0@1"),
        ("dropout:layers.1.dropout1", "dropout:layers.1"),
        ("dropout:layers.1.dropout2", "dropout:layers.1@1"),
    ]


def make_buffer(name: str, shape: list[int], is_state: bool = True) -> BufferFacts:
    return BufferFacts(name, shape, "norm", False, name.rpartition(".")[0], "BatchNorm", 0, is_state=is_state)


def test_running_statistics_match_and_unmatched_state_is_a_finding():
    """In Paddle they are parameters without gradient; a table that no checkpoint contains may be missing on a side."""
    theirs, ours = (
        make_description(make_parameter("norm.weight", [4], 0)),
        make_description(make_parameter("bn.weight", [4], 0)),
    )
    theirs.buffers = [
        make_buffer("norm.running_mean", [4]),
        make_buffer("norm.running_var", [4]),
        make_buffer("ids", [9], False),
    ]
    ours.buffers = [make_buffer("bn._mean", [4]), make_buffer("bn._variance", [4]), make_buffer("scale", [2])]
    matches = propose_map(theirs, ours)
    assert {match.reference: match.port for match in matches.buffers} == {
        "norm.running_mean": "bn._mean",
        "norm.running_var": "bn._variance",
    }
    assert (matches.reference_state, matches.port_state) == ([], ["scale"])


@pytest.mark.parametrize(
    ("kind", "gradient_change", "noise", "harmless"),
    [
        (
            "mask-shifted",
            0.0,
            1e-15,
            "the mask hides nothing that would be seen: the loss and 1 gradients in float64 are",
        ),
        ("no-bias", 1e-15, 1e-15, "what follows depends on differences alone, as a softmax does, or is not used: the"),
        ("no-bias", 1e-13, 1e-15, ""),
        ("no-bias", None, 1e-15, ""),
        ("no-bias", None, 0.5, "what follows depends on differences alone"),
    ],
    ids=["to the bit", "rounding", "more than rounding", "missing", "all rounding"],
)
def test_a_missed_fault_is_harmless_only_if_the_ports_gradients_are_unchanged(kind, gradient_change, noise, harmless):
    from toolkit.parity.mutants.generic import module_fault
    from toolkit.parity.trials.mutation import Trial, add_effect

    truth = {name: TensorRecord([1], rms=1.0, noise={"float64": [noise]}) for name in ("loss", "gradient:a")}
    effects = {
        "loss": TensorStats([1], rms=0.0),
        "gradient:a": TensorStats([1], rms=gradient_change, missing=gradient_change is None),
    }
    missed_trial = add_effect(Trial(module_fault(kind, "a"), False, "", "", None), effects, truth)
    assert missed_trial.mutant.harmless.startswith(harmless) and missed_trial.passed == bool(harmless)
    caught_trial = add_effect(Trial(module_fault(kind, "a"), True, "output:a", "semantics", 9.0), effects, truth)
    assert caught_trial.passed and not caught_trial.mutant.harmless and caught_trial.is_still == bool(harmless)


def test_a_file_is_run_once_in_a_process(tmp_path):
    (tmp_path / "side.py").write_text("def build(config): ...\n")
    assert user_code.load(str(tmp_path / "side.py")) is user_code.load(str(tmp_path / "side.py"))


# -- files that are not a pair ----------------------------------------------------------------------------------------


@pytest.fixture
def pair(tmp_path, monkeypatch) -> Path:
    """Change to a copy of the pair of two MLPs, and return its folder."""
    shutil.copytree(PAIRS / "mlp", tmp_path / "mlp")
    monkeypatch.chdir(tmp_path / "mlp")
    return tmp_path / "mlp"


PARITY_COMMAND = ("parity", "--port", "port.py", "--reference-model", "reference.py")


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("port.py", None, "port.py: no such file"),
        ("port.py", "def built(config): ...\n", "port.py: has no build(config) that gives its model"),
        ("port.py", "def build(): ...\n", "port.py:1: build takes 0 arguments; it is called as build(config)"),
        ("port.py", "x = 1\ndef build(config)\n", "port.py:2: is not Python"),
        ("reference.py", "def build(config): ...\n", "port.py: neither it nor reference.py has batch(config, rng)"),
        (
            "port.py",
            "def build(config): ...\ndef batch(config, rng): ...\n",
            "port.py and reference.py both have batch(config, rng)",
        ),
    ],
    ids=["missing", "no build", "arguments", "syntax", "no batch", "two batches"],
)
def test_an_invalid_side_is_rejected_before_anything_runs(pair, command_line, file, content, message):
    (pair / file).unlink()
    if content is not None:
        (pair / file).write_text(content)
    status, out, err = command_line(*PARITY_COMMAND)
    assert (status, out) == (2, "") and err.startswith(f"error: {message}") and err.count("\n") == 1
    assert not (pair / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("parity", "--port", "port.py"), "--reference-model is missing"),
        ((*PARITY_COMMAND, "--layers", "2"), "--layers: is for --model"),
        ((*PARITY_COMMAND, "--model", "ctrl"), "--model: is for --model"),
        ((*PARITY_COMMAND, "hidden"), "hidden: expected KEY=VALUE"),
        ((*PARITY_COMMAND, "--map", "none.yaml"), "--map none.yaml: No such file"),
        (
            ("parity", "map", "--port", "no.such.module", "--reference-model", "reference.py"),
            "no.such.module: no module",
        ),
        (("parity", "mutants", "--port", "port.py", "--reference-model", "reference.py", "--model", "ctrl"), "--model"),
    ],
)
def test_wrong_options_are_reported_in_one_line(pair, command_line, arguments, message):
    status, _, err = command_line(*arguments)
    assert status == 2 and message in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("parameters: {embedding.weight: no.such}\n", "--map: the port has no parameter no.such"),
        ("parameters: {no.such: embed.weight}\n", "--map: the reference has no parameter no.such"),
        ("parameters: {embedding.weight: first.weight}\n", "--map: embedding.weight is [50, 16] in torch's layout"),
        ("- 1\n", "is no map of a pair"),
        ("a: [\n", "--map map.yaml:2: is no YAML"),
    ],
    ids=["port", "reference", "shape", "no map", "no YAML"],
)
@pytest.mark.slow
def test_a_map_with_unknown_names_is_rejected(pair, command_line, content, message):
    (pair / "map.yaml").write_text(content)
    status, _, err = command_line(*PARITY_COMMAND, "--map", "map.yaml")
    assert status == 2 and message in err and err.count("\n") == 1


@pytest.mark.slow
def test_two_modules_of_different_shape_are_reported(pair, command_line):
    text = (pair / "port.py").read_text()
    (pair / "port.py").write_text(text.replace('config.get("hidden", 16)', "24"))
    status, _, err = command_line(*PARITY_COMMAND)
    assert status == 2 and err.count("\n") == 1
    assert "embedding.weight of the reference is [50, 16], and embed.weight of the port is [50, 24]" in err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("\nimport nothing_of_this_name\n", "side.py:2: ModuleNotFoundError: No module named 'nothing_of_this_name'"),
        ("import broken\n", "side.py:1: SyntaxError: "),
        ("x = 1\n\nif x:\n    1 / 0\n", "side.py:4: ZeroDivisionError: division by zero"),
        ("import json\njson.loads('{')\n", "side.py:2: JSONDecodeError: "),
    ],
    ids=["module", "syntax elsewhere", "raises", "deep"],
)
def test_a_failed_import_is_reported_with_reason_and_line(tmp_path, monkeypatch, content, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "side.py").write_text(content)
    (tmp_path / "broken.py").write_text("def f(:\n")
    user_code.load.cache_clear()  # another test's file had this name
    with pytest.raises(user_code.UserCodeError) as raised_error:
        user_code.load("side.py")
    assert str(raised_error.value).startswith(message) and "\n" not in str(raised_error.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("return []", "side.py: batch() gave no batch; it is to give one, and at most 16 batches"),
        ("return {}", "side.py: batch() gave an empty dict"),
        ("return {'a': ['x']}", "side.py: batch()['a'] holds <U1; it is to hold numbers"),
        ("return config['length']", "side.py:4: KeyError: 'length'"),
    ],
)
def test_an_invalid_batch_is_reported_in_one_line(tmp_path, monkeypatch, content, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "side.py").write_text(f"\n\ndef batch(config, rng):\n    {content}\n")
    user_code.load.cache_clear()  # another test's file had this name
    with pytest.raises(user_code.UserCodeError) as raised_error:
        batch_of(user_code.load("side.py"), {}, 0)
    assert str(raised_error.value).startswith(message)


def test_build_must_return_a_new_model_of_its_own_framework(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "twice.py").write_text("def build(config): ...\n")
    source, model = user_code.load("twice.py"), AnyModel()
    user_code.check_built(source, model, AnyModel, "model")
    with pytest.raises(user_code.UserCodeError, match=r"twice\.py: build\(\) gave one module twice"):
        user_code.check_built(source, model, AnyModel, "model")
    with pytest.raises(user_code.UserCodeError, match=r"twice\.py: build\(\) gave list; it is to give a model"):
        user_code.check_built(source, [], AnyModel, "model")


class AnyModel:
    """Stand-in for a framework's class of models."""


@pytest.mark.slow
def test_a_build_that_rejects_its_config_is_reported_with_reason_and_line(pair, command_line):
    text = (pair / "reference.py").read_text().replace("    return Net", "    assert config['deep']\n    return Net")
    (pair / "reference.py").write_text(text)
    status, out, err = command_line(*PARITY_COMMAND)
    line = 1 + text[: text.index("assert")].count("\n")
    assert (status, out) == (2, "")
    assert err == f"error: the reference could not run: reference.py:{line}: KeyError: 'deep'\n"


# -- the gate ---------------------------------------------------------------------------------------------------------


def test_two_mlps_pass_the_gate(pair, command_line):
    status, out, err = command_line(*PARITY_COMMAND)
    assert status == 0 and out.startswith("PARITY"), out + err
    report = json.loads((pair / "runs/parity/cpu/parity.json").read_text())
    tensor_names = {tensor["name"] for tensor in report["tensors"]}
    assert {"loss", "output:ffn.0", "gradient:ffn.0.weight", "updated:ffn.3.bias#2"} <= tensor_names


@pytest.mark.slow
@pytest.mark.parametrize(
    ("original_code", "faulty_code", "culprit"),
    [
        ("self.norm(x + self.second", "self.norm(x - self.second", "ln"),
        ("nn.Dropout(0.1)", "nn.Dropout(0.2)", "dropout:ffn.2"),
        ("x = self.embed(ids)", "x = self.embed(ids).detach()", "embedding"),
    ],
    ids=["sign", "rate", "detached"],
)
def test_a_fault_in_the_users_file_is_named(pair, original_code, faulty_code, culprit):
    from toolkit.parity import require_parity

    text = (pair / "port.py").read_text()
    assert original_code in text
    (pair / "port.py").write_text(text.replace(original_code, faulty_code))
    with pytest.raises(ParityDrift, match=culprit):
        require_parity("port.py", "reference.py")


@pytest.mark.slow
def test_the_printed_map_is_accepted_as_input(pair, command_line):
    status, out, _ = command_line("parity", "map", *PARITY_COMMAND[1:])
    assert status == 0 and "  ffn.0.weight: first.weight  # 32x16, transposed" in out.splitlines()
    (pair / "map.yaml").write_text(out)
    assert command_line(*PARITY_COMMAND, "--map", "map.yaml")[0] == 0
    wrong_map = out.replace("ffn.0.bias: first.bias", "classifier.bias: head.bias").replace("embedding.weight:", "#")
    assert wrong_map != out


@pytest.mark.slow
def test_a_side_can_be_a_module_name(pair, command_line):
    (pair / "package").mkdir()
    (pair / "package" / "__init__.py").write_text("")
    (pair / "port.py").rename(pair / "package" / "port.py")
    assert command_line("parity", "--port", "package.port", "--reference-model", "reference.py")[0] == 0


def test_a_recipe_cannot_name_code(tmp_path):
    """Only the command line names a user's file."""
    from toolkit.recipe.keys import Model, Parity

    recipe_keys = {*Model.model_fields, *Parity.model_fields}
    assert not recipe_keys & {"port", "reference_model", "code", "module"}


#: By pair and family, the keys of a small model: rotary positions, grouped keys, a fused projection, a state space.
SIZE = "vocab_size=101 hidden_size=32 num_hidden_layers=2"
DECODER = f"{SIZE} intermediate_size=64 num_attention_heads=4 num_key_value_heads=2 max_position_embeddings=40"
ENCODER = f"{SIZE} intermediate_size=64 num_attention_heads=4 max_position_embeddings=40"
NO_DROPOUT = "hidden_dropout_prob=0.0 attention_probs_dropout_prob=0.0"
CORRECT_PORTS = {
    "decoders Llama": DECODER,
    "decoders Qwen2": DECODER,
    "decoders Mamba": f"{SIZE} state_size=8",
    "encoders Electra": f"{ENCODER} embedding_size=16",
    "encoders Roberta": f"{ENCODER} type_vocab_size=2 pad_token_id=1 {NO_DROPOUT}",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", some([*CORRECT_PORTS]))
def test_correct_paddlenlp_models_pass(name, monkeypatch, command_line, tmp_path):
    pair, family = name.split()
    monkeypatch.chdir(PAIRS / pair)
    status, out, _ = command_line(
        *PARITY_COMMAND, f"family={family}", *CORRECT_PORTS[name].split(), "--output", str(tmp_path)
    )
    assert status == 0 and out.startswith("PARITY "), out


@pytest.mark.slow
@pytest.mark.parametrize("has_map", [False, True])
def test_a_derivative_with_a_ten_digit_constant_needs_an_accepted_difference(
    has_map, monkeypatch, command_line, tmp_path
):
    """Accept the ten-digit constants in BLOOM's derivative only if the map accepts them.

    Transformers writes 3 * 0.044715 * 0.79788456 as 0.1070322243, off by 1e-11; PaddleNLP differentiates its forward.
    """
    monkeypatch.chdir(PAIRS / "decoders")
    bloom = "family=Bloom vocab_size=101 hidden_size=32 n_layer=2 n_head=4 hidden_dropout=0.0 attention_dropout=0.0"
    map_path = tmp_path / "map.yaml"
    map_path.write_text("accept:\n  'gradient:*': {why: ten digits in the derivative of GELU, within: 1e-12}\n")
    options = ("--map", map_path) if has_map else ()
    status, out, _ = command_line(*PARITY_COMMAND, *bloom.split(), *options, "--output", str(tmp_path))
    assert status == (not has_map), out
    assert ("differences are accepted" if has_map else "DRIFT the backward into output of transformer.h.") in out, out


#: An interpreter with paddleformers, which does not fit into one environment with paddlenlp.
PADDLEFORMERS = os.environ.get("TOOLKIT_PADDLEFORMERS_PYTHON", "")
ERNIE = f"family=Ernie4_5 {DECODER} head_dim=8"
#: Start of the verdict for each model of paddleformers.
PADDLEFORMERS_VERDICTS = {
    f"family=Llama {DECODER}": "PARITY 328 tensors",
    f"family=Qwen2 {DECODER}": "PARITY 388 tensors",
    f"family=Qwen3 {DECODER} head_dim=8": "PARITY 384 tensors",
    f"family=Glm4Moe {DECODER} head_dim=8 moe_intermediate_size=16 n_routed_experts=4 num_experts_per_tok=2 "
    "first_k_dense_replace=1": "PARITY 512 tensors",
    f"{ERNIE} rms_norm_eps=1e-5 rope_theta=10000.0 masked=true": "PARITY 316 tensors",
    f"{ERNIE} rms_norm_eps=1e-5 rope_theta=10000.0": "DRIFT softmax (paddleformers/nn/attention/eager_attention.py:57)",
    f"{ERNIE} rms_norm_eps=1e-5": "DRIFT truediv (paddleformers/transformers/ernie4_5/modeling.py:126)",
    f"{ERNIE}": "DRIFT add (paddleformers/nn/norm.py:88)",
}


@pytest.mark.slow
@pytest.mark.skipif(not PADDLEFORMERS, reason="TOOLKIT_PADDLEFORMERS_PYTHON names no interpreter with paddleformers")
@pytest.mark.parametrize("config", PADDLEFORMERS_VERDICTS)
def test_paddleformers_models_in_a_separate_environment(config, monkeypatch, command_line, tmp_path):
    """Without a mask, its ERNIE 4.5 attends to later tokens; two of its defaults differ from transformers'."""
    monkeypatch.chdir(PAIRS / "decoders")
    command = ["parity", "--port", "port_paddleformers.py", "--reference-model", "reference.py"]
    options = ["--port-python", PADDLEFORMERS, "--output", str(tmp_path)]
    _, out, error = command_line(*command, *options, *config.split())
    assert out.startswith(PADDLEFORMERS_VERDICTS[config]), out + error


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert", "opt", "t5"])
def test_paddlenlp_models_get_the_verdicts_of_the_readme(name, monkeypatch, command_line, tmp_path):
    """Check the README's statements: T5 is correct, BERT averages over ignored labels, OPT drops its embeddings."""
    monkeypatch.chdir(PAIRS / name)
    status, out, _ = command_line(*PARITY_COMMAND, "--output", str(tmp_path))
    report = json.loads((tmp_path / "cpu" / "parity.json").read_text())
    if name == "t5":
        assert status == 0, out
        return
    assert status == 1
    culprit = {"bert": "loss", "opt": "dropout:opt.embeddings.dropout"}[name]
    assert report["culprit"]["name"] == culprit
    line = re.search(r"paddlenlp/transformers/\S+\.py:\d+", out)
    assert line and line[0] in (Path(__file__).parents[2] / "README.md").read_text()
    corrections = {"bert": ["padded=false"], "opt": []}[name]
    if corrections:
        assert command_line(*PARITY_COMMAND, *corrections, "--output", str(tmp_path))[0] == 0


@pytest.mark.slow
@pytest.mark.parametrize(("name", "score"), [("mlp", "21 of 21 faults caught, 21 named"), ("moe", MOE_SCORE)])
def test_faults_of_a_users_port_are_caught_and_named(name, score, monkeypatch, command_line):
    """The mutants of the mixture of experts include a router that chooses the second-best expert."""
    monkeypatch.chdir(PAIRS / name)
    status, out, _ = command_line("parity", "mutants", *PARITY_COMMAND[1:])
    assert status == 0 and score in " ".join(out.split()), out


@pytest.mark.slow
def test_near_ties_pass_and_a_wrong_choice_is_drift(monkeypatch, command_line, tmp_path):
    """Two of four experts differ by a bit."""
    from toolkit.parity import require_parity

    shutil.copytree(PAIRS / "moe", tmp_path / "moe")
    monkeypatch.chdir(tmp_path / "moe")
    status, out, _ = command_line(*PARITY_COMMAND)
    assert status == 0 and "choices (argmax, top-k, sort) differ, all within rounding of a tie" in " ".join(out.split())
    text = Path("port.py").read_text()
    faulty_text = text.replace(".topk(2, -1)", ".topk(2, -1, largest=False)")
    assert faulty_text != text
    Path("port.py").write_text(faulty_text)
    with pytest.raises(ParityDrift, match=r"choice .*port.py:4"):
        require_parity("port.py", "reference.py")


@pytest.mark.slow
def test_buffers_are_compared_after_a_step(pair):
    """Paddle keeps the biased variance of a batch, torch the unbiased variance; the rest of a batch norm agrees."""
    from toolkit.parity import require_parity

    for file, norm in (("port.py", "BatchNorm1D"), ("reference.py", "BatchNorm1d")):
        text = (pair / file).read_text()
        text = text.replace("nn.LayerNorm", f"nn.{norm}").replace("self.embed(ids)", "self.embed(ids)[:, 0]")
        text = text.replace("self.embedding(ids)", "self.embedding(ids)[:, 0]").replace("x.mean(1)", "x")
        (pair / file).write_text(text)
    with pytest.raises(ParityDrift, match="ln"):
        require_parity("port.py", "reference.py")
    report = json.loads((pair / "runs/parity/cpu/parity.json").read_text())
    finding_names = {entry["name"] for entry in report["findings"]}
    assert report["culprit"]["name"] == "buffer:ln.running_var" and finding_names == {"buffer:ln.running_var"}
    assert "buffer:ln.running_mean" in {entry["name"] for entry in report["tensors"]}


def test_a_missing_file_is_a_user_error(pair):
    from toolkit.parity import require_parity

    with pytest.raises(UserError, match="no such file"):
        require_parity("nothing.py", "reference.py")


#: Faults that occur only in a later step of the gate, and their error messages.
LATE_FAULTS = {
    "in evaluation": (
        "    def forward(self, ids, labels):\n",
        "    def forward(self, ids, labels):\n        if not self.training:\n"
        "            raise ValueError('only to train')\n",
        "the port could not run: port.py:19: ValueError: only to train",
    ),
    "one model again": (
        'return Net(config.get("hidden", 16))',
        "return KEPT.setdefault(0, Net(16))\n\n\nKEPT = {}",
        "the port could not run: port.py: build() gave one module twice; it is to make a new one",
    ),
}


#: A layer with a custom backward, appended to a port's file, and the edit that calls it.
OWN_BACKWARD = """

from paddle.autograd import PyLayer


class Doubled(PyLayer):
    @staticmethod
    def forward(ctx, x):
        return x + x

    @staticmethod
    def backward(ctx, dy):
        raise KeyError("no such gradient")
"""


@pytest.mark.slow
def test_an_exception_in_a_backward_is_reported_with_its_line(pair, command_line):
    """Paddle replaces the exception with another that has no line."""
    text = (pair / "port.py").read_text().replace("self.head(x.mean(1))", "self.head(Doubled.apply(x).mean(1) / 2)")
    (pair / "port.py").write_text(text + OWN_BACKWARD)
    line = text.count("\n") + 1 + OWN_BACKWARD[: OWN_BACKWARD.index("raise")].count("\n")
    status, _, err = command_line(*PARITY_COMMAND)
    assert status == 2 and err == f"error: the port could not run: port.py:{line}: KeyError: 'no such gradient'\n"


@pytest.mark.slow
@pytest.mark.parametrize("case", LATE_FAULTS)
def test_a_late_exception_of_a_side_is_reported_as_bad_input(case, pair, command_line):
    original_code, faulty_code, message = LATE_FAULTS[case]
    text = (pair / "port.py").read_text()
    assert original_code in text
    (pair / "port.py").write_text(text.replace(original_code, faulty_code))
    status, _, err = command_line(*PARITY_COMMAND)
    assert status == 2 and err == f"error: {message}\n"


def test_a_memory_error_is_not_blamed_on_a_users_file(tmp_path):
    """The same holds for an exception of other code that runs in the block of a user's file."""
    (tmp_path / "side.py").write_text("def full(): raise MemoryError\ndef wrong(): return 1 / 0\n")
    source = user_code.load(str(tmp_path / "side.py"))
    with pytest.raises(MemoryError), user_code.running(source):
        source.full()
    with pytest.raises(KeyError), user_code.running(source, alone=False):
        {}["gone"]
    with pytest.raises(UserError, match=r"side\.py:2: ZeroDivisionError"), user_code.running(source, alone=False):
        source.wrong()
