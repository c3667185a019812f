"""Test the statistics of the port's random generator.

Correct draws pass for many seeds, and each kind of fault is found.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from models.operations import kernels
from toolkit.parity.comparator.rng_stats import REPEAT_BITS, DrawCounter, strides
from toolkit.parity.exchange.results import CandidateResult, GeneratorStats, ReferenceResult
from toolkit.parity.judge import rng_tests
from toolkit.parity.judge.culprit import first_at_fault
from toolkit.parity.judge.findings import Verdict
from toolkit.parity.judge.verdict import judge
from toolkit.parity.mutants.edits import SourceEdit, edit_source
from toolkit.parity.mutants.loops import compile_loop, load_code

SHAPES = {"dropout:a": (2, 64, 32), "dropout:b": (2, 64, 32), "dropout:c": (2, 2, 4, 16, 32), "dropout:d": (2, 8, 1, 1)}
ROTATIONS = {"normal:a": (2, 16, 2, 8), "normal:b": (2, 16, 2, 8)}
STEPS = 3


def draw_mask(draw: np.random.Generator, shape: tuple[int, ...], rate: float) -> np.ndarray:
    return draw.random(shape) >= rate


def count_draws(seed: int, rate: float = 0.1, mask=draw_mask, rotation=None, steps: int = STEPS) -> GeneratorStats:
    """Return the statistics of a synthetic model's draws.

    Args:
        mask, rotation: functions that draw from a generator and a shape; for masks, also from the rate.
    """
    counter, draw = DrawCounter(), np.random.default_rng(seed)
    rotation = rotation or (lambda draw, shape: draw.standard_normal(shape, np.float32))
    for _ in range(steps):
        counter.begin_step()
        for name, shape in SHAPES.items():
            counter.mask(name, rate, shape, mask(draw, shape, rate))
        for name, shape in ROTATIONS.items():
            counter.rotation(name, shape, rotation(draw, shape), is_seeded=False)
    return counter.stats


def find_faults(generators: GeneratorStats) -> dict[str, list[str]]:
    faults_by_name: dict[str, list[str]] = {}
    for name, message in rng_tests.find_wrong_draws(generators):
        faults_by_name.setdefault(name, []).append(message)
    return faults_by_name


@pytest.mark.parametrize("rate", [1e-6, 0.002, 0.1, 0.5, 0.9])
def test_correct_draws_raise_no_alarm(rate):
    largest = 0.0
    for seed in range(40):
        generators = count_draws(seed, rate)
        assert find_faults(generators) == {}
        largest = max(largest, *(abs(deviation.z) for deviation in rng_tests.deviations(generators)))
    assert largest < rng_tests.LIMIT - 2.0  # none of some 2,500 statistics comes near the limit


def test_z_is_standard_normal_for_correct_draws():
    """Otherwise the limit would be wrong: a wider spread gives false alarms, a narrower spread hides faults."""
    z = [deviation.z for seed in range(40) for deviation in rng_tests.deviations(count_draws(seed))]
    assert abs(np.mean(z)) < 0.1 and 0.9 < np.std(z) < 1.1


def _constant_mask(draw, shape, rate):
    return np.broadcast_to(draw_mask(draw, (*shape[:-1], 1), rate), shape)


def _paired_mask(draw, shape, rate):
    return np.repeat(draw_mask(draw, (math.prod(shape) // 2,), rate), 2).reshape(shape)


def _striped_mask(draw, shape, rate):
    cells = np.arange(math.prod(shape)).reshape(shape) + draw.integers(10)
    return cells % 10 != 0


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (lambda draw, shape, rate: draw_mask(draw, shape, 1.2 * rate), "cells in all"),
        (_constant_mask, "after a dropped one along axis -1"),
        (_paired_mask, "after a dropped one along axis -1"),
        (_striped_mask, "after a dropped one along axis -1"),
        (lambda draw, shape, rate: np.ones(shape, bool), "cells in all"),
        (lambda draw, shape, rate: np.zeros(shape, bool), "cells in all"),
        (
            lambda draw, shape, rate: draw_mask(np.random.default_rng(0), shape, rate),
            "the first 210 cells are those of",
        ),
    ],
)
def test_each_wrong_mask_is_found(mask, message):
    faults_by_name = find_faults(count_draws(1, mask=mask))
    assert any(
        message in text for name, messages in faults_by_name.items() for text in messages if name.startswith("dropout:")
    )
    assert not any(name.startswith("normal:") for name in faults_by_name)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("modules", "whose like, in the module drawn before it, of equal shape, is dropped"),
        ("steps", "whose like, in the same module a step earlier, is dropped"),
    ],
)
def test_masks_that_are_too_similar_are_found(kind, message):
    """Half the cells are copied from another mask, but no two masks are equal."""
    earlier: dict = {}

    def draw_similar_mask(draw, shape, rate):
        new_mask = draw_mask(draw, shape, rate)
        if kind == "modules":
            name = shape
        else:  # the number of the draw within the step
            draw_similar_mask.count = getattr(draw_similar_mask, "count", -1) + 1
            name = draw_similar_mask.count % len(SHAPES)
        earlier_mask = earlier.get(name, new_mask)
        earlier[name] = np.where(draw.random(shape) < 0.5, earlier_mask, new_mask)
        return earlier[name]

    faults_by_name = find_faults(count_draws(2, mask=draw_similar_mask))
    assert any(message in text for text in faults_by_name["dropout:all masks of rate 0.1"])
    assert not any("the first" in text for messages in faults_by_name.values() for text in messages)


def test_a_slightly_wrong_rate_is_found_over_all_masks_together():
    faults_by_name = find_faults(count_draws(3, mask=lambda draw, shape, rate: draw_mask(draw, shape, 1.15 * rate)))
    assert "dropout:all masks of rate 0.1" in faults_by_name


def test_a_rate_rounded_to_16_bits_is_correct():
    rounded_rate = round(0.3 * 2**16) / 2**16
    counter = DrawCounter()
    counter.begin_step()
    mask = draw_mask(np.random.default_rng(0), (2**18,), rounded_rate)
    counter.mask("dropout:a", 0.3, (2**18,), mask)
    assert find_faults(counter.stats) == {}


def test_a_mask_of_the_wrong_shape_is_found():
    counter, draw = DrawCounter(), np.random.default_rng(0)
    counter.begin_step()
    counter.mask("dropout:a", 0.1, (2, 8, 1, 4), draw_mask(draw, (2, 8, 1, 4), 0.1))
    assert find_faults(counter.stats) == {}
    counter.mask("dropout:a", 0.1, (2, 8, 1, 4), draw_mask(draw, (2, 8, 6, 4), 0.1))
    assert find_faults(counter.stats) == {"dropout:a": ["a mask of shape [2, 8, 6, 4], asked for [2, 8, 1, 4]"]}


def test_small_masks_may_be_equal_by_chance_and_long_ones_may_not():
    for rate, cells in ((0.01, 64), (0.5, 32)):
        counter = DrawCounter()
        counter.begin_step()
        for name in ("dropout:a", "dropout:b"):
            counter.mask(name, rate, (cells,), draw_mask(np.random.default_rng(0), (cells,), rate))
        assert find_faults(counter.stats) == {}
    counter.begin_step()
    for name, size in (("dropout:c", 64), ("dropout:d", 2 * REPEAT_BITS)):  # from one state, of different shapes
        counter.mask(name, 0.5, (size,), draw_mask(np.random.default_rng(0), (size,), 0.5))
    assert find_faults(counter.stats) == {"dropout:d": ["the first 60 cells are those of dropout:c in step 2"]}


def find_mask_faults(*masks: np.ndarray, rate: float = 0.1) -> list[str]:
    """Return the faults in masks with these cells, each of a separate module."""
    counter = DrawCounter()
    counter.begin_step()
    for number, cells in enumerate(masks):
        counter.mask(f"dropout:{number}", rate, cells.shape, cells)
    return [text for messages in find_faults(counter.stats).values() for text in messages]


def _repeat_half(first, second):
    return [np.concatenate([first[:40_000], first[:40_000]])]


def _copy_block(first, second):
    second[50_013:52_013] = first[7:2007]
    return [first, second]


def _copy_end(first, second):
    second[-1500:] = first[-1500:]
    return [first, second]


def _shift_by_one(first, second):
    return [first[:-1], first[1:]]


@pytest.mark.parametrize("repeat_cells", [_repeat_half, _copy_block, _copy_end, _shift_by_one])
@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_repeated_cells_are_found_anywhere(repeat_cells, rate):
    for seed in range(5):
        draw = np.random.default_rng(seed)
        fresh_masks = [draw_mask(draw, (80_000,), rate) for _ in range(2)]
        assert find_mask_faults(*(mask.copy() for mask in fresh_masks), rate=rate) == []
        fault_messages = find_mask_faults(*repeat_cells(*fresh_masks), rate=rate)
        assert any("are those of dropout:0 in step 1, from cell " in text for text in fault_messages)


def test_a_repeated_stretch_is_found_across_hashed_chunks(monkeypatch):
    monkeypatch.setattr("toolkit.parity.comparator.rng_stats.AT_ONCE", 1000)
    draw = np.random.default_rng(0)
    first_mask, second_mask = (draw_mask(draw, (20_000,), 0.5) for _ in range(2))
    assert find_mask_faults(first_mask, second_mask, rate=0.5) == []
    second_mask[9_700:10_600] = first_mask[3_333:4_233]
    assert len(find_mask_faults(first_mask, second_mask, rate=0.5)) == 1


def test_stretches_with_equal_hashes_are_compared_cell_by_cell(monkeypatch):
    from toolkit.parity.comparator import rng_stats

    monkeypatch.setattr(rng_stats, "_stretch_hashes", lambda cells, count: np.zeros(3, np.uint64))
    assert (
        find_mask_faults(*(draw_mask(np.random.default_rng(seed), (5000,), 0.5) for seed in range(3)), rate=0.5) == []
    )


def find_sequence_faults(masks: np.ndarray) -> dict[str, list[str]]:
    counter = DrawCounter()
    counter.sequence(masks)
    return find_faults(counter.stats)


def test_overlapping_streams_of_threads_are_found_in_consecutive_masks():
    """Four cells are too few for a test of one mask; in 128 masks they are the same cells each time."""
    correct_masks = np.random.default_rng(0).random((128, 32_769)) < 0.5
    assert find_sequence_faults(correct_masks) == {}
    overlapping = correct_masks.copy()
    overlapping[:, 16_384:16_388] = correct_masks[:, 16_380:16_384]
    assert find_sequence_faults(overlapping) == {
        "dropout:128 masks of 32769 cells": ["cell 16384 is cell 16380 once more"]
    }
    repeated_masks = correct_masks.copy()
    repeated_masks[:, 16_384:32_768] = correct_masks[:, :16_384]
    assert "once more" in find_sequence_faults(repeated_masks)["dropout:128 masks of 32769 cells"][0]


def test_a_generator_with_few_different_masks_is_found():
    correct_masks = np.random.default_rng(0).random((2048, 256)) < 0.5
    assert find_sequence_faults(correct_masks) == {}
    few = np.stack([np.random.default_rng(seed).random(256) < 0.5 for seed in np.arange(2048) * 40_503 % 1999])
    assert find_sequence_faults(few)["dropout:2048 masks of 256 cells"] == ["mask 1999 is mask 0 once more"]


@pytest.mark.parametrize(
    ("original_code", "faulty_code"),
    [
        ("np.uint64(first + 1) * GAMMA", "np.uint64(1) * GAMMA"),
        ("np.uint64(first + 1)", "np.uint64(first + np.int64(first == 0))"),
        ("np.uint64(seed)", "np.uint64(seed) & np.uint64(0xFFFF)"),
    ],
    ids=["alike", "one word", "2^16 masks"],
)
@pytest.mark.skipif(not kernels.can_compile(), reason="needs Numba")
def test_the_gate_finds_a_compiled_generator_that_repeats_itself(original_code, faulty_code, monkeypatch):
    """Draw as a port's worker does, with two threads."""
    from models.operations import compiled, loop_code
    from toolkit.parity.candidate.generators import SEQUENCES

    monkeypatch.setenv(kernels.VARIABLE, kernels.COMPILED)
    edit = SourceEdit("models.operations.loops:draw_mask", original_code, faulty_code)
    source = edit_source(edit.file.read_text(), [edit])
    _engine, address = load_code("draw_mask", compile_loop("draw_mask", source))
    monkeypatch.setattr(loop_code, "_address", lambda loop: address)
    threads = loop_code._openmp.omp_get_max_threads()
    loop_code._openmp.omp_set_num_threads(2)
    try:
        mask_sequences = [
            np.stack([compiled.random_mask(2**15, [cells]).numpy() for _ in range(count)]) for count, cells in SEQUENCES
        ]
    finally:
        loop_code._openmp.omp_set_num_threads(threads)
    assert any(find_sequence_faults(sequence) for sequence in mask_sequences)


