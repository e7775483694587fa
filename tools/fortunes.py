"""Makes data sets of Debian's fortune cookies: train, dev and test .jsonl files.

Their topics, by default. Other tasks: several labels a text, the words that name an author, topics of long texts. The split is a
function of the texts alone, so it is the same on every machine with the same package.
"""
import argparse
import hashlib
import json
import re
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


AUTHOR = re.compile(r" --\s+((?:[A-Z][\w.'-]*\s*){1,4})$")


def topic_of(cookies):
    for topic, text in cookies:
        yield text, {"text": text, "label": topic}


def labels_of(cookies):
    """The topic, and labels from the text itself."""
    for topic, text in cookies:
        signs = {"attributed": " -- " in text, "question": "?" in text, "dialogue": text.count('"') > 3, "verse": text.count(",") > 6}
        yield text, {"text": text, "label": [topic, *(name for name, there in signs.items() if there)]}


def authors_of(cookies):
    """Words; the words that name the author are labelled. The dashes before the author are left out."""
    for _, text in cookies:
        if found := AUTHOR.search(text):
            words, author = text[:found.start()].split(), found[1].split()
            names = ["B-AUTHOR" if i == 0 else "I-AUTHOR" for i in range(len(author))]
            yield text, {"text": words + author, "label": ["O"] * len(words) + names}


def long_texts_of(cookies, count=12):
    """A dozen cookies of a topic as one text."""
    by_topic = {}
    for topic, text in cookies:
        by_topic.setdefault((topic, split_of(text)), []).append(text)
    for (topic, _), texts in by_topic.items():
        for i in range(0, len(texts) - count + 1, count):
            yield texts[i], {"text": " ".join(texts[i:i + count]), "label": topic}


JOBS = {"topics": topic_of, "labels": labels_of, "authors": authors_of, "long": long_texts_of}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fortunes", type=Path, default=Path("/usr/share/games/fortunes"))
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--job", choices=JOBS, default="topics")
    args = parser.parse_args()

    cookies = {}  # a cookie that stands twice would leak from train into test
    for topic in TOPICS:
        for text in read_topic(args.fortunes, topic):
            cookies.setdefault(text, topic)
    rows = {"train": [], "dev": [], "test": []}
    for text, row in JOBS[args.job]((topic, text) for text, topic in cookies.items()):
        rows[split_of(text)].append(row)
    args.output.mkdir(parents=True, exist_ok=True)
    for name, part in rows.items():
        with open(args.output / f"{name}.jsonl", "w", encoding="utf-8") as file:
            for row in part:
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
    print(", ".join(f"{len(part)} {name}" for name, part in rows.items()), f"texts of {len(TOPICS)} topics")


if __name__ == "__main__":
    main()
