"""Draft the recipe of each task for inspected data."""

from __future__ import annotations

import glob
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from models import families
from toolkit.commands.recipe_new import choose
from toolkit.commands.recipe_new.columns import SAMPLE, choose_columns
from toolkit.commands.recipe_new.look import DataFiles
from toolkit.commands.recipe_new.write import Line, section, training
from toolkit.errors import UserError
from toolkit.files.json_rows import SPLIT

#: Formats a path for the recipe.
PathWriter = Callable[[Path], str]
#: A label is noted as rare if another is over this many times as frequent.
UNEVEN = 10


@dataclass
class Draft:
    """Attributes:
    body: the recipe below its first comment.
    assumed: assumptions, a line each.
    seconds: about how long training takes, on two cores.
    """

    body: str
    assumed: list[str] = field(default_factory=list)
    seconds: float = 0.0


def classification(found: DataFiles, where: str, write: PathWriter, text: str | None, label: str | None) -> Draft:
    """Draft a small model with new weights that predicts labels.

    Raises:
        UserError: no columns of texts and labels.
    """
    rows = found.rows
    assert rows is not None
    columns = choose_columns(where, rows, text, label)
    texts = _sample(rows, columns.text)
    name = _drafted("sequence_classification")
    tokens = choose.tokens_of(texts, len(rows), _pieces_of(name))
    length = choose.length_for(tokens.lengths)
    cut = float(np.mean(tokens.lengths > length))
    counts = list(columns.counts.values())
    share = None if found.has("validation") and not found.classes else choose.held_out(counts)
    steps = choose.steps_for(round(len(rows) * (1 - (share or 0))), length)
    named: list[Line] = [
        ("text", columns.text, "the column of the texts"),
        ("label", columns.label, f"the column of the labels, of which there are {len(counts):,}"),
    ]
    data: list[Line] = [
        *(_folders(found, write) if found.classes else [*_files(found, write), *named]),
        ("max_length", length, f"tokens; shorter texts are padded, longer ones cut{_cut(cut)}"),
        *_share(share, ", the same share of each label"),
    ]
    body = (
        _head("classification", "one label per text")
        + _model(name, "sequence_classification", length, len(rows))
        + _tokenizer(tokens.pieces)
        + section("data", data)
        + "\n"
        + training(steps, 1.5e-3, "accuracy", "accuracy, macro_f1 or loss")
    )
    others = f"; not used: {', '.join(columns.others)}" if columns.others else ""
    assumed = [
        f"{len(rows):,} texts ({choose.script_of(texts)})"
        if found.classes
        else f"{len(rows):,} rows; texts in the column {columns.text} ({choose.script_of(texts)}), labels in "
        f"{columns.label}{others}",
        _labels(columns.counts),
        _lengths(tokens, length, cut),
        *_validation(found, share),
    ]
    return Draft(body, assumed, steps.seconds)


