import io

import torch
from torch import nn


class Run:
    def __init__(self):
        self.model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 4))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2, weight_decay=0.01, fused=True)
        self.scaler = torch.amp.GradScaler("cpu", growth_interval=10)
        self.step = 0

    def save(self, file):
        parts = {name: getattr(self, name).state_dict() for name in ("model", "optimizer", "scaler")}
        torch.save({**parts, "step": self.step, "rng": torch.get_rng_state()}, file)

    def load(self, file):
        state = torch.load(file)
        for name in ("model", "optimizer", "scaler"):
            getattr(self, name).load_state_dict(state[name])
        self.step = state["step"]
        torch.set_rng_state(state["rng"])

    def train(self, last_step):
        losses = []
        for self.step in range(self.step, last_step):
            inputs = torch.randn(64, 8)
            labels = inputs[:, :4].argmax(1)
            self.optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                loss = nn.functional.cross_entropy(self.model(inputs), labels)
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            losses.append(loss.item())
        self.step = last_step
        return losses


def run():
    torch.manual_seed(0)
    first = Run()
    losses = first.train(20)
    file = io.BytesIO()
    first.save(file)
    losses += first.train(40)

    torch.manual_seed(1)
    second = Run()
    file.seek(0)
    second.load(file)
    resumed = second.train(40)
    return {"losses": losses, "resumed_losses": resumed, "scales": [first.scaler.get_scale(), second.scaler.get_scale()]}
