"""Bytes as a ``tokenizer.json``, with which `tokenizers` gives google/reformer-enwik8's ids.

The library writes each byte as a printable character (GPT-2's table, section 2.2 of Radford et al. 2019). A vocabulary
of these characters with no merges is a vocabulary of bytes.
"""

from __future__ import annotations

from typing import Any

#: Ids 0 and 1, which no byte has: padding, and the separator of question and context. No text is encoded to one of
#: them (``split_special_tokens`` tells transformers so), and neither appears in a decoded text.
PAD, SEPARATOR = "<pad>", "<sep>"


def byte_characters() -> list[str]:
    """Byte-level tokenizers' character of each byte: its own in Latin-1 if visible, else the next from U+0100."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in visible else next(others)) for byte in range(256)]


def tokenizer_file() -> dict[str, Any]:
    """The content of ``tokenizer.json``.

    For the library each character is a word, so that its question answering gives whole characters. A pair of texts
    has the separator between them.
    """
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    character = {"type": "Split", "pattern": {"Regex": r"[\s\S]"}, "behavior": "Isolated", "invert": False}
    first, second = ({"Sequence": {"id": name, "type_id": number}} for number, name in enumerate("AB"))
    between = {"SpecialToken": {"id": SEPARATOR, "type_id": 0}}
    omitted = [{"type": "Replace", "pattern": {"String": token}, "content": ""} for token in (PAD, SEPARATOR)]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [character, byte_level]},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [first],
            "pair": [first, between, second],
            "special_tokens": {SEPARATOR: {"id": SEPARATOR, "ids": [1], "tokens": [SEPARATOR]}},
        },
        "decoder": {"type": "Sequence", "decoders": [*omitted, byte_level]},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: index for index, token in enumerate([PAD, SEPARATOR, *byte_characters()])},
            "merges": [],
        },
    }


def is_byte_file(content: dict[str, Any]) -> bool:
    """Whether a ``tokenizer.json``, this one or resaved by `tokenizers`, gives the ids of bytes."""
    own = tokenizer_file()
    deciding = ("normalizer", "pre_tokenizer")
    model = content.get("model")
    if not isinstance(model, dict) or model.get("vocab") != own["model"]["vocab"] or model.get("merges"):
        return False
    return model.get("type") == "BPE" and all(content.get(key) == own[key] for key in deciding)
