"""The step time model of docs/scaling.md: prints its tables from measured or assumed figures of machine and link."""
from dataclasses import dataclass

PARAMETERS = 102.3e6          # BERT-base with bert-base-chinese's vocabulary
EMBEDDING_TABLES = 16.6e6     # of them, looked up and not multiplied
TOKENS_PER_TEXT = 19.5        # of the emotion data set
RANKS = [1, 2, 8, 16, 64, 256, 1024]


@dataclass
class Machine:
    name: str
    flops: float        # a rank's sustained rate in the products of a step
    optimizer: float    # bytes a second that a rank's optimizer reads and writes
    near: int           # ranks that share a host, or the fast link
    near_link: tuple    # (bytes a second each way, seconds of latency) between them
    far_link: tuple     # the same between hosts, for a host's share of one rank


@dataclass
class Option:
    name: str
    gradient_bytes: float = 4 * PARAMETERS
    weight_bytes: float = 0.0   # handed out after the step
    sharded: bool = False
    accumulation: int = 1


def all_reduce(ranks, volume, link, passes=2):
    """A ring: every rank sends its (n - 1) / n of the volume once a pass."""
    bandwidth, latency = link
    return passes * (ranks - 1) / ranks * volume / bandwidth + passes * (ranks - 1) * latency if ranks > 1 else 0.0


def exchange(machine, ranks, volume, passes=2):
    """On the hosts first, each rank of a host then with its counterparts on the others, on its part of the volume."""
    near = min(ranks, machine.near)
    hosts = max(1, ranks // machine.near)
    # Between hosts latency grows with the logarithm: trees, as NCCL takes for many.
    steps = hosts.bit_length() - 1
    far = passes * (hosts - 1) / hosts * volume / near / machine.far_link[0] + passes * steps * machine.far_link[1] if hosts > 1 else 0.0
    return all_reduce(near, volume, machine.near_link, passes) + far


def step(machine, ranks, texts, option):
    """Seconds of a step, and the part of them that only waits for other ranks."""
    flops = 6 * (PARAMETERS - EMBEDDING_TABLES) * TOKENS_PER_TEXT * texts * option.accumulation
    compute = flops / machine.flops
    backward = 2 / 3 * compute / option.accumulation  # of the last micro-batch, which the exchange can hide behind
    share = ranks if option.sharded else 1
    optimizer = 28 * PARAMETERS / share / machine.optimizer  # float32 weight, two moments, gradient: 16 read, 12 written
    gradients = exchange(machine, ranks, option.gradient_bytes)
    waiting = max(gradients - 0.9 * backward, 0.04 * gradients)  # the last bucket has nothing to hide behind
    waiting += exchange(machine, ranks, option.weight_bytes, passes=1)
    return compute + optimizer + waiting, waiting


OPTIONS = [
    Option("float32 gradients"),
    Option("fp16 compression", gradient_bytes=2 * PARAMETERS),
    Option("ZeRO-1, float32", weight_bytes=4 * PARAMETERS, sharded=True),
    Option("ZeRO-1, master weights", gradient_bytes=2 * PARAMETERS, weight_bytes=2 * PARAMETERS, sharded=True),
    Option("4 micro-batches a step", accumulation=4),
]

MACHINES = [
    # flops: measured by scaling.py. optimizer: by micro/optimizer_step on an older machine. The links are assumed: 10 Gbit/s Ethernet.
    Machine("a processor a rank, 2 on a host, 10 Gbit/s between hosts", flops=99e9, optimizer=10e9, near=2,
            near_link=(6e9, 20e-6), far_link=(1.25e9 / 2, 100e-6)),
    # Assumed: 400 TFLOP/s sustained in bf16, 3 TB/s, NVLink at 300 GB/s, one 400 Gbit/s port a GPU.
    Machine("a GPU a rank, 8 on a host, 400 Gbit/s a GPU between hosts", flops=400e12, optimizer=3e12, near=8,
            near_link=(300e9, 5e-6), far_link=(50e9, 15e-6)),
    Machine("the same, 100 Gbit/s a host", flops=400e12, optimizer=3e12, near=8, near_link=(300e9, 5e-6),
            far_link=(12.5e9 / 8, 15e-6)),
]


@dataclass
class Replayed:
    """A measured step of one GPU, replayed from a CUDA graph; benchmarks/results/h100/gpu.md and h200/gpu.md."""
    name: str
    parameters: float
    texts: int        # a step
    step: float       # seconds
    optimizer: float  # seconds of it, norm of the gradients included


REPLAYED = [
    Replayed("BERT-base, 32 short texts, H200", 102.3e6, 32, 32 / 9270, 0.97e-3),
    Replayed("BERT-base, 32 short texts, H100", 102.3e6, 32, 32 / 8302, 1.27e-3),
    Replayed("MiniLM, 32 short texts, H200", 19.1e6, 32, 32 / 26690, 0.18e-3),  # its optimizer: BERT-base's by bytes
    Replayed("MiniLM, 32 short texts, H100", 19.1e6, 32, 32 / 25197, 0.24e-3),
    Replayed("BERT-large, 32 texts of 512 tokens, H200", 325.7e6, 32, 32 / 387, 3.1e-3),  # likewise
    Replayed("BERT-large, 32 texts of 512 tokens, H100", 325.7e6, 32, 32 / 364, 4.0e-3),
]

# Published, each way: NVLink 4 450 GB/s, PCIe 5.0 x16 64 GB/s. Assumed: NCCL reaches two thirds; the latencies.
LINKS = {"NVLink": (300e9, 5e-6), "PCIe 5": (43e9, 10e-6)}


def replayed_step(one, ranks, link, gradient_bytes, accumulation):
    """Seconds. The exchange is part of the graph and runs beside the backward pass of the last micro-batch."""
    compute = one.step - one.optimizer
    exchanged = all_reduce(ranks, gradient_bytes * one.parameters, link)
    waiting = max(exchanged - 0.9 * 2 / 3 * compute, 0.04 * exchanged)
    return accumulation * compute + one.optimizer + waiting


def print_replayed():
    print("\n### GPUs of one host, texts a second\n")
    print("| step | link | 1 | 2 | 2, fp16 | 8 | 8, fp16 | 8, fp16, 4 micro-batches |")
    print("|---|---|---|---|---|---|---|---|")
    for one in REPLAYED:
        for name, link in LINKS.items():
            cells = [f"{one.texts / one.step:,.0f}"]
            for ranks, gradient_bytes, accumulation in [(2, 4, 1), (2, 2, 1), (8, 4, 1), (8, 2, 1), (8, 2, 4)]:
                rate = ranks * accumulation * one.texts / replayed_step(one, ranks, link, gradient_bytes, accumulation)
                cells.append(f"{rate:,.0f} ({rate / ranks * one.step / one.texts:.0%})")
            print(f"| {one.name} | {name} | " + " | ".join(cells) + " |")


def main():
    for machine, texts in zip(MACHINES, (32, 256, 256)):
        print(f"\n### {machine.name}: {texts} texts a rank\n")
        print("| option | " + " | ".join(f"{ranks}" for ranks in RANKS) + " |")
        print("|---|" + "---|" * len(RANKS))
        for option in OPTIONS:
            cells = []
            for ranks in RANKS:
                seconds, waiting = step(machine, ranks, texts, option)
                cells.append(f"{1000 * seconds:.4g} ({waiting / seconds:.0%})")
            print(f"| {option.name} | " + " | ".join(cells) + " |")
    print_replayed()


if __name__ == "__main__":
    main()
