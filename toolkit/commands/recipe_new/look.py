"""Inspect a user's data: its kind, delimiter, encoding, files of each split, and rows."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import datasets

from models.files.plain import UnreadableFile, plain_file
from toolkit.data.sources import read_file
from toolkit.errors import UserError
from toolkit.files.csv_rows import likely_delimiter, usual_delimiter
from toolkit.files.packed import begins_packed, ending
from toolkit.files.tables import KINDS, kind_of
from toolkit.files.text_encoding import WrongEncoding, check_encoding, opened_text
from toolkit.recipe.recipe import Recipe
from toolkit.tasks.question_answering import squad

#: Split -> pattern in its file's name.
SPLIT_NAMES = {
    "train": r"train(ing)?",
    "validation": r"valid(ation)?|val|dev(elopment)?",
    "test": r"test(ing)?",
}
#: A folder with more texts gets one control code, not one per file.
MOST_CODES = 8
#: Folders of at least this many texts each are taken for labels.
FEWEST_TEXTS = 3
#: Bytes of a JSON file that are searched for the keys of SQuAD's format.
LOOKED_AT_BYTES = 2**20


@dataclass
class DataFiles:
    """What the files of a path are, as far as one can see.

    Attributes:
        kind: as ``data.dataset`` of a recipe.
        files: split -> its file; for plain text, control code -> its files.
        delimiter, encoding: as in the recipe; None if it can omit them.
        rows: of the training file; None for plain text and for questions.
        questions: of a question file.
        classes: whether each label has a folder of texts; then ``files`` is label -> its texts.
        notes: assumptions, a line each.
    """

    kind: str
    files: dict[str, list[Path]]
    classes: bool = False
    delimiter: str | None = None
    encoding: str | None = None
    rows: datasets.Dataset | None = None
    questions: list[squad.Example] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def look(data: Path) -> DataFiles:
    """Look at a file or a folder.

    Raises:
        UserError: nothing is there, or nothing that can be trained on.
    """
    try:
        if data.is_dir():
            return _folder(data)
        return _file(plain_file(data))
    except FileNotFoundError:
        raise UserError(f"{data}: no such file or folder") from None
    except UnreadableFile as problem:
        raise UserError(str(problem)) from None
    except (OSError, ValueError) as problem:
        raise UserError(f"{data}: cannot be read: {getattr(problem, 'strerror', None) or problem}") from None


def _file(path: Path) -> DataFiles:
    kind = kind_of(path)
    if kind == "text":
        return _text({code_of(path): [path]})
    return _table(kind, {"train": path, **_siblings(path)})


def _siblings(path: Path) -> dict[str, Path]:
    """Return split -> the file beside a training file whose name differs only in the split."""
    match = re.search(rf"(?<![a-z])({SPLIT_NAMES['train']})(?![a-z])", path.name, re.IGNORECASE)
    if match is None:
        return {}
    found: dict[str, Path] = {}
    for other in sorted(path.parent.iterdir()):
        for split in ("validation", "test"):
            begin, end = re.escape(path.name[: match.start()]), re.escape(path.name[match.end() :])
            if re.fullmatch(f"{begin}({SPLIT_NAMES[split]}){end}", other.name, re.IGNORECASE) and other.is_file():
                found.setdefault(split, other)
    return found


def _folder(folder: Path) -> DataFiles:
    entries = [path for path in sorted(folder.iterdir()) if not path.name.startswith((".", "_"))]
    tables = [path for path in entries if path.is_file() and KINDS.get(ending(path), "text") != "text"]
    texts = [path for path in entries if path.is_file() and path.suffix.lower() == ".txt"]
    below = {path: sorted(path.glob("*.txt")) for path in entries if path.is_dir()}
    below = {path: files for path, files in below.items() if files}
    if tables:
        named = [path for path in tables if _siblings(path) or len(tables) == 1]
        train = [path for path in tables if re.search(SPLIT_NAMES["train"], path.name, re.IGNORECASE)]
        if len(chosen := train or named) == 1:
            return _file(plain_file(chosen[0]))
        names = ", ".join(path.name for path in tables[:6])
        raise UserError(f"{folder}: holds several tables ({names}), so it is unclear which one to train on; name it")
    if below:
        return _below(below)
    if texts:
        many = len(texts) > MOST_CODES
        return _text({code_of(folder): texts} if many else {code_of(path): [path] for path in texts})
    raise UserError(f"{folder}: holds no data; it should hold files that end in one of {', '.join(KINDS)}")


def code_of(path: Path) -> str:
    """Make a control code, one word, of a file's or folder's name."""
    words = re.findall(r"[^\W_]+", path.resolve().name.partition(".")[0])
    return "".join(word[0].upper() + word[1:] for word in words) or "Text"


# -- texts ----------------------------------------------------------------------------------------------------------


def _below(folders: dict[Path, list[Path]]) -> DataFiles:
    """Read texts in folders: one label per folder if there are several, of several texts each; else a control code."""
    if len(folders) < 2 or min(map(len, folders.values())) < FEWEST_TEXTS:
        return _text({code_of(path): files for path, files in folders.items()})
    found = _text({path.name: files for path, files in folders.items()})
    found.classes = True
    read = {label: [_whole(path, found.encoding or "utf-8") for path in paths] for label, paths in found.files.items()}
    texts = [text for texts in read.values() for text in texts]
    labels = [label for label, texts in read.items() for _ in texts]
    found.rows = datasets.Dataset.from_dict({"text": texts, "label": labels})
    return found


def _whole(path: Path, encoding: str) -> str:
    with opened_text(path, encoding, newline="") as file:
        return file.read()


def _text(files: dict[str, list[Path]]) -> DataFiles:
    found = DataFiles("text", files)
    encodings = {_encoding(found, plain_file(path)) for paths in files.values() for path in paths}
    if len(encodings) > 1:
        wrong = ", ".join(sorted(encoding or "utf-8" for encoding in encodings))
        raise UserError(f"{next(iter(files.values()))[0].parent}: the texts are in several encodings ({wrong})")
    found.encoding = encodings.pop()
    return found


# -- tables ---------------------------------------------------------------------------------------------------------


def _table(kind: str, files: dict[str, Path]) -> DataFiles:
    train = files["train"]
    found = DataFiles(kind, {split: [path] for split, path in files.items()})
    if kind in ("csv", "json"):
        found.encoding = _encoding(found, train)
    if kind == "csv":
        found.delimiter = _delimiter(found, train)
    if kind == "json" and found.encoding is None and (questions := _squad(train)):
        found.questions = questions
        return found
    found.rows = _rows(found, train)
    for split in ("validation", "test"):
        if split in files:
            found.notes.append(f"{files[split].name}, beside {train.name}, is the {split} split")
    return found


def _encoding(found: DataFiles, path: Path) -> str | None:
    """Return a file's encoding; None for UTF-8."""
    try:
        check_encoding(path)
        return None
    except WrongEncoding as problem:
        if problem.likely is None:
            raise UserError(f"{path}: {problem}, in data.encoding of a recipe") from None
        try:
            check_encoding(path, problem.likely)
        except WrongEncoding:
            raise UserError(f"{path}: is not utf-8, nor all of it {problem.likely}; is it text?") from None
        found.notes.append(f"{path.name} {str(problem).rpartition(': set')[0]}")
        return problem.likely


