"""CTRL in Paddle. The names below are imported when first used: the schema and the tokenizer need no Paddle."""

from models.families import lazy_exports

__all__, __getattr__ = lazy_exports(
    __name__,
    {
        "CTRLConfig": "config",
        "CTRLModel": "modeling",
        "CTRLLMHeadModel": "modeling",
        "CTRLForSequenceClassification": "modeling",
        "CTRLTokenizer": "tokenizer",
    },
)
