"""mezzo.Classifier and mezzo.Tokenizer, against the program and transformers."""
import copy
import json
import math
import pickle
import shutil
import subprocess
import sys
import textwrap
import threading

import mezzo
import numpy as np
import pytest
import support
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification, AutoTokenizer, BertConfig

WORDS = "goal team law vote rain storm".split()
TASKS = ["single_label_classification", "multi_label_classification", "regression", "token_classification"]
TEXTS = ["goal team", "rain " * 9, "law, vote!", "", "storm unknown 天气", "team"]
LABELS = ["sport", "politics", "weather"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A function that makes a model of random weights for a task."""
    def make(task):
        path = tmp_path_factory.getbasetemp() / f"classifier-{task}"
        if path.exists():
            return path
        path.mkdir()
        labels = ["O", "B-X", "I-X"] if task == "token_classification" else ["value"] if task == "regression" else LABELS
        config = BertConfig(vocab_size=16, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
                            max_position_embeddings=16, initializer_range=0.5, problem_type=None if task == TASKS[3] else task,
                            id2label=dict(enumerate(labels)), label2id={name: i for i, name in enumerate(labels)})
        torch.manual_seed(3)
        kind = AutoModelForTokenClassification if task == TASKS[3] else AutoModelForSequenceClassification
        kind.from_config(config).eval().save_pretrained(path)
        (path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, ",", "!", "天", "气"]) + "\n")
        (path / "tokenizer_config.json").write_text(json.dumps(dict(tokenizer_class="BertTokenizer", model_max_length=16)))
        return path

    return make


def logits_of_transformers(path, texts, pairs=None):
    inputs = AutoTokenizer.from_pretrained(path)(texts, pairs, padding=True, truncation=True, return_tensors="pt")
    with torch.no_grad():
        return AutoModelForSequenceClassification.from_pretrained(path).eval()(**inputs).logits


@pytest.mark.parametrize("precision", ["fp32", "auto"])
@pytest.mark.parametrize("task", TASKS)
def test_predicts_what_the_program_predicts(task, precision, folder, tmp_path):
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    done = support.mezzo("predict", "--model", folder(task), "--data", path, "--precision", precision)
    classifier = mezzo.Classifier(folder(task), precision=precision)
    with pytest.warns(UserWarning, match="1 of 6 texts truncated") if "truncated" in done.stderr else no_warning():
        assert classifier.predict(TEXTS) == [json.loads(line) for line in done.stdout.splitlines()]
    assert classifier.task == task and classifier.precision == ("fp32" if precision == "fp32" else classifier.precision)


class no_warning:
    def __enter__(self):
        pass

    def __exit__(self, *_):
        pass


def test_predicts_pairs_as_the_program_does(folder, tmp_path):
    pairs = TEXTS[1:] + TEXTS[:1]
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps({"text": text, "text_pair": pair}) + "\n" for text, pair in zip(TEXTS, pairs)))
    done = support.mezzo("predict", "--model", folder(TASKS[0]), "--data", path)
    assert mezzo.Classifier(folder(TASKS[0])).predict(TEXTS, pairs) == [json.loads(line) for line in done.stdout.splitlines()]


def test_int8_predicts_as_the_program_and_warns_as_it_does(folder):
    done = support.mezzo("predict", "--model", folder(TASKS[0]), "--text", "goal law", "--precision", "int8")
    with pytest.warns(UserWarning) as warnings:
        classifier = mezzo.Classifier(folder(TASKS[0]), precision="int8")
    assert str(warnings[0].message) in done.stderr
    assert classifier.predict("goal law") == [json.loads(done.stdout)] and classifier.precision == "int8"


@pytest.mark.parametrize("task", TASKS[:3])
def test_logits_and_probabilities_are_those_of_transformers(task, folder):
    classifier, pairs = mezzo.Classifier(folder(task), precision="fp32"), TEXTS[2:] + TEXTS[:2]
    for given in ((TEXTS,), (TEXTS, pairs)):
        expected = logits_of_transformers(folder(task), *given)
        logits = classifier.logits(*given)
        assert logits.dtype == np.float32 and logits.shape == (6, len(classifier.labels))
        np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-5)  # as in the tests of models
        if task == "regression":
            with pytest.raises(ValueError, match=r"trained for regression, which has no probabilities; call logits\(\)"):
                classifier.predict_proba(*given)
            continue
        probabilities = classifier.predict_proba(*given)
        assert probabilities.dtype == np.float32
        exact = expected.softmax(1) if task == TASKS[0] else expected.sigmoid()
        np.testing.assert_allclose(probabilities, exact, rtol=0, atol=1e-5)
        scores = [row["scores"] for row in classifier.predict(*given)]
        np.testing.assert_allclose([[row[name] for name in classifier.labels] for row in scores], probabilities, rtol=1e-6)


def test_takes_one_text_none_and_any_iterable(folder):
    classifier = mezzo.Classifier(folder(TASKS[0]))
    assert classifier.labels == LABELS and classifier.max_length == 16
    assert classifier.predict("goal") == classifier.predict(["goal"]) == classifier.predict(np.array(["goal"])) == classifier.predict(iter(["goal"]))
    assert classifier.predict([]) == [] and classifier.logits([]).shape == (0, 3)


def test_numbers_texts_across_chunks(folder, monkeypatch):
    classifier = mezzo.Classifier(folder(TASKS[0]), precision="fp32")
    expected = classifier.logits(TEXTS)
    monkeypatch.setattr(mezzo.text, "_ROWS_AT_A_TIME", 2)
    np.testing.assert_allclose(classifier.logits(TEXTS), expected, rtol=0, atol=1e-5)  # batches differ
    assert [row["text"] for row in classifier.predict(TEXTS)] == TEXTS


def test_wrong_input_is_refused_by_name(folder):
    path = folder(TASKS[0])
    classifier = mezzo.Classifier(path)
    for texts, error, message in [
        (["a", None], TypeError, r"texts\[1\] is a NoneType, expected a str"),
        ([b"a"], TypeError, r"texts\[0\] is a bytes, expected a str"),
        (["a", "b\ud800"], ValueError, r"^texts\[1\] has half of a surrogate pair, '\\ud800', at 1: it is not Unicode text$"),
        (None, TypeError, "texts is a NoneType, expected a str, or a list or column of them"),
        (dict(text=["a"]), TypeError, "texts is a dict, expected a str"),  # and a DataFrame, whose items are its columns' names, too
        (np.array([["a"]]), TypeError, "texts is a ndarray, expected a str"),
    ]:  # fmt: skip
        with pytest.raises(error, match=message):
            classifier.predict(texts)
    with pytest.raises(ValueError, match="there are 1 texts and 2 text_pairs; pass as many of both"):
        classifier.logits("a", ["b", "c"])
    with pytest.raises(ValueError, match="labels words of single texts; leave the pairs out"):
        mezzo.Classifier(folder(TASKS[3])).predict("a", "b")
    with pytest.raises(ValueError, match=r"the model labels words; call predict\(\)"):
        mezzo.Classifier(folder(TASKS[3])).logits("a")
    for options, message in [
        (dict(precision="fp8"), "^--precision 'fp8' is not known: fp32, bf16, fp16, int8, auto$"),
        (dict(device="gpu"), "^--device 'gpu' is not known"),
        (dict(precision="int8", device="cuda"), "int8 is for CPUs"),
        (dict(precision=None), "^--precision 'None' is not known"),
        (dict(max_length=1), "^--max-length is 1, expected at least 2$"),
        (dict(max_length=2**70), "^--max-length is 9223372036854775807, the model has positions for 16$"),
        (dict(max_length=17), "^--max-length is 17, the model has positions for 16$"),
    ]:  # fmt: skip
        with pytest.raises(ValueError, match=message):
            mezzo.Classifier(path, **options)
    with pytest.raises(TypeError, match="'str' object cannot be interpreted as an integer"):
        mezzo.Classifier(path, max_length="8")


def test_works_inside_the_modes_of_torch(folder):
    path = folder(TASKS[0])
    expected = mezzo.Classifier(path, precision="fp32", device=torch.device("cpu")).logits(TEXTS)
    for mode in (torch.inference_mode(), torch.autocast("cpu", torch.bfloat16), torch.device("meta")):
        with mode:
            classifier = mezzo.Classifier(path, precision="fp32")
            assert (classifier.logits(TEXTS) == expected).all()
        assert (classifier.logits(TEXTS) == expected).all()


def test_is_pickled_and_copied_by_its_path(folder, monkeypatch):
    path = folder(TASKS[0])
    monkeypatch.chdir(path.parent)
    classifier, tokenizer = mezzo.Classifier(path.name, precision="fp32", max_length=8), mezzo.Tokenizer(f"{path.name}/vocab.txt")
    saved = pickle.dumps((classifier, tokenizer))
    monkeypatch.chdir("/")
    for other, ids in (pickle.loads(saved), copy.deepcopy((classifier, tokenizer))):
        assert other.max_length == 8 and (other.logits("goal law") == classifier.logits("goal law")).all()
        assert ids.encode("goal law") == tokenizer.encode("goal law")


def test_files_that_are_missing_or_wrong_are_named(folder, tmp_path):
    shutil.copytree(folder(TASKS[0]), tmp_path / "model")
    weights = load_file(tmp_path / "model/model.safetensors")
    save_file({name: torch.full_like(value, math.nan) if name == "classifier.bias" else value for name, value in weights.items()},
              tmp_path / "model/model.safetensors", {"format": "pt"})
    with pytest.raises(RuntimeError, match="^the model's classifier.bias holds inf or NaN"):
        mezzo.Classifier(tmp_path / "model").predict("a")
    (tmp_path / "model/model.safetensors").write_bytes(b"no")
    with pytest.raises(ValueError, match="model.safetensors: ") as error:
        mezzo.Classifier(tmp_path / "model")
    assert "\n" not in str(error.value)
    (tmp_path / "model/config.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"config.json: cannot be read: No such file or directory\."):
        mezzo.Classifier(tmp_path / "model")
    with pytest.raises(ValueError, match="nowhere/nothing: there is no such folder, and the cache has no complete model of this name"):
        mezzo.Classifier("nowhere/nothing")


def test_messages_lose_their_places_in_sources():
    from mezzo._errors import error_of

    error = error_of("x: cannot be written: No space left on device\nException raised from f at a.cpp:3", ValueError)
    assert type(error) is OSError and str(error) == "x: cannot be written: No space left on device"
    assert type(error_of("a.csv:3: the label is missing", RuntimeError)) is RuntimeError
    assert type(error_of("/x: cannot be made: Permission denied", RuntimeError)) is PermissionError


def test_threads_share_a_classifier_and_python_goes_on(folder):
    classifier = mezzo.Classifier(folder(TASKS[0]), precision="fp32")
    texts = [" ".join(WORDS[i % 6:] + WORDS[:i % 5]) for i in range(3000)]
    expected, found, turns = classifier.logits(texts), {}, 0
    threads = [threading.Thread(target=lambda i=i: found.update({i: classifier.logits(texts)})) for i in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        turns += 1
    assert turns > 1000, "the GIL was held"
    assert all((found[i] == expected).all() for i in range(4))


def test_ctrl_c_ends_a_prediction_within_a_batch(folder, tmp_path):
    """One of minutes, in one chunk of texts. A handler that raises nothing lets it go on."""
    path = tmp_path / "model"
    shutil.copytree(folder(TASKS[0]), path)
    config = BertConfig.from_pretrained(path, hidden_size=512, intermediate_size=2048, num_hidden_layers=8, max_position_embeddings=512)
    AutoModelForSequenceClassification.from_config(config).save_pretrained(path)
    code = f"""
        import os, signal, sys, threading, time, mezzo, torch
        torch.set_num_threads(1)
        classifier, main, came = mezzo.Classifier({str(path)!r}, precision="fp32", max_length=512), threading.main_thread().ident, []

        def interrupt():
            while sys._current_frames()[main].f_code.co_name != "_run":
                time.sleep(0.01)
            time.sleep(1)  # to be among the batches
            os.kill(os.getpid(), signal.SIGINT)
            while not came:
                time.sleep(0.01)
            time.sleep(1)
            signal.pthread_kill(main, signal.SIGINT)

        def handle(number, frame):
            came.append(frame.f_code.co_name)
            if len(came) == 2:
                raise KeyboardInterrupt(came)

        signal.signal(signal.SIGINT, handle)
        threading.Thread(target=interrupt, daemon=True).start()
        classifier.predict(["goal " * 60] * 16000)
        """
    started = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stderr=subprocess.PIPE, text=True)
    try:
        _, said = started.communicate(timeout=100)
    finally:
        started.kill()
    assert said.splitlines()[-1] == "KeyboardInterrupt: ['_run', '_run']", said


def test_tokenizes_as_transformers_and_the_program(folder, tmp_path):
    path, pairs = folder(TASKS[0]), TEXTS[1:] + TEXTS[:1]
    ours, theirs = mezzo.Tokenizer(path), AutoTokenizer.from_pretrained(path)
    for given in ((TEXTS,), (TEXTS, pairs), (TEXTS[0],), (TEXTS[0], pairs[0])):
        expected = theirs(*given)
        for found in (ours(*given), mezzo.Tokenizer(path / "vocab.txt")(*given)):
            assert found["input_ids"] == expected["input_ids"] and found["token_type_ids"] == expected["token_type_ids"]
        assert ours.encode(*given) == expected["input_ids"]
    cut = theirs(TEXTS, truncation=True, max_length=6)["input_ids"]
    assert ours(TEXTS, max_length=6) == dict(input_ids=cut, token_type_ids=[[0] * len(ids) for ids in cut], truncated=[len(ids) > 6 for ids in ours.encode(TEXTS)])
    assert (ours.vocab_size, ours.pad_token_id, ours.model_max_length, ours.token(2)) == (len(theirs), theirs.pad_token_id, 16, "[CLS]")
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    done = support.mezzo("tokenize", "--model", path, "--data", tmp_path / "texts.jsonl")
    assert ours.encode(TEXTS) == [json.loads(line)["input_ids"] for line in done.stdout.splitlines()]
    assert ours.encode([]) == [] and ours.encode(b"goal \xff") == ours.encode("goal \ufffd")


def test_what_cannot_be_tokenized_is_refused(folder, tmp_path):
    tokenizer = mezzo.Tokenizer(folder(TASKS[0]))
    with pytest.raises(TypeError, match=r"text\[1\] is a int, expected a str"):
        tokenizer(["a", 3])
    with pytest.raises(ValueError, match=r"text_pair\[0\] has half of a surrogate pair"):
        tokenizer("a", "\ud800")
    with pytest.raises(TypeError, match="text is a dict, expected a str, or a list or column of them"):
        tokenizer(dict(text="a"))
    for encode in (tokenizer.split_words, lambda text: tokenizer.encode_windows(text, 5, 1)):
        with pytest.raises(TypeError, match="text is a list, expected a str"):
            encode(["a", "b"])
    with pytest.raises(TypeError, match="'NoneType' object cannot be interpreted as an integer"):
        tokenizer("a", max_length=None)
    with pytest.raises(ValueError, match="there are 2 texts and 1 second texts"):
        tokenizer(["a", "b"], ["c"])
    with pytest.raises(ValueError, match="a text has 2 special tokens"):
        tokenizer("a", max_length=1)
    with pytest.raises(ValueError, match="has the id 99; ids go from 0 to 14"):
        tokenizer.token(99)
    with pytest.raises(ValueError, match="has the id 4294967298; ids go from 0 to 14"):
        tokenizer.token(2**32 + 2)
    with pytest.raises(ValueError, match="there is no such folder"):
        mezzo.Tokenizer(tmp_path / "none")
    with pytest.raises(ValueError, match="^model is empty$"):
        mezzo.Tokenizer("")
    with pytest.raises(TypeError, match="^model is a NoneType, expected a str or bytes or PathLike$"):
        mezzo.Tokenizer(None)
    with pytest.raises(ValueError, match=r"^model is 'a\\x00b'; a path has no null characters$"):
        mezzo.Tokenizer("a\0b")
    with pytest.raises(ValueError, match="^folder has half of a surrogate pair"):
        tokenizer.save("a\ud800")
    assert tokenizer("goal", max_length=10**30) == tokenizer("goal")  # model_max_length of some tokenizers of transformers
