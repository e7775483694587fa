import torch
from torch import nn


def run():
    """torch.nn.DataParallel has no CPU: what its two replicas would do, one after the other."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    inputs = torch.randn(256, 16)
    labels = inputs[:, :4].argmax(1)

    scaler = torch.amp.GradScaler("cpu")
    losses, scales = [], []
    for _ in range(40):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16, cache_enabled=False):  # each replica casts its own weights
            loss = nn.functional.cross_entropy(torch.cat([model(part) for part in inputs.chunk(2)]), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
        scales.append(scaler.get_scale())
    return {"losses": losses, "scales": scales}
