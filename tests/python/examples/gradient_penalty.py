import torch
from torch import nn


def run(dtype=torch.float32, autocast=True):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(1, 8, 3), nn.Tanh(), nn.Flatten(), nn.Linear(8 * 14, 1)).to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    inputs = torch.randn(64, 1, 16).to(dtype)
    targets = inputs.flatten(1).sum(1, keepdim=True).sin()

    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16, growth_interval=10, enabled=autocast)
    losses, penalties, scales = [], [], []
    for _ in range(40):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16, enabled=autocast):
            loss = nn.functional.mse_loss(model(inputs), targets)
        scaled = torch.autograd.grad(scaler.scale(loss), model.parameters(), create_graph=True)
        inv_scale = 1 / scaler.get_scale()
        with torch.autocast("cpu", torch.float16, enabled=autocast):
            penalty = torch.zeros(())
            for gradient in scaled:
                penalty = penalty + (gradient * inv_scale).square().sum()
        scaler.scale(loss + 0.01 * penalty).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
        penalties.append(penalty.item())
        scales.append(scaler.get_scale())
    return {"losses": losses, "penalties": penalties, "scales": scales}
