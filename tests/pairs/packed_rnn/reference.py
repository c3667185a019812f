"""A classifier of texts of several lengths, packed for the LSTM: last states of both directions, and an average."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class Classifier(nn.Module):
    def __init__(self, vocab_size, hidden_size, num_labels):
        super().__init__()
        self.embedding, self.dropout = nn.Embedding(vocab_size, hidden_size, padding_idx=0), nn.Dropout(0.2)
        self.lstm = nn.LSTM(hidden_size, hidden_size, bidirectional=True, batch_first=True)
        self.norm, self.head = nn.LayerNorm(4 * hidden_size), nn.Linear(4 * hidden_size, num_labels)

    def forward(self, tokens, lengths, labels):
        x = self.dropout(self.embedding(tokens))
        sequence = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        sequence, (last, _) = self.lstm(sequence)
        states, _ = pad_packed_sequence(sequence, batch_first=True)
        average = states.sum(1) / lengths[:, None]
        features = torch.cat([last[0], last[1], average], -1)
        return F.cross_entropy(self.head(self.dropout(self.norm(features))), labels)


def build(config):
    return Classifier(41, 10, 3)


def batch(config, rng):
    lengths = np.array([5, 9, 2, 7])
    tokens = rng.integers(1, 41, (4, 9)) * (np.arange(9) < lengths[:, None])
    return {"tokens": tokens, "lengths": lengths, "labels": rng.integers(0, 3, 4)}
