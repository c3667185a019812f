"""Text from a language model: greedy, sampled, or by beam search, after a control code and a prompt.

The algorithms know no model. They are given a function that scores next tokens (:class:`NextToken` makes one of the
port), and choose as ``transformers`` does: scores are rounded to float32 first; the repetition penalty (Keskar et al.
2019, section 4.1) covers the prompt too, and comes before the temperature, top-k and top-p; beam search applies it to
log-probabilities.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from toolkit.checkpoint import write_text
from toolkit.errors import UserError
from toolkit.predict import load_run
from toolkit.tasks import Run
from toolkit.tasks.language_modeling import PERPLEXITY_OF

if TYPE_CHECKING:
    from rich.console import Console

    from toolkit.documents import Blocks

#: (sequences [B, n] so far, for each the row of the last call that it continues or None at first) -> scores [B, V].
Scores = Callable[[np.ndarray, np.ndarray | None], np.ndarray]

#: Added to the score of what must not be chosen, as the reference does.
NEVER = np.float32(-1e9)

#: Tokens of a sample in `samples.md`, and of the text before it.
SAMPLE_LENGTH, SAMPLE_PROMPT = 60, 16


@dataclass(frozen=True)
class Decoding:
    """How the next token is chosen.

    Attributes:
        length: the most new tokens.
        beams: 1 chooses token by token; more keep the most probable beginnings (no sampling).
        sample: draw from the distribution; otherwise take the most probable token.
        temperature: divides the scores; below 1 prefers what is probable.
        top_k: draw from the k most probable tokens; None from all.
        top_p: draw from the fewest tokens that have this probability together; None from all.
        repetition_penalty: divides the positive scores of tokens that are there already, multiplies the negative ones.
        stop: a token that ends the text, and is part of it; None never ends it early.
        seed: of the draws.
        length_penalty: a beam's score is divided by its length to this power.
    """

    length: int = 100
    beams: int = 1
    sample: bool = False
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    repetition_penalty: float = 1.2
    stop: int | None = None
    seed: int = 0
    length_penalty: float = 1.0


# -- choosing -------------------------------------------------------------------------------------------------------


def generate(scores: Scores, prompt: Sequence[int], decoding: Decoding) -> Iterator[int]:
    """The new tokens, each as soon as it is known; those of beam search all at the end."""
    if decoding.beams > 1:
        yield from beam_search(scores, prompt, decoding)
        return
    draws = np.random.default_rng(decoding.seed)
    sequence, parents = np.asarray([prompt], dtype=np.int64), None
    for _ in range(decoding.length):
        found = scores(sequence, parents).astype(np.float32)
        found = penalise(found, sequence, decoding.repetition_penalty)[0]
        token = draw(found, decoding, draws) if decoding.sample else int(found.argmax())
        yield token
        if token == decoding.stop:
            return
        sequence, parents = np.append(sequence, [[token]], axis=1), np.zeros(1, dtype=np.int64)


def penalise(scores: np.ndarray, sequences: np.ndarray, penalty: float) -> np.ndarray:
    """Scores [B, V] with those of the tokens in sequences [B, n] made smaller."""
    if penalty == 1.0:
        return scores
    there = np.take_along_axis(scores, sequences, axis=1)
    penalised = scores.copy()
    smaller = np.where(there < 0, there * np.float32(penalty), there / np.float32(penalty))
    np.put_along_axis(penalised, sequences, smaller, axis=1)
    return penalised


def draw(scores: np.ndarray, decoding: Decoding, draws: np.random.Generator) -> int:
    """A token drawn from scores [V]."""
    probabilities = distribution(scores, decoding)
    return int(np.searchsorted(np.cumsum(probabilities), draws.random() * probabilities.sum(), side="right"))


def distribution(scores: np.ndarray, decoding: Decoding) -> np.ndarray:
    """The probabilities [V], float64, that a token is drawn with: temperature, then top-k, then top-p."""
    scores = scores.astype(np.float64) / decoding.temperature
    if decoding.top_k is not None and decoding.top_k < len(scores):
        scores = np.where(scores < np.partition(scores, -decoding.top_k)[-decoding.top_k], -np.inf, scores)
    if decoding.top_p is not None and decoding.top_p < 1:
        order = np.argsort(scores, kind="stable")
        unlikely = np.cumsum(_softmax(scores[order])) <= 1 - decoding.top_p
        unlikely[-1] = False
        scores = scores.copy()
        scores[order[unlikely]] = -np.inf
    return _softmax(scores)


def beam_search(scores: Scores, prompt: Sequence[int], decoding: Decoding) -> list[int]:
    """The new tokens of the best of the beginnings that were kept.

    Twice as many beginnings as beams are looked at in each step, so that enough are left when some end. The search is
    over when no beam can overtake the worst of the finished ones any more, as the reference judges that: by the score
    that a beam would have if it ended now.
    """
    beams, first = decoding.beams, len(prompt)
    running = np.tile(np.asarray(prompt, dtype=np.int64), (beams, 1))  # (beams, n)
    running_scores = np.full(beams, NEVER)
    running_scores[0] = 0.0  # all beams are still the same: the first alone counts
    finished: list[tuple[np.float32, bool, np.ndarray]] = [(NEVER, False, running[0])] * beams
    parents, improvable = None, True
    for length in range(1, decoding.length + 1):
        found = scores(running, parents).astype(np.float32)
        log_probabilities = penalise(_log_softmax(found), running, decoding.repetition_penalty)
        total = (log_probabilities + running_scores[:, None]).reshape(-1)
        top = _largest(total, 2 * beams)
        rows, tokens = np.divmod(top, found.shape[1])
        candidates = np.concatenate([running[rows], tokens[:, None]], axis=1)  # (2 * beams, n + 1)
        ends = (tokens == decoding.stop) | (length == decoding.length)
        going_on = total[top] + ends * NEVER
        kept = _largest(going_on, beams)
        for place in range(2 * beams):
            # Beyond the first `beams`, candidates are there to go on with, not to be chosen.
            chosen = bool(ends[place]) and place < beams
            score = total[top[place]] / np.float32(length**decoding.length_penalty)
            finished.append((score if chosen else score + NEVER, chosen, candidates[place]))
        finished = [finished[place] for place in _largest(np.array([entry[0] for entry in finished]), beams)]
        running, running_scores, parents = candidates[kept], going_on[kept], rows[kept]
        worst = min(entry[0] for entry in finished)
        bounds = [worst if entry[1] else NEVER for entry in finished]
        possible = running_scores[0] / np.float32(length**decoding.length_penalty)
        improvable = improvable and any(possible > bound for bound in bounds)
        if not improvable or ends.all():
            break
    return finished[0][2][first:].tolist()


def _largest(values: np.ndarray, count: int) -> np.ndarray:
    """The places of the largest values, the largest first; of equal ones the first."""
    return np.argsort(-values, kind="stable")[:count]


def _softmax(scores: np.ndarray) -> np.ndarray:
    powers = np.exp(scores - scores.max())
    return powers / powers.sum()


def _log_softmax(scores: np.ndarray) -> np.ndarray:
    """Along the last axis, in the scores' own precision."""
    shifted = scores - scores.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


