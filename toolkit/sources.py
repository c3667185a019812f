"""Where a recipe's rows come from: files, a folder of data files, a hub data set of them. Data alone, never code.

`datasets` reads much else (pickles, archives of anything, databases). What a recipe may name is what holds rows of text
and nothing that runs. Rows of local files are kept by the content of the files (:mod:`toolkit.cache`); what the library
keeps by path and time stamp is not used.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pkgutil
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import datasets
import yaml
from datasets import Dataset, DatasetDict, packaged_modules
from huggingface_hub import HfFileSystem, hf_hub_download

from models.files import UnreadableFile, plain_file, read_text
from models.hub import refusal
from models.hub_errors import HubError, Wanted, explain, offline
from toolkit.cache import CACHE_VERSION, find, kept
from toolkit.checkpoint import sha256
from toolkit.digest import digest
from toolkit.errors import UserError
from toolkit.install import install_command
from toolkit.recipe import Recipe, settled
from toolkit.recipe_keys import ENCODED_KINDS, FILE_KINDS
from toolkit.revisions import settle_commit
from toolkit.rows import (
    COMPRESSED,
    READERS,
    as_written,
    check_json,
    explained,
    likely_delimiter,
    no_log,
    prepare,
    quietly,
    reraise_full_disk,
    scratch_in,
    stored,
    wrong_delimiter,
)
from toolkit.scratch import scratch_folder
from toolkit.splits import SPLITS
from toolkit.text_encoding import WrongEncoding, check_encoding, write_as_utf8
from toolkit.yaml_source import suggest

#: Reading a file this large takes longer than about two seconds, and then a progress bar is shown.
LARGE_FILE = 100 * 2**20

#: The longest first line of a csv file that is looked at for what parts its columns, in bytes.
LONGEST_HEADER = 2**16

#: Beside those of plain data: rows that were read from a hub data set earlier, when the hub cannot be reached.
STORED_ROWS = "datasets.packaged_modules.cache.cache"

#: The name of a hub data set: ``owner/name``, or the name alone of the oldest ones.
HUB_NAME = re.compile(r"(?!buckets/)[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?(?<!\.py)")

#: Built-in data -> the package that it is made with, and the extra that installs it.
EXTRAS = {"cldr_languages": ("babel", "demo"), "cldr_facts": ("babel", "demo")}

#: Files of a data folder in which it may say where its data is.
CARDS = ("README.md", ".huggingface.yaml")


# -- what may be named ----------------------------------------------------------------------------------------------


def check_source(recipe: Recipe, corpora: Collection[str]) -> None:
    """See that ``data.dataset`` names data of an allowed kind. Looks at names alone: nothing is opened or looked up.

    Raises:
        UserError: at its line, with what would be right; also for built-in data whose package is not installed.
    """
    name = recipe.data.dataset
    if name in corpora and name in EXTRAS:
        package, extra = EXTRAS[name]
        if importlib.util.find_spec(package) is None:
            what = f"{name} is made with {package}, which is not installed"
            raise recipe.error("data.dataset", f"{what}; {install_command(extra)}")
    if name in corpora or name in FILE_KINDS:
        return
    kinds = ", ".join(FILE_KINDS)
    right = f"set one of {kinds} with data.files, a folder of such files, a hub data set (owner/name)"
    if corpora:
        right += f", or {', '.join(corpora)}"
    folder = recipe.resolve(name)
    if folder.is_dir():
        if (script := folder / f"{folder.resolve().name}.py").exists():
            raise recipe.error("data.dataset", f"{script} is a script, which is not run; {right}")
        return
    if os.path.lexists(folder):
        raise recipe.error(
            "data.dataset", f"{name} is a file; set its kind ({kinds}), and data.files: {{train: {name}}}"
        )
    if name in {module.name for module in pkgutil.iter_modules(packaged_modules.__path__)}:
        raise recipe.error("data.dataset", f"{name} is not read here: only data that cannot run code is; {right}")
    if not HUB_NAME.fullmatch(name):
        raise recipe.error("data.dataset", f"{name} is neither a folder nor the name of a hub data set; {right}")


def _check_reader(recipe: Recipe, builder: Any, allowed: Collection[str]) -> None:
    """Refuse what `datasets` would read with anything but a reader of plain data."""
    module = type(builder).__module__
    if module not in allowed:
        found = module.rpartition(".")[2]
        raise recipe.error(
            "data.dataset",
            f"{recipe.data.dataset} holds data of the kind {found}, which is not read here; "
            f"it should consist of files of one of the kinds {', '.join(FILE_KINDS)}",
        )


# -- files ----------------------------------------------------------------------------------------------------------


def from_files(recipe: Recipe, read_file: Callable[[Recipe, str, Path], Dataset]) -> DatasetDict:
    """A file per split; each is read on its own, so that an error is at its line."""
    splits = DatasetDict()
    for split in SPLITS:
        written = getattr(recipe.data.files, split)
        if written is None:
            continue
        paths = recipe.resolve_all(written)
        if not paths or not os.path.lexists(paths[0]):
            raise recipe.error(f"data.files.{split}", f"{written}: no such file{_looked_in(recipe, written)}")
        try:
            parts = [read_file(recipe, split, plain_file(path)) for path in paths]
            splits[split] = parts[0] if len(parts) == 1 else _together(recipe, split, paths, parts)
        except UnreadableFile as problem:
            raise recipe.error(f"data.files.{split}", str(problem)) from None
        except OSError as problem:
            reason = problem.strerror or problem
            raise recipe.error(f"data.files.{split}", f"cannot read {written}: {reason}") from None
    return splits


def _together(recipe: Recipe, split: str, paths: Sequence[Path], parts: Sequence[Dataset]) -> Dataset:
    """The rows of several files, one after the other.

    Raises:
        UserError: they have not the same columns.
    """
    first = parts[0].features
    for path, part in zip(paths, parts, strict=True):
        if part.features != first:
            differ = sorted(name for name in {**first, **part.features} if first.get(name) != part.features.get(name))
            wrong = f"{path} has not the columns of {paths[0]}: they differ in {', '.join(differ)}"
            raise recipe.error(f"data.files.{split}", wrong)
    return datasets.concatenate_datasets(list(parts))


def named_texts(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """The texts of ``data.sources``, each with the name that it stands under, in the order of the recipe.

    Raises:
        UserError: a file that is missing, empty or in another encoding than the recipe says.
    """
    for name, files in settled(recipe.data.sources).items():
        for index, written in enumerate([files] if isinstance(files, str) else files):
            key = ("data", "sources", name) if isinstance(files, str) else ("data", "sources", name, str(index))
            paths = recipe.resolve_all(written)
            if not paths:
                raise recipe.error(key, f"{written}: no such file{_looked_in(recipe, written)}")
            for path in paths:
                shown = written if len(paths) == 1 else path
                try:
                    text = plain_text(recipe, path)
                except OSError as problem:
                    raise recipe.error(key, f"cannot read {shown}: {problem.strerror}") from None
                except UnreadableFile as problem:
                    raise recipe.error(key, str(problem)) from None
                if not text.strip():
                    raise recipe.error(key, f"{shown} is empty")
                yield name, text


def plain_text(recipe: Recipe, path: Path) -> str:
    """A file's text, in the recipe's encoding, its lines ended by line feeds."""
    encoding = recipe.data.encoding or "utf-8"
    try:
        check_encoding(plain_file(path), encoding)
    except WrongEncoding as problem:
        raise recipe.error("data.encoding", f"{path} {problem}") from None
    text = path.read_bytes().decode(encoding).removeprefix("\ufeff")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_file(recipe: Recipe, split: str, path: Path) -> Dataset:
    """The rows of a file of the recipe's kind, read once for its content, whatever its name and time stamp.

    Raises:
        UnreadableFile: it is not of that kind.
    """
    kind = recipe.data.dataset
    settings = {"sep": delimiter_of(recipe, path)} if kind == "csv" else {}

    def fill(unfinished: Path) -> None:
        with scratch_in(unfinished) as scratch:
            link = scratch / f"data{_plain_suffixes(path)}"  # in the library's eyes [, * and :: are no part of a name
            _in_utf8(recipe, path, link)
            if kind == "csv" and recipe.data.delimiter is None:
                _check_delimiter(recipe, link, settings["sep"])
            with explained(path, kind, link):
                if kind == "json":
                    check_json(link)
                reader = getattr(importlib.import_module(READERS[kind]), kind.capitalize())
                builder = reader(cache_dir=str(scratch / "cache"), data_files={"train": [str(link)]}, **settings)
                prepare(as_written(builder), scratch, unfinished)

    call = kept if path.stat().st_size > LARGE_FILE else _kept_quietly
    encoding = recipe.data.encoding or "utf-8"
    key = digest(kind, sha256(path), str(settings), encoding, datasets.__version__, CACHE_VERSION)
    return stored(call("rows", key, fill))["train"]


def delimiter_of(recipe: Recipe, path: Path) -> str:
    """What parts the columns of a csv file: what the recipe says, else a tab where the file is called .tsv."""
    is_tsv = any(suffix.lower() in (".tsv", ".tab") for suffix in path.suffixes[-2:])
    return recipe.data.delimiter or ("\t" if is_tsv else ",")


def _in_utf8(recipe: Recipe, path: Path, link: Path) -> None:
    """Put a file's text in UTF-8 where ``link`` says: the file itself, if it is that.

    Raises:
        UserError: it is in another encoding than the recipe says.
        UnreadableFile: it is packed, and the recipe names an encoding.
    """
    encoding = recipe.data.encoding
    with open(path, "rb") as file:
        packed = file.read(8).startswith(tuple(COMPRESSED))
    if packed and encoding is not None:
        raise UnreadableFile(path, f"is packed, and cannot be read as {encoding}; unpack it")
    try:
        if encoding is not None:
            write_as_utf8(path, encoding, link)
            return
        if not packed and recipe.data.dataset in ENCODED_KINDS:
            check_encoding(path)
    except WrongEncoding as problem:
        raise recipe.error("data.encoding", f"{path} {problem}") from None
    link.symlink_to(path.absolute())


def _check_delimiter(recipe: Recipe, file: Path, used: str) -> None:
    """See that a csv file whose header is a single column is not one of several that something else parts.

    Raises:
        UserError: it is; with what seems to part them.
    """
    with open(file, "rb") as opened:
        head = opened.read(LONGEST_HEADER)
    header = head.decode("utf-8", "ignore").removeprefix("\ufeff").lstrip("\r\n").partition("\n")[0]
    if head.startswith(tuple(COMPRESSED)) or used in header:
        return
    if likely := likely_delimiter(header):
        raise recipe.error("data.delimiter", f"missing: {wrong_delimiter(header, likely)}")


def _kept_quietly(*arguments: Any) -> Path:
    return quietly(kept, *arguments)


def _plain_suffixes(path: Path) -> str:
    return "".join(suffix for suffix in path.suffixes[-2:] if re.fullmatch(r"\.\w+", suffix))


def _looked_in(recipe: Recipe, written: str) -> str:
    """Where a relative path was looked for."""
    return "" if Path(written).is_absolute() else f" here ({Path.cwd()}) or beside the recipe ({recipe.path.parent})"


# -- folders --------------------------------------------------------------------------------------------------------


def from_folder(recipe: Recipe, folder: Path) -> DatasetDict:
    """The splits of a folder of data files, as `datasets` finds them by their names or the folder's card.

    Raises:
        UserError: at the recipe's line: a folder that holds no data, other than plain data, or names data elsewhere.
    """
    folder = folder.resolve()
    _check_cards(recipe, folder)
    with scratch_folder("toolkit-") as scratch, _load_explained(recipe):
        builder = datasets.load_dataset_builder(str(folder), recipe.data.config, cache_dir=str(scratch))
    _check_reader(recipe, builder, READERS.values())
    parts: list[object] = [type(builder).__module__, _settings(builder), datasets.__version__, CACHE_VERSION]
    for split, files in builder.config.data_files.items():
        parts += [split, *(_checked_content(recipe, folder, Path(file)) for file in files)]

    def fill(unfinished: Path) -> None:
        with scratch_in(unfinished) as scratch, _load_explained(recipe):
            again = datasets.load_dataset_builder(str(folder), recipe.data.config, cache_dir=str(scratch / "cache"))
            prepare(as_written(again), scratch, unfinished)

    return stored(quietly(kept, "rows", digest(*map(str, parts)), fill))


def _checked_content(recipe: Recipe, folder: Path, file: Path) -> str:
    """The SHA-256 of a folder's data file.

    Raises:
        UserError: it lies elsewhere, or cannot be read.
    """
    try:
        if not Path(os.path.normpath(file)).is_relative_to(folder) or file.suffix == ".zip":
            raise UnreadableFile(file, f"is no plain data file of the folder {folder}")
        if file.suffix not in (".csv", ".tsv", ".parquet", ".arrow", ".txt"):
            check_json(plain_file(file))
        return sha256(plain_file(file))
    except (OSError, ValueError) as problem:
        raise recipe.error("data.dataset", " ".join(str(problem).split())) from None


def _settings(builder: Any) -> str:
    """What beside the files decides how a folder is read, such as the separator that its card names."""
    return repr({key: value for key, value in vars(builder.config).items() if key not in ("data_files", "data_dir")})


def _check_cards(recipe: Recipe, folder: Path) -> None:
    """See that a folder's card names no data elsewhere: looking there would go out to the network."""
    for name in CARDS:
        card = folder / name
        if not os.path.lexists(card):
            continue
        try:
            text = read_text(card) if card.stat().st_size else ""
            block = re.match(r"\s*---\s*\n(.*?)\n---", text, re.DOTALL) if name == "README.md" else None
            content = yaml.safe_load(block.group(1) if block else "" if name == "README.md" else text)
        except (OSError, ValueError, OverflowError, RecursionError, yaml.YAMLError) as problem:
            raise recipe.error("data.dataset", f"cannot read {card}: {' '.join(str(problem).split())[:300]}") from None
        configs = content.get("configs") if isinstance(content, dict) else None
        for path in _texts(configs, ("data_files", "data_dir")):
            if "://" in path or path.startswith(("/", "~")) or ".." in path.split("/"):
                raise recipe.error("data.dataset", f"{card} names data outside of its folder: {path}")


