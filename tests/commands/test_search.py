"""Test `toolkit search`: trials that are pruned, interrupted and gated, and the best trial."""

from __future__ import annotations

import io
import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from test_train import Report, gate, recipe_file  # noqa: F401

from toolkit.commands.predict import evaluate
from toolkit.commands.search import record
from toolkit.commands.search.search import run_search
from toolkit.commands.search.space import Over, default_options, parse_space, shape_of, value_of
from toolkit.errors import ParityDrift, ToolkitError, UserError
from toolkit.finetune.card import parity_statement
from toolkit.finetune.passed_gate import reuse_gate
from toolkit.recipe.load import load_recipe
from toolkit.run_folder.checkpoint import Checkpoints
from toolkit.run_folder.folder import read_starts, record_start
from toolkit.run_folder.tracking import read_metrics
from toolkit.training.trainer import Finetuner

#: A rate that learns and a rate that hardly does, and a metric that separates them at once.
RATES, DROPOUT = "train.learning_rate=4e-3,1e-6", "model.config.hidden_dropout_prob=0..0.3"
SHORT = ("train.max_steps=15", "train.save_best=loss", "train.baseline=false")


def run(recipe: Path, folder: Path, trials: int, *ranges: str, skip: str | None = "a test", more: tuple = ()) -> str:
    output = io.StringIO()
    overrides = (f"train.output_dir={folder}", *SHORT, *more)
    run_search(recipe, overrides, ranges, trials, skip, Console(file=output, width=160))
    return output.getvalue()


def trials_of(folder: Path) -> list[dict]:
    return json.loads((folder / "search.json").read_text())["trials"]


@pytest.fixture(scope="module")
def finished_search(recipe_file, tmp_path_factory):  # noqa: F811
    """Return the folder of a search of five trials, its output, and the split of each evaluation."""
    folder, splits = tmp_path_factory.mktemp("found") / "search", []
    original_evaluate = Finetuner.evaluate

    def recording_evaluate(self, dataset=None, ignore_keys=None, metric_key_prefix="eval"):
        splits.append(metric_key_prefix)
        return original_evaluate(self, dataset, ignore_keys, metric_key_prefix)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record, "NUM_STARTUP_TRIALS", 1)
        patch.setattr(Finetuner, "evaluate", recording_evaluate)
        output = run(recipe_file, folder, 5, RATES, DROPOUT)
    return folder, output, splits


def test_the_first_trial_is_the_recipe_and_the_best_trial_a_finished_run(finished_search, recipe_file):  # noqa: F811
    folder, output, _ = finished_search
    trials = trials_of(folder)
    first, best = trials[0], json.loads((folder / "search.json").read_text())["best"]
    assert first["settings"] == {"train.learning_rate": 4e-3, "model.config.hidden_dropout_prob": 0.1}
    assert len({trial["settings"]["model.config.hidden_dropout_prob"] for trial in trials}) == len(trials)
    complete = [trial for trial in trials if trial["state"] == "complete"]
    assert best == min(complete, key=lambda trial: trial["value"])["name"]
    assert [path.parent.name for path in folder.glob("*/metrics.json")] == [best]
    assert not list(folder.glob("*/checkpoints"))
    assert f"next: toolkit predict {folder / best}" in output.splitlines()[-1]
    results = evaluate(folder / best, Console(file=io.StringIO()))
    assert results == json.loads((folder / best / "metrics.json").read_text())["test"]
    settings = next(trial for trial in trials if trial["name"] == best)["settings"]
    best_recipe = load_recipe(folder / "best.yaml")
    assert best_recipe.train.learning_rate == settings["train.learning_rate"]
    assert best_recipe.model.config["hidden_dropout_prob"] == settings["model.config.hidden_dropout_prob"]
    assert "# tried 4e-3,1e-6; was 0.004" in (folder / "best.yaml").read_text()


def test_only_the_best_trial_is_evaluated_on_the_test_split(finished_search):
    _, _, splits = finished_search
    assert splits.count("test") == 1 and splits[-1] == "test"


def test_a_trial_that_is_worse_than_others_is_pruned(finished_search):
    folder, output, _ = finished_search
    pruned_trials = [trial for trial in trials_of(folder) if trial["state"] == "pruned"]
    assert 1e-6 in {trial["settings"]["train.learning_rate"] for trial in pruned_trials}
    for trial in pruned_trials:
        steps = [row["step"] for row in read_metrics(folder / trial["name"] / "metrics.jsonl")]
        assert max(steps) < 15 and next(iter(trial["validations"])) == "33"
        assert f"{trial['name']}  loss" in output


