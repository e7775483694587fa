"""`--lora`: the curves and the adapter that PEFT makes, in a fraction of the memory."""
import json
import shutil

import pytest
import torch
from families import FAMILIES
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import LoraLayer
from safetensors.torch import load_file
from support import mezzo, records
from test_family_training import write_tokenizer
from test_training import largest_difference, no_decay_groups, reference_losses, texts, train  # noqa: F401: fixtures
from tiny_runs import run
from transformers import AutoModelForSequenceClassification, AutoTokenizer

LORA = ["--lora", 4, "--lora-alpha", 12, "--learning-rate", 3e-3]
NAMES = ["bert", "roberta, one type", "distilbert", "electra", "deberta-v3", "modernbert"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """By family: a folder with random weights, of which the head is a trained one, and a tokenizer of the texts' words."""
    made = {}
    for name in NAMES:
        folder = made[name] = tmp_path_factory.mktemp("family")
        model = FAMILIES[name].model(folder, initializer_range=0.05, num_hidden_layers=2, num_labels=3,
                                     id2label={0: "0", 1: "1", 2: "2"}, label2id={"0": 0, "1": 1, "2": 2})
        write_tokenizer(folder, model.config.pad_token_id)
    return made


def trained_groups(model):
    return [group | dict(params=[p for p in group["params"] if p.requires_grad]) for group in no_decay_groups(model)]


def reference(folder, rows, adapter, lr, **more):
    """PyTorch's run from an adapter that mezzo has just drawn."""
    return reference_losses(folder, rows, make_groups=trained_groups, lr=lr,
                            adapt=lambda model: PeftModel.from_pretrained(model, adapter, is_trainable=True), **more)


def logits_of(model, folder, rows):
    inputs = AutoTokenizer.from_pretrained(folder)([text for text, _ in rows], truncation=True, max_length=24, padding=True, return_tensors="pt")
    with torch.no_grad():
        return model.eval()(**inputs).logits


@pytest.mark.parametrize("name", NAMES)
def test_curves_and_adapters_are_pefts(name, folders, texts, tmp_path):  # noqa: F811
    folder = folders[name]
    train(folder, texts, tmp_path / "drawn", *LORA[:-1], 0, "--max-steps", 1, "--precision", "fp32")
    drawn = load_file(tmp_path / "drawn/adapter/adapter_model.safetensors")
    assert all((tensor == 0).all() for key, tensor in drawn.items() if "lora_B" in key)
    assert all(0.4 < tensor.std() * tensor.size(1) ** 0.5 < 0.75 for key, tensor in drawn.items() if "lora_A" in key)
    lr = 1e-2 if name == "electra" else LORA[-1]  # whose embeddings are narrow here
    losses, _ = train(folder, texts, tmp_path / "out", *LORA[:-1], lr, "--precision", "fp32", "--max-grad-norm", 1)
    expected, _, _ = reference(folder, texts[1], tmp_path / "drawn/adapter", lr, max_norm=1.0, attention=FAMILIES[name].attentions[0])
    assert sum(expected[-5:]) < 0.95 * sum(expected[:5]), "a curve that goes somewhere"
    assert largest_difference(losses, expected) < 1e-4
    rows = texts[1][:20]
    base = AutoModelForSequenceClassification.from_pretrained(folder)
    theirs = logits_of(PeftModel.from_pretrained(base, tmp_path / "out/adapter"), folder, rows)
    merged = logits_of(AutoModelForSequenceClassification.from_pretrained(tmp_path / "out"), folder, rows)
    torch.testing.assert_close(merged, theirs, rtol=0, atol=2e-5)
    assert (merged - logits_of(AutoModelForSequenceClassification.from_pretrained(folder), folder, rows)).abs().max() > 0.05
    assert set(load_file(tmp_path / "out/model.safetensors")) == set(load_file(folder / "model.safetensors"))


@pytest.mark.parametrize("way", [
    ["--precision", "fp32"],
    ["--precision", "bf16", "--gradient-checkpointing"],
    ["--precision", "fp16", "--ema-decay", 0.8, "--grad-accumulation", 2],
], ids=lambda way: " ".join(map(str, way)))  # fmt: skip
def test_resumes_to_the_bit_and_keeps_the_best(way, folders, texts, tmp_path):  # noqa: F811
    dev = tmp_path / "dev.json"
    dev.write_text(json.dumps(texts[1][:40]))
    more = [*LORA, *way, "--dev", dev, "--eval-every", 3, "--save-every", 5, "--keep", 9, "--max-steps", 14]
    train(folders["bert"], texts, tmp_path / "out", *more)
    assert (tmp_path / "out/checkpoints/step-5/weights.safetensors").stat().st_size < (tmp_path / "out/model.safetensors").stat().st_size / 2
    for step in 5, 10:
        train(folders["bert"], texts, tmp_path / "again", *more, "--resume", tmp_path / f"out/checkpoints/step-{step}")
        for file in "model.safetensors", "adapter/adapter_model.safetensors", "checkpoints/step-14/weights.safetensors":
            assert (tmp_path / "again" / file).read_bytes() == (tmp_path / "out" / file).read_bytes(), file
    evals = records(tmp_path / "out", "eval")
    best = max((e for e in evals if not e.get("final")), key=lambda e: (e["accuracy"], -e["loss"]))
    assert [e["loss"] for e in evals if e.get("final")] == [best["loss"]]
    said = json.loads(mezzo("eval", "--model", tmp_path / "out", "--data", dev, "--precision", way[1], "--json").stdout)
    assert abs(said["loss"] - best["loss"]) < (1e-5 if way[1] == "fp32" else 0.02)
    base = AutoModelForSequenceClassification.from_pretrained(folders["bert"])
    adapted = logits_of(PeftModel.from_pretrained(base, tmp_path / "out/adapter"), folders["bert"], texts[1][:10])
    merged = logits_of(AutoModelForSequenceClassification.from_pretrained(tmp_path / "out"), folders["bert"], texts[1][:10])
    torch.testing.assert_close(adapted, merged, rtol=0, atol=2e-5)


def test_an_adapter_is_of_the_model_beside_it(folders, texts, tmp_path):  # noqa: F811
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "adapter_config.json").write_text("precious")
    more = [*LORA, "--precision", "fp32", "--save-every", 4]
    train(folders["bert"], texts, tmp_path / "out", *more, "--max-steps", 4)
    adapter = tmp_path / "out/adapter"
    (adapter / ".adapter_model.safetensors.123.1.tmp").write_text("")
    train(folders["bert"], texts, tmp_path / "out", *more, "--max-steps", 8, "--resume", "auto")
    assert sorted(path.name for path in adapter.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]
    shutil.rmtree(adapter)
    adapter.symlink_to(foreign)
    train(folders["bert"], texts, tmp_path / "out", "--precision", "fp32", "--max-steps", 2)
    assert not adapter.exists() and (foreign / "adapter_config.json").read_text() == "precious"


