"""`--task token_classification`: curves equal the curves of a plain PyTorch loop over transformers' model. Scores equal
seqeval's, and entities the entities of transformers' pipeline."""
import json
import random

import pytest
import torch
from seqeval.metrics import classification_report, f1_score, precision_score, recall_score
from sklearn.metrics import accuracy_score
from support import MINILM, mezzo, records
from test_training import BATCH, LENGTH, SEED, largest_difference, no_decay_groups
from tiny_runs import run
from tokenizers import AddedToken, ByteLevelBPETokenizer
from transformers import AutoModelForTokenClassification, AutoTokenizer, BertConfig, RobertaConfig, RobertaTokenizerFast, pipeline

NAMES = "Anna Bert Carla David Emil Frida".split()
PLACES = "Aachen Bremen Celle Dresden Essen".split()
OTHERS = "the walked to in from with yesterday slowly bought , . and unbelievable".split()
LABELS = ["B-LOC", "B-PER", "I-LOC", "I-PER", "O"]
STEPS = 40


def make_text(rng):
    words, labels = [], []
    for _ in range(rng.randint(1, 16)):
        kind = rng.random()
        for names, entity in ((NAMES, "PER"), (PLACES, "LOC")):
            if kind < 0.25 if entity == "PER" else 0.25 <= kind < 0.45:
                chosen = rng.choices(names, k=rng.randint(1, 3))
                words += chosen
                labels += [f"{'B' if i == 0 else 'I'}-{entity}" for i in range(len(chosen))]
        if kind >= 0.45:
            words.append(rng.choice(OTHERS))
            labels.append("O")
    return words, labels


def make_rows(count, seed):
    rng = random.Random(seed)
    rows = [make_text(rng) for _ in range(count)]
    rows[0] = (["Anna", "walked", "to", "Aachen", "Bremen"], ["B-PER", "O", "O", "B-LOC", "I-LOC"])
    rows[1] = (["Anna", "Bert"], ["B-PER", "I-PER"])  # so that every label is in every set
    return rows


def write_jsonl(path, rows):
    path.write_text("".join(json.dumps(dict(text=words, label=labels)) + "\n" for words, labels in rows))
    return path


@pytest.fixture(scope="module")
def rows():
    return make_rows(STEPS * BATCH, 0)


@pytest.fixture(scope="module", params=["bert", "roberta"])
def folder(request, rows, tmp_path_factory):
    """Random weights and a tokenizer that cuts words into pieces: WordPiece, and byte-level BPE whose words begin with spaces."""
    path = tmp_path_factory.mktemp(request.param)
    torch.manual_seed(0)
    sizes = dict(num_labels=5, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, initializer_range=0.05,
                 id2label=dict(enumerate(LABELS)), label2id={name: i for i, name in enumerate(LABELS)})
    if request.param == "bert":
        AutoTokenizer.from_pretrained(MINILM).save_pretrained(path)
        config = BertConfig(**sizes)
    else:
        trained = ByteLevelBPETokenizer()
        trained.train_from_iterator([" ".join(words) for words, _ in rows], vocab_size=300, special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
        trained.save_model(str(path))
        RobertaTokenizerFast(vocab=str(path / "vocab.json"), merges=str(path / "merges.txt")).save_pretrained(path)
        config = RobertaConfig(vocab_size=300, max_position_embeddings=64, **sizes)
    AutoModelForTokenClassification.from_config(config).save_pretrained(path)
    return path


def encode(tokenizer, texts, labels=None):
    """As transformers' example run_ner.py does: labels go to the first tokens of words."""
    inputs = tokenizer(texts, is_split_into_words=True, truncation=True, max_length=LENGTH, padding=True, return_tensors="pt")
    places = torch.full_like(inputs["input_ids"], -1)
    for i in range(len(texts)):
        words = inputs.word_ids(i)
        for token, word in enumerate(words):
            if word is not None and (token == 0 or words[token - 1] != word):
                places[i, token] = word
    targets = torch.full_like(places, -100)
    if labels is not None:
        for i, row in enumerate(labels):
            for token, word in enumerate(places[i].tolist()):
                if word >= 0:
                    targets[i, token] = LABELS.index(row[word])
    inputs.pop("token_type_ids", None)
    return inputs, places, targets


def reference_losses(folder, rows, lr, accumulation=1, weights=None):
    model = AutoModelForTokenClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder, add_prefix_space=True)  # as transformers' example of words does
    optimizer = torch.optim.AdamW(no_decay_groups(model), lr=lr)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(SEED)).tolist()
    batches = [order[i:i + BATCH] for i in range(0, len(order), BATCH)]
    losses = []
    for first in range(0, len(batches), accumulation):
        group = [encode(tokenizer, [rows[i][0] for i in batch], [rows[i][1] for i in batch]) for batch in batches[first:first + accumulation]]
        count = sum((targets != -100).sum().item() for _, _, targets in group)
        total = 0.0
        for inputs, _, targets in group:
            logits = model(**inputs).logits
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum", weight=weights) / count
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
    return losses


