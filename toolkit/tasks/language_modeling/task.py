"""Language modeling: predict the next token from the tokens before it.

For CTRL (Keskar et al. 2019), texts also start with a control code, which names the kind of text. For a family without
control codes, texts may have a group, which names their kind only in the results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from models import families
from models.files.plain import UnreadableFileError
from toolkit.data.batches import IGNORED_LABEL
from toolkit.errors import UserError
from toolkit.tasks.interface import Baseline, Description, LabeledRows, PreparedData
from toolkit.tasks.intervals import bootstrap_intervals
from toolkit.tasks.metrics import perplexity_of_loss

if TYPE_CHECKING:
    import datasets
    from rich.console import Console

    from models.port.tokenization import Tokenizer
    from toolkit.pages.elements import Section
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

#: Prefix of the name of a perplexity. The name of the control code or group follows it.
PERPLEXITY_OF = "perplexity_"

#: Group name of texts without a group.
NO_GROUP = ""


def has_control_codes(family: str) -> bool:
    """Return whether the texts of a model family start with control codes, which its tokenizer then knows."""
    return hasattr(families.part(family, "tokenizer"), "check_control_code")


def check(recipe: Recipe) -> None:
    """Check that the recipe names the source of the texts, and of the control codes if the family has them.

    The source of both is the data set, `sources`, or a column.
    """
    data, has_codes = recipe.data, has_control_codes(recipe.model.name)
    if data.dataset == "text":
        if has_codes and data.files is not None:
            raise recipe.error("data.files", "plain text is named under its control code: set sources, not files")
        if has_codes and not data.sources:
            raise recipe.error("data.sources", "missing; name the text files of each control code: {Books: novel.txt}")
        if not data.sources and data.files is None:
            raise recipe.error("data.files", "missing; name the text files: {train: novel.txt}, or several in sources")
        if data.sources is not None and data.files is not None:
            raise recipe.error("data.files", "sources names the text files already; remove one of the two")
    elif data.sources is not None:
        raise recipe.error("data.sources", f"is for dataset: text, not for {data.dataset}; remove it")
    has_own_codes = data.dataset == "text" or data.dataset in CORPORA
    if has_own_codes and data.control is not None:
        code_kind = "control codes" if has_codes else "groups"
        raise recipe.error("data.control", f"dataset: {data.dataset} has {code_kind} of its own; remove it")
    if has_codes and not has_own_codes and data.control is None:
        raise recipe.error("data.control", "missing; name the column that holds the control code of each text")


# -- data -----------------------------------------------------------------------------------------------------------


def load_splits(recipe: Recipe) -> datasets.DatasetDict:
    """Return the splits with the columns ``text`` (a document) and ``control``.

    ``control`` is the document's control code, a word. For a family without control codes it is the group, a word or
    :data:`NO_GROUP`.

    Raises:
        UserError: a file or column is missing, there is no text, or a split cannot be held out. The error names the
            recipe's line.
    """
    from toolkit.data.load import hold_out_splits, limit_rows, load_splits
    from toolkit.tasks.language_modeling.documents import divide_documents

    stored_splits = _from_sources(recipe) if recipe.data.sources else load_splits(recipe, CORPORA, _from_file)
    splits = stored_splits if recipe.data.dataset in (*CORPORA, "text") else _select_columns(recipe, stored_splits)
    has_codes = has_control_codes(recipe.model.name)
    check_name = families.part(recipe.model.name, "tokenizer").check_control_code if has_codes else _check_group
    for code in dict.fromkeys(splits["train"]["control"][:]):
        try:
            check_name(code)
        except ValueError as error:
            raise recipe.error(_key_of(recipe, code), str(error)) from None

    return limit_rows(
        recipe, hold_out_splits(recipe, splits, _divide_text if recipe.data.dataset == "text" else divide_documents)
    )


def _divide_text(rows: datasets.Dataset, shares: Mapping[str, float], seed: int) -> dict[str, list[int]]:
    """Divide the documents of plain text; explain the length of a document if they are too few.

    Args:
        rows: rows of the split.
        shares: share of the documents for each split.
        seed: seed of the random division.

    Raises:
        ValueError: a control code has too few documents.
    """
    from toolkit.tasks.language_modeling.documents import DOCUMENT_LENGTH, divide_documents

    try:
        return divide_documents(rows, shares, seed)
    except ValueError as error:
        definition = (
            f"a document is {DOCUMENT_LENGTH:,} characters or more, to a blank line or, without any, a line end"
        )
        raise ValueError(f"{error} ({definition}); add text, or a file for each split") from None


def _check_group(name: str) -> None:
    """Raise ``ValueError`` if the name cannot name a group's perplexity."""
    if name != NO_GROUP and (len(name.split()) != 1 or not name.isprintable()):
        raise ValueError(f"{name!r} cannot be the name of a group: it is not one word")


