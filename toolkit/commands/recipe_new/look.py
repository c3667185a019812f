"""Inspect a user's data: its kind, delimiter, encoding, files of each split, and rows."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import datasets

from models.files.plain import UnreadableFile, plain_file
from toolkit.commands.recipe_new.folders import (
    SPLIT_NAMES,
    UNLABELLED,
    by_split,
    folders_of_texts,
    parts_of,
    plain_texts,
    saved_besides,
    saved_splits,
    splits_beside,
    splits_of_labels,
    texts_in,
    visible,
)
from toolkit.data.source_layout import check_layout_options
from toolkit.data.sources import read_file
from toolkit.errors import UserError
from toolkit.files.csv_rows import (
    FASTTEXT_PREFIX,
    Layout,
    default_delimiter,
    detect_delimiter,
    has_plain_quotes,
    has_single_quotes,
    lacks_header,
    read_first_rows,
)
from toolkit.files.json_rows import SPLIT_COLUMN, default_column_names
from toolkit.files.kinds import KIND_BY_ENDING, detect_kind, find_first_label, is_text_table, read_head
from toolkit.files.packed import content_ending, has_packed_magic
from toolkit.files.sheet_rows import read_sheet_rows
from toolkit.files.text_encoding import WrongEncodingError, check_encoding, open_text
from toolkit.recipe.recipe import Recipe
from toolkit.tasks.question_answering import squad
from toolkit.tasks.token_classification import conll
from toolkit.terminal.escape import one_line

#: A folder with more texts gets one control code, not one per file.
MOST_CODES = 8
#: Folders of at least this many texts each are taken for labels.
FEWEST_TEXTS = 3
#: Bytes of a JSON file that are searched for the keys of SQuAD's format.
LOOKED_AT_BYTES = 2**20
#: Rows of a table that are compared with its first one.
LOOKED_AT_ROWS = 1000


@dataclass
class DataFiles:
    """What the files of a path are, as far as one can see.

    Attributes:
        kind: as ``data.dataset`` of a recipe.
        files: split -> its file; for plain text, control code -> its files.
        delimiter, encoding, quote, columns: as in the recipe; None if it can omit them.
        splits: split -> what the column ``split`` says of its rows; empty without such a column.
        rows: of the training split; None for plain text and for questions.
        questions: of a question file.
        classes: whether each label has a folder of texts; then ``files`` is label -> its texts.
        held_out: split -> the same of its own folder.
        tagged: whether it is CoNLL, with the columns ``text`` (tokens) and ``label`` (tags).
        separates_labels: whether the column ``label`` holds several labels with blanks between them, as fastText does.
        notes: assumptions, a line each.
    """

    kind: str
    files: dict[str, list[Path]]
    classes: bool = False
    held_out: dict[str, dict[str, list[Path]]] = field(default_factory=dict)
    tagged: bool = False
    delimiter: str | None = None
    encoding: str | None = None
    quote: str | None = None
    columns: list[str] | None = None
    splits: dict[str, str] = field(default_factory=dict)
    rows: datasets.Dataset | None = None
    questions: list[squad.Example] = field(default_factory=list)
    separates_labels: bool = False
    notes: list[str] = field(default_factory=list)

    def has(self, split: str) -> bool:
        """Whether there are rows of a split."""
        return split in self.held_out if self.classes else split in self.files or split in self.splits

    def split_notes(self) -> dict[str, str]:
        """Return split -> the note that says which file it is, but for the training split."""
        train, *_ = self.files["train"]
        others = {split: files[0] for split, files in self.files.items() if split != "train"}
        beside = f", beside {train.name},"
        return {
            split: f"{file.name + beside if file.parent == train.parent else file.parent.name} is the {split} split"
            for split, file in others.items()
        }


class Said(NamedTuple):
    """What the user says of the layout; see :func:`look`."""

    layout: Mapping[str, str]
    header: bool | None
    as_text: bool


def look(
    data: Path, layout: Mapping[str, str | None] | None = None, header: bool | None = None, as_text: bool = False
) -> DataFiles:
    """Look at a file or a folder.

    Args:
        layout: what the user says of a table, as :func:`toolkit.data.source_layout.find_source_layout` takes it.
        header: whether its first row is one; None for what it looks like.
        as_text: a text file is no table, though it may look like one.

    Raises:
        UserError: nothing is there, or nothing that can be trained on.
    """
    if header and layout and layout.get("columns") is not None:
        raise UserError("--columns: names the columns of a table without a header; remove --header")
    said = Said({name: value for name, value in (layout or {}).items() if value is not None}, header, as_text)
    try:
        if data.is_dir():
            return _folder(data, said)
        return _file(plain_file(data), said)
    except FileNotFoundError:
        raise UserError(f"{data}: no such file or folder") from None
    except UnreadableFile as problem:
        raise UserError(str(problem)) from None
    except (OSError, ValueError) as problem:
        raise UserError(f"{data}: cannot be read: {getattr(problem, 'strerror', None) or problem}") from None


def _file(path: Path, said: Said) -> DataFiles:
    if not said.as_text and _is_tagged(path):
        return _tagged(path, said)
    kind = detect_kind(path, "text" if said.as_text else "unknown")
    if kind == "unknown":
        known_endings = f"its name should end in one of {', '.join(KIND_BY_ENDING)}, so that its kind is known"
        raise UserError(f"{path}: {known_endings}; --task language_modeling reads it as text")
    if kind == "text" and not said.as_text and (is_text_table(path) or said.layout.keys() - {"encoding"}):
        kind = "csv"
    if kind == "text":
        return _text({code_of(path): [path]}, said)
    return _table(kind, {"train": parts_of(path), **splits_beside(path)}, said)


def _is_tagged(path: Path) -> bool:
    """Whether a file is one of CoNLL, by its name or its content."""
    if (end := content_ending(path)) in conll.ENDINGS:
        return True
    return KIND_BY_ENDING.get(end, "text") in ("text", "csv") and conll.looks_tagged(read_head(path))


def _tagged(path: Path, said: Said) -> DataFiles:
    """Read a CoNLL file."""
    data_files = DataFiles("text", {"train": [path], **splits_beside(path)}, tagged=True)
    check_layout_options(said.layout, "text", path)
    data_files.encoding = _encoding(data_files, path, said)
    try:
        sentences = conll.read_sentences(_whole(path, data_files.encoding or "utf-8", None))
    except conll.ConllError as problem:
        raise UserError(f"{path}:{problem}") from None
    data_files.rows = datasets.Dataset.from_dict(
        dict(zip(("text", "label"), zip(*sentences, strict=True), strict=True))
    )
    data_files.notes.append("each line is a token and its tag (CoNLL); --task language_modeling reads it as text")
    data_files.notes += data_files.split_notes().values()
    return data_files


def _folder(folder: Path, said: Said) -> DataFiles:
    if files := saved_splits(folder):
        data_files = _table("arrow", files, said)
        others = ", ".join(saved_besides(folder, files))
        data_files.notes += (
            [f"not used: {others}, since a recipe has train, validation and test alone"] if others else []
        )
        return data_files
    entries = visible(folder)
    tables = [path for path in entries if path.is_file() and KIND_BY_ENDING.get(content_ending(path), "text") != "text"]
    tables = tables or [path for path in entries if path.is_file() and not said.as_text and _is_tagged(path)]
    if tables:
        tables = [path for path in tables if path == parts_of(path)[0]]
        candidates = [path for path in tables if splits_beside(path) or len(tables) == 1]
        train = [path for path in tables if re.search(SPLIT_NAMES["train"], path.name, re.IGNORECASE)]
        if len(train_tables := train or candidates) == 1:
            return _file(plain_file(train_tables[0]), said)
        names = ", ".join(path.name for path in tables[:6])
        raise UserError(f"{folder}: holds several tables ({names}), so it is unclear which one to train on; name it")
    if labels := splits_of_labels(folder):
        return _below(labels.pop("train"), said, labels)
    if below := folders_of_texts(folder):
        splits = by_split(below)
        if "train" in splits and len(splits) == len(below):  # texts without labels
            return _training_text({code_of(folder): below[splits.pop("train")]}, list(splits.values()), said)
        return _below(below, said)
    if texts := texts_in(folder) if said.as_text else plain_texts(folder):
        held_out = [file for path in texts for files in splits_beside(path).values() for file in files]
        training_texts = [path for path in texts if path not in held_out]
        texts_by_code: dict[str, list[Path]] = {}
        for path in training_texts:
            code = code_of(folder if len(training_texts) > MOST_CODES else path)
            texts_by_code.setdefault(code, []).append(path)
        return _training_text(texts_by_code, held_out, said)
    inner = [path for path in entries if path.is_dir()]
    if len(inner) == 1:
        return _folder(inner[0], said)
    if inner:
        names = ", ".join(path.name for path in inner[:6])
        raise UserError(f"{folder}: holds no data but in its folders ({names}); name one")
    as_text = "; --task language_modeling reads its files as text" if texts_in(folder) else ""
    raise UserError(
        f"{folder}: holds no data; it should hold files that end in one of {', '.join(KIND_BY_ENDING)}{as_text}"
    )


def code_of(path: Path) -> str:
    """Make a control code, one word, of a file's or folder's name."""
    words = re.findall(r"[^\W_]+", path.resolve().name.partition(".")[0])
    return "".join(word[0].upper() + word[1:] for word in words) or "Text"


# -- texts ----------------------------------------------------------------------------------------------------------


def _below(
    folders: dict[Path, list[Path]], said: Said, held_out: dict[str, dict[Path, list[Path]]] | None = None
) -> DataFiles:
    """Read texts in folders: one label per folder if there are several, of several texts each; else a control code.

    Args:
        held_out: other splits' folders.
    """
    labels = _labels_of(folders)
    if len(labels) < 2 or min(map(len, labels.values())) < FEWEST_TEXTS:
        return _text({code_of(path): files for path, files in folders.items()}, said)
    data_files = _text(labels, said)
    data_files.classes = True
    for split, others in (held_out or {}).items():
        if known := _labels_of(others):
            data_files.held_out[split] = known
            data_files.notes.append(f"{next(iter(others)).parent.name} is the {split} split")
    data_files.notes += [
        f"{path.name} is no label: --pretrain {path} reads it" for path in folders if path.name not in labels
    ]
    read = {
        label: [_whole(path, data_files.encoding or "utf-8") for path in paths]
        for label, paths in data_files.files.items()
    }
    texts = [text for texts in read.values() for text in texts]
    labels_of = [label for label, texts in read.items() for _ in texts]
    data_files.rows = datasets.Dataset.from_dict({"text": texts, "label": labels_of})
    return data_files


def _labels_of(folders: dict[Path, list[Path]]) -> dict[str, list[Path]]:
    """Return label -> its texts."""
    return {path.name: files for path, files in folders.items() if not UNLABELLED.fullmatch(path.name)}


def _training_text(texts_by_code: dict[str, list[Path]], held_out: Sequence[Path], said: Said) -> DataFiles:
    """Read the texts of a language model; ``held_out`` are the files or folders of its other splits."""
    data_files = _text(texts_by_code, said)
    unused = ", ".join(path.name for path in held_out)
    data_files.notes += [f"not used: {unused}, since a language model's texts have no splits"] if unused else []
    return data_files


def _whole(path: Path, encoding: str, newline: str | None = "") -> str:
    with open_text(path, encoding, newline=newline) as file:
        return file.read()


def _text(files: dict[str, list[Path]], said: Said) -> DataFiles:
    data_files = DataFiles("text", files)
    first = next(iter(files.values()))[0]
    check_layout_options(said.layout, "text", first)
    if said.header is not None:
        raise UserError(f"--header: is for csv, not for {first}; remove it")
    encodings: dict[str | None, list[Path]] = {}
    for paths in files.values():
        for path in paths:
            encodings.setdefault(_encoding(data_files, plain_file(path), said), []).append(path)
    if len(encodings) == 2 and all(path.read_bytes().isascii() for path in encodings.get(None, [])):
        encodings.pop(None)  # ASCII is the same in the other
    if len(encodings) > 1:
        wrong = ", ".join(sorted(encoding or "utf-8" for encoding in encodings))
        raise UserError(f"{next(iter(files.values()))[0].parent}: the texts are in several encodings ({wrong})")
    if len(data_files.notes) > 1:
        data_files.notes = [f"{data_files.notes[0]}, as are {len(data_files.notes) - 1:,} other texts"]
    (data_files.encoding,) = encodings
    return data_files


# -- tables ---------------------------------------------------------------------------------------------------------


def _table(kind: str, files: dict[str, list[Path]], said: Said) -> DataFiles:
    train = files["train"][0]
    data_files = DataFiles(kind, files)
    if (by_name := KIND_BY_ENDING.get(content_ending(train))) != kind:
        otherwise = "; --task language_modeling reads it as text" if by_name == "text" else ""
        data_files.notes.append(f"{train.name} is read as {kind}, as its content looks{otherwise}")
    layout = check_layout_options(said.layout, kind, train)
    if said.header is not None and kind not in ("csv", "xlsx"):
        raise UserError(f"--header: is for csv, not for {train}; remove it")
    if kind in ("csv", "json"):
        data_files.encoding = _encoding(data_files, train, said)
    data_files.columns, is_labelled = layout.get("columns"), False
    if kind == "csv" and not layout.keys() - {"encoding"} and (label := find_first_label(read_head(train))):
        data_files.delimiter, data_files.columns, is_labelled = " ", ["label", "text"], True
        is_first = read_head(train).lstrip().startswith((FASTTEXT_PREFIX, label))
        verb = "begins" if is_first else "ends"
        data_files.notes.append(f"each line {verb} with its label ({label}); the rest of it is the text")
    elif kind == "csv":
        data_files.quote = _quote(data_files, train, layout)
        data_files.delimiter = layout.get("delimiter") or _delimiter(data_files, train)
        rows = read_first_rows(train, _layout(data_files, train), LOOKED_AT_ROWS)
    if kind == "xlsx":
        known_columns = tuple(data_files.columns) if data_files.columns else None
        rows = list(itertools.islice(read_sheet_rows(train, known_columns), LOOKED_AT_ROWS))
    if kind == "csv" and data_files.columns is None:
        _check_title(train, rows)
    if data_files.columns is None and kind in ("csv", "xlsx"):
        data_files.columns = _columns(data_files, rows, said.header)
    if kind == "json" and data_files.encoding is None and (questions := _squad(train)):
        data_files.questions = questions
        return data_files
    data_files.rows = rows_of_split(data_files, "train")
    data_files.separates_labels = is_labelled and any(" " in label for label in data_files.rows["label"][:])
    names = default_column_names(sum(name != SPLIT_COLUMN for name in data_files.rows.column_names))
    if kind == "json" and data_files.columns is None and set(names) == {*data_files.rows.column_names} - {SPLIT_COLUMN}:
        data_files.columns = names
        data_files.notes.append(f"rows are lists: their columns are called {', '.join(names)} (--columns names them)")
    _divide(data_files)
    if len(files["train"]) > 1:
        data_files.notes.append(f"{len(files['train'])} files like {train.name} are the training split")
    data_files.notes += data_files.split_notes().values()
    return data_files


def _divide(data_files: DataFiles) -> None:
    """Keep the training rows of a table whose column ``split`` says which these are."""
    rows = data_files.rows
    if rows is None or len(data_files.files) > 1 or SPLIT_COLUMN not in rows.column_names:
        return
    values = [str(value) for value in rows.unique(SPLIT_COLUMN)]
    for split, pattern in SPLIT_NAMES.items():
        if (value := next((one for one in values if re.fullmatch(pattern, one, re.IGNORECASE)), None)) is not None:
            data_files.splits[split] = value
    if "train" not in data_files.splits or len(data_files.splits) < 2:
        data_files.splits.clear()
        return
    left = [value for value in values if value not in data_files.splits.values()]
    said = ", ".join(f"{split}: {value}" for split, value in data_files.splits.items())
    unused = f"; not used: {', '.join(left)}" if left else ""
    data_files.notes.append(f"the column {SPLIT_COLUMN} divides the rows ({said}){unused}")
    chosen = [index for index, value in enumerate(rows[SPLIT_COLUMN]) if str(value) == data_files.splits["train"]]
    data_files.rows = rows.select(chosen).remove_columns(SPLIT_COLUMN)


def _encoding(data_files: DataFiles, path: Path, said: Said) -> str | None:
    """Return a file's encoding; None for UTF-8."""
    if (given := said.layout.get("encoding")) is not None:
        try:
            check_encoding(path, given)
        except WrongEncodingError as problem:
            raise UserError(f"{path}:{problem.line}: {problem.format_message('--encoding')}") from None
        return given
    try:
        check_encoding(path)
        return None
    except WrongEncodingError as problem:
        if problem.likely is None:
            raise UserError(f"{path}: {problem.format_message('--encoding')}") from None
        try:
            check_encoding(path, problem.likely)
        except WrongEncodingError:
            raise UserError(f"{path}: is not utf-8, nor all of it {problem.likely}; is it text?") from None
        data_files.notes.append(f"{path.name} {str(problem).rpartition(': set')[0]}")
        return problem.likely


