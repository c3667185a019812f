"""Test every damage of every file in a run folder: the command works, or names the file and the remedy in one line."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import damages
import numpy as np
import pytest
import test_language_modeling
import test_question_answering
import test_train
import yaml
from safetensors.numpy import load_file, save_file
from soak import WHOLE, some

from toolkit import cli
from toolkit.finetune.finetune import finetune
from toolkit.recipe.load import load_recipe
from toolkit.terminal.console import LiteralConsole

#: Settings with which a run takes about a second.
SHORT = {"max_steps": 4, "eval_steps": 2, "batch_size": 4}


# -- the runs -------------------------------------------------------------------------------------------------------


def write_classification(folder: Path) -> dict:
    for split_name in ("train", "validation", "test"):
        rows = [f"{('saw axe', 'cat dog')[index % 2]} {index},{('tool', 'animal')[index % 2]}" for index in range(12)]
        (folder / f"{split_name}.csv").write_text("text,label\n" + "\n".join(rows) + "\n")
    return test_train.RECIPE


def write_sentencepiece(folder: Path) -> dict:
    return {**write_classification(folder), "tokenizer": {"kind": "sentencepiece", "vocab_size": 40}}


def write_answers(folder: Path) -> dict:
    for split_name, count in (("train", 12), ("validation", 4)):
        rows = test_question_answering.rows(split_name, count)
        name = test_question_answering.RECIPE["data"]["files"][split_name]
        (folder / name).write_text("\n".join(map(json.dumps, rows)))
    return test_question_answering.RECIPE


def write_language(folder: Path) -> dict:
    (folder / "numbers.txt").write_text(test_language_modeling.counting_text(test_language_modeling.NUMBERS, 300))
    (folder / "cats.txt").write_text(test_language_modeling.counting_text(test_language_modeling.ANIMALS, 150))
    (folder / "dogs.txt").write_text(test_language_modeling.counting_text(test_language_modeling.ANIMALS, 150, start=4))
    return test_language_modeling.RECIPE


KINDS = {
    "classification": write_classification,
    "sentencepiece": write_sentencepiece,
    "answers": write_answers,
    "language": write_language,
}


class Runs:
    """A finished and an unfinished run of each kind, trained on first use."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.made: dict[str, Path] = {}

    def finished_run(self, kind: str) -> Path:
        return self._once(
            f"{kind}-finished", lambda: finetune(self._recipe(kind, "finished"), "a test", quiet_console())
        )

    def unfinished_run(self, kind: str) -> Path:
        return self._once(f"{kind}-unfinished", lambda: self._interrupt_run(kind))

    def _once(self, name: str, make: Callable[[], Path]) -> Path:
        if name not in self.made:
            self.made[name] = make()
        return self.made[name]

    def _recipe(self, kind: str, name: str, **train):
        above = self.folder / kind
        above.mkdir(exist_ok=True)
        values = KINDS[kind](above)
        values = {**values, "train": {**values["train"], **SHORT, **train}}
        (above / "x.yaml").write_text(yaml.safe_dump(values, sort_keys=False))
        return load_recipe(above / "x.yaml", [f"train.output_dir={above / name}"])

    def _interrupt_run(self, kind: str) -> Path:
        """Interrupt a run after two checkpoints; it has so many steps that it never finishes before."""
        recipe = self._recipe(kind, "unfinished", max_steps=40)
        threading.Thread(target=interrupt_at, args=[recipe.output_dir], daemon=True).start()
        with pytest.raises(KeyboardInterrupt):
            finetune(recipe, "a test", quiet_console())
        return recipe.output_dir


def interrupt_at(folder: Path) -> None:
    while len(list(folder.glob("checkpoints/step-*"))) < 2:
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)


def quiet_console() -> LiteralConsole:
    return LiteralConsole(file=io.StringIO())


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOOLKIT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield Runs(tmp_path_factory.mktemp("damaged"))


# -- the damages ----------------------------------------------------------------------------------------------------


