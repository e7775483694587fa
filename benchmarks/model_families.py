"""Trains and predicts with each model family, with mezzo and with its best Python in turn, and writes
benchmarks/results/model_families.md: texts a second and the largest difference of logits.

Every family reads the same texts by BERT's tokenizer, so that models alone differ. The best Python is transformers with the attention
that is fastest there, batches of similar length and fused AdamW (recipe p2 of benchmarks/peers).
"""
import itertools
import json
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import products
import support

ROWS = 2048  # tokens of a batch at most, and no more than MOST_TEXTS
MOST_TEXTS = 32
PRECISIONS = ["fp32", "bf16", "fp16"]


@dataclass
class Family:
    model: dict       # its config.json: the base size of its paper, with the vocabulary of the texts
    tiny: dict        # the fields that are smaller for --quick
    attention: str = "sdpa"  # the attention of transformers
    longest: int = 512       # texts that it is made for, in tokens

    def of_size(self, options):
        return self.model | (self.tiny if options.quick else {})


SIZES = dict(vocab_size=21128, max_position_embeddings=514, pad_token_id=0)
BERT_SIZES = dict(SIZES, hidden_size=768, num_hidden_layers=12, num_attention_heads=12, intermediate_size=3072)
TINY = dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=256)

DEBERTA_V3 = dict(relative_attention=True, pos_att_type=["p2c", "c2p"], share_att_key=True, norm_rel_ebd="layer_norm", position_buckets=256,
                  position_biased_input=False)

NO_IDS = {f"{name}_token_id": 0 for name in ("bos", "eos", "cls", "sep")}  # which the vocabulary of the texts has elsewhere

# A line for each that joins.
FAMILIES = {
    "BERT": Family(dict(BERT_SIZES, model_type="bert"), TINY),
    "RoBERTa": Family(dict(BERT_SIZES, model_type="roberta", type_vocab_size=1, layer_norm_eps=1e-5), TINY),
    "DistilBERT": Family(dict(SIZES, model_type="distilbert", dim=768, n_layers=6, n_heads=12, hidden_dim=3072),
                         dict(dim=64, n_layers=2, n_heads=4, hidden_dim=256)),
    "DeBERTa-v3": Family(dict(BERT_SIZES, model_type="deberta-v2", **DEBERTA_V3), TINY, attention="eager"),
    "ELECTRA": Family(dict(BERT_SIZES, model_type="electra", embedding_size=768), dict(TINY, embedding_size=32)),
    "ModernBERT": Family(dict(BERT_SIZES, model_type="modernbert", num_hidden_layers=22, intermediate_size=1152,
                              max_position_embeddings=2048, **NO_IDS), TINY, longest=2048),
}


@dataclass
class Texts:
    """Rows of the emotion data set as they are, or strung together until they are long."""

    name: str
    max_length: int
    path: Path
    tokens: float  # of a text on average, as they are cut
    batch: int     # texts of one in training
    predicted: int # texts

    def flags(self):
        return ["--max-length", self.max_length]


