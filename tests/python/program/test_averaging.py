"""`--ema-decay`: the evaluated and saved model is the moving average of the weights, as in torch.optim.swa_utils."""
import itertools
import json

import pytest
import torch
from safetensors.torch import load_file
from support import mezzo, records
from test_training import largest_difference, reference_losses, small, texts, train  # noqa: F401: fixtures
from tiny_runs import run
from torch.optim.swa_utils import get_ema_multi_avg_fn

DECAY = 0.99


def averaging_adamw(*averages):
    """AdamW that keeps averages of all its parameters by their ids: with a decay that warms up, and with one that does not."""
    def make(groups, lr):
        parameters = [p for group in groups for p in group["params"]]
        for kept in averages:
            kept.update({id(p): p.detach().clone() for p in parameters})
        optimizer = torch.optim.AdamW(groups, lr=lr, fused=True)
        steps = itertools.count(1)

        def update(*_):
            if getattr(optimizer, "found_inf", 0):  # of a GradScaler, which leaves the skipping to a fused optimizer
                return
            step = next(steps)
            for kept, decay in zip(averages, (min(DECAY, (1 + step) / (10 + step)), DECAY)):
                get_ema_multi_avg_fn(decay)([kept[id(p)] for p in parameters], [p.detach() for p in parameters], None)

        optimizer.register_step_post_hook(update)
        return optimizer

    return make


@pytest.mark.parametrize("flags, dtype, rounding", [
    # 10 times the distance of two float32 runs on a Zen 5: 1e-5 of that to the last weights.
    (["--precision", "fp32"], None, 1e-4),
    # The first steps overflow, in PyTorch's run and in mezzo's. A skipped step is not a part of the average, nor of its count.
    # The two round fp16 in different places: 5 times the distance on a Zen 5. Counting the skipped steps makes it 0.46.
    (["--precision", "fp16", "--loss-scale", f"dynamic:{2.0**40}"], torch.float16, 0.1),
])  # fmt: skip
def test_keeps_pytorchs_average(flags, dtype, rounding, small, texts, tmp_path):  # noqa: F811
    flags = [*flags, "--learning-rate", 3e-3, "--max-grad-norm", 1]
    losses, steps = train(small, texts, tmp_path / "out", *flags, "--ema-decay", DECAY)
    plain, _ = train(small, texts, tmp_path / "plain", *flags)
    assert losses == plain, "what is trained is not the average"
    averages, cold = {}, {}
    scale = dict(init_scale=2.0**40) if dtype else {}
    expected, _, model = reference_losses(small, texts[1], dtype=dtype, lr=3e-3, max_norm=1.0,
                                          make_optimizer=averaging_adamw(averages, cold), **scale)  # fmt: skip
    skipped = sum(record["skipped"] for record in steps)
    assert largest_difference(losses, expected) < 0.1 * rounding and (skipped > 5) == (dtype is not None)
    kept = load_file(tmp_path / "out/model.safetensors")

    def distance(theirs):
        # Softmax cancels the keys' biases: their gradients are rounding noise, which Adam makes steps of full size.
        return sum((theirs(name, p) - averages[id(p)]).norm() ** 2 for name, p in model.named_parameters() if "key.bias" not in name) ** 0.5

    mine = distance(lambda name, p: kept[name])
    assert mine < rounding * distance(lambda name, p: p.detach()), "the average, and not the last weights"
    assert mine < rounding * distance(lambda name, p: cold[id(p)]), "the decay warms up"


def test_a_short_run_keeps_what_it_has_learned(small, texts, tmp_path):  # noqa: F811
    """The decay of README's example, which keeps nearly all of the first weights in so few steps, if it does not warm up."""
    flags = ["--precision", "fp32", "--learning-rate", 1e-3, "--max-steps", 40, "--dev", texts[0], "--eval-every", 0]
    losses = {}
    for name, more in ("plain", []), ("averaged", ["--ema-decay", 0.999]):
        train(small, texts, tmp_path / name, *flags, *more)
        losses[name] = next(e["loss"] for e in records(tmp_path / name, "eval") if e.get("final"))
    untrained = json.loads(mezzo("eval", "--model", small, "--data", texts[0], "--json").stdout)["loss"]
    assert losses["averaged"] - losses["plain"] < 0.5 * (untrained - losses["plain"]), (losses, untrained)


