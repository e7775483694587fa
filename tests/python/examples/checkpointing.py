import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Dropout(0.1), nn.Linear(128, 32)) for _ in range(4))
        self.head = nn.Linear(32, 4)

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(lambda input, block=block: input + block(input), x, use_reentrant=False)
        return self.head(x)


def run():
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01, fused=True)
    inputs = torch.randn(256, 32)
    labels = inputs[:, :4].argmax(1)

    scaler = torch.amp.GradScaler("cpu")
    losses, scales = [], []
    for _ in range(40):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = nn.functional.cross_entropy(model(inputs), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
        scales.append(scaler.get_scale())
    return {"losses": losses, "scales": scales}
