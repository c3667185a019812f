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

from models.files.plain import UnreadableFileError, plain_file
from toolkit.commands.recipe_new.folders import (
    SPLIT_NAMES,
    UNLABELED_NAMES,
    find_label_splits,
    find_paths_by_split,
    find_saved_splits,
    find_sibling_splits,
    find_split_parts,
    find_text_folders,
    list_plain_texts,
    list_texts,
    list_unused_saved,
    list_visible,
)
from toolkit.data.source_layout import check_layout_options
from toolkit.data.sources import read_file
from toolkit.errors import UserError
from toolkit.files.compression import content_ending, has_packed_magic
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
from toolkit.files.sheet_rows import read_sheet_rows
from toolkit.files.text_encoding import WrongEncodingError, check_encoding, open_text
from toolkit.recipe.recipe import Recipe
from toolkit.tasks.question_answering import squad
from toolkit.tasks.token_classification import conll
from toolkit.terminal.escape import one_line

#: A folder with more texts gets one control code, not one per file.
MAX_CODES = 8
#: Fewest texts of each folder if folders are labels.
MIN_LABEL_TEXTS = 3
#: Bytes of a JSON file that are searched for the keys of SQuAD's format.
SEARCHED_BYTES = 2**20
#: Rows of a table that are compared with its first row.
COMPARED_ROWS = 1000