@pytest.mark.parametrize(
    ("rotation", "message"),
    [
        (lambda draw, shape: draw.uniform(-(3**0.5), 3**0.5, shape), "lie beyond 2"),
        (lambda draw, shape: draw.standard_normal(shape) * 1.2, "the mean square"),
        (lambda draw, shape: draw.standard_normal(shape) + 0.2, "the mean of"),
        (lambda draw, shape: np.broadcast_to(draw.standard_normal((1, *shape[1:])), shape), "slice across axis 0"),
        (lambda draw, shape: np.repeat(draw.standard_normal((*shape[:2], 1, shape[3])), 2, 2), "slice across axis 2"),
        (
            lambda draw, shape: draw.standard_normal((1, *shape[1:])) + 0.3 * draw.standard_normal(shape),
            "along axis -4",
        ),
        (lambda draw, shape: np.random.default_rng(0).standard_normal(shape), "has the numbers of normal:a in step 1"),
        (lambda draw, shape: np.zeros(shape), "the mean square"),
        (lambda draw, shape: np.full(shape, np.nan), "the mean of"),
        (lambda draw, shape: draw.standard_normal(shape[::-1]), "asked for [2, 16, 2, 8]"),
    ],
)
def test_each_wrong_rotation_is_found(rotation, message):
    faults_by_name = find_faults(count_draws(1, rotation=lambda draw, shape: rotation(draw, shape).astype(np.float32)))
    assert any(message in text for messages in faults_by_name.values() for text in messages)
    assert all(name.startswith("normal:") for name in faults_by_name)