def _texts(content: Any, keys: Collection[str], inside: bool = False) -> Iterator[str]:
    """Every text below one of these keys."""
    if isinstance(content, dict):
        for key, value in content.items():
            yield from _texts(value, keys, inside or key in keys)
    elif isinstance(content, list):
        for value in content:
            yield from _texts(value, keys, inside)
    elif inside and isinstance(content, str):
        yield content


# -- the hub --------------------------------------------------------------------------------------------------------


def from_hub(recipe: Recipe) -> DatasetDict:
    """The splits of a hub data set. Its repository may hold plain data alone; a script in it is never run."""
    wanted = Wanted(recipe.data.dataset, recipe.data.revision, kind="dataset")
    if "data" not in recipe.commits:
        settle_commit(recipe, "data")
    commit = recipe.commits["data"]
    key = digest("csv of the hub", wanted.id, str(recipe.data.config), commit, datasets.__version__, CACHE_VERSION)
    if (csv := find("rows", key)) is not None:
        return stored(csv)
    with _load_explained(recipe, wanted):
        datasets.config.HF_DATASETS_TRUST_REMOTE_CODE = False  # versions before 4 would run scripts
        builder = datasets.load_dataset_builder(wanted.id, recipe.data.config, revision=commit)
    _check_reader(recipe, builder, {*READERS.values(), STORED_ROWS})
    with _load_explained(recipe, wanted):
        if type(builder).__module__ == STORED_ROWS:
            builder = _stored_builder(builder, wanted, commit)
        if type(builder).__module__ == READERS["csv"]:
            # Not among the rows that the library keeps: whoever else loads the data set expects its numbers there.
            return stored(kept("rows", key, lambda unfinished: _prepare_csv(recipe, commit, unfinished)))
        builder.download_and_prepare()
        return builder.as_dataset()


