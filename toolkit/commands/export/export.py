"""`toolkit export RUN --format FORMAT`: convert the model, compare it with the port, then move it to its place."""

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
from models.files.plain import plain_file, read_object
from toolkit.commands.predict import MODEL_REMEDY, load_model, load_run, read_recipe
from toolkit.errors import ParityDrift, UserError
from toolkit.files.lossless import move_to_free_name, remove_empty_folders
from toolkit.files.strict_json import dumps
from toolkit.files.whole import list_files, write_text
from toolkit.finetune.card import with_model
from toolkit.machine import runtime
from toolkit.machine.disk import explain_write_errors, find_write_obstacle
from toolkit.machine.scratch import scratch_folder
from toolkit.recipe.revisions import recorded_commits
from toolkit.run_folder.read import reading
from toolkit.tasks.classification.calibration import logits_note
from toolkit.terminal.quiet import silence_startup

if TYPE_CHECKING:
    from toolkit.commands.export.check import Difference
    from toolkit.tasks.interface import Run

#: Name of the file that describes an exported folder and lists its files. A folder that holds only these files may be
#: replaced.
DESCRIPTION_FILE = "export.json"
FORMATS = ("hf", "paddle", "onnx")
#: Patterns of the weight files in `model/`. Formats other than ``hf`` store the weights in other files.
WEIGHT_PATTERNS = ("model*.safetensors", "model.safetensors.index.json", "constants.safetensors")


def export_run(folder: Path, format_name: str, output: Path | None, console: Console, *, overwrite: bool) -> Path:
    """Export the best model of a run, and return the folder of the export.

    Args:
        folder: folder of a finished run.
        format_name: format, one of :data:`FORMATS`.
        output: folder to create; None for ``export/FORMAT`` in the run folder.
        overwrite: whether an earlier export may be replaced.
        console: console for the result of the comparison.

    Raises:
        UserError: the folder is not a finished run, or the output folder is occupied.
        ParityDrift: the exported model does not give the port's logits; it is not written.
    """
    recipe = read_recipe(folder)
    target = folder / "export" / format_name if output is None else output
    _check_target(target, overwrite=overwrite)
    silence_startup()
    runtime.configure_paddle("cpu", recipe.runtime.threads)  # before anything imports Paddle
    if format_name == "onnx":
        from toolkit.commands.export.onnx_file import check_installed

        check_installed()
    recipe.findings.commits.update(recorded_commits(folder))

    from toolkit.commands.export.inputs import load_rows, make_batches

    splits = load_rows(recipe)
    run = load_run(folder)
    inputs, source = make_batches(run, splits)
    with explain_write_errors(target, resumes=False), _folders_beside(target) as (export_dir, scratch):
        difference, format_facts = _export_model(run, format_name, export_dir, scratch, inputs)
        _print_difference(console, target, difference, source)
        if format_name == "hf" and (calibration_note := logits_note(run.calibration)):
            console.print(f"note: {calibration_note}", highlight=False, soft_wrap=True)
        if not difference.is_within_bounds:
            raise ParityDrift(f"{target}: not written: the exported model does not give the port's logits")
        comparison = {"compared_with_the_port": {"on": source, **asdict(difference)}}
        files = {"files": sorted(list_files(export_dir))}
        write_text(
            export_dir / DESCRIPTION_FILE,
            dumps({**_describe_export(run, format_name), **format_facts, **comparison, **files}, indent=1) + "\n",
        )
        _check_target(target, overwrite=overwrite)  # the export took time
        _move_to_target(export_dir, target, scratch)
    return target


