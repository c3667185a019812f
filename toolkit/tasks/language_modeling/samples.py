"""Write samples of generated text for each control code or group: `samples.md` to read, `samples.json` as data."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from toolkit.files.whole import write_text
from toolkit.tasks.language_modeling.decoding import Decoding, NextToken, generate, max_text_length
from toolkit.terminal.escape import markdown, visible

if TYPE_CHECKING:
    from rich.console import Console

    from toolkit.tasks.interface import Run
    from toolkit.tasks.language_modeling.documents import Blocks

#: Number of new tokens of a sample, and maximum number of tokens of its prompt.
NUM_SAMPLE_TOKENS, MAX_PROMPT_TOKENS = 60, 16
#: Name of the file with the samples as data.
SAMPLES_FILE = "samples.json"


#: Ends of a decoded text whose last word or character is incomplete.
INCOMPLETE_ENDINGS = ("@@", "\ufffd")


def write_samples(run: Run, blocks: Blocks, console: Console) -> None:
    """Write both files: continuations of the first words of one block of each control code or group.

    `samples.json` is a list of ``control``, ``prompt``, and ``texts`` by the name of the decoding.

    Args:
        run: finished run; the files go into its folder.
        blocks: blocks of texts that were not used in training.
        console: console for messages.
    """
    samples: list[dict[str, Any]] = []
    penalty = run.model.repetition_penalty
    penalty_note = "" if penalty == 1 else f", repetition penalty {penalty:g}"
    greedy = Decoding(NUM_SAMPLE_TOKENS, repetition_penalty=penalty)
    sampling = replace(greedy, sample=True, temperature=0.8, top_p=0.9, seed=run.recipe.seed)
    settings = {f"greedy{penalty_note}": greedy, f"sampled, temperature 0.8, top-p 0.9{penalty_note}": sampling}
    num_hidden_tokens = 0 if blocks.first else 1  # a control code is not shown
    sections = [
        f"# What {markdown(run.folder.name)} says\n\nAfter the first words of a text that it was not trained on.\n"
    ]
    next_logits = NextToken(run.model, vocab_size=run.tokenizer.vocab_size)
    for index, code in enumerate(blocks.codes):
        block = int(np.flatnonzero(blocks.code_of == index)[0])
        prompt = blocks.input_ids[
            block, : min(num_hidden_tokens + MAX_PROMPT_TOKENS, int(blocks.lengths[block]))
        ].tolist()
        while len(prompt) > 1 + num_hidden_tokens and run.tokenizer.decode(prompt).endswith(INCOMPLETE_ENDINGS):
            prompt.pop()
        max_new_tokens = max_text_length(run.model) - len(prompt)
        samples.append(
            {"control": code, "prompt": run.tokenizer.decode_readable(prompt[num_hidden_tokens:]), "texts": {}}
        )
        heading = f"## {markdown(code)}\n\n" if code else ""
        sections.append(f"{heading}Prompt:\n\n{_indent_text(samples[-1]['prompt'])}\n")
        for name, decoding in settings.items():
            limited_decoding = replace(decoding, length=min(decoding.length, max(max_new_tokens, 0)))
            text = run.tokenizer.decode_readable(list(generate(next_logits, prompt, limited_decoding)))
            samples[-1]["texts"][name] = text
            sections.append(f"{name.capitalize()}:\n\n{_indent_text(text)}\n")
    write_text(run.folder / SAMPLES_FILE, json.dumps(samples, indent=1) + "\n")
    write_text(run.folder / "samples.md", visible("\n".join(sections)))
    console.print(f"samples of generated text: {run.folder / 'samples.md'}", highlight=False, soft_wrap=True)


def _indent_text(text: str) -> str:
    """Return a text with four spaces before each line."""
    return "\n".join(f"    {line}" for line in text.splitlines() or [""])
