"""How long `torch.save` of a model and its AdamW takes, in whose time nothing is trained. Prints {"seconds": [...], "bytes": ...}."""
import argparse
import json
import os
import tempfile
import time

import torch
from transformers import AutoConfig, AutoModelForSequenceClassification

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--model-config", required=True)
parser.add_argument("--repeats", type=int, default=5)
parser.add_argument("--folder", help="where to write; a temporary one where it is left out")
options = parser.parse_args()

model = AutoModelForSequenceClassification.from_config(AutoConfig.from_pretrained(options.model_config))
optimizer = torch.optim.AdamW(model.parameters())
for parameter in model.parameters():
    parameter.grad = torch.ones_like(parameter)
optimizer.step()
seconds = []
with tempfile.TemporaryDirectory(dir=options.folder) as folder:
    file = os.path.join(folder, "checkpoint.pt")
    for _ in range(options.repeats):
        begin = time.perf_counter()
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
        with open(file, "rb") as written:
            os.fsync(written.fileno())
        seconds.append(time.perf_counter() - begin)
    size = os.path.getsize(file)
print(json.dumps(dict(seconds=seconds, bytes=size)))
