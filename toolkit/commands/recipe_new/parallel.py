"""Texts whose labels are outside of their file: found by the names of the files, and joined into tables.

The labels are in another file, line by line: TweetEval has ``train_text.txt`` and ``train_labels.txt``, ATIS and
SNIPS have ``train/seq.in`` and ``train/label``. Or the name of a file is the label of all its lines: reviews of films
are in ``pos.txt`` and ``neg.txt``.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from toolkit.commands.recipe_new.folders import SPLIT_NAMES, list_visible
from toolkit.errors import UserError
from toolkit.files.compression import content_ending
from toolkit.files.kinds import KIND_BY_ENDING

#: A word of a file's name, with its separator, that marks the file as texts or labels.
TEXTS = re.compile(r"(?<![a-z])[_.-]?(texts?|sentences?|seq\.in|utterances?|inputs?|x)(?![a-z])", re.IGNORECASE)
LABELS = re.compile(r"(?<![a-z])[_.-]?(labels?|intents?|targets?|categor(y|ies)|classes|y)(?![a-z])", re.IGNORECASE)
#: Names of files that name the labels: a number and a name on each line, or the names in the order of the numbers.
LABEL_NAME_FILES = re.compile(
    r"(mapping|label_?(names|map)|labels?_?list|classes|categories)\.(txt|tsv)", re.IGNORECASE
)
#: A label as the name of a file whose lines are texts. Other names, such as ``sports.txt``, may be titles.
FILE_LABEL = re.compile(r"(?<![a-z])(pos(itive)?|neg(ative)?|neutral|spam|ham)(?![a-z])", re.IGNORECASE)
#: Longest label, in characters.
MAX_LABEL = 80


@dataclass(frozen=True)
class ParallelFiles:
    """The texts and labels of a split, in several files.

    Attributes:
        texts_path: file of the texts, or of the first texts.
        labels_path: file of the labels, or of the last texts.
        texts, labels: the text and the label of each line.
        is_named_by_label: whether the name of a file is the label of its lines.
    """

    texts_path: Path
    labels_path: Path
    texts: list[str]
    labels: list[str]
    is_named_by_label: bool = False


def find_parallel(data: Path) -> dict[str, ParallelFiles]:
    """Return split -> its two files, for a folder or for the folder of a text file; empty if there are none.

    Raises:
        UserError: the two files of a split have different numbers of lines, or the training split is missing.
    """
    folder = data if data.is_dir() else data.parent
    files_by_split: dict[str, ParallelFiles] = {}
    for place in (folder, *(path for path in list_visible(folder) if path.is_dir() and data.is_dir())):
        for pair in _pairs_in(place) or (_files_named_by_label(place) if data.is_dir() else []):
            split_name = _find_split(pair.texts_path if place == folder else place)
            files_by_split.setdefault(split_name or "train", pair)
    if not data.is_dir() and data not in [pair.texts_path for pair in files_by_split.values()]:
        return {}
    if files_by_split and "train" not in files_by_split:
        pair = next(iter(files_by_split.values()))
        names = f"{pair.labels_path.name} has the labels of {pair.texts_path.name}"
        raise UserError(f"{data}: {names}, and no such file has those of a split to train on; add one")
    return files_by_split


def _pairs_in(folder: Path) -> list[ParallelFiles]:
    """Return the pairs of a file of texts and a file of their labels, line by line, in a folder."""
    files = [
        path
        for path in list_visible(folder)
        if path.is_file() and KIND_BY_ENDING.get(content_ending(path), "text") == "text"
    ]
    labels = {
        _role_key(path, LABELS): path
        for path in files
        if LABELS.search(path.name) and not LABEL_NAME_FILES.fullmatch(path.name)
    }
    pairs = []
    for texts_path in files:
        if texts_path in labels.values() or LABEL_NAME_FILES.fullmatch(texts_path.name):
            continue
        if (labels_path := labels.get(_role_key(texts_path, TEXTS))) is None:
            continue
        texts, names = _read_lines(texts_path), [line.strip() for line in _read_lines(labels_path)]
        if len(names) < 2 or any(len(name) > MAX_LABEL for name in names) or 2 * len(set(names)) > len(names):
            continue
        if len(texts) != len(names):
            counts = f"{texts_path.name} has {len(texts):,} lines and {labels_path.name} {len(names):,}"
            raise UserError(f"{folder}: {counts}; each line of texts needs its label on the same line")
        pairs.append(ParallelFiles(texts_path, labels_path, texts, names))
    return pairs


def _files_named_by_label(folder: Path) -> list[ParallelFiles]:
    """Return the texts of each split if every file of the folder is named by a label; otherwise an empty list."""
    files = [path for path in list_visible(folder) if path.is_file()]
    labels = [FILE_LABEL.search(path.name) for path in files]
    if not all(labels) or any(KIND_BY_ENDING.get(content_ending(path), "text") != "text" for path in files):
        return []
    files_by_split: dict[str | None, dict[str, Path]] = {}
    for path, label in zip(files, labels, strict=True):
        assert label is not None
        files_by_split.setdefault(_find_split(path), {})[label[0].lower()] = path
    pairs = []
    for paths in files_by_split.values():
        rows = [(line, label) for label, path in paths.items() for line in _read_lines(path) if line.strip()]
        if len(paths) > 1 and rows:
            texts, names = map(list, zip(*rows, strict=True))
            first, *_, last = paths.values()
            pairs.append(ParallelFiles(first, last, texts, names, is_named_by_label=True))
    return pairs


def _role_key(path: Path, role: re.Pattern[str]) -> str:
    """Return a file's name without the word for its role and without its ending."""
    stem = role.sub("", path.name, count=1)
    return re.sub(r"\.(txt|text|label|labels)$", "", stem, flags=re.IGNORECASE).strip("_.-").lower()


