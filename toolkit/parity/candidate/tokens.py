"""What the port's tokenizers make of texts."""

from __future__ import annotations

from pathlib import Path


def tokens(spec: dict) -> list[dict]:
    """What the port's tokenizer makes of every text of the job, in the form of the reference's ``tokens``."""
    tokenizer = _tokenizer(spec)
    results = []
    for text in spec["texts"]:
        ids = tokenizer.encode(text)
        result = {"ids": ids, "decoded": tokenizer.decode(ids)}
        for side in ("right", "left"):
            padded = tokenizer([text], max_length=spec["max_length"], padding="max_length", padding_side=side)
            result[side] = [padded["input_ids"][0].tolist(), padded["attention_mask"][0].tolist()]
        if spec.get("offsets"):
            spans = zip(*tokenizer.encode_with_offsets(text), strict=True)
            result["offsets"] = [[index, *span] for index, span in spans]
        results.append(result)
    return results


def _tokenizer(spec: dict):
    if spec["kind"] == "ctrl":
        from models.ctrl.tokenizer import load_tokenizer

        return load_tokenizer(Path(spec["path"]))
    from models.reformer.tokenizer import ByteTokenizer, ReformerTokenizer

    return ByteTokenizer() if spec["kind"] == "bytes" else ReformerTokenizer(Path(spec["path"]).read_bytes())
