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

from models.port.tokenization import representable
from toolkit.files.written_values import value_of
from toolkit.tasks.question_answering.words import boundaries
from toolkit.tasks.token_classification import conll
from toolkit.tasks.token_classification.offsets import CHARACTERS, Counting, counting_of, entity_spans, place_span
from toolkit.tasks.token_classification.tags import OUTSIDE, TAG, iob2

if TYPE_CHECKING:
    import datasets

    from toolkit.recipe.recipe import Recipe

#: Characters of scripts without spaces, and their punctuation.
UNSPACED = regex.compile(
    r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\u3000-\u303f\uff00-\uffef]"
)
#: First character, the one behind the last.
Span = tuple[int, int]


@dataclass
class TaggedText:
    """A text, the spans of its words and their tags, as IOB2.

    Attributes:
        widened: entities that begin or end inside a word, with the text of the whole words.
        moves: how entities were found that do not stand where their offsets say.
    """

    text: str
    words: list[Span]
    tags: list[str]
    widened: list[tuple[str, str]] = field(default_factory=list)
    moves: list[str] = field(default_factory=list)


def words_of(text: str) -> list[Span]:
    """Return the spans of a text's words and punctuation marks."""
    places = np.unique([0, *boundaries(text), len(text)]).tolist() if text else []
    return [(start, end) for start, end in pairwise(places) if text[start:end].strip()]


def of_tokens(tokens: Sequence[Any], tags: Sequence[Any], names: Mapping[str, str]) -> TaggedText:
    """Join tokens by blanks; those of a script without spaces by nothing.

    Args:
        names: of tags that are numbers.

    Raises:
        ValueError: something is no token, or no tag.
    """
    if not all(isinstance(token, str) for token in tokens):
        raise ValueError("has a token that is no text")
    if len(tags) != len(tokens):
        raise ValueError(f"has {len(tokens)} tokens and {len(tags)} tags")
    named = [str(names.get(str(tag), tag)) for tag in tags]
    for name in named:
        if not TAG.fullmatch(name):
            number = "; data.label_names says what numbers mean" if name.isdecimal() else ""
            raise ValueError(f"has {name!r} as a tag; it should be O, B-PER, I-PER (or IOB1, BIOES){number}")
    between = "" if 2 * sum(bool(UNSPACED.search(token)) for token in tokens) > len(tokens) else " "
    held = [representable(token) for token in tokens]
    starts = np.cumsum([0, *(len(token) + len(between) for token in held)])
    words = [(int(start), int(start) + len(token)) for start, token in zip(starts, held, strict=False)]
    return TaggedText(between.join(held), words, iob2(named))


def of_spans(text: str, spans: Sequence[Any], counting: Counting = CHARACTERS) -> TaggedText:
    """Tag the words of a text by spans of its characters (:func:`.offsets.entity_spans`).

    An entity that begins or ends inside a word is widened to the word.

    Args:
        counting: the way of counting offsets in spans without a text.

    Raises:
        ValueError: an item is not a span of the text, or two spans overlap.
    """
    words, widened_entities, moves, past = words_of(text), [], [], 0
    placed_spans = []
    for span in entity_spans(spans):
        first, behind, how = place_span(text, span, counting)
        placed_spans.append((first, behind, span.label))
        moves += [how] if how else []
    tags, starts, ends = [OUTSIDE] * len(words), [word[0] for word in words], [word[1] for word in words]
    for start, end, label in sorted(placed_spans):
        if start < past:
            raise ValueError(f"has two entities at character {start}; each character can be in one")
        past = end
        touched = range(bisect_right(ends, start), bisect_left(starts, end))
        inside = [place for place in touched if tags[place] == OUTSIDE]  # the word of the one before is taken
        for place in inside:
            tags[place] = f"{'B' if place == inside[0] else 'I'}-{label}"
        whole = text[words[inside[0]][0] : words[inside[-1]][1]] if inside else ""
        if whole != text[start:end].strip():
            widened_entities.append((text[start:end], whole))
    return TaggedText(representable(text), words, tags, widened_entities, moves)


def tag_row(text: Any, label: Any, names: Mapping[str, str], counting: Counting = CHARACTERS) -> TaggedText:
    """Tag a row: a list of tokens with a list of tags, or a text with the spans of its entities.

    Raises:
        ValueError: it is neither.
    """
    label = _as_list(label)
    if label is None:
        raise ValueError("has no list of entities; write [] for a text without any")
    if not isinstance(label, list) or not isinstance(text, str | list):
        right = "a list of tokens and one of tags, or a text and a list of entities ([start, end, label])"
        raise ValueError(f"has {text!r:.40} and {label!r:.40}; it should have {right}")
    return of_tokens(text, label, names) if isinstance(text, list) else of_spans(text, label, counting)


