"""`toolkit export RUN --format FORMAT`: make it, compare it with the port, and only then move it to its place."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from models import families
from models.files.plain import read_object
from toolkit.commands.predict import MODEL_REMEDY, load_model, load_run, read_recipe
from toolkit.errors import ParityDrift, UserError
from toolkit.files.lossless import move_to_free_name, remove_empty_folders
from toolkit.files.strict_json import dumps
from toolkit.files.whole import files_in, write_text
from toolkit.finetune.card import with_model
from toolkit.machine import runtime
from toolkit.machine.disk import check_writable, writing
from toolkit.machine.scratch import scratch_folder
from toolkit.recipe.revisions import recorded_commits
from toolkit.run_folder.read import reading
from toolkit.tasks.classification.calibration import logits_note
from toolkit.terminal.quiet import silence_startup

if TYPE_CHECKING:
    from toolkit.commands.export.check import Difference
    from toolkit.tasks.interface import Run

#: Describes an exported folder and lists its files. A folder that holds these files and nothing else may be
#: replaced.
ABOUT = "export.json"
FORMATS = ("hf", "paddle", "onnx")
#: Files of `model/` that hold weights: the other formats have their own.
WEIGHTS = ("model*.safetensors", "model.safetensors.index.json", "constants.safetensors")


def export_run(folder: Path, form: str, output: Path | None, overwrite: bool, console: Console) -> Path:
    """Export the best model of a run; return the folder.

    Args:
        output: a folder to make; by default ``export/FORMAT`` in the run folder.

    Raises:
        UserError: the folder is no finished run, or the output is taken.
        ParityDrift: the exported model does not give the port's logits. Nothing is left of it.
    """
    recipe = read_recipe(folder)
    target = folder / "export" / form if output is None else output
    _check_target(target, overwrite)
    silence_startup()
    runtime.configure("cpu", recipe.runtime.threads)  # before anything imports Paddle
    if form == "onnx":
        from toolkit.commands.export.onnx_file import check_installed

        check_installed()
    recipe.found.commits.update(recorded_commits(folder))

    from toolkit.commands.export.inputs import batches, load_rows

    splits = load_rows(recipe)
    run = load_run(folder)
    inputs, of = batches(run, splits)
    with writing(target, resumes=False), _made_beside(target) as (made, scratch):
        difference, about = _export(run, form, made, scratch, inputs)
        _say(console, target, difference, of)
        if form == "hf" and (line := logits_note(run.calibration)):
            console.print(f"note: {line}", highlight=False, soft_wrap=True)
        if not difference.within:
            raise ParityDrift(f"{target}: not written: the exported model does not give the port's logits")
        comparison = {"compared_with_the_port": {"on": of, **asdict(difference)}}
        files = {"files": sorted(files_in(made))}
        write_text(made / ABOUT, dumps({**_about(run, form), **about, **comparison, **files}, indent=1) + "\n")
        _check_target(target, overwrite)  # the export took time
        _put(made, target, scratch)
    return target


def _export(
    run: Run, form: str, made: Path, scratch: Path, inputs: list[dict[str, Any]]
) -> tuple[Difference, dict[str, Any]]:
    """Write the model into ``made``; return its difference from the port, and facts about its format."""
    import paddle

    from toolkit.commands.export.check import compare, port_logits
    from toolkit.commands.export.graph import INPUTS, OUTPUTS, Exported, run_graph, save_graph
    from toolkit.commands.export.rotations import draw

    paddle.set_device("cpu")  # graphs are compared there, whatever the run was on
    run.model.to(device="cpu")
    stored = run.folder / "model"
    first = {name: paddle.to_tensor(inputs[0][name]) for name in INPUTS}
    rotations = draw(run.model, first, run.recipe.seed)
    wide = load_model(run.recipe, stored).to(dtype="float64")
    wide.eval()
    port = port_logits(run.model, wide, rotations, inputs)
    about: dict[str, Any] = {}
    if rotations:
        seed_key = families.family(run.recipe.model.name).seed_key
        about["lsh_rotations"] = (
            f"{len(rotations)} layers': constants of the graph, those of toolkit predict "
            f"({'drawn by the seed of the run' if getattr(run.model.config, seed_key, None) is None else seed_key})"
        )
    outputs = list(OUTPUTS[run.model.head])
    if form == "hf":
        _copy(run.folder, made)
        if rotations:
            about["lsh_rotations"] = "not stored: whoever loads the model draws them"
        copied = port_logits(load_model(run.recipe, made), wide, rotations, inputs)
        return compare(port, [copied.float32]), {**about, "outputs": outputs}
    for path in stored.iterdir():
        if not any(path.match(pattern) for pattern in WEIGHTS):
            shutil.copy(path, made)
    graph = made if form == "paddle" else scratch / "graph"
    graph.mkdir(exist_ok=True)
    temperature = run.calibration.get("temperature", 1.0)
    save_graph(Exported(run.model, rotations, temperature), run.length, graph)
    port = port.divided_by(temperature)
    if form == "paddle":
        about["paddle_inference"] = "as it was compared: paddle.inference.Config, disable_mkldnn() on a CPU"
        return compare(port, run_graph(made, inputs)), {**about, "outputs": outputs}
    from toolkit.commands.export.onnx_file import OPSET, convert, output_names, run_onnx

    convert(graph, made)
    named = dict(zip(output_names(made), outputs, strict=True))
    return compare(port, run_onnx(made, inputs)), {**about, "opset": OPSET, "outputs": named}


def _copy(folder: Path, made: Path) -> None:
    """Copy `model/` as it is, and the card, made to name this folder in place of that one."""
    with reading(folder / "model", MODEL_REMEDY):
        shutil.copytree(folder / "model", made, dirs_exist_ok=True)
    if (card := folder / "README.md").is_file():
        with reading(card, "remove it"):
            write_text(made / "README.md", with_model(card.read_text(encoding="utf-8"), "."))


def _about(run: Run, form: str) -> dict[str, Any]:
    """Return what a user of the folder alone needs."""
    from toolkit.commands.export.graph import INPUTS

    length = "any" if form == "hf" else run.length
    reading = "mean_of_windows_of" if run.recipe.data.long_texts == "windows" else "text_cut_to"
    return {
        "format": form,
        "run": run.folder.resolve().name,
        "task": run.recipe.task,
        "inputs": {name: {"dtype": "int64", "shape": ["batch", length]} for name in INPUTS},
        "padding": {
            "to": run.length,
            "side": "right",
            "input_ids": run.tokenizer.pad_token_id,
            "attention_mask": 0,
            reading: run.recipe.data.max_length,
        },
        "label_names": run.label_names,
        "calibration": _calibration(run, form),
        "versions": runtime.versions(),
    }


def _calibration(run: Run, form: str) -> dict[str, float]:
    """Return the temperature that the logits are still to be divided by, and the threshold of several labels.

    A graph divides its logits itself, by the ``divided_by`` that is recorded. The weights for transformers are as they
    were trained.
    """
    calibration = {name: run.calibration[name] for name in ("temperature", "threshold") if name in run.calibration}
    if "temperature" in calibration and form != "hf":
        calibration |= {"temperature": 1.0, "divided_by": calibration["temperature"]}
    return calibration


def _say(console: Console, target: Path, difference: Difference, of: str) -> None:
    verdict = "within" if difference.within else "BEYOND"
    left = f" ({difference.left_out} left out: rounding decides about an LSH bucket)" if difference.left_out else ""
    max_error = f"{difference.max:.1e} (bound {difference.max_bound:.1e})"
    rms_error = f"{difference.rms:.1e} (bound {difference.rms_bound:.1e})"
    console.print(
        f"{target}: on {difference.texts} texts of the {of}{left}, the exported logits differ from the port's by at "
        f"most {max_error}, RMS {rms_error} of {difference.logits_rms:.2g}: {verdict} float32's rounding",
        soft_wrap=True,
    )


# -- where it goes ----------------------------------------------------------------------------------------------------


def _check_target(target: Path, overwrite: bool) -> None:
    if refused := check_writable(target.absolute().parent):
        raise UserError(f"--output {target}: {target.absolute().parent}: {refused}")
    if not os.path.lexists(target):
        return
    about = _said_in(target)
    if about is None:
        raise UserError(f"--output {target}: exists and is not an export; name another folder")
    if not overwrite:
        raise UserError(f"--output {target}: exists; add --overwrite, or name another folder")
    if "files" not in about:
        raise UserError(
            f"--output {target}: {ABOUT} does not list the export's files; remove it, or name another folder"
        )
    if extra := sorted(files_in(target) - {ABOUT, *map(str, about["files"])}):
        raise UserError(f"--output {target}: holds {extra[0]}, which is not part of the export; name another folder")


def _said_in(target: Path) -> dict[str, Any] | None:
    """Return an exported folder's description; None if it is no export."""
    if target.is_symlink():
        return None
    try:
        about = read_object(target / ABOUT)
    except (OSError, ValueError):
        return None
    return about if about.get("format") in FORMATS and isinstance(about.get("files", []), list) else None


@contextmanager
def _made_beside(target: Path) -> Iterator[tuple[Path, Path]]:
    """Make a folder to fill and one for temporary files, on the disk of ``target``; remove both afterwards."""
    parent = target.absolute().parent
    new = [place for place in (parent, *parent.parents) if not place.exists()]
    parent.mkdir(parents=True, exist_ok=True)
    try:
        with scratch_folder(".export-", beside=parent) as scratch:
            (scratch / "made").mkdir()
            yield scratch / "made", scratch
    finally:
        remove_empty_folders(new)


def _put(made: Path, target: Path, scratch: Path) -> None:
    if target.exists():
        move_to_free_name(target, scratch / "replaced")
    move_to_free_name(made, target)
