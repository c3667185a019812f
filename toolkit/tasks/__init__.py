"""What a model can be fine-tuned for: a module per task, named as the recipe's ``task:``; nobody else asks which it is.

A task module has these names. Its top imports nothing heavy: a recipe is checked with it.

    HEADS                    model family -> head of the port (the families that can do the task)
    LOWER_IS_BETTER          metric -> whether lower is better: those that ``train.save_best`` may name
    CORPORA                  built-in data set -> module with ``Options`` and ``load(options)``
    DESCRIPTION              a :class:`Description` for the model card and the last line of a run
    PREDICTS_FROM            options of ``toolkit predict`` that it takes

    check(recipe)            raise ``recipe.error`` for what the recipe alone shows to be wrong
    load_splits(recipe)      ``train``, ``validation`` and maybe ``test``, checked
    texts(rows)              the texts of a split: on them a tokenizer is trained, and compared with the reference
    control_codes(rows)      the control codes of a split, which a trained CTRL vocabulary must hold; or none
    prepare(recipe, tokenizer, splits)  a :class:`Prepared`
    collate(rows)            examples -> a batch of int64 arrays, all of them inputs of the model
    counted(batch)           how many terms the mean loss of a batch is a mean of
    outputs(output, batch, dataset)     of a model's output, what evaluation keeps: tensors [B, ...], small
    compute_metrics(outputs, dataset)   those, over all examples in order, as arrays -> name -> number
    leave(run, trainer, prepared, console)  write what else belongs into a finished run's folder (``run.folder``)
    predict(run, console, **given)      what ``toolkit predict`` prints
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toolkit.recipe import Recipe


@dataclass(frozen=True)
class Prepared:
    """Examples ready for the model.

    Attributes:
        train, validation, test: map-style data sets of dicts of arrays, all of one length; test is None where the data
            has none.
        summary: what they are, in a few words.
        label_names: a label's id is its place in this list; None for a task without labels.
        notes: what the user should know about the data, a line each.
        offsets: whether the task uses the characters that a token stands for, so that the gate compares them.
        truncated: split -> how many of its texts were longer than the model and were cut.
        baseline: split -> metric -> what is reached without a model (from frequencies, say), to compare with.
    """

    train: Any
    validation: Any
    test: Any
    summary: str
    label_names: list[str] | None = None
    notes: Sequence[str] = ()
    offsets: bool = False
    truncated: dict[str, int] = field(default_factory=dict)
    baseline: dict[str, dict[str, float]] = field(default_factory=dict)

    @property
    def sizes(self) -> dict[str, int]:
        """Split -> how many examples it has."""
        splits = {"train": self.train, "validation": self.validation, "test": self.test}
        return {name: len(rows) for name, rows in splits.items() if rows is not None}


@dataclass(frozen=True)
class Description:
    """A task in the words of a model card.

    Attributes:
        name: as in "A Reformer for NAME".
        pipeline_tag, metrics: in the words of the Hugging Face hub.
        auto_class: of transformers, which loads the model.
        examples: what the examples are called.
        next_command: what to do with a run, with ``{run}`` for its folder.
    """

    name: str
    pipeline_tag: str
    metrics: tuple[str, ...]
    auto_class: str
    examples: str
    next_command: str


@dataclass(frozen=True)
class Run:
    """A finished run, loaded.

    Attributes:
        folder: the run folder.
        recipe: as it was run.
        task: the module of `toolkit.tasks`.
        tokenizer: saved with the model.
        model: the port with the best weights.
        label_names: in the order of their ids; None for a task without labels.
    """

    folder: Path
    recipe: Recipe
    task: Any
    tokenizer: Any
    model: Any
    label_names: list[str] | None
