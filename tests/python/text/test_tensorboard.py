"""TensorBoardWriter read back by TensorBoard's own EventAccumulator."""
import math
import random
import struct
import time

import _mezzo
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
from tensorboard.compat.proto.event_pb2 import Event


def accumulate(folder):
    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    accumulator.Reload()
    return accumulator


def float32(value):
    return struct.unpack("f", struct.pack("f", value))[0]


def test_scalars_read_back_with_tag_step_value_and_time(tmp_path):
    rng = random.Random(123)
    curves = {
        tag: [(step, rng.uniform(-9, 9) * 10 ** rng.randint(-8, 8), rng.uniform(0, 2e9)) for step in range(1, 1200, 7)]
        for tag in ["train/loss", "学习率", "x" * 300, ""]
    }
    curves["big steps"] = [(0, 1.0, 0.0), (2**40, 2.0, 1.5), (2**62, 3.0, 1e9 + 0.25)]
    writer = _mezzo.TensorBoardWriter(str(tmp_path), flush_every=13)
    for tag, points in curves.items():
        for step, value, wall_time in points:
            writer.add_scalar(tag, value, step, wall_time)
    writer.flush()
    accumulator = accumulate(tmp_path)
    assert sorted(accumulator.Tags()["scalars"]) == sorted(curves)
    for tag, points in curves.items():
        read = [(event.step, event.value, event.wall_time) for event in accumulator.Scalars(tag)]
        assert read == [(step, float32(value), wall_time) for step, value, wall_time in points]


def test_nan_and_infinities_pass_through(tmp_path):
    writer = _mezzo.TensorBoardWriter(str(tmp_path))
    for step, value in enumerate([math.nan, math.inf, -math.inf, 1e300]):
        writer.add_scalar("loss", value, step)
    values = [event.value for event in accumulate(tmp_path).Scalars("loss")]
    assert math.isnan(values[0]) and values[1:] == [math.inf, -math.inf, math.inf]


def test_the_file_opens_with_its_version_and_the_present_time(tmp_path):
    writer = _mezzo.TensorBoardWriter(str(tmp_path))
    assert accumulate(tmp_path).file_version == 2.0
    first = Event.FromString(next(iter(RawEventFileLoader(writer.path()).Load())))
    assert first.file_version == "brain.Event:2"
    assert abs(first.wall_time - time.time()) < 60


@pytest.mark.parametrize("purge_step, expected", [(None, [1, 2, 3, 3, 4]), (3, [1, 2, 3, 4])])
def test_a_resumed_run_purges_the_steps_it_takes_again(tmp_path, purge_step, expected):
    before = _mezzo.TensorBoardWriter(str(tmp_path))
    for step in [1, 2, 3]:
        before.add_scalar("loss", step, step)
    resumed = _mezzo.TensorBoardWriter(str(tmp_path), purge_step=purge_step)
    for step in [3, 4]:
        resumed.add_scalar("loss", step, step)
    assert [event.step for event in accumulate(tmp_path).Scalars("loss")] == expected
