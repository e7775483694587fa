"""`mezzo export`: a graph that gives the logits of `mezzo predict`, and what makes answers of them."""
import json

import numpy
import pytest
import torch
from onnx_sessions import logits_of, session_of
from support import mezzo, padded
from tiny_runs import flags, run, trained, write_data


@pytest.fixture(scope="module")
def run_of_program(tmp_path_factory):
    folder = tmp_path_factory.mktemp("program")
    data = write_data(folder / "data")
    trained(flags(data, folder / "out", "--calibrate"))
    return data, folder / "out"


def test_the_program_writes_what_it_predicts(run_of_program, tmp_path):
    data, output = run_of_program
    said = mezzo("export", "--model", output, "--onnx", tmp_path / "m.onnx")
    assert said.stdout == "" and "logits of input_ids, attention_mask, token_type_ids in fp32, opset 17" in said.stderr
    session = session_of(tmp_path / "m.onnx")
    facts = session.get_modelmeta().custom_metadata_map
    config = json.loads((output / "config.json").read_text())
    assert json.loads(facts["labels"]) == list(config["id2label"].values()) and facts["max_length"] == "16"
    assert facts["problem_type"] == "single_label_classification" and facts["model_type"] == "bert"
    lines = [json.loads(line) for line in mezzo("predict", "--model", output, "--data", data / "dev.jsonl", "--logits",
                                                "--precision", "fp32").stdout.splitlines()]
    tokens = [json.loads(line)["input_ids"] for line in mezzo("tokenize", "--model", output, "--data", data / "dev.jsonl").stdout.splitlines()]
    logits = logits_of(session, padded(tokens, [[0] * len(row) for row in tokens]))
    numpy.testing.assert_allclose(logits, [line["logits"] for line in lines], rtol=0, atol=1e-5)
    calibrated = torch.softmax(logits.double(), -1)
    numpy.testing.assert_allclose(calibrated.max(-1).values, [line["score"] for line in lines], rtol=0, atol=1e-5)


def test_programs_read_what_was_written(run_of_program, tmp_path):
    said = mezzo("export", "--model", run_of_program[1], "--onnx", tmp_path / "m.onnx", "--precision", "fp16", "--json")
    session = session_of(tmp_path / "m.onnx")
    assert json.loads(said.stdout) == {"file": str(tmp_path / "m.onnx"), "inputs": [each.name for each in session.get_inputs()],
                                       "precision": "fp16", "opset": 17, "bytes": (tmp_path / "m.onnx").stat().st_size}


@pytest.mark.parametrize("more, status, message", [
    (["--onnx", "m.bin"], 2, "--onnx is 'm.bin', expected a file named .onnx"),
    (["--onnx", "m.onnx", "--precision", "bf16"], 2, "--precision is 'bf16', expected fp32 or fp16"),
    (["--onnx", "/nowhere/m.onnx"], 1, "/nowhere/m.onnx"),
    ([], 2, "--onnx is required"),
])  # fmt: skip
def test_the_program_refuses(more, status, message, run_of_program):
    done = run(["export", "--model", run_of_program[1], *more])
    assert done.returncode == status and message in done.stderr, done.stderr
