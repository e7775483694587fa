"""`mezzo train` with the settings of the example."""
import subprocess

from support import PROGRAM, records


def run(model, data, output, precision, ranks, batch_size):
    launch = ["launch", "--nproc", str(ranks), "--"] if ranks > 1 else []
    subprocess.run(
        [PROGRAM, *launch, "train", "--recipe", "reference", "--model-config", model / "config.json", "--vocab", model / "vocab.txt", "--train", data,
         "--output", output, "--limit", "2000", "--epochs", "2", "--batch-size", str(batch_size),
         "--learning-rate", "1e-3", "--precision", precision, "--device", "cpu", "--threads", "1"],
        check=True, capture_output=True)
    losses = {record["step"]: record["loss"] for record in records(output, "step")}
    evaluations = [record for record in records(output, "eval") if not record.get("final")]
    steps = [record["step"] for record in evaluations]
    return {
        "steps": steps, "losses": [losses[step] for step in steps], "dev_losses": [record["loss"] for record in evaluations],
        "accuracies": [record["accuracy"] for record in evaluations],
    }
