"""Asks servers on loopback for the labels of texts, one a request, from more and more connections at once. Writes
benchmarks/results/serve.md: requests a second, and their latency. The servers are mezzo, and FastAPI with transformers and with
onnxruntime.

Then mezzo alone is asked for some minutes, with texts of all lengths, many a request and wrong ones among them: errors and memory.
"""
import asyncio
import contextlib
import itertools
import json
import random
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import products
import support

SIZES = {"MiniLM": support.MINILM, "BERT-base": support.BASE}
BUDGETS = [20, 50, 100, 200, 500]  # milliseconds


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


@contextlib.contextmanager
def started(command, is_ready):
    """A server's process, once a line that it prints `is_ready`."""
    process = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               env={**support.os.environ, "HF_HUB_OFFLINE": "1"})
    try:
        said = []
        for line in process.stdout:
            said.append(line)
            if is_ready(line):
                break
        else:
            sys.exit(f"{command}\n{''.join(said)}")
        yield process
    finally:
        process.terminate()
        process.communicate()


@contextlib.contextmanager
def mezzo(model, precision, options):
    """The port of a server."""
    port = free_port()
    with started([support.PROGRAM, "serve", "--model", model, "--port", port, "--precision", precision, "--max-length", options.max_length,
                  "--threads", options.threads], lambda line: "http://" in line):
        yield port


@contextlib.contextmanager
def python(model, options, *flags):
    port = free_port()
    with started([sys.executable, support.PEERS / "serve_texts.py", "--model", model, "--port", port, "--max-length", options.max_length,
                  "--threads", options.threads, *flags], lambda line: line.strip() == "ready"):
        while True:  # it says so just before it listens
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port)).close()
                break
            time.sleep(0.05)
        yield port


