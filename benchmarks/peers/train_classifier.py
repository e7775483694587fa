"""The Python peer of `mezzo train`: transformers, AdamW, the same recipe and the same data. Prints one line of JSON."""
import argparse
import json
import time

import torch
from sklearn.metrics import accuracy_score, f1_score
from transformers import BertConfig, BertForSequenceClassification, BertTokenizer, get_linear_schedule_with_warmup


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model-config", required=True)
    parser.add_argument("--vocab", required=True)
    parser.add_argument("--train", required=True)
    parser.add_argument("--dev", required=True)
    parser.add_argument("--seed", type=int, default=123)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--learning-rate", type=float, default=3e-5)
    parser.add_argument("--warmup-ratio", type=float, default=0.0)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--max-length", type=int, default=128)
    parser.add_argument("--eval-every", type=int, default=50)
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    return parser.parse_args()


def load(path):
    with open(path, encoding="utf-8") as file:
        rows = json.load(file)
    return [text for text, _ in rows], [label for _, label in rows]


class Classifier:
    def __init__(self, args, num_labels):
        self.args = args
        self.tokenizer = BertTokenizer(vocab=args.vocab)
        config = BertConfig.from_json_file(args.model_config)
        config.num_labels = num_labels
        self.model = BertForSequenceClassification(config)

    def logits(self, texts):
        inputs = self.tokenizer(texts, truncation=True, max_length=self.args.max_length, padding=True, return_tensors="pt")
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.args.precision == "bf16"):
            return self.model(**inputs).logits.float()

    def predict(self, texts):
        self.model.eval()
        with torch.no_grad():
            parts = [self.logits(texts[i : i + 64]).argmax(1) for i in range(0, len(texts), 64)]
        self.model.train()
        return torch.cat(parts).tolist()


def no_decay_groups(model):
    def plain(name):
        return name.endswith("bias") or name.endswith("LayerNorm.weight")

    named = list(model.named_parameters())
    return [
        dict(params=[p for n, p in named if not plain(n)], weight_decay=0.01),
        dict(params=[p for n, p in named if plain(n)], weight_decay=0.0),
    ]


def main():
    args = parse_args()
    torch.manual_seed(args.seed)
    train, dev = load(args.train), load(args.dev)
    classifier = Classifier(args, num_labels=max(train[1]) + 1)
    optimizer = torch.optim.AdamW(no_decay_groups(classifier.model), lr=args.learning_rate, fused=True)
    steps = args.epochs * -(-len(train[0]) // args.batch_size)
    schedule = get_linear_schedule_with_warmup(optimizer, int(args.warmup_ratio * steps), steps)

    classifier.model.train()
    best, step, started = (0.0, 0.0), 0, time.time()
    for _ in range(args.epochs):
        for indices in torch.randperm(len(train[0])).split(args.batch_size):
            loss = torch.nn.functional.cross_entropy(
                classifier.logits([train[0][i] for i in indices]), torch.tensor([train[1][i] for i in indices]))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(classifier.model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            step += 1
            if step % args.eval_every == 0 or step == steps:
                predicted = classifier.predict(dev[0])
                accuracy = accuracy_score(dev[1], predicted)
                best = max(best, (accuracy, f1_score(dev[1], predicted, average="macro")))
    print(json.dumps(dict(accuracy=best[0], macro_f1=best[1], minutes=(time.time() - started) / 60)))


if __name__ == "__main__":
    main()