def question_answering(found: DataFiles, where: str, write: PathWriter) -> Draft:
    """Draft a small model with new weights that finds answers in texts.

    Raises:
        UserError: there is only one text.
    """
    if found.questions:
        pairs = [(item.question, item.context) for item in found.questions]
    else:
        assert found.rows is not None
        pairs = list(zip(*(found.rows.select_columns([name])[:][name] for name in QUESTION_COLUMNS), strict=True))
    chosen = [pairs[place] for place in _places(len(pairs))]
    name = _drafted("question_answering")
    texts = [f"{question} {context}" for question, context in chosen]
    tokens = choose.tokens_of(texts, len(pairs), _pieces_of(name))
    length = choose.length_for(tokens.lengths, most=512, least=128)
    windows = float(np.ceil(tokens.lengths / (length * 3 / 4)).clip(1).mean()) * len(pairs)
    contexts = len({context for _, context in pairs})
    if contexts == 1 and not found.has("validation"):
        raise UserError(f"{where}: all questions are about one text; to hold some out, two or more are needed")
    share = None if found.has("validation") else choose.held_out([contexts])
    steps = choose.steps_for(round(windows), length, most_epochs=10)
    data: list[Line] = [
        *_files(found, write),
        ("max_length", length, "tokens of a window: question, separator, context; the question is never cut"),
        ("stride", length // 4, "tokens that neighbouring windows of a long text share"),
        (
            "misplaced_answers",
            "find",
            "if answer_start is wrong: find the answer in its text, drop it, or refuse",
        ),
        *_share(share),
    ]
    body = (
        _head("question_answering", "the span of a text that answers a question")
        + _model(name, "question_answering", length, len(pairs))
        + _tokenizer(tokens.pieces)
        + section("data", data)
        + "\n"
        + training(steps, 2e-3, "f1", "f1, exact_match or loss")
    )
    assumed = [
        f"{len(pairs):,} questions about {contexts:,} texts ({choose.script_of([context for _, context in chosen])})",
        _lengths(tokens, length, 0.0),
        *_validation(found, share),
        "new weights learn to answer from tens of thousands of questions; with fewer, expect little",
    ]
    return Draft(body, assumed, steps.seconds)


#: Columns of a question table, in the order of a pair. Besides these it needs only the answers.
QUESTION_COLUMNS = ("question", "context")


def language_modeling(found: DataFiles, where: str, write: PathWriter) -> Draft:
    """Draft a small model with new weights that continues texts."""
    sizes = {code: sum(path.stat().st_size for path in files) for code, files in found.files.items()}
    size = sum(sizes.values())
    encoding = found.encoding or "utf-8"
    texts = [path.read_bytes()[: choose.TRIED_ON].decode(encoding, "ignore") for path in _first(found)]
    steps = choose.steps_for(max(1, size // 4 // 128), 128, budget=choose.TEXT_BUDGET, most_epochs=12)
    sources: list[Line] = [
        (code, [write(path) for path in files] if len(files) > 1 else write(files[0]), f"{_megabytes(sizes[code])}")
        for code, files in found.files.items()
    ]
    data: list[Line] = [
        ("dataset", "text", "plain text"),
        ("sources", sources, ""),
        *_encoding(found),
        ("max_length", 128, "tokens of a block, the control code included"),
        ("validation_fraction", 0.1, "share of each code's text, to choose the best checkpoint by"),
        ("test_fraction", 0.1, "... for the final score"),
    ]
    name = _drafted("causal_lm")
    vocab_size = choose.word_pieces(size, texts)
    pieces: list[Line] = [
        ("kind", "bpe", f"{families.family(name).title}'s word pieces"),
        ("vocab_size", vocab_size, "number of pieces to train on this recipe's text"),
    ]
    body = (
        _head("language_modeling", "the next token, after a control code that says where the text is from")
        + _model(name, "causal_lm", 128, 0)
        + section("tokenizer", pieces)
        + "\n"
        + section("data", data)
        + "\n"
        + training(steps, 5e-3, "perplexity", "perplexity or loss", decay=0.1)
    )
    assumed = [
        f"{_megabytes(size)} of text ({choose.script_of(texts)}), under the control code{'s' * (len(sizes) > 1)} "
        f"{', '.join(sizes)}",
        f"{vocab_size:,} word pieces; a tenth of the text to validate on, a tenth to test on",
    ]
    return Draft(body, assumed, steps.seconds * choose.BUDGET / choose.TEXT_BUDGET)


# -- parts ----------------------------------------------------------------------------------------------------------


def _head(task: str, comment: str) -> str:
    seed = "seed: 42                        # seeds new weights, held-out rows, the order of the examples, dropout\n"
    return f"{f'task: {task}'.ljust(31)} # {comment}\n{seed}\n"


def _drafted(head: str) -> str:
    """The family that is proposed for a head."""
    return next(name for name in families.FAMILIES if head in families.family(name).drafted)


def _pieces_of(name: str) -> Callable[..., Any]:
    """What trains SentencePiece for a family."""
    return families.part(name, "tokenizer").TRAINED["sentencepiece"]


def _model(name: str, head: str, length: int, rows: int) -> str:
    config = families.part(name, "draft").lines(head, length, rows)
    lines: list[Line] = [
        ("name", name, f"the port in models/{name}"),
        ("weights", None, "new weights; or a Hugging Face folder or hub id to start from"),
        ("config", config, ""),
    ]
    keys_of = families.family(name).in_transformers
    comment = f"    # keys of transformers.{keys_of}; other keys follow from the length, or have their defaults\n"
    return section("model", lines).replace("  config:\n", f"  config:\n{comment}", 1) + "\n"


def _tokenizer(pieces: int | None) -> str:
    if pieces is None:
        lines: list[Line] = [("kind", "bytes", "UTF-8 bytes: there is little text; or sentencepiece, with vocab_size")]
    else:
        lines = [
            ("kind", "sentencepiece", "pieces of words; or bytes"),
            ("vocab_size", pieces, "number of pieces to train on this recipe's text"),
        ]
    return section("tokenizer", lines) + "\n"


def _files(found: DataFiles, write: PathWriter) -> list[Line]:
    what = {"train": "to train on", "validation": "to choose the best checkpoint by", "test": "for the final figure"}
    files: list[Line] = [(split, write(paths[0]), what[split]) for split, paths in found.files.items()]
    unnamed = "column1, column2" if found.kind == "json" else "the first row is the header"
    layout: list[Line] = [
        ("delimiter", found.delimiter, "what parts the columns"),
        ("quote", found.quote, "what stands round a text; or none"),
        ("columns", found.columns, f"their names, since no header has them; null: {unnamed}"),
    ]
    kinds = {"csv": "a table", "json": "rows, a line each; or SQuAD's nested file"}
    return [
        ("dataset", found.kind, kinds.get(found.kind, "a table")),
        ("files", files, ""),
        *(line for line in layout if line[1] is not None),
        *(_splits(found.splits) if found.splits else ()),
        *_encoding(found),
    ]


def _splits(splits: Mapping[str, str]) -> list[Line]:
    """The column that divides the rows of one file."""
    return [
        ("split_column", SPLIT, "the column that says of which split a row is"),
        ("splits", dict(splits), "what it says there"),
    ]


def _folders(found: DataFiles, write: PathWriter) -> list[Line]:
    """A folder of texts for each label."""
    folders = {label: Path(glob.escape(str(files[0].parent))) for label, files in found.files.items()}
    sources: list[Line] = [
        (label, write(folder / "*.txt"), f"{len(found.files[label]):,} texts") for label, folder in folders.items()
    ]
    return [("dataset", "text", "each file is a text"), ("sources", sources, ""), *_encoding(found)]


def _encoding(found: DataFiles) -> list[Line]:
    return [("encoding", found.encoding, "of the files; null: UTF-8")] if found.encoding else []


def _share(share: float | None, how: str = "") -> list[Line]:
    if share is None:
        return []
    return [("validation_fraction", share, f"held out of train, to choose the best checkpoint by{how}")]


def _sample(rows: Any, column: str) -> list[str]:
    values = rows.select(_places(len(rows))).select_columns([column])[:][column]
    return [str(value or "") for value in values]


def _places(count: int) -> list[int]:
    """Return at most :data:`SAMPLE` row numbers, evenly spaced so that they cover a sorted file."""
    return np.linspace(0, count - 1, min(SAMPLE, count)).astype(int).tolist()


def _first(found: DataFiles) -> Sequence[Path]:
    return [files[0] for files in found.files.values()]


def _cut(share: float) -> str:
    return f" ({share:.0%} of these)" if share >= 0.005 else ""


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 100_000 else f"{size / 1e3:.1f} kB"


def _labels(counts: dict[str, int]) -> str:
    many, (least, few) = max(counts.values()), min(counts.items(), key=lambda item: item[1])
    if len(counts) <= 6:
        said = ", ".join(f"{name} {count / sum(counts.values()):.0%}" for name, count in counts.items())
    else:
        said = f"{few:,} to {many:,} rows each"
    uneven = f"; {least} is rare: watch macro_f1, or set train.save_best to it" if many > UNEVEN * few else ""
    return f"{len(counts):,} labels: {said}{uneven}"


def _lengths(tokens: choose.TokenLengths, length: int, cut: float) -> str:
    kind = "bytes" if tokens.pieces is None else f"tokens (of {tokens.pieces:,} SentencePiece pieces)"
    middle, most = np.median(tokens.lengths), tokens.lengths.max()
    longer = f"; {cut:.0%} are longer and are cut" if cut >= 0.005 else ""
    return f"texts of {middle:,.0f} {kind}, the longest {most:,}: max_length {length:,}{longer}"


def _validation(found: DataFiles, share: float | None) -> list[str]:
    held = [] if share is None else [f"{share:.1%} of the rows are held out to validate on".replace(".0%", "%")]
    return [
        *held,
        *([] if found.has("test") or found.classes else ["no test file, so no final figure: add data.files.test"]),
    ]
