"""PaddleNLP's BERT, unmodified."""

from paddlenlp.transformers import BertConfig, BertForMaskedLM

SMALL = {
    "vocab_size": 101, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
    "max_position_embeddings": 40, "type_vocab_size": 2,
}  # fmt: skip


def build(config):
    return BertForMaskedLM(BertConfig(**{**SMALL, **config}))