def _delimiter(found: DataFiles, path: Path) -> str | None:
    """Return the delimiter that fits; None for the default one."""
    likely = likely_delimiter(path, found.encoding or "utf-8")
    if likely == usual_delimiter(path):
        return None
    found.notes.append(f"the columns are parted by {likely!r}")
    return likely


def _squad(path: Path) -> list[squad.Example]:
    """Read the questions of a file in SQuAD's nested format; none of another.

    Raises:
        UserError: it is such a file, with an error in it.
    """
    with open(path, "rb") as file:
        head = file.read(LOOKED_AT_BYTES)
    if begins_packed(head) or b'"paragraphs"' not in head or b'"data"' not in head:
        return []
    return squad.read_examples(path)


def _rows(found: DataFiles, path: Path) -> datasets.Dataset:
    """Read the rows of a table as a run does."""
    settings: dict[str, Any] = {"delimiter": found.delimiter, "encoding": found.encoding}
    data = {"dataset": found.kind, "max_length": 1, "files": {"train": os.fspath(path)}, **settings}
    provisional = Recipe.model_validate({"data": data, "train": {"learning_rate": 1.0, "epochs": 1.0}})
    try:
        rows = read_file(provisional, "train", path)
    except UserError as problem:
        raise UserError(f"{path}: {str(problem).rpartition('data.')[2]}") from None
    if not len(rows):
        raise UserError(f"{path}: holds no rows")
    return rows
