"""What `recipe check` says of memory, and whether runs take that much."""

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
#: Runs the command that follows, and says how much memory it took at most.
MEASURED = """
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


def test_weights_gradients_and_moments_are_counted_of_every_parameter_and_of_the_trained_alone():
    count = count_parameters("ctrl", CTRL, "causal_lm")
    whole = training_memory("ctrl", CTRL, "causal_lm", 256, 1, "recompute")
    adapted = training_memory("ctrl", CTRL, "causal_lm", 256, 1, "recompute", num_trained=10**6)
    assert whole.constant_parts["weights"] == 4 * count and whole.constant_parts["gradients"] == 4 * count
    assert whole.constant_parts["moments"] == 8 * count
    assert (adapted.constant_parts["gradients"], adapted.constant_parts["moments"]) == (4e6, 8e6)
    assert whole.alternative_parts["clipped gradients"] == 4 * count and "clipped gradients" in whole.text
    assert training_memory("ctrl", CTRL, "causal_lm", 256, 1, "recompute", clips_gradients=False).total < whole.total
    assert adapted.constant_parts["weights"] == whole.constant_parts["weights"] and adapted.step == whole.step


def test_an_adapted_model_takes_most_when_it_is_given_its_weights_or_when_one_is_saved():
    """The end of a run copies one tensor at a time."""
    given = {"num_trained": 10**6, "num_merged": CTRL["n_embd"] ** 2}
    count, largest = count_parameters("ctrl", CTRL, "causal_lm"), CTRL["vocab_size"] * CTRL["n_embd"]
    short = training_memory("ctrl", CTRL, "causal_lm", 16, 1, "recompute", **given)
    assert short.alternative_parts["a tensor that is written"] == 8 * largest > 32 * given["num_merged"]
    assert short.total == sum(short.start.values()) == 600e6 + 8 * count + 8 * largest
    assert "the first weights" in short.text and "gradients" not in short.text
    long = training_memory("ctrl", CTRL, "causal_lm", 256, 32, "autograd", **given)
    assert (
        long.total == sum(long.constant_parts.values()) + sum(long.step.values()) and "first weights" not in long.text
    )
    assert training_memory("ctrl", CTRL, "causal_lm", 16, 1, "recompute", **given, on_gpu=True).start == {}


def test_layers_that_are_computed_again_do_not_grow_with_depth_as_all_activations_do():
    def activations(layers: int, backward: str) -> float:
        (found,) = training_memory(
            "reformer", reformer(layers), "sequence_classification", 4096, 2, backward
        ).step.values()
        return found

    assert activations(8, "autograd") == 2 * activations(4, "autograd")
    assert activations(8, "reversible") == activations(4, "reversible") < activations(4, "autograd")
    assert activations(8, "recompute") < activations(8, "autograd")


def test_processes_share_moments_and_with_stage_2_gradients():
    def held(sharding: str | None) -> dict:
        given = {"on_gpu": True, "processes": 4, "sharding": sharding}
        return training_memory("ctrl", CTRL, "causal_lm", 256, 1, "recompute", **given).constant_parts

    whole, first, second = held(None), held("stage1"), held("stage2")
    assert first["moments"] == whole["moments"] / 4 and first["gradients"] == whole["gradients"]
    assert second["gradients"] == whole["gradients"] / 4


@pytest.mark.parametrize(("device", "counted"), [("cpu", 50e6), ("gpu", 0)])
def test_compiled_loops_are_counted_where_a_run_takes_them(device, counted, recipe_file, monkeypatch):  # noqa: F811
    recipe = load_recipe(recipe_file)
    config, length = recipe_memory.known_model(recipe)
    held, step = {}, {}
    for choice in (kernels.COMPILED, kernels.COMPOSED):
        monkeypatch.setattr(kernels, "chosen_kernels", lambda choice=choice: choice)
        found = recipe_memory.training_of(recipe, config, length, device, "autograd")
        held[choice], step[choice] = sum(found.constant_parts.values()), sum(found.step.values())
    assert held[kernels.COMPILED] - held[kernels.COMPOSED] == counted
    assert step[kernels.COMPILED] == step[kernels.COMPOSED] * (SHARE_IN_LOOPS if counted else 1)


def test_a_loss_of_a_compiled_loop_keeps_nothing_of_the_scores():
    name = "scores of the vocabulary"
    known = [
        training_memory(
            "ctrl", CTRL, "causal_lm", 256, 1, "recompute", uses_compiled_loops=compiled, on_gpu=on_gpu
        ).step[name]
        for compiled, on_gpu in ((False, False), (True, False), (True, True))
    ]
    scores = 256 * CTRL["vocab_size"]
    assert known == [20 * scores, 14 * scores, 20 * scores]


def test_kernels_that_are_no_choice_are_bad_input_of_a_check(recipe_file, command_line, monkeypatch):  # noqa: F811
    monkeypatch.setenv(kernels.VARIABLE, "compield")
    status, _, err = command_line("recipe", "check", recipe_file)
    assert status == 2 and err.startswith("error: TOOLKIT_KERNELS=compield: is no choice") and err.count("\n") == 1


def test_a_check_says_what_training_and_the_gate_take(recipe_file, command_line):  # noqa: F811
    asked = ("recipe", "check", recipe_file, "train.batch_size=512")
    status, out, _ = command_line(*asked, "model.backward=reversible")
    training, gate, last = out.splitlines()
    assert status == 0 and last.endswith(": ok")
    said = r"memory: training takes about [\d,.]+ [GM]B: [\d,]+ MB the program, .*[GM]B activations \(reversible\);.*"
    assert re.fullmatch(said, training)
    assert re.fullmatch(r"memory: the gate takes about \d\.\d GB of memory", gate)
    assert "activations (autograd)" in command_line(*asked, "model.backward=autograd")[1]


def test_a_gate_that_does_not_fit_says_so(recipe_file):  # noqa: F811
    recipe = load_recipe(recipe_file, ["parity.max_memory=0.5"])
    assert "more than there is: " in recipe_memory.memory_of_recipe(recipe)[-1]


@pytest.mark.parametrize("keys", [{"data.max_length": 2**31 - 64}, {"parity.examples": 2**31 - 1}])
def test_what_nothing_holds_is_only_computed(keys, recipe_file):  # noqa: F811
    changed = [f"{key}={value}" for key, value in keys.items()]
    recipe = load_recipe(recipe_file, [*changed, "parity.max_memory=1"])
    for key in ("axial_pos_shape", "num_buckets"):  # they follow from the length then
        del recipe.model.config[key]
    *_, training, gate = recipe_memory.memory_of_recipe(recipe)
    assert "about " in training and "about " in gate


def test_the_published_ctrl_goes_stage_by_stage_and_takes_what_was_seen():
    import numpy as np

    ids = np.ones((1, 256), np.int64)
    request = GateRequest("ctrl", "causal_lm", CTRL, {}, {"input_ids": ids, "attention_mask": ids})
    assert stretch.streamed_memory_of(request) == pytest.approx(5.3e9, rel=0.05)
    assert stretch.gate_memory(request) == "about 5.3 GB in the larger of its two processes: it goes stage by stage"


def test_a_run_that_cannot_fit_says_what_takes_less(recipe_file, monkeypatch):  # noqa: F811
    from toolkit.finetune.assembly import assemble

    recipe = load_recipe(recipe_file, ["model.backward=autograd"])
    job = assemble(recipe)
    given = (recipe, job.config, job.fit.length, "cpu", len(job.prepared_data.train))
    assert recipe_memory.missing_memory(*given) is None
    monkeypatch.setattr(recipe_memory, "physical_memory", lambda: 10**8)
    monkeypatch.setattr(recipe_memory, "swap_memory", lambda: 10**9)
    said = recipe_memory.missing_memory(*given)
    assert said.startswith("training takes about ") and "this machine has 100 MB" in said
    assert "a smaller train.batch_size" in said and "model.backward: reversible" in said
    monkeypatch.setattr(recipe_memory, "swap_memory", lambda: 0)
    with pytest.raises(
        UserError, match=r"train.batch_size: \d+ texts of \d+ tokens at once take about .* 100 MB and no"
    ):
        recipe_memory.missing_memory(*given)


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


def test_the_recipe_of_the_published_ctrl_says_what_it_takes():
    """Its comment's figures are those that are computed."""
    text = (ROOT / "recipes/ctrl_lm_salesforce.yaml").read_text()

    def each_gpu(texts: int = 4, **given) -> TrainingMemory:
        return training_memory("ctrl", CTRL, "causal_lm", 256, texts, "recompute", bfloat16=True, on_gpu=True, **given)

    found = each_gpu(processes=4, sharding="stage1")
    held, step = ([size / 1e9 for size in part.values()] for part in (found.constant_parts, found.step))
    said = "{:.1f} weights, {:.1f} gradients, {:.1f} moments (a quarter of 13.1), {:.1f} activations, {:.1f} scores"
    assert f"{found.total / 1e9:.0f} GB of each GPU: {said.format(*held, *step)}" in " ".join(text.split()).replace(
        "# ", ""
    )
    assert f"alone (train.sharding=null) takes {each_gpu().total / 1e9:.0f} GB" in text
    adapted = each_gpu(1, num_trained=48 * 4 * 2 * 8 * CTRL["n_embd"])
    assert f"train.lora={{}} and train.batch_size=1 it takes {adapted.total / 1e9:.0f} GB" in text