def train(folder, path, output, *flags, launch=()):
    mezzo(*launch, "train", "--task", "token_classification", "--model", folder, "--train", path, "--dev-ratio", 0, "--output", output, "--dropout", 0,
          "--seed", SEED, "--batch-size", BATCH, "--max-length", LENGTH, "--eval-every", 0, "--precision", "fp32", "--max-grad-norm", 1, *flags)
    return [record["loss"] for record in records(output, "step")]


@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize("batching", ["packed", "padded"])
def test_a_curve_is_that_of_pytorch(folder, rows, tmp_path, accumulation, batching):
    losses = train(folder, write_jsonl(tmp_path / "rows.jsonl", rows), tmp_path / "out", "--learning-rate", 2e-3, "--grad-accumulation", accumulation,
                   "--batching", batching)
    expected = reference_losses(folder, rows, 2e-3, accumulation)
    assert accumulation > 1 or expected[-1] < 0.7 * expected[0], "a curve that goes somewhere"
    assert largest_difference(losses, expected) < 1e-4


def test_class_weights_are_of_words(folder, rows, tmp_path):
    losses = train(folder, write_jsonl(tmp_path / "rows.jsonl", rows), tmp_path / "out", "--learning-rate", 2e-3, "--class-weights", "B-PER=3,O=0.5")
    expected = reference_losses(folder, rows, 2e-3, weights=torch.tensor([1, 3, 1, 1, 0.5]))
    assert largest_difference(losses, expected) < 1e-4


def test_two_ranks_have_the_curve_of_one(folder, rows, tmp_path):
    path = write_jsonl(tmp_path / "rows.jsonl", rows[:10 * BATCH])
    one = train(folder, path, tmp_path / "one", "--learning-rate", 2e-3)
    two = train(folder, path, tmp_path / "two", "--learning-rate", 2e-3, "--batch-size", BATCH // 2,
                launch=["launch", "--nproc", 2, "--"])
    assert len(one) == 10 and largest_difference(one, two) < 1e-5


@pytest.fixture(scope="module")
def trained(folder, tmp_path_factory):
    """Trained until entities are found, though not all of them; with dev and test as CoNLL files."""
    path = tmp_path_factory.mktemp("trained")
    write_jsonl(path / "train.jsonl", make_rows(240, 0))
    for name, seed in (("dev", 1), ("test", 2)):
        lines = ["-DOCSTART- -X- O", ""]
        for words, labels in make_rows(60, seed):
            lines += [f"{word} x\t{label}" for word, label in zip(words, labels)] + [""]
        (path / f"{name}.conll").write_text("\n".join(lines))
    flags = ["train", "--task", "token_classification", "--model", folder, "--train", path / "train.jsonl", "--dev", path / "dev.conll", "--test",
             path / "test.conll", "--max-length", LENGTH, "--batch-size", BATCH, "--precision", "fp32", "--learning-rate", 2e-3, "--epochs", 2, "--eval-every", 10,
             "--save-every", 30, "--keep", 9, "--new-head"]
    done = mezzo(*flags, "--output", path / "out")
    return path, flags, done


def predictions_of(trained, rows, output):
    """By transformers' model: of each word that was read its label, and the true ones."""
    model, tokenizer = AutoModelForTokenClassification.from_pretrained(output).eval(), AutoTokenizer.from_pretrained(output)
    inputs, places, targets = encode(tokenizer, [words for words, _ in rows], [labels for _, labels in rows])
    with torch.no_grad():
        logits = model(**inputs).logits
    is_word = places >= 0
    predicted = logits.argmax(2)
    names = [[LABELS[i] for i in predicted[row][is_word[row]]] for row in range(len(rows))]
    true = [[LABELS[i] for i in targets[row][is_word[row]]] for row in range(len(rows))]
    loss = torch.nn.functional.cross_entropy(logits[is_word], targets[is_word]).item()
    return names, true, loss


