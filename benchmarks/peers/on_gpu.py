"""The fastest training and prediction on a GPU that Python was found to do, as the peer of mezzo. Prints one line of JSON.

--batches grouped: texts of similar length together, padded to the longest; the attention of transformers under a mask.
--batches varlen: no padding. The tokens of all texts are one row, under flash attention of varying lengths. The last layer of
BERT, RoBERTa and XLM-R computes the first tokens alone.
--compile: torch.compile of forward and backward, and of the optimizer.
--record: a whole step is one torch.cuda.graph for each shape, with a capturable AdamW.

Texts are tokenized and batches lie in pinned memory before the clock starts; nothing waits for the device before the last step.
A CPU does the same without recording.
"""
import argparse
import itertools
import json
import random
import time
from pathlib import Path

import recipe
import torch
import train_step
from torch.nn import functional
from transformers import AttentionInterface

LONG, SHORT = 64, 8  # rows of a batch, or of a text, are rounded up to these: --record needs few shapes


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    recipe.add_flags(parser)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--batches", choices=["grouped", "varlen"], required=True)
    parser.add_argument("--compile", choices=["default", "max-autotune"])
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--predict", action="store_true", help="labels, in place of training")
    parser.add_argument("--steps", type=int, default=0, help="measured; 0: all of an epoch")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=3e-5)
    parser.add_argument("--dropout", type=float, default=0.1)
    options = parser.parse_args()
    recipe.check(parser, options)
    return options


