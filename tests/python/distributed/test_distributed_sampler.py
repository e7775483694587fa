"""Who gets which texts: DistributedSampler against torch.utils.data's, and batches balanced by tokens."""
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


# --- balance_by_tokens ---

def makespan(lengths, parts):
    return max(sum(lengths[i] for i in part) for part in parts)


def optimum(lengths, ranks):
    """The least possible tokens of the fullest rank, by trying all; the first text may as well be on rank 0."""
    best = sum(lengths)
    for rest in itertools.product(range(ranks), repeat=max(0, len(lengths) - 1)):
        loads = [0] * ranks
        for length, rank in zip(lengths, (0, *rest)):
            loads[rank] += length
        best = min(best, max(loads))
    return best


def test_each_text_is_in_one_part_and_no_part_is_empty():
    rng = random.Random(1)
    for _ in range(500):
        ranks = rng.randint(1, 9)
        lengths = [rng.choice([0, 1, 7, rng.randint(0, 128)]) for _ in range(rng.randint(0, 60))]
        parts = _mezzo.balance_by_tokens(lengths, ranks)
        assert len(parts) == ranks
        assert sorted(itertools.chain(*parts)) == list(range(len(lengths)))
        assert all(part == sorted(part) for part in parts)
        assert len(lengths) < ranks or all(parts)
        assert parts == _mezzo.balance_by_tokens(lengths, ranks)


def test_the_fullest_rank_is_close_to_the_optimum():
    rng = random.Random(2)
    for _ in range(150):
        ranks = rng.randint(2, 3)
        lengths = [rng.randint(1, 40) for _ in range(rng.randint(1, 8))]
        mine = makespan(lengths, _mezzo.balance_by_tokens(lengths, ranks))
        assert 3 * ranks * mine <= (4 * ranks - 1) * optimum(lengths, ranks), lengths  # Graham's bound, in integers
    assert _mezzo.balance_by_tokens([5, 4, 3, 3, 3], 2) == [[0, 3], [1, 2, 4]]


@pytest.mark.parametrize("sigma", [0.2, 0.6, 1.0])
@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_texts_are_better_balanced_than_by_rows(sigma, ranks):
    """Lengths of texts are about log-normal; 128 tokens at most, as in training. Summed over batches, the tokens for
    which all wait for the fullest rank are at most half of what they are with every `ranks`-th row."""
    generator = torch.Generator().manual_seed(3)
    waiting = dict(mine=0.0, by_rows=0.0)
    for _ in range(100):
        lengths = (torch.randn(64, generator=generator) * sigma + 3.3).exp().clamp(3, 128).long().tolist()
        by_rows = [list(range(rank, len(lengths), ranks)) for rank in range(ranks)]
        mean = sum(lengths) / ranks
        waiting["mine"] += makespan(lengths, _mezzo.balance_by_tokens(lengths, ranks)) - mean
        waiting["by_rows"] += makespan(lengths, by_rows) - mean
    assert waiting["mine"] <= waiting["by_rows"] / 2, waiting


@pytest.mark.parametrize("lengths, ranks, message", [([1, -2], 2, "cannot have -2 tokens"),
                                                     ([1], 0, "at least 1 rank, got 0")])
def test_what_cannot_be_balanced_is_refused(lengths, ranks, message):
    with pytest.raises(ValueError, match=message):
        _mezzo.balance_by_tokens(lengths, ranks)
