"""`--window`: long texts in windows. Curves and predictions equal the results of a PyTorch loop that pools the outputs of
transformers' windows."""
import json
import random

import pytest
import torch
from support import MINILM, mezzo, random_bert, records
from test_training import BATCH, SEED, WORDS, largest_difference, no_decay_groups
from tiny_runs import run
from transformers import AutoModelForSequenceClassification, AutoTokenizer

LENGTH, STRIDE, STEPS = 12, 4, 30


@pytest.fixture(scope="module")
def rows():
    """The signs of a text's label are anywhere in it."""
    rng = random.Random(0)
    rows = []
    for _ in range(STEPS * BATCH):
        label = rng.randrange(3)
        words = rng.choices(WORDS, weights=[6 if i % 3 == label else 1 for i in range(len(WORDS))], k=rng.choice([3, 9, 20, 45]))
        rows.append((" ".join(words), label))
    return rows


@pytest.fixture(scope="module")
def files(rows, tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    random_bert(folder / "model", labels=3, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64)
    AutoTokenizer.from_pretrained(MINILM).save_pretrained(folder / "model")
    (folder / "train.json").write_text(json.dumps(rows))
    return folder


def logits_of(model, tokenizer, texts, how):
    inputs = tokenizer(texts, truncation=True, max_length=LENGTH, stride=STRIDE, return_overflowing_tokens=True, padding=True, return_tensors="pt")
    owners = inputs.pop("overflow_to_sample_mapping")
    windows = model(**inputs).logits
    pooled = [windows[owners == i] for i in range(len(texts))]
    return torch.stack([rows.mean(0) if how == "mean" else rows.amax(0) for rows in pooled]), len(owners)


def reference_losses(folder, rows, how, accumulation):
    model, tokenizer = AutoModelForSequenceClassification.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    optimizer = torch.optim.AdamW(no_decay_groups(model), lr=2e-3)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(SEED)).tolist()
    batches = [order[i:i + BATCH] for i in range(0, len(order), BATCH)]
    losses = []
    for first in range(0, len(batches), accumulation):
        group, total = batches[first:first + accumulation], 0.0
        for batch in group:
            logits, windows = logits_of(model, tokenizer, [rows[i][0] for i in batch], how)
            assert windows > len(batch)
            labels = torch.tensor([rows[i][1] for i in batch])
            loss = torch.nn.functional.cross_entropy(logits, labels, reduction="sum") / sum(map(len, group))
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
    return losses


def flags(files, output, how, *more):
    return ["train", "--model", files / "model", "--train", files / "train.json", "--dev-ratio", 0, "--output", output, "--dropout", 0, "--seed", SEED,
            "--batch-size", BATCH, "--max-length", LENGTH, "--window", how, "--stride", STRIDE, "--eval-every", 0, "--precision", "fp32", "--max-grad-norm", 1,
            "--learning-rate", 2e-3, *more]


def losses_of(output):
    return [record["loss"] for record in records(output, "step")]


@pytest.mark.parametrize("how, batching, accumulation", [("mean", "packed", 1), ("max", "packed", 3), ("max", "dynamic", 1), ("mean", "padded", 1), ("mean", "grouped", 1)])
def test_a_curve_is_that_of_pytorch(how, batching, accumulation, files, rows, tmp_path):
    done = mezzo(*flags(files, tmp_path / "out", how, "--batching", batching, "--grad-accumulation", accumulation))
    assert " read in windows, " in done.stderr + done.stdout
    losses = losses_of(tmp_path / "out")
    if batching == "grouped":  # whose batches have other texts
        assert len(losses) == STEPS and losses[-1] < losses[0]
        return
    expected = reference_losses(files / "model", rows, how, accumulation)
    assert accumulation > 1 or sum(expected[-5:]) < 0.9 * sum(expected[:5]), "a curve that goes somewhere"
    assert largest_difference(losses, expected) < 1e-4