def _as_list(label: Any) -> Any:
    return value_of(label) if isinstance(label, str) else label


def counting_in(pairs: Iterable[tuple[Any, Any]]) -> Counting:
    """Return how the offsets in pairs of texts and entities are counted; pairs that are wrong are left out."""

    def spans() -> Iterator[Any]:
        for text, label in pairs:
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


def tag_names(rows: datasets.Dataset, column: str, given: Any = None) -> dict[str, str]:
    """Return the names of tags that are numbers: those given, or the data's own."""
    names = given or getattr(getattr(rows.features[column], "feature", None), "names", None) or {}
    return dict(names) if isinstance(names, dict) else {str(index): name for index, name in enumerate(names)}


def load_splits(recipe: Recipe) -> datasets.DatasetDict:
    """Return splits with the columns ``text``, ``words`` (spans) and ``tags`` (IOB2, by name).

    Raises:
        UserError: at the line of the key to change.
    """
    from datasets import DatasetDict

    from toolkit.data.load import hold_out, limited, load_stored

    stored = load_stored(recipe, {}, _read_file)
    splits = DatasetDict({split: _checked(recipe, split, rows) for split, rows in stored.items()})
    if not any(tag != OUTSIDE for tags in splits["train"]["tags"] for tag in tags):
        raise recipe.error("data.label", "the train split has no entity")
    return limited(recipe, hold_out(recipe, splits, _divide))


def _read_file(recipe: Recipe, split: str, path: Path) -> datasets.Dataset:
    """Read a file; one of ``dataset: text`` is of CoNLL."""
    from datasets import Dataset

    from toolkit.data.sources import plain_text, read_file

    if recipe.data.dataset != "text":
        return read_file(recipe, split, path)
    try:
        sentences = conll.read(plain_text(recipe, path))
    except conll.ConllError as problem:
        raise recipe.error(f"data.files.{split}", f"{path}:{problem}") from None
    names = (*recipe.data.text_columns, *recipe.data.label_columns)
    return Dataset.from_dict({name: [sentence[place] for sentence in sentences] for place, name in enumerate(names)})


def _checked(recipe: Recipe, split: str, rows: datasets.Dataset) -> datasets.Dataset:
    from datasets import Dataset, Features, Sequence, Value

    from toolkit.data.load import check_columns

    (text,), (label,) = recipe.data.text_columns, recipe.data.label_columns
    check_columns(recipe, split, rows, {"text": text, "label": label})
    names = tag_names(rows, label, recipe.data.label_names)
    tagged_rows, pairs = [], [(row[text], row[label]) for row in rows.select_columns([text, label])]
    counting = counting_in(pairs)
    for number, pair in enumerate(pairs, 1):
        try:
            tagged_rows.append(tag_row(*pair, names, counting))
        except ValueError as problem:
            raise recipe.error("data.label", f"row {number} of the {split} split {problem}") from None
    if moves := Counter(how for one in tagged_rows for how in one.moves):
        ways = "; ".join(f"{count} {how}" for how, count in moves.most_common())
        recipe.found.note(f"{moves.total()} {split} entities are not where their offsets say and are found: {ways}")
    if widened_entities := [one for text_ in tagged_rows for one in text_.widened]:
        written, whole = widened_entities[0]
        count = f"{len(widened_entities)} {split} entities"
        recipe.found.note(
            f"{count} begin or end inside a word, such as {written!r} in {whole!r}, and are found with the whole word"
        )
    spans = Sequence(Sequence(Value("int32")))
    kinds = Features({"text": Value("string"), "words": spans, "tags": Sequence(Value("string"))})
    columns = {"text": [one.text for one in tagged_rows], "words": [one.words for one in tagged_rows]}
    return Dataset.from_dict({**columns, "tags": [one.tags for one in tagged_rows]}, features=kinds)


def _divide(rows: datasets.Dataset, shares: Mapping[str, float], seed: int) -> dict[str, list[int]]:
    """Draw the rows of each split by the seed."""
    order, held_out_rows = np.random.default_rng([seed, 1]).permutation(len(rows)), {}
    for split, share in shares.items():
        count = round(len(rows) * share)
        if not 0 < count < len(order):
            raise ValueError(f"{share} of {len(rows)} texts is {count}, which leaves none to {split} or to train on")
        held_out_rows[split], order = sorted(order[:count].tolist()), order[count:]
    return {"train": sorted(order.tolist()), **held_out_rows}
