"""The Python peers of mezzo's benchmarks compute the expected results, on a model too small to measure."""
import contextlib
import json
import multiprocessing
import re
import runpy
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
from support import PROGRAM, SHARED, random_bert

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
TRAIN, VOCAB = SHARED / "data/emotion/train.json", SHARED / "data/bert-base-chinese/vocab.txt"
SIZES = dict(vocab_size=21128, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64)

sys.path += [str(BENCHMARKS), str(BENCHMARKS / "peers")]
import profile_step  # noqa: E402
import train_step  # noqa: E402


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    made, folder = random_bert(tmp_path_factory.mktemp("model"), labels=6, **SIZES)
    for parameter in made.parameters():
        parameter.data *= 6 if parameter.dim() > 1 else 1  # or all texts get one label
    made.save_pretrained(folder)
    (folder / "vocab.txt").write_bytes(VOCAB.read_bytes())
    return folder


def run(*command):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_script(script, arguments, said):
    sys.argv = [str(script), *map(str, arguments)]
    with open(said, "w") as file, contextlib.redirect_stdout(file):
        runpy.run_path(sys.argv[0], run_name="__main__")


@pytest.fixture
def peer(tmp_path):
    """A script of benchmarks/peers, in a process forked from this one, which has imported PyTorch and transformers: the last line it prints."""
    def last_line(script, *flags):
        said = tmp_path / "said.json"
        process = multiprocessing.get_context("fork").Process(
            target=run_script, args=(BENCHMARKS / "peers" / script, ["--threads", 1, *flags], said), daemon=True)
        process.start()
        process.join(300)
        assert process.exitcode == 0
        return json.loads(said.read_text().splitlines()[-1])

    return last_line


def test_predictions_are_those_of_mezzo(model, peer, tmp_path):
    data, out = tmp_path / "rows.json", tmp_path / "out.jsonl"
    data.write_text(json.dumps(json.loads(TRAIN.read_text())[:100]))
    run(PROGRAM, "predict", "--model", model, "--data", data, "--output", out, "--precision", "fp32")
    expected = [int(json.loads(line)["label"].removeprefix("LABEL_")) for line in out.read_text().splitlines()]
    assert len(set(expected)) > 1
    for recipe in ("p1", "p2"):
        assert peer("predict_texts.py", "--recipe", recipe, "--model", model, "--data", data)["labels"] == expected
    run(PROGRAM, "export", "--model", model, "--onnx", tmp_path / "m.onnx")
    lines = tmp_path / "rows.jsonl"
    lines.write_text("".join(json.dumps(dict(text=text)) + "\n" for text, _ in json.loads(data.read_text())))
    assert peer("predict_onnx.py", "--model", model, "--data", lines, "--onnx", tmp_path / "m.onnx")["labels"] == expected


