"""Masked language modeling: predict masked tokens from the tokens on both sides (Devlin et al. 2019, "BERT").

The resulting weights are for tasks with labels: ``model.weights`` of such a recipe loads the run's model, with a new
head. Texts are read as in language modeling, without control codes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from toolkit.data.batches import IGNORED_LABEL
from toolkit.errors import UserError
from toolkit.tasks.interface import Baseline, Description, PreparedData
from toolkit.tasks.intervals import bootstrap_intervals
from toolkit.tasks.language_modeling.task import CORPORA as CORPORA
from toolkit.tasks.language_modeling.task import calibrate as calibrate
from toolkit.tasks.language_modeling.task import check as check
from toolkit.tasks.language_modeling.task import control_codes as control_codes
from toolkit.tasks.language_modeling.task import label_rows as label_rows
from toolkit.tasks.language_modeling.task import load_splits as load_splits
from toolkit.tasks.language_modeling.task import prediction_columns as prediction_columns
from toolkit.tasks.language_modeling.task import texts as texts
from toolkit.tasks.metrics import perplexity_of_loss

if TYPE_CHECKING:
    import datasets
    from rich.console import Console

    from models.port.tokenization import Tokenizer
    from toolkit.pages.elements import Section
    from toolkit.recipe.recipe import Recipe
    from toolkit.tasks.interface import Run
    from toolkit.tasks.masked_language_modeling.masking import MaskedBlocks

HEAD = "masked_lm"
LOWER_IS_BETTER = {"perplexity": True, "accuracy": False, "loss": True}
PREDICTS_FROM: tuple[str, ...] = ()
ROW_COLUMNS: tuple[str, ...] = ()
DESCRIPTION = Description(
    name="masked language modeling",
    pipeline_tag="fill-mask",
    metrics=("perplexity", "accuracy"),
    auto_class="AutoModelForMaskedLM",
    examples="blocks",
    next_command='toolkit finetune LABELLED.yaml "model={{weights: {run}/model}}" "tokenizer={{kind: checkpoint}}"',
)


def prepare(recipe: Recipe, tokenizer: Any, splits: datasets.DatasetDict, length: int | None = None) -> PreparedData:
    """Cut the documents of :func:`load_splits` into blocks of ``data.max_length`` tokens, padded to ``length``.

    Raises:
        UserError: the tokenizer has no token to mask with, or a split has no text.
    """
    from toolkit.tasks.language_modeling.documents import tokenize_documents
    from toolkit.tasks.masked_language_modeling.masking import MaskedBlocks, Masking

    data = recipe.data
    if tokenizer.mask_token_id is None:
        key = "tokenizer.path" if recipe.tokenizer.path else "tokenizer.kind"
        raise recipe.error(
            key, "has no piece that no text has, such as <s>, to mask tokens with; train one: vocab_size"
        )
    words = tokenizer.begins_word() if data.whole_words else None
    masking = Masking(tokenizer.mask_token_id, tokenizer.vocab_size, data.mask_fraction or 0.15, words)
    blocks: dict[str, MaskedBlocks] = {}
    for number, (split_name, rows) in enumerate(splits.items()):
        documents = (token_ids for _, token_ids in tokenize_documents(rows, tokenizer))
        seed, padded_length = (recipe.seed, 4, number), length or data.max_length
        blocks[split_name] = MaskedBlocks(
            documents, data.max_length, padded_length, tokenizer.pad_token_id, masking, seed
        )
        if not len(blocks[split_name]):
            raise recipe.error("data.dataset", f"the {split_name} split has no text to predict")
    block_counts = ", ".join(f"{len(rows)} {split_name}" for split_name, rows in blocks.items())
    tokens = int(blocks["train"].lengths.sum())
    summary = (
        f"{block_counts} blocks of {data.max_length} tokens ({tokens:,} to train on, "
        f"of which {masking.fraction:.0%} masked)"
    )
    return PreparedData(blocks["train"], blocks["validation"], blocks.get("test"), summary)


def num_loss_terms(batch: Mapping[str, Any]) -> int:
    """Return the number of chosen tokens.

    Args:
        batch: tensors of the batch, by name.
    """
    return int((batch["labels"] != IGNORED_LABEL).sum())


def token_counts(dataset: Any) -> None:
    """Return None, because labels are padded too.

    Args:
        dataset: evaluated data set.
    """


def outputs(output: Any, batch: Mapping[str, Any], dataset: Any) -> tuple[Any, ...]:
    """Return the sum of losses, the number of chosen tokens and of correct predictions of each block, (B,) float64.

    Args:
        output: output of the model.
        batch: tensors of the batch, by name.
        dataset: evaluated data set.
    """
    import paddle

    from models.operations.ops import cross_entropy

    labels = batch["labels"]
    positions = paddle.nonzero(labels != IGNORED_LABEL)  # (tokens, 2): block, position
    logits, targets = paddle.gather_nd(output.logits, positions).astype("float32"), paddle.gather_nd(labels, positions)
    token_results = (cross_entropy(logits, targets), paddle.ones_like(targets), logits.argmax(-1) == targets)
    empty = paddle.zeros([len(labels)], "float64")
    return tuple(
        paddle.scatter(empty, positions[:, 0], token_result.astype("float64"), overwrite=False)
        for token_result in token_results
    )


def compute_metrics(outputs: tuple[np.ndarray, ...], dataset: Any) -> dict[str, float]:
    """Return ``loss``, the mean over the chosen tokens, ``perplexity``, its exponential, and ``accuracy``.

    Args:
        outputs: arrays of all batches as :func:`outputs` returns them, joined.
        dataset: evaluated data set.
    """
    losses, counts, num_correct = (part.sum() for part in outputs)
    loss = float(losses / counts)
    return {"loss": loss, "perplexity": perplexity_of_loss(loss), "accuracy": float(num_correct / counts)}


def confidence_intervals(outputs: tuple[np.ndarray, ...], dataset: Any) -> dict[str, list[float]]:
    """Return the interval of each metric of :func:`compute_metrics`, from resampled blocks.

    Args:
        outputs: arrays of all batches as :func:`outputs` returns them, joined.
        dataset: evaluated data set.
    """
    return bootstrap_intervals(
        lambda blocks: compute_metrics(tuple(part[blocks] for part in outputs), dataset), len(outputs[0])
    )


def predictions(
    run: Run, rows: datasets.Dataset, dataset: MaskedBlocks, outputs: tuple[np.ndarray, ...]
) -> Iterator[dict[str, Any]]:
    """Yield the row of each block in ``predictions-SPLIT.csv``.

    It has the block's number from 1, the number of chosen tokens, their mean loss, the accuracy, and the text.

    Args:
        run: trained run.
        rows: rows of the split.
        dataset: evaluated data set.
        outputs: arrays of all batches as :func:`outputs` returns them, joined.
    """
    for index, (loss, count, num_correct) in enumerate(zip(*outputs, strict=True)):
        text = run.tokenizer.decode_readable(dataset.tokens[index, : dataset.lengths[index]].tolist())
        scores = {"loss": float(loss / count), "accuracy": float(num_correct / count)}
        yield {"block": index + 1, "masked_tokens": int(count), **scores, "text": text}


def report(folder: Path, predictions_path: Path, results: Mapping[str, Any]) -> Iterator[Section]:
    """Yield no sections: the page shows the metrics and curves of every task.

    Args:
        folder: run folder.
        predictions_path: path of the split's predictions file.
        results: content of ``metrics.json``.
    """
    return iter(())


def baselines(
    recipe: Recipe,
    tokenizer: Tokenizer,
    splits: datasets.DatasetDict,
    prepared_data: PreparedData,
    console: Console,
) -> dict[str, Baseline]:
    """Return the perplexity and accuracy of token frequencies, which ignore the neighbors of a masked token.

    Args:
        recipe: recipe of the run.
        tokenizer: tokenizer of the run.
        splits: rows of each split.
        prepared_data: model inputs of each split.
        console: console for progress.
    """
    from toolkit.tasks.language_modeling.documents import log_frequencies

    log_probabilities = log_frequencies(prepared_data.train.stream(), tokenizer.vocab_size)
    chosen_tokens = {
        split_name: getattr(prepared_data, split_name).chosen_tokens()
        for split_name in prepared_data.sizes
        if split_name != "train"
    }
    most_frequent_token = log_probabilities.argmax()

    def scores_of(tokens: np.ndarray) -> dict[str, float]:
        perplexity = perplexity_of_loss(-float(log_probabilities[tokens].mean()))
        return {"perplexity": perplexity, "accuracy": float((tokens == most_frequent_token).mean())}

    scores = {split_name: scores_of(tokens) for split_name, tokens in chosen_tokens.items()}
    if "test" not in chosen_tokens:
        return {"token frequencies": Baseline(scores)}
    test_tokens = chosen_tokens["test"]
    intervals = bootstrap_intervals(lambda indices: scores_of(test_tokens[indices]), len(test_tokens))
    return {"token frequencies": Baseline(scores, {"test": intervals})}


def write_artifacts(run: Run, trainer: Any, prepared_data: PreparedData, console: Console) -> None:
    """Write no files: the purpose of the run is its model.

    Args:
        run: trained run.
        trainer: trainer of the run, with the best weights.
        prepared_data: model inputs of each split.
        console: console for progress.
    """


def predict(run: Run, console: Console) -> None:
    """Raise an error, because the model is for fine-tuning.

    Args:
        run: trained run.
        console: console for progress.

    Raises:
        UserError: always; it names the command to use.
    """
    raise UserError(f"{run.folder}: is a run of {DESCRIPTION.name}: {DESCRIPTION.command(run.folder, run.recipe)}")
