"""The warnings of a run: on its output, in metrics.jsonl and in run.json."""
import json

import pytest
from support import mezzo, records
from tiny_runs import flags, trained, write_data


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("data"))


def warnings_of(folder):
    """Kind and text of each, after a check that all places agree."""
    written = json.loads((folder / "run.json").read_text())["warnings"]
    assert [{"kind": r["kind"], "text": r["text"]} for r in records(folder, "warning")] == written
    return {warning["kind"]: warning["text"] for warning in written}


def test_labels_that_are_never_predicted_and_an_accuracy_at_the_baseline(data, tmp_path):
    """Rows of dev: 8 sport, 1 law; an almost untrained model predicts one label for all of them."""
    dev = tmp_path / "dev.jsonl"
    rows = [{"text": "goal team", "label": "sport"}] * 8 + [{"text": "goal team", "label": "weather"}]
    dev.write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = tmp_path / "out"
    done = trained(flags(data, out, "--dev", dev, "--learning-rate", 1e-6, "--max-steps", 2))
    predicted = {json.loads(line)["label"] for line in mezzo("predict", "--model", out, "--data", dev).stdout.splitlines()}
    assert len(predicted) == 1  # equal texts have equal predictions
    missed = sorted({"sport", "weather"} - predicted, key=["sport", "politics", "weather"].index)
    found = warnings_of(out)
    names = ", ".join(f"'{label}'" for label in missed)
    assert found["never_predicted"].startswith(f"the model never predicts {len(missed)} label{'s' * (len(missed) > 1)} on dev: {names}. ")
    accuracy = {"sport": "0.8889", "weather": "0.1111", "politics": "0.0000"}[predicted.pop()]
    assert found["majority_baseline"].startswith(f"accuracy on dev is {accuracy}, and 0.8889 if every text gets the most frequent label. ")
    for text in found.values():
        assert f"warning: {text}\n" in done.stderr and done.stderr.count(text) == 1
    # They are of the whole run: one that is extended finds its own.
    trained(flags(data, out, "--dev", dev, "--learning-rate", 1e-6, "--max-steps", 4, "--resume", "auto"))
    assert set(warnings_of(out)) == {"never_predicted", "majority_baseline"}


def test_a_loss_that_is_far_above_its_start(data, tmp_path):
    out = tmp_path / "out"
    given = flags(data, out, "--optimizer", "sgd", "--learning-rate", 300, "--max-steps", 40, "--eval-every", 0, "--save-every", 30)
    done = trained(given)
    found = warnings_of(out)
    losses = [r["loss"] for r in records(out, "step")]
    step = next(i for i in range(20, 41) if sum(losses[i - 10:i]) > 3 * sum(losses[:10]))
    assert found["diverged"].startswith(f"step {step}: the mean loss of 10 steps is {sum(losses[step - 10:step]) / 10:.3f}, ")
    assert "(3e+02 in this step)" in found["diverged"] and found["diverged"] in done.stderr
    # It belongs to its step, so that a resumed run knows of it and does not say it twice.
    again = trained(given + ["--resume", str(out / "checkpoints/step-30"), "--overwrite"])
    assert (found["diverged"] in again.stderr) == (step > 30)
    assert warnings_of(out) == found


def test_a_good_run_has_no_warnings(data, tmp_path):
    texts = tmp_path / "texts.jsonl"
    rows = [("goal team", "sport"), ("law vote", "politics"), ("rain storm", "weather")] * 8
    texts.write_text("".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in rows))
    trained(flags(data, tmp_path / "out", "--max-steps", 60, "--learning-rate", 0.01, "--eval-every", 10, "--train", texts, "--dev", texts))
    assert warnings_of(tmp_path / "out") == {}
    (final,) = (r for r in records(tmp_path / "out", "eval") if r.get("final"))
    assert "never_predicted" not in final and 0.3 < final["majority_baseline"] < 0.6
