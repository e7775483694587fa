"""The Python peer of `mezzo predict --text`: transformers loads a folder and labels one text. Prints a JSON line."""
import argparse
import json

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--text", required=True)
    args = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = AutoModelForSequenceClassification.from_pretrained(args.model).eval()
    with torch.inference_mode():
        logits = model(**tokenizer(args.text, truncation=True, return_tensors="pt")).logits[0]
    scores = logits.float().softmax(0)
    best = int(scores.argmax())
    print(json.dumps({"text": args.text, "label": model.config.id2label[best], "score": scores[best].item()}))


if __name__ == "__main__":
    main()
