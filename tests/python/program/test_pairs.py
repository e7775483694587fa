"""Pairs of texts, `text` and `text_pair`, through the whole program: training, evaluation, predictions, token ids; against
transformers."""
import csv
import json
import random

import pytest
import torch
from sklearn.metrics import accuracy_score
from support import MINILM, mezzo, random_bert
from test_training import BATCH, LENGTH, STEPS, WORDS, largest_difference, reference_losses, train
from transformers import AutoTokenizer, BertForSequenceClassification


@pytest.fixture(scope="module")
def rows():
    """Pairs whose label is whether most words of the second text are in the first: no text alone tells. Some are longer
    than the model reads, by the one text, the other, or both."""
    rng = random.Random(0)
    result = []
    for _ in range(STEPS * BATCH):
        label = rng.randrange(2)
        first = rng.sample(WORDS, 6) * rng.choice([1, 1, 1, 3])
        outside = [word for word in WORDS if word not in first]
        second = rng.choices(first if label else outside, k=rng.choice([4, 4, 4, 16]))
        result.append((" ".join(first), " ".join(second), label))
    return result


def write(path, rows):
    keys = ["text", "text_pair", "label"]
    if path.suffix == ".csv":
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([keys, *rows])
    else:
        path.write_text("".join(json.dumps(dict(zip(keys, row))) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    folder = tmp_path_factory.mktemp("small")
    random_bert(folder, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64)
    AutoTokenizer.from_pretrained(MINILM).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def run(small, rows, tmp_path_factory):
    """A trained model, its training data, and the losses of its steps."""
    folder = tmp_path_factory.mktemp("run")
    data = write(folder / "train.jsonl", rows)
    losses, _ = train(small, (data, rows), folder / "out", "--precision", "fp32", "--learning-rate", 1e-3)
    return folder / "out", data, losses


def test_fifty_steps_follow_pytorch(run, small, rows):
    expected, _, _ = reference_losses(small, rows, lr=1e-3)
    assert largest_difference(expected, expected[:1] * STEPS) > 0.05, "a curve that goes somewhere"
    assert largest_difference(run[2], expected) < 1e-4


def test_predictions_and_evaluation_are_those_of_transformers(run, rows, tmp_path):
    output, data, _ = run
    texts, pairs, labels = map(list, zip(*rows))
    tokenizer, model = AutoTokenizer.from_pretrained(output), BertForSequenceClassification.from_pretrained(output).eval()
    with torch.no_grad():
        inputs = tokenizer(texts, pairs, truncation=True, max_length=LENGTH, padding=True, return_tensors="pt")
        expected = model(**inputs).logits
        alone = model(**tokenizer(texts, truncation=True, max_length=LENGTH, padding=True, return_tensors="pt")).logits
    assert (expected - alone).abs().max() > 1e-2, "the second text matters"

    for file in data, write(tmp_path / "rows.csv", rows):
        done = mezzo("predict", "--model", output, "--data", file, "--logits", "--precision", "fp32")
        mine = [json.loads(line) for line in done.stdout.splitlines()]
        assert list(mine[0]) == ["text", "text_pair", "label", "score", "scores", "logits", "columns"]
        assert [(row["text"], row["text_pair"]) for row in mine] == list(zip(texts, pairs))
        torch.testing.assert_close(torch.tensor([row["logits"] for row in mine]), expected, rtol=0, atol=1e-5)
    evaluation = json.loads(mezzo("eval", "--model", output, "--data", data, "--json", "--precision", "fp32").stdout)
    assert evaluation["accuracy"] == pytest.approx(accuracy_score(labels, expected.argmax(1)))
    assert evaluation["loss"] == pytest.approx(torch.nn.functional.cross_entropy(expected, torch.tensor(labels)).item(), abs=1e-5)

    one = json.loads(mezzo("predict", "--model", output, "--text", texts[0], "--text-pair", pairs[0], "--logits", "--precision",
                           "fp32").stdout)
    torch.testing.assert_close(torch.tensor(one["logits"]), expected[0], rtol=0, atol=1e-5)


@pytest.mark.parametrize("max_length", [0, 3, 4, 9, 10, 24])
def test_token_ids_are_those_of_transformers(small, rows, tmp_path, max_length):
    rows = rows[:50] + [("", "", 0), ("a", "", 0), ("", "a b", 0)]
    data = write(tmp_path / "rows.jsonl", rows)
    tokenizer = AutoTokenizer.from_pretrained(small)
    truncation = dict(truncation="longest_first", max_length=max_length) if max_length else {}
    texts, pairs, _ = map(list, zip(*rows))
    expected = tokenizer(texts, pairs, **truncation)  # of many at once, where an empty second text is one, too
    done = mezzo("tokenize", "--model", small, "--data", data, "--max-length", max_length)
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        dict(input_ids=ids, token_type_ids=types) for ids, types in zip(expected["input_ids"], expected["token_type_ids"])]


def test_single_texts_and_pairs_do_not_mix(small, rows, tmp_path):
    pairs, single = write(tmp_path / "pairs.jsonl", rows[:40]), tmp_path / "single.jsonl"
    single.write_text("".join(json.dumps(dict(text=row[0], label=row[2])) + "\n" for row in rows[:40]))
    for train_file, dev in (pairs, single), (single, pairs):
        done = mezzo("train", "--model", small, "--train", train_file, "--dev", dev, "--output", tmp_path / "out", check=False)
        kinds = ("single texts", "pairs") if dev == single else ("pairs of texts", "single texts")
        assert done.returncode == 1 and done.stderr == (
            f"mezzo train: {dev}: has {kinds[0]}, but the training file, {train_file}, has {kinds[1]}; give both files a "
            "text_pair, or neither\n")
        assert not (tmp_path / "out").exists()
    done = mezzo("predict", "--model", small, "--text-pair", "b", check=False)
    assert done.returncode == 2 and "--text-pair needs --text" in done.stderr and done.stderr.count("\n") == 1
