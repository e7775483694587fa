"""The Python peer of `mezzo train`: transformers, AdamW, the same recipe and the same data. Prints one line of JSON."""
import argparse
import json
from pathlib import Path

import recipe
import torch
import train_step
from sklearn.metrics import accuracy_score
from torch.nn import functional
from transformers import AutoTokenizer, get_linear_schedule_with_warmup


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    recipe.add_flags(parser)
    parser.add_argument("--train", type=Path, required=True)
    parser.add_argument("--dev", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--learning-rate", type=float, default=3e-5)
    parser.add_argument("--warmup-ratio", type=float, default=0.0)
    parser.add_argument("--batch-size", type=int, default=32)
    options = parser.parse_args()
    recipe.check(parser, options)
    return options


def main():
    options = parse()
    (texts, labels), (dev_texts, dev_labels) = (recipe.load_rows(path, 0) for path in (options.train, options.dev))
    model = recipe.load_model(options, max(labels) + 1)
    tokenizer = AutoTokenizer.from_pretrained(options.model) if options.model else recipe.load_tokenizer(options)

    def logits_of(batch):
        inputs = tokenizer(batch, truncation=True, max_length=options.max_length, padding=True, return_tensors="pt")
        with recipe.autocast(options):
            return model(**inputs).logits.float()

    optimizer = torch.optim.AdamW(train_step.no_decay_groups(model), lr=options.learning_rate, fused=True)
    steps = options.epochs * -(-len(texts) // options.batch_size)
    schedule = get_linear_schedule_with_warmup(optimizer, int(options.warmup_ratio * steps), steps)
    model.train()
    losses = []
    for _ in range(options.epochs):
        for indices in torch.randperm(len(texts)).split(options.batch_size):
            loss = functional.cross_entropy(logits_of([texts[i] for i in indices]), torch.tensor([labels[i] for i in indices]))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    model.eval()
    with torch.no_grad():
        logits = torch.cat([logits_of(dev_texts[i : i + 64]) for i in range(0, len(dev_texts), 64)])
    print(json.dumps(dict(losses=losses, loss=functional.cross_entropy(logits, torch.tensor(dev_labels)).item(),
                          accuracy=accuracy_score(dev_labels, logits.argmax(1).tolist()))))


if __name__ == "__main__":
    main()
