"""Trains with several ranks of NCCL on one GPU, and compares the runs with each other.

NCCL takes two ranks for ranks of one device, which it refuses, if their host hashes are equal. NCCL_HOSTID sets the hash,
so ranks with different values meet on one GPU, over loopback sockets. The numbers are real; the speed is not.

    python nccl.py --mezzo build/bin/mezzo --results results/nccl [--device cpu]
"""

import argparse
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import time

CONFIG = {"model_type": "bert", "vocab_size": 205, "hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4,
          "intermediate_size": 512, "max_position_embeddings": 64}
LONGEST_RUN = 60  # seconds, of each run


def write_data(folder):
    folder.mkdir(parents=True)
    words = [f"w{i}" for i in range(200)]
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]))
    (folder / "config.json").write_text(json.dumps(CONFIG))
    draw = random.Random(5)
    with open(folder / "train.jsonl", "w") as rows:
        for _ in range(1200):
            label = draw.randrange(4)
            text = draw.choices(words[50 * label:50 * label + 60], k=draw.randrange(2, 50))
            rows.write(json.dumps({"text": " ".join(text), "label": str(label)}) + "\n")


class Runs:
    def __init__(self, args):
        self.args, self.data, self.is_cpu = args, args.results / "data", args.device == "cpu"
        self.passed = self.failed = 0
        write_data(self.data)

    def start(self, name, ranks, flags, steps):
        """The processes of the ranks; a run that begins anew has no output yet."""
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        command = [self.args.mezzo, "train", "--model-config", self.data / "config.json", "--vocab", self.data / "vocab.txt",
                   "--train", self.data / "train.jsonl", "--dev-ratio", "0", "--output", self.args.results / name,
                   "--max-steps", steps, "--batch-size", "4", "--shares", "4", "--learning-rate", "5e-4", "--schedule", "constant",
                   "--all-reduce", "backend", "--device", self.args.device, "--timeout", "40", *flags]
        started = []
        for rank in range(ranks):
            # As if each rank had a separate host.
            env = os.environ | {"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
                                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1",
                                "NCCL_HOSTID": f"rank{rank}", "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1",
                                "NCCL_SHM_DISABLE": "1", "NCCL_P2P_DISABLE": "1"}
            with open(self.args.results / f"{name}.{rank}.txt", "a") as log:
                started.append(subprocess.Popen([str(part) for part in command], env=env if ranks > 1 else None, stdout=log, stderr=log))
        return started

    def wait(self, processes):
        """Their exit statuses; a rank that is too slow is killed, and its status negative."""
        end = time.monotonic() + LONGEST_RUN
        statuses = []
        for process in processes:
            try:
                statuses.append(process.wait(max(0.1, end - time.monotonic())))
            except subprocess.TimeoutExpired:
                process.kill()
                statuses.append(process.wait())
        return statuses

    def run(self, name, ranks, *flags, steps=None):
        begin = time.monotonic()
        statuses = self.wait(self.start(name, ranks, flags, steps or self.args.steps))
        self.say(f"{name} ran", not any(statuses), f"{ranks} ranks, {time.monotonic() - begin:.1f} s, exit statuses {statuses}")
        return name

    def steps(self, name):
        path = self.args.results / name / "metrics.jsonl"
        if not path.exists():
            return []
        lines = path.read_text().split("\n")[:-1]
        return [record for record in map(json.loads, lines) if record["event"] == "step"]

    def wait_for_step(self, name, step, processes):
        end = time.monotonic() + LONGEST_RUN
        while len(self.steps(name)) < step and time.monotonic() < end and all(p.poll() is None for p in processes):
            time.sleep(0.005)

    def say(self, what, holds, detail=""):
        self.failed += not holds
        self.passed += bool(holds)
        print(f"{'passed' if holds else 'FAILED'}  {what}  {detail}", flush=True)

    def equal(self, what, name, other):
        files = [self.args.results / run / "model.safetensors" for run in (name, other)]
        same = all(f.exists() for f in files) and files[0].read_bytes() == files[1].read_bytes()
        losses = [[(s["loss"], s["skipped"], s["loss_scale"]) for s in self.steps(run)] for run in (name, other)]
        self.say(what, same and losses[0] == losses[1], f"weights {'equal' if same else 'differ'}, {len(losses[0])} steps")

    def close(self, what, name, other, tolerance):
        pairs = list(zip(self.steps(name), self.steps(other)))
        apart = max((abs(a["loss"] - b["loss"]) / b["loss"] for a, b in pairs), default=float("inf"))
        self.say(what, apart < tolerance, f"losses differ by {apart:.1e} at most, in {len(pairs)} steps")

    def killed(self, name, ranks, victims):
        processes = self.start(name, ranks, ["--save-every", "5"], self.args.steps)
        self.wait_for_step(name, 8, processes)
        for rank in victims:
            processes[rank].send_signal(signal.SIGKILL)
        begin = time.monotonic()
        statuses = self.wait(processes)
        return statuses, time.monotonic() - begin


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mezzo", required=True)
    parser.add_argument("--results", type=pathlib.Path, required=True, help="folder for the runs, which is emptied")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()
    begin = time.monotonic()
    shutil.rmtree(args.results, ignore_errors=True)
    runs = Runs(args)
    # Sums of three or more ranks are added in another order, and rounding grows from step to step.
    alone = runs.run("one_rank", 1)
    two = runs.run("two_ranks", 2)
    runs.close("two ranks follow one", two, alone, 2e-2)
    four = runs.run("four_ranks", 4, steps=min(60, args.steps))
    runs.close("four ranks follow one", four, alone, 2e-2)
    runs.equal("replayed steps have the bits of eager ones", two, runs.run("two_ranks_eager", 2, "--eager"))

    half = ("--precision", "fp16", "--loss-scale", "dynamic:67108864", "--gradient-compression", "fp16", "--grad-accumulation", "2")
    runs.equal("so do they with fp16, compression and accumulation", runs.run("fp16", 2, *half), runs.run("fp16_eager", 2, *half, "--eager"))
    runs.say("the first gradients overflowed", bool(runs.steps("fp16")) and runs.steps("fp16")[0]["skipped"])
    zero = ("--precision", "bf16", "--master-weights", "--zero-stage", "1")
    runs.equal("so do they with ZeRO-1 and master weights", runs.run("zero", 2, *zero), runs.run("zero_eager", 2, *zero, "--eager"))

    statuses, _ = runs.killed("resumed", 2, victims=(0, 1))
    runs.say("both ranks were killed", all(statuses), f"after {len(runs.steps('resumed'))} steps")
    runs.run("resumed", 2, "--save-every", "5", "--resume", "auto")
    runs.equal("a resumed run has the bits of a whole one", "resumed", two)

    statuses, seconds = runs.killed("lost", 2, victims=(1,))
    said = (args.results / "lost.0.txt").read_text()
    runs.say("a lost rank ends the run, which names it", statuses[0] > 0 and "lost rank 1" in said,
             f"exit status {statuses[0]} after {seconds:.0f} s: {said.strip().splitlines()[-1] if said.strip() else ''}")
    print(f"{runs.failed} failed, {runs.passed} passed in {time.monotonic() - begin:.1f}s")
    return runs.failed > 0


if __name__ == "__main__":
    sys.exit(main())
