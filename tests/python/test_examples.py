"""The programs of examples/ against the same programs in Python (examples/ beside this file): whole curves, and how well
they train. C++ and Python draw from one generator, so data, weights and batches are the same numbers."""
import contextlib
import functools
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import _mezzo
import numpy
import pytest
import ranks
import safetensors.torch
import torch
from support import PROGRAM, SHARED

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
from digits import write_digits  # noqa: E402


@pytest.fixture(scope="module")
def digits_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("digits") / "digits.txt"
    write_digits(path)
    return str(path)


@functools.cache
def program(name, *arguments, status=0):
    done = subprocess.run(
        [Path(os.environ["MEZZO_EXAMPLES"]) / f"example_{name}", *arguments],
        capture_output=True, text=True,
    )
    assert done.returncode == status, done.stderr
    rows = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    return {name: numpy.array(values, dtype=float) for name, *values in rows} if status == 0 else done.stderr


def twin(name, *arguments, kernels):
    with _mezzo.CpuHalfCompute() if kernels == "mezzo" else contextlib.nullcontext():
        return importlib.import_module("examples." + name).run(*arguments)


# How far a curve may stray, relatively, with the same kernels on both sides. 1e-6: nine printed
# digits, and sums made in double. basic: LibTorch's torch::optim::AdamW orders its arithmetic
# otherwise than Python's (3e-4 seen after 60 steps). Where mezzo's optimizers train, Python's
# differ in the last bit of elements that fill no vector: 2e-6 seen in cnn, 1e-5 in
# master_weights; in gan, two players amplify it (4e-3 seen after 700 steps, 6e-2 after 1,000).
SAME_KERNELS = {"basic": 1e-3, "cnn": 1e-5, "gan": 0.02, "master_weights": 1e-4}
COMPARED_STEPS = {"gan": 700}
# With LibTorch's half kernels in Python, each product may round to the neighbouring number: a few
# steps of the dtype, absolutely, since losses of 1 are made of them.
OTHER_KERNELS = {"fp16": 8 * torch.finfo(torch.float16).eps, "bf16": 8 * torch.finfo(torch.bfloat16).eps, "fp32": 1e-6}


def compare(mezzo, python, relative, absolute, steps=None):
    for name, expected in python.items():
        got, expected = mezzo[name][:steps], expected[:steps]
        if name.endswith("scales") or name == "halves":
            numpy.testing.assert_array_equal(got, expected, err_msg=name)
        else:
            numpy.testing.assert_allclose(got, expected, rtol=relative, atol=absolute, err_msg=name)


@pytest.mark.parametrize("kernels", ["mezzo", "libtorch"])
@pytest.mark.parametrize("name", [
    "basic", "custom_function", "data_parallel", "forward_and_threads", "gan", "gpt", "gradient_accumulation", "gradient_clipping",
    "gradient_penalty", "graphed_step", "master_weights", "op_policy", "save_and_resume", "static_scale",
])
def test_reproduces_the_curves_of_the_same_program_in_python(name, kernels):
    relative = SAME_KERNELS.get(name, 1e-6)
    precision = "bf16" if name == "op_policy" else "fp16"
    absolute = 0 if kernels == "mezzo" or name == "static_scale" else OTHER_KERNELS[precision]
    compare(program(name), twin(name, kernels=kernels), relative, absolute, COMPARED_STEPS.get(name))


@pytest.mark.parametrize("amp", [False, True])
def test_the_plain_loop_and_the_diff_of_the_readme_reproduce_python(amp):
    name = "plain_loop_with_mezzo" if amp else "plain_loop"
    if amp and not shutil.which("patch"):
        pytest.skip("there is no program patch")
    curves = program(name)
    compare(curves, twin("plain_loop", amp, kernels="libtorch"), 1e-6, 0)
    assert curves["losses"][-1] < 0.8 * curves["losses"][0]


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_lstm_language_model_reproduces_the_same_program_in_python(precision):
    curves = program("lstm_language_model", precision)
    compare(curves, twin("lstm_language_model", precision, kernels="mezzo"), 1e-6, 0)
    assert (curves["norms"] > 0.2).any(), "nothing was clipped"


def test_inference_reproduces_the_same_program_in_python():
    predictions = program("inference")
    compare(predictions, twin("inference", kernels="libtorch"), 1e-6, 0)
    # Other shapes take other kernels: each of two products rounds to bfloat16.
    assert predictions["difference"] < 2 * torch.finfo(torch.bfloat16).eps


def test_a_resumed_run_is_bit_identical():
    curves = program("save_and_resume")  # fails if a weight differs
    assert (curves["resumed_losses"] == curves["losses"][20:]).all()
    assert curves["scales"][0] == curves["scales"][1] != 65536


def test_checkpoints_change_no_loss():
    curves = program("checkpointing")
    compare(curves, twin("checkpointing", kernels="mezzo"), 1e-6, 0)
    assert (curves["losses"] == curves["plain_losses"]).all()


