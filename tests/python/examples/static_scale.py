import torch
from torch import nn


def train(scaler, by_hand):
    torch.manual_seed(0)
    model = nn.Linear(8, 1)
    for parameter in model.parameters():
        parameter.data.zero_()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    inputs = torch.randn(1024, 8)
    targets = 1e-6 * inputs.sum(1, keepdim=True)
    losses, scales = [], []
    for step in range(30):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = nn.functional.mse_loss(model(inputs), targets)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update(2.0**19 * (1 + step // 10) if by_hand else None)
        losses.append(loss.item())
        scales.append(scaler.get_scale())
    return losses, scales


def run():
    unscaled, _ = train(torch.amp.GradScaler("cpu", enabled=False), by_hand=False)
    never_grows = torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_interval=2**31 - 1)
    static, static_scales = train(never_grows, by_hand=False)
    manual, manual_scales = train(torch.amp.GradScaler("cpu", init_scale=2.0**19), by_hand=True)
    return {
        "unscaled_losses": unscaled,
        "static_losses": static,
        "static_scales": static_scales,
        "manual_losses": manual,
        "manual_scales": manual_scales,
    }
