"""`--freeze`: frozen parameters keep their bits. The others learn as in a PyTorch loop without gradients of the frozen
ones."""
import json
import re

import pytest
import torch
from safetensors.torch import load_file
from support import mezzo
from test_training import largest_difference, no_decay_groups, reference_losses, small, texts, train  # noqa: F401: fixtures
from tiny_runs import run
from transformers import BertForSequenceClassification


def is_frozen(name, what):
    if what == "encoder":
        return name.startswith("bert.")
    layers = 0 if what == "embeddings" else int(what)
    return name.startswith("bert.embeddings.") or any(name.startswith(f"bert.encoder.layer.{i}.") for i in range(layers))


def groups_for(what):
    def groups(model):
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(not is_frozen(name, what))
        return [group | dict(params=[p for p in group["params"] if p.requires_grad]) for group in no_decay_groups(model)]

    return groups


def frozen_of(folder, what):
    return {name: tensor for name, tensor in load_file(folder / "model.safetensors").items() if is_frozen(name, what)}


@pytest.mark.parametrize("what", ["embeddings", "1", "2", "encoder"])
def test_curves_and_weights(what, small, texts, tmp_path):  # noqa: F811
    losses, _ = train(small, texts, tmp_path / "out", "--precision", "fp32", "--learning-rate", 5e-3, "--max-grad-norm", 1, "--freeze", what)
    expected, _, _ = reference_losses(small, texts[1], lr=5e-3, max_norm=1.0, make_groups=groups_for(what))
    assert what == "encoder" or sum(expected[-5:]) < 0.95 * sum(expected[:5]), "a curve that goes somewhere"
    assert largest_difference(losses, expected) < 2e-4
    before, after = frozen_of(small, what), frozen_of(tmp_path / "out", what)
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
    moved = load_file(tmp_path / "out/model.safetensors")
    assert any(not torch.equal(tensor, moved[name]) for name, tensor in load_file(small / "model.safetensors").items() if not is_frozen(name, what))
    BertForSequenceClassification.from_pretrained(tmp_path / "out")


@pytest.mark.parametrize("more", [
    ["--precision", "bf16"],
    ["--precision", "fp16", "--master-weights"],
    ["--precision", "bf16", "--gradient-checkpointing"],
    ["--precision", "fp32", "--layer-lr-decay", "0.9", "--grad-accumulation", "2"],
], ids=" ".join)
def test_frozen_weights_keep_their_bits_and_runs_resume(more, small, texts, tmp_path):  # noqa: F811
    more = [*more, "--freeze", 1, "--max-steps", 8, "--save-every", 4, "--keep", 9, "--learning-rate", 1e-2]
    train(small, texts, tmp_path / "out", *more)
    before, after = frozen_of(small, "1"), frozen_of(tmp_path / "out", "1")
    assert all(torch.equal(before[name], after[name]) for name in before)
    train(small, texts, tmp_path / "again", *more, "--resume", tmp_path / "out/checkpoints/step-4")
    assert (tmp_path / "again/model.safetensors").read_bytes() == (tmp_path / "out/model.safetensors").read_bytes()


@pytest.mark.parametrize("more", [[], ["--zero-stage", "1"], ["--master-weights", "--precision", "bf16"]], ids=" ".join)
def test_two_ranks(more, small, texts, tmp_path):  # noqa: F811
    given = ["train", "--model", small, "--train", texts[0], "--dev-ratio", 0, "--max-length", 24, "--eval-every", 0, "--precision", "fp32", "--dropout", 0,
             "--learning-rate", 1e-2, "--freeze", "1", "--max-steps", 5, *more]
    mezzo(*given, "--batch-size", 8, "--output", tmp_path / "one")
    mezzo("launch", "--nproc", 2, "--", *given, "--batch-size", 4, "--output", tmp_path / "two")
    one, two = load_file(tmp_path / "one/model.safetensors"), load_file(tmp_path / "two/model.safetensors")
    for name, tensor in one.items():
        # Sums of two halves are rounded otherwise, to which Adam's first steps are sensitive where gradients are small.
        assert torch.equal(tensor, two[name]) if is_frozen(name, "1") else (tensor - two[name]).norm() < 2e-2 * tensor.norm() + 1e-2, name


def test_a_dry_run_needs_less(small, texts, tmp_path):  # noqa: F811
    def said(*more):
        lines = mezzo("train", "--model", small, "--train", texts[0], "--dry-run", "--max-length", 24, *more).stdout.splitlines()
        return {found[1].strip(): float(found[2]) for line in lines if (found := re.match(r"(.{34}) *([0-9.]+) GB", line))}

    everything, head = said(), said("--freeze", "encoder")
    assert head["gradients"] < everything["gradients"] and head["optimizer state"] < everything["optimizer state"]
    assert head["activations of the largest batch"] < 0.9 * everything["activations of the largest batch"]


@pytest.mark.parametrize("what, message", [
    ("3", "--freeze is 3, the model has 2 layers"), ("-1", "--freeze is '-1', expected embeddings, encoder, or a number of layers"),
    ("all", "--freeze is 'all', expected embeddings, encoder, or a number of layers"), ("99999999999", "--freeze is '99999999999'"),
])
def test_what_cannot_be_frozen(what, message, small, texts, tmp_path):  # noqa: F811
    done = run(["train", "--model", small, "--train", texts[0], "--output", tmp_path / "out", f"--freeze={what}"])
    assert done.returncode in (1, 2) and message in done.stderr and done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_another_freeze_is_another_run(small, texts, tmp_path):  # noqa: F811
    more = ["--precision", "fp32", "--max-steps", 4, "--save-every", 2, "--keep", 9]
    train(small, texts, tmp_path / "out", *more, "--freeze", "1")
    done = run(["train", "--model", small, "--train", texts[0], "--dev-ratio", 0, "--output", tmp_path / "again", "--dropout", 0, "--seed", 7, "--batch-size", 8,
                "--max-length", 24, "--eval-every", 0, *more, "--freeze", "2", "--resume", tmp_path / "out/checkpoints/step-2"])
    assert done.returncode == 1 and "freeze was '1', is now '2'" in done.stderr
    assert json.loads((tmp_path / "out/run.json").read_text())["settings"]["freeze"] == "1"
