"""The Python peer of benchmarks/micro/optimizer_step: GradScaler.unscale_, clip_grad_norm_, fused AdamW and a bfloat16
half_copy copy over the parameters of BERT-base. Prints a row for its table. On a GPU, ten steps are queued before the device is
waited for."""
import argparse
import statistics
import time

import torch
from transformers import BertConfig, BertForSequenceClassification

WARMUPS, RUNS = 3, 21


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    device = parser.parse_args().device
    steps = 1 if device == "cpu" else 10
    model = BertForSequenceClassification(BertConfig(vocab_size=21128, num_labels=6)).to(device)
    params = list(model.parameters())
    half_copies = [p.detach().bfloat16() for p in params]
    for p in params:
        p.grad = torch.randn_like(p)
    optimizer = torch.optim.AdamW(params, lr=3e-5, weight_decay=0.01, fused=True)
    scaler = torch.amp.GradScaler(device, init_scale=1.0)  # 1: gradients stay as they are from run to run
    scaler.scale(torch.ones(1, device=device))

    def step():
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        scaler.step(optimizer)
        scaler.update()
        with torch.no_grad():
            torch._foreach_copy_(half_copies, params)

    milliseconds = []
    for run in range(-WARMUPS, RUNS):
        begin = time.perf_counter()
        for _ in range(steps):
            step()
        if device == "cuda":
            torch.cuda.synchronize()
        if run >= 0:
            milliseconds.append(1e3 * (time.perf_counter() - begin) / steps)
    moved = sum(p.numel() for p in params) * (4 + 4 + 24 + 2) / 1e9  # counted as for the other float32 rows
    print(f"| PyTorch: unscale_, clip_grad_norm_, fused AdamW, foreach copy | {statistics.median(milliseconds):.2f} | "
          f"{min(milliseconds):.2f} – {max(milliseconds):.2f} | {moved:.2f} | |")


if __name__ == "__main__":
    main()
