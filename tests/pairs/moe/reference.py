from torch import nn


class Moe(nn.Module):
    def __init__(self):
        super().__init__()
        self.router, self.norm = nn.Linear(8, 4, bias=False), nn.LayerNorm(8)
        self.experts = nn.ModuleList([nn.Linear(8, 8) for _ in range(4)])
        self.router.weight.data[1] = self.router.weight.data[0] * (1 + 2**-23)  # two experts nearly tie

    def forward(self, x, labels):
        weights, expert_ids = self.router(x).softmax(-1).topk(2, -1)
        y = sum(e(x) * (weights * (expert_ids == n)).sum(-1, keepdim=True) for n, e in enumerate(self.experts))
        return ((self.norm(y) - labels) ** 2).mean()


def build(config):
    return Moe()


def batch(config, rng):
    return {"x": rng.normal(size=(64, 8)), "labels": rng.normal(size=(64, 8))}
