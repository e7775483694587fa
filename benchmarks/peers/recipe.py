"""Common parts of the Python peers: data, the model, and batches of texts."""
import json
import resource
import sys
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForSequenceClassification, BertTokenizer

# The families' names of their dropouts.
DROPOUTS = ("hidden_dropout_prob", "attention_probs_dropout_prob", "dropout", "attention_dropout", "seq_classif_dropout",
            "embedding_dropout", "mlp_dropout", "classifier_dropout")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def add_flags(parser):
    parser.add_argument("--model", type=Path, help="Hugging Face folder; without it, fresh weights of --model-config")
    parser.add_argument("--model-config", type=Path)
    parser.add_argument("--vocab", type=Path, help="vocab.txt, without --model")
    parser.add_argument("--limit", type=int, default=0, help="use only the first N texts; 0: all")
    parser.add_argument("--precision", choices=DTYPES, default="fp32")
    parser.add_argument("--threads", type=int, default=0, help="0: PyTorch's choice")
    parser.add_argument("--max-length", type=int, default=128)
    parser.add_argument("--seed", type=int, default=123)
    parser.add_argument("--attention", choices=["sdpa", "eager"], default="sdpa")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])


def add_recipe_flags(parser):
    parser.add_argument("--recipe", choices=["p1", "p2"], required=True)
    parser.add_argument("--compile", action="store_true", help="torch.compile the model, for any shape")
    parser.add_argument("--optimize", action="store_true", help="mezzo.optimize the model")
    parser.add_argument("--budget", type=float, default=float("inf"), help="start no more measured steps after these seconds")


def check(parser, options):
    if not options.model and not (options.model_config and options.vocab):
        parser.error("name --model, or --model-config and --vocab")
    if options.threads > 0:
        torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)


def load_rows(path, limit):
    rows = json.loads(path.read_text(encoding="utf-8"))[: limit or None]
    return [text for text, _ in rows], [label for _, label in rows]


def load_tokenizer(options):
    return BertTokenizer(vocab=str(options.vocab or options.model / "vocab.txt"))


def load_model(options, labels, dropout=None):
    """The model as transformers makes it. Both recipes take PyTorch's fused attention, or else the family's own attention."""
    if options.model:
        config = AutoConfig.from_pretrained(options.model)
    else:
        config = AutoConfig.for_model(**json.loads(options.model_config.read_text()))
    config.num_labels = labels
    for name in DROPOUTS:
        if dropout is not None and isinstance(getattr(config, name, None), (int, float)):
            setattr(config, name, dropout)
    if options.model:
        model = AutoModelForSequenceClassification.from_pretrained(options.model, config=config, attn_implementation=options.attention)
    else:
        model = AutoModelForSequenceClassification.from_config(config, attn_implementation=options.attention)
    return model.to(options.device)


def made_faster(model, options):
    if options.compile:
        torch._dynamo.config.cache_size_limit = 64
        model.compile(dynamic=True)
    if options.optimize:
        import mezzo

        mezzo.optimize(model)
    return model


def autocast(options):
    return torch.autocast(options.device, dtype=DTYPES[options.precision], enabled=options.precision != "fp32")


def pad(rows, labels=None):
    """Ids, padded to the longest of them, as transformers takes them."""
    longest = max(map(len, rows))
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = torch.tensor(row)
        mask[i, : len(row)] = 1
    batch = dict(input_ids=ids, attention_mask=mask)
    return batch if labels is None else batch | dict(labels=torch.tensor(labels))


def synchronize(options):
    if options.device == "cuda":
        torch.cuda.synchronize()


def evenly(batches, count):
    """`count` of the batches, as far apart as they go; all in turn, again and again, where more are asked for."""
    if count >= len(batches):
        return [batches[i % len(batches)] for i in range(count)]
    return [batches[(2 * i + 1) * len(batches) // (2 * count)] for i in range(count)]


def peak_memory_bytes():
    """The kernel's high-water mark of resident memory; getrusage's one lives on from a parent that forked."""
    for line in Path("/proc/self/status").read_text().splitlines() if sys.platform == "linux" else ():
        if line.startswith("VmHWM"):
            return 1024 * int(line.split()[1])
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
