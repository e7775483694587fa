import math

import torch
from torch import nn

BATCH, TIME, CHANNELS, HEADS, LAYERS, STEPS = 16, 32, 64, 4, 2, 150
ALPHABET = " 0123456789"


class Linear(nn.Linear):
    """As LibTorch's C++ computes it for inputs of three dimensions: the product is rounded before the bias is added."""

    def forward(self, x):
        output = x @ self.weight.t()
        output += self.bias
        return output


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1 = nn.LayerNorm(CHANNELS)
        self.qkv = Linear(CHANNELS, 3 * CHANNELS)
        self.project = Linear(CHANNELS, CHANNELS)
        self.norm2 = nn.LayerNorm(CHANNELS)
        self.up = Linear(CHANNELS, 4 * CHANNELS)
        self.down = Linear(4 * CHANNELS, CHANNELS)

    def forward(self, x):
        query, key, value = self.qkv(self.norm1(x)).unflatten(2, (3, HEADS, CHANNELS // HEADS)).permute(2, 0, 3, 1, 4)
        scores = query @ key.transpose(2, 3) / math.sqrt(CHANNELS // HEADS)
        future = torch.ones(x.shape[1], x.shape[1]).triu(1).bool()
        weights = scores.masked_fill(future, -math.inf).softmax(3)
        x = x + self.project((weights @ value).transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.characters = nn.Embedding(len(ALPHABET), CHANNELS)
        self.positions = nn.Embedding(TIME, CHANNELS)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.head = Linear(CHANNELS, len(ALPHABET))

    def forward(self, ids):
        return self.head(self.blocks(self.characters(ids) + self.positions(torch.arange(ids.shape[1]))))


def run():
    ids = torch.tensor([ALPHABET.index(c) for i in range(100) for c in f"{i} "])
    torch.manual_seed(0)
    model = Gpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01, fused=True)
    scaler = torch.amp.GradScaler("cpu")
    losses, scales = [], []
    for _ in range(STEPS):
        batch = ids[torch.randint(len(ids) - TIME, (BATCH, 1)) + torch.arange(TIME + 1)]
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = nn.functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
        scales.append(scaler.get_scale())
    return {"losses": losses, "scales": scales}
