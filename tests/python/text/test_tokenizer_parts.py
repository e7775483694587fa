"""Tokenizers of parts against tokenizers and transformers: byte-level BPE, Unigram and WordPiece trained on Debian's
fortunes, in the folders of RoBERTa, XLM-R and others; the same ids for every input."""
import base64
import json
import random
import struct
import time
import unicodedata

import mezzo
import pytest
from support import (CODE_POINTS, assert_same_ids, assert_same_pairs, encodes, fortune_texts,
                     random_character)
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer

SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
ROBERTA_PAIR = ("</s>", 2), ("<s>", 0)


@pytest.fixture(scope="session")
def fortunes():
    return fortune_texts()


@pytest.fixture(scope="session")
def charsmap():
    """NFKC of every code point that it changes, and white space to spaces: the normalizer of sentencepiece models."""
    table = {c: unicodedata.normalize("NFKC", c) for c in WITH_CHARACTERS if unicodedata.normalize("NFKC", c) != c}
    table |= {unicodedata.normalize("NFD", c): c for c in CODE_POINTS[:0x2000]
              if 1 < len(unicodedata.normalize("NFD", c)) and unicodedata.normalize("NFC", c) == c}
    table |= {c: " " for c in "\t\n\r\u2028\u3000"} | {"\u200b": "", "\x07": ""}
    return double_array(table)


def double_array(table):
    """A charsmap of Darts-clone's layout, for strings and what takes their place."""
    values, replacements = {}, b""
    for key, value in sorted(table.items()):
        values[key.encode()] = len(replacements)
        replacements += value.encode() + b"\0"
    root = {}
    for key in values:
        node = root
        for byte in key:
            node = node.setdefault(byte, {})
        node[None] = values[key]
    units, used, low = {}, set(), 1

    def place(node, at, unit):
        nonlocal low
        labels = sorted(0 if k is None else k for k in node)
        while low in used:
            low += 1
        offset = low ^ labels[0]
        # A relative offset takes 21 bits, or 29 of which the low eight are zero; ours are small.
        while any(offset ^ label in used for label in labels) or (at ^ offset) == 0:
            offset += 1
        units[at] = unit | (at ^ offset) << 10 | (None in node) << 8
        for label in labels:
            used.add(offset ^ label)
        for key, child in node.items():
            if key is None:
                units[offset] = child | 1 << 31
        for key, child in node.items():
            if key is not None:
                place(child, offset ^ key, key)

    used.add(0)
    place(root, 0, 0)
    size = max(units) | 0xFF
    assert max(units) < 1 << 21
    array = struct.pack(f"<{size + 1}I", *(units.get(i, 0) for i in range(size + 1)))
    return struct.pack("<I", len(array)) + array + replacements


def trained(tokenizer, trainer, texts):
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


@pytest.fixture(scope="session")
def byte_level(fortunes):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trained(tokenizer, trainers.BpeTrainer(vocab_size=8000, special_tokens=SPECIAL, initial_alphabet=alphabet,
                                           show_progress=False), fortunes)
    tokenizer.post_processor = processors.RobertaProcessing(*ROBERTA_PAIR)
    return tokenizer


@pytest.fixture(scope="session")
def unigram(fortunes, charsmap):
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Precompiled(charsmap)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    trained(tokenizer, trainers.UnigramTrainer(vocab_size=5000, special_tokens=SPECIAL, unk_token="<unk>",
                                               show_progress=False), fortunes[::4])
    # tokenizers reads numbers of more than 15 digits to within the last bit, by which sums that
    # are equal except rounding differ from Python's.
    document = json.loads(tokenizer.to_str())
    document["model"]["vocab"] = [[token, round(score, 9)] for token, score in document["model"]["vocab"]]
    tokenizer = Tokenizer.from_str(json.dumps(document))
    single, pair = "<s> $A </s>", "<s> $A </s> </s> $B </s>"
    tokenizer.post_processor = processors.TemplateProcessing(single, pair, [("<s>", 0), ("</s>", 2)])
    return tokenizer


@pytest.fixture(scope="session")
def wordpiece(fortunes):
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trained(tokenizer, trainers.WordPieceTrainer(vocab_size=2000, special_tokens=special, show_progress=False), fortunes[::8])
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return tokenizer


# --- folders
# -------------------------------------------------------------------------------------------------

