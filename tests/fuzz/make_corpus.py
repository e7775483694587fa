"""Writes tests/fuzz/corpus: a small file or two of each format that mezzo reads, from the libraries whose formats they are. Fuzzers
begin with them, and the tests cut them off at every byte and turn over every bit. Wants xxhash, too.

    python tests/fuzz/make_corpus.py
"""
import gzip
import json
import subprocess
import tempfile
from pathlib import Path

import pyarrow.parquet
import torch
import xxhash
from safetensors.torch import save_file
from sentencepiece import sentencepiece_model_pb2 as pb
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, DebertaV2Config, ModernBertConfig

CORPUS = Path(__file__).resolve().parent / "corpus"
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hello", "##lo", ",", "今"]
ROWS = [{"text": "it rains", "label": "weather", "n": 1}, {"text": "he said \"yes\"\né", "label": "talk", "n": None}]
NUMBERS = [{"text": "good", "label": 0.5}, {"text": "bad", "label": -1e-3}]
STATE = ('{"run":"1","step":1,"steps_taken":1,"samples":1,"tokens":1,"seconds":1,"step_seconds":1,"last_eval_step":0,"best":null,"scaler":{},'
         '"schedule":{},"identity":{"flags":{},"model":{},"data":{}}}')  # as targets.cpp writes it beside a manifest
PAIRS = [["a", "b"], {"text": "x", "text_pair": "y", "label": ["p", "q"]}]


def put(target, name, contents):
    file = CORPUS / target / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(contents if isinstance(contents, bytes) else contents.encode())


def hash_of(contents):
    return xxhash.xxh3_128_hexdigest(contents)


def lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def tokenizer_json(model, normalizer=None, pre_tokenizer=None, post_processor=None):
    made = Tokenizer(model)
    for name, part in dict(normalizer=normalizer, pre_tokenizer=pre_tokenizer, post_processor=post_processor).items():
        if part:
            setattr(made, name, part)
    made.add_special_tokens(["[CLS]", "[SEP]"])
    return json.dumps(json.loads(made.to_str()), ensure_ascii=False, separators=(",", ":"))


def sentencepiece(model_type, pieces):
    proto = pb.ModelProto()
    for text, score, kind in pieces:
        proto.pieces.add(piece=text, score=score, type=kind)
    proto.trainer_spec.model_type = model_type
    proto.trainer_spec.unk_id = [kind for _, _, kind in pieces].index(2)
    proto.normalizer_spec.name = "identity"
    return proto.SerializeToString()