def invert_bytes(path: Path) -> None:
    """Invert about a hundred bytes, spread evenly over a file."""
    content = bytearray(path.read_bytes())
    for place in range(0, len(content), max(1, len(content) // 100)):
        content[place] ^= 0xFF
    path.write_bytes(content)


def fill_with_nan(path: Path) -> None:
    save_file({name: np.full_like(value, np.nan) for name, value in load_file(path).items()}, path)


def drop_a_tensor(path: Path) -> None:
    tensors = load_file(path)
    tensors.pop(next(iter(tensors)))
    save_file(tensors, path)


def replace_by_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGES: dict[str, Callable[[Path], object]] = {
    "missing": Path.unlink,
    "empty": lambda path: path.write_bytes(b""),
    "cut": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "garbage": lambda path: path.write_bytes(bytes(range(256)) * 4),
    "a list": lambda path: path.write_text("[1, 2]"),
    "null": lambda path: path.write_text("null"),
    "nested": lambda path: path.write_text("[" * 2_000),
    "NaN": lambda path: path.write_text('{"validation": NaN, "id2label": NaN, "step": NaN}'),
    "flipped": invert_bytes,
    "a folder": replace_by_a_folder,
}
TENSORS: dict[str, Callable[[Path], object]] = {"full of NaN": fill_with_nan, "without a tensor": drop_a_tensor}

#: Kind of run -> command -> files that it reads, which may be damaged.
FILES_READ = {
    "classification": {
        "predict": (
            "recipe.yaml",
            "model/config.json",
            "model/model.safetensors",
            "model/tokenizer_config.json",
            "model/tokenizer.json",
            "model/constants.safetensors",
        ),
        "evaluate": ("metrics.json", "evaluation.json", "parity/starts.json", "versions.json"),
        "finetune": (
            "recipe.yaml",
            "versions.json",
            "metrics.jsonl",
            "metrics.csv",
            "parity/starts.json",
            "parity/constants.safetensors",
            "checkpoints/NEWEST/manifest.json",
            "checkpoints/NEWEST/weights.safetensors",
            "checkpoints/NEWEST/optimizer.safetensors",
            "checkpoints/NEWEST/state.json",
            "checkpoints/NEWEST/trainer_state.json",
            "checkpoints/BEST/weights.safetensors",
        ),
    },
    "sentencepiece": {"predict": ("model/spiece.model", "model/tokenizer_config.json")},
    "answers": {"predict": ("model/config.json", "model/model.safetensors")},
    "language": {
        "generate": (
            "metrics.json",
            "model/config.json",
            "model/model.safetensors",
            "model/vocab.json",
            "model/merges.txt",
            "model/tokenizer_config.json",
        )
    },
}
CASES = [
    (kind, command, name, damage)
    for kind, commands in FILES_READ.items()
    for command, names in commands.items()
    for name in names
    for damage in (*DAMAGES, *(TENSORS if name.endswith(".safetensors") else ()))
]
#: The tested cases: enough to include each file and each damage.
TESTED_CASES = some(CASES, 3)
#: Messages about a folder without metrics.json or recipe.yaml.
NO_RUN = (
    ": the run has not finished; resume it: toolkit finetune ",
    ": holds no recipe.yaml, so it is not a run folder",
    " is not empty and holds no run; set train.output_dir to another folder",
)
OPTIONS = {
    ("classification", "predict"): ["--text", "cat dog"],
    ("sentencepiece", "predict"): ["--text", "cat dog"],
    ("answers", "predict"): ["--question", "Which number?", "--context", "CONTEXT"],
    ("language", "generate"): ["--length", "3"],
}


def folder_contents(folder: Path) -> dict[str, bytes | None]:
    """Return the content of every file below a folder, and None for every folder."""
    paths = sorted(folder.rglob("*"))
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in paths}


def copy_run(run: Path, place: Path) -> Path:
    """Copy a run, and change the paths in its recipe to the new folder."""
    shutil.copytree(run, place)
    recipe = place / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace(str(run), str(place)))
    return place


def named_in(folder: Path, name: str) -> str:
    """Return the name of a file, with NEWEST and BEST replaced by the folders of a checkpoint and of weights."""
    for word, pattern in (("NEWEST", "step-*"), ("BEST", "best-*")):
        if word in name:
            name = name.replace(word, max(path.name for path in folder.glob(f"checkpoints/{pattern}")))
    return name