def loaded(folder, tokenizer, config=None, model_type=None):
    """The tokenizer as tokenizer.json in a folder, read by mezzo."""
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    if config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    if model_type:
        (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    return mezzo.Tokenizer(folder)


def copy_of(tokenizer):
    return Tokenizer.from_str(tokenizer.to_str())


# --- texts
# ---------------------------------------------------------------------------------------------------

# Code points with a character, more or less. The rest, unassigned and private, behave in the same
# way.
WITH_CHARACTERS = [c for c in CODE_POINTS if ord(c) < 0x33500 or 0xE0000 <= ord(c) < 0xE0200 or ord(c) % 61 == 0]


def code_point_texts(code_points=WITH_CHARACTERS, patterns=("aCb", " C ", "CC\u0301x", "가C\u0300")):
    """Every code point between letters, between spaces, and before a mark; many to a text."""
    return [" . ".join(p.replace("C", c) for c in code_points[i : i + 512]) for p in patterns
            for i in range(0, len(code_points), 512)]


BLOCKS = [(0x20, 0x7F), (0x20, 0x7F), (0, 0x20), (0x80, 0x250), (0x300, 0x370), (0x370, 0x600), (0x591, 0x700),
          (0x900, 0xE00), (0x1100, 0x1200), (0x1F00, 0x2000), (0x2000, 0x2070), (0x20D0, 0x2100), (0x3040, 0x3130),
          (0x4E00, 0x4F00), (0xAC00, 0xD7B0), (0xF900, 0xFB00), (0xFE00, 0xFE70), (0xFF00, 0x10000), (0x11000, 0x11D00),
          (0x1D100, 0x1D200), (0x1F1E0, 0x1F200), (0x1F300, 0x1FA00), (0x20000, 0x20100), (0xE0000, 0xE0200)]
PIECES = ["hello", " World", "don't", "'s", "'ll'RE", "we've", "  ", "   ", "\n", "\t\n ", "\r\n", " \u3000", "3.14", "２٣",
          "naïve", "e\u0301\u0323", "ﬁn", "한국어", "각", "ㅎ", "今天", "👩‍👩‍👧", "🇨🇳🇩", "❤️", "क्षि", "क्\u200dष", "İ", "ΣΑΣ", "▁", "▁a", "<s>",
          "<mask>", " <mask>", "</s>", "<unk>", "<pad>", "<s", "xyz" * 30, "=" * 40, "antidisestablishmentarianism"]


def random_texts(seed, count):
    rng = random.Random(seed)

    piece = lambda: rng.choice(PIECES) if rng.random() < 0.6 else "".join(random_character(rng, BLOCKS) for _ in range(rng.randint(1, 6)))
    return ["", " ", "  ", "\n"] + ["".join(piece() + rng.choice(["", " "]) for _ in range(rng.randint(0, 10)))
                                    for _ in range(count)]


LONG_TEXTS = ["a" * 100_000, "ab" * 50_000, " " * 100_000, "\u0301" * 50_000, "e\u0301" * 30_000, "漢" * 30_000, "<s>" * 10_000,
              "the quick " * 10_000, "thethe" * 20_000, "1" * 50_000, "'" * 50_000, "▁" * 30_000]


def all_texts(fortunes, seed, every=7):
    return fortunes[::every] + random_texts(seed, 14000 // every)


# --- byte-level BPE
# ------------------------------------------------------------------------------------------

def test_byte_level_bpe_on_every_code_point(byte_level, tmp_path):
    # Without a normalizer a mark is like any other neighbour: the last pattern shows nothing more.
    assert_same_ids(loaded(tmp_path, byte_level), byte_level, code_point_texts(patterns=("aCb", " C ", "CC\u0301x")))


def test_byte_level_bpe_on_many_texts(byte_level, fortunes, tmp_path):
    ours = loaded(tmp_path, byte_level)
    assert_same_ids(ours, byte_level, all_texts(fortunes, 1))
    assert_same_ids(ours, byte_level, LONG_TEXTS)
    assert_same_pairs(ours, byte_level, random_texts(2, 300))


def test_invalid_utf8_is_read_as_python_replaces_it(byte_level, tmp_path):
    rng = random.Random(3)
    edges = bytes.fromhex("00 41 7f 80 8f 90 9f a0 bf c0 c1 c2 df e0 e4 ed ef f0 f4 f5 ff 27 20")
    texts = [bytes(rng.choice(edges) for _ in range(rng.randint(0, 12))) for _ in range(10000)]
    assert_same_ids(loaded(tmp_path, byte_level), byte_level, texts)


@pytest.mark.parametrize("config", [{}, {"add_prefix_space": True}, {"mask_token": {"__type": "AddedToken", "content": "<mask>", "lstrip": True}},
                                    {"cls_token": "hello", "sep_token": "<new>"}, {"extra_special_tokens": ["<new>"]}])
def test_roberta_folder_loads_as_auto_tokenizer_loads_it(config, byte_level, fortunes, tmp_path):
    ours = loaded(tmp_path, byte_level, {"tokenizer_class": "RobertaTokenizer", **config}, "roberta")
    theirs = AutoTokenizer.from_pretrained(str(tmp_path))
    assert type(theirs).__name__ == "RobertaTokenizer"
    texts = all_texts(fortunes, 4) + ["a <new>b<new>"]
    assert_same_ids(ours, theirs, texts)
    assert_same_pairs(ours, theirs, texts[-200:])
    assert ours.pad_token_id == theirs.pad_token_id and ours.vocab_size == len(theirs)
    assert_saved_alike(ours, tmp_path / "saved", "roberta", texts)


def test_vocab_json_and_merges_txt(byte_level, fortunes, tmp_path):
    byte_level.model.save(str(tmp_path))
    (tmp_path / "config.json").write_text('{"model_type": "roberta"}')
    ours, theirs = mezzo.Tokenizer(tmp_path), AutoTokenizer.from_pretrained(str(tmp_path))
    assert_same_ids(ours, theirs, all_texts(fortunes, 5))


def test_a_merge_that_the_vocabulary_lacks_is_told_by_its_line(byte_level, tmp_path):
    byte_level.model.save(str(tmp_path))
    (tmp_path / "config.json").write_text('{"model_type": "roberta"}')
    merges = (tmp_path / "merges.txt").read_text().splitlines()
    for left, right in (("\u0120zz", "a"), ("a", "\u0120zz"), ("\u0120", "\u0120zzz"), (merges[3].split()[0], "q\u0120")):
        (tmp_path / "merges.txt").write_text("\n".join([*merges[:3], f"{left} {right}", *merges[3:]]) + "\n")
        with pytest.raises(ValueError, match=r'merges.txt:4: has the token ".*", which .*vocab.json lacks; fetch both files again'):
            mezzo.Tokenizer(tmp_path)


def test_a_pointer_of_git_lfs_is_told(byte_level, tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "roberta"}')
    (tmp_path / "tokenizer.json").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:12\nsize 466062\n")
    with pytest.raises(ValueError, match="tokenizer.json: holds a pointer of Git LFS in place of the file; `git lfs pull` fetches"):
        mezzo.Tokenizer(tmp_path)


def assert_saved_alike(ours, folder, model_type, texts):
    """transformers and mezzo read mezzo's files, and give the same ids."""
    folder.mkdir()
    ours.save(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    assert_same_ids(ours, AutoTokenizer.from_pretrained(str(folder)), texts)
    again = mezzo.Tokenizer(folder)
    assert again.encode(texts) == ours.encode(texts)
    assert (again.pad_token_id, again.vocab_size) == (ours.pad_token_id, ours.vocab_size)


MODERNBERT = dict(single="[CLS]:0 $A:0 [SEP]:0", pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1")


def test_modernbert_folder(byte_level, fortunes, tmp_path):
    tokenizer = copy_of(byte_level)
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.add_special_tokens(["[CLS]", "[SEP]", "[PAD]", AddedToken("[MASK]", lstrip=True, special=True)])
    tokenizer.add_tokens([AddedToken(" " * n, normalized=True) for n in range(2, 24)])
    tokenizer.post_processor = processors.TemplateProcessing(
        **MODERNBERT, special_tokens=[(t, tokenizer.token_to_id(t)) for t in ("[CLS]", "[SEP]")])
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "[PAD]", "model_max_length": 8192}
    ours = loaded(tmp_path, tokenizer, config, "modernbert")
    theirs = AutoTokenizer.from_pretrained(str(tmp_path))
    texts = all_texts(fortunes, 6) + ["a [MASK]  b", "e\u0301  \u0344 각", "   x      y"]
    assert_same_ids(ours, theirs, texts + code_point_texts()[:2000] + LONG_TEXTS)
    assert_same_pairs(ours, theirs, texts[-300:])
    assert ours.pad_token_id == theirs.pad_token_id and ours.model_max_length == 8192
    assert_saved_alike(ours, tmp_path / "saved", "modernbert", texts)


@pytest.mark.parametrize("side", ["right", "left"])
def test_truncation_of_texts_and_pairs_at_every_length(side, byte_level, tmp_path):
    ours = loaded(tmp_path, byte_level, {"tokenizer_class": "RobertaTokenizer", "truncation_side": side}, "roberta")
    theirs = AutoTokenizer.from_pretrained(str(tmp_path))
    rng = random.Random(7)
    texts = [" ".join(rng.choice(["hello", "unaffable", "x" * 9, "."]) for _ in range(rng.randint(0, 20))) for _ in range(40)]
    pairs = texts[1:] + texts[:1]
    for max_length in range(2, 41):
        expected = theirs(texts, truncation=True, max_length=max_length)["input_ids"]
        assert ours.encode(texts, max_length=max_length) == expected
        assert ours(texts, max_length=max_length)["truncated"] == [len(ids) > max_length for ids in ours.encode(texts)]
        if max_length > 4:
            expected = theirs(texts, pairs, truncation=True, max_length=max_length)["input_ids"]
            assert ours.encode(texts, pairs, max_length) == expected
    with pytest.raises(ValueError, match="max_length is 3, but a text has 4 special tokens"):
        ours.encode("a", "b", 3)


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("kind", ["byte_level", "byte_level with spaces", "unigram", "wordpiece"])
def test_words_that_are_known(kind, side, fortunes, request, tmp_path):
    """Ids and the words they are of; in a byte-level one words begin with spaces, as transformers asks for."""
    tokenizer = request.getfixturevalue(kind.split()[0])
    if kind == "byte_level with spaces":
        tokenizer = copy_of(tokenizer)
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer = copy_of(tokenizer)
    tokenizer.add_tokens(["<new>", AddedToken("<left>", lstrip=True)])
    ours = loaded(tmp_path, tokenizer, {"tokenizer_class": "PreTrainedTokenizerFast", "truncation_side": side})
    theirs = copy_of(tokenizer)
    if kind == "byte_level":
        theirs.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    rng = random.Random(8)
    odd = ["", " ", "a b", " x", "<new>", "a<left>", "unaffable", "\u200b", "漢字", "\u0301", "don't", "\ufeff"]
    texts = [text.split()[:40] for text in fortunes[::200]] + [rng.choices(odd, k=rng.randint(0, 9)) for _ in range(80)]
    for words in texts:
        expected = theirs.encode(words, is_pretokenized=True)
        ids = [-1 if word is None else word for word in expected.word_ids]
        assert tuple(ours.encode_words(words).values()) == (expected.ids, expected.type_ids, False, ids), words
        for max_length in (3, 4, 7, 11):
            theirs.enable_truncation(max_length, direction=side)
            cut = theirs.encode(words, is_pretokenized=True)
            theirs.no_truncation()
            ids = [-1 if word is None else word for word in cut.word_ids]
            assert tuple(ours.encode_words(words, max_length).values()) == (cut.ids, cut.type_ids, len(expected.ids) > max_length, ids), words


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("kind", ["byte_level", "wordpiece"])
def test_windows(kind, side, fortunes, request, tmp_path):
    tokenizer = request.getfixturevalue(kind)
    ours = loaded(tmp_path, tokenizer, {"tokenizer_class": "PreTrainedTokenizerFast", "truncation_side": side})
    theirs = AutoTokenizer.from_pretrained(str(tmp_path), truncation_side=side)
    texts = ["", "a", *fortunes[::150]]
    for max_length, stride in [(3, 0), (5, 2), (12, 0), (12, 9), (40, 15), (4096, 3)]:
        for text in texts:
            expected = theirs(text, truncation=True, max_length=max_length, stride=stride, return_overflowing_tokens=True)["input_ids"]
            assert ours.encode_windows(text, max_length, stride) == expected
    with pytest.raises(ValueError, match="windows that overlap by 3 tokens hold 3 of a text; pass a stride from 0 to 2"):
        ours.encode_windows("a", 5, 3)


# --- Unigram
# -------------------------------------------------------------------------------------------------

def test_unigram_on_every_code_point(unigram, tmp_path):
    assert_same_ids(loaded(tmp_path, unigram), unigram, code_point_texts())


def test_unigram_on_many_texts(unigram, fortunes, tmp_path):
    ours = loaded(tmp_path, unigram)
    assert_same_ids(ours, unigram, all_texts(fortunes, 8))
    assert_same_ids(ours, unigram, LONG_TEXTS)
    assert_same_pairs(ours, unigram, random_texts(9, 300))


@pytest.mark.parametrize("name, model_type, configs", [
    ("XLMRobertaTokenizer", "xlm-roberta", [{}, {"add_prefix_space": False}]),
    ("CamembertTokenizer", "camembert", [{}, {"extra_special_tokens": ["<new>"]}]),
    ("DebertaV2Tokenizer", "deberta-v2", [{}, {"do_lower_case": True}, {"split_by_punct": True, "unk_token": "<unk>"},
                                          {"add_prefix_space": False}]),
])
def test_unigram_folder_loads_as_auto_tokenizer_loads_it(name, model_type, configs, unigram, fortunes, tmp_path):
    for i, config in enumerate(configs):
        folder = tmp_path / str(i)
        ours = loaded(folder, unigram, {"tokenizer_class": name, **config}, model_type)
        theirs = AutoTokenizer.from_pretrained(str(folder))
        assert type(theirs).__name__ == name
        texts = all_texts(fortunes, 10) + ["a <new>b", "[CLS] a [MASK]b", " a", "  a", "\na", "a  "]
        assert_same_ids(ours, theirs, texts)
        assert_same_pairs(ours, theirs, texts[-200:])
        assert ours.pad_token_id == theirs.pad_token_id and ours.vocab_size == len(theirs)
        assert_saved_alike(ours, folder / "saved", model_type, texts)


def test_metaspace_asks_where_each_word_begins_behind_a_charsmap(unigram, fortunes, tmp_path):
    tokenizer = copy_of(unigram)
    tokenizer.pre_tokenizer = P.Sequence([P.Digits(True), P.Punctuation(), P.Metaspace(prepend_scheme="first")])
    rng = random.Random(22)
    starts = ["½", "ﷺ", "\u200b", "\u200b\x07", "\x07½", "e\u0301", "①.", "㎏1", "…", "\u3000", "가\u11a8", "\r\n", "h"]
    texts = ["".join(rng.choice(starts) for _ in range(rng.randint(1, 4))) + rng.choice(["", "hello", " 1"]) for _ in range(1000)]
    assert_same_ids(loaded(tmp_path, tokenizer), tokenizer, [*starts, *texts, *fortunes[::97]])


# --- WordPiece, and single parts
# ---------------------------------------------------------------------------------

@pytest.mark.parametrize("with_json", [False, True])
@pytest.mark.parametrize("model_type, name", [
    ("distilbert", None), ("distilbert", "DistilBertTokenizer"), ("electra", "ElectraTokenizerFast"),
    ("mobilebert", "MobileBertTokenizer"), ("squeezebert", None)])
def test_wordpiece_folders_are_read_as_berts(model_type, name, with_json, wordpiece, fortunes, tmp_path):
    config = {"do_lower_case": False, **({} if name is None else {"tokenizer_class": name})}
    if with_json:
        ours = loaded(tmp_path, wordpiece, config, model_type)
    else:
        tokens = sorted(wordpiece.get_vocab().items(), key=lambda item: item[1])
        (tmp_path / "vocab.txt").write_text("".join(token + "\n" for token, _ in tokens))
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
        (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
        ours = mezzo.Tokenizer(tmp_path)
    theirs = AutoTokenizer.from_pretrained(str(tmp_path))
    texts = all_texts(fortunes, 18, 40)
    assert_same_ids(ours, theirs, texts)
    assert_same_pairs(ours, theirs, texts[-50:])
    assert ours.pad_token_id == theirs.pad_token_id
    assert_saved_alike(ours, tmp_path / "saved", model_type, texts)


N, P = normalizers, pre_tokenizers
PARTS = {
    "nfd": (N.NFD(), None), "nfkc": (N.NFKC(), None), "nfkd": (N.NFKD(), None), "nfc": (N.NFC(), None),
    "lowercase": (N.Lowercase(), None), "strip": (N.Strip(), P.Whitespace()),
    "accents": (N.Sequence([N.NFD(), N.StripAccents()]), P.WhitespaceSplit()),
    "replace": (N.Sequence([N.Replace("``", '"'), N.Replace(Regex(" {2,}"), "_"), N.Prepend("_")]), None),
    "replace-regex": (N.Replace(Regex(r"\s{2,}|[\n\r\t]"), " "), P.Metaspace(prepend_scheme="first")),
    "bert": (N.BertNormalizer(), P.BertPreTokenizer()), "whitespace": (None, P.Whitespace()),
    "metaspace-whole": (None, P.Metaspace(prepend_scheme="never", split=False)),
    "metaspace-never": (None, P.Metaspace(prepend_scheme="never")),
    "digits": (None, P.Digits(individual_digits=True)),
    "digits, byte-level": (None, P.Sequence([P.Digits(individual_digits=True), P.ByteLevel(use_regex=False)])),
    "digits-together": (None, P.Digits()),
    "byte-level-inside": (None, P.Sequence([P.ByteLevel(add_prefix_space=True), P.Punctuation()])),
    **{f"punctuation-{b}": (None, P.Punctuation(b)) for b in
       ("removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous")},
    **{f"split-{b}-{i}": (None, P.Split(Regex(r"\s+"), b, invert=i)) for i in (True, False) for b in
       ("removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous")},
    "split-gpt2": (None, P.Split(Regex(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"),
                                 "isolated")),
    "split-string": (None, P.Split("'", "merged_with_next")),
}


@pytest.fixture(scope="session")
def letters():
    """A model that marks the beginnings of words: a token for each character, and another one inside
    a word."""
    some = [c for c in CODE_POINTS[:0x20000] if ord(c) < 0x3400 or 0xA000 <= ord(c) < 0xAC00 or ord(c) > 0xF900 or ord(c) % 7 == 0]
    letters = [c for c in some if ord(c) % 2 == 0 or ord(c) < 0x3100 or c == "\ufffd"]
    vocab = {token: i for i, token in enumerate(["<unk>", *letters, *("##" + c for c in letters)])}
    texts = code_point_texts(some + CODE_POINTS[0x2F000:0x2F300], ["aCb  CC\u0301x"])
    return models.BPE(vocab, [], unk_token="<unk>", continuing_subword_prefix="##"), texts


@pytest.mark.parametrize("name", PARTS)
def test_parts(name, letters, fortunes, tmp_path):
    model, texts = letters
    tokenizer = Tokenizer(model)
    tokenizer.normalizer, tokenizer.pre_tokenizer = PARTS[name]
    if tokenizer.pre_tokenizer is None:
        tokenizer.pre_tokenizer = P.WhitespaceSplit()
    ours = loaded(tmp_path, tokenizer)
    assert_same_ids(ours, tokenizer, all_texts(fortunes, 12, 40) + texts)
    assert_same_pairs(ours, tokenizer, random_texts(13, 40))


@pytest.mark.parametrize("options", [
    dict(fuse_unk=True), dict(fuse_unk=False), dict(continuing_subword_prefix="##"), dict(end_of_word_suffix="</w>"),
    dict(continuing_subword_prefix="@@", end_of_word_suffix="</w>"), dict(byte_fallback=True),
    dict(byte_fallback=True, fuse_unk=True), dict(ignore_merges=True), dict(unk_token=None)], ids=str)
def test_bpe_options(options, fortunes, tmp_path):
    affixes = {k: v for k, v in options.items() if k.startswith(("cont", "end"))}
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", **affixes))
    tokenizer.pre_tokenizer = P.Whitespace()
    # Some bytes have no token, so that some characters can fall back on bytes, and some not.
    special = ["<unk>"] + [f"<0x{b:02X}>" for b in range(0x20, 0xE8)]
    trained(tokenizer, trainers.BpeTrainer(vocab_size=3000, special_tokens=special, show_progress=False, **affixes), fortunes[::5])
    document = json.loads(tokenizer.to_str())
    document["model"] |= options
    document["model"]["vocab"]["governmental xyz"] = len(document["model"]["vocab"])
    tokenizer = Tokenizer.from_str(json.dumps(document))
    assert_same_ids(loaded(tmp_path, tokenizer), tokenizer, all_texts(fortunes, 14, 20) + LONG_TEXTS)


@pytest.mark.parametrize("options", [dict(byte_fallback=True), dict(end_of_word_suffix="!"), dict(continuing_subword_prefix="#")],
                         ids=str)
def test_byte_level_words_for_a_model_that_reads_characters(options, fortunes, tmp_path):
    """Text around a character of ByteLevel, or in its place, depends on the character, not on its byte."""
    tokens = ["<unk>", "e", "t", "Ġ", "Ġt", "é", "e!", "#e", "#t", "#Ġ", *(f"<0x{b:02X}>" for b in range(0x20, 0xE0))]
    vocab = {token: i for i, token in enumerate(tokens)}
    merges = [] if "continuing_subword_prefix" in options else [("Ġ", "t")]
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", **options))
    tokenizer.pre_tokenizer = P.ByteLevel()
    assert_same_ids(loaded(tmp_path, tokenizer), tokenizer, all_texts(fortunes, 19, 40))


def test_ids_with_gaps_take_no_memory(byte_level, tmp_path):
    document = json.loads(byte_level.to_str())
    document["model"]["vocab"]["far away"] = 2**31 - 2
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    ours = mezzo.Tokenizer(tmp_path)
    (tmp_path / "saved").mkdir()
    ours.save(tmp_path / "saved")
    texts = random_texts(20, 50)
    assert mezzo.Tokenizer(tmp_path / "saved").encode(texts) == ours.encode(texts)


def test_template_in_full_generality(byte_level, tmp_path):
    tokenizer = copy_of(byte_level)
    special = [{"id": "two", "ids": [5, 6], "tokens": ["a", "b"]}, ("<s>", 0), ("</s>", 2)]
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(), processors.TemplateProcessing(
        single="two $A:3 </s>:1 <s>", pair="$B:2 two:4 $A:1 </s> $B", special_tokens=special)])
    ours = loaded(tmp_path, tokenizer)
    assert_same_ids(ours, tokenizer, ["", "hello", "a b"])
    assert_same_pairs(ours, tokenizer, random_texts(15, 200))


# Of cl100k_base (GPT-4, Qwen2), o200k_base, Llama 3, DeepSeek, Digits in groups of three, BLOOM; others that use what only Oniguruma has.
REGEXES = [
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"[\r\n]", r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯ]+", r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", r"[一-龥ࠀ-一가-퟿]+", r"\p{N}{1,3}(?=(?:\p{N}{3})*\b)",
    r" ?[^(\s|[.,!?…。，、।۔،])]+", r"(?m:.)", r"(\w)\1", r"\h+", r"\X", r"\R", r"(?<![\p{L}])e",
    r"[[:punct:]]", r"\\G", r"[\u0300-\u036f]", r"\p{Han}|\p{Emoji}", r"a++b|a(?>b+)c", r"\s{2,}|[\n\r\t]", r"  +", r"\s",
]
EMPTY = [r"(?=[A-Z])", r"(?<=[a-z])(?=[A-Z])", r"x*", r"\b", r"^", r"$", r"(?:)"]


@pytest.mark.parametrize("regex", REGEXES + EMPTY)
def test_any_regular_expression_splits_and_replaces(regex, byte_level, tmp_path):
    # Debian 12's Oniguruma has the characters of Unicode 14, as Python 3.11 has. The Oniguruma of tokenizers has Unicode 16.
    texts = ["".join(c for c in text if unicodedata.category(c) != "Cn") for text in random_texts(31, 150)] + ["", "x", "axxb", "helloWorld ABc", "aabbcc 1234567", "don't DON'T\r\n\r\n  x", "\x00\x00", "e\u0301\u200d👩‍💻", " " * 300, "a" * 5000]
    texts.append("\n".join(2 * texts))  # which is read in another way: it is long
    assert len(texts[-1].encode()) > 20_000
    for i, behavior in enumerate(["isolated", "removed", "merged_with_previous", "merged_with_next", "contiguous"]):
        tokenizer = copy_of(byte_level)
        split = pre_tokenizers.Split(Regex(regex), behavior, invert=i % 2 == 1)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
        assert_same_ids(loaded(tmp_path / behavior, tokenizer), tokenizer, texts)
    if regex not in EMPTY:  # whose matches tokenizers panics on, or writes to other places
        tokenizer = copy_of(byte_level)
        tokenizer.normalizer = normalizers.Replace(Regex(regex), "<é>")
        assert_same_ids(loaded(tmp_path / "replace", tokenizer), tokenizer, texts)


def test_a_regular_expression_reads_invalid_utf8_as_replacement_characters(byte_level, tmp_path):
    tokenizer = copy_of(byte_level)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(REGEXES[0]), "isolated"),
                                                       pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    ours = loaded(tmp_path, tokenizer)
    rng = random.Random(32)
    for _ in range(300):
        text = bytes(rng.choice([0x20, 0x41, 0x61, 0xC3, 0xA9, 0xE4, 0xBD, 0xA0, 0xF0, 0x9F, 0xFF, 0x00]) for _ in range(rng.randint(0, 20)))
        assert ours.encode(text) == ours.encode(text.decode("utf-8", "replace"))


@pytest.mark.parametrize("regex", [r"(a|a)*$", r"(x+x+)+y", r"(.*)*\d"])
def test_a_regular_expression_that_takes_for_ever_is_an_error_in_one_line(regex, byte_level, tmp_path):
    tokenizer = copy_of(byte_level)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(regex), "isolated")
    ours = loaded(tmp_path, tokenizer)
    start = time.thread_time()
    with pytest.raises(ValueError, match=r"pre_tokenizer.pattern.Regex: the regular expression takes too many steps for a text of \d+ bytes"):
        ours.encode("a" * 3000 + "x" * 3000 + "!")
    assert time.thread_time() - start < 10
    assert ours.encode("a")


