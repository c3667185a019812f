"""Test generated text: it equals the reference's token for token, or follows the distribution if it is sampled."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import paddle
import pytest
from small_reformers import decoder

from models.ctrl import weights
from models.ctrl.config import CTRLConfig
from models.ctrl.modeling import CTRLLMHeadModel
from models.operations import compiled, kernels
from models.reformer import attention
from models.reformer.modeling import ReformerModelWithLMHead
from toolkit.tasks.language_modeling.decoding import (
    Decoding,
    NextToken,
    apply_repetition_penalty,
    beam_search,
    distribution,
    generate,
    is_valid_penalty,
    max_text_length,
)

VOCABULARY = 50
PROMPTS = ([3], [7, 1, 30, 7, 12], [49, 0, 5])

#: Stop tokens that the model really generates.
STOPS = (4, 11, 0, 33)

#: Beams, length, penalty, stop, length penalty.
CASES = [
    {"beams": beams, "length": length, "repetition_penalty": penalty, "stop": stop, "length_penalty": exponent}
    for beams, length, penalty, stop, exponent in [
        *itertools.product((1, 2, 4), (1, 24), (1.0, 1.2), (None, STOPS[0]), (1.0,)),
        *itertools.product((3, 7), (30,), (1.0, 1.5), STOPS[1:], (0.0, 1.0, 2.0)),
    ]
]

REFERENCE = """
import json, sys, torch
from transformers import CTRLLMHeadModel
torch.set_num_threads(1)
job = json.load(open(sys.argv[1]))
model = CTRLLMHeadModel.from_pretrained(job["folder"]).double().eval()
model.transformer.pos_encoding = model.transformer.pos_encoding.double()
found = []
for prompt in job["prompts"]:
    for case in job["cases"]:
        ids = torch.tensor([prompt])
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, num_beams=case["beams"],
            max_new_tokens=case["length"], repetition_penalty=case["repetition_penalty"],
            length_penalty=case["length_penalty"], eos_token_id=case["stop"], pad_token_id=0, use_cache=True,
        )
        found.append(out[0, len(prompt):].tolist())
