"""A tagger: a bidirectional LSTM and a conditional random field, whose loss is by the forward algorithm."""

import numpy as np
import torch
from torch import nn


class Crf(nn.Module):
    def __init__(self, num_tags):
        super().__init__()
        self.start, self.end = nn.Parameter(torch.randn(num_tags)), nn.Parameter(torch.randn(num_tags))
        self.transitions = nn.Parameter(torch.randn(num_tags, num_tags))

    def score(self, emissions, tags, mask):
        examples = torch.arange(len(tags))
        score = self.start[tags[:, 0]] + emissions[examples, 0, tags[:, 0]]
        for step in range(1, tags.shape[1]):
            transition = self.transitions[tags[:, step - 1], tags[:, step]] + emissions[examples, step, tags[:, step]]
            score = score + transition * mask[:, step]
        last = tags[examples, mask.sum(1).long() - 1]
        return score + self.end[last]

    def log_partition(self, emissions, mask):
        alpha = self.start + emissions[:, 0]
        for step in range(1, emissions.shape[1]):
            paths = alpha[:, :, None] + self.transitions + emissions[:, step, None, :]
            alpha = torch.where(mask[:, step, None].bool(), torch.logsumexp(paths, 1), alpha)
        return torch.logsumexp(alpha + self.end, 1)

    def forward(self, emissions, tags, mask):
        return (self.log_partition(emissions, mask) - self.score(emissions, tags, mask)).mean()


class Tagger(nn.Module):
    def __init__(self, vocab_size, hidden_size, num_tags):
        super().__init__()
        self.embedding, self.dropout = nn.Embedding(vocab_size, hidden_size, padding_idx=0), nn.Dropout(0.2)
        self.lstm = nn.LSTM(hidden_size, hidden_size, bidirectional=True, batch_first=True)
        self.emission, self.crf = nn.Linear(2 * hidden_size, num_tags), Crf(num_tags)

    def forward(self, tokens, tags, mask):
        states, _ = self.lstm(self.dropout(self.embedding(tokens)))
        return self.crf(self.emission(self.dropout(states)), tags, mask)


def build(config):
    return Tagger(41, 12, 5)


def batch(config, rng):
    mask = (np.arange(9) < np.array([[9], [6], [3], [1]])).astype(np.float32)
    tokens = rng.integers(1, 41, (4, 9)) * mask.astype(np.int64)
    return {"tokens": tokens, "tags": rng.integers(0, 5, (4, 9)) * mask.astype(np.int64), "mask": mask}