def test_evaluations_are_seqevals_of_what_transformers_predicts(trained):
    path, _, done = trained
    rows = make_rows(60, 2)
    names, true, loss = predictions_of(trained, rows, path / "out")
    assert any(len(words) > LENGTH - 4 for words, _ in rows), "some texts are cut"
    said = json.loads(mezzo("eval", "--model", path / "out", "--data", path / "test.conll", "--precision", "fp32", "--json").stdout)
    assert said["loss"] == pytest.approx(loss, rel=1e-5)
    assert 0.4 < said["f1"] < 1
    assert said["f1"] == pytest.approx(f1_score(true, names))
    assert said["precision"] == pytest.approx(precision_score(true, names))
    assert said["recall"] == pytest.approx(recall_score(true, names))
    assert said["macro_f1"] == pytest.approx(f1_score(true, names, average="macro"))
    assert said["weighted_f1"] == pytest.approx(f1_score(true, names, average="weighted"))
    assert said["accuracy"] == pytest.approx(accuracy_score(sum(true, []), sum(names, [])))
    assert classification_report(true, names) in done.stdout
    final = [record for record in records(path / "out", "eval") if record.get("final")]
    assert final[0]["split"] == "test" and final[0]["f1"] == pytest.approx(said["f1"])
    config = json.loads((path / "out/config.json").read_text())
    assert config["architectures"][0].endswith("ForTokenClassification") and config["problem_type"] is None


def test_predictions_are_those_of_transformers(trained):
    path, _, _ = trained
    rows = make_rows(60, 2)
    names, _, _ = predictions_of(trained, rows, path / "out")
    lines = mezzo("predict", "--model", path / "out", "--data", path / "test.conll", "--precision", "fp32").stdout.splitlines()
    for line, expected, (words, _) in zip(lines, names, rows, strict=True):
        row = json.loads(line)
        assert row["words"] == words and row["text"] == " ".join(words)
        assert row["labels"] == expected + [None] * (len(words) - len(expected))


@pytest.fixture(scope="module")
def with_added_tokens(tmp_path_factory):
    """A BERT of random weights whose tokenizer has added tokens with punctuation in them."""
    path = tmp_path_factory.mktemp("added")
    words = "alice bob met in paris see for came on to rome @ user [ ] url < > date . ##s".split()
    (path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]) + "\n")
    (path / "tokenizer_config.json").write_text(json.dumps(dict(tokenizer_class="BertTokenizer", do_lower_case=True, model_max_length=64)))
    tokenizer = AutoTokenizer.from_pretrained(path)
    tokenizer.add_tokens(["@USER", "[URL]", AddedToken("<date>", normalized=False)])
    tokenizer.save_pretrained(path)
    torch.manual_seed(1)
    config = BertConfig(vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, initializer_range=0.3,
                        max_position_embeddings=64, id2label=dict(enumerate(LABELS)), label2id={name: i for i, name in enumerate(LABELS)})
    model = AutoModelForTokenClassification.from_config(config).eval()
    with torch.no_grad():
        model.classifier.bias -= model(**tokenizer("alice met bob in paris", return_tensors="pt")).logits[0].mean(0)
    model.save_pretrained(path)
    return path


