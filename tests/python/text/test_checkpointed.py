"""Gradient checkpointing: the numbers of the run without it, in less memory; against torch.utils.checkpoint too."""
import shutil

import _mezzo
import pytest
import ranks
import torch
from ddp_pair import KINDS, end, start
from support import mixed_ids, random_bert
from torch.utils.checkpoint import checkpoint

SIZES = dict(hidden_size=64, num_hidden_layers=3, num_attention_heads=4, intermediate_size=128, vocab_size=500)
LABELS = torch.tensor([0, 1, 1, 0])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return random_bert(tmp_path_factory.mktemp("bert"), **SIZES)[1]


def step(folder, on, dtype=None, ids=None, seed=5):
    """Logits, loss and gradients of one step in training mode, dropout on."""
    model = _mezzo.Model(str(folder))
    model.train(True)
    model.set_gradient_checkpointing(on)
    with torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
        logits = model.forward(ids or mixed_ids([5, 31, 12, 2], vocab_size=500), seed=seed, step=3)
        loss = torch.nn.functional.cross_entropy(logits.float(), LABELS)
    loss.backward()
    return logits.detach(), loss.detach(), {name: p.grad for name, p in model.parameters().items()}


@pytest.mark.parametrize("dtype", [None, torch.bfloat16, torch.float16])
def test_logits_loss_and_gradients_are_the_same_to_the_bit(folder, dtype):
    plain, thrifty = step(folder, False, dtype), step(folder, True, dtype)
    assert torch.equal(plain[0], thrifty[0]) and torch.equal(plain[1], thrifty[1])
    for name, gradient in plain[2].items():
        assert torch.equal(gradient, thrifty[2][name]), name
    assert not torch.equal(plain[0], step(folder, True, dtype, seed=6)[0]), "dropout is on"


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_a_step_over_long_texts_needs_less_memory(tmp_path, dtype):
    layers = 8
    _, folder = random_bert(tmp_path, **{**SIZES, "num_hidden_layers": layers})
    peaks = []
    for on in False, True:
        with _mezzo.LiveBytes() as memory:
            step(folder, on, dtype, mixed_ids([256] * 2 + [2] * 2, vocab_size=500))
        peaks.append(memory.peak)
    # One layer at full size, its work space and the inputs of the others instead of all layers;
    # weights and gradients stay.
    assert peaks[1] < 0.6 * peaks[0], peaks


def test_evaluation_is_left_alone(folder):
    model = _mezzo.Model(str(folder))
    model.train(False)
    ids = mixed_ids([5, 9], vocab_size=500)
    expected = model.forward(ids)
    model.set_gradient_checkpointing(True)
    assert torch.equal(model.forward(ids), expected)


def under_ddp(rank, folder, on, find_unused):
    group = start(folder.parent)
    model = _mezzo.Model(str(folder))
    model.train(True)
    model.set_gradient_checkpointing(on)
    parameters = model.parameters()
    fired = dict.fromkeys(parameters, 0)
    for name, parameter in parameters.items():
        def count(_, name=name):
            fired[name] += 1
        parameter.register_post_accumulate_grad_hook(count)

    def forward(i):
        return model.forward(mixed_ids([7, 12, 30, 4], 500, seed=10 * rank + i), seed=rank, step=i)

    ddp = KINDS["tensor"](list(parameters.items()), [], forward, group, find_unused_parameters=find_unused)
    gradients = []
    for i in range(2):
        for parameter in parameters.values():
            parameter.grad = None
        torch.nn.functional.cross_entropy(ddp(i), LABELS).backward()
        gradients.append({name: p.grad.numpy().copy() for name, p in parameters.items()})
    end(group)
    return gradients, set(fired.values())