#: Runs whose parameters, or activations of either kind, are most of what they take.
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
def test_a_run_takes_what_is_estimated_within_a_third(name, recipe_file, tmp_path):  # noqa: F811
    overrides = [*RUNS[name], "train.max_steps=2", "train.eval_steps=1", "train.eval_batch_size=4"]
    recipe = load_recipe(recipe_file, overrides)
    config, length = recipe_memory.known_model(recipe)
    estimated = recipe_memory.training_of(recipe, config, length).total
    given = ["finetune", recipe_file, *overrides, f"train.output_dir={tmp_path / 'run'}", "--skip-parity", "a test"]
    done = subprocess.run([sys.executable, "-c", MEASURED, *map(str, given)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    peak = 1024 * int(re.search(r"^peak (\d+)$", done.stdout, re.MULTILINE)[1])
    print(f"{name}: {estimated / 1e6:.0f} MB estimated, {peak / 1e6:.0f} MB seen")
    assert 2 / 3 < estimated / peak < 3 / 2, f"{estimated / 1e6:.0f} MB estimated, {peak / 1e6:.0f} MB seen"


@pytest.mark.parametrize(("num_buckets", "half_sum"), [(None, 4), (4, 2), ([4, 8], 6)])
def test_rotations_count_only_for_texts_of_several_chunks(num_buckets, half_sum):
    keys = {"attn_layers": ["lsh"], "lsh_attn_chunk_length": 64, "num_buckets": num_buckets, "axial_pos_embds": False}
    schema = part("reformer", "schema")
    once, twice = (schema.resolve({**keys, "num_hashes": count}) for count in (1, 2))

    def bytes_of_a_round(length: int) -> int:
        return schema.activation_bytes(twice, length, False) - schema.activation_bytes(once, length, False)

    for length in (32, 64):  # within one chunk
        assert bytes_of_a_round(length) == 4 * 12 * length * length
    assert bytes_of_a_round(256) == 4 * (12 * 256 * 64 * 2 + 12 * 64 * half_sum)
