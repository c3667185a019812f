"""Write the model card: the parts and metrics of a run, and how to load its model."""

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
from toolkit.recipe.recipe import Recipe
from toolkit.run_folder.folder import read_starts, steps_of
from toolkit.run_folder.predictions import SPLITS
from toolkit.tasks.classification.calibration import describe_calibration
from toolkit.tasks.interface import Description, Run
from toolkit.tasks.metrics import COUNTS
from toolkit.terminal.escape import markdown, markdown_code, one_line, visible

if TYPE_CHECKING:
    from huggingface_hub import EvalResult

#: Labels beyond this many are counted, not listed.
LISTED_LABELS = 60

#: Optimizers by ``train.optimizer``.
OPTIMIZERS = {"adamw": "AdamW", "lion": "Lion", "sgd": "SGD", "adafactor": "Adafactor"}

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

LOAD = """\
```python
from transformers import AutoTokenizer, {auto_class}

tokenizer = AutoTokenizer.from_pretrained({model}{slow})
model = {auto_class}.from_pretrained({model})
```
"""

#: By the hub's name of a task: how `transformers` does what `toolkit predict` or `toolkit generate` does.
PIPELINES = {
    "text-classification": """\
```python
from transformers import pipeline

classify = pipeline("text-classification", {model}{slow})
classify(text, padding="max_length", truncation=True)  # {kept} tokens, as in training
```
""",
    "question-answering": """\
```python
from transformers import pipeline

answer = pipeline("question-answering", {model})  # transformers 4; version 5 has no such pipeline
windows = {{"max_seq_len": {kept}, "doc_stride": {stride}, "max_answer_len": {longest}, "padding": "max_length"}}
answer(question=question, context=context, **windows)
```
""",
    "text-generation": """\
```python
from transformers import pipeline

generate = pipeline("text-generation", {model}{slow})
generate(prompt, do_sample=False{most})  # {prompt}
```
""",
    "token-classification": """\
`transformers` has no token classifier of this family, so that is the body alone. Its head is a linear layer, and a
word's tag that of its first token:

```python
from safetensors.torch import load_file
from torch.nn.functional import linear
from transformers.utils import cached_file

head = load_file(cached_file(model.name_or_path, "model.safetensors"))
inputs = tokenizer(text, padding="max_length", truncation=True, max_length={kept}, return_tensors="pt")
logits = linear(model(**inputs).last_hidden_state, head["classifier.weight"], head["classifier.bias"])
```
""",
    "fill-mask": "In place of a masked token give the id {mask}, which no text has: the tokenizer has no mask token.\n",
}

#: The same for probabilities, of a classifier whose logits are calibrated.
CALIBRATION_TEXT = """\
These probabilities are those of the logits as they were trained. `toolkit predict` divides the logits by a temperature
that fits the validation split:

```python
inputs = tokenizer(text, padding="max_length", truncation=True, return_tensors="pt")
probabilities = (model(**inputs).logits / {temperature}).{function}
```
"""

#: The same for a longer text, of a classifier that reads it whole.
IN_WINDOWS = """\
A longer text is read in windows of at most {kept} tokens, all about as long; their logits are averaged:

```python
import numpy

ids = tokenizer(text)["input_ids"]
windows = [part.tolist() for part in numpy.array_split(ids, max(1, -(-len(ids) // {kept})))]
inputs = tokenizer.pad({{"input_ids": windows}}, padding="max_length", max_length={length}, return_tensors="pt")
logits = model(**inputs).logits.mean(0)
```
"""


def write_card(run: Run, results: dict[str, Any]) -> None:
    """Write `README.md` into a run folder, with the header that the Hugging Face hub reads.

    Args:
        run: the finished run; `parity/` in its folder tells the verdict.
        results: the content of metrics.json.
    """
    folder, recipe, task = run.folder, run.recipe, run.task.DESCRIPTION
    commands = (task.command(folder.as_posix(), recipe), f"toolkit evaluate {shlex.quote(folder.as_posix())}")
    sections = (
        _header(run, results),
        f"# {markdown(folder.name)}\n",
        _what(recipe, task, results),
        "## Results\n",
        _results(results, run.task.LOWER_IS_BETTER),
        "## Data\n",
        _data(recipe, task, run.label_names, results),
        "## Parity with the reference\n",
        parity_statement(read_starts(folder)) + "\n",
        "## How to load it\n",
        *_loading(run),
        f"Or here: {', '.join(map(markdown_code, commands))}.\n",
        "## Training\n",
        _training(recipe, task, results),
        "## Versions\n",
        "".join(f"- {name} {version}\n" for name, version in runtime.installed_versions().items()),
    )
    write_text(folder / "README.md", visible("\n".join(sections)))


