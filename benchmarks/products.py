"""Bare matrix products: those of a BERT training step, alone, by the LibTorch that mezzo and PyTorch share."""
import math
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


class Product:
    """y = x w^T of `rows` rows, and the two products of its backward, into memory that is there already."""

    def __init__(self, rows, columns_in, columns_out, dtype):
        self.x, self.w = torch.randn(rows, columns_in).to(dtype), torch.randn(columns_out, columns_in).to(dtype)
        self.y, self.dx, self.dw = torch.randn(rows, columns_out).to(dtype), torch.empty_like(self.x), torch.empty_like(self.w)

    def forward(self):
        torch.mm(self.x, self.w.t(), out=self.y)

    def backward(self):
        torch.mm(self.y, self.w, out=self.dx)
        torch.mm(self.y.t(), self.x, out=self.dw)


def shapes(model, rows, texts, fused):
    """(rows, columns in, columns out) of the products of forward, in order: `rows` tokens in `texts` texts; in the last layer
    but one row a text, keys and values included, which are taken on the side of queries and outputs. `fused`: queries, keys
    and values of another layer are one product."""
    hidden, inner = model["hidden_size"], model["intermediate_size"]
    found = []
    for layer in range(model["num_hidden_layers"]):
        last = layer + 1 == model["num_hidden_layers"]
        count = texts if last else rows
        found += [(count, hidden, 3 * hidden)] if fused and not last else 3 * [(count, hidden, hidden)]
        found += [(count, hidden, hidden), (count, hidden, inner), (count, inner, hidden)]
    return [*found, (texts, hidden, hidden)]  # the pooler


def flops_of_step(model, rows, texts):
    return 3 * sum(2 * math.prod(shape) for shape in shapes(model, rows, texts, fused=False))


@torch.no_grad()
def seconds_of_step(model, rows, texts, dtype, repeats=5):
    """Of all products of a training step; queries, keys and values together or apart, whichever is faster."""
    found = []
    for fused in (False, True):
        products = [Product(*shape, dtype) for shape in shapes(model, rows, texts, fused)]

        def step():
            for product in products:
                product.forward()
            for product in reversed(products):
                product.backward()

        found.append(seconds_of(step, repeats))
    return min(found)


@torch.no_grad()
def rate(precision, rows=64, size=768):
    """Floating-point operations a second, forward and backward."""
    product = Product(rows, size, size, DTYPES[precision])

    def step():
        product.forward()
        product.backward()

    return 6 * rows * size * size / seconds_of(step, repeats=1 if precision != "fp32" else 9)


def is_emulated(precision):
    """Whether this machine's LibTorch multiplies numbers of this precision one by one."""
    return precision != "fp32" and rate(precision) < rate("fp32") / 4
