import torch
from torch import nn

MICRO_BATCHES = 4


def run():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.01, fused=True)
    inputs = torch.randn(256, 16)
    labels = inputs[:, :3].argmax(1)

    scaler = torch.amp.GradScaler("cpu")
    losses, scales = [], []
    for _ in range(40):
        optimizer.zero_grad()
        total = 0.0
        for part, part_labels in zip(inputs.chunk(MICRO_BATCHES), labels.chunk(MICRO_BATCHES), strict=True):
            with torch.autocast("cpu", torch.float16):
                loss = nn.functional.cross_entropy(model(part), part_labels) / MICRO_BATCHES
            scaler.scale(loss).backward()
            total += loss.item()
        scaler.step(optimizer)
        scaler.update()
        losses.append(total)
        scales.append(scaler.get_scale())
    return {"losses": losses, "scales": scales}
