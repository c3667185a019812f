"""Find the data of a folder: the tables of each split, what `datasets` has saved, a folder of texts for each label."""

from __future__ import annotations

import glob
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from toolkit.errors import UserError
from toolkit.files.compression import content_ending
from toolkit.files.kinds import KIND_BY_ENDING

#: Split -> pattern in its file's name. CoNLL-2003 has testa and testb.
SPLIT_NAMES = {
    "train": r"train(ing)?",
    "validation": r"valid(ation)?|val|dev(elopment)?|testa",
    "test": r"test(ing)?|testb",
}
#: Part number in the file names that `datasets` writes: ``train-00000-of-00003.parquet``.
PART_NUMBER = re.compile(r"-\d{5}-of-(\d{5})(?=\.)")
#: Names of folders of texts without labels.
UNLABELED_NAMES = re.compile(r"unsup(ervised)?|unlabell?ed", re.IGNORECASE)


def list_visible(folder: Path) -> list[Path]:
    """Return the sorted entries of a folder without hidden entries."""
    return [path for path in sorted(folder.iterdir()) if not path.name.startswith((".", "_"))]


def find_split_parts(path: Path) -> list[Path]:
    """Return all files of the split that a file is a part of."""
    return sorted(path.parent.glob(_parts_pattern(path))) if PART_NUMBER.search(path.name) else [path]


def _parts_pattern(path: Path) -> str:
    """Return the glob pattern of all parts of a split, such as ``train-*-of-00003.parquet``, by one part's path."""
    return PART_NUMBER.sub(r"-*-of-\1", glob.escape(path.name))


def find_sibling_splits(path: Path) -> dict[str, list[Path]]:
    """Return split -> files in the folder of a training file whose names differ only in the split."""
    name = PART_NUMBER.sub("", path.name)
    match = re.search(rf"(?<![a-z])({SPLIT_NAMES['train']})(?![a-z])", name, re.IGNORECASE)
    if match is None:
        return {}
    files_by_split: dict[str, list[Path]] = {}
    for other in sorted(path.parent.iterdir()):
        for split_name in ("validation", "test"):
            begin, end = re.escape(name[: match.start()]), re.escape(name[match.end() :])
            is_sibling = re.fullmatch(
                f"{begin}({SPLIT_NAMES[split_name]}){end}", PART_NUMBER.sub("", other.name), re.IGNORECASE
            )
            if is_sibling and split_name not in files_by_split and other.is_file():
                files_by_split[split_name] = find_split_parts(other)
    return files_by_split


def find_paths_by_split(paths: Iterable[Path]) -> dict[str, Path]:
    """Return split -> the path whose name is the split's; if no name is, the only path whose name contains it."""
    named_paths = list(paths)
    for name_pattern in ("({})", r".*(?<![a-z])({})(?![a-z]).*"):
        candidates = {
            split_name: [
                path for path in named_paths if re.fullmatch(name_pattern.format(pattern), path.name, re.IGNORECASE)
            ]
            for split_name, pattern in SPLIT_NAMES.items()
        }
        if splits := {split_name: paths[0] for split_name, paths in candidates.items() if len(paths) == 1}:
            return splits
    return {}


def find_saved_splits(folder: Path) -> dict[str, list[Path]]:
    """Return split -> the Arrow files of a folder that ``Dataset.save_to_disk`` wrote; empty for another.

    Raises:
        UserError: it has no split to train on.
    """
    if files := _list_saved_files(folder):
        return {"train": files}
    if not (folder / "dataset_dict.json").is_file():
        return {}
    subfolders = [path for path in list_visible(folder) if path.is_dir()]
    files_by_split = {
        split_name: files
        for split_name, path in find_paths_by_split(subfolders).items()
        if (files := _list_saved_files(path))
    }
    if "train" not in files_by_split:
        names = ", ".join(path.name for path in subfolders) or "none"
        raise UserError(f"{folder}: has no split called train; it has {names}: name the folder of one")
    return files_by_split


def list_unused_saved(folder: Path, split_files: dict[str, list[Path]]) -> list[str]:
    """Return the names of other splits that ``datasets`` has saved in a folder of :func:`find_saved_splits`."""
    used_folders = {folder, *(files[0].parent for files in split_files.values())}
    return [
        path.name
        for path in list_visible(folder)
        if path not in used_folders and path.is_dir() and _list_saved_files(path)
    ]


def _list_saved_files(folder: Path) -> list[Path]:
    """Return the Arrow files of a split that the package datasets has saved in a folder; empty for another folder."""
    if not (folder / "state.json").is_file():
        return []
    return [path for path in list_visible(folder) if path.suffix == ".arrow"]


def list_plain_texts(folder: Path) -> list[Path]:
    """Return the ``.txt`` files of a folder; without any, its other files of text, but for a README."""
    files = [
        path for path in list_visible(folder) if path.is_file() and KIND_BY_ENDING.get(content_ending(path)) == "text"
    ]
    plain = [path for path in files if content_ending(path) == ".txt"]
    return plain or [path for path in files if path.stem.lower() != "readme"]


def list_texts(folder: Path) -> list[Path]:
    """Return the texts of a label's folder; without any, the files whose names have no ending of data."""
    others = (path for path in list_visible(folder) if path.is_file() and content_ending(path) not in KIND_BY_ENDING)
    return list_plain_texts(folder) or list(others)


def find_text_folders(folder: Path) -> dict[Path, list[Path]]:
    """Return the folders in a folder -> their texts."""
    below = {path: list_texts(path) for path in list_visible(folder) if path.is_dir()}
    return {path: files for path, files in below.items() if files}


def find_label_splits(folder: Path) -> dict[str, dict[Path, list[Path]]]:
    """Return split -> its folders of texts, of a folder with ``train/LABEL`` and the like; empty for another."""
    folders = find_paths_by_split(path for path in list_visible(folder) if path.is_dir())
    texts_by_split = {split_name: find_text_folders(path) for split_name, path in folders.items()}
    return (
        {split_name: labels for split_name, labels in texts_by_split.items() if labels}
        if texts_by_split.get("train")
        else {}
    )


def format_files(files: Sequence[Path], write: Callable[[Path], str]) -> str | list[str]:
    """Return the recipe's value for files of one folder: the file, a pattern that matches only them, or a list.

    Args:
        files: files of one folder.
        write: function that formats a path for the recipe.
    """
    if len(files) == 1:
        return write(files[0])
    first, folder = files[0], files[0].parent
    for pattern in (_parts_pattern(first), f"*{glob.escape(first.suffix)}", "*"):
        if [path for path in sorted(folder.glob(pattern)) if not path.name.startswith(".")] == sorted(files):
            return write(Path(glob.escape(str(folder))) / pattern)
    return [write(path) for path in files]
