"""Labels texts in Python, as the peer of `mezzo predict`. Prints one line of JSON.

--recipe p1: batches of 32 in the order of the file, padded to --max-length. --recipe p2: tokenized at once, sorted by length,
batches of 64 padded to their longest. The labels are in the order of the file. --compile adds torch.compile. Within a
--budget, some batches are left out, so that those done lie evenly between the longest and the shortest.
"""
import argparse
import json
import random
import time
from pathlib import Path

import recipe
import torch


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    recipe.add_flags(parser)
    recipe.add_recipe_flags(parser)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--batch-size", type=int, help="32, for p2 64")
    parser.add_argument("--cold", action="store_true", help="no batch to warm up")
    parser.add_argument("--batches", type=int, default=0, help="how many to measure; 0: all")
    options = parser.parse_args()
    options.batch_size = options.batch_size or (32 if options.recipe == "p1" else 64)
    recipe.check(parser, options)
    return options


def reference_batches(texts, tokenizer, options):
    for begin in range(0, len(texts), options.batch_size):
        indices = range(begin, min(begin + options.batch_size, len(texts)))
        yield indices, dict(tokenizer([texts[i] for i in indices], padding="max_length", truncation=True,
                                      max_length=options.max_length, return_tensors="pt"))


def sorted_batches(ids, options):
    order = sorted(range(len(ids)), key=lambda i: len(ids[i]), reverse=True)
    batches = [order[begin : begin + options.batch_size] for begin in range(0, len(order), options.batch_size)]
    batches = recipe.evenly(batches, min(options.batches or len(batches), len(batches)))
    if options.budget < float("inf"):
        random.Random(options.seed).shuffle(batches)
    for indices in batches:
        yield indices, recipe.pad([ids[i] for i in indices])


@torch.inference_mode()
def predict(model, texts, tokenizer, options, limit):
    """Labels in the order of the texts, as far as limit and budget go, and the seconds they took. Where texts were tokenized
    at once, those left out count only by their share."""
    labels, done, tokenizing = {}, 0, 0.0
    begin = time.perf_counter()
    if options.recipe == "p1":
        batches = reference_batches(texts, tokenizer, options)
    else:
        ids = tokenizer(texts, truncation=True, max_length=options.max_length)["input_ids"]
        tokenizing = time.perf_counter() - begin
        batches = sorted_batches(ids, options)
    for indices, batch in batches:
        batch = {name: tensor.to(options.device) for name, tensor in batch.items()}
        with recipe.autocast(options):
            found = model(**batch).logits.argmax(1).tolist()
        labels.update(zip(indices, found))
        done += 1
        if done == limit or time.perf_counter() - begin > options.budget:
            break
    seconds = time.perf_counter() - begin - tokenizing * (1 - len(labels) / len(texts))
    return [labels[i] for i in sorted(labels)], seconds


def main():
    options = parse()
    texts, labels = recipe.load_rows(options.data, options.limit)
    model = recipe.made_faster(recipe.load_model(options, max(labels) + 1), options).eval()
    tokenizer = recipe.load_tokenizer(options)
    if not options.cold:
        predict(model, texts, tokenizer, options, limit=1)
    found, seconds = predict(model, texts, tokenizer, options, limit=options.batches)
    print(json.dumps(dict(samples_per_second=len(found) / seconds, texts=len(found), seconds=seconds, labels=found,
                          peak_memory_bytes=recipe.peak_memory_bytes(), threads=torch.get_num_threads())))


if __name__ == "__main__":
    main()