def test_an_interrupted_search_ends_with_the_same_result(finished_search, recipe_file, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setattr(record, "NUM_STARTUP_TRIALS", 1)
    ranges, folder = (RATES, DROPOUT), tmp_path / "search"
    original_save, saved_steps = Checkpoints.save, []

    def save_and_stop(self, at, *arguments, **named):
        original_save(self, at, *arguments, **named)
        saved_steps.append(at)
        if len(saved_steps) in (2, 5):
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "save", save_and_stop)
        for num_finished in (0, 1):
            with pytest.raises(KeyboardInterrupt):
                run(recipe_file, folder, 5, *ranges)
            assert len(trials_of(folder)) == num_finished and list(folder.glob(f"trial-00{num_finished}/checkpoints"))
    run(recipe_file, folder, 3, *ranges)
    output = run(recipe_file, folder, 5, *ranges)
    assert trials_of(folder) == trials_of(finished_search[0])
    assert "trial-002" not in output.partition("┏")[0]
    best = json.loads((folder / "search.json").read_text())["best"]
    resumed_metrics, expected_metrics = (
        json.loads((search_folder / best / "metrics.json").read_text())["test"]
        for search_folder in (folder, finished_search[0])
    )
    assert resumed_metrics == expected_metrics
    assert "is a finished run" in run(recipe_file, folder, 5, *ranges)


def test_a_diverging_trial_does_not_end_the_search(recipe_file, tmp_path):  # noqa: F811
    folder, ranges = tmp_path / "search", "train.learning_rate=4e-3,1e30"
    more = ("train.max_grad_norm=null", "train.max_steps=5", "train.learning_rate=1e30")
    with pytest.raises(ToolkitError, match="no trial got to its end"):
        run(recipe_file, folder, 1, ranges, more=more)
    run(recipe_file, folder, 4, ranges, more=more)
    first, *other_trials = trials_of(folder)
    assert first["state"] == "failed" and "lower train.learning_rate" in first["why"]
    assert "complete" in {trial["state"] for trial in other_trials}


# -- the gate -------------------------------------------------------------------------------------------------------


def test_one_gate_covers_a_shape_and_the_best_trial_has_a_separate_gate(gate, recipe_file, tmp_path):  # noqa: F811
    folder, more = tmp_path / "search", ("train.max_steps=5",)
    run(recipe_file, folder, 5, "train.learning_rate=1e-3..9e-3", "model.config.num_hashes=1,2", skip=None, more=more)
    trials, best = trials_of(folder), json.loads((folder / "search.json").read_text())["best"]
    hashes = [trial["settings"]["model.config.num_hashes"] for trial in trials]
    assert set(hashes) == {1, 2}
    gated_hashes = [request.config["num_hashes"] for request in gate.requests]
    assert gated_hashes[:2] == list(dict.fromkeys(hashes)) and len(gated_hashes) == 3
    assert gate.requests[2].training.learning_rate == load_recipe(folder / "best.yaml").train.learning_rate
    first = {number: f"trial-{hashes.index(number):03}" for number in (1, 2)}
    for trial, number in zip(trials, hashes, strict=True):
        is_first_of_shape = trial["name"] == first[number]
        [statement, *_] = [start["passed"] for start in read_starts(folder / trial["name"])]
        assert statement == f"{'' if is_first_of_shape else f'of {first[number]}: '}parity: 158 tensors agree"
    best_statement = parity_statement(read_starts(folder / best))
    assert best_statement.startswith("The parity gate passed before training") and "of trial-" not in best_statement


def test_a_gate_that_fails_ends_the_search(gate, recipe_file, tmp_path):  # noqa: F811
    gate.report = Report(False, 1)
    with pytest.raises(ParityDrift, match="no training"):
        run(recipe_file, tmp_path / "search", 3, RATES, skip=None)
    assert trials_of(tmp_path / "search") == [] and len(gate.requests) == 1
    gate.report = Report(True, 0)
    run(recipe_file, tmp_path / "search", 1, RATES, skip=None, more=("train.max_steps=1",))  # a fixed recipe


def test_a_trial_is_trained_with_the_constants_of_its_gate(tmp_path):
    (tmp_path / "like/parity").mkdir(parents=True)
    (tmp_path / "mine").mkdir()
    (tmp_path / "like/parity/constants.safetensors").write_bytes(b"constants")
    record_start(tmp_path / "like", 0, "parity: all agree", None)
    assert reuse_gate(tmp_path / "like", tmp_path / "mine") == "of like: parity: all agree"
    assert (tmp_path / "mine/parity/constants.safetensors").read_bytes() == b"constants"