def request_of(body, path="/predict"):
    data = json.dumps(body).encode() if not isinstance(body, bytes) else body
    return (f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n").encode() + data


async def answer_of(reader):
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    body = await reader.readexactly(int(re.search(r"content-length: (\d+)", head, re.IGNORECASE)[1]))
    return int(head.split(" ", 2)[1]), body


@dataclass
class Found:
    seconds: list = field(default_factory=list)  # of each request
    rate: float = 0
    errors: int = 0

    def percentile(self, share):
        return statistics.quantiles(self.seconds, n=1000, method="inclusive")[round(1000 * share) - 1] if len(self.seconds) > 1 else self.seconds[0]


async def labels_of(port, texts):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    found = []
    for text in texts:
        writer.write(request_of({"text": text}))
        found.append(json.loads((await answer_of(reader))[1])["label"])
    writer.close()
    return found


async def ask(port, requests, connections, seconds, warmup):
    """As many requests at once as there are connections, each as soon as the one before it is answered."""
    found, begin = Found(), time.perf_counter()

    async def client():
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while (asked := time.perf_counter()) < begin + warmup + seconds:
            writer.write(next(requests))
            status, _ = await answer_of(reader)
            now = time.perf_counter()
            found.errors += status != 200
            if asked >= begin + warmup and now <= begin + warmup + seconds:
                found.seconds.append(now - asked)
        writer.close()

    await asyncio.gather(*(client() for _ in range(connections)))
    found.rate = len(found.seconds) / seconds
    return found


def servers_of(model, onnx, options):
    best = "bf16" if not products.is_emulated("bf16") else "fp32"
    made = {f"mezzo, {precision}": (lambda precision=precision: mezzo(model, precision, options)) for precision in dict.fromkeys([best, "fp32"])}
    for batching in ([], ["--batching"]):
        name = "batches" if batching else "one by one"
        made[f"transformers, {best}, {name}"] = lambda batching=batching: python(model, options, "--precision", best, *batching)
        made[f"onnxruntime, fp32, {name}"] = lambda batching=batching: python(model, options, "--onnx", onnx, *batching)
    return made


def measure(size, options, folder):
    """{server: {connections: Found of each round}}"""
    rows = json.loads(options.train.read_text(encoding="utf-8"))
    texts = [text for text, _ in rows[: options.texts]]
    sizes = SIZES[size] if not options.quick else support.TINY
    model = support.fresh_model(folder, sizes, options.vocab)
    onnx = folder / f"{size}.onnx"
    support.run(support.PROGRAM, "export", "--model", model, "--onnx", onnx, "--precision", "fp32")
    found, labels = {}, None
    for _, (name, start) in itertools.product(range(options.rounds), servers_of(model, onnx, options).items()):
        with start() as port:
            requests = itertools.cycle([request_of({"text": text}) for text in texts])
            said = asyncio.run(labels_of(port, texts[:50]))
            labels = labels or said
            if sum(map(str.__ne__, said, labels)) > len(labels) // 10:  # precisions differ in a few
                sys.exit(f"{name} says {said}, and mezzo {labels}")
            for connections in options.connections:
                one = asyncio.run(ask(port, requests, connections, options.seconds, options.warmup))
                if one.errors:
                    sys.exit(f"{name}: {one.errors} requests failed")
                found.setdefault(name, {}).setdefault(connections, []).append(one)
                print(size, name, connections, f"{one.rate:.1f}/s p99 {1e3 * one.percentile(0.99):.1f} ms", file=sys.stderr, flush=True)
    return found


def resident_bytes(process):
    return int(re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{process.pid}/status").read_text())[1]) * 1024


def soak(options, folder):
    """(seconds, requests, statuses, resident bytes by minute)"""
    rng = random.Random(0)
    texts = [text for text, _ in json.loads(options.train.read_text(encoding="utf-8"))[:2000]]
    model = support.fresh_model(folder, SIZES["MiniLM"] if not options.quick else support.TINY, options.vocab)
    statuses, memory, port = {}, [], free_port()
    wrong = [b"{", b"[]", b'{"text": 1}', b'{"texts": ["a"], "model": "?"}']

    def request():
        if rng.random() < 0.02:
            return request_of(rng.choice(wrong))
        if rng.random() < 0.1:
            return request_of({"texts": rng.sample(texts, rng.randint(1, 40))})
        return request_of({"text": " ".join(rng.sample(texts, rng.choice([1, 1, 1, 1, 4, 12])))})

    async def client(end):
        while time.perf_counter() < end:  # a connection for some requests
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for _ in range(rng.randint(1, 50)):
                writer.write(request())
                if rng.random() < 0.01:
                    break  # without waiting for the answer
                status, _ = await answer_of(reader)
                statuses[status] = statuses.get(status, 0) + 1
                if time.perf_counter() > end:
                    break
            writer.close()

    async def watch(process, end):
        while time.perf_counter() < end:
            await asyncio.sleep(min(60, max(0.1, options.soak / 10)))
            memory.append(resident_bytes(process))

    async def all_of(process):
        end = time.perf_counter() + options.soak
        await asyncio.gather(watch(process, end), *(client(end) for _ in range(32)))

    with started([support.PROGRAM, "serve", "--model", model, "--port", port, "--threads", options.threads, "--max-length", options.max_length],
                 lambda line: "http://" in line) as process:
        asyncio.run(all_of(process))
    return statuses, memory


def tables_of(size, found, options):
    def rate_within(name, budget):
        """The most requests a second whose 99th percentile is within it."""
        medians = [(statistics.median(one.rate for one in rounds), statistics.median(one.percentile(0.99) for one in rounds))
                   for rounds in found[name].values()]
        return max((rate for rate, p99 in medians if 1e3 * p99 <= budget), default=None)

    rows = []
    for name, by_connections in found.items():
        for connections, rounds in by_connections.items():
            rows.append([name, connections, support.spread((one.rate for one in rounds), 0),
                         *(support.spread((1e3 * one.percentile(share) for one in rounds), 1) for share in (0.5, 0.99))])
    every = support.table(["server", "connections", "requests a second", "median, ms", "p99, ms"], rows)
    mine = next(iter(found))
    rows = []
    for budget in BUDGETS:
        rates = {name: rate_within(name, budget) for name in found}
        row = [budget]
        for name in found:
            rate = rates[name]
            times = f" ({rates[mine] / rate:.1f} ×)" if rate and rates[mine] and name != mine else ""
            row.append(f"{rate:.0f}{times}" if rate else "none")
        rows.append(row)
    return (f"## {size}\n\nThe most requests a second at which 99 % of the requests are answered within the limit. In brackets: the rate in"
            f" the first column, divided by this rate.\n\n{support.table(['p99 within, ms', *found], rows)}\n\n{every}")


def flags():
    parser = support.parser(__doc__)
    parser.add_argument("--sizes", nargs="*", default=["MiniLM"], choices=SIZES)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--connections", type=int, nargs="*", default=[1, 2, 4, 8, 16, 32, 64])
    parser.add_argument("--seconds", type=float, default=6, help="measured, of each number of connections")
    parser.add_argument("--warmup", type=float, default=1, help="seconds before them")
    parser.add_argument("--texts", type=int, default=2000)
    parser.add_argument("--max-length", type=int, default=128)
    parser.add_argument("--threads", type=int, default=len(support.os.sched_getaffinity(0)))
    parser.add_argument("--soak", type=float, default=300, help="seconds that mezzo is asked without an end; 0: not at all")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.connections, options.seconds, options.warmup, options.texts, options.soak = 1, [1, 4], 0.5, 0.2, 50, 1
    return options


def main():
    options = flags()
    with tempfile.TemporaryDirectory() as name:
        parts = [tables_of(size, measure(size, options, Path(name)), options) for size in options.sizes]
        if options.soak:
            statuses, memory = soak(options, Path(name))
            parts.append(f"## Asked without an end\n\n32 connections that come and go ask mezzo for {options.soak:.0f} seconds. A request has 1 to 40"
                         f" texts of up to 128 tokens. 2 % of the requests are wrong, and 1 % are left before their answer. Answers by status:"
                         f" {', '.join(f'{status}: {count:,}' for status, count in sorted(statuses.items()))}. Resident memory at equal"
                         f" times, in MB: {', '.join(f'{bytes_ / 1e6:.0f}' for bytes_ in memory)}.")
    about = (f"Servers on loopback have {options.threads} threads each. The client runs on the same cores. A request has one of the emotion data set's texts"
             f" of at most {options.max_length} tokens. Each connection sends its next request when it has an answer. The weights are fresh."
             " Peers: FastAPI and uvicorn (uvloop, httptools). They run one text at a time, or all waiting texts in one padded batch."
             f" Figures are medians (least to most) of {options.rounds} rounds in turn.")
    support.page(options, "serve", "Serving: mezzo and Python", about, *parts)


if __name__ == "__main__":
    main()
