"""Search for texts that the port's tokenizer encodes differently from the reference's.

Texts are drawn at random (:func:`toolkit.parity.job.tokenizer_texts.random_texts`). They are so short that all parts
of a text can be tried at once. The shortest part that still shows the difference is reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rich.console import Console

from toolkit.parity.job import files
from toolkit.parity.job.build import job_of, make_sides, scratch_job, workers_of
from toolkit.parity.job.job import TokenizerJob
from toolkit.parity.job.processes import run_workers
from toolkit.parity.job.request import GateRequest
from toolkit.parity.job.results import CandidateResult, ReferenceResult, read_results
from toolkit.parity.job.tokenizer_texts import parts_of, random_texts
from toolkit.parity.judge.tokens import describe_difference, find_differing_texts
from toolkit.parity.report.headline import describe_place
from toolkit.parity.report.terminal import print_verdict

#: Task of both workers that only makes tokens.
TASK = "tokens"
#: Number of tokens to which each text is padded or cut.
MAX_LENGTH = 8


def search(request: GateRequest, tokenizer: TokenizerJob, seed: int, count: int, console: Console) -> list[str]:
    """Compare both tokenizers on ``count`` texts of a seed, and print the shortest text for each thing that differs.

    Args:
        request: of any model of the family; it is not run.
        tokenizer: its texts are ignored.

    Returns:
        The texts on which they differ, as drawn.
    """
    texts = random_texts(seed, count)
    reference, port = _answers(request, tokenizer, texts, console)
    found = find_differing_texts(reference.tokens or [], port.tokens or [])
    if found:
        shortest = dict.fromkeys(texts[places[0]] for places in found.values())
        _print_shortest(
            *_answers(request, tokenizer, [part for text in shortest for part in parts_of(text)], console), console
        )
    different = [texts[place] for place in sorted({place for places in found.values() for place in places})]
    console.print(f"seed {seed}: the tokenizers differ on {len(different)} of {count} texts", highlight=False)
    return different


def _print_shortest(reference: ReferenceResult, port: CandidateResult, console: Console) -> None:
    """Print a line for each thing that differs, with the shortest text for which it does."""
    theirs, ours = reference.tokens or [], port.tokens or []
    for key, places in find_differing_texts(theirs, ours).items():
        name = describe_place(f"tokenizer:{key}", port.tokenizer_places)
        text = f"{name}: {describe_difference(key, theirs[places[0]], ours[places[0]])}"
        print_verdict(console, "DIFFERENT", "red", text)


def _answers(
    request: GateRequest, tokenizer: TokenizerJob, texts: Sequence[str], console: Console
) -> tuple[ReferenceResult, CandidateResult]:
    """Return what both sides make of texts, each in a process of its own."""
    asked = replace(tokenizer, texts=list(texts), max_length=MAX_LENGTH)
    with scratch_job() as job:
        make_sides(job)
        files.write_json(job / "job.json", replace(job_of(request), tokenizer=asked))
        run_workers([job], console, workers_of(request), task=TASK)
        return read_results(job, TASK)
