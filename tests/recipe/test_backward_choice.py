"""Test ``model.backward: auto``: autograd if half of the memory holds its activations, and reversible otherwise.

A run keeps the choice, all its processes share it, and the gate uses it.
"""

from __future__ import annotations

import io
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from rich.console import Console
from test_train import recipe_file  # noqa: F401

from models.families import part
from toolkit.errors import UserError
from toolkit.finetune import memory as recipe_memory
from toolkit.finetune.assembly import assemble
from toolkit.finetune.backward import resolve_backward, stored_backward
from toolkit.finetune.finetune import finetune
from toolkit.finetune.memory import MAX_FILLED_SHARE, choose_backward, training_of
from toolkit.recipe.load import load_recipe
from toolkit.run_folder.folder import lock_run_folder
from toolkit.training.trainer import Finetuner

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def memory(monkeypatch):
    """Return a function that sets the memory of this machine in bytes."""

    def state(size: float | None) -> None:
        monkeypatch.setattr(recipe_memory, "physical_memory", lambda: size)
        monkeypatch.setattr(
            recipe_memory, "swap_memory", lambda: 10**12
        )  # a run is refused if memory and swap are too small
        monkeypatch.setattr(recipe_memory, "container_limit", lambda: None)

    return state


def required_memory(recipe) -> float:
    """Return the minimum memory in bytes with which autograd is chosen."""
    config, length = recipe_memory.known_model(recipe)
    return training_of(recipe, config, length, "cpu", "autograd").total / MAX_FILLED_SHARE


def resolve_choice(recipe, folder, processes: int = 1, chosen_backward: str | None = None) -> tuple[str, str | None]:
    recipe, note = resolve_backward(recipe, assemble(recipe), folder, "cpu", processes, chosen_backward)
    return recipe.model.backward, note


def test_it_is_the_default_of_reformer_and_unknown_to_ctrl(recipe_file):  # noqa: F811
    assert load_recipe(recipe_file).model.backward == "auto"
    with pytest.raises(UserError, match="is for model reformer, not for ctrl"):
        load_recipe(recipe_file, ["model.name=ctrl", "model.config={}", "model.backward=auto", "tokenizer.kind=bpe"])


def test_the_choice_changes_if_half_of_the_memory_is_full(recipe_file, memory, tmp_path):  # noqa: F811
    least = required_memory(load_recipe(recipe_file))
    for memory_bytes, expected_backward in (
        (least * 1.001, "autograd"),
        (least * 0.999, "reversible"),
        (None, "reversible"),
    ):
        memory(memory_bytes)
        recipe = load_recipe(recipe_file)
        backward, note = resolve_choice(recipe, tmp_path)
        assert backward == expected_backward and note.startswith(
            f"model.backward auto: {expected_backward}, since autograd's "
        )


def test_a_longer_text_or_a_deeper_model_is_reversible(recipe_file, memory):  # noqa: F811
    memory(required_memory(load_recipe(recipe_file)) * 1.1)
    small, large = (part("reformer", "schema").resolve({"attn_layers": ["local", "lsh"] * n}) for n in (1, 12))
    recipe = load_recipe(recipe_file)
    memory(4 * training_of(recipe, small, 1024, "cpu", "autograd").total)
    assert choose_backward(recipe, small, 1024, "cpu").backward == "autograd"
    assert choose_backward(recipe, large, 1024, "cpu").backward == "reversible"
    assert choose_backward(recipe, small, 16384, "cpu").backward == "reversible"


def test_processes_on_one_processor_share_its_memory(recipe_file, memory, tmp_path, monkeypatch):  # noqa: F811
    memory(1.5 * required_memory(load_recipe(recipe_file)))
    assert resolve_choice(load_recipe(recipe_file), tmp_path)[0] == "autograd"
    assert resolve_choice(load_recipe(recipe_file), tmp_path, processes=2)[0] == "reversible"
    monkeypatch.setenv("PADDLE_LOCAL_SIZE", "1")  # the other process is on another machine
    assert resolve_choice(load_recipe(recipe_file), tmp_path, processes=2)[0] == "autograd"


def test_a_container_has_only_the_memory_of_its_limit(recipe_file, memory, monkeypatch):  # noqa: F811
    memory(1e12)
    assert recipe_memory.memory_there("cpu") == 1e12
    monkeypatch.setattr(recipe_memory, "container_limit", lambda: 3e9)
    assert recipe_memory.memory_there("cpu") == 3e9


def test_an_explicit_backward_in_the_recipe_is_kept(recipe_file, memory, tmp_path):  # noqa: F811
    memory(1e12)
    assert resolve_choice(load_recipe(recipe_file, ["model.backward=reversible"]), tmp_path) == ("reversible", None)
    memory(1.0)
    assert resolve_choice(load_recipe(recipe_file, ["model.backward=autograd"]), tmp_path) == ("autograd", None)


