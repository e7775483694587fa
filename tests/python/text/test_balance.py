"""balance_by_tokens divides the texts of a batch among ranks."""
import itertools
import random

import _mezzo
import pytest
import torch


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
    """Lengths of texts are about log-normal; 128 tokens at most, as in training. All ranks wait for the fullest one.
    Summed over batches, its surplus tokens are at most half as many as with every `ranks`-th row."""
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