def test_added_tokens_and_invisible_characters_are_told_apart_as_by_the_pipeline(with_added_tokens, tmp_path):
    folder = with_added_tokens
    texts = ["see [URL] for bob", "alice met @USER in paris", "bob came on <date> to rome", "Alice,@user.<date>[url]s", "\ufeffalice bob",
             "alice\u200b met bob\u200b", "\u200b bobs\x07 \u200b in. paris\u200d"]
    rows = tmp_path / "texts.jsonl"
    rows.write_text("".join(json.dumps(dict(text=text)) + "\n" for text in texts))
    lines = mezzo("predict", "--model", folder, "--data", rows, "--precision", "fp32").stdout.splitlines()
    tokenized = mezzo("tokenize", "--model", folder, "--data", rows).stdout.splitlines()
    (tmp_path / "words.jsonl").write_text("".join(json.dumps(dict(text=json.loads(line)["words"])) + "\n" for line in lines))
    as_words = mezzo("predict", "--model", folder, "--data", tmp_path / "words.jsonl", "--precision", "fp32").stdout.splitlines()
    tagger = pipeline("token-classification", model=str(folder), aggregation_strategy="first")
    count = 0
    for line, of_words, ids, text in zip(lines, as_words, tokenized, texts, strict=True):
        row, expected = json.loads(line), tagger(text)
        assert [(e["entity_group"], e["start"], e["end"], e["word"]) for e in row["entities"]] == [
            (e["entity_group"], e["start"], e["end"], text[e["start"]:e["end"]]) for e in expected], text
        assert [e["score"] for e in row["entities"]] == pytest.approx([float(e["score"]) for e in expected], abs=1e-5)
        assert row["labels"] == json.loads(of_words)["labels"] and None not in row["labels"], "each word has a token"
        assert json.loads(ids)["input_ids"] == tagger.tokenizer(text)["input_ids"]
        count += len(expected)
    assert count >= 10
    one = mezzo("predict", "--model", folder, "--text", texts[0], "--precision", "fp32").stdout
    assert one == lines[0] + "\n" == mezzo("predict", "--model", folder, "--precision", "fp32", stdin=texts[0] + "\n").stdout


def test_entities_of_a_text_are_those_of_the_pipeline(trained, tmp_path):
    path, _, _ = trained
    if json.loads((path / "out/config.json").read_text())["model_type"] != "bert":
        pytest.skip("transformers tells no words of byte-level tokens apart at punctuation")
    texts = ["Yesterday Anna Bert walked, slowly, from Aachen to Bremen.", "  Äh, Carla!  Dresden\tEssen ", "", "no one", "Emil,Frida(Celle)漢David"]
    (tmp_path / "texts.txt").write_text("\n".join(texts) + "\n")
    lines = mezzo("predict", "--model", path / "out", "--data", tmp_path / "texts.txt", "--precision", "fp32").stdout.splitlines()
    from_stdin = mezzo("predict", "--model", path / "out", "--precision", "fp32", stdin="\n".join(texts) + "\n").stdout.splitlines()
    assert from_stdin == lines
    tagger = pipeline("token-classification", model=str(path / "out"), aggregation_strategy="first")
    count = 0
    for line, text in zip(lines, texts, strict=True):
        row = json.loads(line)
        assert row["text"] == text
        expected = tagger(text) if text.strip() else []
        assert [(e["entity_group"], e["start"], e["end"]) for e in row["entities"]] == [(e["entity_group"], e["start"], e["end"]) for e in expected]
        assert [e["score"] for e in row["entities"]] == pytest.approx([float(e["score"]) for e in expected], abs=1e-5)
        assert all(e["word"] == text[e["start"]:e["end"]] for e in row["entities"])
        count += len(expected)
    assert count >= 5
    one = json.loads(mezzo("predict", "--model", path / "out", "--text", texts[0], "--precision", "fp32").stdout)
    assert [dict(e, score=pytest.approx(e["score"], abs=1e-5)) for e in one["entities"]] == json.loads(lines[0])["entities"]


def test_json_and_conll_say_the_same_and_a_run_resumes_to_the_bit(trained, tmp_path):
    path, flags, _ = trained
    mezzo(*flags, "--output", tmp_path / "again", "--resume", path / "out/checkpoints/step-30")
    assert (tmp_path / "again/model.safetensors").read_bytes() == (path / "out/model.safetensors").read_bytes()
    lines = []
    for words, labels in make_rows(240, 0):
        lines += [f"{word} {label}" for word, label in zip(words, labels)] + [""]
    (tmp_path / "train.conll").write_text("\r\n".join(lines))
    mezzo(*flags, "--output", tmp_path / "conll", "--train", tmp_path / "train.conll")
    assert (tmp_path / "conll/model.safetensors").read_bytes() == (path / "out/model.safetensors").read_bytes()


