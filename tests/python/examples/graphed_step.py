import torch
from torch import nn


def run():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    inputs = torch.randn(128, 8)
    targets = 3 * inputs.sum(1, keepdim=True).sin()

    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_interval=8)
    losses, scales = [], []
    for step in range(40):
        rows = 96 if step % 4 == 3 else 128
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = nn.functional.mse_loss(model(inputs[:rows]), targets[:rows])
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
        scales.append(scaler.get_scale())
    return {"losses": losses, "scales": scales}