def _key_of(recipe: Recipe, code: str) -> str | tuple[str, ...]:
    """Return the recipe key that sets a control code, or the tokenizer's key for a built-in data set."""
    if recipe.data.dataset in CORPORA:
        return "tokenizer.path" if recipe.tokenizer.path else "tokenizer.kind"
    return ("data", "sources", code) if recipe.data.sources else "data.control"


def _from_file(recipe: Recipe, split_name: str, path: Path) -> datasets.Dataset:
    """Read the rows of a split's file: plain text, cut into documents, or a format that `datasets` reads.

    Raises:
        UnreadableFileError: the file is not text, or is empty.
    """
    import datasets

    from toolkit.data.sources import read_file, read_plain_text
    from toolkit.tasks.language_modeling.documents import documents_of

    if recipe.data.dataset != "text":
        return read_file(recipe, split_name, path)
    if not (text := read_plain_text(recipe, path)).strip():
        raise UnreadableFileError(path, "is empty")
    documents = documents_of(text)
    return datasets.Dataset.from_dict({"text": documents, "control": [NO_GROUP] * len(documents)})


def _from_sources(recipe: Recipe) -> datasets.DatasetDict:
    """Return the files of each control code or group, cut into documents."""
    import datasets

    from toolkit.data.sources import read_named_texts
    from toolkit.tasks.language_modeling.documents import documents_of

    texts: list[str] = []
    codes: list[str] = []
    for code, text in read_named_texts(recipe):
        documents = documents_of(text)
        texts += documents
        codes += [code] * len(documents)
    return datasets.DatasetDict({"train": datasets.Dataset.from_dict({"text": texts, "control": codes})})


def _select_columns(recipe: Recipe, splits: datasets.DatasetDict) -> datasets.DatasetDict:
    """Return the two columns of a file or hub data set, renamed to ``text`` and ``control``.

    Args:
        recipe: recipe of the run.
        splits: rows of each split.
    """
    import datasets

    from toolkit.data.load import check_columns

    column_names = {"text": recipe.data.text_columns[0]}
    if recipe.data.control is not None:
        column_names["control"] = recipe.data.control
    selected_splits = {}
    for split_name, rows in splits.items():
        check_columns(recipe, split_name, rows, column_names)
        columns: dict[str, list[str]] = {"control": [NO_GROUP] * len(rows)}
        for name, column in column_names.items():
            columns[name] = rows.select_columns([column])[:][column]
            feature = rows.features[column]
            if name == "control" and isinstance(feature, datasets.ClassLabel):
                columns[name] = [feature.int2str(value) for value in columns[name]]
            for number, value in enumerate(columns[name], start=1):
                if not isinstance(value, str) or (name == "control" and not value):
                    message = f"row {number} of the {split_name} split has {value!r} as its {column}; it should be text"
                    raise recipe.error(f"data.{name}", message)
        selected_splits[split_name] = datasets.Dataset.from_dict(columns)
    return datasets.DatasetDict(selected_splits)


def texts(rows: datasets.Dataset) -> Sequence[str]:
    """Return the documents of a split.

    Args:
        rows: rows of the split.
    """
    return rows["text"]


def control_codes(rows: datasets.Dataset) -> Sequence[str]:
    """Return the control code or group of each document.

    Args:
        rows: rows of the split.
    """
    return rows["control"]


