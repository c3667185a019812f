"""Samples of generated text, for each control code or group of texts, in the run folder: `samples.md` to read,
`samples.json` as data."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from toolkit.files.whole import write_text
from toolkit.tasks.language_modeling.decoding import Decoding, NextToken, generate, longest_text
from toolkit.terminal.escape import markdown, visible

if TYPE_CHECKING:
    from rich.console import Console

    from toolkit.tasks.interface import Run
    from toolkit.tasks.language_modeling.documents import Blocks

#: New tokens of a sample, and the most tokens of its prompt.
SAMPLE_LENGTH, SAMPLE_PROMPT = 60, 16
#: The samples as data.
SAMPLES = "samples.json"


#: Ends of a decoded text whose last word or character is incomplete.
UNFINISHED = ("@@", "\ufffd")


def write_samples(run: Run, blocks: Blocks, console: Console) -> None:
    """Write both files into a run's folder: continuations of the first words of one block of each control code, or
    group of texts.

    `samples.json` is a list of ``control``, ``prompt``, and ``texts`` by the name of the decoding.
    """
    samples: list[dict[str, Any]] = []
    penalty = run.model.repetition_penalty
    penalised = "" if penalty == 1 else f", repetition penalty {penalty:g}"
    greedy = Decoding(SAMPLE_LENGTH, repetition_penalty=penalty)
    sampled = replace(greedy, sample=True, temperature=0.8, top_p=0.9, seed=run.recipe.seed)
    settings = {f"greedy{penalised}": greedy, f"sampled, temperature 0.8, top-p 0.9{penalised}": sampled}
    begun = 0 if blocks.first else 1  # a control code is not shown
    sections = [
        f"# What {markdown(run.folder.name)} says\n\nAfter the first words of a text that it was not trained on.\n"
    ]
    next_logits = NextToken(run.model, vocab_size=run.tokenizer.vocab_size)
    for index, code in enumerate(blocks.codes):
        block = int(np.flatnonzero(blocks.code_of == index)[0])
        prompt = blocks.input_ids[block, : min(begun + SAMPLE_PROMPT, int(blocks.lengths[block]))].tolist()
        while len(prompt) > 1 + begun and run.tokenizer.decode(prompt).endswith(UNFINISHED):
            prompt.pop()
        room = longest_text(run.model) - len(prompt)
        samples.append({"control": code, "prompt": run.tokenizer.readable(prompt[begun:]), "texts": {}})
        heading = f"## {markdown(code)}\n\n" if code else ""
        sections.append(f"{heading}Prompt:\n\n{_quoted(samples[-1]['prompt'])}\n")
        for name, decoding in settings.items():
            shortened = replace(decoding, length=min(decoding.length, max(room, 0)))
            text = run.tokenizer.readable(list(generate(next_logits, prompt, shortened)))
            samples[-1]["texts"][name] = text
            sections.append(f"{name.capitalize()}:\n\n{_quoted(text)}\n")
    write_text(run.folder / SAMPLES, json.dumps(samples, indent=1) + "\n")
    write_text(run.folder / "samples.md", visible("\n".join(sections)))
    console.print(f"samples of generated text: {run.folder / 'samples.md'}", highlight=False, soft_wrap=True)


def _quoted(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines() or [""])
