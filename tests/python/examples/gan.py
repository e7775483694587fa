import torch
from torch import nn


def real_points(count):
    return torch.randn(count, 2) @ torch.tensor([[1.0, 0.5], [0.0, 0.5]]) + torch.tensor([2.0, -1.0])


def loss_of(logits, wanted):
    return nn.functional.binary_cross_entropy_with_logits(logits, torch.full_like(logits, wanted))


def run():
    torch.manual_seed(0)
    generator = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
    critic = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 1))
    generator_optimizer, critic_optimizer = (
        torch.optim.Adam(model.parameters(), lr=2e-3, betas=(0.5, 0.99), fused=True) for model in (generator, critic)
    )

    scaler = torch.amp.GradScaler("cpu", growth_interval=100)
    curves = {"critic_losses": [], "generator_losses": [], "scales": []}
    for _ in range(1000):
        real, noise = real_points(128), torch.randn(128, 4)

        critic_optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            fake = generator(noise)
            critic_loss = loss_of(critic(real), 1) + loss_of(critic(fake.detach()), 0)
        scaler.scale(critic_loss).backward()
        scaler.step(critic_optimizer)

        generator_optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            generator_loss = loss_of(critic(fake), 1)
        scaler.scale(generator_loss).backward()
        scaler.step(generator_optimizer)
        scaler.update()

        for curve, value in zip(curves.values(), (critic_loss.item(), generator_loss.item(), scaler.get_scale()), strict=True):
            curve.append(value)
    return curves