def test_the_average_of_the_weights_is_better_than_the_last_and_skipped_steps_do_not_count():
    curves = program("ema")
    compare(curves, twin("ema", kernels="mezzo"), 1e-6, 0)
    skipped = (numpy.diff(curves["scales"], prepend=2.0**24) < 0).sum()
    assert skipped > 0 and curves["n_averaged"] == len(curves["losses"]) - skipped
    assert curves["averaged"] < 0.9 * curves["last"]


def distributed_twin(rank):
    torch.distributed.init_process_group("gloo")
    curves = twin("distributed_data_parallel", kernels="mezzo")
    torch.distributed.destroy_process_group()
    return curves


@pytest.mark.parametrize("world_size", [1, 2])
def test_ranks_reproduce_the_curves_of_pytorchs(world_size):
    port = ranks.free_port()
    started = [subprocess.Popen([Path(os.environ["MEZZO_EXAMPLES"]) / "example_distributed_data_parallel"], text=True,
                                stdout=subprocess.PIPE, env={**os.environ, **ranks.environment(rank, world_size, port)})
               for rank in range(world_size)]
    printed = [process.communicate(timeout=120)[0] for process in started]
    assert all(process.returncode == 0 for process in started)
    rows = [line.split()[1:] for line in printed[0].splitlines() if line.startswith("RESULT ")]
    mezzo = {name: numpy.array(values, dtype=float) for name, *values in rows}
    assert mezzo["losses"][-1] < 0.8 * mezzo["losses"][0]
    # As gradient_accumulation's twin does, with one kernel for both.
    for curves in ranks.run(world_size, distributed_twin):
        compare(mezzo, curves, 1e-6, 0)


@pytest.mark.parametrize("precision, kernels", [("fp16", "mezzo"), ("bf16", "mezzo"), ("fp32", "mezzo"), ("fp16", "libtorch")])
def test_cnn_reproduces_the_same_program_in_python(digits_file, precision, kernels):
    mezzo = program("cnn", digits_file, precision)
    absolute = 0 if kernels == "mezzo" else OTHER_KERNELS[precision]
    compare(mezzo, twin("cnn", digits_file, precision, kernels=kernels), SAME_KERNELS["cnn"], absolute)


@pytest.mark.parametrize("precision", ["fp16", "bf16", "fp32"])
def test_cnn_reaches_97_percent_in_every_precision(digits_file, precision):
    assert program("cnn", digits_file, precision)["accuracy"] >= 0.97


def test_cnn_says_what_is_wrong_with_its_arguments(tmp_path):
    assert "usage: cnn FILE [fp16|bf16|fp32]" in program("cnn", "file", "fp8", status=2)
    (tmp_path / "short").write_text("1 2 3")
    assert "should hold rows of 65 numbers" in program("cnn", str(tmp_path / "short"), status=-6)


@pytest.mark.parametrize("name", [
    "basic", "checkpointing", "custom_function", "data_parallel", "ema", "forward_and_threads", "gpt", "gradient_accumulation",
    "gradient_clipping", "gradient_penalty", "lstm_language_model", "master_weights", "op_policy", "save_and_resume",
])
def test_learns(name):
    losses = program(name)["losses"]
    assert losses[-1] < 0.8 * losses[0]


def test_gradient_penalty_in_float16_follows_float64():
    exact = twin("gradient_penalty", torch.float64, False, kernels="libtorch")
    half = program("gradient_penalty")
    # No step is skipped, and a value made of a sum of 64 terms, each of a few roundings to
    # float16, is off by a step or so.
    assert (half["scales"] >= half["scales"][0]).all()
    for name in ("losses", "penalties"):
        numpy.testing.assert_allclose(half[name], exact[name], rtol=4 * torch.finfo(torch.float16).eps)


def test_clipping_meets_overflows_and_survives_them():
    curves = program("gradient_clipping")
    assert len(curves["norms"]) < len(curves["losses"]), "no step was skipped"
    assert curves["scales"].min() < curves["scales"][0]


def test_without_a_scale_small_gradients_vanish_and_with_one_they_do_not():
    curves = program("static_scale")
    assert (curves["unscaled_losses"] == curves["unscaled_losses"][0]).all()
    for name in ("static_losses", "manual_losses"):
        assert curves[name][-1] < 1e-2 * curves[name][0]


def test_gan_learns_the_distribution():
    mean_x, mean_y, *covariance = program("gan")["moments"]
    # Mean (2, -1); standard deviations 1 and sqrt(1/2), correlation sqrt(1/2). Equilibrium
    # is a circling, not a point.
    assert abs(mean_x - 2) < 0.4 and abs(mean_y + 1) < 0.4
    deviation_x, deviation_y = numpy.sqrt(covariance[0]), numpy.sqrt(covariance[3])
    assert 0.6 < deviation_x < 1.4 and 0.4 < deviation_y < 1.0
    assert covariance[1] / (deviation_x * deviation_y) > 0.5