@pytest.mark.parametrize(
    ("key", "first", "second", "has_same_shape"),
    [
        ("train.learning_rate", 1e-3, 2e-3, True),
        ("train.epochs", 2, 4, True),
        ("train.max_steps", 20, 40, True),
        ("model.config.hidden_dropout_prob", 0.1, 0.2, True),
        ("model.config.hidden_dropout_prob", 0.0, 0.2, False),
        ("train.warmup_ratio", 0.0, 0.1, False),
        ("train.max_grad_norm", None, 1.0, False),
        ("train.batch_size", 4, 8, False),
        ("train.lr_scheduler", "linear", "cosine", False),
        ("model.config.layer_norm_eps", 1e-12, 1e-6, False),
        ("model.config.hidden_size", 32, 64, False),
    ],
)
def test_rates_and_lengths_do_not_change_the_shape(key, first, second, has_same_shape):
    assert (shape_of({key: first}) == shape_of({key: second})) is has_same_shape


# -- the tried values -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "values", "logarithmic"),
    [
        ("train.learning_rate=1e-4..1e-2", (1e-4, 1e-2), True),
        ("train.learning_rate=1e-3..5e-3", (1e-3, 5e-3), False),
        ("model.config.hidden_dropout_prob=0..0.3", (0.0, 0.3), False),
        ("train.batch_size=2..64", (2, 64), True),
        ("train.epochs=2,4,8", (2, 4, 8), None),
        ("model.config.attn_layers=[local, lsh],[lsh]", (["local", "lsh"], ["lsh"]), None),
        ("train.max_grad_norm=null,1.0", (None, 1.0), None),
    ],
)
def test_a_range_or_a_list_is_read(text, values, logarithmic):
    search_range = Over.parse(text)
    assert search_range.values == values and getattr(search_range.distribution, "log", None) is logarithmic
    assert all(search_range.decode_setting(search_range.encode_setting(value)) == value for value in values)


def test_default_ranges_are_around_the_values_of_the_recipe(recipe_file):  # noqa: F811
    recipe = load_recipe(recipe_file, [])
    dropout = [f"model.config.{name}_prob=0..0.3" for name in ("hidden_dropout", "local_attention_probs_dropout")]
    assert default_options(recipe) == ["train.learning_rate=0.0008..0.02", "train.max_steps=20,40,80", *dropout]
    space = parse_space(default_options(recipe), recipe_file, ())
    assert [search_range.encode_setting(value_of(recipe, search_range.key)) for search_range in space] == [
        4e-3,
        "40",
        0.1,
        0.05,
    ]


@pytest.mark.parametrize(
    ("range_text", "expected_error"),
    [
        ("train.learning_rate", "--over train.learning_rate: expected KEY=VALUES, for example "),
        ("train.epochs=2,2", "name at least two values, each once"),
        ("train.learning_rate=2..1", "a range goes from a number to a greater one"),
        ("train.learning_rate=a..b", "a range goes from a number to a greater one"),
        ("data.max_length=4,8", "trials differ only in keys of model and train"),
        ("train.save_best=loss,accuracy", "trials differ only in keys of model and train"),
        ("train.lerning_rate=1..2", "train.lerning_rate: unknown key, did you mean learning_rate?"),
        ("train.learning_rate=0..1", "train.learning_rate: 0"),
        ("train.batch_size=1.5,2", "train.batch_size: 1.5: input should be a valid integer"),
        ("model.config.hiden_dropout=0..1", "unknown key, did you mean hidden_dropout_prob?"),
        ("model.config.hidden_size=32,33", "model.config"),
    ],
)
def test_an_impossible_range_is_reported_in_one_line(range_text, expected_error, recipe_file, tmp_path, command_line):  # noqa: F811
    folder = tmp_path / "search"
    status, _, err = command_line("search", recipe_file, f"train.output_dir={folder}", "--over", range_text)
    assert status == 2 and err.count("\n") == 1 and expected_error in err and not folder.exists()


def test_a_folder_of_something_else_is_refused(finished_search, recipe_file, tmp_path):  # noqa: F811
    with pytest.raises(UserError, match=r"holds another search \(--over .* there, train\.max_steps=5,15 here"):
        run(recipe_file, finished_search[0], 5, "train.max_steps=5,15")
    with pytest.raises(UserError, match=r"holds another search \(train\.batch_size: 4 there, 5 here"):
        run(recipe_file, finished_search[0], 5, RATES, DROPOUT, more=("train.batch_size=5",))
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(UserError, match="is not empty and holds no search"):
        run(recipe_file, tmp_path, 1, RATES)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    with pytest.raises(UserError, match=r"mine\.txt/search: .*; name another folder"):
        run(recipe_file, tmp_path / "mine.txt/search", 1, RATES)