def command_on(kind: str, command: str, folder: Path, own_recipe: Path) -> list[str]:
    if command == "finetune":
        return ["finetune", str(own_recipe), "--skip-parity", "a test"]
    (context := folder.parent / "context.txt").write_text("aa bb 7 cc.")
    options = OPTIONS.get((kind, command), [])
    return [command, str(folder), *(str(context) if word == "CONTEXT" else word for word in options)]


def test_the_tested_cases_include_every_file_and_every_damage():
    for part in range(4):
        assert {case[part] for case in TESTED_CASES} == {case[part] for case in CASES}


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "command", "name", "damage"), TESTED_CASES)
def test_a_damaged_file_is_reported_in_one_line_or_harmless(
    runs, tmp_path, monkeypatch, capfd, kind, command, name, damage
):
    monkeypatch.setenv("TOOLKIT_CACHE", str(runs.folder / "cache"))
    run = (runs.unfinished_run if command == "finetune" else runs.finished_run)(kind)
    folder = copy_run(run, tmp_path / "run")
    # A run resumes with its original recipe, which is compared with the recipe in its folder.
    recipe = shutil.copy(folder / "recipe.yaml", tmp_path / "own.yaml")
    path = folder / named_in(folder, name)
    if not path.exists():
        save_file({"a": np.zeros(1)}, path) if name.endswith(".safetensors") else path.write_text("{}")
    {**DAMAGES, **TENSORS}[damage](path)
    initial_contents = folder_contents(folder)
    capfd.readouterr()
    with pytest.raises(SystemExit) as exit_info:
        cli.main(command_on(kind, command, folder, recipe))
    out, err = capfd.readouterr()
    assert "Traceback" not in out + err
    if exit_info.value.code != 0:
        assert exit_info.value.code == 2, err
        lines = err.splitlines()
        assert all(line.startswith("error: ") for line in lines), err
        assert len(lines) == 1 or name == "recipe.yaml", err  # one line for each error in it
        assert (str(folder) in err and Path(name).name in err) or any(f"{folder}{words}" in err for words in NO_RUN), (
            err
        )
        assert folder_contents(folder) == initial_contents


#: Kind of run -> sizes of its config.json that ask for absurd memory.
ABSURD_SIZES = {
    "classification": (
        {"num_hashes": 10**9},
        {"num_attention_heads": 10**9},
        {"lsh_num_chunks_before": 10**9},
        {"num_buckets": 10**9},
        {"vocab_size": 10**7},
        {"hidden_size": 2 * 10**6, "axial_pos_embds_dim": [10**6, 10**6]},
    ),
    "language": ({"dff": 10**9}, {"n_positions": 10**9}, {"n_layer": 10_000}),
}
WRONG_CALIBRATIONS = ([], "x", None, {"temperature": "a"}, {"temperature": 0}, {"threshold": True})


def changed_run(run: Path, copy: Path, name: str, values: dict) -> Path:
    """Copy a finished run and set keys of one of its JSON files."""
    copy_run(run, copy)
    (copy / name).write_text(json.dumps({**json.loads((copy / name).read_text()), **values}))
    return copy


@pytest.mark.slow
@pytest.mark.parametrize("kind", ABSURD_SIZES)
def test_a_size_that_would_fill_the_memory_is_refused(runs, tmp_path, capfd, kind):
    command = {"classification": ["predict", "--text", "cat dog"], "language": ["generate", "--length", "3"]}[kind]
    for number, sizes in enumerate(ABSURD_SIZES[kind]):
        run = changed_run(runs.finished_run(kind), tmp_path / str(number), "model/config.json", sizes)
        with pytest.raises(SystemExit) as exit_info:
            cli.main([command[0], str(run), *command[1:]])
        error = capfd.readouterr().err
        assert exit_info.value.code == 2 and error.count("\n") == 1 and str(run / "model") in error, (sizes, error)


