"""The byte tokenizer as a ``tokenizer.json``, for the library `tokenizers`, with the same ids.

The library represents each byte as a printable character (GPT-2's table, section 2.2 of Radford et al. 2019). A
vocabulary of these characters without merges is therefore a vocabulary of bytes.
"""

from __future__ import annotations

from typing import Any

#: Tokens of the ids 0 and 1, which no byte has: padding, and the separator of question and context. No text is encoded
#: to these ids (``split_special_tokens`` sets this in transformers), and no decoded text has them.
PAD, SEPARATOR = "<pad>", "<sep>"


def byte_characters() -> list[str]:
    """Return the character that represents each byte in byte-level tokenizers.

    It is the byte's Latin-1 character if this is visible, and otherwise the next character from U+0100.
    """
    visible_bytes = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    other_codes = iter(range(0x100, 0x200))
    return [chr(byte if byte in visible_bytes else next(other_codes)) for byte in range(256)]


def tokenizer_file() -> dict[str, Any]:
    """Return the content of ``tokenizer.json``.

    For the library, each character is a word, so that its question answering returns whole characters. A pair of texts
    has the separator between them.
    """
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    character = {"type": "Split", "pattern": {"Regex": r"[\s\S]"}, "behavior": "Isolated", "invert": False}
    first, second = ({"Sequence": {"id": name, "type_id": number}} for number, name in enumerate("AB"))
    separator = {"SpecialToken": {"id": SEPARATOR, "type_id": 0}}
    token_removers = [{"type": "Replace", "pattern": {"String": token}, "content": ""} for token in (PAD, SEPARATOR)]
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
            "pair": [first, separator, second],
            "special_tokens": {SEPARATOR: {"id": SEPARATOR, "ids": [1], "tokens": [SEPARATOR]}},
        },
        "decoder": {"type": "Sequence", "decoders": [*token_removers, byte_level]},
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


def is_byte_file(tokenizer_json: dict[str, Any]) -> bool:
    """Return whether the content of a ``tokenizer.json`` gives the ids of bytes, also after `tokenizers` saved it."""
    byte_file = tokenizer_file()
    model = tokenizer_json.get("model")
    if not isinstance(model, dict) or model.get("vocab") != byte_file["model"]["vocab"] or model.get("merges"):
        return False
    keys = ("normalizer", "pre_tokenizer")
    return model.get("type") == "BPE" and all(tokenizer_json.get(key) == byte_file[key] for key in keys)
