"""Find the data of a folder: the tables of each split, what `datasets` has saved, a folder of texts for each label."""

from __future__ import annotations

import glob
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from toolkit.errors import UserError
from toolkit.files.kinds import KIND_BY_ENDING
from toolkit.files.packed import content_ending

#: Split -> pattern in its file's name. CoNLL-2003 has testa and testb.
SPLIT_NAMES = {
    "train": r"train(ing)?",
    "validation": r"valid(ation)?|val|dev(elopment)?|testa",
    "test": r"test(ing)?|testb",
}
#: What the name of one of several files of a split says, as `datasets` writes it: ``train-00000-of-00003.parquet``.
PART = re.compile(r"-\d{5}-of-(\d{5})(?=\.)")
#: Names of folders of texts without labels.
UNLABELLED = re.compile(r"unsup(ervised)?|unlabell?ed", re.IGNORECASE)


def visible(folder: Path) -> list[Path]:
    """Return what is in a folder, sorted, but for hidden files."""
    return [path for path in sorted(folder.iterdir()) if not path.name.startswith((".", "_"))]


def parts_of(path: Path) -> list[Path]:
    """Return the files that a split is written in, of which a path is one."""
    return sorted(path.parent.glob(_all_parts(path))) if PART.search(path.name) else [path]


def _all_parts(path: Path) -> str:
    return PART.sub(r"-*-of-\1", glob.escape(path.name))


def splits_beside(path: Path) -> dict[str, list[Path]]:
    """Return split -> the files beside a training file whose names differ only in the split."""
    name = PART.sub("", path.name)
    match = re.search(rf"(?<![a-z])({SPLIT_NAMES['train']})(?![a-z])", name, re.IGNORECASE)
    if match is None:
        return {}
    found: dict[str, list[Path]] = {}
    for other in sorted(path.parent.iterdir()):
        for split in ("validation", "test"):
            begin, end = re.escape(name[: match.start()]), re.escape(name[match.end() :])
            alike = re.fullmatch(f"{begin}({SPLIT_NAMES[split]}){end}", PART.sub("", other.name), re.IGNORECASE)
            if alike and split not in found and other.is_file():
                found[split] = parts_of(other)
    return found


def by_split(paths: Iterable[Path]) -> dict[str, Path]:
    """Return split -> the path whose name is the split's; if no name is, the only path whose name contains it."""
    named_paths = list(paths)
    for written in ("({})", r".*(?<![a-z])({})(?![a-z]).*"):
        candidates = {
            split: [path for path in named_paths if re.fullmatch(written.format(pattern), path.name, re.IGNORECASE)]
            for split, pattern in SPLIT_NAMES.items()
        }
        if splits := {split: paths[0] for split, paths in candidates.items() if len(paths) == 1}:
            return splits
    return {}


def saved_splits(folder: Path) -> dict[str, list[Path]]:
    """Return split -> the Arrow files of a folder that ``Dataset.save_to_disk`` wrote; empty for another.

    Raises:
        UserError: it has no split to train on.
    """
    if files := _saved_files(folder):
        return {"train": files}
    if not (folder / "dataset_dict.json").is_file():
        return {}
    below = [path for path in visible(folder) if path.is_dir()]
    found = {split: files for split, path in by_split(below).items() if (files := _saved_files(path))}
    if "train" not in found:
        names = ", ".join(path.name for path in below) or "none"
        raise UserError(f"{folder}: has no split called train; it has {names}: name the folder of one")
    return found


def saved_besides(folder: Path, splits: dict[str, list[Path]]) -> list[str]:
    """Return the names of other splits that ``datasets`` has saved in a folder of :func:`saved_splits`."""
    taken = {folder, *(files[0].parent for files in splits.values())}
    return [path.name for path in visible(folder) if path not in taken and path.is_dir() and _saved_files(path)]


def _saved_files(folder: Path) -> list[Path]:
    if not (folder / "state.json").is_file():
        return []
    return [path for path in visible(folder) if path.suffix == ".arrow"]


def plain_texts(folder: Path) -> list[Path]:
    """Return the ``.txt`` files of a folder; without any, its other files of text, but for a README."""
    files = [path for path in visible(folder) if path.is_file() and KIND_BY_ENDING.get(content_ending(path)) == "text"]
    plain = [path for path in files if content_ending(path) == ".txt"]
    return plain or [path for path in files if path.stem.lower() != "readme"]


def texts_in(folder: Path) -> list[Path]:
    """Return the texts of a label's folder; without any, the files whose names have no ending of data."""
    others = (path for path in visible(folder) if path.is_file() and content_ending(path) not in KIND_BY_ENDING)
    return plain_texts(folder) or list(others)


def folders_of_texts(folder: Path) -> dict[Path, list[Path]]:
    """Return the folders in a folder -> their texts."""
    below = {path: texts_in(path) for path in visible(folder) if path.is_dir()}
    return {path: files for path, files in below.items() if files}


def splits_of_labels(folder: Path) -> dict[str, dict[Path, list[Path]]]:
    """Return split -> its folders of texts, of a folder with ``train/LABEL`` and the like; empty for another."""
    folders = by_split(path for path in visible(folder) if path.is_dir())
    found = {split: folders_of_texts(path) for split, path in folders.items()}
    return {split: labels for split, labels in found.items() if labels} if found.get("train") else {}


def named(files: Sequence[Path], write: Callable[[Path], str]) -> str | list[str]:
    """Return what a recipe writes for files of one folder: the file, a pattern, or, where none names them alone, all.

    Args:
        write: a path -> how the recipe has it.
    """
    if len(files) == 1:
        return write(files[0])
    first, folder = files[0], files[0].parent
    for pattern in (_all_parts(first), f"*{glob.escape(first.suffix)}", "*"):
        if [path for path in sorted(folder.glob(pattern)) if not path.name.startswith(".")] == sorted(files):
            return write(Path(glob.escape(str(folder))) / pattern)
    return [write(path) for path in files]
