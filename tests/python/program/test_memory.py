"""The memory estimate against measurements, the machine's memory, and the flags that use them."""
import json
import random
import re
import shutil
import subprocess

import _mezzo
import pytest
from support import MINILM, PROGRAM, mezzo, random_bert, records
from test_program import sha, start, wait_for_steps
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

SIZES = {"wide": dict(hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024),
         "narrow": dict(hidden_size=96, num_hidden_layers=6, num_attention_heads=6, intermediate_size=192),
         "distilbert": dict(model_type="distilbert", dim=256, n_layers=4, n_heads=4, hidden_dim=1024),
         "electra": dict(model_type="electra", embedding_size=128, hidden_size=256, num_hidden_layers=3, num_attention_heads=4,
                         intermediate_size=512),
         "roberta": dict(model_type="roberta", hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024,
                         max_position_embeddings=514, pad_token_id=0, type_vocab_size=1),
         "deberta": dict(model_type="deberta-v2", vocab_size=30522, hidden_size=256, num_hidden_layers=4, num_attention_heads=4,
                         intermediate_size=1024, relative_attention=True, pos_att_type="p2c|c2p", share_att_key=True, position_buckets=256,
                         norm_rel_ebd="layer_norm", position_biased_input=False),
         "modern": dict(model_type="modernbert", pad_token_id=0, hidden_size=256, num_hidden_layers=4, num_attention_heads=4,
                        intermediate_size=512)}
SIZES["modern_mean"] = SIZES["modern"] | dict(classifier_pooling="mean")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("memory")
    for name, sizes in SIZES.items():
        (folder / f"{name}.json").write_text(json.dumps(dict(model_type="bert", vocab_size=30522) | sizes))
    return folder


def write_texts(path, length, count, seed=0):
    """Texts of `length` tokens, [CLS] and [SEP] included."""
    rng = random.Random(seed)
    path.write_text(json.dumps([[" ".join(rng.choices(["goal", "team", "law", "vote"], k=length - 2)), i % 2] for i in range(count)]))


@pytest.mark.parametrize("size, length, batch, more", [
    ("wide", 32, 64, {}),
    ("wide", 256, 8, dict(precision="bf16")),
    ("wide", 256, 8, dict(precision="bf16", master_weights=True)),
    ("wide", 128, 32, dict(gradient_checkpointing=True)),
    ("wide", 128, 16, dict(grad_accumulation=2)),
    ("wide", 8, 4, {}),  # gradients outweigh activations
    ("narrow", 512, 4, dict(optimizer="sgd")),
    ("modern", 512, 8, {}),
    ("modern", 512, 8, dict(precision="bf16")),
    ("modern", 512, 8, dict(gradient_checkpointing=True)),
    ("modern_mean", 512, 8, {}),
    ("narrow", 32, 128, dict(precision="fp16", optimizer="lamb")),
    ("distilbert", 128, 32, {}),
    ("distilbert", 256, 8, dict(precision="bf16")),
    ("electra", 128, 64, {}),
    ("electra", 256, 32, dict(precision="bf16")),
    ("electra", 128, 64, dict(gradient_checkpointing=True)),
    ("roberta", 128, 32, {}),
    ("deberta", 128, 32, {}),
    ("deberta", 512, 16, dict(precision="bf16")),
])
def test_the_estimate_is_within_15_percent_of_the_peak_of_live_tensors(folder, tmp_path, size, length, batch, more):
    write_texts(tmp_path / "train.json", length, batch * more.get("grad_accumulation", 1))
    settings = dict(model_config=str(folder / f"{size}.json"), vocab=str(MINILM / "vocab.txt"), train=str(tmp_path / "train.json"),
                    output=str(tmp_path / "out"), batch_size=batch, max_length=512, max_steps=2) | dict(precision="fp32") | more
    with _mezzo.LiveBytes() as memory:
        _mezzo.train(settings)
    estimate = _mezzo.estimate_memory(settings, ranks=1, rows=batch * length, longest=length)
    assert abs(estimate["total"] / memory.peak - 1) < 0.15, (estimate, memory.peak)