def test_two_ranks_and_checkpointing_have_the_same_curve(files, tmp_path):
    mezzo(*flags(files, tmp_path / "one", "mean", "--max-steps", 8))
    mezzo(*flags(files, tmp_path / "again", "mean", "--max-steps", 8, "--gradient-checkpointing"))
    mezzo("launch", "--nproc", 2, "--", *flags(files, tmp_path / "two", "mean", "--max-steps", 8, "--balance", "tokens"), "--batch-size", BATCH // 2)
    assert losses_of(tmp_path / "one") == losses_of(tmp_path / "again")
    assert largest_difference(losses_of(tmp_path / "one"), losses_of(tmp_path / "two")) < 1e-5


@pytest.mark.parametrize("how", ["mean", "max"])
def test_predictions_are_those_of_pooled_windows(how, files, rows, tmp_path):
    some = rows[:60]
    (tmp_path / "some.json").write_text(json.dumps(some))
    given = flags(files, tmp_path / "out", how, "--max-steps", 12, "--save-every", 6, "--keep", 9, "--dev", tmp_path / "some.json")
    mezzo(*given)
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert (config["window_pooling"], config["window_stride"]) == (how, STRIDE)
    lines = mezzo("predict", "--model", tmp_path / "out", "--data", tmp_path / "some.json", "--precision", "fp32", "--logits").stdout.splitlines()
    model, tokenizer = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").eval(), AutoTokenizer.from_pretrained(tmp_path / "out")
    with torch.no_grad():
        expected, _ = logits_of(model, tokenizer, [text for text, _ in some], how)
    torch.testing.assert_close(torch.tensor([json.loads(line)["logits"] for line in lines]), expected, rtol=0, atol=1e-5)
    said = json.loads(mezzo("eval", "--model", tmp_path / "out", "--data", tmp_path / "some.json", "--precision", "fp32", "--json").stdout)
    assert said["loss"] == pytest.approx(torch.nn.functional.cross_entropy(expected, torch.tensor([label for _, label in some])).item(), rel=1e-5)
    mezzo(*flags(files, tmp_path / "resumed", how, "--max-steps", 12, "--dev", tmp_path / "some.json", "--resume", tmp_path / "out/checkpoints/step-6"))
    assert (tmp_path / "resumed/model.safetensors").read_bytes() == (tmp_path / "out/model.safetensors").read_bytes()
    done = mezzo("train", "--model", tmp_path / "out", "--train", tmp_path / "some.json", "--dev-ratio", 0, "--max-steps", 1, "--output", tmp_path / "cut")
    assert f"the model was trained to read long texts in windows; now long texts are truncated. --window {how} reads them in windows" in done.stderr + done.stdout
    assert "window_pooling" not in json.loads((tmp_path / "cut/config.json").read_text())


def test_a_dry_run_reads_windows(files, rows, tmp_path):
    """Of dev texts, too, whose windows together are more than the model has positions for."""
    long = [(" ".join(text for text, _ in rows[:40]), 0), *rows[:8]]
    (tmp_path / "long.json").write_text(json.dumps(long))
    for batching in ("packed", "dynamic"):
        done = mezzo(*flags(files, tmp_path / "out", "mean", "--dry-run", "--dev", tmp_path / "long.json", "--batch-size", "auto", "--batching", batching))
        assert "the whole program at most" in done.stdout


@pytest.mark.parametrize("more, message", [
    (["--window", "mean", "--stride", "10"], "windows that overlap by 10 tokens hold 10 of a text; pass a stride from 0 to 9"),
    (["--window", "median"], "--window 'median' is not known: none, mean, max"),
    (["--window", "none", "--stride", "3"], "--stride is for windows; pass --window mean or max as well"),
    (["--stride", "-1"], "--stride is -1, expected at least 0"),
])
def test_wrong_settings(more, message, files, tmp_path):
    done = run(["train", "--model", files / "model", "--train", files / "train.json", "--output", tmp_path / "out", "--max-length", LENGTH, *more])
    assert done.returncode in (1, 2) and message in done.stderr and done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_pairs_are_not_read_in_windows(files, tmp_path):
    (tmp_path / "pairs.json").write_text(json.dumps([dict(text="a", text_pair="b", label=i % 3) for i in range(9)]))
    done = run(["train", "--model", files / "model", "--train", tmp_path / "pairs.json", "--output", tmp_path / "out", "--window", "mean", "--dev-ratio", 0])
    assert done.returncode == 1 and "--window mean is for single texts with one label or several each; leave it out for pairs" in done.stderr
    mezzo(*flags(files, tmp_path / "out", "mean", "--max-steps", 1))
    done = run(["predict", "--model", tmp_path / "out", "--text", "a", "--text-pair", "b"])
    assert done.returncode == 1 and "the model reads single texts in windows, and these are pairs" in done.stderr
