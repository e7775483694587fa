"""Special and added tokens in the files beside a vocabulary, and rare settings of tokenizer.json. The ids equal the
ids of tokenizers and transformers, from vocabularies of single characters."""
import inspect
import json
import random
import re

import _mezzo
import mezzo
import pytest
import transformers
import support
from support import assert_same_ids, assert_same_pairs, random_bert
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

N, P = normalizers, pre_tokenizers
LETTERS = "abdehlnoprstuvw19.!-_éß漢⁄"
TEXTS = ["", " ", "hello", "a <mask>  b", "a<new> b [MASK]b", "<s> a</s>", " <pad>a <unk>", "<S> A <MASK> [mask]", "[UNK] [CLS] a [SEP] [PAD]",
         "p h p", "a <s>NOTUSED b", "漢 é! a-b", "q ζ"]
UNIGRAM = [*["<s>", "<pad>", "</s>", "<unk>", "<mask>", "[CLS]", "[SEP]", "[UNK]", "[PAD]", "▁"], *LETTERS]
WORDPIECE = ["<s>", "<pad>", "</s>", "[UNK]", "<mask>", "[CLS]", "[SEP]", "[PAD]", "[MASK]", *LETTERS, *("##" + c for c in LETTERS)]


def unigram():
    return Tokenizer(models.Unigram([(token, -float(i)) for i, token in enumerate(UNIGRAM)], unk_id=3))


def byte_level(**options):
    tokens = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *sorted(P.ByteLevel.alphabet()), "he"]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, [("h", "e")], **options))
    tokenizer.pre_tokenizer = P.ByteLevel(add_prefix_space=False)
    return tokenizer


def wordpiece():
    tokenizer = Tokenizer(models.WordPiece({token: i for i, token in enumerate(WORDPIECE)}, unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = N.BertNormalizer(), P.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 6), ("[CLS]", 5))
    tokenizer.add_special_tokens(["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"])
    return tokenizer


TOKENIZERS = {"BertTokenizer": wordpiece, "CamembertTokenizer": unigram, "DebertaV2Tokenizer": unigram,
              "PreTrainedTokenizerFast": byte_level, "RobertaTokenizer": byte_level,
              "XLMRobertaTokenizer": unigram}


def write_files(folder, name, tokenizer=None, config=None, **files):
    """A folder of a class: with tokenizer.json, or what `files` gives by names without their ends."""
    folder.mkdir(exist_ok=True)
    if tokenizer is not None:
        (folder / "tokenizer.json").write_text(tokenizer if isinstance(tokenizer, str) else tokenizer.to_str())
    files["tokenizer_config"] = {"tokenizer_class": name, **(config or {})}
    for file, content in files.items():
        (folder / f"{file}.json").write_text(json.dumps(content))
    return folder


def assert_loads_alike(folder, texts=TEXTS):
    ours, theirs = mezzo.Tokenizer(folder), AutoTokenizer.from_pretrained(str(folder))
    assert_same_ids(ours, theirs, texts)
    assert_same_pairs(ours, theirs, texts)
    assert ours.vocab_size == len(theirs)
    assert ours.pad_token_id == theirs.pad_token_id
    (folder / "saved").mkdir()
    ours.save(folder / "saved")
    again = mezzo.Tokenizer(folder / "saved")
    assert again.encode(texts) == ours.encode(texts) and again.pad_token_id == ours.pad_token_id


# --- special tokens
# ------------------------------------------------------------------------------------------------

def added(content, **flags):
    return {"__type": "AddedToken", "content": content, "lstrip": False, "rstrip": False, "single_word": False,
            "normalized": False, "special": True, **flags}


@pytest.mark.parametrize("name, key", [
    ("RobertaTokenizer", "unk_token"), ("RobertaTokenizer", "mask_token"), ("RobertaTokenizer", "pad_token"),
    ("XLMRobertaTokenizer", "mask_token"), ("XLMRobertaTokenizer", "unk_token"), ("XLMRobertaTokenizer", "pad_token"),
    ("DebertaV2Tokenizer", "unk_token"), ("DebertaV2Tokenizer", "mask_token"), ("CamembertTokenizer", "mask_token"),
    ("BertTokenizer", "pad_token"), ("BertTokenizer", "mask_token"), ("PreTrainedTokenizerFast", "pad_token")])
def test_null_drops_a_classs_token(name, key, tmp_path):
    tokenizer = TOKENIZERS[name]()
    assert_loads_alike(write_files(tmp_path / "config", name, tokenizer, {key: None}))
    assert_loads_alike(write_files(tmp_path / "map", name, tokenizer, {key: "h"}, special_tokens_map={key: None}))