@pytest.mark.parametrize("size, length, batch, more", [
    ("wide", 64, 64, {}),
    ("wide", 64, 64, dict(precision="bf16")),
    ("wide", 64, 64, dict(gradient_checkpointing=True)),
    ("modern", 128, 32, dict(precision="bf16")),
    ("deberta", 128, 16, {}),
])
def test_the_estimate_knows_what_the_dropout_of_lora_keeps(folder, tmp_path, size, length, batch, more):
    model = tmp_path / "model"
    AutoModelForSequenceClassification.from_config(AutoConfig.from_pretrained(folder / f"{size}.json")).save_pretrained(model)
    AutoTokenizer.from_pretrained(MINILM).save_pretrained(model)
    write_texts(tmp_path / "train.json", length, batch)
    settings = dict(model=str(model), train=str(tmp_path / "train.json"), output=str(tmp_path / "out"), batch_size=batch, max_length=512,
                    max_steps=2, lora=8, lora_dropout=0.1) | dict(precision="fp32") | more
    with _mezzo.LiveBytes() as memory:
        _mezzo.train(settings)
    estimate = _mezzo.estimate_memory(settings | dict(model_config=str(model / "config.json")), ranks=1, rows=batch * length, longest=length)
    kept = estimate["total"] - estimate["weights"]  # frozen weights stay in their file
    assert abs(kept / memory.peak - 1) < 0.15, (estimate, memory.peak)


