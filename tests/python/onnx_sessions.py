"""ONNX graphs, run by onnxruntime."""
import onnxruntime
import torch


def session_of(path):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def logits_of(session, inputs):
    names = [entry.name for entry in session.get_inputs()]
    (logits,) = session.run(["logits"], {name: inputs[name].numpy() for name in names})
    return torch.from_numpy(logits)
