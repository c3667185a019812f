"""Search for texts that the port's tokenizer encodes differently from the reference's.

Texts are drawn at random (:func:`toolkit.parity.inputs.tokenizer_texts.random_texts`). They are short, so all parts of
a text can be tried at once. The shortest part that still shows the difference is reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rich.console import Console

from toolkit.parity.exchange import files
from toolkit.parity.exchange.results import CandidateResult, ReferenceResult, read_results
from toolkit.parity.inputs.tokenizer_texts import parts_of, random_texts
from toolkit.parity.job.job import TokenizerJob
from toolkit.parity.judge.tokens import describe_difference, find_differing_texts
from toolkit.parity.processes.processes import run_workers
from toolkit.parity.report.headline import describe_place
from toolkit.parity.report.terminal import print_verdict
from toolkit.parity.request.build import job_of, make_sides, scratch_job, workers_of
from toolkit.parity.request.request import GateRequest

#: Task of both workers that only runs the tokenizer.
TASK = "tokens"
#: Number of tokens of each text after padding or truncation.
MAX_LENGTH = 8


def search_texts(
    request: GateRequest, tokenizer: TokenizerJob, seed: int, num_texts: int, console: Console
) -> list[str]:
    """Compare both tokenizers on random texts, and return the texts that they encode differently.

    The shortest text for each kind of difference is printed.

    Args:
        request: request for any model of the family, which is not run.
        tokenizer: tokenizer to compare; its own texts are ignored.
        seed: seed of the texts.
        num_texts: number of texts.
        console: console for the output.
    """
    texts = random_texts(seed, num_texts)
    reference, candidate = _tokenize_texts(request, tokenizer, texts, console)
    differences = find_differing_texts(reference.tokens or [], candidate.tokens or [])
    if differences:
        shortest = dict.fromkeys(texts[positions[0]] for positions in differences.values())
        _print_shortest(
            *_tokenize_texts(request, tokenizer, [part for text in shortest for part in parts_of(text)], console),
            console,
        )
    differing_texts = [
        texts[position]
        for position in sorted({position for positions in differences.values() for position in positions})
    ]
    console.print(f"seed {seed}: the tokenizers differ on {len(differing_texts)} of {num_texts} texts", highlight=False)
    return differing_texts


def _print_shortest(reference: ReferenceResult, candidate: CandidateResult, console: Console) -> None:
    """Print a line for each kind of difference, with the shortest text that shows it.

    Args:
        reference: results of the reference with the tokens of the texts.
        candidate: results of the port with the tokens of the same texts.
        console: console for the output.
    """
    theirs, ours = reference.tokens or [], candidate.tokens or []
    for key, positions in find_differing_texts(theirs, ours).items():
        name = describe_place(f"tokenizer:{key}", candidate.tokenizer_places)
        message = f"{name}: {describe_difference(key, theirs[positions[0]], ours[positions[0]])}"
        print_verdict(console, "DIFFERENT", "red", message)


def _tokenize_texts(
    request: GateRequest, tokenizer: TokenizerJob, texts: Sequence[str], console: Console
) -> tuple[ReferenceResult, CandidateResult]:
    """Return the results of both sides with their tokens of the texts, each computed in a separate process.

    Args:
        request: request for any model of the family, which is not run.
        tokenizer: tokenizer of both sides.
        texts: texts to encode.
        console: console for progress.
    """
    tokenizer_job = replace(tokenizer, texts=list(texts), max_length=MAX_LENGTH)
    with scratch_job() as job:
        make_sides(job)
        files.write_json(job / "job.json", replace(job_of(request), tokenizer=tokenizer_job))
        run_workers([job], console, workers_of(request), task=TASK)
        return read_results(job, TASK)
