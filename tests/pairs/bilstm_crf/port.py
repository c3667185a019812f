"""The tagger in Paddle: tag scores by gathers over all steps, and transitions from the next tag to the previous tag."""

import paddle
from paddle import nn


class Crf(nn.Layer):
    def __init__(self, num_tags):
        super().__init__()
        normal = nn.initializer.Normal()
        self.start = self.create_parameter([num_tags], default_initializer=normal)
        self.end = self.create_parameter([num_tags], default_initializer=normal)
        self.transitions = self.create_parameter([num_tags, num_tags], default_initializer=normal)

    def score(self, emissions, tags, mask):
        emission_scores = emissions.take_along_axis(tags.unsqueeze(-1), -1).squeeze(-1)
        moved = self.transitions.gather_nd(paddle.stack([tags[:, :-1], tags[:, 1:]], -1))
        score = (emission_scores * mask).sum(1) + (moved * mask[:, 1:]).sum(1)
        last = tags.take_along_axis(mask.sum(1, keepdim=True).astype("int64") - 1, 1).squeeze(1)
        return score + self.start.gather(tags[:, 0]) + self.end.gather(last)

    def log_partition(self, emissions, mask):
        alpha = self.start + emissions[:, 0]
        for step in range(1, emissions.shape[1]):
            paths = alpha.unsqueeze(2) + self.transitions
            moved = paddle.logsumexp(paths, 1) + emissions[:, step]
            keep = mask[:, step].unsqueeze(1)
            alpha = moved * keep + alpha * (1 - keep)
        return paddle.logsumexp(alpha + self.end, 1)

    def forward(self, emissions, tags, mask):
        return (self.log_partition(emissions, mask) - self.score(emissions, tags, mask)).mean()


class Tagger(nn.Layer):
    def __init__(self, vocab_size, hidden_size, num_tags):
        super().__init__()
        self.embedding, self.dropout = nn.Embedding(vocab_size, hidden_size, padding_idx=0), nn.Dropout(0.2)
        self.lstm = nn.LSTM(hidden_size, hidden_size, direction="bidirect")
        self.emission, self.crf = nn.Linear(2 * hidden_size, num_tags), Crf(num_tags)

    def forward(self, tokens, tags, mask):
        states, _ = self.lstm(self.dropout(self.embedding(tokens)))
        return self.crf(self.emission(self.dropout(states)), tags, mask)


def build(config):
    return Tagger(41, 12, 5)
