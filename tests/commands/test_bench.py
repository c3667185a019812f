"""Test `toolkit bench`: the interval of a ratio, and real measurements of both sides; no duration is asserted."""

from __future__ import annotations

import itertools
import json
import math

import paddle
import pytest
from gates import copied_source, toolkit_in
from soak import some

from models.ctrl import CTRLConfig, schema
from models.ctrl.modeling import CTRLLMHeadModel
from models.operations import kernels
from toolkit.commands.bench.duel import Duel, Limit, Measurements
from toolkit.commands.bench.page import duels_to_json, rows_of
from toolkit.commands.bench.ratios import CONFIDENCE, compute_ratio
from toolkit.commands.bench.sides.port import count_operations
from toolkit.commands.bench.workload import PART_OF, WEIGHTS, Workload

ONES = [1.0] * 7


def test_the_interval_equals_that_of_the_sign_test():
    """Of n pairs each lies above the true median or below it, like a coin: the interval misses it when k or fewer lie
    on one side. Counted here over all 2^n falls of the coins."""
    for count in range(1, 15):
        falls = [sum(coins) for coins in itertools.product((0, 1), repeat=count)]
        values = [float(2**k) for k in range(count)]
        ratio = compute_ratio(values, [1.0] * count)
        if math.isinf(ratio.high):
            assert count < 6 and not ratio.is_decided
            continue
        place = values.index(ratio.low)
        assert values.index(ratio.high) == count - 1 - place
        miss_rate = sum(n <= place or n >= count - place for n in falls) / len(falls)
        narrower_miss_rate = sum(n <= place + 1 or n >= count - place - 1 for n in falls) / len(falls)
        assert miss_rate <= 1 - CONFIDENCE < narrower_miss_rate


def test_a_difference_within_the_spread_does_not_count():
    rising = [0.7, 0.8, 0.9, 0.9, 0.9, 0.95]
    within, beyond = compute_ratio([*rising, 1.01], ONES), compute_ratio([*rising, 0.99], ONES)
    assert (within.median, within.is_decided, beyond.is_decided) == (0.9, False, True)
    assert str(within) == "0.90 (0.70 to 1.01): no difference"
    assert str(beyond) == "0.90 (0.70 to 0.99)"
    assert "too few pairs" in str(compute_ratio([0.1], [1.0]))


def test_pairs_are_compared_with_each_other():
    """A machine that slows down slows both sides."""
    slowing = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]
    assert (
        compute_ratio([t / 2 for t in slowing], slowing).low,
        compute_ratio([t / 2 for t in slowing], slowing).high,
    ) == (0.5, 0.5)


@pytest.mark.parametrize(("ours", "theirs", "expected_ratio"), [(3e6, 4e6, 0.75), (0, 4e6, 0.0), (0, 4096, None)])
def test_work_with_almost_no_memory_has_no_memory_ratio(ours, theirs, expected_ratio):
    work = Workload("ctrl", "causal_lm", {}, 1, 1, "tokenize", 0, 2, "auto", "")
    sides = {"port": Measurements([1.0], memory=int(ours)), "transformers": Measurements([1.0], memory=int(theirs))}
    assert Duel(work, sides).memory == expected_ratio


def test_the_limits_share_is_the_median_of_the_pairs_at_the_speed_of_each():
    work = Workload("ctrl", "causal_lm", {}, 1, 1, "generate", 8, 2, "auto", "")
    sides = {"port": Measurements([4.0, 5.0, 9.0]), "transformers": Measurements([20.0, 20.0, 30.0])}
    duel = Duel(work, sides, Limit(WEIGHTS, 30e9, [15e9, 12e9, 5e9]))
    assert duel.shares == {"port": 0.5, "transformers": 0.125}  # of 0.5, 0.5, 0.67 and of 0.1, 0.125, 0.2
    assert rows_of(duel)[-1] == ("reading the weights alone, 2.5 s at 12 GB/s", "50% of it", "12% of it", "")
    assert duels_to_json([duel])[0]["limit"]["shares"] == duel.shares
    assert not Duel(work, sides).shares and duels_to_json([Duel(work, sides)])[0]["limit"] is None


@pytest.mark.parametrize(("needs_gradients", "products"), [((True, True), 3), ((False, True), 2), ((False, False), 1)])
def test_a_factor_that_gets_a_gradient_takes_one_more_product(needs_gradients, products):
    x, weight = (paddle.ones(shape) for shape in ([2, 3, 4], [5, 4]))
    for factor, gets in zip((x, weight), needs_gradients, strict=True):
        factor.stop_gradient = not gets
    with paddle.set_grad_enabled(True):
        assert count_operations(lambda: paddle.matmul(x, weight, transpose_y=True)) == products * 2 * 2 * 3 * 4 * 5
        assert count_operations(lambda: paddle.nn.functional.linear(x, weight.T)) == products * 2 * 2 * 3 * 4 * 5
    with paddle.no_grad():
        assert count_operations(lambda: paddle.matmul(x, weight.T)) == 2 * 2 * 3 * 4 * 5


@pytest.mark.parametrize("tied", [True, False])
def test_a_token_reads_all_weights_except_those_of_other_words(tied):
    keys = {"n_embd": 8, "n_head": 2, "dff": 12, "vocab_size": 40, "n_layer": 2, "tie_word_embeddings": tied}
    parameters = CTRLLMHeadModel(CTRLConfig(**keys)).parameters()
    work = Workload("ctrl", "causal_lm", schema.resolve(keys), 1, 1, "generate", 8, 2, "auto", "")
    skipped_weights = 0 if tied else 40 * 8
    assert work.weight_bytes == 4 * (sum(math.prod(parameter.shape) for parameter in parameters) - skipped_weights)


