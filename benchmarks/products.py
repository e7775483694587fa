"""The matrix products of a BERT training step: their FLOP, and the rate of the LibTorch that mezzo and PyTorch share."""
import statistics
import time

import torch

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def seconds_of(work, repeats=5):
    work()
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def flops_of_step(model, rows, texts):
    """Of all products of forward and backward: `rows` tokens in `texts` texts. The last layer counts one row a text, as does the
    pooler; its keys and values are computed on the side of queries and outputs."""
    hidden, inner = model["hidden_size"], model["intermediate_size"]
    a_layer_and_row = 2 * (4 * hidden * hidden + 2 * hidden * inner)
    return 3 * (a_layer_and_row * (rows * (model["num_hidden_layers"] - 1) + texts) + 2 * hidden * hidden * texts)


@torch.no_grad()
def rate(precision, rows=64, size=768):
    """Floating-point operations a second of LibTorch's products, in the shapes of forward and backward."""
    x, w = (torch.randn(count, size).to(DTYPES[precision]) for count in (rows, size))
    y, dx, dw = torch.randn(rows, size).to(x.dtype), torch.empty_like(x), torch.empty_like(w)

    def step():
        torch.mm(x, w.t(), out=y)
        torch.mm(y, w, out=dx)
        torch.mm(y.t(), x, out=dw)

    return 6 * rows * size * size / seconds_of(step, repeats=1 if precision != "fp32" else 9)


def is_emulated(precision):
    """Whether this machine's LibTorch multiplies numbers of this precision one by one."""
    return precision != "fp32" and rate(precision) < rate("fp32") / 4
