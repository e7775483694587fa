import torch
from torch import nn
from torch.amp import custom_bwd, custom_fwd


class SquaredDistance(torch.autograd.Function):
    @staticmethod
    @custom_fwd(device_type="cpu", cast_inputs=torch.float32)
    def forward(ctx, points, centres):
        ctx.save_for_backward(points, centres)
        return (points.unsqueeze(1) - centres).square().sum(2)

    @staticmethod
    @custom_bwd(device_type="cpu")
    def backward(ctx, gradient):
        points, centres = ctx.saved_tensors
        differences = 2 * (points.unsqueeze(1) - centres) * gradient.unsqueeze(2)
        return differences.sum(1), -differences.sum(0)


def run():
    torch.manual_seed(0)
    project = nn.Linear(16, 8)
    centres = torch.randn(4, 8).requires_grad_()
    inputs = 100 * torch.randn(64, 16)
    labels = inputs[:, :4].argmax(1)
    optimizer = torch.optim.SGD([project.weight, project.bias, centres], lr=1e-2)
    scaler = torch.amp.GradScaler("cpu")
    losses, scales = [], []
    for _ in range(40):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            hidden = project(inputs)
            distances = SquaredDistance.apply(hidden * hidden.sigmoid(), centres)
            loss = nn.functional.cross_entropy(-distances / 100, labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
        scales.append(scaler.get_scale())
    return {"losses": losses, "scales": scales}
