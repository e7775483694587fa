"""Trains on two hosts that are network namespaces of this machine, joined by a link with delay, loss and little bandwidth,
and writes benchmarks/results/slow_link.md. The link is made here, packet by packet between two TUN devices, since not
every kernel has netem. Needs root, emotion's train.json and bert-base-chinese's vocab.txt."""
import ctypes
import fcntl
import hashlib
import heapq
import os
import random
import select
import statistics
import struct
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import support

HOSTS = {"mezzo-a": "10.77.0.1", "mezzo-b": "10.77.0.2"}
CLONE_NEWNET, TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x40000000, 0x400454CA, 0x0001, 0x1000


def ip(*arguments, check=True):
    subprocess.run(["ip", *arguments], check=check, stderr=None if check else subprocess.DEVNULL)


class Link(threading.Thread):
    """Carries packets both ways: `delay` seconds each way, a share of `loss` dropped, `rate` bits a second each way."""

    def __init__(self, delay=0.0, loss=0.0, rate=1e10):
        super().__init__(daemon=True)
        self.delay, self.loss, self.rate, self.is_cut, self.is_over = delay, loss, rate, False, False
        self.carried = self.lost = 0
        self.devices = [self.open_device(host) for host in HOSTS]

    @staticmethod
    def open_device(host):
        libc = ctypes.CDLL(None, use_errno=True)
        with open("/proc/self/ns/net") as own, open(f"/run/netns/{host}") as other:
            assert libc.setns(other.fileno(), CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
            device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
            fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH", b"mezzo0", IFF_TUN | IFF_NO_PI))
            assert libc.setns(own.fileno(), CLONE_NEWNET) == 0
        for command in (["addr", "add", f"{HOSTS[host]}/24", "dev", "mezzo0"], ["link", "set", "dev", "mezzo0", "up"],
                        ["link", "set", "dev", "lo", "up"]):
            ip("-n", host, *command)
        return device

    def run(self):
        chance, waiting, free_at, count = random.Random(0), [], [0.0, 0.0], 0
        while not self.is_over:
            pause = min(0.1, max(0.0, waiting[0][0] - time.monotonic())) if waiting else 0.1
            ready, _, _ = select.select(self.devices, [], [], pause)
            for device in ready:
                side = self.devices.index(device)
                packet = os.read(device, 65536)
                if self.is_cut or chance.random() < self.loss:
                    self.lost += 1
                    continue
                free_at[side] = max(free_at[side], time.monotonic()) + 8 * len(packet) / self.rate
                heapq.heappush(waiting, (free_at[side] + self.delay, count, self.devices[1 - side], packet))
                count += 1
            while waiting and waiting[0][0] <= time.monotonic():
                _, _, device, packet = heapq.heappop(waiting)
                try:
                    os.write(device, packet)
                    self.carried += len(packet)
                except BlockingIOError:
                    self.lost += 1
        for device in self.devices:
            os.close(device)


class Hosts:
    def __init__(self, **link):
        for host in HOSTS:
            ip("netns", "del", host, check=False)
            ip("netns", "add", host)
        self.link = Link(**link)
        self.link.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.link.is_over = True
        self.link.join()
        for host in HOSTS:
            ip("netns", "del", host)

    def start(self, out, *flags):
        port = "29511"
        return [subprocess.Popen(["ip", "netns", "exec", host, support.PROGRAM, "launch", "--nproc", "1", "--nnodes", "2",
                                  "--node-rank", str(rank), "--master", f"{HOSTS['mezzo-a']}:{port}", "--", *flags,
                                  "--output", out], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                                 env={**os.environ, "OMP_NUM_THREADS": "1"})
                for rank, host in enumerate(HOSTS)]


def digest(out):
    return hashlib.sha256((Path(out) / "model.safetensors").read_bytes()).hexdigest()


def measure(out, link):
    steps, sent = support.records(out, "step"), support.records(out, "communication")[0]
    return dict(milliseconds=1000 * statistics.median(r["seconds"] for r in steps[2:]), loss=steps[-1]["loss"],
                exchange=1000 * sent["seconds"] / sent["steps"], megabytes=sent["gradient_bytes"] / sent["steps"] / 1e6,
                lost=link.lost if link else 0, digest=digest(out))


CASES = {
    "one host, no link": (None, []),
    "a link without faults": (dict(), []),
    "1 ms each way": (dict(delay=0.001), []),
    "10 ms each way": (dict(delay=0.010), []),
    "10 ms each way, 0.1 % of packets lost": (dict(delay=0.010, loss=0.001), []),
    "2 ms each way, 1 % of packets lost": (dict(delay=0.002, loss=0.01), []),
    "100 Mbit/s, 1 ms each way": (dict(delay=0.001, rate=1e8), []),
    "the same, fp16 compression": (dict(delay=0.001, rate=1e8), ["--gradient-compression", "fp16"]),
    "the same, 4 micro-batches of 16 texts a rank a step": (dict(delay=0.001, rate=1e8), ["--grad-accumulation", "4"]),
}


def run_case(link, flags, out):
    if link is None:
        subprocess.run([support.PROGRAM, "launch", "--nproc", "2", "--", *flags, "--output", out],
                       check=True, stdout=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"})
        return measure(out, None)
    with Hosts(**link) as hosts:
        for process in hosts.start(out, *flags):
            _, stderr = process.communicate(timeout=600)
            assert process.returncode == 0, stderr
        return measure(out, hosts.link)


def cut_the_link(flags, out):
    """The messages of the two hosts when the link goes down in mid-run, and the seconds until then."""
    with Hosts(delay=0.001) as hosts:
        processes = hosts.start(out, *flags, "--epochs", "1000", "--timeout", "10")
        while not (Path(out) / "metrics.jsonl").exists() or len(support.records(out, "step")) < 5:
            time.sleep(0.05)
        hosts.link.is_cut = True
        begin, said = time.monotonic(), []
        for process in processes:
            _, stderr = process.communicate(timeout=300)
            lines = [line for line in stderr.splitlines() if "mezzo train: " in line]
            said.append((time.monotonic() - begin, lines[0].partition("mezzo train: ")[2] if lines else stderr))
        return said


def main():
    options = support.parser(__doc__).parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        flags = [*support.TRAIN, "--model-config", support.write_config(folder, support.TINY), "--vocab", options.vocab, "--train", options.train,
                 "--limit", "2000", "--precision", "fp32", "--batch-size", "16", "--learning-rate", "1e-3", "--threads", "1", "--max-steps", "20",
                 "--all-reduce", "backend"]
        results = {}
        cases = dict(list(CASES.items())[:3]) if options.quick else CASES
        for case, (link, more) in cases.items():
            results[case] = run_case(link, [*flags, *more], folder / "out")
            print(case, {key: value for key, value in results[case].items() if key != "digest"}, flush=True)
        said = cut_the_link([flag for flag in flags if flag not in ("--max-steps", "20")], folder / "cut")
    write(results, said, options)


def write(results, said, options):
    plain = results["one host, no link"]
    rows = []
    for case, r in results.items():
        same = "yes" if r["digest"] == plain["digest"] else "no: other arithmetic" if "the same," in case else "NO"
        rows.append([case, f"{r['milliseconds']:.0f}", f"{r['exchange']:.0f}", f"{r['megabytes']:.2f}", r["lost"], f"{r['loss']:.4f}",
                     same])
    about = ("Two network namespaces have one rank each. A link of two TUN devices joins them; it delays, drops and throttles packets."
             " 20 steps of a fresh 2 x 64 BERT in float32 on the emotion data set, 32 texts a step, gradients by Gloo. The last"
             " column compares the trained weights with the weights of the same two ranks on one host, bit for bit.")
    heads = ["link", "step, ms (median)", "exchange, ms a step", "gradients sent a step, MB", "packets lost", "last loss",
             "same weights"]
    ends = [f"- host {host} ends after {seconds:.0f} s: `{'; '.join(message.splitlines())}`" for host, (seconds, message) in zip("ab", said)]
    support.page(options, "slow_link", "Two hosts and a slow link between them", about, support.table(heads, rows),
                 "The link goes down in mid-run, with `--timeout 10`:", "\n".join(ends))


if __name__ == "__main__":
    main()