def make_texts(name, max_length, options, folder):
    from transformers import BertTokenizer

    rows = json.loads(options.train.read_text(encoding="utf-8"))
    count = max(options.limit, options.tokens // 8)
    if max_length > 128:
        of_one = max_length // 6
        rows = [(" ".join(text for text, _ in itertools.islice(itertools.cycle(rows), i, i + of_one)), rows[i % len(rows)][1])
                for i in range(count)]
    path = folder / f"{name}.json"
    path.write_text(json.dumps(rows[:count]))
    ids = BertTokenizer(vocab=str(options.vocab))([text for text, _ in rows[:count]], truncation=True, max_length=max_length)["input_ids"]
    tokens = statistics.mean(map(len, ids))
    batch = max(1, min(MOST_TEXTS, int(ROWS / tokens)))
    return Texts(name, max_length, path, tokens, batch, min(count, max(8, int(options.tokens / tokens))))


def threads(options):
    return ["--threads", options.threads] if options.threads else []


def train_with_mezzo(model, texts, precision, options, folder):
    records = support.train(folder / "out", "--model", model, "--train", texts.path, "--limit", options.limit, "--precision", precision,
                            "--max-steps", options.warmup + options.steps, "--batch-size", texts.batch, *texts.flags(),
                            *threads(options))
    timed = [r for r in records if r["event"] == "step"][options.warmup:]
    return sum(r["tokens"] for r in timed) / sum(r["seconds"] for r in timed) / texts.tokens


def predict_with_mezzo(model, texts, precision, options, folder):
    """Subtracts a run over few texts, and so the time to start and to load the model."""
    def seconds(count):
        rows = folder / f"{texts.name}-{count}.json"
        rows.write_text(json.dumps(json.loads(texts.path.read_text())[:count]))
        begin = time.perf_counter()
        support.run(support.PROGRAM, "predict", "--model", model, "--data", rows, "--output", folder / "predictions.jsonl", "--precision",
                    precision, *texts.flags(), *threads(options))
        return time.perf_counter() - begin

    few = min(32, texts.predicted // 4)
    return (texts.predicted - few) / (seconds(texts.predicted) - seconds(few))


def flags_of_peer(model, family, texts, precision, options):
    return ["--recipe", "p2", "--model", model, "--precision", precision, "--attention", family.attention, "--budget", options.budget,
            *texts.flags(), *threads(options)]


def train_with_python(model, family, texts, precision, options):
    few = precision in options.emulated  # a step takes minutes
    found = support.peer("train_step.py", *flags_of_peer(model, family, texts, precision, options), "--train", texts.path, "--limit",
                         options.limit, "--steps", options.steps, "--warmup", 0 if few else options.warmup, "--batch-size",
                         min(options.emulated_texts, texts.batch) if few else texts.batch, timeout=20 * options.budget + 600)
    return found["samples_per_second"]


def predict_with_python(model, family, texts, precision, options):
    few = precision in options.emulated
    cut = ["--batch-size", options.emulated_texts, "--batches", 1, "--cold"] if few else ["--batch-size", 2 * texts.batch]
    found = support.peer("predict_texts.py", *flags_of_peer(model, family, texts, precision, options), "--data", texts.path, "--limit",
                         texts.predicted, *cut, timeout=20 * options.budget + 600)
    return found["samples_per_second"]


def differences_of_logits(model, family, texts, options):
    """By precision: the largest from transformers' in fp32, of mezzo and of transformers."""
    import torch
    from transformers import AutoModelForSequenceClassification, BertTokenizer

    sys.path.append(str(support.PROGRAM.parent.parent / "python"))
    import _mezzo

    rows = [text for text, _ in json.loads(texts.path.read_text())[:min(options.compared, texts.predicted)]]
    encoded = BertTokenizer(vocab=str(options.vocab))(rows, truncation=True, max_length=texts.max_length)["input_ids"]
    longest = max(map(len, encoded))
    ids = torch.tensor([row + [0] * (longest - len(row)) for row in encoded])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in encoded])
    theirs = AutoModelForSequenceClassification.from_pretrained(model, attn_implementation=family.attention).eval()
    mine = _mezzo.Model(str(model))
    mine.train(False)

    def both(precision):
        with torch.no_grad(), torch.autocast("cpu", dtype=products.DTYPES[precision] if precision != "fp32" else torch.bfloat16,
                                             enabled=precision != "fp32"):
            python = None if precision in options.emulated else theirs(input_ids=ids, attention_mask=mask).logits.float()
            return mine.forward(encoded, max_length=texts.max_length).float(), python

    exact = both("fp32")[1]
    found = {}
    for precision in options.precisions:
        found[precision] = [None if logits is None else (logits - exact).abs().max().item() for logits in both(precision)]
    return found


def measure(options, folder):
    """(family, texts, precision) -> rates and differences; the programs in turn, round after round."""
    lengths = [make_texts(str(longest), longest, options, folder) for longest in options.lengths]
    rates, differences = {}, {}
    for round_ in range(options.rounds):
        for name in options.families:
            family = FAMILIES[name]
            model = support.fresh_model(folder, family.of_size(options), options.vocab)
            taken = [texts for texts in lengths if texts.max_length <= family.longest]
            for texts, precision in itertools.product(taken, options.precisions):
                of_mezzo = {"train": train_with_mezzo, "predict": predict_with_mezzo}
                of_python = {"train": train_with_python, "predict": predict_with_python}
                for task in ("train", "predict"):
                    found = rates.setdefault((name, texts.name, precision, task), ([], []))
                    found[0].append(of_mezzo[task](model, texts, precision, options, folder))
                    if precision not in options.emulated or (round_ == 0 and options.emulated_texts > 0):
                        found[1].append(of_python[task](model, family, texts, precision, options))
                    print(name, texts.name, precision, task, *(f"{values[-1]:.1f}" for values in found if values), file=sys.stderr, flush=True)
            if round_ == 0:
                for texts in taken:
                    for precision, pair in differences_of_logits(model, family, texts, options).items():
                        differences[name, texts.name, precision] = pair
    return lengths, rates, differences


