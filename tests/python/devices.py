"""The devices that a test runs on: the CPU, and a GPU if there is one; elsewhere pytest says that it was skipped."""
import pytest
import torch

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"))]