def prepare(recipe: Recipe, tokenizer: Any, splits: datasets.DatasetDict, length: int | None = None) -> PreparedData:
    """Pack the splits of :func:`load_splits` into blocks of ``data.max_length`` tokens, padded to ``length``.

    See :class:`.documents.Blocks`.

    Raises:
        UserError: a control code is not one token of the vocabulary, or has no text in a split.
    """
    from toolkit.tasks.language_modeling.documents import Blocks, streams_by_code

    has_codes = has_control_codes(recipe.model.name)
    if recipe.data.max_length < 2:
        first_token = "a control code" if has_codes else "a token"
        raise recipe.error("data.max_length", f"a block is {first_token} and at least one token; set 2 or more")
    codes = _distinct_codes(recipe, splits)
    ids = _code_ids(recipe, tokenizer, codes) if has_codes else None
    blocks: dict[str, Blocks] = {}
    for split_name, rows in splits.items():
        streams_of_split = streams_by_code(rows, codes, tokenizer)
        if empty := [code for code, stream in streams_of_split.items() if len(stream) < (1 if has_codes else 2)]:
            missing_text = f" under {', '.join(empty)}" if empty != [NO_GROUP] else " to predict"
            raise recipe.error("data.dataset", f"the {split_name} split has no text{missing_text}")
        blocks[split_name] = Blocks(streams_of_split, ids, recipe.data.max_length, tokenizer.pad_token_id, length)
    block_counts = ", ".join(f"{len(rows)} {split_name}" for split_name, rows in blocks.items())
    unknown = np.mean([np.mean(blocks["train"].stream(code) == tokenizer.unk_token_id) for code in codes])
    notes = [f"{unknown:.1%} of the training tokens are unknown to the tokenizer"] if unknown > 0.001 else []
    code_summary = [f"{len(codes)} {'control codes' if has_codes else 'groups'}"] if codes != [NO_GROUP] else []
    blocks_summary = (
        f"{block_counts} blocks of {recipe.data.max_length} tokens ({blocks['train'].tokens:,} to train on)"
    )
    return PreparedData(
        train=blocks["train"],
        validation=blocks["validation"],
        test=blocks.get("test"),
        summary=", ".join([blocks_summary, *code_summary]),
        notes=lambda: notes,
    )


def _code_ids(recipe: Recipe, tokenizer: Any, codes: Sequence[str]) -> dict[str, int]:
    """Return the token id of each control code.

    Raises:
        UserError: a control code is not a single token.
    """
    ids: dict[str, int] = {}
    for code in codes:
        try:
            ids[code] = tokenizer.control_code(code)
        except ValueError as error:
            raise recipe.error(_key_of(recipe, code), str(error)) from None
    return ids


def _distinct_codes(recipe: Recipe, splits: datasets.DatasetDict) -> list[str]:
    """Return the control codes or groups, in the order of the training data.

    Args:
        recipe: recipe of the run.
        splits: rows of each split.

    Raises:
        UserError: another split has a code that training does not have.
    """
    codes = list(dict.fromkeys(splits["train"]["control"][:]))
    for split_name, rows in splits.items():
        if unknown_codes := set(rows["control"][:]) - set(codes):
            message = f"the {split_name} split has text under {sorted(unknown_codes)[0]!r}, which the train split lacks"
            raise recipe.error("data.control", message)
    return codes


# -- training -------------------------------------------------------------------------------------------------------


def num_loss_terms(batch: Mapping[str, Any]) -> int:
    """Return the number of predicted tokens: all labels except the first of each block and the ignored labels.

    Args:
        batch: tensors of the batch, by name.
    """
    return int((batch["labels"][:, 1:] != IGNORED_LABEL).sum())


def token_counts(dataset: Any) -> None:
    """Return None, because blocks are full, or their labels are padded too.

    Args:
        dataset: evaluated data set.
    """


