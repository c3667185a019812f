"""The reference's tokenizer for CTRL."""

from __future__ import annotations

import transformers


def _ctrl(folder: str) -> transformers.CTRLTokenizer:
    """Return the reference's byte-pair tokenizer for CTRL, with the unknown token as padding.

    The tokenizer of Salesforce/ctrl has no padding token.

    Args:
        folder: folder with `vocab.json` and `merges.txt`.
    """
    return transformers.CTRLTokenizer(f"{folder}/vocab.json", f"{folder}/merges.txt", pad_token="<unk>")


#: Loader of each kind of tokenizer (:attr:`toolkit.parity.job.job.TokenizerJob.kind`).
TOKENIZERS = {"ctrl": _ctrl}
