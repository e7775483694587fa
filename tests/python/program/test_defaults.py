"""The settings of `mezzo train` that nobody gave: the recipe, the max length, and when it evaluates and saves."""
import json
import math
import random

import pytest
import torch
from support import MINILM, mezzo, random_bert, records
from test_training import BATCH, SEED, largest_difference, reference_losses, small, texts  # noqa: F401: fixtures
from tiny_runs import checkpoints_of, model_of, write_data
from transformers import AutoTokenizer, get_scheduler

LENGTHS = [10] * 150 + [30] * 47 + [90, 40, 30]  # words, each of which is a token


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model of 64 positions."""
    folder = tmp_path_factory.mktemp("model")
    bert, _ = random_bert(folder, labels=3, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=64, max_position_embeddings=64)
    bert.bert.save_pretrained(folder)
    AutoTokenizer.from_pretrained(MINILM).save_pretrained(folder)
    return folder


def write_lengths(path, lengths):
    rng = random.Random(0)
    rows = [{"text": " ".join(rng.choices(["war", "moon", "river"], k=count)), "label": i % 3} for i, count in enumerate(lengths)]
    path.write_text("\n".join(map(json.dumps, rows)) + "\n")
    return path


def train(*arguments):
    return mezzo("train", "--recipe", "default", "--precision", "fp32", *arguments)


def tiny(data, output, *more):
    return ["--model-config", data / "config.json", "--vocab", data / "vocab.txt", "--train", data / "train.jsonl", "--dev", data / "dev.jsonl",
            "--output", output, "--batch-size", 4, *more]


def settings(output):
    return json.loads((output / "run.json").read_text())["settings"]


def report_settings(output):
    """Given ones, and defaults."""
    report = (output / "report.html").read_text()
    return report[report.index("<h2>Settings"):].split(" default settings<", 1)


def evaluated(output):
    return [record["step"] for record in records(output, "eval") if not record.get("final")]


def test_the_recipe_is_recorded_and_trains_the_same_again(data, tmp_path):
    said = train(*tiny(data, tmp_path / "out")).stderr
    chosen = settings(tmp_path / "out")
    steps = 20 * 6  # few texts, so 20 epochs of 6 steps
    assert "max length 16, chosen by the data: 0 of 24 training texts are truncated (0.0 %)\n" in said
    for name, value in {"epochs": "20", "schedule": "linear", "learning-rate": "0.001", "warmup-ratio": "0.1", "max-grad-norm": "1",
                        "max-length": "16", "eval-every": "6", "save-every": "0", "optimizer": "adamw", "adam-beta1": "0.9"}.items():
        assert chosen[name] == value, name
    expected = get_scheduler("linear", torch.optim.SGD([torch.zeros(1)], lr=1e-3), math.ceil(0.1 * steps), steps)
    for record in records(tmp_path / "out", "step"):
        assert math.isclose(record["lr"], expected.get_last_lr()[0], rel_tol=1e-12, abs_tol=1e-20), record["step"]
        expected.optimizer.step()
        expected.step()
    assert evaluated(tmp_path / "out") == [*range(6, steps + 1, 6)], "once an epoch"
    mezzo("train", "--config", tmp_path / "out/run.json", "--output", tmp_path / "again")
    assert model_of(tmp_path / "again") == model_of(tmp_path / "out")
    assert settings(tmp_path / "again") == chosen | {"output": str(tmp_path / "again")}
    given, by_default = report_settings(tmp_path / "out")
    assert "max-length" in by_default and "learning-rate" in by_default and "max-length" not in given and "batch-size" in given


def test_other_choices(model, data, tmp_path):
    rows = write_lengths(tmp_path / "rows.jsonl", [5] * 40)
    for name, folder, more, rate in (("lora", model, ["--lora", 2], "0.0002"), ("minilm", MINILM, [], "0.0002"), ("tiny", model, [], "0.001")):
        train("--model", folder, "--train", rows, "--output", tmp_path / name, "--max-steps", 1, *more)
        assert settings(tmp_path / name)["learning-rate"] == rate, "5e-5 (768 / 384)^2 for MiniLM"
    train(*tiny(data, tmp_path / "constant", "--schedule", "constant", "--epochs", 1))
    assert settings(tmp_path / "constant")["warmup-ratio"] == "0"
    assert {record["lr"] for record in records(tmp_path / "constant", "step")} == {1e-3}
    train(*tiny(data, tmp_path / "plateau", "--schedule", "reduce_lr_on_plateau", "--epochs", 1))
    train(*tiny(data, tmp_path / "steps", "--warmup-steps", 4))
    assert [record["lr"] for record in records(tmp_path / "steps", "step")][:5] == pytest.approx([0, 2.5e-4, 5e-4, 7.5e-4, 1e-3])


def test_reference_recipe_and_what_wins_over_it(data, tmp_path):
    given = tiny(data, tmp_path / "out", "--recipe", "reference", "--max-length", 16)
    mezzo("train", *given)
    chosen = settings(tmp_path / "out")
    expected = {"epochs": "1", "schedule": "constant", "learning-rate": "3e-05", "warmup-ratio": "0", "max-grad-norm": "0", "eval-every": "50"}
    assert {name: chosen[name] for name in expected} == expected
    assert {record["lr"] for record in records(tmp_path / "out", "step")} == {3e-5}
    mezzo("train", "--config", tmp_path / "out/run.json", "--output", tmp_path / "again")
    assert model_of(tmp_path / "again") == model_of(tmp_path / "out")

    (tmp_path / "run.toml").write_text('recipe = "reference"\nepochs = 2\nmax_length = 16\nlearning_rate = "auto"\n')
    mezzo("train", "--config", tmp_path / "run.toml", "--overwrite", "--schedule", "linear", *tiny(data, tmp_path / "out"))
    chosen = settings(tmp_path / "out")
    assert {name: chosen[name] for name in expected} == expected | {"epochs": "2", "schedule": "linear", "learning-rate": "0.001"}
    done = mezzo("train", *tiny(data, tmp_path / "out", "--recipe", "referenc"), check=False)
    assert done.returncode == 2 and "--recipe" in done.stderr and "Did you mean 'reference'?" in done.stderr


def test_max_length_truncates_at_most_one_text_in_a_hundred(model, tmp_path):
    rows = write_lengths(tmp_path / "rows.jsonl", LENGTHS)  # 200 texts, 2 of them longer than 32 tokens with [CLS] and [SEP]
    said = train("--model", model, "--train", rows, "--dev-ratio", 0, "--max-steps", 1, "--output", tmp_path / "out").stderr
    assert "max length 32, chosen by the data: 2 of 200 training texts are truncated (1.0 %)\n" in said
    rows = write_lengths(tmp_path / "rows.jsonl", [*LENGTHS, 35])
    said = train("--model", model, "--train", rows, "--dev-ratio", 0, "--max-steps", 1, "--output", tmp_path / "more").stderr
    assert "max length 64, chosen by the data: 1 of 201 training texts are truncated (0.5 %)\n" in said
    assert settings(tmp_path / "more")["max-length"] == "64"
    rows = write_lengths(tmp_path / "rows.jsonl", [90] * 9)
    said = train("--model", model, "--train", rows, "--dev-ratio", 0, "--max-steps", 1, "--output", tmp_path / "most").stderr
    assert "max length 64, chosen by the data: 9 of 9 training texts are truncated (100.0 %)\n" in said, "the model's positions"
    assert json.loads((tmp_path / "most/tokenizer_config.json").read_text())["model_max_length"] == 64


def test_evaluations_and_checkpoints_by_epochs_and_shares(data, tmp_path):
    train(*tiny(data, tmp_path / "shares", "--eval-every", 0.25, "--save-every", "epoch", "--keep", 9, "--max-steps", 13))  # 6 steps an epoch
    assert evaluated(tmp_path / "shares") == [2, 4, 6, 8, 10, 12, 13]
    assert checkpoints_of(tmp_path / "shares") == [6, 12, 13]
    assert settings(tmp_path / "shares")["eval-every"] == "2" and settings(tmp_path / "shares")["save-every"] == "6"
    (tmp_path / "run.toml").write_text('eval-every = 0.5\nsave-every = "0.5"\n')
    train("--config", tmp_path / "run.toml", *tiny(data, tmp_path / "toml", "--epochs", 3))
    assert evaluated(tmp_path / "toml") == [3, 6, 9, 12, 15, 18]
    for value in "1.5", "epochs", "-1", "nan":
        done = mezzo("train", *tiny(data, tmp_path / "no", f"--eval-every={value}"), check=False)
        assert done.returncode == 2 and f"--eval-every is '{value}', expected a number of steps" in done.stderr


def test_patience_counts_the_evaluations_of_shares(data, tmp_path):
    train(*tiny(data, tmp_path / "out", "--eval-every", 0.5, "--patience", 2, "--learning-rate", 0))
    assert evaluated(tmp_path / "out") == [3, 6, 9], "none is better than the first"


@pytest.mark.parametrize("name, make", [
    ("adamw", torch.optim.AdamW), ("adam", torch.optim.Adam),
])  # fmt: skip
def test_adams_numbers_are_pytorchs(name, make, small, texts, tmp_path):  # noqa: F811
    def make_optimizer(groups, lr):
        return make([dict(group, weight_decay=0) for group in groups], lr=lr, betas=(0.6, 0.9), eps=1e-3)

    expected, _, _ = reference_losses(small, texts[1], lr=3e-3, make_optimizer=make_optimizer)
    usual, _, _ = reference_losses(small, texts[1], lr=3e-3, make_optimizer=lambda groups, lr: make([dict(g, weight_decay=0) for g in groups], lr=lr))
    mezzo("train", "--model", small, "--train", texts[0], "--dev-ratio", 0, "--output", tmp_path / "out", "--dropout", 0, "--seed", SEED, "--batch-size",
          BATCH, "--max-length", 24, "--eval-every", 0, "--precision", "fp32", "--learning-rate", 3e-3, "--weight-decay", 0, "--optimizer", name,
          "--adam-beta1", 0.6, "--adam-beta2", 0.9, "--adam-epsilon", 1e-3)  # fmt: skip
    losses = [record["loss"] for record in records(tmp_path / "out", "step")]
    assert largest_difference(losses, expected) < 1e-4 < largest_difference(usual, expected)
