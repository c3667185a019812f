"""The reference's tokenizer of a CTRL."""

from __future__ import annotations

import transformers


def _ctrl(folder: str) -> transformers.CTRLTokenizer:
    """The word pieces of Salesforce/ctrl. It has no padding token; the unknown token serves as one."""
    return transformers.CTRLTokenizer(f"{folder}/vocab.json", f"{folder}/merges.txt", pad_token="<unk>")


#: By the kinds of :class:`toolkit.parity.job.job.TokenizerJob`.
TOKENIZERS = {"ctrl": _ctrl}
