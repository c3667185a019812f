"""Language modelling: predict the next token from those before it; for CTRL (Keskar et al. 2019), also from a control
code, which names the kind of text. For a family without control codes, texts may have a group, which names their kind
only in the results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from models import families
from models.files.plain import UnreadableFile
from toolkit.data.batches import IGNORED_LABEL
from toolkit.errors import UserError
from toolkit.tasks.interface import Description, LabeledRows, PreparedData
from toolkit.tasks.metrics import perplexity_of_loss

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

    import datasets
    from rich.console import Console

    from models.port.tokenization import Tokenizer
    from toolkit.recipe.recipe import Recipe
    from toolkit.tasks.interface import Run
    from toolkit.tasks.language_modeling.documents import Blocks

HEAD = "causal_lm"
LOWER_IS_BETTER = {"perplexity": True, "loss": True}
CORPORA = {"python_docs": "toolkit.tasks.corpora.python_docs"}
PREDICTS_FROM: tuple[str, ...] = ()
ROW_COLUMNS: tuple[str, ...] = ()
DESCRIPTION = Description(
    name="text generation",
    pipeline_tag="text-generation",
    metrics=("perplexity",),
    auto_class="AutoModelForCausalLM",
    examples="blocks",
    next_command='toolkit generate {run} --prompt "..."',
)

#: Prefix of the perplexity of a control code or group, whose name follows.
PERPLEXITY_OF = "perplexity_"

#: The group of texts that have none.
NO_GROUP = ""


def has_control_codes(family: str) -> bool:
    """Whether the texts of a model family begin with control codes, which its tokenizer then knows."""
    return hasattr(families.part(family, "tokenizer"), "check_control_code")


def check(recipe: Recipe) -> None:
    """Check that the recipe says where texts come from, and where a family has control codes these: the data set,
    `sources`, or a column."""
    data, codes = recipe.data, has_control_codes(recipe.model.name)
    if data.dataset == "text":
        if codes and data.files is not None:
            raise recipe.error("data.files", "plain text is named under its control code: set sources, not files")
        if codes and not data.sources:
            raise recipe.error("data.sources", "missing; name the text files of each control code: {Books: novel.txt}")
        if not data.sources and data.files is None:
            raise recipe.error("data.files", "missing; name the text files: {train: novel.txt}, or several in sources")
        if data.sources is not None and data.files is not None:
            raise recipe.error("data.files", "sources names the text files already; remove one of the two")
    elif data.sources is not None:
        raise recipe.error("data.sources", f"is for dataset: text, not for {data.dataset}; remove it")
    own = data.dataset == "text" or data.dataset in CORPORA
    if own and data.control is not None:
        whose = "control codes" if codes else "groups"
        raise recipe.error("data.control", f"dataset: {data.dataset} has {whose} of its own; remove it")
    if codes and not own and data.control is None:
        raise recipe.error("data.control", "missing; name the column that holds the control code of each text")


# -- data -----------------------------------------------------------------------------------------------------------


def load_splits(recipe: Recipe) -> datasets.DatasetDict:
    """Splits with the columns ``text`` (a document) and ``control`` (its control code, a word; for a family without
    control codes its group, a word or :data:`NO_GROUP`).

    Raises:
        UserError: at the recipe's line: a missing file or column, no text, no split to hold out.
    """
    from toolkit.data.load import hold_out, limited, load_stored
    from toolkit.tasks.language_modeling.documents import divide

    stored = _from_sources(recipe) if recipe.data.sources else load_stored(recipe, CORPORA, _from_file)
    splits = stored if recipe.data.dataset in (*CORPORA, "text") else _columns(recipe, stored)
    known = has_control_codes(recipe.model.name)
    check_name = families.part(recipe.model.name, "tokenizer").check_control_code if known else _check_group
    for code in dict.fromkeys(splits["train"]["control"][:]):
        try:
            check_name(code)
        except ValueError as problem:
            raise recipe.error(_key_of(recipe, code), str(problem)) from None

    return limited(recipe, hold_out(recipe, splits, _divide_text if recipe.data.dataset == "text" else divide))


def _divide_text(rows: datasets.Dataset, shares: Mapping[str, float], seed: int) -> dict[str, list[int]]:
    """Divide the documents of plain text; say what a document is if they are too few.

    Raises:
        ValueError: as :func:`.documents.divide`.
    """
    from toolkit.tasks.language_modeling.documents import DOCUMENT_LENGTH, divide

    try:
        return divide(rows, shares, seed)
    except ValueError as problem:
        what = f"a document is {DOCUMENT_LENGTH:,} characters or more, to a blank line or, without any, a line end"
        raise ValueError(f"{problem} ({what}); add text, or a file for each split") from None


def _check_group(name: str) -> None:
    """Raise ``ValueError`` if the name cannot name a group's perplexity."""
    if name != NO_GROUP and (len(name.split()) != 1 or not name.isprintable()):
        raise ValueError(f"{name!r} cannot be the name of a group: it is not one word")


