"""Several labels a text, and numbers. Loss curves equal the curves of a plain PyTorch loop. transformers and scikit-learn give
the saved model mezzo's predictions and scores."""
import json
import random

import pytest
import torch
from sklearn import metrics
from support import MINILM, mezzo, random_bert, records
from test_training import BATCH, LENGTH, STEPS, WORDS, largest_difference, reference_losses, train
from tiny_runs import run
from transformers import AutoModelForSequenceClassification, AutoTokenizer

NAMES = ["first", "second", "third"]


def make_rows(several):
    """Texts in which each word belongs to one label. A model can learn the frequent labels of a text, or the first label's
    share."""
    rng = random.Random(0)
    rows = []
    for _ in range(STEPS * BATCH):
        favoured = [label for label in range(3) if rng.random() < 0.4]
        words = rng.choices(WORDS, weights=[15 if i % 3 in favoured else 1 for i in range(len(WORDS))], k=rng.randint(2, 16))
        share = sum(WORDS.index(word) % 3 == 0 for word in words) / len(words)
        rows.append((" ".join(words), [NAMES[label] for label in favoured] if several else round(3 * share - 1, 3)))
    return rows


@pytest.fixture(scope="module", params=["multi_label_classification", "regression"])
def task(request, tmp_path_factory):
    """Its name, the file of its rows, and the rows as PyTorch takes them."""
    several = request.param == "multi_label_classification"
    rows = make_rows(several)
    path = tmp_path_factory.mktemp("rows") / "train.json"
    path.write_text(json.dumps(rows))
    flags = [(text, [float(name in label) for name in NAMES] if several else label) for text, label in rows]
    return request.param, path, flags


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = {}
    for name, labels in (("multi_label_classification", 3), ("regression", 1)):
        folder = made[name] = tmp_path_factory.mktemp("model")
        model, _ = random_bert(folder, labels=labels, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64)
        if labels == 3:
            model.config.id2label = dict(enumerate(NAMES))
        model.config.problem_type = name
        model.save_pretrained(folder)
        AutoTokenizer.from_pretrained(MINILM).save_pretrained(folder)
    return made


def loss_sum(name):
    """As transformers takes it of a batch, which weighs texts and labels the same: times the texts."""
    def of(logits, labels):
        if name == "regression":
            return torch.nn.functional.mse_loss(logits.squeeze(1), labels) * len(labels)
        return torch.nn.functional.binary_cross_entropy_with_logits(logits, labels) * len(labels)

    return of


@pytest.mark.parametrize("accumulation", [1, 4])
def test_fifty_float32_steps_follow_pytorch(accumulation, task, folders, tmp_path):
    name, path, rows = task
    losses, _ = train(folders[name], (path, rows), tmp_path / "out", "--precision", "fp32", "--learning-rate", 2e-3, "--max-grad-norm", 1,
                      "--grad-accumulation", accumulation)
    expected, _, _ = reference_losses(folders[name], rows, lr=2e-3, max_norm=1.0, loss_sum=loss_sum(name), accumulation=accumulation)
    assert len(losses) == STEPS // accumulation + (STEPS % accumulation > 0)
    assert accumulation > 1 or sum(expected[-5:]) < 0.9 * sum(expected[:5]), "a curve that goes somewhere"
    assert largest_difference(losses, expected) < 1e-4


def test_float16_skips_and_scales_as_pytorch(task, folders, tmp_path):
    name, path, rows = task
    losses, steps = train(folders[name], (path, rows), tmp_path / "out", "--precision", "fp16", "--learning-rate", 1e-3, "--loss-scale", f"dynamic:{2**26}",
                          "--growth-interval", 10)
    expected, scales, _ = reference_losses(folders[name], rows, dtype=torch.float16, lr=1e-3, init_scale=2.0**26, growth_interval=10,
                                           loss_sum=loss_sum(name))
    assert [record["loss_scale"] for record in steps] == scales and len(set(scales)) > 2
    # float16 has eight times bfloat16's precision: a few 1e-3 over 50 steps that multiply differences.
    assert largest_difference(losses, expected) < 5e-3