@pytest.mark.parametrize("name, key", [("RobertaTokenizer", "cls_token"), ("BertTokenizer", "unk_token"), ("CamembertTokenizer", "eos_token"),
                                       ("XLMRobertaTokenizer", "bos_token")])
def test_null_is_refused_by_key_where_a_class_needs_the_token(name, key, tmp_path):
    write_files(tmp_path, name, TOKENIZERS[name](), {key: None})
    with pytest.raises(ValueError, match=f"tokenizer_config.json: {key} must be a token, which a {name} needs, got nothing"):
        mezzo.Tokenizer(tmp_path)


@pytest.mark.parametrize("config", [
    {"bos_token": "<s>", "cls_token": added("<s>", rstrip=True)}, {"bos_token": added("<s>", rstrip=True), "cls_token": "<s>"},
    {"bos_token": added("<s>", rstrip=True)}, {"mask_token": added("<mask>", lstrip=True), "extra_special_tokens": ["<mask>"]},
    {"sep_token": added("</s>", lstrip=True), "added_tokens_decoder": {"2": added("</s>")}}], ids=str)
@pytest.mark.parametrize("name", ["RobertaTokenizer", "XLMRobertaTokenizer"])
def test_of_special_tokens_with_one_content_the_last_counts(name, config, tmp_path):
    assert_loads_alike(write_files(tmp_path, name, TOKENIZERS[name](), config), [*TEXTS, "a  <s>  b </s>  c <mask>  d"])


@pytest.mark.parametrize("files", [
    {}, {"config": {"mask_token": "[MASK]"}}, {"special_tokens_map": {"mask_token": {"content": "[MASK]", "lstrip": True}}},
    {"config": {"mask_token": added("[MASK]")}}, {"config": {"extra_special_tokens": ["[MASK]"]}},
    {"config": {"additional_special_tokens": ["[MASK]"]}}], ids=str)
def test_added_tokens_json_goes_by_what_the_other_files_call_special(files, tmp_path):
    folder = write_files(tmp_path, "BertTokenizer", added_tokens={"<new>": len(WORDPIECE), "[MASK]": 8}, **files)
    (folder / "vocab.txt").write_text("\n".join(WORDPIECE))
    assert_loads_alike(folder)


@pytest.mark.parametrize("extra", [{"extra_special_tokens": {"x_token": "h"}}, {"additional_special_tokens": {"x_token": "h"}},
                                   {"extra_special_tokens": {"x_token": "h"}, "additional_special_tokens": ["p"]},
                                   {"extra_special_tokens": ["h"], "additional_special_tokens": ["p"]}, {"extra_special_tokens": None},
                                   {"extra_special_tokens": [], "additional_special_tokens": ["p"]}], ids=str)
def test_only_a_list_replaces_a_classs_extra_tokens(extra, tmp_path):
    assert_loads_alike(write_files(tmp_path, "CamembertTokenizer", unigram(), extra))


@pytest.mark.parametrize("name", ["PreTrainedTokenizerFast", "RobertaTokenizer", "BertTokenizer", "bert document"])
@pytest.mark.parametrize("config", [{}, {"pad_token": "<s>"}, {"pad_token": None}], ids=str)
def test_padding_of_tokenizer_json_names_the_pad_token(name, config, tmp_path):
    tokenizer = wordpiece() if name == "bert document" else TOKENIZERS[name]()
    tokenizer.enable_padding(pad_token="h", pad_id=tokenizer.token_to_id("h"))
    assert_loads_alike(write_files(tmp_path, "PreTrainedTokenizerFast" if name == "bert document" else name, tokenizer, config))


def test_special_tokens_map_counts_without_tokenizer_config_json(tmp_path):
    folder = write_files(tmp_path, "", byte_level(), special_tokens_map={"mask_token": "<new>"})
    (folder / "tokenizer_config.json").unlink()
    assert_loads_alike(folder)


# --- inputs of the model
# ------------------------------------------------------------------------------------------------

# As the classes of transformers 4.57 name them; of 5, some have other defaults.
INPUTS = {"BertTokenizer": True, "CamembertTokenizer": False, "DebertaV2Tokenizer": True, "DistilBertTokenizer": True,
          "ElectraTokenizer": True, "PreTrainedTokenizerFast": True, "RobertaTokenizer": False, "XLMRobertaTokenizer": False}