def with_model(card: str, model: str) -> str:
    """A run's card with code that loads ``model``, a folder or a hub repository, not the run's own."""
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
    """Return the card's header for the hub: the model's origin and its metrics (``model-index``).

    License and language are from the recipe (``card``).

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
    return f"---\n{data.to_yaml()}\n---\n"


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
            dataset_revision=recipe.found.commits.get("data"),
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


def _what(recipe: Recipe, task: Description, results: dict[str, Any]) -> str:
    """Return the model card's paragraph about the model: family, task, size and initial weights."""
    start = f"starting from {markdown_code(recipe.model.weights)}" if recipe.model.weights else "from new weights"
    start += _commit(recipe, "model")
    title = families.family(recipe.model.name).title
    return (
        f"A {title} for {task.name} with {results['parameters']:,} parameters, trained {start} "
        f"with Paddle and saved in the layout of Hugging Face transformers.\n"
    )


def _commit(recipe: Recipe, section: str) -> str:
    """The commit of a section's hub repository."""
    commit = recipe.found.commits.get(section)
    return f" at commit {markdown_code(commit)}" if commit else ""


def _results(results: dict[str, Any], lower_is_better: Mapping[str, bool]) -> str:
    """Return the model card's table of metrics, and sentences on the best step, baselines and calibration.

    Args:
        results: content of ``metrics.json``.
        lower_is_better: whether a lower value of a metric is better, by metric.
    """
    splits = [name for name in ("validation", "test") if name in results]
    names = list(dict.fromkeys(name for split_name in splits for name in results[split_name]))
    lines = [f"| split | {' | '.join(map(markdown, names))} |", f"| --- | {' | '.join('---:' for _ in names)} |"]
    lines += [
        f"| {split_name} | {' | '.join(_metric(name, results[split_name]) for name in names)} |"
        for split_name in splits
    ]
    best = results["best"]
    lines += [
        f"| {split_name}, {markdown(method)} | {' | '.join(_metric(name, numbers[split_name]) for name in names)} |"
        for method, numbers in results.get("baselines", {}).items()
        for split_name in splits
        if split_name in numbers
    ]
    comparison = compare_with_baselines(results, lower_is_better)
    baseline = f" Beside a simple method: {markdown(str(comparison))}." if comparison else ""
    calibration_text = describe_calibration(results.get("calibration", {}))
    calibration = (
        f" Where `toolkit predict` makes probabilities, {markdown(calibration_text)}." if calibration_text else ""
    )
    best_note = f"The weights are those of step {best['step']}, the best validation {best['metric']}."
    return "\n".join(lines) + f"\n\n{best_note}{baseline}{calibration}\n"


def _metric(name: str, metrics: Mapping[str, float | None]) -> str:
    """A metric of a split; nothing where the split lacks it, such as questions without an answer."""
    if name not in metrics:
        return ""
    value = metrics[name]
    return f"{value:,.0f}" if name in COUNTS and value is not None else _figure(value)


def _data(recipe: Recipe, task: Description, label_names: Sequence[str] | None, results: dict[str, Any]) -> str:
    """Return the model card's paragraph about the data and the labels.

    Args:
        recipe: recipe of the run.
        task: description of the task.
        label_names: names of the labels, in the order of the ids; None if the task has none.
        results: content of ``metrics.json``.
    """
    files = [Path(path).name for path in recipe.data.paths]
    file_names = f" ({', '.join(map(markdown, files))})" if files else ""
    sizes = ", ".join(f"{count} {name}" for name, count in results["examples"].items())
    text = (
        f"{markdown_code(recipe.data.dataset)}{_commit(recipe, 'data')}{file_names}: {sizes} {task.unit(recipe)}, "
        f"at most {recipe.data.max_length} tokens each (tokenizer: {recipe.tokenizer.kind}).\n"
    )
    if len(recipe.data.text_columns) > 1:
        first, second = map(markdown_code, recipe.data.text_columns)
        text += f"\nA text is that of {first} and that of {second}, with a line break between them.\n"
    if label_names is None:
        return text
    if recipe.data.problem_type == "regression":
        return f"{text}\nThe model gives a number: {markdown_code(label_names[0])}.\n"
    label_list = ", ".join(map(markdown_code, label_names[:LISTED_LABELS]))
    several = ", of which a text may have several" if recipe.data.problem_type == "multi_label" else ""
    more = f" and {len(label_names) - LISTED_LABELS} more" if len(label_names) > LISTED_LABELS else ""
    return f"{text}\n{len(label_names)} labels{several}: {label_list}{more}.\n"


