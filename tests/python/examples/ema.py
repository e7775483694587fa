import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn


@torch.no_grad()
def evaluate(model, inputs, labels):
    model.eval()
    return nn.functional.cross_entropy(model(inputs), labels).item()


def run():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    inputs = torch.randn(1024, 16)
    labels = inputs[:, :4].argmax(1)
    batches = list(zip(inputs[:512].split(32), labels[:512].split(32), strict=True))

    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24)
    losses, scales = [], []
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.95))
    for _ in range(4):
        for input, target in batches:
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                loss = nn.functional.cross_entropy(model(input), target)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            before = scaler.get_scale()
            scaler.update()
            if scaler.get_scale() >= before:  # the step was not skipped
                ema.update_parameters(model)
            losses.append(loss.item())
            scales.append(scaler.get_scale())
    update_bn(batches, ema)
    last, averaged = (evaluate(net, inputs[512:], labels[512:]) for net in (model, ema.module))
    return {"losses": losses, "scales": scales, "last": [last], "averaged": [averaged], "n_averaged": [ema.n_averaged.item()]}