#: Without dropout both sides have the same first loss; in Reformer this holds for local attention.
WITHOUT_DROPOUT = {
    "reformer": ("hidden_dropout_prob=0", "local_attention_probs_dropout_prob=0"),
    "ctrl": ("embd_pdrop=0", "resid_pdrop=0"),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    some(
        [
            ["--model", "reformer", "--layers", "1", "--length", "64", "--depths", "1,2", *WITHOUT_DROPOUT["reformer"]],
            ["--model", "ctrl", "--layers", "2", "--length", "16", *WITHOUT_DROPOUT["ctrl"]],
            ["--model", "reformer", "--layers", "1", "--length", "60", "--work", "generate", "--new-tokens", "8",
             "--work", "generate-without-cache"],
            ["--model", "ctrl", "--layers", "2", "--length", "16", "--work", "generate", "--new-tokens", "8",
             "--work", "generate-without-cache"],
            ["--model", "ctrl", "--layers", "1", "--length", "16", "--work", "tokenize", "--work", "start",
             *WITHOUT_DROPOUT["ctrl"]],
            ["--model", "reformer", "--layers", "1", "--length", "64", "--work", "tokenize", "--work", "start",
             *WITHOUT_DROPOUT["reformer"]],
        ]
    ),
    ids=" ".join,
)  # fmt: skip
def test_both_sides_do_the_same_work(arguments, tmp_path, command_line):
    """Without dropout the first loss of local attention and the last generated token are equal on both sides."""
    status, out, err = command_line("bench", *arguments, "--pairs", "2", "--output", str(tmp_path / "bench"))
    assert status == 0, err
    results = json.loads((tmp_path / "bench" / "bench.json").read_text())
    assert f"on {results['hardware']['processor']}, " in out
    for work, measurement in results["works"].items():
        ours, theirs = measurement["sides"].values()
        assert ours["first_value"] == pytest.approx(theirs["first_value"], rel=1e-5)
        assert len(ours["seconds"]) == len(theirs["seconds"]) == 2
        assert (measurement["limit"] or {}).get("part") == PART_OF.get(work) and (work in PART_OF) == bool(
            measurement["limit"]
        )
    if "--depths" in arguments:
        assert [measurement["workload"]["config"]["num_hidden_layers"] for measurement in results["layers"]] == [1, 2]
    page = (tmp_path / "bench" / "bench.html").read_text()
    assert all(text in page for text in (">port</th>", ">transformers</th>", "too few pairs"))


@pytest.mark.slow
@pytest.mark.new_interpreter  # the templates of the fork server have Numba in memory already
@pytest.mark.skipif(not kernels.can_compile(), reason="needs Numba")
def test_the_memory_of_compilation_is_not_measured(tmp_path, monkeypatch):
    """Numba takes some 80 MB."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    source = copied_source(tmp_path, "models/operations/loops.py", ("GAMMA = ", "# Changed.\nGAMMA = "))
    memory = []
    for _ in ("compiled", "loaded"):
        result = toolkit_in(source, "bench", "--model", "ctrl", "--layers", "1", "--length", "16", "--pairs", "1",
                          "n_embd=16", "n_head=2", "dff=24", "vocab_size=48", "--output", tmp_path / "out")  # fmt: skip
        assert result.returncode == 0, result.stderr
        [work] = json.loads((tmp_path / "out" / "bench.json").read_text())["works"].values()
        memory.append(work["sides"]["port"]["memory"])
    assert abs(memory[0] - memory[1]) < 25e6, memory


@pytest.mark.slow
def test_a_gate_is_measured_with_and_without_its_cache(tmp_path, command_line):
    """Test a gate with separate caches, so that the user's cache is neither read nor changed."""
    arguments = ["--model", "reformer", "--layers", "1", "--work", "gate", "--pairs", "1", "hidden_size=32",
                 "axial_pos_embds_dim=[16,16]", "attention_head_size=16", "feed_forward_size=32"]  # fmt: skip
    status, out, err = command_line("bench", *arguments, "--output", str(tmp_path / "bench"))
    assert status == 0, err
    gate = json.loads((tmp_path / "bench" / "bench.json").read_text())["gate"]
    assert len(gate["cold"]) == len(gate["cached"]) == 1 and min(gate["reference"], gate["port"]) > 1e8
    assert "peak memory of the port's process" in out and "too few pairs" in out
    assert "the gate: 1 layers" in (tmp_path / "bench" / "bench.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model", "reformer", "--against", "paddlenlp"], "--against paddlenlp: is for training steps of ctrl"),
        (["--model", "ctrl", "--all", "--against", "paddlenlp"], "--against paddlenlp: is for training steps of ctrl"),
        (["--model", "ctrl", "--work", "start", "--depths", "2"], "--lengths, --depths: are for training steps"),
        (["--model", "ctrl", "--lengths", "8,x"], "8,x is no list of whole numbers"),
        (["--model", "ctrl", "n_embd"], "n_embd: expected KEY=VALUE"),
        (["--model", "ctrl", "n_head=3"], "n_embd"),
        (["--model", "reformer", "--reference-python", "nothing-of-this-name"], "no such interpreter"),
    ],
)
def test_an_impossible_measurement_is_refused(arguments, words, command_line, tmp_path):
    status, _, err = command_line("bench", *arguments, "--output", str(tmp_path / "bench"))
    assert status == 2 and words in err
    assert not (tmp_path / "bench").exists()