@pytest.fixture(scope="module")
def trained(task, tmp_path_factory):
    """A fresh model's run, with dev and test."""
    name, path, rows = task
    folder = tmp_path_factory.mktemp("trained")
    whole = json.loads(path.read_text())
    for file, part in (("train", whole[:280]), ("dev", whole[280:340]), ("test", whole[340:])):
        (folder / f"{file}.json").write_text(json.dumps(part))
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]) + "\n")
    (folder / "config.json").write_text(json.dumps(dict(
        model_type="bert", vocab_size=40, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)))
    flags = ["train", "--task", name, "--model-config", folder / "config.json", "--vocab", folder / "vocab.txt", "--train",
             folder / "train.json", "--dev", folder / "dev.json", "--test", folder / "test.json", "--max-length", LENGTH, "--batch-size", BATCH,
             "--precision", "fp32", "--learning-rate", 1e-2, "--epochs", 6, "--eval-every", 20, "--save-every", 40, "--keep", 9]
    done = mezzo(*flags, "--output", folder / "out")
    return name, folder, flags, done


def logits_of(output, rows):
    model = AutoModelForSequenceClassification.from_pretrained(output).eval()
    inputs = AutoTokenizer.from_pretrained(output)([text for text, _ in rows], padding=True, return_tensors="pt")
    with torch.no_grad():
        return model, model(**inputs)


def test_what_is_saved_is_a_model_of_transformers_that_gives_the_same(trained, tmp_path):
    name, folder, _, _ = trained
    out, rows = folder / "out", json.loads((folder / "test.json").read_text())
    model, result = logits_of(out, rows)
    assert model.config.problem_type == name
    mezzo("predict", "--model", out, "--data", folder / "test.json", "--output", tmp_path / "p.jsonl", "--logits", "--precision", "fp32")
    mine = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    torch.testing.assert_close(torch.tensor([row["logits"] for row in mine]), result.logits, rtol=0, atol=1e-5)
    said = json.loads(mezzo("eval", "--model", out, "--data", folder / "test.json", "--precision", "fp32", "--json").stdout)
    if name == "regression":
        labels = torch.tensor([label for _, label in rows])
        assert [row["value"] for row in mine] == pytest.approx(result.logits.squeeze(1).tolist(), abs=1e-5)
        assert said["pearson"] > 0.5, "something was learnt"
    else:
        assert [model.config.id2label[i] for i in range(3)] == NAMES
        labels = torch.tensor([[float(name in label) for name in NAMES] for _, label in rows])
        probabilities = result.logits.double().sigmoid()
        for row, found in zip(mine, probabilities):
            assert row["labels"] == [NAMES[i] for i in range(3) if found[i] >= 0.5]
            assert list(row["scores"].values()) == pytest.approx(found.tolist(), abs=1e-5)
        predicted = [[name in row["labels"] for name in NAMES] for row in mine]
        assert said["micro_f1"] == pytest.approx(metrics.f1_score(labels, predicted, average="micro"))
        assert said["micro_f1"] > 0.6, "something was learnt"
    with torch.no_grad():
        expected = model.loss_function(labels=labels, pooled_logits=result.logits, config=model.config).item()
    assert said["loss"] == pytest.approx(expected, rel=1e-5)


def test_one_half_is_the_threshold_of_the_most_f1_on_dev(trained):
    name, folder, _, done = trained
    if name == "regression":
        return
    rows = json.loads((folder / "dev.json").read_text())
    _, result = logits_of(folder / "out", rows)
    is_label = torch.tensor([[name in label for name in NAMES] for _, label in rows])
    probabilities = result.logits.double().sigmoid()
    def f1(least):
        return metrics.f1_score(is_label, probabilities >= least, average=None, zero_division=0)

    best = [max(f1(torch.full((3,), p, dtype=torch.float64))[label] for p in probabilities[:, label].tolist()) for label in range(3)]
    assert f1(0.5) == pytest.approx(best)
    assert "thresholds from " in done.stderr and "thresholds from 0.5 to 0.5" not in done.stderr
    rows = json.loads((folder / "test.json").read_text())
    _, result = logits_of(folder / "out", rows)
    is_label = torch.tensor([[name in label for name in NAMES] for _, label in rows])
    final = [record for record in records(folder / "out", "eval") if record.get("final")]
    assert [record["split"] for record in final] == ["test"]
    assert final[0]["micro_f1"] == pytest.approx(metrics.f1_score(is_label, result.logits >= 0, average="micro"))
    assert "micro avg" in done.stdout and "samples avg" in done.stdout


