"""DistributedSampler gives each rank the indices that torch.utils.data's gives it."""
import itertools
import random

import _mezzo
import pytest
import torch
from torch.utils.data import DistributedSampler


def random_settings(count):
    rng = random.Random(0)
    for _ in range(count):
        ranks = rng.randint(1, 9)
        yield rng.choice([0, 1, 2, 3, rng.randint(0, 3 * ranks), rng.randint(1, 500)]), ranks, rng.random() < 0.7, \
            rng.choice([0, 1, rng.randrange(2**40)]), rng.random() < 0.4, rng.randint(0, 20)


def test_indices_are_torchs():
    for size, ranks, shuffle, seed, drop_last, epoch in random_settings(600):
        for rank in range(ranks):
            options = dict(num_replicas=ranks, rank=rank, shuffle=shuffle, seed=seed, drop_last=drop_last)
            theirs = DistributedSampler(range(size), **options)
            mine = _mezzo.DistributedSampler(size, **options)
            theirs.set_epoch(epoch)
            mine.set_epoch(epoch)
            assert mine.indices() == list(theirs), (size, options, epoch)
            assert len(mine) == len(theirs) == len(mine.indices())


def test_without_padding_each_index_occurs_once():
    for size, ranks, shuffle, seed, _, epoch in random_settings(300):
        shares = []
        for rank in range(ranks):
            sampler = _mezzo.DistributedSampler(size, ranks, rank, shuffle=shuffle, seed=seed, padding=False)
            sampler.set_epoch(epoch)
            shares.append(sampler.indices())
            assert len(sampler) == len(shares[-1])
        assert sorted(itertools.chain(*shares)) == list(range(size))
        assert max(map(len, shares)) - min(map(len, shares)) <= 1
        padded = DistributedSampler(range(size), ranks, 0, shuffle=shuffle, seed=seed)
        padded.set_epoch(epoch)
        assert shares[0] == list(padded)  # the first rank never gets padding


def take(sampler, batch_size):
    batches = []
    while (batch := sampler.next(batch_size)) is not None:
        batches.append(batch)
    return batches


def test_as_a_sampler_of_libtorch():
    sampler = _mezzo.DistributedSampler(23, 2, 1, seed=5)
    for epoch in (0, 1):
        sampler.set_epoch(epoch)
        sampler.reset()
        batches = take(sampler, 5)
        assert list(map(len, batches)) == [5, 5, 2]
        assert list(itertools.chain(*batches)) == sampler.indices()
    sampler.reset(9)
    assert sum(map(len, take(sampler, 4))) == 5

    sampler = _mezzo.DistributedSampler(23, 2, 1, seed=5)
    sampler.set_epoch(3)
    sampler.reset()
    begin = [sampler.next(3), sampler.next(3)]
    other = _mezzo.DistributedSampler(23, 2, 1, seed=5)
    saved = sampler.save()
    other.load(saved)
    rest = take(other, 3)
    assert rest == take(sampler, 3)
    assert list(itertools.chain(*begin, *rest)) == sampler.indices()
    with pytest.raises(ValueError, match="is at position 6, but this rank's share has 1"):
        _mezzo.DistributedSampler(2, 2, 1).load(saved)


@pytest.mark.parametrize("options, message", [
    (dict(size=-1, num_replicas=1, rank=0), "cannot have -1 elements"),
    (dict(size=5, num_replicas=2, rank=2), "rank 2 of 2"),
    (dict(size=5, num_replicas=0, rank=0), "rank 0 of 0"),
    (dict(size=5, num_replicas=2, rank=-1), "rank -1 of 2"),
    (dict(size=5, num_replicas=2, rank=0, drop_last=True, padding=False), "drop_last must be false"),
])
def test_sampler_options_are_checked(options, message):
    with pytest.raises(ValueError, match=message):
        _mezzo.DistributedSampler(**options)