WAYS = [
    ["--precision", "fp32"],
    ["--precision", "bf16", "--grad-accumulation", "2"],
    ["--precision", "fp16", "--master-weights", "--loss-scale", "dynamic:1e9"],
]


@pytest.mark.parametrize("way", WAYS, ids=" ".join)
def test_evaluates_what_it_keeps_and_resumes_to_the_bit(way, small, texts, tmp_path):  # noqa: F811
    dev = tmp_path / "dev.json"
    dev.write_text(json.dumps(texts[1][:40]))
    flags = [*way, "--ema-decay", DECAY, "--dev", dev, "--eval-every", 3, "--save-every", 5, "--keep", 9, "--max-steps", 14,
             "--learning-rate", 1e-2]  # fmt: skip
    train(small, texts, tmp_path / "out", *flags)
    evals = records(tmp_path / "out", "eval")
    best = max((e for e in evals if not e.get("final")), key=lambda e: (e["accuracy"], -e["loss"]))
    assert [e["loss"] for e in evals if e.get("final")] == [best["loss"]]
    precision = way[1]
    alone = json.loads(mezzo("eval", "--model", tmp_path / "out", "--data", dev, "--precision", precision, "--json").stdout)
    assert abs(alone["loss"] - best["loss"]) < (1e-5 if precision == "fp32" else 0.02)
    for step in 5, 10:
        train(small, texts, tmp_path / "again", *flags, "--resume", tmp_path / f"out/checkpoints/step-{step}")
        for name in "model.safetensors", *(f"checkpoints/step-14/{part}.safetensors" for part in ("weights", "optimizer", "average")):
            assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "out" / name).read_bytes(), name


@pytest.mark.parametrize("way", [["--precision", "fp32", "--weight-decay", 0], *WAYS[1:2], ["--precision", "fp16", "--loss-scale", "dynamic:1e9"]],
                         ids=lambda way: " ".join(map(str, way)))  # fmt: skip
def test_embeddings_whose_updates_wait_are_those_of_whole_updates(way, small, texts, tmp_path):  # noqa: F811
    """Averages read all embeddings at each step, so with them no update waits."""
    flags = [*way, "--dev", texts[0], "--eval-every", 7, "--save-every", 5, "--keep", 9, "--max-steps", 40, "--learning-rate", 1e-2]
    train(small, texts, tmp_path / "waiting", *flags)
    train(small, texts, tmp_path / "whole", *flags, "--ema-decay", DECAY)
    for step in 5, 40:
        for part in "weights", "optimizer":
            name = f"checkpoints/step-{step}/{part}.safetensors"
            assert (tmp_path / "waiting" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name


@pytest.mark.parametrize("more", [[], ["--zero-stage", 1]], ids=["whole", "sharded"])
def test_two_ranks_keep_the_same_average(more, small, texts, tmp_path):  # noqa: F811
    flags = ["train", "--model", small, "--train", texts[0], "--dev-ratio", 0, "--dropout", 0, "--seed", 7, "--max-length", 24,
             "--eval-every", 0, "--precision", "fp32", "--learning-rate", 1e-2, "--ema-decay", DECAY, "--max-steps", 10]  # fmt: skip
    mezzo(*flags, "--batch-size", 8, "--output", tmp_path / "one")
    mezzo("launch", "--nproc", 2, "--", *flags, "--batch-size", 4, "--output", tmp_path / "two", *more)
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    # Adam divides by sqrt(v): if a gradient is rounding noise, a weight may go either way.
    assert sum((one[name] - two[name]).norm() ** 2 for name in one) < 1e-4 * sum(one[name].norm() ** 2 for name in one)


def test_refuses_what_has_no_average(small, texts, tmp_path):  # noqa: F811
    flags = ["train", "--model", small, "--train", texts[0], "--output", tmp_path / "out"]
    for more, message in [
        (["--ema-decay", 1], "--ema-decay is 1, expected a number from 0 to below 1"),
        (["--ema-decay", 0.9, "--zero-stage", 1, "--master-weights", "--precision", "bf16"], "leave one of the three out"),
    ]:
        done = run([*flags, *more])
        assert done.returncode == 2 and message in done.stderr and not (tmp_path / "out").exists()
