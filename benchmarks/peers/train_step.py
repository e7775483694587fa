"""Training steps in Python, as the peer of `mezzo train`. Prints one line of JSON.

--recipe p1 is the common recipe: every text padded to --max-length, the tokenizer called for every batch, AdamW with its
defaults.
--recipe p2 is the fastest one found for Python: texts tokenized once, batches of similar length padded to their longest,
fused AdamW. --compile adds torch.compile.

The batches of p2 differ in length, so few of them say little about all. The measured ones lie evenly between the longest and the
shortest, in random order. The rate is for a whole epoch, from the time of an additional row. The first warm-up step takes the
longest, which sets the peak of memory as it does in a whole epoch.
"""
import argparse
import json
import random
import statistics
import time
from pathlib import Path

import recipe
import torch

MEGA_BATCH = 50  # batches that are sorted by length together, as transformers does


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    recipe.add_flags(parser)
    recipe.add_recipe_flags(parser)
    parser.add_argument("--train", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=10, help="measured")
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=3e-5)
    parser.add_argument("--dropout", type=float, default=0.1)
    options = parser.parse_args()
    recipe.check(parser, options)
    return options


def reference_batches(texts, labels, tokenizer, options):
    """p1: texts in random order, tokenized when their batch is due."""

    def collate(indices):
        batch = tokenizer([texts[i] for i in indices], padding="max_length", truncation=True, max_length=options.max_length,
                          return_tensors="pt")
        return dict(batch) | dict(labels=torch.tensor([labels[i] for i in indices]))

    loader = torch.utils.data.DataLoader(range(len(texts)), batch_size=options.batch_size, shuffle=True, drop_last=True,
                                         collate_fn=collate)
    while True:
        yield from loader


def grouped_indices(lengths, options):
    """An epoch of batches of similar length."""
    order = torch.randperm(len(lengths)).tolist()
    size = MEGA_BATCH * options.batch_size
    order = [i for begin in range(0, len(order), size)
             for i in sorted(order[begin : begin + size], key=lambda i: lengths[i], reverse=True)]
    batches = [order[begin : begin + options.batch_size] for begin in range(0, len(order), options.batch_size)]
    return [batch for batch in batches if len(batch) == options.batch_size]


def grouped_batches(texts, labels, tokenizer, options):
    """p2: tokenized before the first step, grouped by length. Returns warm-up and measured batches, and the mean rows of all."""
    ids = tokenizer(texts, truncation=True, max_length=options.max_length)["input_ids"]
    lengths = list(map(len, ids))
    batches = sorted(grouped_indices(lengths, options), key=lambda batch: lengths[batch[0]], reverse=True)
    warmup = [batches[0], *recipe.evenly(batches, options.warmup)][: options.warmup]
    measured = recipe.evenly(batches, options.steps)
    random.Random(options.seed).shuffle(measured)
    mean_rows = statistics.mean(len(batch) * max(lengths[i] for i in batch) for batch in batches)
    return [recipe.pad([ids[i] for i in batch], [labels[i] for i in batch]) for batch in warmup + measured], mean_rows


def mean_seconds(seconds, rows, mean_rows):
    """Of all batches, whose mean rows are known, from the measured ones: the regression estimator of survey sampling."""
    if len(set(rows)) < 2:
        return statistics.mean(seconds)
    slope = statistics.linear_regression(rows, seconds).slope
    return statistics.mean(seconds) + slope * (mean_rows - statistics.mean(rows))


def no_decay_groups(model):
    plain = [p for p in model.parameters() if p.dim() == 1]  # biases and norms
    return [
        dict(params=[p for p in model.parameters() if p.dim() > 1], weight_decay=0.01),
        dict(params=plain, weight_decay=0.0),
    ]


class Step:
    """One optimizer step: loss under autocast, backward, AdamW; in fp16 through a GradScaler."""

    def __init__(self, model, options):
        self.model, self.options = model, options
        fused = dict(fused=True) if options.recipe == "p2" else {}
        self.optimizer = torch.optim.AdamW(no_decay_groups(model), lr=options.learning_rate, **fused)
        self.scaler = torch.amp.GradScaler(options.device, enabled=options.precision == "fp16")

    def __call__(self, batch):
        batch = {name: tensor.to(self.options.device) for name, tensor in batch.items()}
        labels = batch.pop("labels")
        with recipe.autocast(self.options):
            logits = self.model(**batch).logits
            loss = torch.nn.functional.cross_entropy(logits.float(), labels)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.item()


def main():
    options = parse()
    texts, labels = recipe.load_rows(options.train, options.limit)
    if len(texts) < options.batch_size:
        raise SystemExit(f"train_step: {len(texts)} texts do not make a batch of {options.batch_size}")
    model = recipe.made_faster(recipe.load_model(options, max(labels) + 1, options.dropout), options).train()
    step = Step(model, options)
    tokenizer, mean_rows = recipe.load_tokenizer(options), options.batch_size * options.max_length
    if options.recipe == "p1":
        batches = reference_batches(texts, labels, tokenizer, options)
    else:
        batches, mean_rows = grouped_batches(texts, labels, tokenizer, options)
        batches = iter(batches)  # to tokenize all texts is set-up

    seconds, losses, rows = [], [], []
    measured = 0.0
    for _ in range(options.warmup + options.steps):
        begin = time.perf_counter()
        batch = next(batches)
        rows.append(batch["input_ids"].numel())
        losses.append(step(batch))
        seconds.append(time.perf_counter() - begin)
        measured += seconds[-1] if len(seconds) > options.warmup else 0
        if measured > options.budget:
            break
    timed = seconds[options.warmup :]
    rate = options.batch_size / mean_seconds(timed, rows[options.warmup :], mean_rows)
    print(json.dumps(dict(samples_per_second=rate, seconds=timed, warmup_seconds=seconds[: options.warmup],
                          rows=rows[options.warmup :], mean_rows=mean_rows, losses=losses,
                          peak_memory_bytes=recipe.peak_memory_bytes(), threads=torch.get_num_threads(),
                          batch_size=options.batch_size)))


if __name__ == "__main__":
    main()