json.dump(found, open(sys.argv[2], "w"))
"""

#: The program :data:`REFERENCE` for a Reformer, with the same hash rotations on both sides and without a cache.
REFORMER_REFERENCE = (
    REFERENCE.replace("CTRLLMHeadModel", "ReformerModelWithLMHead")
    .replace("model.transformer.pos_encoding = model.transformer.pos_encoding.double()", "torch.randn = rotations")
    .replace("use_cache=True", "use_cache=False")
    .replace(
        "torch.set_num_threads(1)",
        "torch.set_num_threads(1)\n"
        "import numpy as np\n"
        "def rotations(shape, **how):\n"
        "    return torch.from_numpy(np.random.RandomState(0).standard_normal(shape)).to(how['dtype'])\n",
    )
)
REFORMER_PROMPTS = ([3], [49, 0, 5, 8, 8, 1, 2, 44, 40, 3, 2])
REFORMER_STOP = 39
REFORMER_CASES = [
    {"beams": beams, "length": 37, "repetition_penalty": penalty, "stop": stop, "length_penalty": 1.0}
    for beams, penalty, stop in ((1, 1.0, None), (1, 1.2, None), (1, 1.0, REFORMER_STOP), (2, 1.2, REFORMER_STOP))
]


def generate_with_reference(program: str, model, prompts, cases, folder) -> list[list[int]]:
    """Return the tokens that transformers generates in a separate process."""
    model.save_pretrained(folder)
    job = {"folder": str(folder), "prompts": prompts, "cases": cases}
    (folder / "job.json").write_text(json.dumps(job))
    files = [str(folder / name) for name in ("job.json", "result.json")]
    result = subprocess.run([sys.executable, "-c", program, *files], capture_output=True, text=True, check=False)
    if "No module named 'transformers'" in result.stderr or "No module named 'torch'" in result.stderr:
        pytest.skip("transformers is not installed (extra: reference)")
    assert result.returncode == 0, result.stderr
    return json.loads((folder / "result.json").read_text())


@pytest.fixture(scope="module")
def model():
    """Return a small CTRL in float64; its random weights are large enough for varied text."""
    default_dtype = paddle.get_default_dtype()
    paddle.set_default_dtype("float64")
    try:
        config = CTRLConfig(vocab_size=VOCABULARY, n_embd=32, dff=48, n_layer=2, n_head=4, n_positions=64)
        model = CTRLLMHeadModel(config)
        values = weights.initial_weights({**config.to_dict(), "initializer_range": 0.1}, "causal_lm", 1)
        # The layers outweigh the token itself; otherwise the tied embedding would repeat it forever.
        louder = {name: value if ".w." in name or "norm" in name else value * 8 for name, value in values.items()}
        weights.load(model, louder)
    finally:
        paddle.set_default_dtype(default_dtype)
    model.eval()
    return model


@pytest.fixture(scope="module")
def reference_texts(model, tmp_path_factory) -> list[list[int]]:
    return generate_with_reference(REFERENCE, model, PROMPTS, CASES, tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize(
    ("use_cache", "step"),
    [(True, 3), *(pytest.param(use_cache, 1, marks=pytest.mark.slow) for use_cache in (True, False))],
)
def test_greedy_and_beam_search_equal_the_reference(model, reference_texts, use_cache, step):
    """Compare a third of the cases in the fast lane; the next test compares the scores without the cache."""
    scores = NextToken(model, use_cache=use_cache)
    cases = list(zip(itertools.product(PROMPTS, CASES), reference_texts, strict=True))
    for (prompt, case), reference in cases[::step]:
        generated_tokens = list(generate(scores, prompt, Decoding(**case)))
        assert generated_tokens == reference, (prompt, case)
    # Otherwise the comparison would prove little:
    assert len({tuple(tokens) for tokens in reference_texts}) > 60
    assert sum(len(tokens) > 1 and len(set(tokens)) > 1 and tokens[-1] in STOPS for tokens in reference_texts) > 20


def test_the_cache_changes_no_score(model):
    sequences = np.random.default_rng(0).integers(0, VOCABULARY, (3, 12))
    cached_scores, plain_scores = NextToken(model), NextToken(model, use_cache=False)
    parents = None
    for length in range(1, 12):
        scores = cached_scores(sequences[:, :length], parents)
        np.testing.assert_allclose(scores, plain_scores(sequences[:, :length]), rtol=1e-12, atol=1e-12)
        parents = np.array([2, 0, 0])
        sequences[:, :length] = sequences[parents, :length]


@pytest.mark.parametrize(("dtype", "rounding"), [("float32", 3e-6), ("float64", 1e-13)])
def test_decoding_token_by_token_equals_the_model(dtype, rounding):
    """Compare the decoder without layers and hooks up to rounding, with beams that change places."""
    config = CTRLConfig(vocab_size=VOCABULARY, n_embd=32, n_head=4, n_layer=2, dff=48, n_positions=12)
    default_dtype = paddle.get_default_dtype()
    paddle.set_default_dtype(dtype)
    model = CTRLLMHeadModel(config)
    paddle.set_default_dtype(default_dtype)
    model.eval()
    draw = np.random.default_rng(0)
    tokens = paddle.to_tensor(draw.integers(0, VOCABULARY, (3, 12)))
    with paddle.no_grad():
        logits, going_on = model.begin(tokens[:, :5])
        plain = model(tokens[:, :5], use_cache=True)
        np.testing.assert_allclose(logits.numpy(), plain.logits[:, -1].numpy(), rtol=rounding, atol=rounding)
        past = plain.past_key_values
        for position in range(5, 12):
            rows = paddle.to_tensor(draw.integers(0, 3, 3))
            going_on.select_texts(rows)
            past = [(keys[rows], values[rows]) for keys, values in past]
            token = tokens[:, position : position + 1]
            output = model(token, past_key_values=past, use_cache=True)
            past = output.past_key_values
            expected_logits = output.logits[:, -1].numpy()
            np.testing.assert_allclose(going_on(token).numpy(), expected_logits, rtol=rounding, atol=rounding)
        assert going_on.num_texts == 3
        with pytest.raises(ValueError, match="13 positions are more than n_positions 12"):
            going_on(token)


@pytest.mark.parametrize("implementation", ["plainly", "as a layer"])
def test_padding_on_the_left_does_not_change_the_text(implementation, monkeypatch):
    """Check that padding has positions, as in the reference, and that its tokens do not matter."""
    from models.ctrl import continuation

    if implementation == "as a layer":
        monkeypatch.setattr(continuation, "_has_plain_layers", lambda model: False)
    model = CTRLLMHeadModel(CTRLConfig(vocab_size=50, n_embd=16, n_head=2, n_layer=2, dff=16, n_positions=12))
    model.eval()
    tokens = np.random.default_rng(0).integers(1, 50, (3, 9))
    mask = np.array([[0, 0, 0, 1, 1], [1, 1, 1, 1, 1], [0, 1, 1, 1, 1]])
    other_padding = np.where(np.pad(mask, ((0, 0), (0, 4)), constant_values=1) == 0, 7, tokens)
    rows = np.array([2, 0, 0])

    def run_steps(ids: np.ndarray, keep_mask: np.ndarray | None) -> list[np.ndarray]:
        ids = paddle.to_tensor(ids)
        with paddle.no_grad():
            logits, going_on = model.begin(ids[:, :5], None if keep_mask is None else paddle.to_tensor(keep_mask))
            logits_by_step = [logits.numpy(), going_on(ids[:, 5:6]).numpy()]
            going_on.select_texts(paddle.to_tensor(rows))
            later = paddle.to_tensor(np.array([[1], [0], [1]])) if keep_mask is not None else None
            return [*logits_by_step, going_on(ids[:, 6:7], later).numpy(), going_on(ids[:, 7:8]).numpy()]

    padded_logits = run_steps(tokens, mask)
    for step_logits, other_logits in zip(padded_logits, run_steps(other_padding, mask), strict=True):
        np.testing.assert_allclose(step_logits, other_logits, rtol=1e-5, atol=1e-6)
    for step_logits, unmasked_logits in zip(padded_logits[:2], run_steps(tokens, None), strict=False):
        np.testing.assert_allclose(step_logits[1], unmasked_logits[1], rtol=1e-5, atol=1e-6)
        assert np.abs(step_logits[0] - unmasked_logits[0]).max() > 1e-4
    with paddle.no_grad():
        texts = np.concatenate([tokens[rows][:, :6], tokens[:, 6:8]], axis=1)
        keep_mask = np.concatenate([mask[rows], [[1, 1, 1], [1, 0, 1], [1, 1, 1]]], axis=1)
        full_logits = model(paddle.to_tensor(texts), paddle.to_tensor(keep_mask)).logits[:, -1].numpy()
    np.testing.assert_allclose(padded_logits[-1], full_logits, rtol=1e-5, atol=1e-6)


def test_an_adapted_model_decodes_with_its_adapter():
    from models.port.adapter import add_adapter
    from models.port.lora import LoRA

    model = CTRLLMHeadModel(CTRLConfig(vocab_size=50, n_embd=16, n_head=2, n_layer=1, dff=16, n_positions=8))
    add_adapter(model, LoRA(rank=2, alpha=4.0, dropout=0.0, targets=("Wq", "Wv")))
    for name, value in model.named_parameters():
        if "lora_B" in name:
            value.set_value(paddle.ones_like(value))
    model.eval()
    tokens = np.array([[3, 7, 1, 4]])
    cached_scores, plain_scores = NextToken(model), NextToken(model, use_cache=False)
    for length in (2, 3, 4):
        parents = None if length == 2 else np.zeros(1, int)
        np.testing.assert_allclose(
            cached_scores(tokens[:, :length], parents), plain_scores(tokens[:, :length]), rtol=1e-5, atol=1e-6
        )


# -- a model of chunks ----------------------------------------------------------------------------------------------


def reformer(layers=("local", "lsh", "local"), **keys) -> ReformerModelWithLMHead:
    """Return a Reformer with 56 positions, which local chunks fill and LSH chunks do not."""
    return decoder(attn_layers=list(layers), axial_pos_shape=[4, 14], max_position_embeddings=64, **keys)


@pytest.fixture
def same_rotations(monkeypatch):
    """Make LSH hash with the rotations of :data:`REFORMER_REFERENCE`."""

    def rotations(shape, dtype, seed):
        return paddle.to_tensor(np.random.RandomState(0).standard_normal(shape).astype(dtype))

    monkeypatch.setattr(attention, "normal", rotations)


@pytest.mark.parametrize(
    ("layers", "caches", "their_cache"),
    [
        (["local", "lsh", "local"], [False], False),
        (["local", "lsh"], [True, False], False),  # the reference's cache gives LSH other keys
        (["local", "local"], [True, False], True),
    ],
    ids=str,
)
def test_a_reformer_generates_like_the_reference(layers, caches, their_cache, same_rotations, tmp_path):
    """Compare every token across chunk ends, from a text of one chunk to the maximum length of the table."""
    model = reformer(layers)
    assert max_text_length(model) == (48 if "lsh" in layers else 56)
    program = REFORMER_REFERENCE.replace("use_cache=False", f"use_cache={their_cache}")
    reference_texts = generate_with_reference(program, model, REFORMER_PROMPTS, REFORMER_CASES, tmp_path)
    for (prompt, case), reference in zip(
        itertools.product(REFORMER_PROMPTS, REFORMER_CASES), reference_texts, strict=True
    ):
        for use_cache in caches:
            assert list(generate(NextToken(model, use_cache=use_cache), prompt, Decoding(**case))) == reference, (
                prompt,
                case,
            )
    assert sum(len(set(tokens)) > 4 for tokens in reference_texts) >= 4, reference_texts
    assert any(tokens[-1] == REFORMER_STOP for tokens in reference_texts), reference_texts


def test_chunks_of_the_scores_change_no_token():
    """Test scores in chunks when only padding is masked, because LSH sorts padding into the chunks, too."""
    outputs = [
        list(generate(NextToken(reformer(["local"] * 2, **chunks)), [3, 1, 4], Decoding(20, beams=beams)))
        for chunks in ({}, {"chunk_size_lm_head": 8, "chunk_size_feed_forward": 3})
        for beams in (1, 2)
    ]
    assert outputs[:2] == outputs[2:]


# -- the algorithms, on a model that is a table ---------------------------------------------------------------------


def markov_chain(sequences: np.ndarray, parents: np.ndarray | None = None) -> np.ndarray:
    """Return scores of a Markov chain of four tokens: 0 -> 1 is most probable, but 0 -> 2 -> 3 is the best sequence."""
    table = np.log(np.array([[0.1, 0.5, 0.39, 0.01], [0.25] * 4, [0.01, 0.02, 0.01, 0.96], [0.97, 0.01, 0.01, 0.01]]))
    return table[sequences[:, -1]]


def test_beam_search_finds_what_greedy_search_misses():
    assert list(generate(markov_chain, [0], Decoding(2, repetition_penalty=1.0))) == [1, 0]
    assert beam_search(markov_chain, [0], Decoding(2, beams=2, repetition_penalty=1.0)) == [2, 3]


def test_text_ends_at_the_stop_token_and_at_the_length():
    assert list(generate(markov_chain, [0], Decoding(9, repetition_penalty=1.0, stop=1))) == [1]
    assert len(list(generate(markov_chain, [2], Decoding(9, repetition_penalty=1.0)))) == 9
    assert beam_search(markov_chain, [0], Decoding(5, beams=2, repetition_penalty=1.0, stop=3)) == [2, 3]


def test_the_repetition_penalty_applies_once_to_each_previous_token():
    scores = np.array([[2.4, -1.0, 0.5, 3.0]], dtype=np.float32)
    penalized_scores = apply_repetition_penalty(scores, np.array([[0, 1, 0, 0]]), 1.2)
    np.testing.assert_allclose(penalized_scores, [[2.0, -1.2, 0.5, 3.0]], rtol=1e-6)
    assert list(generate(markov_chain, [3, 0], Decoding(3, repetition_penalty=5.0)))[:2] == [1, 2]


def test_temperature_top_k_and_top_p_keep_the_correct_tokens():
    scores = np.log(np.array([0.4, 0.3, 0.2, 0.1]))
    np.testing.assert_allclose(distribution(scores, Decoding()), [0.4, 0.3, 0.2, 0.1])
    np.testing.assert_allclose(distribution(scores, Decoding(temperature=0.5)), np.array([16, 9, 4, 1]) / 30)
    np.testing.assert_allclose(distribution(scores, Decoding(top_k=2)), [4 / 7, 3 / 7, 0, 0])
    np.testing.assert_allclose(distribution(scores, Decoding(top_p=0.65)), [4 / 7, 3 / 7, 0, 0])
    np.testing.assert_allclose(distribution(scores, Decoding(top_p=1e-9)), [1, 0, 0, 0])
    np.testing.assert_allclose(distribution(scores, Decoding(top_k=3, top_p=0.5)), [4 / 7, 3 / 7, 0, 0])
    np.testing.assert_allclose(distribution(scores, Decoding(top_k=9, top_p=1.0)), [0.4, 0.3, 0.2, 0.1])
    for share, num_tokens in ((0.25, 1), (0.5, 2), (0.75, 3)):  # as few as sum to exactly this
        assert (distribution(np.zeros(4), Decoding(top_p=share)) > 0).sum() == num_tokens


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("temperature", [5e-324, 1e-308, 1e-300, 1e-9])
@pytest.mark.parametrize("options", [{}, {"top_k": 2}, {"top_p": 0.5}, {"top_k": 3, "top_p": 0.9}])
def test_a_temperature_near_0_takes_the_most_probable_token(temperature, options):
    scores = np.array([-300.0, 2.5, 3e38, 2.5, -3e38])
    expected_probabilities = [0, 0, 1, 0, 0]
    decoding = Decoding(1, sample=True, temperature=temperature, repetition_penalty=1.0, **options)
    assert distribution(scores, decoding).tolist() == expected_probabilities
    assert distribution(np.zeros(4), replace(decoding, top_k=None, top_p=None)).tolist() == [0.25] * 4
    assert list(generate(markov_chain, [0], decoding)) == [1]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("penalty", [1.2e-38, 1e-30, 1e30, 3.4e38])
@pytest.mark.parametrize("options", [{}, {"sample": True}, {"sample": True, "temperature": 1e-308}, {"beams": 2}])
def test_the_largest_and_the_smallest_repetition_penalty_give_tokens(penalty, options):
    scores = np.array([[1e5, -1e5, 3.0, 0.0]])
    decoding = Decoding(6, repetition_penalty=penalty, **options)
    tokens = list(generate(lambda rows, parents: np.tile(scores, (len(rows), 1)), [0, 1, 3], decoding))
    assert len(tokens) == 6 and set(tokens) <= {0, 1, 2, 3}
    assert is_valid_penalty(penalty)


@pytest.mark.parametrize("penalty", [0.0, -1.0, 5e-324, 1e-300, 3.5e38, 1e300, np.inf, np.nan])
def test_a_repetition_penalty_outside_float32_is_refused(penalty):
    assert not is_valid_penalty(penalty)


def test_samples_follow_the_distribution_and_the_seed():
    decoding = Decoding(4000, sample=True, repetition_penalty=1.0, top_k=3)
    samples = list(generate(lambda rows, parents: markov_chain(np.zeros_like(rows)), [0], decoding))
    frequencies = np.bincount(samples, minlength=4) / 4000
    np.testing.assert_allclose(frequencies, [0.1 / 0.99, 0.5 / 0.99, 0.39 / 0.99, 0], atol=0.03)
    texts_by_seed = [list(generate(markov_chain, [0], Decoding(20, sample=True, seed=seed))) for seed in (1, 1, 2)]
    assert texts_by_seed[0] == texts_by_seed[1] != texts_by_seed[2]


@pytest.mark.skipif(not kernels.can_compile(), reason="needs Numba")
@pytest.mark.parametrize("family", ["ctrl", "reformer"])
@pytest.mark.parametrize("wrong_token", [-1, 50])
def test_a_token_beyond_the_vocabulary_is_refused_before_anything_is_read(wrong_token, family):
    ctrl = CTRLLMHeadModel(CTRLConfig(vocab_size=50, n_embd=16, n_head=2, n_layer=1, dff=24, n_positions=9))
    model = ctrl if family == "ctrl" else reformer(["lsh"], dtype="float32")
    model.eval()
    with paddle.no_grad():
        _, going_on = model.begin(paddle.to_tensor([[1, 2]]))
        with pytest.raises(IndexError, match=f"token {wrong_token} is none of 50"):
            going_on(paddle.to_tensor([[wrong_token]]))


@pytest.mark.skipif(not kernels.can_compile(), reason="needs Numba")
@pytest.mark.parametrize(("vocabulary", "dff"), [(50, 24), (51, 25)])
@pytest.mark.parametrize("texts", [1, 3, 4, 5])
def test_the_compiled_loop_decodes_a_few_texts_like_paddles_products(texts, vocabulary, dff, monkeypatch):
    """Generate beyond the size of a cache, with padding from the third token on."""
    from models.ctrl import continuation

    config = CTRLConfig(vocab_size=vocabulary, n_embd=16, n_head=2, n_layer=2, dff=dff, n_positions=90)
    model = CTRLLMHeadModel(config)
    model.eval()
    draw = np.random.default_rng(0)
    tokens = paddle.to_tensor(draw.integers(0, vocabulary, (texts, 80)))
    rows = paddle.to_tensor(draw.integers(0, texts, texts))
    ran: list[int] = []
    plain = compiled.decoder_step
    monkeypatch.setattr(compiled, "decoder_step", lambda x, *given: ran.append(x.shape[0]) or plain(x, *given))

    def run_steps() -> tuple[list[np.ndarray], list[np.ndarray]]:
        with paddle.no_grad():
            _, going_on = model.begin(tokens[:, :6])
            logits_by_step = [going_on(tokens[:, 6:7]).numpy(), going_on(tokens[:, 7:8]).numpy()]
            going_on.select_texts(rows)
            keep_mask = paddle.to_tensor(np.arange(texts)[:, None] % 2)
            logits_by_step += [
                going_on(tokens[:, n : n + 1], keep_mask if n < 10 else None).numpy() for n in range(8, 80)
            ]
            return logits_by_step, [cache_tensor.numpy() for layer in going_on.past for cache_tensor in layer]

    compiled_results = run_steps()
    assert ran == ([texts] * 74 if texts <= continuation.MAX_COMPILED_TEXTS else [])
    monkeypatch.setattr(continuation, "MAX_COMPILED_TEXTS", 0)
    for compiled_tensors, paddle_results in zip(compiled_results, run_steps(), strict=True):
        for compiled_tensor, paddle_tensor in zip(compiled_tensors, paddle_results, strict=True):
            np.testing.assert_allclose(compiled_tensor, paddle_tensor, rtol=1e-5, atol=3e-6)
