"""Labels texts with onnxruntime, as the peer of `mezzo predict`. Texts are tokenized at once, sorted by length, and padded in
batches of 64 to the longest. --int8 first converts the graph to int8 by dynamic quantization. Prints one line of JSON."""
import argparse
import json
import time
from pathlib import Path

import numpy
import onnxruntime
from tokenizers import Tokenizer
from transformers import AutoTokenizer

BATCH = 64


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="folder that has the tokenizer")
    parser.add_argument("--onnx", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--max-length", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--int8", action="store_true")
    return parser.parse_args()


def int8_of(path):
    from onnxruntime.quantization import QuantType, quantize_dynamic
    made = path.with_suffix(".int8.onnx")
    if not made.exists():
        quantize_dynamic(path, made, weight_type=QuantType.QInt8, per_channel=True)
    return made


def predict(session, tokenizer, texts):
    encoded = tokenizer.encode_batch(texts)
    order = sorted(range(len(texts)), key=lambda i: len(encoded[i].ids), reverse=True)
    wanted = {value.name for value in session.get_inputs()}
    labels = numpy.empty(len(texts), dtype=int)
    for begin in range(0, len(order), BATCH):
        indices = order[begin:begin + BATCH]
        shape = len(indices), len(encoded[indices[0]].ids)
        inputs = {name: numpy.zeros(shape, dtype=numpy.int64) for name in wanted}
        for row, i in enumerate(indices):
            inputs["input_ids"][row, :len(encoded[i].ids)] = encoded[i].ids
            inputs["attention_mask"][row, :len(encoded[i].ids)] = 1
        labels[indices] = session.run(None, inputs)[0].argmax(1)
    return labels


def main():
    options = parse()
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = options.threads
    settings.inter_op_num_threads = 1
    path = int8_of(options.onnx) if options.int8 else options.onnx
    session = onnxruntime.InferenceSession(path, settings, providers=["CPUExecutionProvider"])
    tokenizer = Tokenizer.from_str(AutoTokenizer.from_pretrained(options.model).backend_tokenizer.to_str())
    tokenizer.enable_truncation(options.max_length)
    tokenizer.no_padding()
    texts = [json.loads(line)["text"] for line in options.data.read_text().splitlines()]
    predict(session, tokenizer, texts[:BATCH])
    begin = time.perf_counter()
    labels = predict(session, tokenizer, texts)
    print(json.dumps(dict(seconds=time.perf_counter() - begin, labels=labels.tolist())))


if __name__ == "__main__":
    main()