def _key_of(recipe: Recipe, code: str) -> str | tuple[str, ...]:
    """Return the recipe key that gives a control code; for a built-in data set, that of the tokenizer it must fit."""
    if recipe.data.dataset in CORPORA:
        return "tokenizer.path" if recipe.tokenizer.path else "tokenizer.kind"
    return ("data", "sources", code) if recipe.data.sources else "data.control"


def _from_file(recipe: Recipe, split: str, path: Path) -> datasets.Dataset:
    """Read the rows of a split's file: plain text, cut into documents, or what `datasets` reads.

    Raises:
        UnreadableFile: it is not text, or holds none.
    """
    import datasets

    from toolkit.data.sources import plain_text, read_file
    from toolkit.tasks.language_modeling.documents import documents_of

    if recipe.data.dataset != "text":
        return read_file(recipe, split, path)
    if not (text := plain_text(recipe, path)).strip():
        raise UnreadableFile(path, "is empty")
    documents = documents_of(text)
    return datasets.Dataset.from_dict({"text": documents, "control": [NO_GROUP] * len(documents)})


def _from_sources(recipe: Recipe) -> datasets.DatasetDict:
    """The files under each control code or group, cut into documents."""
    import datasets

    from toolkit.data.sources import named_texts
    from toolkit.tasks.language_modeling.documents import documents_of

    texts: list[str] = []
    codes: list[str] = []
    for code, text in named_texts(recipe):
        documents = documents_of(text)
        texts += documents
        codes += [code] * len(documents)
    return datasets.DatasetDict({"train": datasets.Dataset.from_dict({"text": texts, "control": codes})})


def _columns(recipe: Recipe, splits: datasets.DatasetDict) -> datasets.DatasetDict:
    """Return the two columns of a file or hub data set, under their names here."""
    import datasets

    from toolkit.data.load import check_columns

    named = {"text": recipe.data.text_columns[0]}
    if recipe.data.control is not None:
        named["control"] = recipe.data.control
    found = {}
    for split, rows in splits.items():
        check_columns(recipe, split, rows, named)
        columns: dict[str, list[str]] = {"control": [NO_GROUP] * len(rows)}
        for name, column in named.items():
            columns[name] = rows.select_columns([column])[:][column]
            kind = rows.features[column]
            if name == "control" and isinstance(kind, datasets.ClassLabel):
                columns[name] = [kind.int2str(value) for value in columns[name]]
            for number, value in enumerate(columns[name], start=1):
                if not isinstance(value, str) or (name == "control" and not value):
                    message = f"row {number} of the {split} split has {value!r} as its {column}; it should be text"
                    raise recipe.error(f"data.{name}", message)
        found[split] = datasets.Dataset.from_dict(columns)
    return datasets.DatasetDict(found)


def texts(rows: datasets.Dataset) -> Sequence[str]:
    """The documents of a split."""
    return rows["text"]


def control_codes(rows: datasets.Dataset) -> Sequence[str]:
    """The control code or group of each document."""
    return rows["control"]