class NextToken:
    """The port's scores for the next token, as the algorithms want them.

    Args:
        model: with a ``causal_lm`` head, in evaluation.
        use_cache: keep the keys and values of the positions so far, and compute the last position alone.
    """

    def __init__(self, model: Any, use_cache: bool = True) -> None:
        self.model = model
        self.use_cache = use_cache
        self._past: list[tuple[Any, Any]] | None = None

    def __call__(self, sequences: np.ndarray, parents: np.ndarray | None = None) -> np.ndarray:
        """Scores [B, V] after sequences [B, n]; each continues the row `parents` of the last call by one token."""
        import paddle

        if parents is None:
            self._past = None
        with paddle.no_grad():
            if self._past is None:
                output = self.model(paddle.to_tensor(sequences), use_cache=self.use_cache)
            else:
                if not np.array_equal(parents, np.arange(len(self._past[0][0]))):
                    rows = paddle.to_tensor(parents)
                    self._past = [(paddle.index_select(k, rows), paddle.index_select(v, rows)) for k, v in self._past]
                last = paddle.to_tensor(sequences[:, -1:])
                output = self.model(last, past_key_values=self._past, use_cache=True)
            self._past = output.past_key_values if self.use_cache else None
            return output.logits[:, -1].numpy()


# -- the command ----------------------------------------------------------------------------------------------------


def control_codes(run: Run) -> list[str]:
    """The control codes that a run was trained on."""
    metrics = json.loads((run.folder / "metrics.json").read_text(encoding="utf-8"))
    return [name.removeprefix(PERPLEXITY_OF) for name in metrics["validation"] if name.startswith(PERPLEXITY_OF)]