def test_a_trained_head_keeps_its_labels(trained, tmp_path):
    path, flags, _ = trained
    data = ["--train", path / "train.jsonl", "--dev-ratio", 0, "--max-steps", 2, "--max-length", LENGTH]
    mezzo("train", "--model", path / "out", *data, "--output", tmp_path / "more")
    assert list(json.loads((tmp_path / "more/config.json").read_text())["id2label"].values()) == LABELS
    done = run(["train", "--model", path / "out", "--task", "regression", *data, "--output", tmp_path / "other"])
    assert done.returncode == 1 and "is trained for token_classification; leave --task out, or pass --new-head" in done.stderr
    write_jsonl(tmp_path / "new.jsonl", [(["a", "b"], ["B-PER", "I-ORG"])] * 3)
    done = run(["train", "--model", path / "out", "--train", tmp_path / "new.jsonl", "--dev-ratio", 0, "--output", tmp_path / "other", "--max-length", LENGTH])
    assert done.returncode == 1 and "new.jsonl:1: row 1: unknown label 'I-ORG'" in done.stderr
    for more in (["--top-k", 1], ["--min-score", 0.5]):
        done = run(["predict", "--model", path / "out", "--text", "a", *more])
        assert done.returncode == 1 and "--min-score and --top-k are for labels of texts" in done.stderr


def test_labels_that_tell_no_entities_have_a_report_of_words(folder, tmp_path):
    rows = [(["a", "walked"], ["DET", "VERB"]), (["the", "bought", "."], ["DET", "VERB", "PUNCT"])] * 20
    write_jsonl(tmp_path / "rows.jsonl", rows)
    mezzo("train", "--task", "token_classification", "--new-head", "--model", folder, "--train", tmp_path / "rows.jsonl", "--dev", tmp_path / "rows.jsonl", "--max-steps",
          10, "--learning-rate", 1e-2, "--max-length", LENGTH, "--output", tmp_path / "out", "--eval-every", 5, "--precision", "fp32")
    said = json.loads(mezzo("eval", "--model", tmp_path / "out", "--data", tmp_path / "rows.jsonl", "--json").stdout)
    assert said["accuracy"] == 1 and "f1" not in said and len(said["confusion_matrix"]) == 3
    row = json.loads(mezzo("predict", "--model", tmp_path / "out", "--text", "the walked").stdout)
    assert row["labels"] == ["DET", "VERB"] and "entities" not in row


@pytest.mark.parametrize("name, text, message", [
    ("a.jsonl", '{"text": ["a", "b"], "label": ["O"]}\n', "a.jsonl:1: row 1: 2 words but 1 label. Give each word one."),
    ("a.jsonl", '{"text": "a b", "label": ["O", "B-X"]}\n', "a.jsonl:1: row 1: the text is a string, not an array of words, which --task token_classification labels"),
    ("a.jsonl", '{"text": ["a", 1], "label": ["O", "O"]}\n', "one of the words is a number, not a string"),
    ("a.jsonl", '{"text": ["a"], "label": "O"}\n', "the label is a string, not an array of strings, one for each word"),
    ("a.jsonl", '{"text": ["a"], "label": [""]}\n', "one of the labels is an empty string. Name it; words of no entity are labelled O"),
    ("a.jsonl", '{"text": ["a"], "text_pair": "b", "label": ["O"]}\n', "the row is a pair of texts"),
    ("a.jsonl", '{"text": ["a", "b"], "label": ["O", "O"]}\n', "all words have the same label, 'O'"),
    ("a.jsonl", '{"tokens": ["a"], "ner_tags": ["O"]}\n', "Pass --text-column 'tokens'"),
    ("a.conll", "a O\nb\n", "a.conll:2: row 1: the line has only a word. Put its label into the last column."),
    ("a.conll", "\n\n", "a.conll: the file has no rows"),
    ("a.csv", "text,label\na b,O O\n", "a cell cannot hold labels of words. Use .conll, .json or .jsonl."),
    ("a.txt", "a b\n", "a .txt file can only have fastText's labels"),
])
def test_what_is_no_labelled_text(name, text, message, folder, tmp_path):
    (tmp_path / name).write_text(text)
    done = run(["train", "--task", "token_classification", "--new-head", "--model", folder, "--train", tmp_path / name, "--output", tmp_path / "out", "--dev-ratio", 0,
                "--max-length", LENGTH])
    assert done.returncode == 1 and message in done.stderr, done.stderr
    assert done.stderr.count("\n") == 1 and not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def unread(tmp_path_factory):
    """Words of which BERT's tokenizer makes no token, and such as are told by other columns."""
    folder = tmp_path_factory.mktemp("unread")
    write_jsonl(folder / "none.jsonl", [(["\u200b", ""], ["O", "B-PER"])] * 4)
    (folder / "ok.conll").write_text("Anna B-PER\ngoes O\n-DOCSTART- -X- O\nBremen B-LOC\n")
    return folder