@pytest.mark.parametrize("find_unused", [False, True])
def test_two_ranks_exchange_each_gradient_once(folder, tmp_path, find_unused):
    results = []
    for on in False, True:
        copy = tmp_path / str(on) / "model"
        shutil.copytree(folder, copy)
        results.append(ranks.run(2, under_ddp, copy, on, find_unused))
    for plain, thrifty in zip(*results):
        assert thrifty[1] == {2}, "one gradient a parameter and step"
        for a, b in zip(plain[0], thrifty[0]):
            assert all((a[name] == b[name]).all() for name in a)
    (first, _), (second, _) = results[1]
    assert all((first[1][name] == second[1][name]).all() for name in first[1]), "averaged over ranks"


def both(segment, x, parameters):
    """The output and gradients with mezzo's and with Python's checkpointing, and with none."""
    for run in (lambda: _mezzo.checkpointed(lambda inputs: segment(inputs[0]), [x], parameters),
                lambda: checkpoint(segment, x, use_reentrant=False), lambda: segment(x)):
        y = run()
        yield y, torch.autograd.grad(y.square().sum(), [t for t in (x, *parameters) if t.requires_grad], create_graph=True)


@pytest.mark.parametrize("x_needs_grad", [False, True])
def test_any_segment_gives_the_gradients_of_pythons_checkpoint_also_of_second_order(x_needs_grad):
    torch.manual_seed(0)
    x = torch.randn(5, 4, dtype=torch.double, requires_grad=x_needs_grad)
    layer = torch.nn.Linear(4, 4).double()
    layer.bias.requires_grad_(False)
    seconds = []
    mine, theirs, plain = both(lambda t: torch.tanh(layer(t)), x, list(layer.parameters()))
    for y, gradients in mine, theirs, plain:
        assert torch.equal(y, plain[0])
        assert len(gradients) == 1 + x_needs_grad
        assert all(torch.equal(a, b) for a, b in zip(gradients, plain[1]))
        seconds.append(torch.autograd.grad(sum(g.square().sum() for g in gradients), layer.weight)[0])
    torch.testing.assert_close(seconds[0], seconds[2])
    torch.testing.assert_close(seconds[1], seconds[2])


def test_the_autocast_state_of_the_first_run_holds_in_the_second():
    layer = torch.nn.Linear(4, 4)
    seen = []

    def segment(inputs):
        seen.append((torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"), torch.is_grad_enabled()))
        return layer(inputs[0]).float()

    with torch.autocast("cpu", dtype=torch.float16):
        y = _mezzo.checkpointed(segment, [torch.randn(3, 4, requires_grad=True)], list(layer.parameters()))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y.sum().backward()
        assert torch.get_autocast_dtype("cpu") == torch.bfloat16
    assert seen == [(True, torch.float16, False), (True, torch.float16, True)]
    with torch.no_grad():
        assert not _mezzo.checkpointed(segment, [torch.randn(3, 4)], list(layer.parameters())).requires_grad


def test_a_weight_used_before_and_inside_keeps_its_gradient_under_autocast():
    """PyTorch's cache of cast weights must not hand the second use a cast that the first made without a graph."""
    layer, x = torch.nn.Linear(4, 4), torch.randn(3, 4)
    gradients = []
    for run in (lambda: _mezzo.checkpointed(lambda inputs: layer(inputs[0]), [x], list(layer.parameters())), lambda: layer(x)):
        layer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = layer(run())
        y.float().sum().backward()
        gradients.append([p.grad.clone() for p in layer.parameters()])
    for a, b in zip(*gradients):  # the cached cast sums both uses in bfloat16
        torch.testing.assert_close(a, b, rtol=2 * 2**-8, atol=2 * 2**-8)


def test_a_parameter_with_hooks_is_refused():
    layer = torch.nn.Linear(4, 4)
    layer.weight.register_hook(lambda gradient: 2 * gradient)
    with pytest.raises(ValueError, match="a parameter of shape .* has hooks, which would see its gradient twice"):
        _mezzo.checkpointed(lambda inputs: layer(inputs[0]), [torch.randn(2, 4)], list(layer.parameters()))
