"""mezzo::checkpoint beside torch.utils.checkpoint with use_reentrant=False: the same calls, numbers, memory and errors."""
import _mezzo
import pytest
import torch
from torch.utils.checkpoint import CheckpointError, checkpoint


def mezzos(function, *inputs):
    return _mezzo.checkpoint(lambda tensors: list(function(*tensors)), list(inputs))


def pythons(function, *inputs):
    return checkpoint(function, *inputs, use_reentrant=False)


def plain(function, *inputs):
    return function(*inputs)


WAYS = [plain, mezzos, pythons]


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(6, 24), torch.nn.Dropout(0.4), torch.nn.GELU(), torch.nn.Linear(24, 6))
        self.calls = 0

    def forward(self, x, y):
        self.calls += 1
        hidden = self.layers(x) * y
        return hidden, hidden.exp()


def run(way, dtype=None):
    torch.manual_seed(3)
    model = Model()
    x, y = torch.randn(5, 6, requires_grad=True), torch.randn(5, 6, requires_grad=True)
    with torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
        first, second = way(model, x, y)
        first, second = way(model, first, second.sigmoid())  # each parameter has two uses
    drawn = torch.randn(3)
    (first.float().sum() + second.float().square().mean()).backward()
    return [first, second, drawn, torch.randn(3), x.grad, y.grad, *[p.grad for p in model.parameters()]], model.calls


@pytest.mark.parametrize("dtype", [None, torch.bfloat16, torch.float16])
def test_outputs_gradients_and_random_numbers_have_the_same_bits(dtype):
    (expected, _), (mine, calls), (theirs, their_calls) = (run(way, dtype) for way in WAYS)
    assert calls == their_calls == 4
    for a, b, c in zip(expected, mine, theirs):
        assert torch.equal(a, b) and torch.equal(a, c)


def test_nested_checkpoints_make_no_more_calls():
    def run_nested(way):
        torch.manual_seed(3)
        model, x = Model(), torch.randn(5, 6, requires_grad=True)
        outer = lambda t: [way(model, t, t)[0].sin()]
        way(outer, x)[0].sum().backward()
        return x.grad, model.calls

    (expected, _), (mine, calls), (theirs, their_calls) = (run_nested(way) for way in WAYS)
    assert torch.equal(expected, mine) and torch.equal(expected, theirs)
    assert calls <= their_calls


def test_a_graph_that_is_kept_gives_gradients_again_and_of_some_inputs():
    def gradients(way):
        torch.manual_seed(3)
        model, x, y = Model(), torch.randn(5, 6, requires_grad=True), torch.randn(5, 6, requires_grad=True)
        loss = way(model, x, y)[1].sum()
        found = [torch.autograd.grad(loss, inputs, retain_graph=True) for inputs in ([y], [x, y], [model.layers[0].weight])]
        return [g for group in found for g in group], model.calls

    (expected, _), (mine, calls), (theirs, their_calls) = (gradients(way) for way in WAYS)
    assert all(torch.equal(a, b) and torch.equal(a, c) for a, b, c in zip(expected, mine, theirs))
    assert calls <= their_calls


def test_second_derivatives_are_those_of_a_plain_call():
    def second(way):
        x = torch.linspace(0.1, 1, 4, dtype=torch.double, requires_grad=True)
        y = way(lambda t: [t.sin().exp() * t], x)[0]
        first = torch.autograd.grad(y.sum(), x, create_graph=True)[0]
        return torch.autograd.grad(first.square().sum(), x)[0]

    expected, mine, theirs = (second(way) for way in WAYS)
    assert torch.equal(expected, mine) and torch.equal(expected, theirs)


def test_as_little_stays_in_memory():
    torch.manual_seed(3)
    live = {}
    for way in WAYS:
        model, x = Model(), torch.randn(2000, 6, requires_grad=True)
        with _mezzo.LiveBytes() as memory:
            for _ in range(4):
                x = way(model, x, x)[0]
            live[way] = memory.live
    assert live[mezzos] < 0.2 * live[plain]
    assert live[mezzos] <= live[pythons] + 4 * 8192  # states of the random-number generator


def test_a_function_that_changes_is_an_error_in_both():
    for change in (lambda t, first: t.exp() if first else t.exp().exp(), lambda t, first: t.exp() if first else t[:2].exp()):
        for way, error in (mezzos, RuntimeError), (pythons, CheckpointError):
            calls = []

            def function(t):
                calls.append(1)
                return [change(t, len(calls) == 1)]

            y = way(function, torch.randn(4, requires_grad=True))[0]
            if way is pythons and calls and len(change(torch.ones(4), False)) == 4:
                continue  # stops before the tensor that is one too many
            with pytest.raises(error):
                y.sum().backward()