def _layout(data_files: DataFiles, path: Path) -> Layout:
    return Layout(
        data_files.delimiter or default_delimiter(path),
        encoding=data_files.encoding or "utf-8",
        quote=data_files.quote or '"',
    )


def _quote(data_files: DataFiles, path: Path, given: Mapping[str, Any]) -> str | None:
    """Return what stands round the texts; None for the usual quotes."""
    if "quote" in given:
        return given["quote"]
    if has_plain_quotes(path, data_files.encoding or "utf-8"):
        data_files.notes.append(
            "quotes are part of the texts, since one opens and does not close (--quote says otherwise)"
        )
        return "none"
    if not has_single_quotes(path, data_files.encoding or "utf-8"):
        return None
    data_files.notes.append("texts are between single quotes (--quote says otherwise)")
    return "'"


def _delimiter(data_files: DataFiles, path: Path) -> str | None:
    """Return the delimiter that fits; None for the default one."""
    likely = detect_delimiter(path, replace(_layout(data_files, path), delimiter=""))
    if likely == default_delimiter(path):
        return None
    data_files.notes.append(f"the columns are parted by {likely!r}")
    return likely


def _check_title(path: Path, rows: Sequence[Sequence[str]]) -> None:
    """Refuse a csv file whose first row is a title above the header; of a sheet, it is left out."""
    first_row, second_row = [*rows[:2], [], []][:2]
    is_title = len(first_row) > 1 and bool(first_row[0].strip()) and not any(cell.strip() for cell in first_row[1:])
    if is_title and len(second_row) == len(first_row) and all(cell.strip() for cell in second_row):
        title = one_line(first_row[0])[:40]
        raise UserError(f"{path}:1: {title!r} is a title above the table; delete its line, so that the header is first")


