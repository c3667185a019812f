"""Write the model card: the parts and metrics of a run, and how to load its model. `card.md.jinja` is its template."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models import families
from toolkit.files.whole import write_text
from toolkit.finetune.baselines import compare_with_baselines
from toolkit.machine import runtime
from toolkit.pages.elements import render_page
from toolkit.run_folder.folder import read_starts, steps_of
from toolkit.run_folder.predictions import SPLITS
from toolkit.tasks.classification.calibration import describe_calibration
from toolkit.tasks.interface import Run
from toolkit.tasks.metrics import COUNTS
from toolkit.terminal.escape import markdown, one_line

if TYPE_CHECKING:
    from huggingface_hub import EvalResult

#: The hub's names of metrics that are called otherwise here. The perplexity of a control code is perplexity.
METRIC_TYPES = {
    "macro_f1": "f1",
    "micro_f1": "f1",
    "subset_accuracy": "accuracy",
    "pearson": "pearsonr",
    "spearman": "spearmanr",
    **dict.fromkeys(("exact_match", "HasAns_exact", "NoAns_exact"), "exact_match"),
    **dict.fromkeys(("HasAns_f1", "NoAns_f1"), "f1"),
}


def write_card(run: Run, results: dict[str, Any]) -> None:
    """Write `README.md` into a run folder, with the header that the Hugging Face hub reads.

    Args:
        run: the finished run; `parity/` in its folder tells the verdict.
        results: the content of metrics.json.
    """
    folder, recipe, task = run.folder, run.recipe, run.task.DESCRIPTION
    splits = [name for name in ("validation", "test") if name in results]
    rows: list[tuple[str, Any]] = [(split_name, results[split_name]) for split_name in splits]
    rows += [
        (f"{split_name}, {markdown(method)}", metrics[split_name])
        for method, metrics in results.get("baselines", {}).items()
        for split_name in splits
        if split_name in metrics
    ]
    cut = "" if recipe.data.max_length == run.length else f"cut to {recipe.data.max_length} tokens, "
    card = render_page(
        "finetune/card.md.jinja",
        run=run,
        recipe=recipe,
        task=task,
        results=results,
        header=_header(run, results),
        family_title=families.family(recipe.model.name).title,
        metrics=list(dict.fromkeys(name for split_name in splits for name in results[split_name])),
        rows=rows,
        counts=COUNTS,
        comparison=compare_with_baselines(results, run.task.LOWER_IS_BETTER),
        calibration=describe_calibration(results.get("calibration", {})),
        files=[Path(path).name for path in recipe.data.paths],
        parity=parity_statement(read_starts(folder)),
        model_path=json.dumps((folder / "model").as_posix(), ensure_ascii=False),
        tokenizer_note=run.tokenizer.usage_note.format(cut=cut, length=run.length),
        has_control_codes=hasattr(run.tokenizer, "control_code"),
        commands=[task.command(folder.as_posix(), recipe), f"toolkit evaluate {shlex.quote(folder.as_posix())}"],
        early_end=describe_early_end(results["training"]),
        versions=runtime.installed_versions(),
    )
    write_text(folder / "README.md", card)


def with_model(card: str, model: str) -> str:
    """Return a run's card whose code loads ``model``, a folder or a hub repository, instead of the run's model."""
    loading_pattern = re.compile(r'((?:from_pretrained\(|pipeline\("[a-z-]+", ))"(?:[^"\\\n]|\\.)*"')
    return loading_pattern.sub(lambda found: found[1] + json.dumps(model, ensure_ascii=False), card)


def parity_statement(starts: Sequence[Mapping[str, Any]]) -> str:
    """Return a sentence that names the steps before which the gate passed or was skipped, and why.

    Args:
        starts: starts of the run (:func:`toolkit.run_folder.folder.read_starts`).
    """
    passed_starts = [start for start in starts if start["skipped"] is None]
    sentences = [
        f"**The parity gate was skipped** before {steps_of(starts, start)}: {markdown(start['skipped'])}. "
        "Nothing shows that this port equalled the reference."
        for start in starts
        if start["skipped"] is not None
    ]
    if passed_starts:
        before = (
            "training"
            if passed_starts == list(starts)
            else " and ".join(steps_of(starts, start) for start in passed_starts)
        )
        sentences.append(
            f"The parity gate passed before {before}: on this model and training examples of this "
            "data, the port gave the outputs, loss and gradients of the PyTorch reference (Hugging Face transformers), "
            f"within the bounds of rounding ({markdown(passed_starts[-1]['passed'])}). The measurements are in "
            "`parity/parity.json`."
        )
    return " ".join(sentences)


def _header(run: Run, results: Mapping[str, Any]) -> str:
    """Return the card's metadata for the hub as YAML: base model, data and metrics (``model-index``).

    The recipe's section ``card`` gives license and language.

    Args:
        run: trained run.
        results: content of ``metrics.json``.
    """
    from huggingface_hub import ModelCardData

    recipe, task = run.recipe, run.task.DESCRIPTION
    data = ModelCardData(
        base_model=recipe.model.weights,
        datasets=[recipe.hub_dataset] if recipe.hub_dataset else None,
        eval_results=_evaluations(run, results),
        language=recipe.card.language,
        license=recipe.card.license,
        library_name="transformers",
        metrics=["mse", "mae"] if recipe.data.problem_type == "regression" else list(task.metrics),
        model_name=one_line(run.folder.resolve().name),
        pipeline_tag=task.pipeline_tag,
        tags=[recipe.model.name, "paddle"],
    )
    return data.to_yaml()


def _evaluations(run: Run, results: Mapping[str, Any]) -> list[EvalResult]:
    """The best model's finite metrics on each split, in the hub's words.

    Args:
        run: trained run.
        results: content of ``metrics.json``.
    """
    from huggingface_hub import EvalResult

    recipe, task = run.recipe, run.task.DESCRIPTION
    kind = recipe.data.dataset
    files = ", ".join(Path(path).name for path in recipe.data.paths)
    return [
        EvalResult(
            task_type=task.pipeline_tag,
            task_name=task.name,
            dataset_type=one_line(kind),
            dataset_name=one_line(files or kind),
            dataset_config=recipe.data.config,
            dataset_revision=recipe.findings.commits.get("data"),
            dataset_split=split_name,
            metric_type=METRIC_TYPES.get(metric, metric.partition("_")[0]),
            metric_name=one_line(metric),
            metric_value=value,
        )
        for split_name in SPLITS
        if split_name in results
        for metric, value in results[split_name].items()
        if metric not in COUNTS and value is not None and math.isfinite(value)
    ]


def describe_early_end(training_facts: Mapping[str, Any]) -> str:
    """Return how a run ended before its last step; empty if it ended there.

    Args:
        training_facts: ``training`` of metrics.json. Earlier versions wrote no ``finished_early``.
    """
    if training_facts.get("finished_early"):
        return f", finished early at step {training_facts['steps']:,} of {training_facts['schedule']['max_steps']:,}"
    return ", stopped early" if training_facts["stopped_early"] else ""