def table_of(texts, rates, differences, options):
    def best_python(name, task):  # of all precisions
        of_all = [rates[name, texts.name, precision, task][1] for precision in options.precisions]
        return max(statistics.median(python) for python in of_all if python)

    rows = []
    for name, precision in itertools.product(options.families, options.precisions):
        if FAMILIES[name].longest < texts.max_length:
            continue
        row = [name, precision]
        for task in ("train", "predict"):
            mine, python = rates[name, texts.name, precision, task]
            ahead = statistics.median(mine)
            row += [support.spread(mine, 1), support.spread(python, 1),
                    f"{ahead / statistics.median(python):.2f}" if python else "", f"{ahead / best_python(name, task):.2f}"]
        mine, python = differences[name, texts.name, precision]
        rows.append([*row, f"{mine:.1e}", "" if python is None else f"{python:.1e}"])
    return support.table(["family", "precision", "training: mezzo", "Python", "times", "times its best", "prediction: mezzo", "Python", "times",
                          "times its best", "logits: mezzo", "Python"], rows)


def flags():
    parser = support.parser(__doc__)
    parser.add_argument("--families", nargs="*", default=list(FAMILIES), choices=FAMILIES)
    parser.add_argument("--precisions", nargs="*", default=PRECISIONS, choices=PRECISIONS)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=8, help="measured, of training")
    parser.add_argument("--warmup", type=int, default=2, help="steps before them")
    parser.add_argument("--lengths", type=int, nargs="*", default=[128, 512, 2048], help="of texts, in tokens at most; over 128 some are joined")
    parser.add_argument("--tokens", type=int, default=10_000, help="of the texts to predict")
    parser.add_argument("--limit", type=int, default=1600, help="texts to train on")
    parser.add_argument("--compared", type=int, default=32, help="texts whose logits are compared")
    parser.add_argument("--emulated-texts", type=int, default=2, help="in a batch of Python whose products are plain loops; 0: it is left out there")
    parser.add_argument("--budget", type=float, default=120, help="seconds after which Python starts no more measured steps")
    parser.add_argument("--threads", type=int, default=0)
    options = parser.parse_args()
    options.emulated = [precision for precision in options.precisions if products.is_emulated(precision)]
    if options.quick:
        options.rounds, options.steps, options.warmup = 1, 2, 1
        options.tokens, options.limit, options.compared, options.budget = 1000, 96, 8, 5
    return options


def main():
    options = flags()
    with tempfile.TemporaryDirectory() as name:
        lengths, rates, differences = measure(options, Path(name))
    few = "is measured once, on few texts," if options.emulated_texts > 0 else "takes minutes a step and is left out,"
    about = (
        f"Fresh weights, batches of {MOST_TEXTS} texts and at most {ROWS:,} tokens, dropout of the configs, AdamW. Texts a second of training"
        f" steps with data loading, and of prediction of {options.tokens:,} tokens. Python: transformers with its fastest attention, texts"
        f" tokenized once, batches of similar length, fused AdamW. \"Times\" divides mezzo's rate by Python's in the same precision."
        f" \"Times its best\" divides it by Python's best of all precisions here. Logits: the largest difference from transformers' in"
        f" fp32, of {options.compared} texts at most. Figures are medians (least to most) of {options.rounds} rounds in turn. If LibTorch has"
        f" no products for a precision, Python {few}, and its logits are left out. The models have the sizes of the papers' base models;"
        f" DistilBERT has 6 layers.")
    parts = []
    for texts in lengths:
        parts += [f"## Texts of {texts.tokens:.0f} tokens on average, at most {texts.max_length}",
                  table_of(texts, rates, differences, options)]
    support.page(options, "model_families", "Model families: mezzo and Python", about, *parts)


if __name__ == "__main__":
    main()
