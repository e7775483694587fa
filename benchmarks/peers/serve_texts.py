"""Answers POST /predict with labels of texts, as the peer of `mezzo serve`: FastAPI and uvicorn, with uvloop and httptools, before
transformers or onnxruntime. Says on stdout when it can be asked.

--batching: texts that wait are padded into one batch together, as in mezzo; without it each is run by itself, as most programs of this kind do.
"""
import argparse
import asyncio
import concurrent.futures
from pathlib import Path

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

MOST_TEXTS = 64  # of a batch


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--onnx", type=Path, help="its graph: onnxruntime runs it; without it, transformers")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32", help="of transformers")
    parser.add_argument("--batching", action="store_true")
    parser.add_argument("--max-length", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--port", type=int, required=True)
    return parser.parse_args()


class Transformers:
    def __init__(self, options):
        import torch
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        torch.set_num_threads(options.threads)
        self.torch, self.options = torch, options
        self.tokenizer = AutoTokenizer.from_pretrained(options.model)
        self.model = AutoModelForSequenceClassification.from_pretrained(options.model).eval()

    def run(self, texts):
        torch = self.torch
        inputs = self.tokenizer(texts, truncation=True, max_length=self.options.max_length, padding=True, return_tensors="pt")
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=self.options.precision == "bf16"):
            logits = self.model(**inputs).logits
        scores, ids = logits.float().softmax(1).max(1)
        return [{"label": self.model.config.id2label[i], "score": score} for i, score in zip(ids.tolist(), scores.tolist())]


class Onnxruntime:
    def __init__(self, options):
        import numpy
        import onnxruntime
        from tokenizers import Tokenizer
        from transformers import AutoConfig, AutoTokenizer

        self.numpy = numpy
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = options.threads
        settings.inter_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(options.onnx, settings, providers=["CPUExecutionProvider"])
        self.wanted = {value.name for value in self.session.get_inputs()}
        self.id2label = AutoConfig.from_pretrained(options.model).id2label
        self.tokenizer = Tokenizer.from_str(AutoTokenizer.from_pretrained(options.model).backend_tokenizer.to_str())
        self.tokenizer.enable_truncation(options.max_length)
        self.tokenizer.enable_padding()

    def run(self, texts):
        numpy = self.numpy
        encoded = self.tokenizer.encode_batch(texts)
        every = dict(input_ids=[e.ids for e in encoded], attention_mask=[e.attention_mask for e in encoded], token_type_ids=[e.type_ids for e in encoded])
        logits = self.session.run(None, {name: numpy.array(every[name], dtype=numpy.int64) for name in self.wanted})[0]
        scores = numpy.exp(logits - logits.max(1, keepdims=True))
        scores /= scores.sum(1, keepdims=True)
        return [{"label": self.id2label[int(i)], "score": float(row[i])} for row, i in zip(scores, scores.argmax(1))]


class Asked(BaseModel):
    text: str


def make_app(engine, batching):
    app = FastAPI()
    one_thread = concurrent.futures.ThreadPoolExecutor(1)  # more would only take the model's threads from each other
    waiting = asyncio.Queue()

    async def run_batches():
        loop = asyncio.get_running_loop()
        while True:
            batch = [await waiting.get()]
            while not waiting.empty() and len(batch) < MOST_TEXTS:
                batch.append(waiting.get_nowait())
            for (_, answer), found in zip(batch, await loop.run_in_executor(one_thread, engine.run, [text for text, _ in batch])):
                answer.set_result(found)

    @app.on_event("startup")
    async def start():
        engine.run(["warm up"])
        if batching:
            app.state.task = asyncio.create_task(run_batches())
        print("ready", flush=True)

    @app.post("/predict")
    async def predict(asked: Asked):
        loop = asyncio.get_running_loop()
        if not batching:
            return (await loop.run_in_executor(one_thread, engine.run, [asked.text]))[0]
        answer = loop.create_future()
        waiting.put_nowait((asked.text, answer))
        return await answer

    return app


def main():
    options = parse()
    engine = Onnxruntime(options) if options.onnx else Transformers(options)
    uvicorn.run(make_app(engine, options.batching), host="127.0.0.1", port=options.port, loop="uvloop", http="httptools", log_level="warning",
                access_log=False)


if __name__ == "__main__":
    main()