def _columns(data_files: DataFiles, rows: Sequence[Sequence[str]], header: bool | None) -> list[str] | None:
    """Return names of the columns of a table without a header; None where there is one."""
    if header or not rows or (header is None and not lacks_header(rows)):
        return None
    names = default_column_names(len(rows[0]))
    shown = ", ".join(cell if len(cell) <= 20 else f"{cell[:19]}…" for cell in rows[0][:4])
    data_files.notes.append(
        f"the first row ({shown}) is data, so there is no header: the columns are called {', '.join(names)} "
        "(--columns names them, --header makes it the header)"
    )
    return names


def _squad(path: Path) -> list[squad.Example]:
    """Read the questions of a file in SQuAD's nested format; none of another.

    Raises:
        UserError: it is such a file, with an error in it.
    """
    with open(path, "rb") as file:
        head = file.read(LOOKED_AT_BYTES)
    if has_packed_magic(head) or b'"paragraphs"' not in head or b'"data"' not in head:
        return []
    return squad.read_examples(path)


def rows_of_split(data_files: DataFiles, split: str) -> datasets.Dataset:
    """Read the rows of a table's split as a run does.

    Raises:
        UserError: they cannot be read, or there are none.
    """
    keys = ("delimiter", "encoding", "quote", "columns")
    settings: dict[str, Any] = {key: getattr(data_files, key) for key in keys}
    paths = data_files.files[split]
    data = {"dataset": data_files.kind, "max_length": 1, "files": {"train": os.fspath(paths[0])}, **settings}
    provisional = Recipe.model_validate({"data": data, "train": {"learning_rate": 1.0, "epochs": 1.0}})
    try:
        parts = [read_file(provisional, "train", plain_file(path)) for path in paths]
        rows = datasets.concatenate_datasets(parts)
    except UserError as problem:
        raise UserError(f"{paths[0]}: {str(problem).rpartition('data.')[2]}") from None
    if not len(rows):
        raise UserError(f"{paths[0]}: holds no rows")
    return rows