def saved_config(folder, target, **options):
    target.mkdir()
    mezzo.Tokenizer(folder).save(target, **options)
    return json.loads((target / "tokenizer_config.json").read_text())


@pytest.mark.parametrize("name", INPUTS)
def test_inputs_are_named_as_by_the_class_and_the_model(name, tmp_path):
    tokenizer = TOKENIZERS.get(name, wordpiece)()
    folder = write_files(tmp_path / "given", name, tokenizer)
    types = {"token_type_ids"} if INPUTS[name] else set()
    assert set(saved_config(folder, tmp_path / "a")["model_input_names"]) == {"input_ids", "attention_mask"} | types
    # DistilBERT's and ModernBERT's models take no token types, whatever the class.
    assert saved_config(folder, tmp_path / "b", token_types=False)["model_input_names"] == ["input_ids", "attention_mask"]
    for path in ("a", "b"):
        assert AutoTokenizer.from_pretrained(tmp_path / path)("a b").keys() == set(AutoTokenizer.from_pretrained(tmp_path / path).model_input_names)


@pytest.mark.parametrize("name", ["BertTokenizer", "DebertaV2Tokenizer", "PreTrainedTokenizerFast"])
@pytest.mark.parametrize("names", [["input_ids", "attention_mask"], ["input_ids", "token_type_ids"]], ids=len)
def test_a_model_gets_no_token_types_that_its_inputs_do_not_name(name, names, tmp_path):
    tokenizer = TOKENIZERS[name]()
    if name == "PreTrainedTokenizerFast":
        tokenizer.post_processor = processors.TemplateProcessing("<s> $A </s>", "<s> $A </s> $B:1 </s>:1", [("<s>", 0), ("</s>", 2)])
    folder = write_files(tmp_path / "given", name, tokenizer, {"model_input_names": names})
    ids, types, _ = mezzo.Tokenizer(folder)("a", "b").values()
    expected = AutoTokenizer.from_pretrained(folder)("a", "b")
    assert ids == expected["input_ids"] and types == expected.get("token_type_ids", [0] * len(ids))
    assert any(types) == ("token_type_ids" in names)
    assert ("token_type_ids" in saved_config(folder, tmp_path / "a")["model_input_names"]) == ("token_type_ids" in names)


def test_the_space_before_a_text_is_kept_for_transformers_4(tmp_path):
    # Its PreTrainedTokenizerFast sets add_prefix_space of the pre-tokenizer to the config's, or to false.
    for given in (True, False):
        folder = write_files(tmp_path / str(given), "RobertaTokenizer", byte_level(), {"add_prefix_space": given})
        assert saved_config(folder, tmp_path / f"{given}-saved")["add_prefix_space"] is given
    folder = write_files(tmp_path / "none", "XLMRobertaTokenizer", unigram())
    assert "add_prefix_space" not in saved_config(folder, tmp_path / "none-saved")


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_tokenizer_of_words_reads_them_as_they_were_trained(name, tmp_path):
    # Transformers 5 cannot add the space of a PreTrainedTokenizerFast later: add_prefix_space is only an attribute there.
    folder = write_files(tmp_path / "given", name, TOKENIZERS[name]())
    config = saved_config(folder, tmp_path / "saved", words=True)
    words = ["hello", "a", "pup", ",", "9", "<mask>", "h"]
    theirs = AutoTokenizer.from_pretrained(tmp_path / "saved")(words, is_split_into_words=True)
    for path in (folder, tmp_path / "saved"):
        ids, _, _, word_ids = mezzo.Tokenizer(path).encode_words(words).values()
        assert ids == theirs["input_ids"] and [None if i < 0 else i for i in word_ids] == theirs.word_ids()
    assert config.get("add_prefix_space") == (True if TOKENIZERS[name] is byte_level else None)


# --- known fields
# ------------------------------------------------------------------------------------------------

def test_every_setting_of_transformers_is_known():
    classes = [getattr(transformers, name) for name in TOKENIZERS]
    settings = {name for of in classes for name in inspect.signature(of.__init__).parameters}
    for function in (PreTrainedTokenizerBase.__init__, PreTrainedTokenizerFast.__init__):
        settings |= set(re.findall(r'kwargs\.(?:pop|get)\("(\w+)"', inspect.getsource(function)))
    in_code_alone = {"self", "args", "kwargs", "vocab", "merges", "merges_file", "gguf_file", "tokenizer", "tokenizer_object", "post_processor", "tokenizer_padding",
                     "tokenizer_truncation"}
    assert {name for name in settings - in_code_alone if not name.startswith("_")} - set(_mezzo.known_tokenizer_fields()) == set()


