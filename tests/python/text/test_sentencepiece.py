"""Models of sentencepiece, trained by sentencepiece itself, in folders without tokenizer.json: the ids of transformers."""
import io
import json
import random

import mezzo
import pytest
from support import assert_same_ids, assert_same_pairs, fortune_texts, random_character
from transformers import AutoTokenizer

sentencepiece = pytest.importorskip("sentencepiece", reason="sentencepiece is missing; scripts/setup.sh installs it")
from sentencepiece import sentencepiece_model_pb2 as messages  # noqa: E402

BLOCKS = [(0x20, 0x7F), (0x20, 0x7F), (0xA0, 0x250), (0x300, 0x370), (0x3040, 0x3100), (0x4E00, 0x4F00), (0xAC00, 0xAD00),
          (0xFF00, 0xFF70), (0x1F300, 0x1F400), (0, 0x20), (0x2000, 0x2070)]
OPTIONS = {
    "plain": dict(user_defined_symbols=["<new>"]),
    "deberta": dict(pad_id=0, bos_id=1, eos_id=2, unk_id=3, pad_piece="[PAD]", bos_piece="[CLS]", eos_piece="[SEP]",
                    unk_piece="[UNK]"),
    "bytes": dict(byte_fallback=True),
    "bpe": dict(model_type="bpe", user_defined_symbols=["<new>"], normalization_rule_name="identity"),
    "bpe-bytes": dict(model_type="bpe", byte_fallback=True, unk_piece="[unknown]"),
}


@pytest.fixture(scope="session")
def fortunes():
    return fortune_texts()


@pytest.fixture(scope="session")
def trained(fortunes):
    """The bytes of a model by its name in OPTIONS, trained once."""
    made = {}

    def train(name):
        if name not in made:
            model = io.BytesIO()
            sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(fortunes[::8]), model_writer=model, vocab_size=1500,
                                                     minloglevel=2, **OPTIONS[name])
            made[name] = model.getvalue()
        return made[name]

    return train


def texts_for(fortunes, seed):
    rng = random.Random(seed)
    words = ["hello", " ", "  ", "<s>", "</s>", "<unk>", "<new>", "[CLS]", " [MASK]", "<mask>", "``x''", "naïve", "ﬁ", "\u3000", "▁"]
    return fortunes[3::16] + ["", " ", "▁"] + [
        "".join(rng.choice(words) if rng.random() < 0.5 else random_character(rng, BLOCKS) for _ in range(rng.randint(0, 20)))
        for _ in range(500)]


def write_folder(folder, model_type, name, file, model, config):
    folder.mkdir(exist_ok=True)
    (folder / file).write_bytes(model)
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name, **config}))
    return mezzo.Tokenizer(folder)


NONE = {}
EXTRA = {"extra_special_tokens": ["<x>"]}


@pytest.mark.parametrize("model_type, name, file, model, configs", [
    ("xlm-roberta", "XLMRobertaTokenizer", "sentencepiece.bpe.model", "plain",
     [NONE, EXTRA, {"add_prefix_space": False, "mask_token": "<new>"}]),
    ("xlm-roberta", "XLMRobertaTokenizer", "tokenizer.model", "bytes", [NONE]),
    ("camembert", "CamembertTokenizer", "sentencepiece.bpe.model", "plain", [NONE, EXTRA]),
    ("deberta-v2", "DebertaV2Tokenizer", "spm.model", "deberta", [NONE, EXTRA, {"do_lower_case": True, "split_by_punct": True}]),
    ("deberta-v2", "DebertaV2Tokenizer", "spm.model", "plain", [NONE]),
    *(("modernbert", "PreTrainedTokenizerFast", "tokenizer.model", model, [NONE, {"pad_token": "<pad>"}, {"add_bos_token": True}, {"add_bos_token": False, "add_eos_token": True}])
      for model in ("plain", "bytes", "bpe", "bpe-bytes")),
])
def test_folder_loads_as_auto_tokenizer_loads_it(model_type, name, file, model, configs, trained, fortunes, tmp_path):
    texts = texts_for(fortunes, name + model)
    for i, config in enumerate(configs):
        folder = tmp_path / str(i)
        ours = write_folder(folder, model_type, name, file, trained(model), config)
        theirs = AutoTokenizer.from_pretrained(str(folder))
        assert_same_ids(ours, theirs, texts)
        assert_same_pairs(ours, theirs, texts[-100:])
        assert ours.vocab_size == len(theirs)
        if theirs.pad_token is not None:
            assert ours.pad_token_id == theirs.pad_token_id
        (folder / "saved").mkdir()  # as tokenizer.json
        ours.save(folder / "saved")
        again = mezzo.Tokenizer(folder / "saved")
        assert again.encode(texts) == ours.encode(texts)
        (folder / "saved" / "config.json").write_text(json.dumps({"model_type": model_type}))
        assert_same_ids(ours, AutoTokenizer.from_pretrained(str(folder / "saved")), texts)


