"""Samples of generated text, for each control code, in the run folder: `samples.md` to read, `samples.json` as data."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from toolkit.checkpoint import write_text
from toolkit.escape import markdown, visible
from toolkit.tasks.language_modeling.decoding import Decoding, NextToken, generate

if TYPE_CHECKING:
    from rich.console import Console

    from toolkit.tasks import Run
    from toolkit.tasks.language_modeling.documents import Blocks

#: New tokens of a sample, and the most tokens of the prompt before it.
SAMPLE_LENGTH, SAMPLE_PROMPT = 60, 16
#: The samples as data.
SAMPLES = "samples.json"


def readable(tokenizer: Any, tokens: Sequence[int]) -> str:
    """The text of tokens as a person reads it: no blank at the start of a line, no `@@` after an unfinished word."""
    return tokenizer.decode(tokens).removesuffix("@@").replace("\n ", "\n").strip()


def write_samples(run: Run, blocks: Blocks, console: Console) -> None:
    """Write both files into a run's folder: continuations of the first words of one block of each control code.

    `samples.json` is a list of ``control``, ``prompt``, and ``texts`` by the name of the decoding.
    """
    samples: list[dict[str, Any]] = []
    settings = {
        "greedy, repetition penalty 1.2": Decoding(SAMPLE_LENGTH),
        "sampled, temperature 0.8, top-p 0.9, repetition penalty 1.2": Decoding(
            SAMPLE_LENGTH, sample=True, temperature=0.8, top_p=0.9, seed=run.recipe.seed
        ),
    }
    sections = [
        f"# What {markdown(run.folder.name)} says\n\nAfter the first words of a text that it was not trained on.\n"
    ]
    next_logits = NextToken(run.model)
    for index, code in enumerate(blocks.codes):
        block = int(np.flatnonzero(blocks.code_of == index)[0])
        prompt = blocks.input_ids[block, : min(1 + SAMPLE_PROMPT, int(blocks.lengths[block]))].tolist()
        while len(prompt) > 2 and run.tokenizer.decode(prompt[-1:]).endswith("@@"):  # not within a word
            prompt.pop()
        room = run.model.config.n_positions - len(prompt)
        samples.append({"control": code, "prompt": readable(run.tokenizer, prompt[1:]), "texts": {}})
        sections.append(f"## {markdown(code)}\n\nPrompt:\n\n{_quoted(samples[-1]['prompt'])}\n")
        for name, decoding in settings.items():
            shortened = replace(decoding, length=min(decoding.length, max(room, 0)))
            text = readable(run.tokenizer, list(generate(next_logits, prompt, shortened)))
            samples[-1]["texts"][name] = text
            sections.append(f"{name.capitalize()}:\n\n{_quoted(text)}\n")
    write_text(run.folder / SAMPLES, json.dumps(samples, indent=1) + "\n")
    write_text(run.folder / "samples.md", visible("\n".join(sections)))
    console.print(f"samples of generated text: {run.folder / 'samples.md'}", highlight=False, soft_wrap=True)


def _quoted(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines() or [""])