def _export_model(
    run: Run, format_name: str, export_dir: Path, scratch: Path, inputs: list[dict[str, Any]]
) -> tuple[Difference, dict[str, Any]]:
    """Write the exported model, and return its difference from the port and facts about its format.

    Args:
        run: finished run.
        format_name: format, one of :data:`FORMATS`.
        export_dir: folder to fill.
        scratch: folder for temporary files.
        inputs: int64 arrays (B, T) by input name, for each batch.
    """
    import paddle

    from toolkit.commands.export.check import compare_logits, compute_port_logits
    from toolkit.commands.export.graph import INPUTS, OUTPUTS, ExportedModel, run_graph, save_graph
    from toolkit.commands.export.rotations import draw_rotations

    paddle.set_device("cpu")  # graphs are compared there, whatever the run was on
    run.model.to(device="cpu")
    model_dir = run.folder / "model"
    first_batch = {name: paddle.to_tensor(inputs[0][name]) for name in INPUTS}
    rotations = draw_rotations(run.model, first_batch, run.recipe.seed)
    float64_model = load_model(run.recipe, model_dir).to(dtype="float64")
    float64_model.eval()
    logits_of_port = compute_port_logits(run.model, float64_model, rotations, inputs)
    facts: dict[str, Any] = {}
    if rotations:
        seed_key = families.family(run.recipe.model.name).seed_key
        facts["lsh_rotations"] = (
            f"{len(rotations)} layers': constants of the graph, those of toolkit predict "
            f"({'drawn by the seed of the run' if getattr(run.model.config, seed_key, None) is None else seed_key})"
        )
    outputs = list(OUTPUTS[run.model.head])
    if format_name == "hf":
        _copy_model(run.folder, export_dir)
        if rotations:
            facts["lsh_rotations"] = "not stored: whoever loads the model draws them"
        copied_logits = compute_port_logits(load_model(run.recipe, export_dir), float64_model, rotations, inputs)
        return compare_logits(logits_of_port, [copied_logits.float32]), {**facts, "outputs": outputs}
    with reading(model_dir, MODEL_REMEDY):
        for path in model_dir.iterdir():
            if not path.is_dir() and not any(path.match(pattern) for pattern in WEIGHT_PATTERNS):
                shutil.copy(plain_file(path), export_dir)
    graph = export_dir if format_name == "paddle" else scratch / "graph"
    graph.mkdir(exist_ok=True)
    temperature = run.calibration.get("temperature", 1.0)
    save_graph(ExportedModel(run.model, rotations, temperature), run.length, graph)
    logits_of_port = logits_of_port.divided_by(temperature)
    if format_name == "paddle":
        facts["paddle_inference"] = "as it was compared: paddle.inference.Config, disable_mkldnn() on a CPU"
        return compare_logits(logits_of_port, run_graph(export_dir, inputs)), {**facts, "outputs": outputs}
    from toolkit.commands.export.onnx_file import OPSET, convert_to_onnx, output_names, run_onnx

    convert_to_onnx(graph, export_dir)
    named_outputs = dict(zip(output_names(export_dir), outputs, strict=True))
    return compare_logits(logits_of_port, run_onnx(export_dir, inputs)), {
        **facts,
        "opset": OPSET,
        "outputs": named_outputs,
    }


def _copy_model(folder: Path, export_dir: Path) -> None:
    """Copy the run's `model/` and its card into a folder; the card then names this folder instead of the run."""
    with reading(folder / "model", MODEL_REMEDY):
        shutil.copytree(folder / "model", export_dir, copy_function=_copy_plain_file, dirs_exist_ok=True)
    if (card := folder / "README.md").is_file():
        with reading(card, "remove it"):
            write_text(export_dir / "README.md", with_model(card.read_text(encoding="utf-8"), "."))


def _copy_plain_file(source_path: str, target_path: str) -> None:
    """Copy a regular file. Raises UnreadableFileError for others: the content of a device may never end."""
    shutil.copy(plain_file(source_path), target_path)


def _describe_export(run: Run, format_name: str) -> dict[str, Any]:
    """Return the facts that a user of the export needs: inputs, padding, labels, calibration and versions.

    Args:
        run: trained run.
        format_name: format of the export.
    """
    from toolkit.commands.export.graph import INPUTS

    length = "any" if format_name == "hf" else run.length
    length_key = "mean_of_windows_of" if run.recipe.data.long_texts == "windows" else "text_cut_to"
    return {
        "format": format_name,
        "run": run.folder.resolve().name,
        "task": run.recipe.task,
        "inputs": {name: {"dtype": "int64", "shape": ["batch", length]} for name in INPUTS},
        "padding": {
            "to": run.length,
            "side": "right",
            "input_ids": run.tokenizer.pad_token_id,
            "attention_mask": 0,
            length_key: run.recipe.data.max_length,
        },
        "label_names": run.label_names,
        "calibration": _calibration(run, format_name),
        "versions": runtime.installed_versions(),
    }


