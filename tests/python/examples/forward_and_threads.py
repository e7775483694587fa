from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(8, 32)
        self.out = nn.Linear(32, 1)

    @torch.autocast("cpu", torch.float16, cache_enabled=False)
    def forward(self, x):
        return self.out(torch.tanh(self.hidden(x)))


def run():
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs = torch.randn(128, 8)
    targets = inputs.sum(1, keepdim=True).sin()

    def is_half():
        return float(model.hidden(inputs).dtype == torch.float16)

    losses = []
    with ThreadPoolExecutor(2) as pool:
        with torch.autocast("cpu", torch.float16):
            wrapped = torch.autocast("cpu", torch.float16)(is_half)
            halves = [is_half(), pool.submit(is_half).result(), pool.submit(wrapped).result()]

        def loss_of(part, part_targets):
            return nn.functional.mse_loss(model(part).float(), part_targets)

        scaler = torch.amp.GradScaler("cpu")
        for _ in range(30):
            optimizer.zero_grad()
            first, second = pool.map(loss_of, inputs.chunk(2), targets.chunk(2))
            loss = (first + second) / 2
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.item())
    return {"halves": halves, "losses": losses}