def test_a_run_resumes_to_the_bit(trained, tmp_path):
    _, folder, flags, _ = trained
    mezzo(*flags, "--output", tmp_path / "again", "--resume", folder / "out/checkpoints/step-80")
    for name in ("model.safetensors", "config.json"):
        assert (tmp_path / "again" / name).read_bytes() == (folder / "out" / name).read_bytes()


def test_a_trained_head_keeps_its_task(trained, tmp_path):
    name, folder, flags, _ = trained
    begin, end = flags.index("--model-config"), flags.index("--train")
    data = [*flags[end:], "--max-steps", 2, "--model", folder / "out"]
    mezzo("train", *data, "--output", tmp_path / "more")
    assert json.loads((tmp_path / "more/config.json").read_text())["problem_type"] == name
    done = run(["train", "--task", "single_label_classification", *data, "--output", tmp_path / "other"])
    assert done.returncode == 1 and not (tmp_path / "other").exists()
    assert f"is trained for {name}; leave --task out, or pass --new-head" in done.stderr
    assert flags[begin]  # of a fresh model


@pytest.mark.parametrize("rows, more, message", [
    ([["a", ["x"]], ["b", ["y"]]], [], "rows.json:1: row 1: the label is an array, not a string, a number or a boolean; several labels a text need"
     " --task multi_label_classification"),
    ([["a", 0.5], ["b", 1.5]], [], "rows.json: the labels are numbers such as 1.5, 2 different ones. Pass --task regression to predict numbers, or"),
    ([["a", 0.5], ["b", 1.5]], ["--task", "regression", "--labels", "0.5,1.5"], "--labels names classes, and regression has none"),
    ([["a", 1], ["b", 2]], ["--labels", "0,1"], "rows.json:1: row 2: unknown label '2'. The labels are: 0, 1. Add it to --labels, or correct the row."),
    ([["a", 1], ["b", "NaN"]], [], "rows.json:1: row 2: the label 'NaN' is a missing value"),
    ([["a", 1], ["b", 1.0]], [], "all texts have the same label, '1'"),
    ([["a", 1], ["b", 2]], ["--labels", "1,,2"], "--labels '1,,2' has an empty name; remove a comma"),
    ([["a", ["x"]], ["b", ["x"]]], ["--task", "multi_label_classification"], "all texts have the same label, 'x'"),
    ([["a", []], ["b", []]], ["--task", "multi_label_classification"], "all texts have the same label, none"),
    ([["a", 2], ["b", 2.0]], ["--task", "regression"], "all texts have the same label, 2"),
    ([["a", 1e39], ["b", 2.0]], ["--task", "regression"], "rows.json:1: row 1: 1e+39 is beyond what float32 holds"),
    ([["a", "x"], ["b", "y"]], ["--task", "regression"], "rows.json:1: row 1: the label is a string, not a number"),
    ([["a", 1], ["b", 2.0]], ["--task", "regression", "--metric", "accuracy"], "mean_squared_error"),
    ([["a", 1], ["b", 2.0]], ["--task", "regresion"], "--task"),
])
def test_what_cannot_be_meant_is_refused(rows, more, message, trained, tmp_path):
    _, folder, _, _ = trained
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    done = run(["train", "--model-config", folder / "config.json", "--vocab", folder / "vocab.txt", "--train", tmp_path / "rows.json", "--dev", folder / "dev.json",
                "--output", tmp_path / "out", *more])
    assert done.returncode in (1, 2) and message in done.stderr, done.stderr
    assert done.stderr.count("\n") == 1 and not (tmp_path / "out").exists()