@pytest.mark.parametrize("config, files", [
    ({"mask_token": "[MASK]"}, {}), ({}, {"special_tokens_map.json": {"mask_token": {"content": "[MASK]", "lstrip": True}}}),
    ({"mask_token": None, "unk_token": None}, {})], ids=str)
def test_special_tokens_in_added_tokens_json(config, files, trained, tmp_path):
    for file, content in {"added_tokens.json": {"[MASK]": 1500}, **files}.items():
        (tmp_path / file).write_text(json.dumps(content))
    ours = write_folder(tmp_path, "deberta-v2", "DebertaV2Tokenizer", "spm.model", trained("deberta"), {"do_lower_case": True, **config})
    theirs = AutoTokenizer.from_pretrained(str(tmp_path))
    assert_same_ids(ours, theirs, ["a [MASK] b", "a  [MASK]b [mask]", "[CLS] a"])
    assert ours.vocab_size == len(theirs) == 1501


def test_null_is_refused_where_the_order_of_the_pieces_needs_the_token(trained, tmp_path):
    with pytest.raises(ValueError, match="tokenizer_config.json: pad_token must be a token, which a XLMRobertaTokenizer needs, got nothing"):
        write_folder(tmp_path, "xlm-roberta", "XLMRobertaTokenizer", "sentencepiece.bpe.model", trained("plain"), {"pad_token": None})


def changed(model, change):
    message = messages.ModelProto()
    message.ParseFromString(model)
    change(message)
    return message.SerializeToString()


@pytest.mark.parametrize("change, what", [
    (lambda m: setattr(m.trainer_spec, "model_type", 3), "trainer_spec: model_type must be unigram or bpe, got word"),
    (lambda m: setattr(m.trainer_spec, "model_type", 4), "trainer_spec: model_type must be unigram or bpe, got char"),
    (lambda m: setattr(m.trainer_spec, "model_type", 2), "model_type must be unigram for a XLMRobertaTokenizer, got bpe"),
    (lambda m: setattr(m.trainer_spec, "treat_whitespace_as_suffix", True), "treat_whitespace_as_suffix must be false"),
    (lambda m: setattr(m.trainer_spec, "unk_id", 7), "the unknown piece has the id 0, trainer_spec.unk_id says 7"),
    (lambda m: setattr(m.normalizer_spec, "escape_whitespaces", False), "escape_whitespaces must be true, got false"),
    (lambda m: m.normalizer_spec.ClearField("precompiled_charsmap"), 'must hold the rules of "nmt_nfkc", but it is empty'),
    (lambda m: setattr(m.normalizer_spec, "precompiled_charsmap", b"abcdefgh"), "are not a charsmap of sentencepiece"),
    (lambda m: setattr(m.pieces[9], "score", float("nan")), "pieces: the score of .* is not a number"),
    (lambda m: setattr(m.pieces[9], "piece", ""), "pieces: a piece is empty"),
    (lambda m: setattr(m.pieces[9], "piece", "a" * 2000), "a token of 2000 bytes"),
    (lambda m: setattr(m.pieces[9], "piece", m.pieces[8].piece), "occurs twice"),
    (lambda m: m.ClearField("pieces"), "one piece must be of type unknown, got 0"),
])
def test_what_is_not_known_is_refused(change, what, trained, tmp_path):
    with pytest.raises(ValueError, match=what) as error:
        write_folder(tmp_path, "xlm-roberta", "XLMRobertaTokenizer", "sentencepiece.bpe.model", changed(trained("plain"), change), {})
    assert str(error.value).startswith(str(tmp_path / "sentencepiece.bpe.model"))
    assert len(str(error.value).splitlines()[0]) < 400