@pytest.mark.parametrize("regex", [r"\p{L}+!|[^ ]", r"[a-z]++!"])
def test_a_regular_expression_takes_linear_time_in_all_or_is_an_error(regex, byte_level, tmp_path):
    tokenizer = copy_of(byte_level)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(regex), "isolated")
    ours = loaded(tmp_path, tokenizer)
    assert ours.encode("some words! and more " * 30_000)
    start = time.thread_time()
    with pytest.raises(ValueError, match=r"pre_tokenizer.pattern.Regex: the regular expression takes too much time for a text of 400000 bytes"):
        ours.encode("a" * 400_000)
    assert time.thread_time() - start < 20


def test_added_tokens_with_random_flags(byte_level, tmp_path):
    rng = random.Random(16)
    contents = ["<x>", "<x><y>", "<", "Foo", "foo", " bar", "bar ", "é", "漢字", "a b", "\t", "hello", "!", "1", "don", "  "]
    for round_ in range(15):
        tokenizer = copy_of(byte_level)
        flags = lambda: {k: rng.random() < 0.3 for k in ("single_word", "lstrip", "rstrip", "special")}
        tokens = [AddedToken(c, normalized=rng.random() < 0.5, **flags()) for c in rng.sample(contents, 6)]
        tokenizer.add_tokens(tokens)
        ours = loaded(tmp_path / str(round_), tokenizer)
        theirs = Tokenizer.from_file(str(tmp_path / str(round_) / "tokenizer.json"))
        glue = ["", "", " ", "\t ", "\u3000", "a", "_", "."]
        texts = ["".join(rng.choice(contents) + rng.choice(glue) for _ in range(rng.randint(1, 9))) for _ in range(300)]
        assert_same_ids(ours, theirs, [text for text in texts if encodes(theirs, text)])


