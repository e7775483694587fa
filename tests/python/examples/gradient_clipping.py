import torch
from torch import nn


def run():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    inputs = torch.randn(128, 8)
    targets = 3 * inputs.sum(1, keepdim=True).sin()

    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**22, growth_interval=8)
    losses, norms, scales = [], [], []
    for _ in range(40):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = nn.functional.mse_loss(model(inputs), targets)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm=0.5)
        scaler.step(optimizer)
        before = scaler.get_scale()
        scaler.update()
        if scaler.get_scale() >= before:  # the only way to see a skipped step
            norms.append(norm.item())
        losses.append(loss.item())
        scales.append(scaler.get_scale())
    return {"losses": losses, "norms": norms, "scales": scales}