@dataclass
class DataFiles:
    """Kind, layout and content of the user's data, as far as they can be detected.

    Attributes:
        kind: as ``data.dataset`` of a recipe.
        files: split -> its file; for plain text, control code -> its files.
        delimiter, encoding, quote, columns: as in the recipe; None if it can omit them.
        splits: split -> value of the column ``split`` in its rows; empty without such a column.
        rows: of the training split; None for plain text and for questions.
        questions: of a question file.
        classes: whether each label has a folder of texts; then ``files`` is label -> its texts.
        held_out: split -> label -> texts of the split's separate folder.
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

    def has(self, split_name: str) -> bool:
        """Whether there are rows of a split."""
        return split_name in self.held_out if self.classes else split_name in self.files or split_name in self.splits

    def split_notes(self) -> dict[str, str]:
        """Return split -> note about its file, without the training split."""
        train, *_ = self.files["train"]
        others = {split_name: files[0] for split_name, files in self.files.items() if split_name != "train"}
        beside = f", beside {train.name},"
        return {
            split_name: (
                f"{file.name + beside if file.parent == train.parent else file.parent.name} is the {split_name} split"
            )
            for split_name, file in others.items()
        }


class LayoutOptions(NamedTuple):
    """Options of the command line about the layout; :func:`inspect_data` describes them."""

    layout: Mapping[str, str]
    header: bool | None
    as_text: bool


def inspect_data(
    data: Path, layout: Mapping[str, str | None] | None = None, *, header: bool | None = None, as_text: bool = False
) -> DataFiles:
    """Inspect a file or a folder of data.

    Args:
        data: file or folder.
        layout: options of a table, as in :func:`toolkit.data.source_layout.find_source_layout`.
        header: whether the first row is a header; None to detect it.
        as_text: whether a text file is read as text even if it looks like a table.

    Raises:
        UserError: the path does not exist, or has no data to train on.
    """
    if header and layout and layout.get("columns") is not None:
        raise UserError("--columns: names the columns of a table without a header; remove --header")
    options = LayoutOptions(
        {name: value for name, value in (layout or {}).items() if value is not None}, header, as_text
    )
    try:
        if data.is_dir():
            return _inspect_folder(data, options)
        return _inspect_file(plain_file(data), options)
    except FileNotFoundError:
        raise UserError(f"{data}: no such file or folder") from None
    except UnreadableFileError as error:
        raise UserError(str(error)) from None
    except (OSError, ValueError) as error:
        raise UserError(f"{data}: cannot be read: {getattr(error, 'strerror', None) or error}") from None


def _inspect_file(path: Path, options: LayoutOptions) -> DataFiles:
    """Return the facts about the data of one file, and the splits of files next to it.

    Args:
        path: file named by the user.
        options: options of the user about the layout.
    """
    if not options.as_text and _is_conll(path):
        return _inspect_conll(path, options)
    kind = detect_kind(path, "text" if options.as_text else "unknown")
    if kind == "unknown":
        known_endings = f"its name should end in one of {', '.join(KIND_BY_ENDING)}, so that its kind is known"
        raise UserError(f"{path}: {known_endings}; --task language_modeling reads it as text")
    if kind == "text" and not options.as_text and (is_text_table(path) or options.layout.keys() - {"encoding"}):
        kind = "csv"
    if kind == "text":
        return _inspect_texts({make_control_code(path): [path]}, options)
    return _inspect_table(kind, {"train": find_split_parts(path), **find_sibling_splits(path)}, options)


def _is_conll(path: Path) -> bool:
    """Whether a file is one of CoNLL, by its name or its content."""
    if (end := content_ending(path)) in conll.ENDINGS:
        return True
    return KIND_BY_ENDING.get(end, "text") in ("text", "csv") and conll.looks_tagged(read_head(path))


def _inspect_conll(path: Path, options: LayoutOptions) -> DataFiles:
    """Read a CoNLL file.

    Args:
        path: the file.
        options: options of the user about the layout.
    """
    data_files = DataFiles("text", {"train": [path], **find_sibling_splits(path)}, tagged=True)
    check_layout_options(options.layout, "text", path)
    data_files.encoding = _find_encoding(data_files, path, options)
    try:
        sentences = conll.read_sentences(_read_whole(path, data_files.encoding or "utf-8", None))
    except conll.ConllError as error:
        raise UserError(f"{path}:{error}") from None
    data_files.rows = datasets.Dataset.from_dict(
        dict(zip(("text", "label"), zip(*sentences, strict=True), strict=True))
    )
    data_files.notes.append("each line is a token and its tag (CoNLL); --task language_modeling reads it as text")
    data_files.notes += data_files.split_notes().values()
    return data_files


def _inspect_folder(folder: Path, options: LayoutOptions) -> DataFiles:
    """Return the facts about the data in a folder: a saved data set, one table, text files, or a folder for each label.

    Args:
        folder: folder named by the user.
        options: options of the user about the layout.
    """
    if files := find_saved_splits(folder):
        data_files = _inspect_table("arrow", files, options)
        others = ", ".join(list_unused_saved(folder, files))
        data_files.notes += (
            [f"not used: {others}, since a recipe has train, validation and test alone"] if others else []
        )
        return data_files
    entries = list_visible(folder)
    tables = [path for path in entries if path.is_file() and KIND_BY_ENDING.get(content_ending(path), "text") != "text"]
    tables = tables or [path for path in entries if path.is_file() and not options.as_text and _is_conll(path)]
    if tables:
        tables = [path for path in tables if path == find_split_parts(path)[0]]
        candidates = [path for path in tables if find_sibling_splits(path) or len(tables) == 1]
        train = [path for path in tables if re.search(SPLIT_NAMES["train"], path.name, re.IGNORECASE)]
        if len(train_tables := train or candidates) == 1:
            return _inspect_file(plain_file(train_tables[0]), options)
        names = ", ".join(path.name for path in tables[:6])
        raise UserError(f"{folder}: holds several tables ({names}), so it is unclear which one to train on; name it")
    if labels := find_label_splits(folder):
        return _inspect_text_folders(labels.pop("train"), options, labels)
    if below := find_text_folders(folder):
        splits = find_paths_by_split(below)
        if "train" in splits and len(splits) == len(below):  # texts without labels
            return _training_text(
                {make_control_code(folder): below[splits.pop("train")]}, list(splits.values()), options
            )
        return _inspect_text_folders(below, options)
    if texts := list_texts(folder) if options.as_text else list_plain_texts(folder):
        held_out = [file for path in texts for files in find_sibling_splits(path).values() for file in files]
        training_texts = [path for path in texts if path not in held_out]
        texts_by_code: dict[str, list[Path]] = {}
        for path in training_texts:
            code = make_control_code(folder if len(training_texts) > MAX_CODES else path)
            texts_by_code.setdefault(code, []).append(path)
        return _training_text(texts_by_code, held_out, options)
    inner = [path for path in entries if path.is_dir()]
    if len(inner) == 1:
        return _inspect_folder(inner[0], options)
    if inner:
        names = ", ".join(path.name for path in inner[:6])
        raise UserError(f"{folder}: holds no data but in its folders ({names}); name one")
    as_text = "; --task language_modeling reads its files as text" if list_texts(folder) else ""
    raise UserError(
        f"{folder}: holds no data; it should hold files that end in one of {', '.join(KIND_BY_ENDING)}{as_text}"
    )


def make_control_code(path: Path) -> str:
    """Make a control code, one word, of a file's or folder's name."""
    words = re.findall(r"[^\W_]+", path.resolve().name.partition(".")[0])
    return "".join(word[0].upper() + word[1:] for word in words) or "Text"


# -- texts ----------------------------------------------------------------------------------------------------------


def _inspect_text_folders(
    folders: dict[Path, list[Path]], options: LayoutOptions, held_out: dict[str, dict[Path, list[Path]]] | None = None
) -> DataFiles:
    """Read texts in folders, and return the facts about them.

    If there are several folders with several texts each, a folder's name is the label of its texts. Otherwise it is
    the control code of its texts for a language model.

    Args:
        folders: folder -> its texts.
        options: options of the command line.
        held_out: folders and their texts of the splits other than training, by split. They are only read for labels.
    """
    labels = _texts_by_label(folders)
    if len(labels) < 2 or min(map(len, labels.values())) < MIN_LABEL_TEXTS:
        return _inspect_texts({make_control_code(path): files for path, files in folders.items()}, options)
    data_files = _inspect_texts(labels, options)
    data_files.classes = True
    for split_name, others in (held_out or {}).items():
        if texts_by_label := _texts_by_label(others):
            data_files.held_out[split_name] = texts_by_label
            data_files.notes.append(f"{next(iter(others)).parent.name} is the {split_name} split")
    data_files.notes += [
        f"{path.name} is no label: --pretrain {path} reads it" for path in folders if path.name not in labels
    ]
    read = {
        label: [_read_whole(path, data_files.encoding or "utf-8") for path in paths]
        for label, paths in data_files.files.items()
    }
    texts = [text for texts in read.values() for text in texts]
    labels_of = [label for label, texts in read.items() for _ in texts]
    data_files.rows = datasets.Dataset.from_dict({"text": texts, "label": labels_of})
    return data_files


def _texts_by_label(folders: dict[Path, list[Path]]) -> dict[str, list[Path]]:
    """Return label -> its texts."""
    return {path.name: files for path, files in folders.items() if not UNLABELED_NAMES.fullmatch(path.name)}


def _training_text(texts_by_code: dict[str, list[Path]], held_out: Sequence[Path], options: LayoutOptions) -> DataFiles:
    """Return the facts about the plain texts of a language model.

    Args:
        texts_by_code: files of the training split, by control code.
        held_out: files or folders of the other splits.
        options: options of the user about the layout.
    """
    data_files = _inspect_texts(texts_by_code, options)
    unused = ", ".join(path.name for path in held_out)
    data_files.notes += [f"not used: {unused}, since a language model's texts have no splits"] if unused else []
    return data_files


def _read_whole(path: Path, encoding: str, newline: str | None = "") -> str:
    """Return the whole text of a file."""
    with open_text(path, encoding, newline=newline) as file:
        return file.read()


def _inspect_texts(files: dict[str, list[Path]], options: LayoutOptions) -> DataFiles:
    """Return the facts about plain text files, which must share one encoding.

    Args:
        files: paths of the texts, by control code or label.
        options: options of the user about the layout.
    """
    data_files = DataFiles("text", files)
    first = next(iter(files.values()))[0]
    check_layout_options(options.layout, "text", first)
    if options.header is not None:
        raise UserError(f"--header: is for csv, not for {first}; remove it")
    encodings: dict[str | None, list[Path]] = {}
    for paths in files.values():
        for path in paths:
            encodings.setdefault(_find_encoding(data_files, plain_file(path), options), []).append(path)
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


def _inspect_table(kind: str, files: dict[str, list[Path]], options: LayoutOptions) -> DataFiles:
    """Return the facts about a table: encoding, delimiter, quote and columns.

    Args:
        kind: kind of the files, such as ``csv``.
        files: paths of the files, by split.
        options: options of the user about the layout.
    """
    train = files["train"][0]
    data_files = DataFiles(kind, files)
    if (by_name := KIND_BY_ENDING.get(content_ending(train))) != kind:
        otherwise = "; --task language_modeling reads it as text" if by_name == "text" else ""
        data_files.notes.append(f"{train.name} is read as {kind}, as its content looks{otherwise}")
    layout = check_layout_options(options.layout, kind, train)
    if options.header is not None and kind not in ("csv", "xlsx"):
        raise UserError(f"--header: is for csv, not for {train}; remove it")
    if kind in ("csv", "json"):
        data_files.encoding = _find_encoding(data_files, train, options)
    data_files.columns, is_labeled = layout.get("columns"), False
    if kind == "csv" and not layout.keys() - {"encoding"} and (label := find_first_label(read_head(train))):
        data_files.delimiter, data_files.columns, is_labeled = " ", ["label", "text"], True
        is_first = read_head(train).lstrip().startswith((FASTTEXT_PREFIX, label))
        verb = "begins" if is_first else "ends"
        data_files.notes.append(f"each line {verb} with its label ({label}); the rest of it is the text")
    elif kind == "csv":
        data_files.quote = _find_quote(data_files, train, layout)
        data_files.delimiter = layout.get("delimiter") or _find_delimiter(data_files, train)
        rows = read_first_rows(train, _build_layout(data_files, train), COMPARED_ROWS)
    if kind == "xlsx":
        known_columns = tuple(data_files.columns) if data_files.columns else None
        rows = list(itertools.islice(read_sheet_rows(train, known_columns), COMPARED_ROWS))
    if kind == "csv" and data_files.columns is None:
        _check_title(train, rows)
    if data_files.columns is None and kind in ("csv", "xlsx"):
        data_files.columns = _name_columns(data_files, rows, header=options.header)
    if kind == "json" and data_files.encoding is None and (questions := _read_squad(train)):
        data_files.questions = questions
        return data_files
    data_files.rows = read_split_rows(data_files, "train")
    data_files.separates_labels = is_labeled and any(" " in label for label in data_files.rows["label"][:])
    names = default_column_names(sum(name != SPLIT_COLUMN for name in data_files.rows.column_names))
    if kind == "json" and data_files.columns is None and set(names) == {*data_files.rows.column_names} - {SPLIT_COLUMN}:
        data_files.columns = names
        data_files.notes.append(f"rows are lists: their columns are called {', '.join(names)} (--columns names them)")
    _select_training_rows(data_files)
    if len(files["train"]) > 1:
        data_files.notes.append(f"{len(files['train'])} files like {train.name} are the training split")
    data_files.notes += data_files.split_notes().values()
    return data_files


def _select_training_rows(data_files: DataFiles) -> None:
    """Keep only the training rows of a table with a column ``split``.

    Args:
        data_files: facts about the files.
    """
    rows = data_files.rows
    if rows is None or len(data_files.files) > 1 or SPLIT_COLUMN not in rows.column_names:
        return
    values = [str(value) for value in rows.unique(SPLIT_COLUMN)]
    for split_name, pattern in SPLIT_NAMES.items():
        if (value := next((one for one in values if re.fullmatch(pattern, one, re.IGNORECASE)), None)) is not None:
            data_files.splits[split_name] = value
    if "train" not in data_files.splits or len(data_files.splits) < 2:
        data_files.splits.clear()
        return
    unused_values = [value for value in values if value not in data_files.splits.values()]
    assignment = ", ".join(f"{split_name}: {value}" for split_name, value in data_files.splits.items())
    unused = f"; not used: {', '.join(unused_values)}" if unused_values else ""
    data_files.notes.append(f"the column {SPLIT_COLUMN} divides the rows ({assignment}){unused}")
    row_indices = [index for index, value in enumerate(rows[SPLIT_COLUMN]) if str(value) == data_files.splits["train"]]
    data_files.rows = rows.select(row_indices).remove_columns(SPLIT_COLUMN)


def _find_encoding(data_files: DataFiles, path: Path, options: LayoutOptions) -> str | None:
    """Return a file's encoding; None for UTF-8.

    Args:
        data_files: facts about the files.
        path: the file.
        options: options of the user about the layout.
    """
    if (encoding_option := options.layout.get("encoding")) is not None:
        try:
            check_encoding(path, encoding_option)
        except WrongEncodingError as error:
            raise UserError(f"{path}:{error.line}: {error.format_message('--encoding')}") from None
        return encoding_option
    try:
        check_encoding(path)
        return None
    except WrongEncodingError as error:
        if error.likely is None:
            raise UserError(f"{path}: {error.format_message('--encoding')}") from None
        try:
            check_encoding(path, error.likely)
        except WrongEncodingError:
            raise UserError(f"{path}: is not utf-8, nor all of it {error.likely}; is it text?") from None
        data_files.notes.append(f"{path.name} {str(error).rpartition(': set')[0]}")
        return error.likely


def _build_layout(data_files: DataFiles, path: Path) -> Layout:
    """Return the layout of a csv file, with defaults for everything that was not found.

    Args:
        data_files: facts about the files.
        path: the file.
    """
    return Layout(
        data_files.delimiter or default_delimiter(path),
        encoding=data_files.encoding or "utf-8",
        quote=data_files.quote or '"',
    )


def _find_quote(data_files: DataFiles, path: Path, layout_options: Mapping[str, Any]) -> str | None:
    """Return the character that quotes the texts of a table; None for ``"``.

    Args:
        data_files: facts about the files; a note is added to them.
        path: file of the table.
        layout_options: options of the user about the layout, by name.
    """
    if "quote" in layout_options:
        return layout_options["quote"]
    if has_plain_quotes(path, data_files.encoding or "utf-8"):
        data_files.notes.append(
            "quotes are part of the texts, since one opens and does not close (--quote says otherwise)"
        )
        return "none"
    if not has_single_quotes(path, data_files.encoding or "utf-8"):
        return None
    data_files.notes.append("texts are between single quotes (--quote says otherwise)")
    return "'"


def _find_delimiter(data_files: DataFiles, path: Path) -> str | None:
    """Return the delimiter that fits; None for the default one.

    Args:
        data_files: facts about the files.
        path: the file.
    """
    likely = detect_delimiter(path, replace(_build_layout(data_files, path), delimiter=""))
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


def _name_columns(data_files: DataFiles, rows: Sequence[Sequence[str]], *, header: bool | None) -> list[str] | None:
    """Return names for the columns of a table without a header; None if it has a header.

    Args:
        data_files: facts about the files.
        rows: first rows of the table.
        header: whether the table has a header, according to the user; None without this option.
    """
    if header or not rows or (header is None and not lacks_header(rows)):
        return None
    names = default_column_names(len(rows[0]))
    first_cells = ", ".join(cell if len(cell) <= 20 else f"{cell[:19]}…" for cell in rows[0][:4])
    data_files.notes.append(
        f"the first row ({first_cells}) is data, so there is no header: the columns are called {', '.join(names)} "
        "(--columns names them, --header makes it the header)"
    )
    return names


def _read_squad(path: Path) -> list[squad.Example]:
    """Read the questions of a file in SQuAD's nested format; none of another.

    Raises:
        UserError: it is such a file, with an error in it.
    """
    with open(path, "rb") as file:
        head = file.read(SEARCHED_BYTES)
    if has_packed_magic(head) or b'"paragraphs"' not in head or b'"data"' not in head:
        return []
    return squad.read_examples(path)


def read_split_rows(data_files: DataFiles, split_name: str) -> datasets.Dataset:
    """Read the rows of a table's split as a run does.

    Raises:
        UserError: they cannot be read, or there are none.
    """
    keys = ("delimiter", "encoding", "quote", "columns")
    settings: dict[str, Any] = {key: getattr(data_files, key) for key in keys}
    paths = data_files.files[split_name]
    data = {"dataset": data_files.kind, "max_length": 1, "files": {"train": os.fspath(paths[0])}, **settings}
    provisional = Recipe.model_validate({"data": data, "train": {"learning_rate": 1.0, "epochs": 1.0}})
    try:
        parts = [read_file(provisional, "train", plain_file(path)) for path in paths]
        rows = datasets.concatenate_datasets(parts)
    except UserError as error:
        raise UserError(f"{paths[0]}: {str(error).rpartition('data.')[2]}") from None
    if not len(rows):
        raise UserError(f"{paths[0]}: holds no rows")
    return rows
