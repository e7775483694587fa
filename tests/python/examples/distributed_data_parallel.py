import contextlib

import torch
from torch import distributed, nn

MICRO_BATCHES = 2


def run():
    """On every rank of a default process group."""
    ranks = distributed.get_world_size()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 3))
    ddp = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.01, fused=True)
    inputs = torch.randn(256, 16).chunk(ranks)[distributed.get_rank()]
    labels = inputs[:, :3].argmax(1)

    scaler = torch.amp.GradScaler("cpu")
    losses, scales = [], []
    for _ in range(40):
        optimizer.zero_grad()
        total = torch.zeros(())
        for i, (part, part_labels) in enumerate(zip(inputs.chunk(MICRO_BATCHES), labels.chunk(MICRO_BATCHES), strict=True)):
            with ddp.no_sync() if i + 1 < MICRO_BATCHES else contextlib.nullcontext():
                with torch.autocast("cpu", torch.float16):
                    loss = nn.functional.cross_entropy(ddp(part), part_labels) / MICRO_BATCHES
                scaler.scale(loss).backward()
                total += loss.detach()
        scaler.step(optimizer)
        scaler.update()
        distributed.all_reduce(total)
        losses.append(total.item() / ranks)
        scales.append(scaler.get_scale())
    return {"losses": losses, "scales": scales}