def _find_split(path: Path) -> str | None:
    """Return the split that a file's name contains as a word, or None."""
    names = {split_name: rf"(?<![a-z])({pattern})(?![a-z])" for split_name, pattern in SPLIT_NAMES.items()}
    return next(
        (split_name for split_name, pattern in names.items() if re.search(pattern, path.name, re.IGNORECASE)), None
    )


def _read_lines(path: Path) -> list[str]:
    """Return the lines of a UTF-8 file without their line breaks."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UserError(f"{path}: is not UTF-8 text; save it as UTF-8") from None
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    return lines if lines[-1] else lines[:-1]


def find_label_names(folder: Path, labels: Sequence[str]) -> tuple[dict[str, str], Path | None]:
    """Return number -> name for labels that are numbers, and the file with the names; empty if there is no such file.

    Args:
        folder: folder in which the file with the names is searched.
        labels: labels of all splits.
    """
    for path in list_visible(folder):
        if (
            not path.is_file()
            or not LABEL_NAME_FILES.fullmatch(path.name)
            or not all(label.isdecimal() for label in labels)
        ):
            continue
        lines = [line.strip() for line in _read_lines(path) if line.strip()]
        numbered_lines = [re.fullmatch(r"(\d+)[\t ,:]+(.+)", line) for line in lines]
        names = {match[1]: match[2].strip() for match in numbered_lines if match} if all(numbered_lines) else {
            str(index): line for index, line in enumerate(lines)
        }  # fmt: skip
        if set(labels) <= names.keys() and len(set(names.values())) == len(names):
            return names, path
    return {}, None


def format_joined_table(pair: ParallelFiles, names: Mapping[str, str]) -> str:
    """Return a split's texts and labels as csv.

    Args:
        pair: texts and labels, line by line.
        names: name of each label.
    """
    table = io.StringIO(newline="")
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(["text", "label"])
    writer.writerows(zip(pair.texts, (names.get(label, label) for label in pair.labels), strict=True))
    return table.getvalue()