def machine(root, meminfo=(8000, 4000), cgroup="", files=None):
    """A tree that looks like /proc and /sys; kibibytes."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text(f"MemTotal: {meminfo[0]} kB\nMemFree: 1 kB\nMemAvailable: {meminfo[1]} kB\n")
    (root / "proc/self/cgroup").write_text(cgroup)
    for name, text in (files or {}).items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(str(text))
    return _mezzo.machine_memory(str(root))


K = 1024


@pytest.mark.parametrize("cgroup, files, expected", [
    ("", {}, (8000 * K, 4000 * K, "the machine")),
    ("0::/a/b\n", {"a/b/memory.max": "max\n", "a/b/memory.current": 5}, (8000 * K, 4000 * K, "the machine")),
    ("0::/a/b\n", {"a/b/memory.max": 3000 * K, "a/b/memory.current": 1000 * K}, (3000 * K, 2000 * K, "the control group")),
    ("0::/a/b\n", {"a/b/memory.max": "max", "a/b/memory.current": 0, "a/memory.max": 3000 * K, "a/memory.current": 2900 * K,
                   "a/memory.stat": f"anon 5\ninactive_file {400 * K}\n"}, (3000 * K, 500 * K, "the control group")),
    ("0::/\n", {"memory.max": 100 * K, "memory.current": 200 * K}, (100 * K, 0, "the control group")),
    ("4:cpu,memory:/job\n0::/\n", {"memory/job/memory.limit_in_bytes": 2000 * K, "memory/job/memory.usage_in_bytes": 1500 * K,
                                   "memory/job/memory.stat": f"total_inactive_file {100 * K}\n"}, (2000 * K, 600 * K, "the control group")),
    ("4:memory:/\n", {"memory/memory.limit_in_bytes": 2**63 - 4096, "memory/memory.usage_in_bytes": 5}, (8000 * K, 4000 * K, "the machine")),
])
def test_memory_is_what_the_machine_or_its_control_groups_leave(tmp_path, cgroup, files, expected):
    assert machine(tmp_path, cgroup=cgroup, files=files) == expected


def test_a_machine_that_does_not_tell_is_an_error(tmp_path):
    with pytest.raises(RuntimeError, match="does not say how much memory is available; pass a number as --batch-size"):
        _mezzo.machine_memory(str(tmp_path))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    rng = random.Random(1)
    rows = [[" ".join(rng.choices("goal team law vote rain storm".split(), k=rng.randint(1, 90))), rng.randrange(3)] for _ in range(700)]
    (folder / "train.json").write_text(json.dumps(rows))
    random_bert(folder / "model", labels=3, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64)
    AutoTokenizer.from_pretrained(MINILM).save_pretrained(folder / "model")
    return folder, [min(len(text.split()) + 2, 128) for text, _ in rows]


def flags(data, output, *more):
    return ["train", "--recipe", "reference", "--model", data[0] / "model", "--train", data[0] / "train.json", "--dev-ratio", 0, "--output", output,
            "--precision", "fp32", "--eval-every", 0, "--learning-rate", "1e-3", *more]


def test_a_dry_run_shows_memory_and_plan_and_writes_nothing(data, tmp_path):
    output = tmp_path / "out"
    done = mezzo(*flags(data, output, "--dry-run", "--epochs", 2, "--batch-size", 16))
    assert not output.exists()
    mezzo(*flags(data, output, "--epochs", 2, "--batch-size", 16))
    tokens = sorted(record["tokens"] for record in records(output, "step"))
    assert f"{len(tokens)} steps of 16 texts in 1 micro-batch on 1 rank in fp32\n" in done.stdout
    assert f"tokens a step: minimum {tokens[0]}, median {tokens[len(tokens) // 2]}, maximum {tokens[-1]}\n" in done.stdout
    sizes = dict(re.findall(r"^(\S.*?) +([\d.]+) GB", done.stdout, re.M))
    assert list(sizes) == ["weights", "optimizer state", "gradients", "activations of the largest batch", "the whole program at most",
                           "more while a checkpoint is written", "available"]
    assert float(sizes["weights"]) == pytest.approx(4e-9 * (30522 + 512 + 2) * 32, rel=0.05)
    parameters = float(sizes["weights"]) + float(sizes["optimizer state"])
    assert float(sizes["more while a checkpoint is written"]) == pytest.approx(parameters, rel=0.01), "all of them in float32"
    assert "more while" not in mezzo(*flags(data, output, "--dry-run", "--save-minutes", 0)).stdout.split("available")[0]
    rows = int(re.search(r"(\d+) rows", done.stdout)[1])
    assert rows == (tokens[-1] + 31) // 32 * 32
    (steps,) = re.findall(r"^time: about .*, nothing of it for evaluations, by (\d+) steps? of [\d.]+ s each$", done.stdout, re.M)
    assert 1 <= int(steps) <= 15
    before = sha(output)
    mezzo(*flags(data, output, "--dry-run"))
    assert sha(output) == before and mezzo(*flags(data, output, "--dry-run", "--quiet")).stderr == ""


@pytest.mark.parametrize("size, more", [
    ("wide", ["--precision", "fp32"]),
    ("wide", ["--precision", "bf16", "--master-weights", "--batching", "padded"]),
    ("narrow", ["--precision", "fp16", "--gradient-checkpointing"]),
])
def test_a_dry_run_tells_the_peak_of_a_run_within_10_percent(folder, tmp_path, size, more):
    rng = random.Random(3)
    rows = [[" ".join(rng.choices(["goal", "team", "law", "vote"], k=rng.randint(1, 126))), i % 2] for i in range(160)]
    (tmp_path / "train.json").write_text(json.dumps(rows))
    flags = ["train", "--recipe", "reference", "--model-config", folder / f"{size}.json", "--vocab", MINILM / "vocab.txt", "--train", tmp_path / "train.json",
             "--dev-ratio", 0.1, "--eval-every", 4, "--batch-size", 16, *more]
    told = re.search(r"^the whole program at most +([\d.]+) GB", mezzo(*flags, "--dry-run").stdout, re.M)
    mezzo(*flags, "--output", tmp_path / "out")
    (end,) = records(tmp_path / "out", "end")
    assert float(told[1]) == pytest.approx(end["peak_memory_bytes"] / 1e9, rel=0.1)


def test_a_dry_run_does_not_try_what_cannot_fit(folder, tmp_path):
    (tmp_path / "train.jsonl").write_text("".join(f'{{"text":"goal {i}","label":{i % 2}}}\n' for i in range(100000)))
    done = mezzo("train", "--model-config", folder / "wide.json", "--vocab", MINILM / "vocab.txt", "--train", tmp_path / "train.jsonl",
                 "--dev-ratio", 0, "--precision", "fp32", "--batching", "padded", "--max-length", 512, "--batch-size", 100000, "--dry-run")
    (needed,) = re.findall(r"^most at one time +([\d.]+) GB  estimated$", done.stdout, re.M)
    assert float(needed) > 1000, "51 million rows, or this machine might try"
    assert "time: unknown, because no step was tried; there may be too little memory\n" in done.stdout


def test_the_peak_of_a_run_is_its_own(data, tmp_path):
    """Not that of the large process that starts it."""
    held = bytearray(b"x") * (1 << 30)
    mezzo(*flags(data, tmp_path / "out", "--max-steps", 1))
    (end,) = records(tmp_path / "out", "end")
    assert end["peak_memory_bytes"] < len(held)


@pytest.mark.parametrize("more, advice", [
    ([], "--batch-size below 20000, with --grad-accumulation above 1 for the same updates, or --gradient-checkpointing, or a shorter "
         "--max-length"),
    (["--gradient-checkpointing", "--grad-accumulation", 2],
     "--batch-size below 20000, with --grad-accumulation above 2 for the same updates, or a shorter --max-length"),
])
def test_a_step_without_memory_names_the_batch_and_the_remedy(folder, tmp_path, more, advice):
    rows = [["goal " * 498, 1], *([f"goal {i}", 0] for i in range(19999))]
    (tmp_path / "train.json").write_text(json.dumps(rows))
    flags = ["train", "--model-config", folder / "wide.json", "--vocab", MINILM / "vocab.txt", "--train", tmp_path / "train.json",
             "--dev-ratio", 0, "--precision", "fp32", "--batching", "padded", "--max-length", 512, "--batch-size", 20000, *more]
    # 9 GB of addresses hold LibTorch, one for CUDA too, but not 20,000 x 512 rows of 256 numbers.
    done = subprocess.run(["bash", "-c", 'ulimit -v 9000000 && exec "$@"', "bash", PROGRAM, *map(str, [*flags, "--output", tmp_path / "out"])],
                          capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == ("mezzo train: step 1 ran out of memory on cpu, with 20000 texts at once, "
                                            f"the longest of 500 tokens; pass a {advice}")


def test_a_prediction_without_memory_names_the_texts_and_the_remedy(tmp_path):
    # The last layer makes rows for first tokens alone; the one below holds all.
    random_bert(tmp_path, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=131072,
                max_position_embeddings=20000)
    shutil.copy(MINILM / "vocab.txt", tmp_path)
    (tmp_path / "texts.txt").write_text("goal " * 18998 + "\n")
    # 9 GB of addresses do not hold 19,000 rows of 131,072 numbers.
    done = subprocess.run(["bash", "-c", 'ulimit -v 9000000 && exec "$@"', "bash", PROGRAM, "predict", "--model", tmp_path, "--data",
                           tmp_path / "texts.txt", "--precision", "fp32"], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == ("mezzo predict: the model ran out of memory on cpu, with 1 text at once, the longest of "
                                            "19000 tokens; pass a shorter --max-length")


def chosen(stderr):
    return int(re.search(r"batch size auto: (\d+) texts", stderr)[1])


def test_auto_takes_as_many_texts_as_have_8192_tokens(data, tmp_path):
    done = mezzo(*flags(data, tmp_path / "out", "--batch-size", "auto", "--max-steps", 3))
    assert chosen(done.stderr) == int(8192 / (sum(data[1]) / len(data[1])))
    assert "larger batches are not faster" in done.stderr
    assert records(tmp_path / "out", "step")[0]["samples"] == chosen(done.stderr)
    assert json.loads((tmp_path / "out/run.json").read_text())["settings"]["batch-size"] == str(chosen(done.stderr))
    same = mezzo(*flags(data, tmp_path / "same", "--batch-size", chosen(done.stderr), "--max-steps", 3))
    assert sha(tmp_path / "same") == sha(tmp_path / "out") and "auto" not in same.stderr


def test_auto_resumes_with_the_number_of_the_checkpoint(data, tmp_path):
    """Also if a new measurement would give another number. Here the run began with a given number."""
    more = ["--max-steps", 60, "--save-every", 20]
    mezzo(*flags(data, tmp_path / "whole", "--batch-size", 24, *more))
    process = start(flags(data, tmp_path / "cut", "--batch-size", 24, *more))
    wait_for_steps(tmp_path / "cut", 25)
    process.terminate()
    process.communicate()
    done = mezzo(*flags(data, tmp_path / "cut", "--batch-size", "auto", "--resume", "auto", *more))
    assert "batch size auto: 24 texts, as before" in done.stderr
    assert sha(tmp_path / "cut") == sha(tmp_path / "whole")


def test_ranks_agree_on_the_number(data, tmp_path):
    done = mezzo("launch", "--nproc", 2, "--", *flags(data, tmp_path / "out", "--batch-size", "auto", "--max-steps", 2, "--threads", 1))
    whole = int(8192 / (sum(data[1]) / len(data[1])))
    assert chosen(done.stderr) == whole // 2
    assert records(tmp_path / "out", "step")[0]["samples"] == whole // 2 * 2


def test_checkpointing_changes_no_number_and_may_be_switched_on_when_resuming(data, tmp_path):
    more = ["--max-steps", 12, "--save-every", 5, "--keep", 9]
    mezzo(*flags(data, tmp_path / "plain", *more))
    mezzo(*flags(data, tmp_path / "thrifty", "--gradient-checkpointing", *more))
    assert sha(tmp_path / "plain") == sha(tmp_path / "thrifty")
    shutil.copytree(tmp_path / "plain", tmp_path / "resumed")
    mezzo(*flags(data, tmp_path / "resumed", "--gradient-checkpointing", "--resume",
                 tmp_path / "resumed/checkpoints/step-5", "--overwrite", *more))
    assert sha(tmp_path / "plain") == sha(tmp_path / "resumed")