def up(count, multiple):
    return -(-count // multiple) * multiple


def grouped_batch(ids, labels, options):
    batch = recipe.pad(ids, labels)
    missing = up(batch["input_ids"].shape[1], SHORT) - batch["input_ids"].shape[1]
    return batch | {name: functional.pad(batch[name], (0, missing)) for name in ("input_ids", "attention_mask")}


def varlen_batch(ids, labels, options):
    """All tokens in a row. A separate text, of one token or more, fills it up."""
    lengths = list(map(len, ids))
    filler = up(sum(lengths) + 1, LONG if options.record else SHORT) - sum(lengths)
    flat = [token for row in ids for token in row] + [0] * filler
    positions = [place for length in [*lengths, filler] for place in range(length)]
    starts = torch.tensor([0, *lengths, filler], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    return dict(input_ids=torch.tensor(flat), positions=torch.tensor(positions), starts=starts, labels=torch.tensor(labels))


def attend(query, key, value, query_starts, starts, longest, p, window=-1):
    """[rows, heads, head size] each: queries attend to their own text, at most `window` tokens away; -1: to all of it."""
    longest_query = 1 if query.shape[0] != key.shape[0] else longest
    if query.is_cuda:
        return torch.ops.aten._flash_attention_forward(query, key, value, query_starts, starts, longest_query, longest, p, False, False,
                                                       window_size_left=window, window_size_right=window)[0]
    text, text_of_query = (torch.bucketize(torch.arange(x.shape[0]), ends, right=True) for x, ends in ((key, starts), (query, query_starts)))
    mask = text_of_query[:, None] == text
    if window >= 0:
        mask &= (torch.arange(query.shape[0])[:, None] - torch.arange(key.shape[0])).abs() <= window
    by_head = [x.transpose(0, 1) for x in (query, key, value)]
    return functional.scaled_dot_product_attention(*by_head, attn_mask=mask, dropout_p=p).transpose(0, 1)


class FirstTokens(torch.nn.Module):
    """The last layer, for the first token of each text alone."""

    def __init__(self, layer, texts):
        super().__init__()
        self.layer, self.texts = layer, texts

    def forward(self, hidden, *arguments, **options):
        own, rows, starts = self.layer.attention.self, hidden[0], self.texts.starts
        first = rows[starts[:-1]]
        query, key, value = (part(x).unflatten(-1, (own.num_attention_heads, -1))
                             for part, x in ((own.query, first), (own.key, rows), (own.value, rows)))
        one_each = torch.arange(starts.shape[0], dtype=starts.dtype, device=starts.device)
        found = attend(query, key, value, one_each, starts, self.texts.longest, own.dropout.p if self.training else 0.0)
        found = self.layer.attention.output(found.flatten(-2), first)
        return self.layer.output(self.layer.intermediate(found), found)[None]


class Varlen(torch.nn.Module):
    """A classifier of transformers on texts without padding."""

    def __init__(self, model, longest):
        super().__init__()
        self.model, self.longest, self.starts = model, longest, None
        self.family = model.config.model_type
        if self.family != "modernbert":
            layers = model.base_model.encoder.layer
            layers[-1] = FirstTokens(layers[-1], texts=_Texts(self))
        AttentionInterface.register("varlen", self.attention)
        model.set_attn_implementation("varlen")

    def attention(self, module, query, key, value, attention_mask, dropout=0.0, sliding_window=None, **kwargs):
        rows = (x[0].transpose(0, 1).to(value.dtype) for x in (query, key, value))
        window = -1 if sliding_window is None else sliding_window - 1
        return attend(*rows, self.starts, self.starts, self.longest, dropout, window)[None], None

    def forward(self, input_ids, positions, starts):
        self.starts = starts
        offset = self.model.config.pad_token_id + 1 if "roberta" in self.family else 0
        rows = self.model.base_model(input_ids=input_ids[None], position_ids=positions[None] + offset).last_hidden_state[0]
        if self.family == "modernbert":
            return self.model.classifier(self.model.drop(self.model.head(rows[starts[:-2]])))
        if self.family == "bert":
            return self.model.classifier(self.model.dropout(self.model.bert.pooler(rows[:-1, None])))
        return self.model.classifier(rows[:-1, None])


class _Texts:
    """The part of the model that its last layer reads. It is not a module, or the two would hold each other."""

    def __init__(self, model):
        self.model = model

    starts = property(lambda self: self.model.starts)
    longest = property(lambda self: self.model.longest)


class Grouped(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask):
        return self.model(input_ids=input_ids, attention_mask=attention_mask).logits


class Step:
    """One batch, queued: nothing waits for the device."""

    def __init__(self, forward, options, is_dynamic):
        self.options, self.forward, self.graphs = options, forward, {}
        compiled = lambda function: torch.compile(function, dynamic=is_dynamic, mode=self.mode()) if options.compile else function
        torch._dynamo.config.cache_size_limit = 64
        if options.predict:
            self.compute = torch.inference_mode()(compiled(self.labels_of))
            return
        in_graph = dict(capturable=True) if options.record and options.device == "cuda" else {}
        compiles_optimizer = options.compile is not None and options.precision != "fp16"  # whose scaler would read the device
        self.optimizer = torch.optim.AdamW(train_step.no_decay_groups(forward.model), lr=options.learning_rate,
                                           fused=not compiles_optimizer, **in_graph)
        self.scaler = torch.amp.GradScaler(options.device, enabled=options.precision == "fp16")
        self.loss_of = compiled(self.loss_of)
        if compiles_optimizer:
            self.optimizer.step = compiled(self.optimizer.step)
        self.compute = self.train

    def mode(self):
        """Graphs of torch.compile's own where none of ours record it."""
        tuned = self.options.compile == "max-autotune"
        if self.options.record:
            return "max-autotune-no-cudagraphs" if tuned else "default"
        return "max-autotune" if tuned else "default"

    def labels_of(self, labels, **inputs):
        with recipe.autocast(self.options):
            return self.forward(**inputs).argmax(1)

    def loss_of(self, labels, **inputs):
        with recipe.autocast(self.options):
            logits = self.forward(**inputs)
        return functional.cross_entropy(logits.float(), labels)

    def train(self, **batch):
        loss = self.loss_of(**batch)
        self.scaler.scale(loss).backward()
        if self.scaler.is_enabled():
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    def record(self, batch):
        """(the memory of its inputs, of its result, and the function that runs it)."""
        static = {name: tensor.to(self.options.device) for name, tensor in batch.items()}
        if self.options.device != "cuda":
            return static, None, lambda: self.compute(**static)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self.compute(**static)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=next(iter(self.graphs.values()))[3] if self.graphs else None):
            result = self.compute(**static)
        return static, result, graph.replay, graph.pool()

    def __call__(self, batch):
        if not self.options.record:
            if self.mode() == "max-autotune" and self.options.compile:
                torch.compiler.cudagraph_mark_step_begin()
            batch = {name: tensor.to(self.options.device, non_blocking=True) for name, tensor in batch.items()}
            return self.compute(**batch).clone()  # torch.compile's next graph writes over it
        shape = shape_of(batch)
        if shape not in self.graphs:
            self.graphs[shape] = self.record(batch)
        static, result, replay, *_ = self.graphs[shape]
        for name, tensor in batch.items():
            static[name].copy_(tensor, non_blocking=True)
        found = replay()
        return (found if result is None else result).clone()


def shape_of(batch):
    return tuple(tuple(tensor.shape) for tensor in batch.values())


def indices_of(ids, options):
    if options.batches == "grouped":
        return train_step.grouped_indices(list(map(len, ids)), options)
    order = torch.randperm(len(ids)).tolist()
    return [order[i : i + options.batch_size] for i in range(0, len(order) - options.batch_size + 1, options.batch_size)]


def main():
    options = parse()
    texts, labels = recipe.load_rows(options.data, options.limit)
    with torch.device(options.device):  # draws weights there
        model = recipe.load_model(options, max(labels) + 1, options.dropout)
    ids = recipe.load_tokenizer(options)(texts, truncation=True, max_length=options.max_length)["input_ids"]
    forward, make = (Grouped(model), grouped_batch) if options.batches == "grouped" else (Varlen(model, options.max_length), varlen_batch)
    forward.train(not options.predict)
    indices = indices_of(ids, options)
    if not indices:
        raise SystemExit(f"on_gpu: {len(texts)} texts do not make a batch of {options.batch_size}")
    random.Random(options.seed).shuffle(indices)
    batches = [make([ids[i] for i in batch], [labels[i] for i in batch], options)
               for batch in itertools.islice(itertools.cycle(indices), options.steps or len(indices))]
    if options.device == "cuda":
        batches = [{name: tensor.pin_memory() for name, tensor in batch.items()} for batch in batches]

    shapes = {shape_of(batch): batch for batch in batches}
    step = Step(forward, options, is_dynamic=len(shapes) > 1)
    begin = time.perf_counter()
    for batch in sorted(shapes.values(), key=lambda batch: batch["input_ids"].numel(), reverse=True):
        for _ in range(3):  # torch.compile records its graphs in the second call of a shape
            step(batch)
    recipe.synchronize(options)
    warmup_seconds = time.perf_counter() - begin

    begin = time.perf_counter()
    found = [step(batch) for batch in batches]
    recipe.synchronize(options)
    seconds = time.perf_counter() - begin
    held = torch.cuda.max_memory_allocated() if options.device == "cuda" else recipe.peak_memory_bytes()
    print(json.dumps(dict(samples_per_second=len(batches) * options.batch_size / seconds, steps=len(batches), warmup_seconds=warmup_seconds,
                          shapes=len(shapes), found=[one.tolist() for one in found], peak_memory_bytes=held)))


if __name__ == "__main__":
    main()
