import torch
from torch import nn


def run(amp=False):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    inputs = torch.randn(256, 16)
    labels = inputs[:, :4].argmax(1)
    scaler = torch.amp.GradScaler("cpu", enabled=amp)
    forward = torch.autocast("cpu", torch.float16, enabled=amp)(model)

    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(forward(inputs).float(), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return {"losses": losses}
