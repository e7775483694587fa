import torch
from torch import nn


def run():
    torch.manual_seed(0)
    first, second = nn.Linear(16, 32), nn.Linear(32, 4)
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)
    inputs = torch.randn(64, 16)
    labels = inputs[:, :4].argmax(1)
    losses = []
    for _ in range(40):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            normed = nn.functional.layer_norm(first(inputs).float(), (32,))
            loss = nn.functional.cross_entropy(second(torch.tanh(normed.bfloat16())), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    # Inputs, weights and biases to bfloat16; the norm's input to float32, its result
    # back; the logits to float32.
    half = 2 * (64 * 16 + 16 * 32 + 32 + 64 * 32 + 32 * 4 + 4)
    return {"losses": losses, "bytes": [half + 4 * (64 * 32 + 64 * 4)]}
