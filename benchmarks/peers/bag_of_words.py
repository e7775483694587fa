"""Baselines for the demo: the majority class, and TF-IDF with logistic regression, on the same split."""
import argparse
import json
from collections import Counter
from pathlib import Path

from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score
from sklearn.pipeline import make_pipeline


def load(path):
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [row["text"] for row in rows], [row["label"] for row in rows]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path, help="folder with train.jsonl, dev.jsonl and test.jsonl")
    args = parser.parse_args()
    train, dev, test = (load(args.data / f"{name}.jsonl") for name in ("train", "dev", "test"))

    majority = Counter(train[1]).most_common(1)[0][0]
    print(f"majority class: {accuracy_score(test[1], [majority] * len(test[1])):.4f}")
    best = None
    for c in (10, 30):  # chosen on dev, as mezzo chooses its best model
        model = make_pipeline(TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2)), LogisticRegression(C=c, max_iter=2000))
        model.fit(*train)
        score = accuracy_score(dev[1], model.predict(dev[0]))
        if best is None or score > best[0]:
            best = score, c, model
    print(f"TF-IDF and logistic regression (C={best[1]}): {accuracy_score(test[1], best[2].predict(test[0])):.4f}")


if __name__ == "__main__":
    main()