def test_recipes_train_on_the_batches_they_say(model, peer):
    flags = ["--model", model, "--train", TRAIN, "--limit", 300, "--batch-size", 16, "--steps", 4, "--warmup", 1,
             "--learning-rate", "1e-3"]
    padded = peer("train_step.py", "--recipe", "p1", "--precision", "fp32", *flags)
    assert padded["rows"] == [16 * 128] * 4
    grouped = peer("train_step.py", "--recipe", "p2", "--precision", "fp32", *flags)
    assert len(set(grouped["rows"])) == 4 and max(grouped["rows"]) < 16 * 128
    whole = peer("train_step.py", "--recipe", "p2", "--precision", "fp32", *flags, "--steps", 300 // 16)
    assert statistics.mean(whole["rows"]) == whole["mean_rows"] == grouped["mean_rows"]
    for run_ in (padded, grouped):
        assert len(run_["losses"]) == 5 and len(run_["seconds"]) == 4
        assert all(0.5 < loss < 4 for loss in run_["losses"])  # ln 6 = 1.8 for six classes


@pytest.mark.parametrize("measured", [[40, 900], [100, 200, 300], [700, 20, 20, 60]])
def test_few_batches_give_the_rate_of_an_epoch(measured):
    def seconds(rows):
        return 0.05 + 2e-4 * rows

    epoch = [40, 100, 200, 300, 900]
    found = train_step.mean_seconds([seconds(rows) for rows in measured], measured, statistics.mean(epoch))
    assert found == pytest.approx(statistics.mean(map(seconds, epoch)))
    assert train_step.mean_seconds([1.0, 3.0], [64, 64], 64) == 2


def test_a_page_names_machine_versions_and_command(tmp_path):
    run(sys.executable, BENCHMARKS / "flat.py", "--quick", "--train", TRAIN, "--vocab", VOCAB, "--results", tmp_path)
    page = (tmp_path / "flat.md").read_text()
    for part in ("benchmarks/flat.py --quick", "processors", "torch 2.", "| 1,000 |"):
        assert part in page


def test_run_sh_makes_or_names_each_page():
    """Pages of other machines lie in folders. Each command that run.sh names exists."""
    script = (BENCHMARKS / "run.sh").read_text()
    made = set(re.search(r"^all=\((.*)\)$", script, re.MULTILINE)[1].split())
    assert all((BENCHMARKS / f"{name}.py").exists() for name in made)
    others = dict(re.findall(r'^  "(\w+): python ([\w./]+)', script, re.MULTILINE))
    assert all((BENCHMARKS.parent / command).exists() for command in others.values())
    pages = {page.stem for page in (BENCHMARKS / "results").glob("*.md")}
    of_micro = set(re.findall(r'^    "(\w+)": \(', (BENCHMARKS / "micro.py").read_text(), re.MULTILINE))
    assert pages <= made - {"micro"} | of_micro | set(others)
    assert not made & set(others)


def test_an_older_program_is_measured_beside_todays(tmp_path):
    run(sys.executable, BENCHMARKS / "regression.py", "HEAD", "--old", PROGRAM, "--quick", "--train", TRAIN, "--vocab", VOCAB, "--results", tmp_path)
    page = (tmp_path / "regression.md").read_text()
    for task, precision in ("a training step", "bf16"), ("a training step", "fp32"), ("prediction of 32 texts", "int8"), ("from start to end", "fp32"):
        assert any(task in line and f"| {precision} |" in line for line in page.splitlines())


def test_the_optimized_peer_trains_as_the_plain_one(model, peer):
    flags = ["--recipe", "p2", "--model", model, "--train", TRAIN, "--limit", 300, "--batch-size", 16, "--steps", 4, "--warmup", 1,
             "--learning-rate", "1e-3", "--dropout", 0, "--precision", "fp32"]
    plain, optimized = peer("train_step.py", *flags), peer("train_step.py", *flags, "--optimize")
    assert optimized["losses"] == pytest.approx(plain["losses"], rel=1e-4) and optimized["losses"] != plain["losses"]


@pytest.mark.slow
def test_servers_are_asked_alike(tmp_path):
    """Each peer gives the labels that mezzo gives, or the page would not be there."""
    run(sys.executable, BENCHMARKS / "serve.py", "--quick", "--train", TRAIN, "--vocab", VOCAB, "--results", tmp_path)
    page = (tmp_path / "serve.md").read_text()
    for part in ("mezzo, fp32", "onnxruntime, fp32, batches", "transformers", "one by one", "Answers by status", "200: "):
        assert part in page


@pytest.mark.slow
def test_the_page_of_a_gpu_is_made_without_one(tmp_path):
    command = [sys.executable, BENCHMARKS / "gpu.py", "--device", "cpu", "--quick", "--rows", "^(train|predict|serve) BERT-base, (32 × 20|128 × 128|1 × 20), bf16",
               "--candidates", "varlen, recorded", "grouped", "--parts", "--train", TRAIN, "--vocab", VOCAB, "--results", tmp_path]
    run(*command)
    page = (tmp_path / "gpu.md").read_text()
    for part in ("No GPU", "train BERT-base, 4 × 20, bf16", "predict BERT-base", "serve BERT-base", "≥ 12,000", "≥ 1.3 ×", "varlen, recorded", "shapes: "):
        assert part in page
    assert "failed" not in page
    measured = (tmp_path / "gpu.jsonl").read_text()
    run(*command, "--minutes", 0)  # goes on, with nothing left to do
    assert (tmp_path / "gpu.jsonl").read_text() == measured


def test_the_peer_on_a_gpu_learns_as_the_others_do(model, peer):
    """From the model's weights, without dropout, its loss on the same texts is that of the common recipe."""
    texts = ["--model", model, "--limit", 96, "--batch-size", 96, "--precision", "fp32", "--dropout", 0]
    padded = peer("train_step.py", "--recipe", "p1", *texts, "--train", TRAIN, "--steps", 1, "--warmup", 0)
    for batches in "grouped", "varlen":
        found = peer("on_gpu.py", *texts, "--data", TRAIN, "--batches", batches, "--learning-rate", 0)
        assert found["found"] == pytest.approx(padded["losses"], rel=1e-5), batches


@pytest.mark.parametrize("family", ["bert", "roberta", "modernbert"])
def test_texts_without_padding_train_as_padded_ones_do(family, peer, tmp_path):
    """Three steps and then two more losses: gradients agree. ModernBERT's windows are shorter than the texts."""
    config = dict(SIZES, model_type=family, max_position_embeddings=130, pad_token_id=0, local_attention=8, global_attn_every_n_layers=2,
                  **{f"{name}_token_id": 0 for name in ("bos", "eos", "cls", "sep")})
    (tmp_path / "config.json").write_text(json.dumps(config))
    flags = ["--model-config", tmp_path / "config.json", "--vocab", VOCAB, "--data", TRAIN, "--limit", 48, "--batch-size", 48, "--dropout", 0,
             "--learning-rate", 1e-3, "--steps", 2]
    padded = peer("on_gpu.py", *flags, "--batches", "grouped")["found"]
    assert padded[0] != padded[1]
    assert peer("on_gpu.py", *flags, "--batches", "varlen", "--record")["found"] == pytest.approx(padded, rel=1e-5)


@pytest.mark.parametrize("place, category", [
    ("mkl_blas_avx2_sgemm_kernel_0 (/x/libtorch_cpu.so)", "matrix products"),
    ("[unknown] (/tmp/perf-17.map)", "matrix products"),  # oneDNN's, made at run time
    ("mezzo::kernels::cpu::avx512::adam(float*, float const*, …) (/x/mezzo)", "optimizer"),
    ("at::native::AVX2::vectorized_loop<at::native::add_kernel(…)::{lambda()#1}&> (/x/libtorch_cpu.so)", "other element-wise kernels"),
    ("clear_page_erms ([kernel.kallsyms])", "kernel: page faults, copies, scheduling"),
    ("gomp_team_barrier_wait_end (/x/libgomp.so.1)", "waiting for other threads"),
])
def test_profiles_sort_places(place, category):
    assert profile_step.category(place) == category