def _prepare_csv(recipe: Recipe, commit: str, unfinished: Path) -> None:
    """Read a hub data set of csv files into a folder, as it is written."""
    name, config = recipe.data.dataset, recipe.data.config
    with scratch_in(unfinished) as scratch:
        builder = datasets.load_dataset_builder(name, config, revision=commit, cache_dir=str(scratch / "cache"))
        prepare(as_written(builder, _downloaded), scratch, unfinished)


def _downloaded(place: str) -> str:
    """A file of a hub data set, ``hf://datasets/OWNER/NAME@REVISION/PATH``, from where `datasets` has or puts it."""
    found = HfFileSystem().resolve_path(place)
    return hf_hub_download(found.repo_id, found.path_in_repo, repo_type="dataset", revision=found.revision)


def _stored_builder(builder: Any, wanted: Wanted, commit: str) -> Any:
    """That of the rows that were read from this commit earlier: the library takes the last, whichever commit that is.

    Raises:
        HubError: there are none.
    """
    found = Path(builder.cache_dir)  # .../CONFIG/VERSION/COMMIT
    if not (found.parent / commit).is_dir():
        raise offline(wanted._replace(revision=commit))
    return type(builder)(
        dataset_name=builder.dataset_name,
        repo_id=wanted.id,
        config_name=found.parts[-3],
        version=found.parts[-2],
        hash=commit,
    )