def main():
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "x.safetensors"
        save_file({"weight": torch.arange(6.0).reshape(2, 3), "bias": torch.ones(2, dtype=torch.bfloat16), "none": torch.empty(0)}, file,
                  metadata={"format": "pt"})
        put("safetensors", "small", file.read_bytes())

    put("safetensors_index", "two", json.dumps({"metadata": {"total_size": 8}, "weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}))
    vocab = {word: i for i, word in enumerate(WORDS)}
    bert = processors.TemplateProcessing(single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    wordpiece = tokenizer_json(models.WordPiece(vocab, unk_token="[UNK]"), normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer(), bert)
    bpe = tokenizer_json(models.BPE({"h": 0, "e": 1, "he": 2, "Ġ": 3, "[CLS]": 4, "[SEP]": 5}, [("h", "e")]),
                         normalizers.Sequence([normalizers.NFC(), normalizers.Replace("a", "b")]), pre_tokenizers.ByteLevel(),
                         processors.RobertaProcessing(("[SEP]", 5), ("[CLS]", 4)))
    unigram = tokenizer_json(models.Unigram([("<unk>", 0.0), ("▁", -2.0), ("a", -3.0), ("▁a", -1.5)], 0, False),
                             normalizers.NFKC(), pre_tokenizers.Metaspace(), bert)
    put("tokenizer_json", "wordpiece", wordpiece)
    put("tokenizer_json", "bpe", bpe)
    put("tokenizer_json", "unigram", unigram)
    put("tokenizer_json_bert", "wordpiece", wordpiece)
    put("tokenizer_json_xlm_roberta", "unigram", unigram)
    put("tokenizer_config", "bert", json.dumps({"tokenizer_class": "BertTokenizer", "do_lower_case": False, "strip_accents": None, "model_max_length": 512,
                                               "unk_token": "[UNK]", "added_tokens_decoder": {"0": {"content": "[PAD]", "special": True, "lstrip": False}}}))
    put("tokenizer_config", "inputs", json.dumps({"tokenizer_class": "DistilBertTokenizer", "model_input_names": ["input_ids", "attention_mask"], "max_len": 64,
                                                 "split_special_tokens": None, "added_tokens_decoder": {"9": {"content": "l\u00e9", "normalized": True}}}))
    put("special_tokens_map", "bert", json.dumps({"cls_token": "[CLS]", "unk_token": {"content": "[UNK]", "lstrip": False, "normalized": False},
                                                 "additional_special_tokens": ["[A]"]}))
    put("added_tokens", "bert", json.dumps({"[A]": 9, "cats": 10}))
    put("vocab_txt", "bert", "\n".join(WORDS) + "\n")
    put("vocab_json", "roberta", json.dumps({"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "<mask>": 4, "h": 5, "e": 6, "he": 7, "l": 8, "hel": 9}))
    put("merges_txt", "roberta", "#version: 0.2\nh e\nhe l\n")
    pieces = [("<pad>", 0, 3), ("<unk>", 0, 2), ("[CLS]", 0, 3), ("[SEP]", 0, 3), ("[MASK]", 0, 4), ("▁", -2, 1), ("a", -3, 1), ("▁a", -1.5, 1)]
    put("sentencepiece_unigram", "small", sentencepiece(1, pieces))
    put("sentencepiece_deberta", "small", sentencepiece(1, [("[PAD]", 0, 3), ("[CLS]", 0, 3), ("[SEP]", 0, 3), ("[UNK]", 0, 2), *pieces[5:]]))

    put("json", "objects", json.dumps(ROWS))
    put("json", "pairs", json.dumps(PAIRS[1:] + [{"text": "x", "text_pair": "z", "label": []}]))
    put("json", "arrays", json.dumps([["a", 0], ["b", 1]]))
    put("jsonl", "objects", lines(ROWS))
    put("jsonl", "numbers", lines(NUMBERS))
    put("jsonl", "words", lines([{"text": ["New", "York"], "label": ["B-LOC", "I-LOC"]}, {"text": ["a"], "label": ["O"]}]))
    put("csv", "quoted", 'text,label,more\r\n"it ""rains""\r\nhere",weather,1\r\nplain,a|b,\r\n')
    put("tsv", "plain", "text\ttext_pair\tlabel\na\tb\t0\nc\td\t1\n")
    put("txt", "plain", "one\n\ntwo \xe9\n".encode("latin-1"))
    put("txt", "fasttext", "__label__a __label__b hello\n__label__a there\n")
    put("txt", "fasttext_behind", "hello __label__a you\n\tthere  __label__b \n")
    put("conll", "numbers", "1 O\n2 O\n\n1-2 it's O\n")  # words, as nothing else is beside the labels
    put("conll", "columns", "-DOCSTART- O\n\n# sent_id = 1\nNew NNP B-LOC\nYork NNP I-LOC\n\nyes UH O\n")
    put("json", "lines", lines(ROWS))
    put("json", "data", json.dumps({"version": [1], "data": ROWS, "more": {}}))
    put("jsonl", "array", json.dumps(ROWS))
    put("csv", "semicolon", 'sep=;\ntext;label\n"a, b";1\n')
    put("csv", "gb18030", "text,label\n今天天气很好,好\n".encode("gb18030"))
    put("csv", "utf16", "text\tlabel\r\n今天\t好\r\n".encode("utf-16"))
    put("csv_encoded", "gb18030", "今天天气很好,好\n".encode("gb18030"))
    put("csv_encoded", "utf16", "今天\t好\r\n😀\tb\r\n".encode("utf-16"))
    put("csv_encoded", "shift_jis", "今日は;a\nｱb;c\n".encode("shift_jis"))
    put("txt", "mac", "one\r\rtwo\r")
    put("txt", "table", "text\tlabel\na\t0\nb\t1\n")
    put("conll", "numbered", "# a = b\n1\tNew\tB\n2-3\tx\t_\n2\tYork\tI\n2.1\ty\t_\n\n1\tyes\tO\n")
    put("gzip", "jsonl", gzip.compress(lines(ROWS).encode(), mtime=0))
    csv = b"text,label\na,0\nb,1\n"
    put("zstd", "csv", subprocess.run(["zstd", "-q", "-c", "--no-check"], input=csv, capture_output=True, check=True).stdout)

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "x.parquet"
        tables = dict(plain=dict(text=["it rains", "é"], label=[0, 1]), words=dict(text=[["New", "York"], []], label=[["B", "I"], []]))
        for name, columns in tables.items():
            pyarrow.parquet.write_table(pyarrow.table(columns), file, write_statistics=False)
            put("parquet", name, file.read_bytes())

    for config in (BertConfig, DebertaV2Config, ModernBertConfig):
        known = {"model_type": config.model_type} | {name: value for name, value in config().to_dict().items()
                                                     if isinstance(value, (int, float, str, bool)) and "transformers" not in name}
        put("config", config.model_type, json.dumps(known | {"id2label": {"0": "no", "1": "yes"}, "problem_type": "single_label_classification"}))
    tensors = b"\x02\0\0\0\0\0\0\0{}"  # none, as targets.cpp writes them
    state = json.dumps({"run": "0123", "step": 4, "steps_taken": 3, "samples": 16, "tokens": 99, "seconds": 1.5, "step_seconds": 1.25,
                        "last_eval_step": 2, "best": {"step": 2, "accuracy": 0.5, "loss": 0.25, "hash": hash_of(tensors)},
                        "scaler": {"scale": 65536.0, "growth_tracker": 3.0}, "schedule": {},
                        "identity": {"flags": {"seed": "1"}, "model": {"model_type": "bert"}, "data": {"labels": "2"}}})
    put("state", "whole", state)
    put("manifest", "whole", json.dumps({"format": 6, "environment": {"LibTorch": "2.13.0"}, "files": {
        name: {"bytes": len(contents), "hash": hash_of(contents)} for name, contents in
        {"state.json": STATE.encode(), "weights.safetensors": tensors, "optimizer.safetensors": tensors}.items()}}))
    put("run_json", "whole", json.dumps({"finished": True, "run": "0123", "status": "finished", "steps": 4, "best_step": None,
                                        "identity": {"flags": {"seed": "7"}, "model": {}, "data": {"labels": "2"}},
                                        "environment": {"mezzo": "0.1.0", "precision": "bf16"},
                                        "settings": {"seed": "7", "train": ["a.csv", "b.csv"], "precision": "auto", "calibrate": "true", "resume": ""}}))
    put("metrics", "lines", lines([
        {"event": "step", "step": 1, "epoch": 1, "loss": 1.5, "lr": 1e-3, "grad_norm": None, "skipped": False, "loss_scale": 65536.0, "samples": 4, "tokens": 9, "seconds": 0.1},
        {"event": "eval", "step": 1, "split": "dev", "loss": 1.0, "accuracy": 0.5, "seconds": 0.1},
        {"event": "end", "steps": 1, "minutes": 0.1, "samples_per_second": 1.0, "tokens_per_second": 2.0, "peak_memory_bytes": 1, "best_step": 1}]))
    put("op_policy", "cuda", 'preset = "cuda"\n[ops]\nlayer_norm = "untouched"\n"pow.Tensor_Scalar" = "fp32"\n')
    put("int8", "whole", json.dumps({"metric": "accuracy", "fp32": 0.5, "int8": 0.5, "texts": 10, "same_answers": 0.99,
                                    "of": {"model.safetensors": hash_of(b""), "config.json": hash_of(b"{}")}}))
    put("predict_body", "many", json.dumps({"texts": ["a", "é\u2028"], "text_pairs": ["b", ""], "model": "m", "top_k": 2, "min_score": 0.5, "logits": True}))
    put("predict_body", "one", json.dumps({"text": "a"}))


if __name__ == "__main__":
    main()