@pytest.mark.parametrize("more", [[], ["--zero-stage", 1]], ids=["whole", "sharded"])
def test_two_ranks(more, folders, texts, tmp_path):  # noqa: F811
    given = ["train", "--model", folders["bert"], "--train", texts[0], "--dev-ratio", 0, "--max-length", 24, "--eval-every", 0, "--precision", "fp32",
             "--dropout", 0, *LORA, "--max-steps", 5]  # fmt: skip
    mezzo(*given, "--batch-size", 8, "--output", tmp_path / "one")
    mezzo("launch", "--nproc", 2, "--", *given, "--batch-size", 4, "--output", tmp_path / "two", *more)
    one, two = (load_file(tmp_path / name / "adapter/adapter_model.safetensors") for name in ("one", "two"))
    for name, tensor in one.items():
        # Sums of two halves are rounded otherwise, to which Adam's first steps are sensitive where gradients are small.
        assert (tensor - two[name]).norm() < 2e-2 * tensor.norm() + 1e-2, name


def test_a_checkpoint_belongs_to_the_weights_it_began_with(folders, texts, tmp_path):  # noqa: F811
    more = [*LORA, "--precision", "fp32", "--save-every", 2, "--max-steps", 4]
    train(folders["bert"], texts, tmp_path / "out", *more)
    other = tmp_path / "other"
    shutil.copytree(folders["bert"], other)
    weights = bytearray((other / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (other / "model.safetensors").write_bytes(weights)
    done = run(["train", "--model", other, "--train", texts[0], "--dev-ratio", 0, "--output", tmp_path / "again", "--dropout", 0, "--seed", 7,
                "--batch-size", 8, "--max-length", 24, "--eval-every", 0, *more, "--resume", tmp_path / "out/checkpoints/step-2"])  # fmt: skip
    assert done.returncode == 1 and "weights of --model was" in done.stderr


TARGETS = {"bert": ["query", "attention.output.dense"], "distilbert": ["q_lin", "lin1"], "modernbert": ["Wqkv", "attn.Wo"]}


@pytest.mark.parametrize("name", TARGETS)
def test_target_modules_are_pefts(name, folders, texts, tmp_path):  # noqa: F811
    folder, targets = folders[name], TARGETS[name]
    more = [*LORA, "--precision", "fp32", "--lora-target-modules", ",".join(targets)]
    train(folder, texts, tmp_path / "drawn", *more, "--learning-rate", 0, "--max-steps", 1)
    said = json.loads((tmp_path / "drawn/adapter/adapter_config.json").read_text())
    theirs = get_peft_model(AutoModelForSequenceClassification.from_pretrained(folder), LoraConfig(r=4, target_modules=targets))
    adapted = {key.removeprefix("base_model.model.") for key, module in theirs.named_modules() if isinstance(module, LoraLayer)}
    assert set(said["target_modules"]) == adapted and len(adapted) > 1
    drawn = load_file(tmp_path / "drawn/adapter/adapter_model.safetensors")
    assert {key.removeprefix("base_model.model.").rsplit(".", 2)[0] for key in drawn if ".lora_A." in key} == adapted
    losses, _ = train(folder, texts, tmp_path / "out", *more)
    expected, _, _ = reference(folder, texts[1], tmp_path / "drawn/adapter", LORA[-1], attention=FAMILIES[name].attentions[0])
    assert largest_difference(losses, expected) < 1e-4
    rows = texts[1][:20]
    base = AutoModelForSequenceClassification.from_pretrained(folder)
    adapter = logits_of(PeftModel.from_pretrained(base, tmp_path / "out/adapter"), folder, rows)
    torch.testing.assert_close(logits_of(AutoModelForSequenceClassification.from_pretrained(tmp_path / "out"), folder, rows), adapter, rtol=0, atol=2e-5)
    train(folder, texts, tmp_path / "bf16", *LORA, "--lora-target-modules", ",".join(targets), "--precision", "bf16", "--max-steps", 2)


def test_unknown_target_modules_are_answered_with_the_known(folders, texts, tmp_path):  # noqa: F811
    done = run(["train", "--model", folders["bert"], "--train", texts[0], "--output", tmp_path / "out", "--max-length", 24, "--lora", 4,
                "--lora-target-modules", "query,q_proj"])  # fmt: skip
    known = "attention.output.dense, attention.self.key, attention.self.query, attention.self.value, intermediate.dense, output.dense"
    assert done.returncode == 1 and f"no linear layer 'q_proj'. They have {known}. " in done.stderr


@pytest.mark.parametrize("name", ["bert", "deberta-v3", "modernbert"])
def test_dropout_is_of_the_factors_input(name, folders, texts, tmp_path):  # noqa: F811
    """A dropout that drops nothing gives the curve of none, by other kernels. A real one gives another, and not another model
    for the same weights."""
    folder = folders[name]
    plain, none, half = ([*LORA, "--precision", "fp32", "--lora-dropout", p] for p in (0, 1e-9, 0.5))
    losses, _ = train(folder, texts, tmp_path / "plain", *plain)
    same, _ = train(folder, texts, tmp_path / "none", *none)
    assert largest_difference(losses, same) < 1e-4
    dropped, _ = train(folder, texts, tmp_path / "half", *half)
    again, _ = train(folder, texts, tmp_path / "again", *half, "--gradient-checkpointing")
    assert dropped == again and dropped[0] == same[0], "the factors add nothing yet"
    assert largest_difference(dropped, same) > 1e-3 and sum(dropped[-5:]) < sum(dropped[:5])
    assert json.loads((tmp_path / "half/adapter/adapter_config.json").read_text())["lora_dropout"] == 0.5


@pytest.mark.slow
def test_bert_base_takes_a_third_of_the_memory(tmp_path_factory):
    from transformers import BertConfig, BertForSequenceClassification

    folder = tmp_path_factory.mktemp("base")
    torch.manual_seed(0)
    BertForSequenceClassification(BertConfig(num_labels=3, vocab_size=1000)).save_pretrained(folder)
    write_tokenizer(folder, 0)
    rows = [["war moon river code " * 6, i % 3] for i in range(64)]
    (folder / "train.json").write_text(json.dumps(rows))

    def peak(*more):
        output = tmp_path_factory.mktemp("out") / "out"
        mezzo("train", "--model", folder, "--new-head", "--train", folder / "train.json", "--dev-ratio", 0, "--output", output, "--batch-size", 8,
              "--max-steps", 4, "--eval-every", 0, "--gradient-checkpointing", "--precision", "fp32", *more)
        return records(output, "end")[0]["peak_memory_bytes"]

    whole, adapted = peak(), peak("--lora", 8)
    assert adapted < whole / 3, (adapted / 1e6, whole / 1e6)


@pytest.mark.parametrize("more, message", [
    (["--lora", 4, "--freeze", "1"], "leave --freeze out"),
    (["--lora", 4, "--master-weights", "--precision", "bf16"], "leave --master-weights out"),
    (["--lora", -1], "--lora is -1"),
    (["--lora-dropout", 0.1], "--lora-dropout belongs to --lora"),
    (["--lora-target-modules", "query"], "--lora-target-modules belongs to --lora"),
    (["--lora", 4, "--lora-dropout", 1], "--lora-dropout is 1"),
])  # fmt: skip
def test_refuses_what_cannot_be_meant(more, message, folders, texts, tmp_path):  # noqa: F811
    done = run(["train", "--model", folders["bert"], "--train", texts[0], "--output", tmp_path / "out", *more])
    assert done.returncode == 2 and message in done.stderr and not (tmp_path / "out").exists()
