"""Language modelling under control codes (Keskar et al. 2019): predict the next token from the tokens before it and a
control code, which names the kind of text."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from models import families
from toolkit.errors import UserError
from toolkit.metrics import IGNORED_LABEL
from toolkit.recipe import settled
from toolkit.tasks import Description, Labelled, Prepared

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

    import datasets
    from rich.console import Console

    from toolkit.recipe import Recipe
    from toolkit.tasks import Run
    from toolkit.tasks.language_modeling.documents import Blocks

HEADS = {"ctrl": "causal_lm"}
LOWER_IS_BETTER = {"perplexity": True, "loss": True}
CORPORA = {"python_docs": "toolkit.corpora.python_docs"}
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

#: The name of a control code's perplexity is this prefix and the code.
PERPLEXITY_OF = "perplexity_"


def check(recipe: Recipe) -> None:
    """See that the recipe says where the control codes come from: the data set, `sources`, or a column."""
    data = recipe.data
    if data.dataset == "text":
        if data.files is not None:
            raise recipe.error("data.files", "plain text is named under its control code: set sources, not files")
        if not data.sources:
            raise recipe.error("data.sources", "missing; name the text files of each control code: {Books: novel.txt}")
    elif data.sources is not None:
        raise recipe.error("data.sources", f"is for dataset: text, not for {data.dataset}; remove it")
    own = data.dataset == "text" or data.dataset in CORPORA
    if own and data.control is not None:
        raise recipe.error("data.control", f"dataset: {data.dataset} has control codes of its own; remove it")
    if not own and data.control is None:
        raise recipe.error("data.control", "missing; name the column that holds the control code of each text")


# -- data -----------------------------------------------------------------------------------------------------------


def load_splits(recipe: Recipe) -> datasets.DatasetDict:
    """Splits with the columns ``text`` (a document) and ``control`` (its control code, a word).

    Raises:
        UserError: at the recipe's line: a file or column that is not there, no text, no split to hold out.
    """
    from toolkit.data import hold_out, limited, load_stored
    from toolkit.tasks.language_modeling.documents import divide

    stored = _from_sources(recipe) if recipe.data.dataset == "text" else load_stored(recipe, CORPORA)
    splits = stored if recipe.data.dataset in (*CORPORA, "text") else _columns(recipe, stored)
    for code in dict.fromkeys(splits["train"]["control"][:]):
        try:
            families.part(recipe.model.name, "tokenizer").check_control_code(code)
        except ValueError as problem:
            raise recipe.error(_key_of(recipe, code), str(problem)) from None

    return limited(recipe, hold_out(recipe, splits, divide))


def _key_of(recipe: Recipe, code: str) -> str | tuple[str, ...]:
    """The recipe's key that a control code comes from; for a built-in data set, that of the tokenizer it must fit."""
    if recipe.data.dataset in CORPORA:
        return "tokenizer.path" if recipe.tokenizer.path else "tokenizer.kind"
    return ("data", "sources", code) if recipe.data.sources else "data.control"


def _from_sources(recipe: Recipe) -> datasets.DatasetDict:
    """The files under each control code, cut into documents."""
    import datasets

    from toolkit.sources import named_texts
    from toolkit.tasks.language_modeling.documents import cut

    texts: list[str] = []
    codes: list[str] = []
    for code, text in named_texts(recipe):
        documents = cut(text)
        texts += documents
        codes += [code] * len(documents)
    return datasets.DatasetDict({"train": datasets.Dataset.from_dict({"text": texts, "control": codes})})


def _columns(recipe: Recipe, splits: datasets.DatasetDict) -> datasets.DatasetDict:
    """The two columns of a file or hub data set, under the names that they have here."""
    import datasets

    from toolkit.data import check_columns

    named = {"text": recipe.data.text, "control": settled(recipe.data.control)}
    found = {}
    for split, rows in splits.items():
        check_columns(recipe, split, rows, named)
        columns: dict[str, list[str]] = {}
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
    """The control code of each document."""
    return rows["control"]


def prepare(recipe: Recipe, tokenizer: Any, splits: datasets.DatasetDict, length: int | None = None) -> Prepared:
    """Pack the splits of :func:`load_splits` into blocks of ``length`` tokens (:class:`.documents.Blocks`): a block is
    full, and so has no padding to be longer by.

    Raises:
        UserError: a control code that is not one token of the vocabulary, or that a split has no text under.
    """
    from toolkit.tasks.language_modeling.documents import Blocks, streams, unigram_perplexity

    if recipe.data.max_length < 2:
        raise recipe.error("data.max_length", "a block is a control code and at least one token; set 2 or more")
    length = length or recipe.data.max_length
    ids = _code_ids(recipe, tokenizer, splits)
    blocks: dict[str, Blocks] = {}
    for split, rows in splits.items():
        found = streams(rows, ids, tokenizer)
        if empty := [code for code, stream in found.items() if not stream]:
            raise recipe.error("data.dataset", f"the {split} split has no text under {', '.join(empty)}")
        blocks[split] = Blocks(found, ids, length, tokenizer.pad_token_id)
    sizes = ", ".join(f"{len(rows)} {split}" for split, rows in blocks.items())
    others = {split: rows for split, rows in blocks.items() if split != "train"}
    baseline = {split: unigram_perplexity(blocks["train"], rows, tokenizer.vocab_size)
                for split, rows in others.items()}  # fmt: skip
    unknown = np.mean([np.mean(blocks["train"].stream(code) == tokenizer.encode("<unk>")[0]) for code in ids])
    notes = [f"tokens by frequency alone: perplexity {baseline['validation']:.1f} on validation"]
    if unknown > 0.001:
        notes.append(f"{unknown:.1%} of the training tokens are unknown to the tokenizer")
    return Prepared(
        train=blocks["train"],
        validation=blocks["validation"],
        test=blocks.get("test"),
        summary=f"{sizes} blocks of {length} tokens ({blocks['train'].tokens:,} to train on), {len(ids)} control codes",
        notes=notes,
        baseline={split: {"perplexity": value} for split, value in baseline.items()},
    )


