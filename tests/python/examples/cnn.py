import numpy
import torch
from torch import nn


def run(path, precision):
    torch.manual_seed(0)
    rows = torch.from_numpy(numpy.loadtxt(path, dtype=numpy.float32))
    rows = rows[torch.randperm(len(rows))]
    images, digits = rows[:, 1:].reshape(-1, 1, 8, 8) / 16, rows[:, 0].long()
    images = images.to(memory_format=torch.channels_last)
    train_images, train_digits, test_images, test_digits = images[360:], digits[360:], images[:360], digits[:360]

    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1, bias=False),
        nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32 * 4 * 4, 10),
    ).to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01, fused=True)
    scaler = torch.amp.GradScaler("cpu", enabled=precision == "fp16")
    dtype = torch.float16 if precision == "fp16" else torch.bfloat16
    forward = torch.autocast("cpu", dtype, enabled=precision != "fp32")(model)

    losses, scales = [], []
    for _ in range(12):
        for batch in torch.randperm(len(train_images)).split(64):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(forward(train_images[batch]).float(), train_digits[batch])
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.item())
            scales.append(scaler.get_scale())
    model.eval()
    with torch.no_grad():
        right = forward(test_images).argmax(1).eq(test_digits).float()
    return {"losses": losses, "scales": scales, "accuracy": [right.mean().item()]}