def start(run: Run, control: str, prompt: str, length: int) -> list[int]:
    """The tokens to begin with: the control code and the prompt.

    Raises:
        UserError: no such control code, or more tokens than the model has positions.
    """
    try:
        tokens = [run.tokenizer.control_code(control), *run.tokenizer.encode(prompt)]
    except ValueError as problem:
        raise UserError(f"--control: {problem}; the run was trained with {', '.join(control_codes(run))}") from None
    positions = run.model.config.n_positions
    if len(tokens) + length > positions:
        raise UserError(
            f"--length: the control code, a prompt of {len(tokens) - 1} tokens and {length} new ones are "
            f"{len(tokens) + length}, but the model has {positions} positions"
        )
    return tokens


def generate_text(
    folder: Path,
    console: Console,
    control: str | None,
    prompt: str,
    length: int,
    temperature: float | None,
    top_k: int | None,
    top_p: float | None,
    beams: int,
    stop: str | None,
    **options: Any,
) -> str:
    """What `toolkit generate` does; returns the new text.

    Raises:
        UserError: the folder holds no finished run of a language model, or the options do not fit it or each other.
    """
    run = load_run(folder)
    if run.model.head != "causal_lm":
        command = run.task.DESCRIPTION.next_command.format(run=folder)
        raise UserError(f"{folder}: is a run of {run.task.DESCRIPTION.name}, not of a language model: {command}")
    sample = not (temperature is None and top_k is None and top_p is None)
    if sample and beams > 1:
        raise UserError("--beams: beam search does not sample; leave --temperature, --top-k and --top-p away")
    if stop is not None:
        ids = run.tokenizer.encode(stop)
        if len(ids) != 1:
            raise UserError(f"--stop: {stop!r} is {len(ids)} tokens; it should be one")
        stop = ids[0]
    decoding = Decoding(length, beams, sample, temperature or 1.0, top_k, top_p, stop=stop, **options)
    return say(run, control or control_codes(run)[0], prompt, decoding, console)


def say(run: Run, control: str, prompt: str, decoding: Decoding, console: Console) -> str:
    """Print the prompt and, token by token, what the model makes of it; returns the new text."""
    tokens = start(run, control, prompt, decoding.length)
    if control not in (known := control_codes(run)):
        console.print(f"note   {control} is a word of the vocabulary, but the run was trained with {', '.join(known)}",
                      highlight=False, markup=False)  # fmt: skip
    new: list[int] = []
    shown = readable(run.tokenizer, tokens[1:])
    console.print(shown, end="", highlight=False, markup=False, soft_wrap=True)
    for token in generate(NextToken(run.model), tokens, decoding):
        new.append(token)
        text = readable(run.tokenizer, tokens[1:] + new)
        if text.startswith(shown):
            console.print(text[len(shown) :], end="", highlight=False, markup=False, soft_wrap=True)
            shown = text
    console.print()
    return readable(run.tokenizer, new)


def readable(tokenizer: Any, tokens: Sequence[int]) -> str:
    """The text of tokens for a person: a line begins at its margin, a word that is not finished yet shows no mark."""
    return tokenizer.decode(tokens).removesuffix("@@").replace("\n ", "\n").strip()


def write_samples(run: Run, blocks: Blocks, console: Console) -> None:
    """Write `samples.md` into a run's folder: what the model says after the first words of a block of each code."""
    ways = {
        "greedy, repetition penalty 1.2": Decoding(SAMPLE_LENGTH),
        "sampled, temperature 0.8, top-p 0.9, repetition penalty 1.2": Decoding(
            SAMPLE_LENGTH, sample=True, temperature=0.8, top_p=0.9, seed=run.recipe.seed
        ),
    }
    sections = [f"# What {run.folder.name} says\n\nAfter the first words of a text that it was not trained on.\n"]
    scores = NextToken(run.model)
    for index, code in enumerate(blocks.codes):
        block = int(np.flatnonzero(blocks.code_of == index)[0])
        prompt = blocks.input_ids[block, : min(1 + SAMPLE_PROMPT, int(blocks.lengths[block]))].tolist()
        while len(prompt) > 2 and run.tokenizer.decode(prompt[-1:]).endswith("@@"):  # not within a word
            prompt.pop()
        room = run.model.config.n_positions - len(prompt)
        sections.append(f"## {code}\n\nPrompt:\n\n{_quoted(readable(run.tokenizer, prompt[1:]))}\n")
        for name, decoding in ways.items():
            if room < decoding.length:
                decoding = Decoding(**{**vars(decoding), "length": max(room, 0)})
            said = readable(run.tokenizer, list(generate(scores, prompt, decoding)))
            sections.append(f"{name.capitalize()}:\n\n{_quoted(said)}\n")
    write_text(run.folder / "samples.md", "\n".join(sections))
    console.print(f"samples of generated text: {run.folder / 'samples.md'}", highlight=False, soft_wrap=True)


def _quoted(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines() or [""])
