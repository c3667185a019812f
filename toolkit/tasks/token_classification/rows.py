"""Rows of any layout as texts with the spans of their words, and a tag for each word."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import regex

from models.port.tokenization import replace_surrogates
from toolkit.files.written_values import parse_value
from toolkit.tasks.question_answering.words import boundaries
from toolkit.tasks.token_classification import conll
from toolkit.tasks.token_classification.offsets import CHARACTERS, Counting, counting_of, entity_spans, place_span
from toolkit.tasks.token_classification.tags import OUTSIDE, TAG, iob2

if TYPE_CHECKING:
    import datasets

    from toolkit.recipe.recipe import Recipe

#: Characters of scripts without spaces, and their punctuation.
UNSPACED_SCRIPT = regex.compile(
    r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\u3000-\u303f\uff00-\uffef]"
)
#: Index of the first character, and of the character after the last.
Span = tuple[int, int]


@dataclass
class TaggedText:
    """A text, the spans of its words and their tags, as IOB2.

    Attributes:
        text: the text.
        words: spans of its words.
        tags: tag of each word.
        widened_entities: entities that start or end inside a word, with the text of the whole words.
        moves: ways of finding entities that are not at their offsets.
    """

    text: str
    words: list[Span]
    tags: list[str]
    widened_entities: list[tuple[str, str]] = field(default_factory=list)
    moves: list[str] = field(default_factory=list)


def words_of(text: str) -> list[Span]:
    """Return the spans of a text's words and punctuation marks."""
    positions = np.unique([0, *boundaries(text), len(text)]).tolist() if text else []
    return [(start, end) for start, end in pairwise(positions) if text[start:end].strip()]


def of_tokens(tokens: Sequence[Any], tags: Sequence[Any], names: Mapping[str, str]) -> TaggedText:
    """Join tokens with blanks, or without separator in a script without spaces.

    Args:
        tokens: tokens of a text.
        tags: tag of each token.
        names: names of tags that are numbers.

    Raises:
        ValueError: a token is not text, or a tag is not valid.
    """
    if not all(isinstance(token, str) for token in tokens):
        raise ValueError("has a token that is no text")
    if len(tags) != len(tokens):
        raise ValueError(f"has {len(tokens)} tokens and {len(tags)} tags")
    named_tags = [str(names.get(str(tag), tag)) for tag in tags]
    for name in named_tags:
        if not TAG.fullmatch(name):
            number = "; data.label_names says what numbers mean" if name.isdecimal() else ""
            raise ValueError(f"has {name!r} as a tag; it should be O, B-PER, I-PER (or IOB1, BIOES){number}")
    separator = "" if 2 * sum(bool(UNSPACED_SCRIPT.search(token)) for token in tokens) > len(tokens) else " "
    clean_tokens = [replace_surrogates(token) for token in tokens]
    starts = np.cumsum([0, *(len(token) + len(separator) for token in clean_tokens)])
    words = [(int(start), int(start) + len(token)) for start, token in zip(starts, clean_tokens, strict=False)]
    return TaggedText(separator.join(clean_tokens), words, iob2(named_tags))


def of_spans(text: str, spans: Sequence[Any], counting: Counting = CHARACTERS) -> TaggedText:
    """Tag the words of a text by spans of its characters (:func:`.offsets.entity_spans`).

    An entity that starts or ends inside a word is widened to the word.

    Args:
        text: text of the row.
        spans: entities of the text.
        counting: way of counting the offsets in spans without a text.

    Raises:
        ValueError: an item is not a span of the text, or two spans overlap.
    """
    words, widened_entities, moves, last_end = words_of(text), [], [], 0
    placed_spans = []
    for span in entity_spans(spans):
        first, stop, how = place_span(text, span, counting)
        placed_spans.append((first, stop, span.label))
        moves += [how] if how else []
    tags, starts, ends = [OUTSIDE] * len(words), [word[0] for word in words], [word[1] for word in words]
    for start, end, label in sorted(placed_spans):
        if start < last_end:
            raise ValueError(f"has two entities at character {start}; each character can be in one")
        last_end = end
        overlapping_words = range(bisect_right(ends, start), bisect_left(starts, end))
        entity_words = [
            index for index in overlapping_words if tags[index] == OUTSIDE
        ]  # the previous entity may have the first word
        for index in entity_words:
            tags[index] = f"{'B' if index == entity_words[0] else 'I'}-{label}"
        whole_text = text[words[entity_words[0]][0] : words[entity_words[-1]][1]] if entity_words else ""
        if whole_text != text[start:end].strip():
            widened_entities.append((text[start:end], whole_text))
    return TaggedText(replace_surrogates(text), words, tags, widened_entities, moves)


def tag_row(text: Any, label: Any, names: Mapping[str, str], counting: Counting = CHARACTERS) -> TaggedText:
    """Tag a row: a list of tokens with a list of tags, or a text with the spans of its entities.

    Args:
        text: text, or list of tokens.
        label: list of tags, or list of entities, or the text of such a list.
        names: name of each tag that is a number.
        counting: unit of the spans: characters, or units of another encoding.

    Raises:
        ValueError: it is neither.
    """
    label = _as_list(label)
    if label is None:
        raise ValueError("has no list of entities; write [] for a text without any")
    if not isinstance(label, list) or not isinstance(text, str | list):
        expectation = "a list of tokens and one of tags, or a text and a list of entities ([start, end, label])"
        raise ValueError(f"has {text!r:.40} and {label!r:.40}; it should have {expectation}")
    return of_tokens(text, label, names) if isinstance(text, list) else of_spans(text, label, counting)


