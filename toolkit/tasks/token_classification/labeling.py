"""Find the entities of texts with a finished run."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from toolkit.data.batches import collate, trim_padding
from toolkit.recipe.recipe import require_setting
from toolkit.tasks.interface import LabeledRows
from toolkit.tasks.token_classification.rows import Span, words_of
from toolkit.tasks.token_classification.tags import entities
from toolkit.tasks.token_classification.windows import TaggedWindows
from toolkit.terminal.escape import visible

if TYPE_CHECKING:
    from rich.console import Console

    from toolkit.tasks.interface import Run

#: ``start``, ``end`` (characters), ``label`` and ``text``; of a prediction also ``score``.
EntityRecord = dict[str, Any]


def best_of_batch(output: Any, length: int) -> tuple[Any, Any]:
    """Return the most probable label of each token, and its probability; 0 after the batch's T.

    Args:
        output: output of the model.
        length: maximum length in tokens; None for the recipe's own.

    Returns:
        Labels (B, length) int64, and probabilities (B, length) float32.
    """
    import paddle.nn.functional as F

    probabilities = F.softmax(output.logits.astype("float32"), axis=-1)
    padding = [0, 0, 0, length - probabilities.shape[1]]
    best_labels = probabilities.argmax(-1), probabilities.max(-1)
    return tuple(F.pad(tensor, padding, pad_from_left_axis=True) if padding[-1] else tensor for tensor in best_labels)


def entity_records(
    text: str, words: Sequence[Span], tags: Sequence[str], probabilities: np.ndarray | None = None
) -> list[EntityRecord]:
    """Return the entities of a text's tags; the score is the mean probability of the tags of an entity's words."""
    records = []
    for first, past, label in entities(tags):
        start, end = words[first][0], words[past - 1][1]
        record = {"start": int(start), "end": int(end), "label": label, "text": text[start:end]}
        records.append(
            record if probabilities is None else {**record, "score": float(np.mean(probabilities[first:past]))}
        )
    return records


def entities_of(
    run: Run, texts: Sequence[str], advance: Callable[[int], None] = lambda count: None
) -> list[list[EntityRecord]]:
    """Return the entities of each text. Other texts affect them only through the rounding of sums.

    Args:
        run: finished run.
        texts: any strings.
        advance: called with the number of texts that were finished since the last call.
    """
    import paddle

    data, batch_size = run.recipe.data, require_setting(run.recipe.train.eval_batch_size)
    words = [words_of(text) for text in texts]
    windows = TaggedWindows(
        texts,
        words,
        None,
        run.tokenizer,
        data.max_length,
        require_setting(data.stride),
        "",
        run.length,
        uses_cache=False,
    )
    labels = np.zeros((len(windows), windows.length), np.int64)
    probabilities = np.zeros((len(windows), windows.length), np.float32)
    num_pending_windows = np.bincount(windows.text_of, minlength=len(texts))
    advance(int(np.sum(num_pending_windows == 0)))
    order = np.argsort(-windows.sizes, kind="stable")  # batches of like lengths: less padding
    for batch in np.split(order, range(batch_size, len(order), batch_size)) if len(order) else ():
        inputs = trim_padding(collate([windows[index] for index in batch]), run.model.config)
        paddle.seed(run.recipe.seed)  # or a window's LSH hashes would depend on its place among others
        with paddle.no_grad():
            inputs_of_model = {name: paddle.to_tensor(inputs[name]) for name in ("input_ids", "attention_mask")}
            best = best_of_batch(run.model(**inputs_of_model), windows.length)
        labels[batch], probabilities[batch] = (array.numpy() for array in best)
        finished_texts, _ = np.unique(windows.text_of[batch], return_counts=True)
        np.subtract.at(num_pending_windows, windows.text_of[batch], 1)
        advance(int(np.sum(num_pending_windows[finished_texts] == 0)))
    names = require_setting(run.label_names)
    return [
        entity_records(text, words_of_text, [names[label] for label in labels_of_text], tag_probabilities)
        for text, words_of_text, labels_of_text, tag_probabilities in zip(
            texts, words, *windows.of_words(labels, probabilities), strict=True
        )
    ]


def predict(run: Run, console: Console, texts: Sequence[str]) -> list[list[EntityRecord]]:
    """Print and return the entities of each text, with their positions in characters."""
    from rich.table import Table
    from rich.text import Text

    records_of_texts = entities_of(run, texts)
    for text, records in zip(texts, records_of_texts, strict=True):
        if not records:
            console.print(Text(f"no entity: {visible(' '.join(text.split()))}"), soft_wrap=True)
            continue
        table = Table("entity", "label", "score", "characters")
        for record in records:
            character_range = f"{record['start']}-{record['end']}"
            table.add_row(
                Text(visible(record["text"])), Text(visible(record["label"])), f"{record['score']:.3f}", character_range
            )
        console.print(table)
    return records_of_texts


def label_rows(run: Run, column_texts: Mapping[str, Sequence[str]], advance: Callable[[int], None]) -> LabeledRows:
    """Find the entities of each text; see :meth:`toolkit.tasks.interface.Task.label_rows`.

    Args:
        run: trained run.
        column_texts: texts of each input column, by name.
        advance: function that is called with the number of rows that were finished.
    """
    return LabeledRows([entities_of(run, column_texts["text"], advance)], {})


def predictions(
    run: Run, rows: Any, dataset: TaggedWindows, outputs: tuple[np.ndarray, ...]
) -> Iterator[dict[str, Any]]:
    """Yield the row of each text in ``predictions-SPLIT.csv``.

    It has the row's number from 1, the text, its entities, and the predicted entities, as JSON lists.

    Args:
        run: trained run.
        rows: rows of the split.
        dataset: evaluated data set.
        outputs: arrays of all batches as :func:`outputs` returns them, joined.
    """
    names = require_setting(run.label_names)
    for number, (row, labels, tag_probabilities) in enumerate(zip(rows, *dataset.of_words(*outputs), strict=True), 1):
        text, words = row["text"], row["words"]
        predicted_records = entity_records(text, words, [names[label] for label in labels], tag_probabilities)
        json_lists = [
            json.dumps(records, ensure_ascii=False)
            for records in (entity_records(text, words, row["tags"]), predicted_records)
        ]
        yield {"row": number, "text": text, "entities": json_lists[0], "predicted_entities": json_lists[1]}