@pytest.mark.parametrize("name", ["BertTokenizer", "DebertaV2Tokenizer", "PreTrainedTokenizerFast", "RobertaTokenizer"])
def test_known_settings_are_what_they_are_said_to_be(name, tmp_path):
    fields = _mezzo.known_tokenizer_fields()
    odd = {field: [[{"odd": 1}]] for field, use in fields.items() if use == "no effect"}
    assert len(odd) > 20
    usual, same = (mezzo.Tokenizer(write_files(tmp_path / str(i), name, TOKENIZERS[name](), config))
                   for i, config in enumerate([{}, odd]))
    assert same.encode(TEXTS) == usual.encode(TEXTS) and same("a", "b") == usual("a", "b")
    assert [field for field, use in fields.items() if use == "only"] == ["split_special_tokens"]
    write_files(tmp_path / "split", name, TOKENIZERS[name](), {"split_special_tokens": True})
    with pytest.raises(ValueError, match="tokenizer_config.json: split_special_tokens is true, mezzo supports: false: special tokens in a text are"):
        mezzo.Tokenizer(tmp_path / "split")


def test_max_len_is_the_older_name_of_model_max_length(tmp_path):
    for i, config in enumerate([{"max_len": 77}, {"max_len": 5, "model_max_length": 77}]):
        folder = write_files(tmp_path / str(i), "BertTokenizer", wordpiece(), config)
        assert mezzo.Tokenizer(folder).model_max_length == 77 == AutoTokenizer.from_pretrained(folder).model_max_length


@pytest.mark.parametrize("name, tokenizer, message", [
    ("RobertaTokenizerFast", wordpiece, 'its model is "WordPiece", and the class RobertaTokenizer needs a BPE model'),
    ("RobertaTokenizer", unigram, 'its model is "Unigram", and the class RobertaTokenizer needs a BPE model'),
    ("CamembertTokenizer", wordpiece, 'its model is "WordPiece", and the class CamembertTokenizer needs a Unigram model'),
    ("XLMRobertaTokenizer", byte_level, 'its model is "BPE", and the class XLMRobertaTokenizer needs a Unigram model')])
def test_a_class_that_contradicts_the_file_is_refused(name, tokenizer, message, tmp_path):
    folder = write_files(tmp_path / "m", name, tokenizer())
    with pytest.raises(ValueError, match="m/tokenizer.json: " + message) as error:
        mezzo.Tokenizer(folder)
    advised = "PreTrainedTokenizerFast"
    assert f"set tokenizer_class of tokenizer_config.json to {advised}" in str(error.value)
    write_files(folder, advised)
    assert_same_ids(mezzo.Tokenizer(folder), Tokenizer.from_file(str(folder / "tokenizer.json")), TEXTS)


@pytest.mark.parametrize("file, text", [
    ("tokenizer_config", '{"tokenizer_class": "BertTokenizer", "do_lower_case": true, "do_lower_case": false}'),
    ("special_tokens_map", '{"unk_token": {"content": "[UNK]", "content": "h"}}'), ("added_tokens", '{"<x>": 80, "<x>": 80}')])
def test_a_key_that_occurs_twice_is_refused(file, text, tmp_path):
    write_files(tmp_path, "BertTokenizer")
    (tmp_path / "vocab.txt").write_text("\n".join(WORDPIECE))
    (tmp_path / f"{file}.json").write_text(text)
    with pytest.raises(ValueError, match=f"{file}.json:1: the key '.*' occurs twice in one object. Keep one."):
        mezzo.Tokenizer(tmp_path)


def test_a_token_that_a_vocabulary_has_twice_is_refused(tmp_path):
    write_files(tmp_path, "PreTrainedTokenizerFast", byte_level().to_str().replace('"vocab":{', '"vocab":{"a":0,', 1))
    with pytest.raises(ValueError, match="tokenizer.json:1: the key 'a' occurs twice in one object. Keep one."):
        mezzo.Tokenizer(tmp_path)


# --- words of plain texts
# ------------------------------------------------------------------------------------------------

PARTS = ["alice", "Bob", " ", "  ", "@USER", "@user", "[URL]", "[url]", "<date>", "<DATE>", "[MASK]", "\u200b", "\ufeff", "\u200d", "e\u0301", "é", "漢", ".", "-", "ﬁ", "\t",
         "1", "lol", "½", "\x07", "\ufffd", "İ", "가\u11a8"]