def test_rotations_must_be_the_same_each_time_with_a_hash_seed():
    counter = DrawCounter()
    for step in range(3):
        counter.begin_step()
        for name, shape in ROTATIONS.items():
            counter.rotation(name, shape, np.random.default_rng(0).standard_normal(shape, np.float32), is_seeded=True)
        if step == 1:
            assert find_faults(counter.stats) == {}
    counter.rotation("normal:b", ROTATIONS["normal:b"], np.ones(ROTATIONS["normal:b"], np.float32), is_seeded=True)
    (message,) = find_faults(counter.stats)["normal:b"]
    assert "differ from the first" in message


def test_a_finding_names_the_first_wrong_draw():
    generators = count_draws(0, mask=lambda draw, shape, rate: draw_mask(draw, shape, 2 * rate))
    verdict = judge(ReferenceResult(), CandidateResult(generators=generators))
    finding = first_at_fault(verdict, ["output:b", "output:a"])
    assert (finding.verdict, finding.name) == ("randomness", "dropout:b")
    assert Verdict(findings=[]).passed


def test_the_bound_of_a_count_fits_the_binomial_distribution():
    """Compare P(|z| >= limit), summed over all outcomes, with 2 exp(-limit^2/2), also for small counts."""
    for trials, rate in ((5, 0.1), (60, 0.02), (400, 0.5)):
        for limit in (1.5, 3.0, 5.0):
            tail = sum(
                math.comb(trials, hits) * rate**hits * (1 - rate) ** (trials - hits)
                for hits in range(trials + 1)
                if abs(rng_tests.binomial(hits, trials, rate)) >= limit
            )
            assert tail <= 2 * math.exp(-(limit**2) / 2)