def test_a_check_prints_the_choice_and_its_memory(recipe_file, memory, command_line):  # noqa: F811
    least = required_memory(load_recipe(recipe_file))
    for memory_bytes, expected_backward in ((least * 1.001, "autograd"), (least * 0.999, "reversible")):
        memory(memory_bytes)
        _, out, _ = command_line("recipe", "check", recipe_file)
        choice_line, training, *_ = out.splitlines()
        assert choice_line.startswith(f"memory: model.backward auto: {expected_backward}, since autograd's ")
        assert f"activations ({expected_backward})" in training or "MB" in training
    on_gpu = command_line("recipe", "check", recipe_file, "runtime.device=gpu")[1]
    assert "model.backward auto: autograd on a GPU with " in on_gpu


def test_the_port_and_the_gate_use_the_choice(recipe_file, memory, tmp_path):  # noqa: F811
    from toolkit.finetune.gate import gate_request

    for memory_bytes, expected_backward in ((1e12, "autograd"), (1.0, "reversible")):
        memory(memory_bytes)
        recipe = load_recipe(recipe_file)
        job = assemble(recipe)
        recipe, _ = resolve_backward(recipe, job, tmp_path, "cpu", 1)
        assert job.config.backward == job.stored_config.backward == expected_backward
        assert gate_request(recipe, job, "cpu", tmp_path).port["backward"] == expected_backward


def test_a_process_uses_the_choice_that_it_gets(recipe_file, memory, tmp_path):  # noqa: F811
    memory(1e12)
    assert resolve_choice(load_recipe(recipe_file), tmp_path, chosen_backward="reversible") == ("reversible", None)


def test_a_run_prints_its_choice_and_keeps_it_on_another_machine(
    recipe_file,  # noqa: F811
    memory,
    tmp_path,
    monkeypatch,
):
    """Compare bit for bit a run that stops with much memory and resumes with little."""
    step, shape, output = Finetuner.training_step, ["train.max_steps=6", "train.eval_steps=6"], io.StringIO()

    def stop(self, *arguments):
        if self.state.global_step == 2:
            signal.raise_signal(signal.SIGTERM)
        return step(self, *arguments)

    def run(name: str) -> Path:
        recipe = load_recipe(recipe_file, [f"train.output_dir={tmp_path / name}", *shape])
        return finetune(recipe, "a test", Console(file=output, width=200))

    memory(1e12)
    whole_run = run("whole")
    assert yaml.safe_load((whole_run / "recipe.yaml").read_text())["model"]["backward"] == "autograd"
    monkeypatch.setattr(Finetuner, "training_step", stop)
    with pytest.raises(KeyboardInterrupt):
        run("resumed")
    monkeypatch.setattr(Finetuner, "training_step", step)
    memory(1.0)
    output.truncate(0)
    resumed_run = run("resumed")
    assert "note   model.backward auto: autograd, with which this run began" in output.getvalue()
    assert "resuming" in output.getvalue()
    assert (resumed_run / "model/model.safetensors").read_bytes() == (
        whole_run / "model/model.safetensors"
    ).read_bytes()
    with pytest.raises(UserError, match="holds a finished run"):
        run("resumed")


def test_an_unfinished_run_is_not_resumed_with_another_explicit_backward(recipe_file, tmp_path):  # noqa: F811
    folder = tmp_path / "run"
    folder.mkdir()
    recipe = load_recipe(recipe_file, [f"train.output_dir={folder}"])
    first_recipe = load_recipe(recipe_file, [f"train.output_dir={folder}", "model.backward=autograd"])
    (folder / "recipe.yaml").write_text(first_recipe.to_yaml())
    with lock_run_folder(recipe):
        assert resolve_choice(recipe, folder)[0] == "autograd"
    other_recipe = load_recipe(recipe_file, [f"train.output_dir={folder}", "model.backward=reversible"])
    with (
        pytest.raises(UserError, match=r"model\.backward: autograd there, reversible here"),
        lock_run_folder(other_recipe),
    ):
        pass


@pytest.mark.slow
def test_two_processes_share_a_choice_and_train_like_one_process(recipe_file, tmp_path):  # noqa: F811
    """Test the real command: the first process prints its choice, and the second builds the same model."""
    result = subprocess.run(
        [sys.executable, "-m", "toolkit", "finetune", recipe_file, f"train.output_dir={tmp_path / 'run'}",
         "train.max_steps=4", "--skip-parity", "a test", "--processes", "2"],
        capture_output=True, text=True, cwd=ROOT,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("model.backward auto: autograd") == 1
    assert yaml.safe_load((tmp_path / "run/recipe.yaml").read_text())["model"]["backward"] == "autograd"


@pytest.mark.parametrize("content", ["[" * 100_000, "model: 3", "model: {backward: often}", "\0", "a: &a [*a]"])
def test_a_recipe_of_a_run_without_backward_has_no_choice(tmp_path, content):
    (tmp_path / "recipe.yaml").write_text(content)
    assert stored_backward(tmp_path) is None