@pytest.mark.slow
@pytest.mark.parametrize("calibration", WRONG_CALIBRATIONS, ids=str)
def test_a_faulty_calibration_is_reported_in_one_line(runs, tmp_path, capfd, calibration):
    values = {"calibration": calibration}
    run = changed_run(runs.finished_run("classification"), tmp_path / "run", "metrics.json", values)
    with pytest.raises(SystemExit) as exit_info:
        cli.main(["predict", str(run), "--text", "cat dog"])
    error = capfd.readouterr().err
    assert exit_info.value.code == 2 and error.count("\n") == 1 and f"{run / 'metrics.json'}: is damaged" in error, (
        error
    )


@pytest.mark.slow
def test_a_huge_tokenizer_file_is_not_read(runs, tmp_path, capfd):
    run = copy_run(runs.finished_run("sentencepiece"), tmp_path / "run")
    os.truncate(run / "model/spiece.model", 2**33)  # a sparse file, which takes no space on the disk
    with pytest.raises(SystemExit) as exit_info:
        cli.main(["predict", str(run), "--text", "cat dog"])
    error = capfd.readouterr().err
    assert exit_info.value.code == 2 and "spiece.model has 8,589,934,592 bytes; 268,435,456 are the most" in error, (
        error
    )


# -- all files of a run folder
# ------------------------------------------------------------------------------------------

#: Damages of each file and folder of a run; for a folder, "a folder" adds another folder to it.
ANYWHERE = ("nothing", "empty", "random bytes", "a folder", "a link to nothing", "a pipe")
READ_BY = {
    "evaluate": ("evaluate", "RUN"),
    "predict": ("predict", "RUN", "--text", "cat dog"),
    "report": ("report", "RUN"),
    "export": ("export", "RUN", "--format", "hf"),
    "finetune": ("finetune", "RECIPE", "--skip-parity", "a test"),
}
#: Seconds after which a command hangs; each takes one or two.
HANGS = 60


def damage_path(path: Path, name: str) -> None:
    """Damage a file, or a folder with its content."""
    if path.is_file():
        damages.damage(path, name)
    elif name == "a folder":
        (path / "foreign").mkdir()
    else:
        shutil.rmtree(path)
        if name == "empty":
            path.mkdir()
        elif name != "nothing":
            path.touch()
            damages.damage(path, name) if name in damages.REPLACEMENTS else path.write_bytes(b"\x80" * 99)


def raise_timeout(number: int, frame: object) -> None:
    raise AssertionError("it hangs")


@pytest.mark.slow
@pytest.mark.parametrize("command", READ_BY)
@pytest.mark.parametrize("name", ANYWHERE)
def test_any_damage_of_a_run_folder_is_reported_in_one_line_or_harmless(
    runs, tmp_path, monkeypatch, capfd, command, name
):
    """Test one damage of each file with each command, and all damages in a soak."""
    monkeypatch.setenv("TOOLKIT_CACHE", str(runs.folder / "cache"))
    run = (runs.unfinished_run if command == "finetune" else runs.finished_run)("classification")
    file_paths = sorted(path.relative_to(run) for path in run.rglob("*"))
    previous_handler = signal.signal(signal.SIGALRM, raise_timeout)
    try:
        for relative in some(file_paths[0 if WHOLE else ANYWHERE.index(name) :], len(ANYWHERE)):
            folder = copy_run(run, tmp_path / "run")
            places = {"RUN": str(folder), "RECIPE": str(shutil.copy(folder / "recipe.yaml", tmp_path / "own.yaml"))}
            damage_path(folder / relative, name)
            capfd.readouterr()
            signal.alarm(HANGS)
            with pytest.raises(SystemExit) as exit_info:
                cli.main([places.get(word, word) for word in READ_BY[command]])
            signal.alarm(0)
            out, err = capfd.readouterr()
            assert "raceback" not in out + err, (relative, err)
            lines = 2 if relative.name == "recipe.yaml" else 1  # one line for each missing key
            assert exit_info.value.code == 0 or (exit_info.value.code == 2 and 1 <= err.count("\n") <= lines), (
                relative,
                err,
            )
            shutil.rmtree(folder)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous_handler)
