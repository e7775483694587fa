"""The fastest training of BERT on a GPU that Python was found to do, as the peer of `mezzo train`. Prints one line of JSON.

--batches grouped: texts of similar length together, padded to their longest; PyTorch's fused attention under a mask.
--batches varlen: no padding: the tokens of all texts one after the other, flash attention for texts of varying lengths.
--compile any: torch.compile, for any shape. --compile graphs: its mode reduce-overhead, CUDA graphs, on few shapes.

Texts are tokenized once, all batches lie in pinned memory before the clock starts, AdamW is fused, and nothing waits for the
device before the last step. On a CPU the same is done by what a CPU has.
"""
import argparse
import json
import random
import time
from pathlib import Path

import recipe
import torch
import train_step
from torch.nn import functional

LONG, SHORT = 64, 8  # what rows of a batch, or of a text, are rounded up to where shapes shall be few; else


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    recipe.add_flags(parser)
    parser.add_argument("--train", type=Path, required=True)
    parser.add_argument("--batches", choices=["grouped", "varlen"], required=True)
    parser.add_argument("--compile", choices=["no", "any", "graphs"], default="no")
    parser.add_argument("--steps", type=int, default=0, help="measured; 0: all of an epoch")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=3e-5)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--no-scaler", dest="scaler", action="store_false", help="fp16 without GradScaler")
    options = parser.parse_args()
    recipe.check(parser, options)
    return options


def up(count, multiple):
    return -(-count // multiple) * multiple


def grouped_batch(ids, labels, options):
    """Padded to a multiple of SHORT, of which there are few."""
    batch = recipe.pad(ids, labels)
    missing = up(batch["input_ids"].shape[1], SHORT) - batch["input_ids"].shape[1]
    return batch | {name: functional.pad(batch[name], (0, missing)) for name in ("input_ids", "attention_mask")}


def varlen_batch(ids, labels, options):
    """All tokens in a row. What fills it up is a text of its own, whose length may be 0."""
    lengths = list(map(len, ids))
    filler = up(sum(lengths), LONG if options.compile == "graphs" else SHORT) - sum(lengths)
    flat = [token for row in ids for token in row] + [0] * filler
    positions = [place for length in [*lengths, filler] for place in range(length)]
    starts = torch.tensor([0, *lengths, filler], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    return dict(input_ids=torch.tensor(flat), positions=torch.tensor(positions), starts=starts, labels=torch.tensor(labels))


def attend(query, key, value, starts, longest, p):
    """[rows, heads, head size] each: every text attends to itself alone."""
    if query.is_cuda:
        return torch.ops.aten._flash_attention_forward(query, key, value, starts, starts, longest, longest, p, False, False)[0]
    text = torch.bucketize(torch.arange(query.shape[0]), starts, right=True)
    by_head = [x.transpose(0, 1) for x in (query, key, value)]
    mask = text[:, None] == text
    return functional.scaled_dot_product_attention(*by_head, attn_mask=mask, dropout_p=p).transpose(0, 1)


class Varlen(torch.nn.Module):
    """transformers' BertForSequenceClassification on texts without padding."""

    def __init__(self, model, longest):
        super().__init__()
        self.model, self.longest = model, longest

    def forward(self, input_ids, positions, starts):
        bert, config = self.model.bert, self.model.config
        tables = bert.embeddings
        x = tables.word_embeddings(input_ids) + tables.position_embeddings(positions) + tables.token_type_embeddings.weight[0]
        x = tables.dropout(tables.LayerNorm(x))
        for layer in bert.encoder.layer:
            own = layer.attention.self
            heads = [part(x).unflatten(-1, (config.num_attention_heads, -1)) for part in (own.query, own.key, own.value)]
            p = config.attention_probs_dropout_prob if self.training else 0.0
            x = layer.attention.output(attend(*heads, starts, self.longest, p).flatten(-2), x)
            x = layer.output(layer.intermediate(x), x)
        pooled = torch.tanh(bert.pooler.dense(x[starts[:-2]]))
        return self.model.classifier(self.model.dropout(pooled))


class Grouped(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask):
        return self.model(input_ids=input_ids, attention_mask=attention_mask).logits


class Step:
    """One optimizer step, queued: nothing of it waits for the device."""

    def __init__(self, forward, options):
        self.options = options
        self.optimizer = torch.optim.AdamW(train_step.no_decay_groups(forward.model), lr=options.learning_rate, fused=True)
        self.scaler = torch.amp.GradScaler(options.device, enabled=options.precision == "fp16" and options.scaler)

        def loss_of(labels, **inputs):
            with recipe.autocast(options):
                logits = forward(**inputs)
            return functional.cross_entropy(logits.float(), labels)

        torch._dynamo.config.cache_size_limit = 64
        modes = dict(any="default", graphs="reduce-overhead")
        self.loss_of = loss_of if options.compile == "no" else torch.compile(loss_of, dynamic=True, mode=modes[options.compile])

    def __call__(self, batch):
        batch = {name: tensor.to(self.options.device, non_blocking=True) for name, tensor in batch.items()}
        if self.options.compile == "graphs":
            torch.compiler.cudagraph_mark_step_begin()
        loss = self.loss_of(**batch)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach().clone()  # a graph writes the next one over it


def shape_of(batch):
    return tuple(tuple(tensor.shape) for tensor in batch.values())


def main():
    options = parse()
    texts, labels = recipe.load_rows(options.train, options.limit)
    model = recipe.load_model(options, max(labels) + 1, options.dropout)
    ids = recipe.load_tokenizer(options)(texts, truncation=True, max_length=options.max_length)["input_ids"]
    if options.batches == "grouped":
        forward, make = Grouped(model), grouped_batch
        indices = train_step.grouped_indices(list(map(len, ids)), options)
    else:
        forward, make = Varlen(model, options.max_length), varlen_batch
        order = torch.randperm(len(ids)).tolist()
        indices = [order[i : i + options.batch_size] for i in range(0, len(order), options.batch_size)]
        indices = [batch for batch in indices if len(batch) == options.batch_size]
    forward.train()
    if not indices:
        raise SystemExit(f"train_on_gpu: {len(texts)} texts do not make a batch of {options.batch_size}")
    random.Random(options.seed).shuffle(indices)
    indices = indices[: options.steps or None]
    batches = [make([ids[i] for i in batch], [labels[i] for i in batch], options) for batch in indices]
    if options.device == "cuda":
        batches = [{name: tensor.pin_memory() for name, tensor in batch.items()} for batch in batches]

    step = Step(forward, options)
    begin = time.perf_counter()
    shapes = {shape_of(batch): batch for batch in batches}
    warm_up = sorted(shapes.values(), key=lambda batch: batch["input_ids"].numel(), reverse=True)
    for batch in warm_up:
        for _ in range(3):  # torch.compile's graphs are recorded by the second call of a shape
            step(batch)
    recipe.synchronize(options)
    warmup_seconds = time.perf_counter() - begin

    losses = []
    begin = time.perf_counter()
    for batch in batches:
        losses.append(step(batch))
    recipe.synchronize(options)
    seconds = time.perf_counter() - begin
    held = torch.cuda.max_memory_allocated() if options.device == "cuda" else recipe.peak_memory_bytes()
    print(json.dumps(dict(samples_per_second=len(batches) * options.batch_size / seconds, seconds=seconds, steps=len(batches),
                          warmup_seconds=warmup_seconds, shapes=len(shapes), losses=[loss.item() for loss in losses],
                          peak_memory_bytes=held)))


if __name__ == "__main__":
    main()
