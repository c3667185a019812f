"""Reformer in Paddle. The names below are imported when first used: the schema and the tokenizer need no Paddle."""

from models.families import lazy_exports

__all__, __getattr__ = lazy_exports(
    __name__,
    {
        "ReformerConfig": "config",
        "ReformerModel": "modeling",
        "ReformerForSequenceClassification": "modeling",
        "ReformerForQuestionAnswering": "modeling",
        "ReformerForMaskedLM": "modeling",
        "ReformerForTokenClassification": "modeling",
        "ReformerModelWithLMHead": "modeling",
        "ByteTokenizer": "tokenizer",
        "ReformerTokenizer": "tokenizer",
    },
)
