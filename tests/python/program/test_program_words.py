"""The program's messages: suggestions for mistyped words, exit statuses, numbers as people write
them."""
import json
import re

import pytest
from support import MINILM, mezzo, random_bert, records
from transformers import AutoTokenizer


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    model, _ = random_bert(folder, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=64)
    model.bert.save_pretrained(folder)  # the encoder alone, so that the data's labels count
    AutoTokenizer.from_pretrained(MINILM).save_pretrained(folder)
    rows = [{"text": f"a text with number {i}", "label": f"label {i % 2}"} for i in range(32)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def train_flags(model, output, *more):
    return ["train", "--recipe", "reference", "--model", model, "--train", model / "rows.jsonl", "--dev", model / "rows.jsonl", "--output", output,
            "--precision", "fp32", *more]


def one_line(done, status):
    assert done.returncode == status, (done.returncode, done.stderr)
    assert done.stderr.count("\n") == 1 and done.stdout == "", done
    return done.stderr.strip()


TRAIN = "train --model x --train y --output z "


@pytest.mark.parametrize("arguments, message", [
    ("trian", "mezzo: 'trian' is not a command. Did you mean 'train'? See mezzo --help"),
    ("frobnicate --model x", "mezzo: 'frobnicate' is not a command; see mezzo --help"),
    ("", "mezzo: which command? train, tune, compare, launch, predict, eval, serve, export, check-int8, tokenize, doctor, ops, completion, version, help; see mezzo --help"),
    ("--verbose", "mezzo: --verbose is not an option; see mezzo --help"),
    ("train --learning-rat 3", "mezzo train: --learning-rat is not an option. Did you mean '--learning-rate'? See mezzo train --help"),
    ("train --learning-rat=3", "mezzo train: --learning-rat is not an option. Did you mean '--learning-rate'? See mezzo train --help"),
    ("eval --modle x --data y", "mezzo eval: --modle is not an option. Did you mean '--model'? See mezzo eval --help"),
    ("train x", "mezzo train: 'x' is not expected; see mezzo train --help"),
    ("train --model", "mezzo train: --model needs a value; see mezzo train --help"),
    ("train --quiet=maybe", "mezzo train: --quiet is 'maybe'; pass it alone, or true or false"),
    ("train --epochs many", "mezzo train: --epochs 'many' is neither 'auto' nor a number from 1e-06 to 1000000"),
    ("train --max-steps 1.5", "mezzo train: --max-steps '1.5' is not a whole number"),
    (TRAIN + "--seed -1", "mezzo train: --seed '-1' is not a whole number from 0"),
    (TRAIN + "--max-steps 99999999999999999999", "mezzo train: --max-steps '99999999999999999999' is not a whole number that fits 64 bits"),
    (TRAIN + "--precision bfloat16", "mezzo train: --precision 'bfloat16' is not known: fp32, bf16, fp16, auto. Did you mean 'bf16'?"),
    (TRAIN + "--precision FP16", "mezzo train: --precision 'FP16' is not known: fp32, bf16, fp16, auto. Did you mean 'fp16'?"),
    (TRAIN + "--device gpu", "mezzo train: --device 'gpu' is not known: cpu, cuda, cuda:N, auto. Did you mean 'cuda'?"),
    (TRAIN + "--device cuda:x", "mezzo train: --device 'cuda:x' is not known: cpu, cuda, cuda:N, auto. Did you mean 'cuda:N'?"),
    (TRAIN + "--device cuda:N", "mezzo train: --device cuda:N: pass a number for N, as cuda:0"),
    (TRAIN + "--batching paked", "mezzo train: --batching 'paked' is not known: packed, grouped, dynamic, padded. Did you mean 'packed'?"),
    (TRAIN + "--optimizer AdamW", "mezzo train: --optimizer 'AdamW' is not known: adamw, adam, sgd, lamb. Did you mean 'adamw'?"),
    (TRAIN + "--balance token", "mezzo train: --balance 'token' is not known: rows, tokens. Did you mean 'tokens'?"),
    (TRAIN + "--master-weights --precision fp32", "mezzo train: --master-weights needs --precision bf16 or fp16; this run is in fp32"),
    ("predict --model x --text a --device gpu", "mezzo predict: --device 'gpu' is not known: cpu, cuda, cuda:N, auto. Did you mean 'cuda'?"),
    ("eval --model x --data y --precision fp99", "mezzo eval: --precision 'fp99' is not known: fp32, bf16, fp16, int8, auto"),
    ("eval --model x --data y --threads -1", "mezzo eval: --threads is -1, expected at least 0"),
    ("predict --model x --text a --max-length 1", "mezzo predict: --max-length is 1, expected at least 2"),
    ("tokenize --model x --max-length 1", "mezzo tokenize: --max-length is 1, expected at least 2, or 0 for no limit"),
    ("ops --policy cdua", "mezzo ops: --policy 'cdua' is neither a preset (cuda, cpu, cuda_2020, norms_stay_low, masks_fp32) nor a file. Did you mean 'cuda'?"),
    ("launch --nprc 2 -- train", "mezzo launch: --nprc is not an option of mezzo launch. Did you mean '--nproc'? See mezzo launch --help"),
    ("launch --nproc 2 -- trian", "mezzo launch: 'trian' is neither a command of mezzo nor a program on PATH. Did you mean 'train'? "
                                   "See mezzo launch --help"),
])
def test_a_wrong_command_line_ends_with_2_and_a_guess_at_what_was_meant(arguments, message):
    assert one_line(mezzo(*arguments.split(), check=False), 2) == message


def test_numbers_are_read_as_they_were_written(model, tmp_path):
    """Also at the limits of an option's range."""
    mezzo(*train_flags(model, tmp_path / "out", "--max-steps", 1, "--seed", 2**64 - 1, "--learning-rate", "+1e-3"))
    settings = json.loads((tmp_path / "out/run.json").read_text())["settings"]
    assert settings["seed"] == str(2**64 - 1) and settings["learning-rate"] == "0.001"


def test_a_run_tells_its_time_as_people_do_and_counts_one_as_one(model, tmp_path):
    done = mezzo(*train_flags(model, tmp_path / "out", "--max-steps", 1, "--batch-size", 1, "--threads", 1, "--max-length", 7))
    (end,) = records(tmp_path / "out", "end")
    assert end["minutes"] < 10, "or the next line cannot hold"
    assert re.search(r"^(\d\.\d s|\d+ s|\d min( \d+ s)?), [\d.]+ samples/s, ", done.stdout, re.M), done.stdout
    assert "1 step of 1 text in fp32 on cpu, 1 thread\n" in done.stderr


def test_resuming_where_there_is_no_checkpoint_says_so(model, tmp_path):
    output = tmp_path / "out"
    done = mezzo(*train_flags(model, output, "--max-steps", 1, "--resume", "auto"))
    assert done.stderr.count(f"no checkpoint in {output / 'checkpoints'}, starting anew\n") == 1
    assert "starting anew" not in mezzo(*train_flags(model, tmp_path / "other", "--max-steps", 1)).stderr