@pytest.mark.parametrize("tail, what", [
    (b"\x0a\xff", "a number is cut off"), (b"\x0a\x05ab", "the file ends inside of a field"), (b"\x0b", "has an unknown type or number"),
    (b"\x32\x01a", "the field 6 is unknown to mezzo"), (b"\x08\x01", "pieces has an unexpected type"),
    (b"\x1a\x02\x38\x01", "normalizer_spec: the field 7 is unknown"), (b"\x0a\x03\x0a\x01\xff", "pieces: piece is not UTF-8"),
    (b"\x0a\x05\x0a\x01a\x18\x09", "type must be from 1 to 6, got 9"), (b"\xff" * 12, "cut off or too long"),
    (b"\x12\x0c\xc0\x02" + b"\xff" * 4 + b"\x7f" + b"\0" * 5, "unk_id has more than 32 bits")])
def test_broken_messages_are_refused(tail, what, trained, tmp_path):
    with pytest.raises(ValueError, match=what):
        write_folder(tmp_path, "xlm-roberta", "XLMRobertaTokenizer", "sentencepiece.bpe.model", trained("plain") + tail, {})


def test_pieces_made_to_have_too_many_merges_are_refused(trained, tmp_path):
    def chain(message):
        for length in range(1, 300):
            message.pieces.add(piece="ꙮ" * length, score=-float(length), type=1)

    with pytest.raises(ValueError, match="tokenizer.model: its pieces have too many combinations"):
        write_folder(tmp_path, "x", "PreTrainedTokenizerFast", "tokenizer.model", changed(trained("bpe"), chain), {})


def test_a_class_without_its_file_is_refused_by_the_files_name(tmp_path):
    for name, file in ("DebertaV2Tokenizer", "spm.model"), ("XLMRobertaTokenizer", "sentencepiece.bpe.model"):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name}))
        with pytest.raises(ValueError, match=f"neither tokenizer.json nor {file} is there, which a {name} reads"):
            mezzo.Tokenizer(tmp_path)


def test_mutated_models_are_refused_or_load(trained, tmp_path):
    def shorten(message):
        del message.pieces[60:]
        message.normalizer_spec.precompiled_charsmap = message.normalizer_spec.precompiled_charsmap[:0]
        message.normalizer_spec.name = "identity"

    rng = random.Random(3)
    small = {kind: changed(trained(kind), shorten) for kind in ("plain", "bpe")}
    outcomes = {"loaded": 0, "refused": 0}
    for _ in range(1500):
        kind = rng.choice(list(small))
        data = bytearray(small[kind])
        for _ in range(rng.choice([1, 1, 2, 4])):
            i = rng.randrange(len(data))
            mutation = rng.random()
            if mutation < 0.6:
                data[i] ^= 1 << rng.randrange(8)
            elif mutation < 0.8:
                del data[i : i + rng.randint(1, 8)]
            else:
                data[i:i] = rng.randbytes(rng.randint(1, 4))
        name = "PreTrainedTokenizerFast" if kind == "bpe" else "XLMRobertaTokenizer"
        try:
            ours = write_folder(tmp_path, "x", name, "tokenizer.model", bytes(data), {})
        except ValueError as error:
            assert str(tmp_path) in str(error).splitlines()[0], error
            outcomes["refused"] += 1
            continue
        ours.encode(["a b abb é漢 <s> the", "", b"\xff"])
        outcomes["loaded"] += 1
    assert min(outcomes.values()) > 100, outcomes
