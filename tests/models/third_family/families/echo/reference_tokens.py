"""The reference's tokenizer: bytes, as of another family."""

from toolkit.parity.families.reformer.reference_tokens import TOKENIZERS, offsets

__all__ = ["TOKENIZERS", "offsets"]
