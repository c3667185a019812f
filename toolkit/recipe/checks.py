"""Checks across a recipe's keys: keys that need or exclude each other, or the task."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from models import families
from toolkit.files.text_encoding import is_text_encoding
from toolkit.recipe import yaml_source
from toolkit.recipe.keys import DELIMITER, ENCODED_KINDS, FILE_KINDS, HEADERLESS_KINDS, PROBLEM_METRICS, TRAINED_KINDS

if TYPE_CHECKING:
    from toolkit.recipe.recipe import Recipe


def check_task(recipe: Recipe) -> None:
    """Check that the model has the head of the recipe's task, that the metric exists, and the task's own rules.

    Raises:
        UserError: the recipe does not fit its task.
    """
    task = recipe.task_module
    models = [name for name in families.FAMILIES if task.HEAD in families.family(name).heads]
    if recipe.model.name not in models:
        raise recipe.error("model.name", f"{recipe.model.name} cannot do {recipe.task}; {_join_with_or(models)} can")
    known_metrics = list(PROBLEM_METRICS.get(recipe.data.problem_type or "", task.LOWER_IS_BETTER))
    if recipe.train.save_best not in known_metrics:
        metric = recipe.train.save_best or ""
        message = f"{metric!r} is not one of {', '.join(known_metrics)}{yaml_source.suggest(metric, known_metrics)}"
        raise recipe.error("train.save_best", message)
    task.check(recipe)


def check_choices(recipe: Recipe) -> None:
    """Check keys that need or exclude each other.

    Raises:
        UserError: a key is missing, or cannot be combined with another key.
    """
    train, data, tokenizer = recipe.train, recipe.data, recipe.tokenizer
    if (train.epochs is None) == (train.max_steps is None):
        if train.epochs is None:
            raise recipe.error("train.epochs", "missing; set epochs or max_steps")
        raise recipe.error("train.max_steps", "epochs is set too; set one of them to null (train.epochs=null)")
    if train.sharding is not None and train.optimizer != "adamw":
        raise recipe.error("train.sharding", f"is for optimizer adamw, not for {train.optimizer}; set null")
    if len(data.text_columns) > 1 and recipe.task != "classification":
        raise recipe.error("data.text", f"two columns are for task classification; for {recipe.task}, name one")
    if data.dataset in FILE_KINDS and data.files is None and data.sources is None:
        raise recipe.error("data.files", f"missing; name a {data.dataset} file for train, and for validation and test")
    for key in ("filter", "split_column"):
        if data.dataset == "text" and getattr(data, key) is not None:
            raise recipe.error(f"data.{key}", "is for data with columns, not for text; remove it")
    if data.split_column is not None and data.files is not None:
        for split_name in ("validation", "test"):
            if getattr(data.files, split_name) is not None:
                message = "data.split_column says which rows are of which split; put all files in data.files.train"
                raise recipe.error(f"data.files.{split_name}", message)
    if data.splits is not None:
        if data.dataset in FILE_KINDS and data.split_column is None:
            message = f"is for folders and hub data sets; with {data.dataset}, name the files in data.files"
            raise recipe.error("data.splits", message)
        if data.splits.get("train", "") is None:
            raise recipe.error("data.splits.train", "null: without it there is nothing to train on; name a split")
    _check_files(recipe)
    if data.dataset not in FILE_KINDS and data.files is not None:
        raise recipe.error("data.files", f"is for dataset {_join_with_or(FILE_KINDS)}, not for {data.dataset}")
    kinds = families.family(recipe.model.name).tokenizers
    if tokenizer.kind not in kinds:
        raise recipe.error(
            "tokenizer.kind", f"{tokenizer.kind} is not for {recipe.model.name}; {_join_with_or(kinds)} is"
        )
    file = TRAINED_KINDS.get(tokenizer.kind or "")
    if file and (tokenizer.path is None) == (tokenizer.vocab_size is None):
        message = f"give path ({file}) or vocab_size (train one on this recipe's training text), and not both"
        raise recipe.error("tokenizer.path" if tokenizer.path else "tokenizer.kind", message)
    if not file:
        for key in ("path", "vocab_size"):
            if getattr(tokenizer, key) is not None:
                owners = _join_with_or([kind for kind in kinds if kind in TRAINED_KINDS])
                raise recipe.error(f"tokenizer.{key}", f"is for kind: {owners}, not for kind: {tokenizer.kind}")
    if tokenizer.kind == "checkpoint" and recipe.model.weights is None:
        raise recipe.error("tokenizer.kind", "checkpoint takes the tokenizer of model.weights, which is not set")
    _check_revisions(recipe)
    _check_streaming(recipe)


def _check_files(recipe: Recipe) -> None:
    """Check the keys for the layout of files, which apply only to some kinds of files."""
    data, delimiter, encoding = recipe.data, recipe.data.delimiter, recipe.data.encoding
    if data.quote is not None and data.dataset != "csv":
        raise recipe.error("data.quote", f"is for dataset: csv, not for {data.dataset}; remove it")
    if data.columns is not None:
        if data.dataset not in HEADERLESS_KINDS:
            hint = _join_with_or(HEADERLESS_KINDS)
            raise recipe.error("data.columns", f"is for dataset: {hint}, not for {data.dataset}; remove it")
        if not all(data.columns) or len(set(data.columns)) < len(data.columns):
            raise recipe.error("data.columns", "has a name twice or an empty one; name each column once")
    if delimiter is not None:
        if data.dataset != "csv":
            raise recipe.error("data.delimiter", f"is for dataset: csv, not for {data.dataset}; remove it")
        if not DELIMITER.fullmatch(delimiter):
            hint = "one character that is no letter or figure, such as ';' or \"\\t\" (a tab)"
            raise recipe.error("data.delimiter", f"{delimiter!r} is none; it should be {hint}")
    if encoding is not None:
        kinds = ENCODED_KINDS if recipe.task != "question_answering" else ("csv",)
        if data.dataset not in kinds:
            raise recipe.error(
                "data.encoding", f"is for dataset: {_join_with_or(kinds)}, not for {data.dataset}; remove it"
            )
        if not is_text_encoding(encoding):
            hint = "utf-8, cp1252 or utf-16"
            raise recipe.error("data.encoding", f"no encoding of text is called {encoding!r}; set one such as {hint}")


def _check_revisions(recipe: Recipe) -> None:
    """Check the revisions of hub repositories."""
    sections = (
        ("model", "model.weights", recipe.model.weights, recipe.hub_weights),
        ("data", "data.dataset", recipe.data.dataset, recipe.hub_dataset),
    )
    for section, key, name, repository in sections:
        revision = getattr(recipe, section).revision
        if revision is None:
            continue
        if repository is None:
            reason = f"{key} is {name}, which is none" if name else f"{key} is not set"
            raise recipe.error(f"{section}.revision", f"is of a hub repository, and {reason}; remove it")
        if not revision.strip() or revision.startswith(("/", ".")) or ".." in revision:
            hint = "a branch, a tag, refs/pr/NUMBER or a commit of the hub repository"
            raise recipe.error(f"{section}.revision", f"{revision!r} is no revision; it should be {hint}")


def _check_streaming(recipe: Recipe) -> None:
    """Check that data are streamed only from the hub, and with a limit of training rows."""
    data = recipe.data
    if not data.streaming:
        if data.shuffle_buffer is not None:
            raise recipe.error("data.shuffle_buffer", "is for data.streaming: true; remove it")
        return
    if recipe.hub_dataset is None:
        raise recipe.error("data.streaming", f"is for a hub data set, not for {data.dataset}; remove it")
    if data.limit.train is None:
        message = "missing: data.streaming needs the number of training rows to fetch; set it"
        raise recipe.error("data.limit.train", message)
    if data.split_column is not None:
        message = "cannot be combined with data.streaming: the rows of a split might be anywhere; remove it"
        raise recipe.error("data.split_column", message)


def _join_with_or(names: Iterable[str]) -> str:
    """Return names as words, such as ``a, b or c``."""
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last