def words_of_transformers(tokenizer, text):
    """The words of its token-classification pipeline: all tokens of one word_id are one word."""
    encoding = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    words = {}
    for word, (start, end) in zip(encoding.word_ids(), encoding["offset_mapping"]):
        words.setdefault(word, []).append((start, end))
    return [text[spans[0][0]:spans[-1][1]] for spans in words.values()]


@pytest.mark.parametrize("normalizer", [N.BertNormalizer(), N.BertNormalizer(lowercase=False), N.Sequence([N.NFKC(), N.Lowercase()]), None], ids=str)
def test_words_are_those_of_the_tokenizer_itself(normalizer, tmp_path):
    characters = sorted({*"abcdefghijklmnopqrstuvwxyz", *"".join(PARTS), *LETTERS} - {" ", "\t"})
    tokenizer = Tokenizer(models.WordPiece({token: i for i, token in enumerate(["[UNK]", "[MASK]", *characters, *("##" + c for c in characters)])},
                                           unk_token="[UNK]"))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = P.BertPreTokenizer()
    tokenizer.add_special_tokens(["[MASK]"])
    tokenizer.add_tokens(["@USER", AddedToken("[URL]", normalized=False), AddedToken("<date>", single_word=True), AddedToken("lol")])
    folder = write_files(tmp_path, "PreTrainedTokenizerFast", tokenizer)
    ours, theirs = mezzo.Tokenizer(folder), AutoTokenizer.from_pretrained(folder)
    rng = random.Random(3)
    texts = ["", " ", "see [URL] for bob", "\ufeffalice bob", "alice\u200b met bob\u200b", "a[URL]b @user.x cafe\u0301 x", "x<date> <date>",
             *("".join(rng.choices(PARTS, k=rng.randint(1, 9))) for _ in range(600))]
    for text in texts:
        # mezzo takes each Chinese character for a word, and so does only BERT's normalizer. If NFKC makes one character of two, tokenizers
        # gives it the place of the first.
        if isinstance(normalizer, N.BertNormalizer) or not {"漢", "\u0301", "\u11a8"} & set(text):
            assert ours.split_words(text) == words_of_transformers(theirs, text), text
    assert ours.split_words(b"a\xffb \xff") == (["a\ufffdb"] if normalizer and "Bert" in str(normalizer) else ["a\ufffdb", "\ufffd"])


# --- Metaspace at the start
# ----------------------------------------------------------------------------------------

NORMALIZERS = [None, N.NFKC(), N.NFKD(), N.NFC(), N.NFD(), N.Prepend("a1-"), N.BertNormalizer(), N.BertNormalizer(strip_accents=False, lowercase=False),
               N.Lowercase(), N.Strip(), N.Sequence([N.NFD(), N.StripAccents()]), N.Sequence([N.Prepend(" 1a"), N.Strip()]),
               N.Sequence([N.Prepend("a1"), N.Replace("1", "-9-")]), N.Replace("he", "1-1"), N.Replace("h", "1-1"), N.Replace("h", ""),
               N.Replace(Regex(r"\s+"), "- "), N.Sequence([N.NFKC(), N.Replace("1", "9.9"), N.Prepend("-")])]
SPLITS = [[], [P.Digits(individual_digits=True)], [P.Punctuation()], [P.WhitespaceSplit()], [P.ByteLevel(add_prefix_space=True)],
          [P.Split("l", "merged_with_next"), P.Metaspace(replacement="_", prepend_scheme="first")]]
STARTS = ["½", "ﷺ", "\u200b", "\x07a", "\u0301", "e\u0301", "é", "漢", "각", "가\u11a8", "ﬁ", "İ", "h", "he", " he", "  ", "1", "<new>", "<s>", "①", "≠", "\u0344", "㎏", "…",
          "\u2126", "\u3000"]


def first_texts(seed, count=150):
    rng = random.Random(seed)
    return [rng.choice(STARTS) + "".join(rng.choice(STARTS + list(LETTERS)) for _ in range(rng.randint(0, 8))) for _ in range(count)]


