"""`mezzo train` on a GPU: the curve of the CPU, the curve of transformers there, and the same bits after a resume. Without a GPU
these tests are skipped, and the same tests run on the CPU. Its plainest kernels, which round otherwise, replace the other
device."""
import json
import shutil

import pytest
import torch
from devices import DEVICES
from families import FAMILIES
from support import random_bert, records
from test_family_training import NAMES, write_tokenizer
from test_training import BATCH, LENGTH, SEED, STEPS, WORDS, largest_difference, reference_losses, root_mean_square_difference, texts  # noqa: F401
from tiny_runs import model_of, trained
from transformers import BertTokenizer

LEARNING_RATE = 3e-3
PRECISIONS = ["fp32", "bf16", "fp16"]
DTYPES = dict(fp32=None, bf16=torch.bfloat16, fp16=torch.float16)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A BERT with heads of 8 columns, for which there are kernels of mezzo, and flash attention where texts are long."""
    folder = tmp_path_factory.mktemp("small")
    vocab = folder / "vocab.txt"
    vocab.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]) + "\n")
    random_bert(folder, labels=3, vocab_size=32, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
                intermediate_size=64, max_position_embeddings=256)
    BertTokenizer(vocab=str(vocab)).save_pretrained(folder)
    return folder


def train(folder, texts, output, device, precision, *flags, capability=None):  # noqa: F811
    """The records of its steps."""
    trained(["train", "--model", folder, "--train", texts[0], "--dev-ratio", 0, "--output", output, "--seed", SEED, "--batch-size",
             BATCH, "--max-length", LENGTH, "--eval-every", 0, "--learning-rate", LEARNING_RATE, "--device", device, "--precision", precision,
             *flags], **({"MEZZO_CPU_CAPABILITY": capability} if capability else {}))
    return records(output, "step")


def losses_of(steps):
    return [record["loss"] for record in steps]


# A loss near 1 is rounded by 1e-7 in float32, which 50 steps multiply; in the half types, before runs drift apart, by no more than
# a logit near 1. Other masks make it differ by 4e-2.
@pytest.mark.parametrize("precision, steps, tolerance", [("fp32", STEPS, 1e-4), ("bf16", 10, 2**-7), ("fp16", 10, 2**-10)])
@pytest.mark.parametrize("device", DEVICES)
def test_a_device_draws_the_masks_of_the_cpu_and_follows_its_curve(small, texts, tmp_path, device, precision, steps, tolerance):  # noqa: F811
    flags = ["--dropout", 0.2]
    here = losses_of(train(small, texts, tmp_path / "cpu", "cpu", precision, *flags))
    there = losses_of(train(small, texts, tmp_path / "device", device, precision, *flags, capability="baseline"))
    assert len(here) == STEPS and sum(here[-10:]) < 0.97 * sum(here[:10]), "a curve that goes somewhere"
    assert largest_difference(there[:steps], here[:steps]) < tolerance
    other = losses_of(train(small, texts, tmp_path / "other", "cpu", precision))  # with dropout 0.1
    assert largest_difference(other[:steps], here[:steps]) > 2 * tolerance, "other masks, another curve"


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("device", DEVICES)
def test_fifty_steps_on_a_device_follow_transformers_there(small, texts, tmp_path, device, precision):  # noqa: F811
    dtype, scaling = DTYPES[precision], dict(init_scale=2.0**26, growth_interval=10)
    flags = ["--loss-scale", f"dynamic:{2**26}", "--growth-interval", 10] if precision == "fp16" else []
    steps = train(small, texts, tmp_path / "out", device, precision, "--dropout", 0, *flags)
    losses = losses_of(steps)
    reference = dict(lr=LEARNING_RATE, device=device)
    exact, _, _ = reference_losses(small, texts[1], **reference)
    assert len(losses) == STEPS and exact[-1] < 0.95 * exact[0]
    if precision == "fp32":
        assert largest_difference(losses, exact) < 1e-4
    elif precision == "bf16":
        theirs = [reference_losses(small, texts[1], dtype=dtype, attention=a, **reference)[0] for a in ("sdpa", "eager")]
        spread = max(root_mean_square_difference(exact, curve) for curve in theirs)
        assert 0 < root_mean_square_difference(losses, exact) <= 2 * spread, "draws of one spread, and the luck of the draw"
    else:
        expected, scales, _ = reference_losses(small, texts[1], dtype=dtype, **reference, **scaling)
        assert [record["loss_scale"] for record in steps] == scales
        assert any(record["skipped"] for record in steps) and not all(record["skipped"] for record in steps)
        assert largest_difference(losses, expected) < 5e-3, "eight times bfloat16's precision, over 50 steps"


@pytest.mark.parametrize("length", [16, 200], ids=["short", "long"])  # long ones take flash attention in half precision
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("device", DEVICES)
def test_a_run_on_a_device_repeats_and_resumes_to_the_bit(small, texts, tmp_path, device, precision, length):  # noqa: F811
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps(dict(text=" ".join([text] * (length // 16)), label=f"LABEL_{label}")) + "\n" for text, label in texts[1][:96]))
    flags = ["--dropout", 0.1, "--max-steps", 12, "--save-every", 5, "--keep", 9, "--max-length", length]
    whole, again = tmp_path / "whole", tmp_path / "again"
    steps = train(small, (rows, None), whole, device, precision, *flags)
    assert losses_of(train(small, (rows, None), again, device, precision, *flags)) == losses_of(steps)
    assert model_of(again) == model_of(whole)
    resumed = tmp_path / "resumed"
    shutil.copytree(whole, resumed)
    last = train(small, (rows, None), resumed, device, precision, *flags, "--overwrite", "--resume", resumed / "checkpoints/step-5")
    assert losses_of(last[-7:]) == losses_of(steps[5:])
    assert model_of(resumed) == model_of(whole)


# Other tests cover these ways to train on the CPU.
WAYS = [("cpu", [])] + [pytest.param("cuda", flags, marks=DEVICES[1].marks) for flags in (
    [], ["--batching", "padded", "--grad-accumulation", 2], ["--lora", 4], ["--gradient-checkpointing"])]


@pytest.mark.parametrize("device, flags", WAYS)
@pytest.mark.parametrize("name", NAMES)
def test_every_family_follows_its_curve_on_the_cpu(name, device, flags, texts, tmp_path):  # noqa: F811
    folder = tmp_path / "model"
    model = FAMILIES[name].model(folder, initializer_range=0.05, num_hidden_layers=2)
    write_tokenizer(folder, model.config.pad_token_id)
    flags = [*flags, "--max-steps", 8]
    here = losses_of(train(folder, texts, tmp_path / "cpu", "cpu", "fp32", *flags))
    there = losses_of(train(folder, texts, tmp_path / "device", device, "fp32", *flags, capability="baseline"))
    assert len(here) == 8 and largest_difference(there, here) < 1e-4  # of sums in another order, as above