def outputs(output: Any, batch: Mapping[str, Any], dataset: Any) -> tuple[Any, ...]:
    """Return the sum of token losses and the number of tokens of each block, (B,) float64; logits are not kept.

    Args:
        output: output of the model.
        batch: tensors of the batch, by name.
        dataset: evaluated data set.
    """
    from models.operations.ops import cross_entropy

    labels = batch["labels"][:, 1:]
    logits = output.logits[:, :-1].astype("float32")
    is_predicted = (labels != IGNORED_LABEL).astype("float64")
    losses = cross_entropy(logits.reshape([-1, logits.shape[-1]]), labels.flatten().clip(min=0)).astype("float64")
    return (losses.reshape(labels.shape) * is_predicted).sum(axis=1), is_predicted.sum(axis=1)


def compute_metrics(outputs: tuple[np.ndarray, ...], dataset: Any) -> dict[str, float]:
    """Return ``loss``, the mean over all tokens, and ``perplexity``, its exponential.

    Each control code or group has a separate perplexity as well.

    Args:
        outputs: arrays of all batches as :func:`outputs` returns them, joined.
        dataset: evaluated data set.
    """
    sums, counts = outputs
    return _block_metrics(sums, counts, dataset.code_of, dataset.codes)


def confidence_intervals(outputs: tuple[np.ndarray, ...], dataset: Any) -> dict[str, list[float]]:
    """Return the interval of each metric of :func:`compute_metrics`, from resampled blocks.

    Args:
        outputs: arrays of all batches as :func:`outputs` returns them, joined.
        dataset: evaluated data set.
    """
    sums, counts = outputs
    return bootstrap_intervals(
        lambda blocks: _block_metrics(sums[blocks], counts[blocks], dataset.code_of[blocks], dataset.codes), len(sums)
    )


def _block_metrics(sums: np.ndarray, counts: np.ndarray, code_of: np.ndarray, codes: Sequence[str]) -> dict[str, float]:
    """Return the metrics of :func:`compute_metrics` for some blocks.

    Args:
        sums: sum of the token losses of each block, (N,).
        counts: number of tokens of each block, (N,).
        code_of: index of the control code or group of each block, (N,).
        codes: control codes or groups.
    """
    loss = float(sums.sum() / counts.sum())
    metrics = {"loss": loss, "perplexity": perplexity_of_loss(loss)}
    for index, code in enumerate(codes):
        in_code = code_of == index
        if code == NO_GROUP or not in_code.any():
            continue
        metrics[f"{PERPLEXITY_OF}{code}"] = perplexity_of_loss(float(sums[in_code].sum() / counts[in_code].sum()))
    return metrics


def predictions(
    run: Run, rows: datasets.Dataset, dataset: Blocks, outputs: tuple[np.ndarray, ...]
) -> Iterator[dict[str, Any]]:
    """Yield the row of each block in ``predictions-SPLIT.csv``.

    It has the block's number from 1, its control code, the number of predicted tokens, their mean loss, the perplexity,
    and the text.

    Args:
        run: trained run.
        rows: rows of the split.
        dataset: evaluated data set.
        outputs: arrays of all batches as :func:`outputs` returns them, joined.
    """
    for index, (loss_sum, count) in enumerate(zip(*outputs, strict=True)):
        loss = float(loss_sum / count)
        tokens = dataset.input_ids[index, 1 : dataset.lengths[index]].tolist()
        yield {
            "block": index + 1,
            "control_code": dataset.codes[dataset.code_of[index]],
            "tokens": int(count),
            "loss": loss,
            "perplexity": perplexity_of_loss(loss),
            "text": run.tokenizer.decode_readable(tokens),
        }


def report(folder: Path, predictions_path: Path, results: Mapping[str, Any]) -> Iterator[Section]:
    """Show the perplexity by control code, the blocks with the highest and lowest loss, and samples of text.

    Args:
        folder: run folder.
        predictions_path: path of the split's predictions file.
        results: content of ``metrics.json``.
    """
    from toolkit.tasks.language_modeling.report import report_sections

    return report_sections(folder, predictions_path, results)


