"""The classifier in Paddle, whose LSTM is given the lengths."""

import paddle
from paddle import nn
from paddle.nn import functional as F


class Classifier(nn.Layer):
    def __init__(self, vocab_size, hidden_size, num_labels):
        super().__init__()
        self.embedding, self.dropout = nn.Embedding(vocab_size, hidden_size, padding_idx=0), nn.Dropout(0.2)
        self.lstm = nn.LSTM(hidden_size, hidden_size, direction="bidirect")
        self.norm, self.head = nn.LayerNorm(4 * hidden_size), nn.Linear(4 * hidden_size, num_labels)

    def forward(self, tokens, lengths, labels):
        embedded = self.dropout(self.embedding(tokens))
        hidden, (last, _) = self.lstm(embedded, sequence_length=lengths)
        average = hidden.sum(1) / lengths.unsqueeze(1).astype(hidden.dtype)
        features = paddle.concat([last[0], last[1], average], -1)
        return F.cross_entropy(self.head(self.dropout(self.norm(features))), labels)


def build(config):
    return Classifier(41, 10, 3)