def _of_the_hub(problem: Exception, wanted: Wanted) -> HubError | None:
    """What the hub said; the library does not pass it on where it takes it to say that there is no such data set."""
    if isinstance(problem, datasets.exceptions.DatasetNotFoundError):
        return refusal(wanted._replace(file="README.md"))
    return explain(problem, wanted)


@contextlib.contextmanager
def _load_explained(recipe: Recipe, wanted: Wanted | None = None) -> Iterator[None]:
    """What `datasets` raises for a folder or a hub data set, at the recipe's line.

    Args:
        wanted: the data set of the hub; None for a folder.
    """
    try:
        with no_log():
            yield
    except UserError:
        raise
    except Exception as problem:
        reraise_full_disk(problem)
        if wanted is not None and (explained := _of_the_hub(problem, wanted)):
            raise recipe.error("data.dataset", str(explained)) from None
        reason = " ".join(str(problem.__cause__ or problem).split()) or type(problem).__name__
        if reason.startswith(("Config name is missing", "BuilderConfig")):
            raise _config_error(recipe, reason) from None
        raise recipe.error("data.dataset", f"cannot load {recipe.data.dataset}: {reason[:300]}") from None


def _config_error(recipe: Recipe, reason: str) -> UserError:
    """What to say where `data.config` is missing, or names a configuration that the data does not have.

    Args:
        reason: what the library says, with a list of those that there are.
    """
    name, config = recipe.data.dataset, recipe.data.config
    known = re.findall(r"'([^']+)'", reason[reason.find("[") : reason.find("]")])
    wrong = "missing" if config is None else f"{config}: {name} has no such configuration"
    has = f"{name} has the configurations" if config is None else "it has"
    return recipe.error("data.config", f"{wrong}; {has} {', '.join(known)}{suggest(config or '', known)}")