def _calibration(run: Run, format_name: str) -> dict[str, float]:
    """Return the temperature for the exported logits, and the threshold of multi-label predictions.

    A user must divide the logits by ``temperature``. A graph already divides its logits, so its ``temperature`` is 1
    and ``divided_by`` records the divisor. The weights for transformers are as they were trained.

    Args:
        run: trained run.
        format_name: format of the export.
    """
    calibration = {name: run.calibration[name] for name in ("temperature", "threshold") if name in run.calibration}
    if "temperature" in calibration and format_name != "hf":
        calibration |= {"temperature": 1.0, "divided_by": calibration["temperature"]}
    return calibration


def _print_difference(console: Console, target: Path, difference: Difference, source: str) -> None:
    """Print by how much the exported logits differ from the port's logits.

    Args:
        console: console to print on.
        target: folder or file of the export.
        difference: measured differences and their bounds.
        source: name of the texts' source, such as a split.
    """
    verdict = "within" if difference.is_within_bounds else "BEYOND"
    left_out = f" ({difference.left_out} left out: rounding decides about an LSH bucket)" if difference.left_out else ""
    max_error = f"{difference.max:.1e} (bound {difference.max_bound:.1e})"
    rms_error = f"{difference.rms:.1e} (bound {difference.rms_bound:.1e})"
    console.print(
        f"{target}: on {difference.texts} texts of the {source}{left_out}, the exported logits differ from the port's "
        f"by at most {max_error}, RMS {rms_error} of {difference.logits_rms:.2g}: {verdict} float32's rounding",
        soft_wrap=True,
    )


# -- the output folder -------------------------------------------------------------------------------------------------


def _check_target(target: Path, *, overwrite: bool) -> None:
    """Check that an export can be written to ``target``.

    Args:
        target: folder of the export.
        overwrite: whether an existing export may be replaced.
    """
    if obstacle := find_write_obstacle(target.absolute().parent):
        raise UserError(f"--output {target}: {target.absolute().parent}: {obstacle}")
    if not os.path.lexists(target):
        return
    description = _read_description(target)
    if description is None:
        raise UserError(f"--output {target}: exists and is not an export; name another folder")
    if not overwrite:
        raise UserError(f"--output {target}: exists; add --overwrite, or name another folder")
    if "files" not in description:
        raise UserError(
            f"--output {target}: {DESCRIPTION_FILE} does not list the export's files; remove it, or name another folder"
        )
    if extra_files := sorted(list_files(target) - {DESCRIPTION_FILE, *map(str, description["files"])}):
        raise UserError(
            f"--output {target}: holds {extra_files[0]}, which is not part of the export; name another folder"
        )


def _read_description(target: Path) -> dict[str, Any] | None:
    """Return the description of an exported folder; None if the folder is not an export."""
    if target.is_symlink():
        return None
    try:
        description = read_object(target / DESCRIPTION_FILE)
    except (OSError, ValueError):
        return None
    return (
        description if description.get("format") in FORMATS and isinstance(description.get("files", []), list) else None
    )


@contextmanager
def _folders_beside(target: Path) -> Iterator[tuple[Path, Path]]:
    """Create a folder to fill and a folder for temporary files, and remove both after the ``with`` block.

    They are on the same disk as ``target``, so that moving the result is atomic.
    """
    parent = target.absolute().parent
    new_folders = [path for path in (parent, *parent.parents) if not path.exists()]
    parent.mkdir(parents=True, exist_ok=True)
    try:
        with scratch_folder(".export-", parent_folder=parent) as scratch:
            (scratch / "made").mkdir()
            yield scratch / "made", scratch
    finally:
        remove_empty_folders(new_folders)


def _move_to_target(export_dir: Path, target: Path, scratch: Path) -> None:
    """Move the finished export to its target, and move an existing export into the scratch folder first."""
    if target.exists():
        move_to_free_name(target, scratch / "replaced")
    move_to_free_name(export_dir, target)
