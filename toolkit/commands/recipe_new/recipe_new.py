"""`toolkit recipe new DATA`: look, choose, draft the recipe, and check it before it is written."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from toolkit.commands.recipe_check import check_data
from toolkit.commands.recipe_new import tasks
from toolkit.commands.recipe_new.columns import find_question_columns
from toolkit.commands.recipe_new.entities import describe_entity_problem, find_entity_columns
from toolkit.commands.recipe_new.look import DataFiles, inspect_data, make_control_code
from toolkit.commands.recipe_new.parallel import ParallelFiles, find_label_names, find_parallel, format_joined_table
from toolkit.commands.recipe_new.pretrain import inspect_unlabeled_texts
from toolkit.commands.recipe_new.tasks import TableOptions
from toolkit.errors import UserError
from toolkit.files.whole import write_text
from toolkit.finetune.model_config import check_model
from toolkit.machine.scratch import scratch_folder
from toolkit.recipe.load import load_recipe
from toolkit.recipe.shipped_recipes import new_file
from toolkit.terminal.escape import one_line

#: File names without information; the recipe is named after the folder instead.
SAYS_NOTHING = re.compile(r"(train(ing)?|data|dataset|all|full|corpus)", re.IGNORECASE)


#: Works of more bytes than this are long for a classifier; of fewer in a folder than this it learns nothing.
MIN_LONG_WORK_BYTES, MIN_CLASS_TEXTS = 16_384, 10
#: What data of a task has.
REQUIRED_DATA = {
    "question_answering": "the columns question, context and answer (or of like names), with most answers in their "
    "contexts; or SQuAD's nested json",
    "token_classification": "a token and its tag on each line (CoNLL), lists of tokens and tags, or texts with lists "
    "of entities ([start, end, label])",
}


@dataclass(frozen=True)
class NewRecipe:
    """Files of a new recipe.

    Attributes:
        paths: written recipes, in the order of their runs.
        assumed: assumptions about the data, one line each.
    """

    paths: list[Path]
    assumed: list[str]


def new_recipe(
    data: Path,
    output: Path | None = None,
    task: str | None = None,
    text: Sequence[str] = (),
    label: Sequence[str] = (),
    problem_type: str | None = None,
    missing_labels: str | None = None,
    layout: Mapping[str, str | None] | None = None,
    *,
    header: bool | None = None,
    pretrain: Sequence[Path] = (),
) -> NewRecipe:
    """Write a recipe for a file or folder of data.

    Args:
        data: file or folder.
        output: path of the recipe, which must be free; None for a file in the current folder, named after the data.
        task: name of the task; None to detect it.
        text: text columns of a table for classification; empty to find them.
        label: label columns of a table for classification; empty to find them.
        problem_type: value of ``data.problem_type``; None to detect it.
        missing_labels: treatment of rows without a label, as in :class:`.tasks.TableOptions`.
        layout: layout options of a table, as in :func:`.look.inspect_data`.
        header: whether the first row is a header; None to detect it.
        pretrain: texts without labels. A second recipe pretrains on them, and the first recipe starts from its model.

    Raises:
        UserError: the data is missing, invalid or has no labels to learn, or the recipe's path is not free. No file is
            written then.
        WriteError: the system refused the write.
    """
    path = new_file(output or Path(f"{_recipe_name(data)}.yaml"))
    if task in (None, "classification") and not pretrain and data.exists() and (pairs := find_parallel(data)):
        with _removed_on_failure() as tables:
            notes = _write_joined_tables(data, path, pairs, tables)
            joined_recipe = new_recipe(
                tables[0], path, task, text, label, problem_type, missing_labels, layout, header=header
            )
        return replace(joined_recipe, assumed=[*notes, *joined_recipe.assumed])
    data_files = inspect_data(data, layout, header=header, as_text=task == "language_modeling")
    task = task or _choose_task(data_files)
    table_options = TableOptions(tuple(text), tuple(label), problem_type, missing_labels)
    _check_choice(data, data_files, task, table_options)

    def write(file: Path) -> str:
        return _format_path(file, path)

    first = path.with_name(f"{path.stem}-pretrain.yaml")
    texts_alone = None
    if pretrain:
        if task == "language_modeling":
            raise UserError(f"{data}: --pretrain is for a recipe with labels, and this is a language model; remove it")
        texts_alone = inspect_unlabeled_texts(pretrain, text, f"runs/{new_file(first).stem}/model")
    if task == "classification":
        draft = tasks.draft_classification(data_files, str(data), write, table_options, texts_alone)
    elif task == "token_classification":
        draft = tasks.draft_token_classification(data_files, write, texts_alone)
    elif task == "question_answering":
        draft = tasks.draft_question_answering(data_files, str(data), write, texts_alone)
    else:
        draft = tasks.draft_language_modeling(data_files, str(data), write)
    notes = _check_recipe(_format_head(data, path, draft.assumed) + draft.body, data, path.name)
    recipes = {path: draft.body}
    if texts_alone:  # the model that the other starts from is not there yet
        _check_recipe(draft.pretraining, pretrain[0], first.name)
        recipes = {first: draft.pretraining, path: draft.pretrained}
    with _removed_on_failure() as written_paths:
        for recipe_path, body in recipes.items():
            recipe_assumptions = draft.assumed[-1:] if recipe_path == first else draft.assumed
            write_text(recipe_path, _format_head(data, recipe_path, recipe_assumptions) + body)
            written_paths.append(recipe_path)
    about = f"about {max(1, round(draft.seconds / 60))} min of training on two CPU cores, beside the parity gate"
    return NewRecipe(list(recipes), [*data_files.notes, *draft.assumed, *notes, about])


@contextlib.contextmanager
def _removed_on_failure() -> Iterator[list[Path]]:
    """Yield a list for the files that the ``with`` block has written; remove them if it fails."""
    written_paths: list[Path] = []
    try:
        yield written_paths
    except BaseException:
        for path in written_paths:
            path.unlink(missing_ok=True)
        raise


def _write_joined_tables(
    data: Path, recipe: Path, parallel_files: Mapping[str, ParallelFiles], written_tables: list[Path]
) -> list[str]:
    """Write the texts and labels of each split into a table next to the recipe.

    Args:
        data: folder of the data, or a text file in it.
        recipe: path of the recipe.
        parallel_files: split -> texts and labels.
        written_tables: list to which the paths of the tables are appended, the training split first.

    Returns:
        A note on each table.
    """
    folder = data if data.is_dir() else data.parent
    names, named_by = find_label_names(folder, [label for pair in parallel_files.values() for label in pair.labels])
    tables = {
        split_name: new_file(recipe.with_name(f"{split_name}-{recipe.stem}.csv")) for split_name in parallel_files
    }
    notes = []
    for split_name, table in sorted(tables.items(), key=lambda item: item[0] != "train"):
        pair = parallel_files[split_name]
        write_text(table, format_joined_table(pair, names))
        written_tables.append(table)
        first, last = (path.relative_to(folder) for path in (pair.texts_path, pair.labels_path))
        joined_lines = f"{table.name} joins the {len(pair.texts):,} lines"
        if pair.is_named_by_label:
            notes.append(f"{joined_lines} from {first} to {last}, with the names of the files as labels")
        else:
            notes.append(f"{joined_lines} of {first} with their labels, the lines of {last}")
    if named_by is not None:
        notes.append(f"{named_by.name} names the labels")
    return notes


def _choose_task(data_files: DataFiles) -> str:
    """Return the task that suits the data.

    Args:
        data_files: facts about the files.
    """
    if find_entity_columns(data_files) is not None:
        return "token_classification"
    if data_files.kind == "text":
        return "classification" if data_files.classes and not _are_whole_works(data_files) else "language_modeling"
    return "question_answering" if data_files.questions or _has_questions(data_files) else "classification"


def _are_whole_works(data_files: DataFiles) -> bool:
    """Whether folders of texts hold a few long works each: a classifier would read the beginnings of too few.

    Args:
        data_files: facts about the files.
    """
    sizes = [path.stat().st_size for files in data_files.files.values() for path in files]
    return statistics.median(sizes) > MIN_LONG_WORK_BYTES and min(map(len, data_files.files.values())) < MIN_CLASS_TEXTS


def _has_questions(data_files: DataFiles) -> bool:
    """Return whether the table has columns of questions, contexts and answers.

    Args:
        data_files: facts about the files.
    """
    return data_files.rows is not None and find_question_columns(data_files.rows) is not None


def _check_choice(data: Path, data_files: DataFiles, task: str, table_options: TableOptions) -> None:
    """Check that the data is of the kind that the task needs.

    Args:
        data: path that the user named.
        data_files: facts about the files.
        task: name of the task.
        table_options: options of the user about columns and labels.

    Raises:
        UserError: it is not.
    """
    likely = _choose_task(data_files)
    if table_options != TableOptions() and task != "classification":
        options = "--text, --label, --problem-type and --missing-labels"
        raise UserError(f"{data}: {options} are for classification, not for {task}; remove them")
    if data_files.classes and task == "language_modeling":
        if _are_whole_works(data_files):
            what = "of which a classifier would read the beginnings alone: this is a language model of them"
            data_files.notes.append(
                f"each folder holds a few long texts, {what}; --task classification tells them apart"
            )
        data_files.files = {make_control_code(files[0].parent): files for files in data_files.files.values()}
        return
    if task == likely or (data_files.classes and task == "classification"):
        return
    if likely == "language_modeling":
        raise UserError(f"{data}: is plain text without labels or questions; write a table, such as csv, for {task}")
    if task == "language_modeling":
        raise UserError(f"{data}: is a table; for a language model, give text files or a folder of them")
    if task in REQUIRED_DATA or data_files.rows is None:
        right = REQUIRED_DATA.get(task, "texts and labels")
        nearest = describe_entity_problem(data_files) if task == "token_classification" else ""
        raise UserError(f"{data}: is not made for {task}: that wants {right}{nearest}")


def _recipe_name(data: Path) -> str:
    """Name of the recipe."""
    resolved_path = data.resolve()
    stem = resolved_path.name.partition(".")[0] if resolved_path.is_file() else resolved_path.name
    if resolved_path.is_file() and SAYS_NOTHING.fullmatch(stem) and resolved_path.parent.name:
        stem = resolved_path.parent.name
    return re.sub(r"[^\w-]+", "_", stem).strip("_") or "recipe"


def _format_path(file: Path, recipe: Path) -> str:
    """Return a path for the recipe: as given if relative and the recipe is in the current folder, else absolute.

    Raises:
        UserError: no recipe can hold it.
    """
    here = not file.is_absolute() and recipe.parent.resolve() == Path.cwd()
    path_text = str(file) if here else os.path.abspath(file)
    try:
        path_text.encode("utf-8")
    except UnicodeEncodeError:
        raise UserError(f"{one_line(path_text)}: its name is not UTF-8; rename it") from None
    return path_text


def _format_head(data: Path, path: Path, assumptions: Sequence[str]) -> str:
    """Return the comment at the top of a new recipe: its data, its assumptions and the command that runs it."""
    comment_lines = "".join(f"# {one_line(line)}.\n" for line in assumptions)
    command = f"toolkit finetune {shlex.quote(str(path))}"
    return (
        f"# Written by `toolkit recipe new {one_line(str(data))}`. Change what is not so:\n{comment_lines}# {command}\n"
    )


def _check_recipe(recipe: str, data: Path, name: str) -> list[str]:
    """Return the notes of `toolkit recipe check` on a text.

    Raises:
        UserError: it refuses it.
    """
    with scratch_folder("toolkit-recipe-") as folder:
        path = Path(folder) / name
        write_text(path, recipe)
        try:
            loaded_recipe = load_recipe(path)
            return [*loaded_recipe.findings.notes, *check_model(loaded_recipe), *check_data(loaded_recipe)]
        except UserError as error:
            lines = [re.sub(rf"^{re.escape(str(path))}(:\d+)?: ", "", line) for line in error.args]
            message = "; ".join(lines).replace("data.missing_labels: drop", "--missing-labels drop")
            raise UserError(f"{data}: {message}") from None
