"""A trained classifier takes other labels: `--new-head` leaves its head behind and keeps the rest."""
import json
import shutil

import pytest
from safetensors.numpy import load_file, save_file
from test_wrong_models import classifier, data  # noqa: F401
from tiny_runs import flags, losses_of, model_of, run, trained

OTHER = {"sport": "outdoors", "politics": "indoors", "weather": "outdoors"}


@pytest.fixture(scope="module")
def other(data, tmp_path_factory):  # noqa: F811
    """The same texts with two labels in place of three."""
    folder = tmp_path_factory.mktemp("other")
    for name in ("train.jsonl", "dev.jsonl"):
        rows = [json.loads(line) for line in (data / name).read_text().splitlines()]
        (folder / name).write_text("".join(json.dumps(row | {"label": OTHER[row["label"]]}) + "\n" for row in rows))
    return folder


def flags_from(model, data, output, *more):
    whole = flags(data, output, *more)
    begin = whole.index("--model-config")
    return [*whole[:begin], "--model", model, *whole[begin + 4:]]


def test_a_new_head_is_what_training_from_the_encoder_alone_draws(classifier, other, tmp_path):  # noqa: F811
    headless = shutil.copytree(classifier, tmp_path / "headless")
    weights = load_file(headless / "model.safetensors")
    encoder = {name: tensor for name, tensor in weights.items() if not name.startswith("classifier.")}
    assert len(encoder) == len(weights) - 2
    save_file(encoder, headless / "model.safetensors")
    trained(flags_from(headless, other, tmp_path / "expected"))
    done = trained(flags_from(classifier, other, tmp_path / "out", "--new-head"))
    assert losses_of(tmp_path / "out") == losses_of(tmp_path / "expected")
    assert model_of(tmp_path / "out") == model_of(tmp_path / "expected")
    assert f"not taken from {classifier}; initialised at random: classifier.weight, classifier.bias" in done.stderr
    labels = json.loads((tmp_path / "out/config.json").read_text())["id2label"]
    assert sorted(labels.values()) == ["indoors", "outdoors"]


def test_without_it_the_trained_labels_stay_and_others_are_refused(classifier, data, other, tmp_path):  # noqa: F811
    done = run(flags_from(classifier, other, tmp_path / "out"))
    assert done.returncode == 1 and not (tmp_path / "out").exists()
    assert ("unknown label 'outdoors'. The labels are: politics, sport, weather. They come from the model's trained head; --new-head trains a head for other labels.") in done.stderr
    trained(flags_from(classifier, data, tmp_path / "same"))
    trained(flags_from(classifier, data, tmp_path / "fresh", "--new-head"))
    assert losses_of(tmp_path / "same")[0][1] < losses_of(tmp_path / "fresh")[0][1], "it knows the texts"


def test_a_run_with_a_new_head_resumes_to_the_bit(classifier, other, tmp_path):  # noqa: F811
    arguments = flags_from(classifier, other, tmp_path / "out", "--new-head", "--keep", 9)
    trained(arguments)
    again = flags_from(classifier, other, tmp_path / "again", "--new-head", "--keep", 9)
    trained([*again, "--resume", tmp_path / "out/checkpoints/step-4"])
    assert losses_of(tmp_path / "again") == losses_of(tmp_path / "out")[4:]
    assert model_of(tmp_path / "again") == model_of(tmp_path / "out")


def test_a_fresh_model_has_a_new_head_anyway(data, tmp_path):  # noqa: F811
    done = run(flags(data, tmp_path / "out", "--new-head"))
    assert done.returncode == 2 and "--new-head belongs to --model" in done.stderr, done.stderr
