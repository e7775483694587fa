import torch
from torch import nn

from examples.gpt import Linear

WORDS, CHANNELS, BATCH, TIME = 7, 32, 16, 24


class LanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, CHANNELS)
        self.lstm = nn.LSTM(CHANNELS, 2 * CHANNELS, num_layers=2, batch_first=True)
        self.head = Linear(2 * CHANNELS, WORDS)

    def forward(self, ids):
        return self.head(self.lstm(self.words(ids))[0])


def draw_texts():
    choice = torch.randint(2, (BATCH, (TIME + 6) // 6, 4))
    noun, verb, stop = choice[:, :, 0], 2 + choice[:, :, 1], torch.full_like(choice[:, :, 0], 6)
    article, other_article = 4 + choice[:, :, 2], 4 + choice[:, :, 3]
    return torch.stack([article, noun, verb, other_article, 1 - noun, stop], 2).flatten(1)[:, :TIME + 1]


def run(precision):
    torch.manual_seed(0)
    model = LanguageModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.01, fused=True)
    scaler = torch.amp.GradScaler("cpu", enabled=precision == "fp16")
    losses, norms, scales = [], [], []
    for _ in range(120):
        texts = draw_texts()
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16 if precision == "fp16" else torch.bfloat16):
            loss = nn.functional.cross_entropy(model(texts[:, :-1]).flatten(0, 1), texts[:, 1:].flatten())
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), max_norm=0.2).item())
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
        scales.append(scaler.get_scale())
    return {"losses": losses, "norms": norms, "scales": scales}