def _code_ids(recipe: Recipe, tokenizer: Any, splits: datasets.DatasetDict) -> dict[str, int]:
    """Control code -> its token, in the order of the training data.

    Raises:
        UserError: it is not one token, or another split has a code that training does not.
    """
    ids: dict[str, int] = {}
    for code in dict.fromkeys(splits["train"]["control"][:]):
        try:
            ids[code] = tokenizer.control_code(code)
        except ValueError as problem:
            raise recipe.error(_key_of(recipe, code), str(problem)) from None
    for split, rows in splits.items():
        if strange := set(rows["control"][:]) - set(ids):
            message = f"the {split} split has text under {sorted(strange)[0]!r}, which the train split has not"
            raise recipe.error("data.control", message)
    return ids


# -- training -------------------------------------------------------------------------------------------------------


def num_loss_terms(batch: Mapping[str, Any]) -> int:
    """The number of tokens that are predicted: each label but the first of a block, unless it is ignored."""
    return int((batch["labels"][:, 1:] != IGNORED_LABEL).sum())


def outputs(output: Any, batch: Mapping[str, Any], dataset: Any) -> tuple[Any, ...]:
    """Of each block, the sum of its tokens' losses [B] and their number [B], float64; logits are not kept."""
    from models.ops import cross_entropy

    labels = batch["labels"][:, 1:]
    logits = output.logits[:, :-1].astype("float32")
    kept = (labels != IGNORED_LABEL).astype("float64")
    losses = cross_entropy(logits.reshape([-1, logits.shape[-1]]), labels.flatten().clip(min=0)).astype("float64")
    return (losses.reshape(labels.shape) * kept).sum(axis=1), kept.sum(axis=1)


def compute_metrics(outputs: tuple[np.ndarray, ...], dataset: Any) -> dict[str, float]:
    """``loss``, the mean over all tokens, and ``perplexity``, its exponential; the latter for each control code too."""
    sums, counts = outputs
    loss = float(sums.sum() / counts.sum())
    found = {"loss": loss, "perplexity": _exponential(loss)}
    for index, code in enumerate(dataset.codes):
        chosen = dataset.code_of == index
        found[f"{PERPLEXITY_OF}{code}"] = _exponential(float(sums[chosen].sum() / counts[chosen].sum()))
    return found


def _exponential(loss: float) -> float:
    return math.exp(loss) if loss < 700 else math.inf


def predictions(
    run: Run, rows: datasets.Dataset, dataset: Blocks, outputs: tuple[np.ndarray, ...]
) -> Iterator[dict[str, Any]]:
    """Of each block: its number from 1, its control code, how many tokens were predicted, their mean loss, the
    perplexity, and its text."""
    from toolkit.tasks.language_modeling.samples import readable

    for index, (total, count) in enumerate(zip(*outputs, strict=True)):
        loss = float(total / count)
        tokens = dataset.input_ids[index, 1 : dataset.lengths[index]].tolist()
        yield {
            "block": index + 1,
            "control_code": dataset.codes[dataset.code_of[index]],
            "tokens": int(count),
            "loss": loss,
            "perplexity": _exponential(loss),
            "text": readable(run.tokenizer, tokens),
        }


def report(folder: Path, predictions: Path, results: Mapping[str, Any]) -> Iterator[Element]:
    """Perplexity by control code, the hardest and the easiest blocks, and samples of the model's text."""
    from toolkit.tasks.language_modeling.report import sections

    return sections(folder, predictions, results)


def write_artifacts(run: Run, trainer: Any, prepared: Prepared, console: Console) -> None:
    """Write `samples.md` and `samples.json`: for each control code, how the first words of a validation block go on."""
    from toolkit.tasks.language_modeling.samples import write_samples

    write_samples(run, prepared.validation, console)


def predict(run: Run, console: Console) -> None:
    """Not supported: a language model generates.

    Raises:
        UserError: always; it names the command to use.
    """
    raise UserError(f"{run.folder}: is a run of {DESCRIPTION.name}: {DESCRIPTION.command(run.folder)}")


def prediction_columns(run: Run) -> dict[str, type]:
    """None: a language model generates and does not label."""
    return {}


def label_rows(run: Run, columns: Mapping[str, Sequence[str]], advance: Callable[[int], None]) -> Labelled:
    """Not supported; nothing asks for it, as ``ROW_COLUMNS`` is empty."""
    raise NotImplementedError
