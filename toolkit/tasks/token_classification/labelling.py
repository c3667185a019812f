"""Entities that a finished run finds in texts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from toolkit.data.batches import collate, without_padding
from toolkit.recipe.recipe import settled
from toolkit.tasks.interface import LabeledRows
from toolkit.tasks.token_classification.rows import Span, words_of
from toolkit.tasks.token_classification.tags import entities
from toolkit.tasks.token_classification.windows import TaggedWindows
from toolkit.terminal.escape import visible

if TYPE_CHECKING:
    from rich.console import Console

    from toolkit.tasks.interface import Run

#: ``start``, ``end`` (characters), ``label`` and ``text``; of a prediction also ``score``.
Found = dict[str, Any]


def best_of_batch(output: Any, length: int) -> tuple[Any, Any]:
    """Return each token's likeliest label, int64 (B, length), and its probability, float32; 0 beyond the batch's T."""
    import paddle.nn.functional as F

    shares = F.softmax(output.logits.astype("float32"), axis=-1)
    missing = [0, 0, 0, length - shares.shape[1]]
    kept = shares.argmax(-1), shares.max(-1)
    return tuple(F.pad(one, missing, pad_from_left_axis=True) if missing[-1] else one for one in kept)


def spans(text: str, words: Sequence[Span], tags: Sequence[str], shares: np.ndarray | None = None) -> list[Found]:
    """Return the entities of a text's tags; the score is the mean probability of their words' tags."""
    found = []
    for first, past, kind in entities(tags):
        start, end = words[first][0], words[past - 1][1]
        one = {"start": int(start), "end": int(end), "label": kind, "text": text[start:end]}
        found.append(one if shares is None else {**one, "score": float(np.mean(shares[first:past]))})
    return found


def entities_of(
    run: Run, texts: Sequence[str], advance: Callable[[int], None] = lambda count: None
) -> list[list[Found]]:
    """Return the entities of each text. Other texts affect them only through the rounding of sums.

    Args:
        advance: called with the number of texts newly done.
    """
    import paddle

    data, size = run.recipe.data, settled(run.recipe.train.eval_batch_size)
    words = [words_of(text) for text in texts]
    windows = TaggedWindows(
        texts, words, None, run.tokenizer, data.max_length, settled(data.stride), "", run.length, cached=False
    )
    labels = np.zeros((len(windows), windows.length), np.int64)
    shares = np.zeros((len(windows), windows.length), np.float32)
    left = np.bincount(windows.text_of, minlength=len(texts))
    advance(int(np.sum(left == 0)))
    order = np.argsort(-windows.sizes, kind="stable")  # batches of like lengths: less padding
    for batch in np.split(order, range(size, len(order), size)) if len(order) else ():
        inputs = without_padding(collate([windows[index] for index in batch]), run.model.config)
        paddle.seed(run.recipe.seed)  # or a window's LSH hashes would depend on its place among others
        with paddle.no_grad():
            given = {name: paddle.to_tensor(inputs[name]) for name in ("input_ids", "attention_mask")}
            best = best_of_batch(run.model(**given), windows.length)
        labels[batch], shares[batch] = (one.numpy() for one in best)
        done, _ = np.unique(windows.text_of[batch], return_counts=True)
        np.subtract.at(left, windows.text_of[batch], 1)
        advance(int(np.sum(left[done] == 0)))
    names = settled(run.label_names)
    return [
        spans(text, own, [names[label] for label in given], probable)
        for text, own, given, probable in zip(texts, words, *windows.of_words(labels, shares), strict=True)
    ]


def predict(run: Run, console: Console, texts: Sequence[str]) -> list[list[Found]]:
    """Print and return the entities of each text, with their places in characters."""
    from rich.table import Table
    from rich.text import Text

    found = entities_of(run, texts)
    for text, own in zip(texts, found, strict=True):
        if not own:
            console.print(Text(f"no entity: {visible(' '.join(text.split()))}"), soft_wrap=True)
            continue
        table = Table("entity", "label", "score", "characters")
        for one in own:
            place = f"{one['start']}-{one['end']}"
            table.add_row(Text(visible(one["text"])), Text(visible(one["label"])), f"{one['score']:.3f}", place)
        console.print(table)
    return found


def label_rows(run: Run, columns: Mapping[str, Sequence[str]], advance: Callable[[int], None]) -> LabeledRows:
    """The entities of each text; see :meth:`toolkit.tasks.interface.Task.label_rows`."""
    return LabeledRows([entities_of(run, columns["text"], advance)], {})


def predictions(
    run: Run, rows: Any, dataset: TaggedWindows, outputs: tuple[np.ndarray, ...]
) -> Iterator[dict[str, Any]]:
    """Yield for each text: its number from 1, the text, its entities and those that the model finds, as JSON lists."""
    names = settled(run.label_names)
    for number, (row, given, probable) in enumerate(zip(rows, *dataset.of_words(*outputs), strict=True), 1):
        text, words = row["text"], row["words"]
        found = spans(text, words, [names[label] for label in given], probable)
        written = [json.dumps(one, ensure_ascii=False) for one in (spans(text, words, row["tags"]), found)]
        yield {"row": number, "text": text, "entities": written[0], "predicted_entities": written[1]}