def test_axes_of_one_cell_have_no_neighbors():
    assert dict(strides((2, 1, 3))) == {"-3": 3, "-1": 1}


@pytest.mark.parametrize("seed", range(3))
def test_the_ports_generator_is_correct(tiny_config, tiny_batch, seed):
    import paddle

    from models.reformer.config import ReformerConfig
    from models.reformer.modeling import ReformerForSequenceClassification
    from toolkit.parity.candidate.generators import STEPS, watched_steps

    model = ReformerForSequenceClassification(ReformerConfig(**tiny_config))
    model.train()
    batch = {name: paddle.to_tensor(value) for name, value in tiny_batch.items()}
    counter = DrawCounter()
    watched_steps(model, batch, seed, counter)
    generators = counter.stats
    assert find_faults(generators) == {}
    # Every module that draws is watched, so none passes because it was left out.
    layers = "reformer.encoder.layers"
    assert f"dropout:{layers}.0.attention.self_attention" in generators.masks
    assert f"normal:{layers}.1.attention.self_attention" in generators.rotations
    assert len(generators.masks) == 13 and all(name.startswith("dropout:") for name in generators.masks)
    assert generators.masks["dropout:reformer.embeddings.position_embeddings"].shape == [2, 16, 1, 1]
    draws = {stats.draws for stats in (*generators.masks.values(), *generators.rotations.values())}
    assert len(draws) == 1 and draws.pop() >= STEPS


def test_watching_does_not_change_the_draws():
    import paddle

    from models.operations.randomness import Generator
    from toolkit.parity.candidate.generators import WatchedSource

    outcomes = []
    for source in (Generator(), WatchedSource(Generator(), DrawCounter())):
        paddle.seed(3)
        first = source.draw_mask(0.3, [4, 32]).numpy()
        outcomes.append((first, source.normal([2, 4, 1, 2], "float32", None).numpy(), paddle.randn([8]).numpy()))
    for plain_output, watched_output in zip(*outcomes, strict=True):
        assert (plain_output == watched_output).all()