def prepare(recipe: Recipe, tokenizer: Any, splits: datasets.DatasetDict, length: int | None = None) -> PreparedData:
    """Pack the splits of :func:`load_splits` into blocks of ``data.max_length`` tokens (:class:`.documents.Blocks`),
    padded to ``length``.

    Raises:
        UserError: a control code is not one token of the vocabulary, or a split has no text under it.
    """
    from toolkit.tasks.language_modeling.documents import Blocks, streams

    under_codes = has_control_codes(recipe.model.name)
    if recipe.data.max_length < 2:
        first = "a control code" if under_codes else "a token"
        raise recipe.error("data.max_length", f"a block is {first} and at least one token; set 2 or more")
    codes = _codes(recipe, splits)
    ids = _code_ids(recipe, tokenizer, codes) if under_codes else None
    blocks: dict[str, Blocks] = {}
    for split, rows in splits.items():
        found = streams(rows, codes, tokenizer)
        if empty := [code for code, stream in found.items() if len(stream) < (1 if under_codes else 2)]:
            under = f" under {', '.join(empty)}" if empty != [NO_GROUP] else " to predict"
            raise recipe.error("data.dataset", f"the {split} split has no text{under}")
        blocks[split] = Blocks(found, ids, recipe.data.max_length, tokenizer.pad_token_id, length)
    sizes = ", ".join(f"{len(rows)} {split}" for split, rows in blocks.items())
    unknown = np.mean([np.mean(blocks["train"].stream(code) == tokenizer.unk_token_id) for code in codes])
    notes = [f"{unknown:.1%} of the training tokens are unknown to the tokenizer"] if unknown > 0.001 else []
    kinds = [f"{len(codes)} {'control codes' if under_codes else 'groups'}"] if codes != [NO_GROUP] else []
    packed = f"{sizes} blocks of {recipe.data.max_length} tokens ({blocks['train'].tokens:,} to train on)"
    return PreparedData(
        train=blocks["train"],
        validation=blocks["validation"],
        test=blocks.get("test"),
        summary=", ".join([packed, *kinds]),
        notes=lambda: notes,
    )


def _code_ids(recipe: Recipe, tokenizer: Any, codes: Sequence[str]) -> dict[str, int]:
    """Control code -> its token.

    Raises:
        UserError: it is not one token.
    """
    ids: dict[str, int] = {}
    for code in codes:
        try:
            ids[code] = tokenizer.control_code(code)
        except ValueError as problem:
            raise recipe.error(_key_of(recipe, code), str(problem)) from None
    return ids


def _codes(recipe: Recipe, splits: datasets.DatasetDict) -> list[str]:
    """The control codes or groups, in the order of the training data.

    Raises:
        UserError: another split has one that training does not.
    """
    codes = list(dict.fromkeys(splits["train"]["control"][:]))
    for split, rows in splits.items():
        if strange := set(rows["control"][:]) - set(codes):
            message = f"the {split} split has text under {sorted(strange)[0]!r}, which the train split lacks"
            raise recipe.error("data.control", message)
    return codes


# -- training -------------------------------------------------------------------------------------------------------


def num_loss_terms(batch: Mapping[str, Any]) -> int:
    """The number of tokens that are predicted: each label but the first of a block, unless it is ignored."""
    return int((batch["labels"][:, 1:] != IGNORED_LABEL).sum())


def token_counts(dataset: Any) -> None:
    """Return None: blocks are full, or their labels are padded too."""


def outputs(output: Any, batch: Mapping[str, Any], dataset: Any) -> tuple[Any, ...]:
    """Return each block's sum of token losses [B] and number of them [B], float64; logits are not kept."""
    from models.operations.ops import cross_entropy

    labels = batch["labels"][:, 1:]
    logits = output.logits[:, :-1].astype("float32")
    kept = (labels != IGNORED_LABEL).astype("float64")
    losses = cross_entropy(logits.reshape([-1, logits.shape[-1]]), labels.flatten().clip(min=0)).astype("float64")
    return (losses.reshape(labels.shape) * kept).sum(axis=1), kept.sum(axis=1)