def _loading(run: Run) -> list[str]:
    """How to load the run's model with `transformers`, and use it there as here.

    Args:
        run: trained run.
    """
    folder, data, task = run.folder, run.recipe.data, run.task.DESCRIPTION
    under_codes = hasattr(run.tokenizer, "control_code")
    values = {
        "auto_class": task.auto_class,
        "model": _model(folder),
        "slow": ", use_fast=False" if run.tokenizer.is_slow else "",
        "cut": "" if data.max_length == run.length else f"cut to {data.max_length} tokens, ",
        "length": run.length,
        "kept": data.max_length,
        "temperature": f"{run.calibration.get('temperature', 1.0):.6g}",
        "function": "sigmoid()" if data.problem_type == "multi_label" else "softmax(-1)",
        "mask": run.tokenizer.mask_token_id,
        "stride": data.stride,
        "longest": data.max_answer_length,
        # There may be half a million positions, all of which would be filled.
        "most": "" if under_codes else ", max_new_tokens=100",
        "prompt": "the prompt's first word is a control code" if under_codes else "the prompt is a text to go on from",
    }
    texts = [LOAD, run.tokenizer.usage_note]
    # The question-answering pipeline cannot separate question and context if the tokenizer has no separator token.
    if task.pipeline_tag != "question-answering" or run.tokenizer.has_separator:
        texts.append(PIPELINES[task.pipeline_tag])
    if data.long_texts == "windows":
        texts.append(IN_WINDOWS)
    if "temperature" in run.calibration:
        texts.append(CALIBRATION_TEXT)
    return [text.format(**values) for text in texts if text]


def _model(folder: Path) -> str:
    """The model's folder as Python writes it."""
    return json.dumps((folder / "model").as_posix(), ensure_ascii=False)


def _figure(value: float | None) -> str:
    """Return a number with four decimals, or ``not finite`` for None."""
    return "not finite" if value is None else f"{value:.4f}"


def describe_early_end(training_facts: Mapping[str, Any]) -> str:
    """Return how a run ended before its last step; empty if it ended there.

    Args:
        training_facts: ``training`` of metrics.json. Earlier versions wrote no ``finished_early``.
    """
    if training_facts.get("finished_early"):
        return f", finished early at step {training_facts['steps']:,} of {training_facts['schedule']['max_steps']:,}"
    return ", stopped early" if training_facts["stopped_early"] else ""


def _training(recipe: Recipe, task: Description, results: dict[str, Any]) -> str:
    """Return the model card's paragraph about the training: steps, optimizer, seed and duration.

    Args:
        recipe: recipe of the run.
        task: description of the task.
        results: content of ``metrics.json``.
    """
    train, training_facts = recipe.train, results["training"]
    batch = train.batch_size * train.gradient_accumulation_steps
    weights_note = " The loss that trained weighs labels (`class_weights` in `metrics.json`); the losses above do not."
    return (
        f"{training_facts['steps']} steps of {batch} {task.unit(recipe)} ({training_facts['epochs']} epochs"
        f"{describe_early_end(training_facts)}), "
        f"{OPTIMIZERS[train.optimizer]} with learning rate {train.learning_rate:g} ({train.lr_scheduler}, warm-up "
        f"{train.warmup_ratio:g}), weight decay {train.weight_decay:g} (not on biases and LayerNorm), "
        f"seed {recipe.seed}, {training_facts['seconds']:.0f} s."
        f"{weights_note if train.class_weights else ''} "
        "The whole recipe is `recipe.yaml`.\n"
    )
