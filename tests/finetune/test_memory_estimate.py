"""Test the memory estimate of `recipe check`, and compare it with the memory of real runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from test_train import recipe_file  # noqa: F401

from models.families import part
from models.operations import kernels
from models.reformer.schema import SHARE_IN_LOOPS
from toolkit.errors import UserError
from toolkit.finetune import memory as recipe_memory
from toolkit.machine.model_memory import TrainingMemory, count_parameters, training_memory
from toolkit.parity.request import stretch
from toolkit.parity.request.request import GateRequest
from toolkit.recipe.load import load_recipe

ROOT = Path(__file__).resolve().parents[2]
CTRL = part("ctrl", "schema").resolve({})  # the published model's numbers are the defaults
#: Runs the command in its arguments, and prints its peak memory.
RUN_WITH_PEAK = """
import sys
from toolkit.cli import main
try:
    main(sys.argv[1:])
except SystemExit as ended:
    assert not ended.code, ended.code
print("peak", [line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")][0])
"""


def reformer(layers: int = 4, **keys) -> dict:
    return part("reformer", "schema").resolve({"attn_layers": ["local", "lsh"] * (layers // 2), **keys})


def test_memory_counts_weights_of_all_parameters_and_moments_of_trained_ones():
    count = count_parameters("ctrl", CTRL, "causal_lm")
    full_memory = training_memory("ctrl", CTRL, "causal_lm", 256, 1, "recompute")
    adapter_memory = training_memory("ctrl", CTRL, "causal_lm", 256, 1, "recompute", num_trained=10**6)
    assert full_memory.constant_parts["weights"] == 4 * count and full_memory.constant_parts["gradients"] == 4 * count
    assert full_memory.constant_parts["moments"] == 8 * count
    assert (adapter_memory.constant_parts["gradients"], adapter_memory.constant_parts["moments"]) == (4e6, 8e6)
    assert full_memory.alternative_parts["clipped gradients"] == 4 * count and "clipped gradients" in full_memory.text
    assert (
        training_memory("ctrl", CTRL, "causal_lm", 256, 1, "recompute", clips_gradients=False).total < full_memory.total
    )
    assert (
        adapter_memory.constant_parts["weights"] == full_memory.constant_parts["weights"]
        and adapter_memory.step == full_memory.step
    )


def test_an_adapted_model_peaks_on_loading_or_saving_weights():
    """Test an adapter's peak memory; the end of a run copies one tensor at a time."""
    options = {"num_trained": 10**6, "num_merged": CTRL["n_embd"] ** 2}
    count, largest = count_parameters("ctrl", CTRL, "causal_lm"), CTRL["vocab_size"] * CTRL["n_embd"]
    short = training_memory("ctrl", CTRL, "causal_lm", 16, 1, "recompute", **options)
    assert short.alternative_parts["a tensor that is written"] == 8 * largest > 32 * options["num_merged"]
    assert short.total == sum(short.start.values()) == 600e6 + 8 * count + 8 * largest
    assert "the first weights" in short.text and "gradients" not in short.text
    long = training_memory("ctrl", CTRL, "causal_lm", 256, 32, "autograd", **options)
    assert (
        long.total == sum(long.constant_parts.values()) + sum(long.step.values()) and "first weights" not in long.text
    )
    assert training_memory("ctrl", CTRL, "causal_lm", 16, 1, "recompute", **options, on_gpu=True).start == {}


def test_recomputed_layers_grow_less_with_depth_than_all_activations():
    def activations(layers: int, backward: str) -> float:
        (activation_bytes,) = training_memory(
            "reformer", reformer(layers), "sequence_classification", 4096, 2, backward
        ).step.values()
        return activation_bytes

    assert activations(8, "autograd") == 2 * activations(4, "autograd")
    assert activations(8, "reversible") == activations(4, "reversible") < activations(4, "autograd")
    assert activations(8, "recompute") < activations(8, "autograd")


def test_processes_share_moments_and_with_stage_2_gradients():
    def constant_parts(sharding: str | None) -> dict:
        options = {"on_gpu": True, "processes": 4, "sharding": sharding}
        return training_memory("ctrl", CTRL, "causal_lm", 256, 1, "recompute", **options).constant_parts

    full_parts, first, second = constant_parts(None), constant_parts("stage1"), constant_parts("stage2")
    assert first["moments"] == full_parts["moments"] / 4 and first["gradients"] == full_parts["gradients"]
    assert second["gradients"] == full_parts["gradients"] / 4


@pytest.mark.parametrize(("device", "expected_bytes"), [("cpu", 50e6), ("gpu", 0)])
def test_compiled_loops_are_counted_if_a_run_uses_them(device, expected_bytes, recipe_file, monkeypatch):  # noqa: F811
    recipe = load_recipe(recipe_file)
    config, length = recipe_memory.known_model(recipe)
    constant_bytes, step = {}, {}
    for choice in (kernels.COMPILED, kernels.COMPOSED):
        monkeypatch.setattr(kernels, "chosen_kernels", lambda choice=choice: choice)
        memory = recipe_memory.training_of(recipe, config, length, device, "autograd")
        constant_bytes[choice], step[choice] = sum(memory.constant_parts.values()), sum(memory.step.values())
    assert constant_bytes[kernels.COMPILED] - constant_bytes[kernels.COMPOSED] == expected_bytes
    assert step[kernels.COMPILED] == step[kernels.COMPOSED] * (SHARE_IN_LOOPS if expected_bytes else 1)


def test_a_compiled_loss_needs_less_memory_for_scores():
    name = "scores of the vocabulary"
    loss_bytes = [
        training_memory(
            "ctrl", CTRL, "causal_lm", 256, 1, "recompute", uses_compiled_loops=is_compiled, on_gpu=on_gpu
        ).step[name]
        for is_compiled, on_gpu in ((False, False), (True, False), (True, True))
    ]
    scores = 256 * CTRL["vocab_size"]
    assert loss_bytes == [20 * scores, 14 * scores, 20 * scores]


def test_unknown_kernels_are_refused_by_a_check(recipe_file, command_line, monkeypatch):  # noqa: F811
    monkeypatch.setenv(kernels.VARIABLE, "compield")
    status, _, err = command_line("recipe", "check", recipe_file)
    assert status == 2 and err.startswith("error: TOOLKIT_KERNELS=compield: is no choice") and err.count("\n") == 1


def test_a_check_prints_the_memory_of_training_and_of_the_gate(recipe_file, command_line):  # noqa: F811
    arguments = ("recipe", "check", recipe_file, "train.batch_size=512")
    status, out, _ = command_line(*arguments, "model.backward=reversible")
    training, gate, last = out.splitlines()
    assert status == 0 and last.endswith(": ok")
    pattern = (
        r"memory: training takes about [\d,.]+ [GM]B: [\d,]+ MB the program, .*[GM]B activations \(reversible\);.*"
    )
    assert re.fullmatch(pattern, training)
    assert re.fullmatch(r"memory: the gate takes about \d\.\d GB of memory", gate)
    assert "activations (autograd)" in command_line(*arguments, "model.backward=autograd")[1]


def test_a_gate_that_does_not_fit_is_reported(recipe_file):  # noqa: F811
    recipe = load_recipe(recipe_file, ["parity.max_memory=0.5"])
    assert "more than there is: " in recipe_memory.memory_of_recipe(recipe)[-1]


@pytest.mark.parametrize("keys", [{"data.max_length": 2**31 - 64}, {"parity.examples": 2**31 - 1}])
def test_memory_of_large_configurations_is_computed_without_allocation(keys, recipe_file):  # noqa: F811
    overrides = [f"{key}={value}" for key, value in keys.items()]
    recipe = load_recipe(recipe_file, [*overrides, "parity.max_memory=1"])
    for key in ("axial_pos_shape", "num_buckets"):  # they follow from the length then
        del recipe.model.config[key]
    *_, training, gate = recipe_memory.memory_of_recipe(recipe)
    assert "about " in training and "about " in gate


def test_the_published_ctrl_goes_stage_by_stage_with_the_measured_memory():
    import numpy as np

    ids = np.ones((1, 256), np.int64)
    request = GateRequest("ctrl", "causal_lm", CTRL, {}, {"input_ids": ids, "attention_mask": ids})
    assert stretch.streamed_memory_of(request) == pytest.approx(5.3e9, rel=0.05)
    assert stretch.gate_memory(request) == "about 5.3 GB in the larger of its two processes: it goes stage by stage"


def test_a_run_that_cannot_fit_suggests_smaller_settings(recipe_file, monkeypatch):  # noqa: F811
    from toolkit.finetune.assembly import assemble

    recipe = load_recipe(recipe_file, ["model.backward=autograd"])
    job = assemble(recipe)
    arguments = (recipe, job.config, job.fit.length, "cpu", len(job.prepared_data.train))
    assert recipe_memory.missing_memory(*arguments) is None
    monkeypatch.setattr(recipe_memory, "physical_memory", lambda: 10**8)
    monkeypatch.setattr(recipe_memory, "swap_memory", lambda: 10**9)
    message = recipe_memory.missing_memory(*arguments)
    assert message.startswith("training takes about ") and "this machine has 100 MB" in message
    assert "a smaller train.batch_size" in message and "model.backward: reversible" in message
    monkeypatch.setattr(recipe_memory, "swap_memory", lambda: 0)
    with pytest.raises(
        UserError, match=r"train.batch_size: \d+ texts of \d+ tokens at once take about .* 100 MB and no"
    ):
        recipe_memory.missing_memory(*arguments)


def test_a_batch_has_no_more_texts_than_the_training_split(recipe_file):  # noqa: F811
    from toolkit.finetune.assembly import assemble

    job = assemble(load_recipe(recipe_file))
    recipe = load_recipe(recipe_file, ["train.batch_size=1000000000"])
    with pytest.raises(UserError, match=r"1,000,000,000 texts of \d+ tokens at once take about"):
        recipe_memory.missing_memory(recipe, job.config, job.fit.length, "cpu", 10**9)
    assert recipe_memory.missing_memory(recipe, job.config, job.fit.length, "cpu", len(job.prepared_data.train)) is None


def test_a_check_warns_of_what_this_machine_cannot_train(recipe_file, command_line, monkeypatch):  # noqa: F811
    monkeypatch.setattr(recipe_memory, "swap_memory", lambda: 0)
    assert command_line("recipe", "check", recipe_file)[1].endswith(f"{recipe_file}: ok\n")
    takes = r"training takes about [\d,.]+ GB, and it has [\d,.]+ GB and no swap"
    for override in ("train.batch_size=100000000", "model.config.num_buckets=1000000000"):
        status, out, _ = command_line("recipe", "check", recipe_file, override)
        warning = out.splitlines()[-1]
        assert status == 0 and re.fullmatch(rf".*: valid, but this machine cannot train it: {takes}", warning)
    monkeypatch.setattr(recipe_memory.runtime, "distribution_version", lambda name: None)
    *_, last = command_line("recipe", "check", recipe_file, "runtime.device=gpu")[1].splitlines()
    assert last.endswith("cannot train it: runtime.device is gpu, and the installed Paddle is for CPUs")
    monkeypatch.setattr(recipe_memory.runtime, "distribution_version", lambda name: "3")
    monkeypatch.setattr(recipe_memory.runtime.shutil, "which", lambda name: f"/usr/bin/{name}")
    assert command_line("recipe", "check", recipe_file, "runtime.device=gpu")[1].endswith(f"{recipe_file}: ok\n")


def test_the_recipe_of_the_published_ctrl_quotes_the_estimate():
    """Compare the figures in the recipe's comment with the estimate."""
    text = (ROOT / "recipes/ctrl_lm_salesforce.yaml").read_text()

    def each_gpu(texts: int = 4, **options) -> TrainingMemory:
        return training_memory(
            "ctrl", CTRL, "causal_lm", 256, texts, "recompute", bfloat16=True, on_gpu=True, **options
        )

    memory = each_gpu(processes=4, sharding="stage1")
    constant_sizes, step = ([size / 1e9 for size in part.values()] for part in (memory.constant_parts, memory.step))
    template = "{:.1f} weights, {:.1f} gradients, {:.1f} moments (a quarter of 13.1), {:.1f} activations, {:.1f} scores"
    assert f"{memory.total / 1e9:.0f} GB of each GPU: {template.format(*constant_sizes, *step)}" in " ".join(
        text.split()
    ).replace("# ", "")
    assert f"alone (train.sharding=null) takes {each_gpu().total / 1e9:.0f} GB" in text
    adapter_memory = each_gpu(1, num_trained=48 * 4 * 2 * 8 * CTRL["n_embd"])
    assert f"train.lora={{}} and train.batch_size=1 it takes {adapter_memory.total / 1e9:.0f} GB" in text


#: Runs whose memory is mostly parameters, or activations of either kind.
RUNS = {
    "parameters": ("model.backward=reversible", "model.config.feed_forward_size=60000", "model.config.hidden_size=256",
                   "model.config.axial_pos_embds_dim=[64,192]", "train.batch_size=1"),
    "adapted": ("model.config.feed_forward_size=60000", "model.config.hidden_size=256", "train.lora={rank: 4}",
                "model.config.axial_pos_embds_dim=[64,192]", "train.batch_size=1"),
    "autograd": ("model.backward=autograd", "train.batch_size=60", "train.gradient_accumulation_steps=1",
                 "model.config.num_hashes=32", "model.config.attn_layers=[local, lsh, local, lsh, lsh, lsh]"),
    "reversible": ("model.backward=reversible", "train.batch_size=60", "train.gradient_accumulation_steps=1",
                   "model.config.num_hashes=96"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_a_run_takes_the_estimated_memory_within_a_third(name, recipe_file, tmp_path):  # noqa: F811
    overrides = [*RUNS[name], "train.max_steps=2", "train.eval_steps=1", "train.eval_batch_size=4"]
    recipe = load_recipe(recipe_file, overrides)
    config, length = recipe_memory.known_model(recipe)
    estimated_bytes = recipe_memory.training_of(recipe, config, length).total
    arguments = ["finetune", recipe_file, *overrides, f"train.output_dir={tmp_path / 'run'}", "--skip-parity", "a test"]
    result = subprocess.run([sys.executable, "-c", RUN_WITH_PEAK, *map(str, arguments)], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    peak = 1024 * int(re.search(r"^peak (\d+)$", result.stdout, re.MULTILINE)[1])
    print(f"{name}: {estimated_bytes / 1e6:.0f} MB estimated, {peak / 1e6:.0f} MB seen")
    assert 2 / 3 < estimated_bytes / peak < 3 / 2, f"{estimated_bytes / 1e6:.0f} MB estimated, {peak / 1e6:.0f} MB seen"


@pytest.mark.parametrize(("num_buckets", "half_sum"), [(None, 4), (4, 2), ([4, 8], 6)])
def test_rotations_count_only_for_texts_of_several_chunks(num_buckets, half_sum):
    keys = {"attn_layers": ["lsh"], "lsh_attn_chunk_length": 64, "num_buckets": num_buckets, "axial_pos_embds": False}
    schema = part("reformer", "schema")
    once, twice = (schema.resolve({**keys, "num_hashes": count}) for count in (1, 2))

    def bytes_of_a_round(length: int) -> int:
        return schema.activation_bytes(twice, length, causal_lm=False) - schema.activation_bytes(
            once, length, causal_lm=False
        )

    for length in (32, 64):  # within one chunk
        assert bytes_of_a_round(length) == 4 * 12 * length * length
    assert bytes_of_a_round(256) == 4 * (12 * 256 * 64 * 2 + 12 * 64 * half_sum)
