import torch
from torch import nn


def run():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 4))
    inputs = torch.randn(256, 16)
    labels = inputs[:, :4].argmax(1)
    masters = [p.detach().clone().requires_grad_() for p in model.parameters()]
    model.half()
    optimizer = torch.optim.AdamW(masters, lr=1e-3, weight_decay=0.01, fused=True)
    scaler = torch.amp.GradScaler("cpu")
    losses, scales = [], []
    for _ in range(60):
        loss = nn.functional.cross_entropy(model(inputs.half()).float(), labels)
        scaler.scale(loss).backward()
        for master, parameter in zip(masters, model.parameters()):
            master.grad, parameter.grad = parameter.grad.float(), None
        scaler.step(optimizer)
        scaler.update()
        with torch.no_grad():
            for master, parameter in zip(masters, model.parameters()):
                parameter.copy_(master)
        losses.append(loss.item())
        scales.append(scaler.get_scale())
    return {"losses": losses, "scales": scales}