def compute_metrics(outputs: tuple[np.ndarray, ...], dataset: Any) -> dict[str, float]:
    """``loss``, the mean over all tokens, and ``perplexity``, its exponential; the latter for each control code or
    group too."""
    sums, counts = outputs
    loss = float(sums.sum() / counts.sum())
    found = {"loss": loss, "perplexity": perplexity_of_loss(loss)}
    for index, code in enumerate(dataset.codes):
        if code == NO_GROUP:
            continue
        chosen = dataset.code_of == index
        found[f"{PERPLEXITY_OF}{code}"] = perplexity_of_loss(float(sums[chosen].sum() / counts[chosen].sum()))
    return found


def predictions(
    run: Run, rows: datasets.Dataset, dataset: Blocks, outputs: tuple[np.ndarray, ...]
) -> Iterator[dict[str, Any]]:
    """Yield for each block: its number from 1, its control code, the number of predicted tokens, their mean loss, the
    perplexity, and its text."""
    for index, (total, count) in enumerate(zip(*outputs, strict=True)):
        loss = float(total / count)
        tokens = dataset.input_ids[index, 1 : dataset.lengths[index]].tolist()
        yield {
            "block": index + 1,
            "control_code": dataset.codes[dataset.code_of[index]],
            "tokens": int(count),
            "loss": loss,
            "perplexity": perplexity_of_loss(loss),
            "text": run.tokenizer.readable(tokens),
        }


def report(folder: Path, predictions: Path, results: Mapping[str, Any]) -> Iterator[Element]:
    """Perplexity by control code, the hardest and the easiest blocks, and samples of the model's text."""
    from toolkit.tasks.language_modeling.report import sections

    return sections(folder, predictions, results)


def baselines(
    recipe: Recipe, tokenizer: Tokenizer, splits: datasets.DatasetDict, prepared: PreparedData
) -> dict[str, dict[str, dict[str, float]]]:
    """Return the perplexities of token frequencies and of trigrams, both counted in the training blocks."""
    from toolkit.tasks.language_modeling.documents import unigram_perplexity
    from toolkit.tasks.language_modeling.ngrams import perplexity

    train = prepared.train
    size = tokenizer.vocab_size
    others = {"validation": prepared.validation, "test": prepared.test}
    kept = {split: rows for split, rows in others.items() if rows is not None}
    counted = train.input_ids, train.lengths
    return {
        "token frequencies": {
            split: {"perplexity": unigram_perplexity(train, rows, size)} for split, rows in kept.items()
        },
        "trigrams (Kneser-Ney)": {
            split: {"perplexity": perplexity(counted, (rows.input_ids, rows.lengths), size)}
            for split, rows in kept.items()
        },
    }


def calibrate(recipe: Recipe, prepared: PreparedData, outputs: Mapping[str, tuple[np.ndarray, ...]]) -> dict[str, Any]:
    """None: the logits are used as they are."""
    return {}


def write_artifacts(run: Run, trainer: Any, prepared: PreparedData, console: Console) -> None:
    """Write `samples.md` and `samples.json`: for each control code or group, continuations of the first words of a
    validation block."""
    from toolkit.tasks.language_modeling.samples import write_samples

    write_samples(run, prepared.validation, console)


def predict(run: Run, console: Console) -> None:
    """Not supported: a language model generates.

    Raises:
        UserError: always; it names the command to use.
    """
    raise UserError(f"{run.folder}: is a run of {DESCRIPTION.name}: {DESCRIPTION.command(run.folder, run.recipe)}")


def prediction_columns(run: Run) -> dict[str, type]:
    """None: a language model generates and does not label."""
    return {}


def label_rows(run: Run, columns: Mapping[str, Sequence[str]], advance: Callable[[int], None]) -> LabeledRows:
    """Not supported, and never called, as ``ROW_COLUMNS`` is empty."""
    raise NotImplementedError