# --- broken files
# -------------------------------------------------------------------------------------------------

REPLACE = {"type": "Replace", "pattern": {"String": "a"}, "content": "b"}
SPLIT = {"type": "Split", "pattern": {"String": "a"}, "behavior": "Isolated", "invert": False}
TEMPLATE = {"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}], "special_tokens": {}}


@pytest.mark.parametrize("change, message", [
    (lambda d: d["model"].update(type="WordLevel"), r"model must be BPE, Unigram or WordPiece, got \"WordLevel\""),
    (lambda d: d["model"].update(dropout=0.1), r"model.dropout must be null .* got 0.1"),
    (lambda d: d["model"]["merges"].append(["a", "\u1234"]), r"model.merges\[\d+\] has the token .* vocabulary lacks"),
    (lambda d: d["model"]["merges"].append("a"), r"model.merges\[\d+\] must be two tokens, got \"a\""),
    (lambda d: d["model"]["vocab"].update(a=-1), r"model.vocab\[\"a\"\] must be an id"),
    (lambda d: d["model"]["vocab"].update(a=0), r"model.vocab gives the id 0 to both"),
    (lambda d: d.update(normalizer={"type": "Nmt"}), r"normalizer must be one of NFC.* got \"Nmt\""),
    (lambda d: d.update(normalizer={"type": "Replace", "pattern": {"Regex": "(x"}, "content": ""}),
     r"normalizer.pattern.Regex is not a regular expression of Oniguruma: \"end pattern with unmatched parenthesis\""),
    (lambda d: d.update(normalizer={"type": "Precompiled", "precompiled_charsmap": "AAA"}), "is not base64"),
    (lambda d: d.update(normalizer={"type": "Precompiled", "precompiled_charsmap": "/////w=="}), "are not a charsmap"),
    (lambda d: d.update(pre_tokenizer={"type": "UnicodeScripts"}), r"pre_tokenizer must be one of .* got \"UnicodeScripts\""),
    (lambda d: d.update(pre_tokenizer={"type": "Split", "pattern": {"Regex": "x" * 65537}, "behavior": "Isolated", "invert": False}),
     r"pre_tokenizer.pattern.Regex must be a regular expression of at most 65536 bytes"),
    (lambda d: d.update(post_processor={"type": "Odd"}), r"post_processor must be one of .* got \"Odd\""),
    (lambda d: d["post_processor"].update(cls=["<s>", 8000]), r"post_processor.cls\[1\] must be an id below 8000.* got 8000"),
    (lambda d: (d["model"].update(continuing_subword_prefix="#"), d["model"]["vocab"].update({"é": 8000}),
                d["model"]["merges"].append(["a", "é"])), r"model.merges\[\d+\] has the token .* vocabulary lacks"),
    (lambda d: d.update(normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAAAAB="}), "is not base64"),
    (lambda d: d["added_tokens"][0].update(id=77), r"is listed with the id 77 but its place in the vocabulary is 0"),
    # Made to take time, stack or memory out of all proportion.
    (lambda d: d.update(pre_tokenizer={"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}] * 33}),
     r"pre_tokenizer.pretokenizers\[32\] must be one of at most 32 steps"),
    (lambda d: d.update(pre_tokenizer={"type": "Sequence", "pretokenizers": [{"type": "ByteLevel", "add_prefix_space": False}] * 2}),
     r"pre_tokenizer.pretokenizers\[1\] must be the only ByteLevel"),
    (lambda d: d.update(normalizer={"type": "Sequence", "normalizers": [{"type": "Lowercase"}] * 33}),
     r"normalizer.normalizers\[32\] must be one of at most 32 steps"),
    (lambda d: d.update(normalizer={**REPLACE, "content": "b" * 65}), "normalizer.content must be a string of at most 64 bytes"),
    (lambda d: d.update(normalizer={"type": "Prepend", "prepend": "b" * 65}), "normalizer.prepend must be a string of at most 64 bytes"),
    (lambda d: (d.update(normalizer={"type": "Sequence", "normalizers": [{**REPLACE, "content": "aa"}] * 32}),
                d["added_tokens"].append({"id": 8000, "content": "a" * 900, "normalized": True})),
     "normalizer makes more than 79936 bytes of a text of 900; take out steps that lengthen texts"),
    (lambda d: (d.update(normalizer={**REPLACE, "content": "aa"}), d["added_tokens"].append({"id": 8000, "content": "a" * 501, "normalized": True})),
     "the added token .*, normalized: a token of 1002 bytes; at most 1000"),
    (lambda d: d.update(normalizer={"type": "Precompiled", "precompiled_charsmap": base64.b64encode(
        struct.pack("<II", 4, 0) + b"a" * 65 + b"\0").decode()}), "a replacement of the charsmap has 65 bytes; at most 64 are read"),
    (lambda d: d["model"].update(continuing_subword_prefix="#" * 65), "model.continuing_subword_prefix must be a string of at most 64 bytes"),
    (lambda d: d.update(post_processor={**TEMPLATE, "single": TEMPLATE["single"] * 65}), "post_processor.single must be an array of at most 64 pieces"),
    (lambda d: d.update(post_processor={**TEMPLATE, "single": [{"SpecialToken": {"id": "x", "type_id": 0}}] * 2,
                                        "special_tokens": {"x": {"id": "x", "ids": [0] * 501, "tokens": []}}}),
     r"post_processor.single\[1\] must be one of pieces that have at most 1000 ids together"),
])
def test_what_is_not_known_is_refused_by_file_key_and_value(change, message, byte_level, tmp_path):
    document = json.loads(byte_level.to_str())
    change(document)
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    with pytest.raises(ValueError, match=message) as error:
        mezzo.Tokenizer(tmp_path)
    assert str(error.value).startswith(str(tmp_path / "tokenizer.json"))


def part(name, value, key="odd"):
    """A section that is one, with a key that nobody knows."""
    return {name: {**value, key: True}}, f"{name} has the key \"{key}\""


@pytest.mark.parametrize("change, message", [
    ({"odd": 1}, 'the file has the key "odd"'),
    part("truncation", {"direction": "Left", "max_length": 5, "strategy": "LongestFirst", "stride": 0}),
    part("padding", {"strategy": "BatchLongest", "direction": "Right", "pad_id": 0, "pad_token": "<pad>"}),
    *(part("normalizer", {"type": name}) for name in ("NFC", "NFKD", "Lowercase", "StripAccents")),
    part("normalizer", {"type": "Strip", "strip_left": True, "strip_right": True}),
    part("normalizer", {"type": "Prepend", "prepend": "a"}),
    part("normalizer", {"type": "Sequence", "normalizers": []}),
    part("normalizer", {"type": "Precompiled", "precompiled_charsmap": "AAA"}),
    part("normalizer", {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None,
                        "lowercase": True}),
    part("normalizer", REPLACE, "flags"),
    ({"normalizer": {**REPLACE, "pattern": {"String": "a", "x": 1}}}, r'normalizer.pattern has the key "x"'),
    *(part("pre_tokenizer", {"type": name}) for name in ("BertPreTokenizer", "Whitespace", "WhitespaceSplit")),
    part("pre_tokenizer", {"type": "ByteLevel", "add_prefix_space": True}),
    part("pre_tokenizer", {"type": "Metaspace", "replacement": "_"}),
    part("pre_tokenizer", {"type": "Punctuation"}), part("pre_tokenizer", {"type": "Digits", "individual_digits": True}),
    part("pre_tokenizer", SPLIT), part("pre_tokenizer", {"type": "Sequence", "pretokenizers": []}),
    part("post_processor", TEMPLATE), part("post_processor", {"type": "ByteLevel"}),
    part("post_processor", {"type": "BertProcessing", "cls": ["<s>", 0], "sep": ["</s>", 2]}, "trim_offsets"),
    part("post_processor", {"type": "RobertaProcessing", "cls": ["<s>", 0], "sep": ["</s>", 2]}),
    part("post_processor", {"type": "Sequence", "processors": []}),
    ({"post_processor": {**TEMPLATE, "single": [{"Sequence": {"id": "A", "type_id": 0, "x": 1}}]}},
     r'post_processor.single\[0\].Sequence has the key "x"'),
    ({"added_tokens": [{"id": 0, "content": "<s>", "x": 1}]}, r'added_tokens\[0\] has the key "x"'),
    part("model", {"type": "Unigram", "unk_id": 0, "vocab": [["a", 0.0]]}),
    part("model", {"type": "BPE", "vocab": {"a": 0}, "merges": []}),
    part("model", {"type": "WordPiece", "unk_token": "a", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
                   "vocab": {"a": 0}}),
])
def test_a_key_that_nobody_knows_is_refused(change, message, byte_level, tmp_path):
    document = {**json.loads(byte_level.to_str()), **change}
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    with pytest.raises(ValueError, match=message) as error:
        mezzo.Tokenizer(tmp_path)
    assert str(error.value).startswith(str(tmp_path / "tokenizer.json"))


def test_a_key_that_nobody_knows_is_refused_in_berts_file_too(wordpiece, tmp_path):
    for name, at in ("model", []), ("normalizer", []), ("pre_tokenizer", []), ("post_processor", []), ("the file", None):
        document = json.loads(wordpiece.to_str())
        (document if at is None else document[name])["odd"] = 1
        (tmp_path / "tokenizer.json").write_text(json.dumps(document))
        with pytest.raises(ValueError, match=f'{name} has the key "odd"'):
            mezzo.Tokenizer(tmp_path)


def test_odd_values_beside_what_a_class_takes_are_refused_or_ignored(unigram, tmp_path):
    document = json.loads(unigram.to_str())
    texts = random_texts(21, 50)
    config = {"tokenizer_class": "DebertaV2Tokenizer"}
    plain = loaded(tmp_path, unigram, config).encode(texts)
    (tmp_path / "tokenizer.json").write_text(json.dumps({**document, "unk_id": "x"}))
    assert mezzo.Tokenizer(tmp_path).encode(texts) == plain
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "XLMRobertaTokenizer"}')
    for normalizer in {"type": 5}, {"type": "Sequence", "normalizers": [{"type": []}]}, 7:
        (tmp_path / "tokenizer.json").write_text(json.dumps({**document, "normalizer": normalizer}))
        with pytest.raises(ValueError, match="tokenizer.json: normalizer"):
            mezzo.Tokenizer(tmp_path)


def test_a_class_that_mezzo_has_not_is_refused_by_name(wordpiece, tmp_path):
    # That one makes its ids in another way, for all that its name says.
    with pytest.raises(ValueError, match=r"tokenizer_config.json: tokenizer_class must be one of BertTokenizer, .*\"ConvBertTokenizer\""):
        loaded(tmp_path, wordpiece, {"tokenizer_class": "ConvBertTokenizer"}, "convbert")
    with pytest.raises(ValueError, match=r"config.json: model_type must be one of bert, .*\"gpt2\""):
        loaded(tmp_path, wordpiece, {}, "gpt2")


def test_mutated_tokenizer_json_is_refused_or_loads(unigram, byte_level, tmp_path):
    rng = random.Random(17)
    small = []
    for tokenizer in (byte_level, unigram):
        document = json.loads(tokenizer.to_str())
        if isinstance(document["model"]["vocab"], list):
            document["model"]["vocab"] = document["model"]["vocab"][:40]
            document["normalizer"]["precompiled_charsmap"] = base64.b64encode(double_array({"ﬁ": "fi", "\t": " "})).decode()
        else:
            merges = document["model"]["merges"] = document["model"]["merges"][:10]
            keep = {"".join(m) for m in merges} | {t for m in merges for t in m}
            tokens = [t for t in document["model"]["vocab"] if t in SPECIAL or len(t) == 1 or t in keep]
            document["model"]["vocab"] = {t: i for i, t in enumerate(tokens)}
        small.append(json.dumps(document).encode())
    outcomes = {"loaded": 0, "refused": 0}
    for _ in range(1500):
        data = bytearray(rng.choice(small))
        for _ in range(rng.choice([1, 1, 2, 4])):
            i = rng.randrange(len(data))
            kind = rng.random()
            if kind < 0.5:
                data[i] ^= 1 << rng.randrange(8)
            elif kind < 0.6:
                del data[i:]
            elif kind < 0.8:
                del data[i : i + rng.randint(1, 20)]
            else:
                data[i:i] = rng.choice([b"null", b"{}", b"-1", b"1e9", b'"', b"\xff", b"[" * 2000, b"0"])
            if not data:
                break
        (tmp_path / "tokenizer.json").write_bytes(bytes(data))
        try:
            tokenizer = mezzo.Tokenizer(tmp_path)
        except ValueError as error:
            assert str(tmp_path) in str(error).splitlines()[0], error
            outcomes["refused"] += 1
            continue
        tokenizer.encode(["a b abb é漢 <s> ﬁ e\u0301", "", b"\xff"], max_length=6)
        outcomes["loaded"] += 1
    assert min(outcomes.values()) > 100, outcomes