def _as_list(label: Any) -> Any:
    """Return a list of tags or entities that may be stored as its text."""
    return parse_value(label) if isinstance(label, str) else label


def counting_in(labeled_texts: Iterable[tuple[Any, Any]]) -> Counting:
    """Return how the offsets in pairs of texts and entities are counted; invalid pairs are left out."""

    def spans() -> Iterator[Any]:
        for text, label in labeled_texts:
            label = _as_list(label)
            if not isinstance(text, str) or not isinstance(label, list) or not label:
                continue
            try:
                row_spans = list(entity_spans(label))
            except ValueError:
                continue
            words = words_of(text)
            yield text, row_spans, {start for start, _ in words}, {end for _, end in words}

    return counting_of(spans())


def tag_names(rows: datasets.Dataset, column: str, names_in_recipe: Any = None) -> dict[str, str]:
    """Return the names of tags that are numbers: from the recipe, or the data's own.

    Args:
        rows: rows of the split.
        column: column of the tags.
        names_in_recipe: value of ``data.label_names``; None if the recipe has none.
    """
    names = names_in_recipe or getattr(getattr(rows.features[column], "feature", None), "names", None) or {}
    return dict(names) if isinstance(names, dict) else {str(index): name for index, name in enumerate(names)}


def load_splits(recipe: Recipe) -> datasets.DatasetDict:
    """Return splits with the columns ``text``, ``words`` (spans) and ``tags`` (IOB2, by name).

    Raises:
        UserError: the data is wrong; the error names the line of the key to change.
    """
    from datasets import DatasetDict

    from toolkit.data.load import hold_out_splits, limit_rows, load_splits

    stored_splits = load_splits(recipe, {}, _read_file)
    splits = DatasetDict(
        {split_name: _tag_split(recipe, split_name, rows) for split_name, rows in stored_splits.items()}
    )
    if not any(tag != OUTSIDE for tags in splits["train"]["tags"] for tag in tags):
        raise recipe.error("data.label", "the train split has no entity")
    return limit_rows(recipe, hold_out_splits(recipe, splits, _divide_rows))


def _read_file(recipe: Recipe, split_name: str, path: Path) -> datasets.Dataset:
    """Read a file, which has CoNLL's format with ``dataset: text``."""
    from datasets import Dataset

    from toolkit.data.sources import read_file, read_plain_text

    if recipe.data.dataset != "text":
        return read_file(recipe, split_name, path)
    try:
        sentences = conll.read_sentences(read_plain_text(recipe, path))
    except conll.ConllError as error:
        raise recipe.error(f"data.files.{split_name}", f"{path}:{error}") from None
    names = (*recipe.data.text_columns, *recipe.data.label_columns)
    return Dataset.from_dict({name: [sentence[column] for sentence in sentences] for column, name in enumerate(names)})


def _tag_split(recipe: Recipe, split_name: str, rows: datasets.Dataset) -> datasets.Dataset:
    """Return the rows of a split with their words and tags, and note corrections of the entities' offsets."""
    from datasets import Dataset, Features, Sequence, Value

    from toolkit.data.load import check_columns

    (text,), (label,) = recipe.data.text_columns, recipe.data.label_columns
    check_columns(recipe, split_name, rows, {"text": text, "label": label})
    names = tag_names(rows, label, recipe.data.label_names)
    tagged_rows, pairs = [], [(row[text], row[label]) for row in rows.select_columns([text, label])]
    counting = counting_in(pairs)
    for number, pair in enumerate(pairs, 1):
        try:
            tagged_rows.append(tag_row(*pair, names, counting))
        except ValueError as error:
            raise recipe.error("data.label", f"row {number} of the {split_name} split {error}") from None
    if moves := Counter(how for tagged_row in tagged_rows for how in tagged_row.moves):
        ways = "; ".join(f"{count} {how}" for how, count in moves.most_common())
        recipe.findings.note(
            f"{moves.total()} {split_name} entities are not where their offsets say and are found: {ways}"
        )
    if widened_entities := [entity for tagged_row in tagged_rows for entity in tagged_row.widened_entities]:
        entity_text, whole_text = widened_entities[0]
        count = f"{len(widened_entities)} {split_name} entities"
        recipe.findings.note(
            f"{count} begin or end inside a word, such as {entity_text!r} in {whole_text!r}, "
            "and are found with the whole word"
        )
    spans = Sequence(Sequence(Value("int32")))
    features = Features({"text": Value("string"), "words": spans, "tags": Sequence(Value("string"))})
    columns = {
        "text": [tagged_row.text for tagged_row in tagged_rows],
        "words": [tagged_row.words for tagged_row in tagged_rows],
    }
    return Dataset.from_dict({**columns, "tags": [tagged_row.tags for tagged_row in tagged_rows]}, features=features)


def _divide_rows(rows: datasets.Dataset, shares: Mapping[str, float], seed: int) -> dict[str, list[int]]:
    """Draw the rows of each split by the seed."""
    order, held_out_rows = np.random.default_rng([seed, 1]).permutation(len(rows)), {}
    for split_name, share in shares.items():
        count = round(len(rows) * share)
        if not 0 < count < len(order):
            raise ValueError(
                f"{share} of {len(rows)} texts is {count}, which leaves none to {split_name} or to train on"
            )
        held_out_rows[split_name], order = sorted(order[:count].tolist()), order[count:]
    return {"train": sorted(order.tolist()), **held_out_rows}