def baselines(
    recipe: Recipe,
    tokenizer: Tokenizer,
    splits: datasets.DatasetDict,
    prepared_data: PreparedData,
    console: Console,
) -> dict[str, Baseline]:
    """Return the perplexities of token frequencies and of trigrams, both counted in the training blocks.

    Args:
        recipe: recipe of the run.
        tokenizer: tokenizer of the run.
        splits: rows of each split.
        prepared_data: model inputs of each split.
        console: console for progress.
    """
    from toolkit.tasks.language_modeling.documents import log_frequencies
    from toolkit.tasks.language_modeling.ngrams import token_surprises

    train, size = prepared_data.train, tokenizer.vocab_size
    surprise_of_token = -log_frequencies(np.concatenate([train.stream(code) for code in train.codes]), size)
    optional_splits = {"validation": prepared_data.validation, "test": prepared_data.test}
    evaluated_splits = {split_name: rows for split_name, rows in optional_splits.items() if rows is not None}
    frequencies = {
        split_name: surprise_of_token[rows.predicted_tokens()] for split_name, rows in evaluated_splits.items()
    }
    trigrams = {
        split_name: token_surprises((train.input_ids, train.lengths), (rows.input_ids, rows.lengths), size)
        for split_name, rows in evaluated_splits.items()
    }
    return {
        "token frequencies": _measure_surprises(frequencies, evaluated_splits),
        "trigrams (Kneser-Ney)": _measure_surprises(trigrams, evaluated_splits),
    }


def _measure_surprises(surprises: Mapping[str, np.ndarray], blocks: Mapping[str, Blocks]) -> Baseline:
    """Return the perplexity of each split, and its interval on the test split, from resampled blocks.

    Args:
        surprises: -log p (nats) of each token except the first of each block, by split.
        blocks: blocks by split.
    """
    metrics = {name: {"perplexity": perplexity_of_loss(float(values.mean()))} for name, values in surprises.items()}
    if "test" not in surprises:
        return Baseline(metrics)
    counts = blocks["test"].lengths - 1
    sums = np.bincount(np.repeat(np.arange(len(counts)), counts), surprises["test"], len(counts))

    def perplexity_of_blocks(indices: np.ndarray) -> dict[str, float]:
        return {"perplexity": perplexity_of_loss(float(sums[indices].sum() / counts[indices].sum()))}

    return Baseline(metrics, {"test": bootstrap_intervals(perplexity_of_blocks, len(counts))})


def calibrate(
    recipe: Recipe, prepared_data: PreparedData, outputs: Mapping[str, tuple[np.ndarray, ...]]
) -> dict[str, Any]:
    """Return no parameters, because the logits are used unchanged.

    Args:
        recipe: recipe of the run.
        prepared_data: model inputs of each split.
        outputs: arrays of all batches as :func:`outputs` returns them, joined.
    """
    return {}


def write_artifacts(run: Run, trainer: Any, prepared_data: PreparedData, console: Console) -> None:
    """Write `samples.md` and `samples.json` with continuations of validation texts.

    They continue the first words of a validation block of each control code or group.

    Args:
        run: trained run.
        trainer: trainer of the run, with the best weights.
        prepared_data: model inputs of each split.
        console: console for progress.
    """
    from toolkit.tasks.language_modeling.samples import write_samples

    write_samples(run, prepared_data.validation, console)


def predict(run: Run, console: Console) -> None:
    """Raise an error, because a language model generates.

    Args:
        run: trained run.
        console: console for progress.

    Raises:
        UserError: always; it names the command to use.
    """
    raise UserError(f"{run.folder}: is a run of {DESCRIPTION.name}: {DESCRIPTION.command(run.folder, run.recipe)}")


def prediction_columns(run: Run) -> dict[str, type]:
    """Return no columns, because a language model does not label rows.

    Args:
        run: trained run.
    """
    return {}


def label_rows(run: Run, column_texts: Mapping[str, Sequence[str]], advance: Callable[[int], None]) -> LabeledRows:
    """Raise an error; the function is never called, because ``ROW_COLUMNS`` is empty.

    Args:
        run: trained run.
        column_texts: texts of each input column, by name.
        advance: function that is called with the number of rows that were finished.
    """
    raise NotImplementedError