@pytest.fixture(scope="module")
def tiny_bert(tmp_path_factory):
    """A folder without weights, for texts of the emotion data."""
    folder = tmp_path_factory.mktemp("tiny_bert")
    (folder / "config.json").write_text(json.dumps(dict(
        model_type="bert", vocab_size=21128, hidden_size=64, num_hidden_layers=1, num_attention_heads=2, intermediate_size=128)))
    (folder / "vocab.txt").write_bytes((SHARED / "data/bert-base-chinese/vocab.txt").read_bytes())
    return folder


def classify(world_size, *arguments):
    launch = [PROGRAM, "launch", "--nproc", str(world_size), "--"] if world_size > 1 else []
    return subprocess.run([*launch, Path(os.environ["MEZZO_EXAMPLES"]) / "example_text_classifier", *map(str, arguments)],
                          capture_output=True, text=True, timeout=300)


def evaluations_of(done):
    """Columns: steps, losses, dev losses and accuracies."""
    assert done.returncode == 0, done.stderr
    number = r"([\d.e-]+)"
    lines = re.findall(rf"step (\d+)/\d+: loss {number}, dev loss {number}, accuracy {number}\n", done.stdout)
    return numpy.array(lines, dtype=float).T


@pytest.mark.parametrize("precision, world_size", [("fp32", 1), ("fp32", 2), ("fp16", 1), ("fp16", 2), ("bf16", 1)])
def test_text_classifier_makes_the_same_steps_as_mezzo_train(tiny_bert, tmp_path, precision, world_size):
    data = SHARED / "data/emotion/train.json"
    batch_size = 18 // world_size  # of each rank
    done = classify(world_size, "--model", tiny_bert, "--data", data, "--output", tmp_path / "example", "--limit", 2000, "--epochs", 2,
                    "--lr", 1e-3, "--batch-size", batch_size, "--amp", "off" if precision == "fp32" else precision)
    steps, losses, dev_losses, accuracies = evaluations_of(done)
    train = twin("text_classifier", tiny_bert, data, tmp_path / "train", precision, world_size, batch_size,
                 kernels="libtorch")
    assert steps.tolist() == train["steps"] == [50, 100, 150, 200, 206]
    # Both take the same kernels, but on two ranks the program divides a sum of gradients where the example takes a mean. Small gradients
    # are subnormal in float16 and round otherwise then: 5e-4 seen, and a text may change its label.
    is_exact = precision != "fp16" or world_size == 1
    for actual, name in ((losses, "losses"), (dev_losses, "dev_losses")):
        numpy.testing.assert_allclose(actual, train[name], rtol=1e-6 if is_exact else 2e-3, err_msg=name)
    numpy.testing.assert_allclose(accuracies, train["accuracies"], atol=1e-8 if is_exact else 1.01 / 160)
    assert len(set(accuracies)) > 2, "the model learns nothing"

    theirs, ours = (safetensors.torch.load_file(tmp_path / name / "model.safetensors") for name in ("train", "example"))
    assert theirs.keys() == ours.keys()
    for name, weight in theirs.items() if is_exact else ():
        torch.testing.assert_close(ours[name], weight, rtol=1e-4, atol=1e-6, msg=lambda text: f"{name}: {text}")
    config = json.loads((tmp_path / "example/config.json").read_text())
    assert config["id2label"] == {str(i): str(i) for i in range(6)}
    assert re.search(rf"accuracy +{accuracies.max():.2f} +160\n", done.stdout) and re.search(r"[\d.e-]+ minutes\n", done.stdout)


def test_text_classifier_starts_from_the_best_model_that_it_kept(tiny_bert, tmp_path):
    def run(model, *arguments):
        done = classify(1, "--model", model, "--data", SHARED / "data/emotion/train.json", "--limit", 1000, *arguments)
        return done.stdout.split("\n")[0], evaluations_of(done)

    first, (_, _, dev_losses, accuracies) = run(tiny_bert, "--output", tmp_path / "first", "--lr", 1e-3, "--eval-every", 5)
    best_accuracy, best_loss = max(zip(accuracies, -dev_losses, strict=True))
    assert -best_loss != dev_losses[-1], "the last model is the best"
    second, (_, _, dev_losses, accuracies) = run(tmp_path / "first", "--output", tmp_path / "second", "--lr", 1e-30)
    assert (first, second) == ("random weights", "pretrained weights")
    assert accuracies[0] == best_accuracy and dev_losses[0] == pytest.approx(-best_loss, rel=1e-6)


def test_text_classifier_says_what_is_wrong_with_its_arguments(tiny_bert):
    assert classify(1, "--model", tiny_bert).stderr.startswith("text_classifier: --data is missing. Usage: ")
    wrong = classify(1, "--model", tiny_bert, "--data", "d", "--output", "o", "--amp", "fp8")
    assert wrong.returncode == 1 and wrong.stderr == "text_classifier: --amp is fp8; pass off, fp16 or bf16\n"
    assert "--epoch: unknown, or without a value" in classify(1, "--epoch", "2").stderr