@pytest.mark.slow
def copy_search(source: Path, folder: Path) -> None:
    """Copy a search into a new folder, and change the folder in its ``search.json``."""
    shutil.copytree(source, folder)
    (folder / "search.json").write_text((folder / "search.json").read_text().replace(str(source), str(folder)))


def change_search(folder: Path, **fields: object) -> None:
    """Change fields of the last trial in ``search.json``."""
    content = json.loads((folder / "search.json").read_text())
    content["trials"][-1].update(fields)
    (folder / "search.json").write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("fields", "expected_error"),
    [
        ({"name": "../victim"}, "trials.4.name: '../victim' should be trial-004"),
        ({"name": "trial-003"}, "trials.4.name: 'trial-003' should be trial-004"),
        ({"name": 5}, "trials.4.name: Input should be a valid string"),
        ({"value": "x"}, "trials.4.value: Input should be a valid number"),
        ({"value": None, "state": "complete"}, "trials.4.value: is missing"),
        ({"state": "odd"}, "trials.4.state: Input should be 'complete', 'pruned' or 'failed'"),
        ({"step": -1}, "trials.4.step: Input should be greater than or equal to 0"),
        ({"settings": []}, "trials.4.settings: Input should be an object"),
        ({"settings": {}}, "trials.4.settings: model.config.hidden_dropout_prob is not a setting of this search"),
        ({"validations": {"x": 1.0}}, "trials.4.validations.x"),
    ],
)
def test_a_search_file_with_a_wrong_field_is_named_and_nothing_is_removed(
    finished_search,
    recipe_file,  # noqa: F811
    tmp_path,
    command_line,
    fields,
    expected_error,
):
    folder = tmp_path / "search"
    copy_search(finished_search[0], folder)
    change_search(folder, **fields)
    victim = tmp_path / "victim/checkpoints/step-00000001/state.json"
    victim.parent.mkdir(parents=True)
    victim.write_text("mine")
    range_options = [word for key in (RATES, DROPOUT) for word in ("--over", key)]
    status, _, error = command_line(
        "search",
        recipe_file,
        f"train.output_dir={folder}",
        *SHORT,
        *range_options,
        "--trials",
        5,
        "--skip-parity",
        "a test",
    )
    assert (
        status == 2 and expected_error in error and str(folder / "search.json") in error and error.count("\n") == 1
    ), error
    assert victim.read_text() == "mine"


@pytest.mark.parametrize("kind", ["a link to another run", "a folder of somebody"])
def test_checkpoints_at_the_path_of_a_trial_are_kept(finished_search, recipe_file, tmp_path, kind):  # noqa: F811
    folder = tmp_path / "search"
    copy_search(finished_search[0], folder)
    trial = next(trial for trial in trials_of(folder) if not (folder / trial["name"] / "metrics.json").exists())
    place, moved_folder = folder / trial["name"], tmp_path / "other"
    place.rename(moved_folder)
    if kind == "a link to another run":
        place.symlink_to(moved_folder)
    else:
        place.mkdir()
    weights = place / "checkpoints/step-00000001/weights.safetensors"
    weights.parent.mkdir(parents=True)
    weights.write_text("mine")
    run(recipe_file, folder, 5, RATES, DROPOUT)
    assert weights.read_text() == "mine"


def test_ctrl_c_and_a_kill_end_a_search_that_the_same_command_resumes(recipe_file, tmp_path):  # noqa: F811
    arguments = [recipe_file, "train.max_steps=20", "train.baseline=false", "--over", RATES, "--trials", "3"]
    command = [sys.executable, "-m", "toolkit", "search", *map(str, arguments), "--skip-parity", "killed"]

    def start_search(folder: Path) -> subprocess.Popen:
        return subprocess.Popen(
            [*command, f"train.output_dir={folder}"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    for number, status in ((signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)):
        search = start_search(tmp_path / "killed")
        while "step " not in search.stdout.readline() and search.poll() is None:
            pass
        search.send_signal(number)
        output, err = search.communicate()
        assert search.returncode == status
        if number == signal.SIGINT:
            assert err == "interrupted\n" and "the same command resumes the search" in output
    for folder in ("killed", "whole"):
        search = start_search(tmp_path / folder)
        assert search.communicate() and search.returncode == 0
    assert trials_of(tmp_path / "killed") == trials_of(tmp_path / "whole")