def test_words_that_nobody_reads(trained, unread, tmp_path):
    path, _, _ = trained
    if json.loads((path / "out/config.json").read_text())["model_type"] != "bert":
        pytest.skip("byte-level tokenizers make a token of every word")
    data = ["--max-length", LENGTH, "--max-steps", 1, "--output", tmp_path / "out", "--model", path / "out"]
    for flags in (["--train", unread / "none.jsonl", "--dev-ratio", 0], ["--train", unread / "ok.conll", "--dev", unread / "none.jsonl"]):
        done = run(["train", *data, *flags])
        assert done.returncode == 1 and f"none.jsonl: no token of any word is read with --max-length {LENGTH}; pass a larger number" in done.stderr
        assert not (tmp_path / "out").exists()
    done = run(["eval", "--model", path / "out", "--data", unread / "ok.conll", "--max-length", 2])
    assert done.returncode == 1 and "ok.conll: no token of any word is read with --max-length 2" in done.stderr and done.stdout == ""
    row = json.loads(mezzo("predict", "--model", path / "out", "--data", unread / "none.jsonl").stdout.splitlines()[0])
    assert row["labels"] == [None, None] and row["entities"] == []


def test_texts_of_a_conll_file_and_logits_of_words(trained, unread):
    path, _, _ = trained
    lines = mezzo("predict", "--model", path / "out", "--data", unread / "ok.conll", "--logits", "--precision", "fp32").stdout.splitlines()
    rows = [json.loads(line) for line in lines]
    assert [row["words"] for row in rows] == [["Anna", "goes"], ["Bremen"]]
    for row in rows:
        assert [LABELS[torch.tensor(logits).argmax()] for logits in row["logits"]] == row["labels"]
        alone = json.loads(mezzo("predict", "--model", path / "out", "--text", row["text"], "--logits", "--precision", "fp32").stdout)
        torch.testing.assert_close(torch.tensor(alone["logits"]), torch.tensor(row["logits"]), rtol=0, atol=1e-5)


@pytest.mark.parametrize("more, message", [
    (["--text", "a", "--text-pair", "b"], "--text-pair: the model labels words, of single texts; leave it out"),
    (["--data", "ok.conll", "--text-column", "word"], "the columns of a .conll file have numbers, from 1. Pass --text-column with a number, not 'word'."),
    (["--data", "strings.jsonl"], "the row is an array that begins with a string; words are written [[…], […]] or {\"text\": […]}"),
    (["--data", "cr.conll"], "cr.conll:1: the line holds a carriage return. Save the file with lines that end in LF or CR LF."),
])
def test_what_is_no_text_of_words(more, message, trained, unread):
    (unread / "strings.jsonl").write_text('["Anna", "goes"]\n')
    (unread / "cr.conll").write_bytes(b"Anna B-PER\rgoes O\nhome O\n")
    done = run(["predict", "--model", trained[0] / "out", *(str(unread / word) if "." in word else word for word in more)])
    assert done.returncode == 1 and message in done.stderr and done.stdout == ""


def test_a_label_that_ends_the_scoring_of_entities_is_named(folder, tmp_path):
    write_jsonl(tmp_path / "rows.jsonl", [(["Anna", "goes"], ["B-PER", "O"]), (["Bert", "x"], ["B-PER", "U-LOC"])] * 4)
    done = mezzo("train", "--task", "token_classification", "--new-head", "--model", folder, "--train", tmp_path / "rows.jsonl", "--dev-ratio", 0, "--max-steps", 1,
                 "--max-length", LENGTH, "--output", tmp_path / "out")
    assert "warning: words are scored instead of entities: label 'U-LOC' is neither O nor B-, I-, E- or S- with a type" in done.stderr + done.stdout


def test_a_conll_file_is_for_words_alone(tmp_path, folder):
    (tmp_path / "a.conll").write_text("a O\n")
    done = run(["train", "--new-head", "--task", "single_label_classification", "--model", folder, "--train", tmp_path / "a.conll", "--output", tmp_path / "out", "--max-length", LENGTH])
    assert done.returncode == 1 and "a .conll file has words and their labels, which are for models of --task token_classification" in done.stderr
