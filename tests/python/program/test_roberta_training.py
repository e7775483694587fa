"""`mezzo train` and `predict` in a RoBERTa folder as the hub has it, byte-level BPE and all: the losses and logits
equal the results of transformers' AutoTokenizer and model."""
import json
import random

import pytest
import torch
from families import FAMILIES
from support import mezzo
from test_training import BATCH, LENGTH, STEPS, WORDS, largest_difference, reference_losses, train
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForSequenceClassification, AutoTokenizer

ENDS = ["", ".", "!", " isn't it?", "  \n", " 🌙", " naïve", " 1,234", " <mask>"]


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """Texts whose label can be learnt, in capitals and without, with contractions, emoji and spaces of all kinds."""
    rng = random.Random(0)
    rows = []
    for _ in range(STEPS * BATCH):
        label = rng.randrange(3)
        words = rng.choices(WORDS, weights=[5 if i % 3 == label else 1 for i in range(len(WORDS))], k=rng.randint(1, 16))
        words = [rng.choice([w, w, w.title(), w + "'s", w + "," if w != "cat" else "cat\u3000"]) for w in words]
        rows.append((" ".join(words) + rng.choice(ENDS), label))
    path = tmp_path_factory.mktemp("texts") / "train.json"
    path.write_text(json.dumps(rows))
    return path, rows


@pytest.fixture(scope="module", params=["tokenizer.json", "vocab.json and merges.txt"])
def folder(request, texts, tmp_path_factory):
    folder = tmp_path_factory.mktemp("roberta")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"], show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator([text for text, _ in texts[1]], trainer)
    if request.param == "tokenizer.json":
        tokenizer.save(str(folder / "tokenizer.json"))
    else:
        tokenizer.model.save(str(folder))
    FAMILIES["roberta"].model(folder, vocab_size=tokenizer.get_vocab_size(), initializer_range=0.05, num_hidden_layers=2)
    return folder


def test_a_roberta_folder_trains_and_predicts_with_its_own_tokenizer(folder, texts, tmp_path):
    losses, _ = train(folder, texts, tmp_path / "out", "--precision", "fp32", "--learning-rate", 4e-3)
    expected, _, _ = reference_losses(folder, texts[1], lr=4e-3)
    assert sum(expected[-5:]) < 0.95 * sum(expected[:5]), "a curve that goes somewhere"
    # The same sums in another order, over 50 steps that multiply differences.
    assert largest_difference(losses, expected) < 1e-4

    rows = texts[1][:60]
    data = tmp_path / "rows.json"
    data.write_text(json.dumps(rows))
    mezzo("predict", "--model", tmp_path / "out", "--data", data, "--output", tmp_path / "out.jsonl", "--precision", "fp32", "--logits",
          "--max-length", LENGTH)
    mine = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").eval()
    for source in (folder, tmp_path / "out"):  # transformers reads mezzo's output as a tokenizer
        tokenizer = AutoTokenizer.from_pretrained(source)
        inputs = tokenizer([text for text, _ in rows], truncation=True, max_length=LENGTH, padding=True, return_tensors="pt")
        with torch.no_grad():
            logits = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]).logits
        torch.testing.assert_close(torch.tensor([row["logits"] for row in mine]), logits, rtol=0, atol=1e-5)
    assert [row["label"] for row in mine] == [model.config.id2label[label] for label in logits.argmax(1).tolist()]
