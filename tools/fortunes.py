"""Makes a topic-classification data set of Debian's fortune cookies: train, dev and test .jsonl files.

The split is a function of the texts alone, so it is the same on every machine with the same package.
"""
import argparse
import hashlib
import json
from pathlib import Path

TOPICS = (
    "art computers definitions law linux knghtbrd men-women people perl platitudes politics riddles science songs-poems "
    "startrek wisdom work zippy"
).split()


def read_topic(folder, topic):
    text = (folder / topic).read_text(encoding="utf-8", errors="replace")
    for cookie in text.split("\n%\n"):
        cookie = " ".join(cookie.split()).removesuffix("%").strip()
        if cookie:
            yield cookie


def split_of(text):
    """test for a tenth of the texts, dev for a twentieth, train for the rest, by hash."""
    share = int(hashlib.sha256(text.encode()).hexdigest()[:8], 16) / 2**32
    return "test" if share < 0.1 else "dev" if share < 0.15 else "train"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fortunes", type=Path, default=Path("/usr/share/games/fortunes"))
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()

    rows = {"train": [], "dev": [], "test": []}
    seen = set()
    for topic in TOPICS:
        for text in read_topic(args.fortunes, topic):
            if text not in seen:  # a cookie that stands twice would leak from train into test
                seen.add(text)
                rows[split_of(text)].append({"text": text, "label": topic})
    args.output.mkdir(parents=True, exist_ok=True)
    for name, part in rows.items():
        with open(args.output / f"{name}.jsonl", "w", encoding="utf-8") as file:
            for row in part:
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
    print(", ".join(f"{len(part)} {name}" for name, part in rows.items()), f"texts in {len(TOPICS)} topics")


if __name__ == "__main__":
    main()