@pytest.mark.parametrize("split", SPLITS, ids=str)
def test_metaspace_asks_where_each_word_begins(split, tmp_path):
    characters = sorted({*"".join(STARTS), *LETTERS, *"▁_ \u0338\u0301\u0323", *P.ByteLevel.alphabet(), *map(chr, range(0x600, 0x660))})
    for i, normalizer in enumerate(NORMALIZERS):
        tokenizer = Tokenizer(models.Unigram([("<unk>", 0.0), *((c, -1.0) for c in characters)], unk_id=0))
        if normalizer is not None:
            tokenizer.normalizer = normalizer
        tokenizer.pre_tokenizer = P.Sequence([*split, P.Metaspace(prepend_scheme="first")])
        tokenizer.add_tokens([AddedToken("<s>", normalized=False), AddedToken("<new>", normalized=True)])
        folder = write_files(tmp_path / str(i), "PreTrainedTokenizerFast", tokenizer)
        ours, theirs = mezzo.Tokenizer(folder), Tokenizer.from_file(str(folder / "tokenizer.json"))
        assert_same_ids(ours, theirs, [*STARTS, *first_texts(i)])


# --- what tokenizers takes for unset, and messages
# ----------------------------------------------------------------------

def changed(tokenizer, change):
    document = json.loads(tokenizer.to_str())
    change(document)
    return json.dumps(document)


@pytest.mark.parametrize("tokenizer, change", [
    *((byte_level, lambda d, key=key: d["model"].update({key: None})) for key in ("fuse_unk", "ignore_merges", "byte_fallback")),
    *((unigram, lambda d, key=key: d.update(pre_tokenizer={"type": "Metaspace", "replacement": "▁", key: None}))
      for key in ("split", "add_prefix_space")),
    (byte_level, lambda d: d["model"].update(merges=["#version: 0.2", "h e"])),
    (byte_level, lambda d: d["model"].update(unk_token="<none>")),
], ids=["fuse_unk", "ignore_merges", "byte_fallback", "split", "add_prefix_space", "#version", "unk_token"])
def test_what_tokenizers_does_without_is_not_asked_for(tokenizer, change, tmp_path):
    document = changed(tokenizer(), change)
    folder = write_files(tmp_path, "PreTrainedTokenizerFast", document)
    ours = mezzo.Tokenizer(folder)
    assert_same_ids(ours, Tokenizer.from_str(document), TEXTS)


@pytest.mark.parametrize("change, message", [
    (lambda d: d["added_tokens"].reverse(), 'the added token "<y>" is listed with the id 263 but its place in the vocabulary is 262. '
                                            "List each added token once. Order new tokens by id"),
    (lambda d: d["added_tokens"][1].update(id=300), 'the added token "<y>" is listed with the id 300 but its place .* is 263\. .* without a gap'),
    (lambda d: d["added_tokens"].append(d["added_tokens"][0]), r'added_tokens\[2\] must be a token that is not listed before, but "<x>" is there twice'),
    (lambda d: d["model"]["vocab"].update(he=400), 'the added token "<x>" would get the id 262, the size of the vocabulary, '
                                                   "but its ids go up to 400. Number the tokens from 0 without gaps"),
    (lambda d: (d["model"].update(unk_token="<none>"), d["model"]["vocab"].pop("z")),
     'model.unk_token must be a token of the vocabulary, which lacks single bytes, got "<none>"')])
def test_messages_say_what_added_tokens_must_be(change, message, tmp_path):
    tokenizer = byte_level()
    tokenizer.add_tokens(["<x>", "<y>"])
    write_files(tmp_path, "PreTrainedTokenizerFast", changed(tokenizer, change))
    with pytest.raises(ValueError, match=message):
        mezzo.Tokenizer(tmp_path)


def test_a_text_without_any_token_is_refused_by_its_row(tmp_path):
    tokenizer = byte_level()
    tokenizer.normalizer = N.Strip()
    random_bert(tmp_path, hidden_size=16, num_hidden_layers=1, num_attention_heads=1, intermediate_size=16, vocab_size=300)
    write_files(tmp_path, "PreTrainedTokenizerFast", tokenizer)
    (tmp_path / "rows.csv").write_text("text,label\nhe,0\n  ,1\nhello,1\n")
    (tmp_path / "texts.txt").write_text("he\n  \n")
    done = support.mezzo("train", "--model", tmp_path, "--train", tmp_path / "rows.csv", "--dev-ratio", 0, "--output", tmp_path / "out", check=False)
    what = "the tokenizer makes no token of this text, not even a special one; remove it, or give tokenizer.json a post_processor"
    assert done.returncode != 0 and f"{tmp_path}/rows.csv:3: {what}" in done.stderr, done.stderr
    done = support.mezzo("predict", "--model", tmp_path, "--data", tmp_path / "texts.txt", check=False)
    assert done.returncode != 0 and f"text 2: {what}" in done.stderr, done.stderr
