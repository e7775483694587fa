"""mezzo.optim against torch.optim; and states of PyTorch in mezzo's C++ optimizers."""
import copy
import itertools
import math
import random

import _mezzo
import mezzo
import pytest
import torch
from optimizers import classes, make, reference

STEPS = 100


@pytest.fixture
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def follow_pytorch(kind, seed, sizes, check, momentum=0, nesterov=False, dtype=torch.float32, lr_is_tensor=False):
    """A hundred steps of both, with gradients that are missing now and then and a learning rate that changes. A tensor
    changes at every step."""
    rng = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    shapes = [[tuple(rng.choices(sizes, k=rng.randint(1, 3))) for _ in range(rng.randint(1, 4))] for _ in range(2)]
    decays, scales = [0.01, 0.0], [1.0, 0.5]
    lr = 10 ** rng.uniform(-4, -2)
    mine = [[torch.randn(s, generator=generator, dtype=dtype).requires_grad_() for s in group] for group in shapes]
    theirs = [[t.detach().clone().requires_grad_() for t in group] for group in mine]
    def groups(tensors):
        return [dict(params=g, weight_decay=d, lr=torch.tensor(lr * s, dtype=torch.float64) if lr_is_tensor else lr * s)
                for g, d, s in zip(tensors, decays, scales)]

    ours = make(kind, groups(mine), lr=lr, momentum=momentum, **(dict(nesterov=nesterov) if kind == "sgd" else {}))
    oracle = reference(kind, groups(theirs), lr, momentum, nesterov)
    for step in range(STEPS):
        for a, b in zip(itertools.chain(*mine), itertools.chain(*theirs)):
            if momentum == 0 and rng.random() < 0.1:  # PyTorch's fused SGD fails on a first gradient that comes late
                a.grad = b.grad = None
            else:
                a.grad = torch.randn(a.shape, generator=generator, dtype=dtype)
                b.grad = a.grad.clone()
        for group in ours.param_groups + oracle.param_groups:
            if lr_is_tensor:
                group["lr"].mul_(0.97)
            elif step == STEPS // 2:
                group["lr"] /= 3
        ours.step()
        oracle.step()
        for a, b in zip(itertools.chain(*mine), itertools.chain(*theirs)):
            check(a, b, step)


KINDS = [("adamw", 0, False), ("adam", 0, False), ("adamw amsgrad", 0, False), ("adam amsgrad", 0, False),
         ("sgd", 0, False), ("sgd", 0.9, False), ("sgd", 0.9, True)]


@pytest.mark.parametrize("kind, momentum, nesterov", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_a_hundred_steps_give_pytorchs_bits_where_it_uses_vectors(kind, momentum, nesterov, seed, one_thread):
    """PyTorch computes the elements after the last whole vector in double. Multiples of 16 have no such
    elements."""
    def check(a, b, step):
        assert torch.equal(a, b), (step, (a - b).abs().max())

    follow_pytorch(kind, seed, [16, 32, 48, 80], check, momentum, nesterov)


@pytest.mark.parametrize("kind, momentum, nesterov", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_a_hundred_steps_of_any_shape_follow_pytorch(kind, momentum, nesterov, seed):
    """Left-over elements differ by the rounding of float32: an ulp of the weight a step, and a few ulp in each
    update. If Adam divides noise by its root, this error is as large as a weight's step."""
    def check(a, b, step):
        torch.testing.assert_close(a, b, rtol=(step + 1) * 2**-22, atol=(step + 1) * 2**-23)

    follow_pytorch(kind, seed, [1, 3, 8, 17, 65], check, momentum, nesterov)


@pytest.mark.parametrize("kind, momentum, nesterov", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_learning_rate_that_is_a_tensor_gives_pytorchs_bits(kind, momentum, nesterov, dtype, one_thread):
    """PyTorch's optimizers given a float64 tensor, too, which is changed in place between all steps."""
    def check(a, b, step):
        assert torch.equal(a, b), (step, (a - b).abs().max())

    follow_pytorch(kind, 0, [16, 48], check, momentum, nesterov, dtype, lr_is_tensor=True)


@pytest.mark.parametrize("kind, momentum, nesterov", KINDS)
def test_float64_parameters_give_pytorchs_bits(kind, momentum, nesterov):
    def check(a, b, step):
        assert torch.equal(a, b), step

    follow_pytorch(kind, 0, [1, 3, 17], check, momentum, nesterov, torch.float64)


@pytest.mark.parametrize("kind", ["adamw", "adam", "sgd"])
def test_options_left_out_are_pytorchs(kind):
    """Weight decay included: 0.01 for AdamW, 0 for the others."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(32, generator=generator).requires_grad_()
    other = weight.detach().clone().requires_grad_()
    mine, theirs, _ = classes(kind)
    ours, oracle = mine([weight]), theirs([other], fused=True)
    assert ours.defaults == oracle.defaults and ours.state_dict() == oracle.state_dict()
    for _ in range(3):
        weight.grad = torch.randn(32, generator=generator)
        other.grad = weight.grad.clone()
        ours.step()
        oracle.step()
        assert torch.equal(weight, other)


def lamb_step(p, g, state, lr, decay, beta1=0.9, beta2=0.999, eps=1e-6):
    """Algorithm 2 of You et al. 2019, in float64."""
    state["t"] += 1
    state["m"] = beta1 * state["m"] + (1 - beta1) * g
    state["v"] = beta2 * state["v"] + (1 - beta2) * g * g
    direction = (state["m"] / (1 - beta1 ** state["t"])) / ((state["v"] / (1 - beta2 ** state["t"])).sqrt() + eps) + decay * p
    trust = p.norm() / direction.norm() if p.norm() > 0 and direction.norm() > 0 else 1.0
    return p - lr * trust * direction


def test_lamb_follows_its_paper():
    generator = torch.Generator().manual_seed(0)
    mine = [[torch.randn(9, 4, generator=generator).requires_grad_(), torch.zeros(5).requires_grad_()]]
    theirs = [t.detach().double() for t in mine[0]]
    states = [dict(t=0, m=torch.zeros(t.shape).double(), v=torch.zeros(t.shape).double()) for t in theirs]
    ours = mezzo.optim.LAMB(mine[0], lr=0.01, weight_decay=0.01)
    for _ in range(STEPS):
        for i, tensor in enumerate(mine[0]):
            tensor.grad = torch.randn(tensor.shape, generator=generator)
            theirs[i] = lamb_step(theirs[i], tensor.grad.double(), states[i], 0.01, 0.01)
        ours.step()
        for a, b in zip(mine[0], theirs):
            torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-5)  # float32 rounding over 100 steps


@pytest.mark.parametrize("kind", ["adamw", "adam", "sgd", "lamb"])
def test_a_scaled_step_equals_a_plain_one_and_found_inf_changes_nothing(kind):
    generator = torch.Generator().manual_seed(1)
    start = torch.randn(40, generator=generator)
    plain, scaled = start.clone().requires_grad_(), start.clone().requires_grad_()
    one, other = (make(kind, [t], 0.1, momentum=0.9) for t in (plain, scaled))
    for step in range(10):
        gradient = torch.randn(40, generator=generator)
        skip = step % 3 == 0  # the first step too
        scaled.grad = gradient * 1024 if not skip else torch.full((40,), float("inf"))
        before, state = scaled.detach().clone(), copy.deepcopy(other.state[scaled])
        other.grad_scale, other.found_inf = torch.tensor(1024.0), torch.tensor(float(skip))
        other.step()
        assert other.skipped == skip
        if skip:
            assert torch.equal(scaled, before)
            for key, tensor in other.state[scaled].items():
                assert torch.equal(tensor, state.get(key, torch.zeros_like(tensor))), key
            continue
        plain.grad = gradient.clone()
        one.step()
        assert torch.equal(plain, scaled), step  # 1024 is a power of two: unscaling is exact


def test_parameters_that_cannot_be_trained_are_refused():
    leaf = torch.zeros(2).requires_grad_()
    for params, message in [([], "empty parameter list"), ([leaf * 2], "non-leaf"), ([torch.zeros(2, dtype=torch.complex64)], "complex64"),
                            ([dict(params=[leaf]), dict(params=[leaf])], "more than one parameter group")]:
        with pytest.raises(ValueError, match=message):
            mezzo.optim.AdamW(params)
    sparse = mezzo.optim.AdamW([leaf])
    leaf.grad = torch.zeros(2).to_sparse()
    with pytest.raises(RuntimeError, match="AdamW does not support torch.sparse_coo gradients"):
        sparse.step()
    with pytest.raises(ValueError, match="SGD: the gradient of parameter 0 of group 0 is sparse, and its norm cannot be measured"):
        mezzo.optim.SGD([leaf], max_grad_norm=1.0).step()
    with pytest.raises(ValueError, match="max_grad_norm must be at least 0"):
        mezzo.optim.SGD([leaf], max_grad_norm=-1.0)


@pytest.mark.parametrize("scaled", [False, True])
def test_sparse_gradients_give_what_dense_ones_give(scaled):
    """Uncoalesced, with and without what makes the step touch all rows."""
    for options in [{}, dict(weight_decay=0.1), dict(momentum=0.9), dict(maximize=True)]:
        generator = torch.Generator().manual_seed(0)
        sparse, dense = (torch.ones(6, 3).requires_grad_() for _ in range(2))
        one, two = mezzo.optim.SGD([sparse], lr=0.5, **options), mezzo.optim.SGD([dense], lr=0.5, **options)
        scaler = mezzo.GradScaler("cpu", enabled=scaled)
        scaler.scale(torch.ones(()))
        for _ in range(3):
            values = torch.randn(3, 3, generator=generator) * scaler.get_scale()
            sparse.grad = torch.sparse_coo_tensor([[1, 4, 1]], values, (6, 3))
            dense.grad = sparse.grad.to_dense()
            assert scaler.step(one).stepped() and scaler.step(two).stepped()
            if scaled:
                scaler.update()
            torch.testing.assert_close(sparse, dense, rtol=2**-22, atol=2**-22)  # entries of one row are added one by one


@pytest.mark.parametrize("kind", ["adamw", "adam", "sgd", "lamb"])
@pytest.mark.parametrize("stage", ["plain", "scaled", "unscaled"])
def test_clipping_in_the_step_equals_clipping_before_it(kind, stage):
    """Without a scaler, by a scaler's step, and after its unscale_."""
    generator = torch.Generator().manual_seed(4)
    mine = [torch.randn(s, generator=generator).requires_grad_() for s in [(33,), (16, 5)]]
    theirs = [t.detach().clone().requires_grad_() for t in mine]
    ours, oracle = make(kind, mine, 0.1, momentum=0.9, max_grad_norm=2.0), make(kind, theirs, 0.1, momentum=0.9)
    scaler = mezzo.GradScaler("cpu", init_scale=1024.0)
    scaler.scale(torch.ones(1))
    for step in range(10):
        for a, b in zip(mine, theirs):
            b.grad = torch.randn(b.shape, generator=generator) * (0.1 if step % 3 == 0 else 1)
            a.grad = b.grad * (1 if stage == "plain" else 1024)
        norm = torch.nn.utils.clip_grad_norm_(theirs, 2.0)
        oracle.step()
        if stage == "plain":
            ours.step()
        else:
            if stage == "unscaled":
                scaler.unscale_(ours)
            kept = [t.grad.clone() for t in mine]
            assert scaler.step(ours).stepped()
            assert all(torch.equal(t.grad, g) for t, g in zip(mine, kept)), "the step does not write to gradients"
            scaler.update()
        torch.testing.assert_close(ours.grad_norm, norm)
        for a, b in zip(mine, theirs):  # the clip factor differs by an ulp, as the norm is summed more exactly
            torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", ["adamw", "adam", "sgd", "lamb"])
def test_a_gradient_that_is_not_finite_never_reaches_the_weights_where_it_is_measured(kind):
    weight = torch.randn(40).requires_grad_()
    optimizer = make(kind, [weight], 0.1, momentum=0.9, max_grad_norm=1.0)
    before = weight.detach().clone()
    weight.grad = torch.full((40,), float("nan"))
    optimizer.step()
    assert torch.equal(weight, before) and optimizer.skipped == 1 and optimizer.grad_norm.isnan()
    weight.grad = torch.ones(40)
    optimizer.step()
    assert not torch.equal(weight, before) and optimizer.skipped == 0 and weight.isfinite().all()


@pytest.mark.parametrize("kind", ["adamw", "adam", "sgd", "lamb"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_comes_into_gradients_after_unscaling_is_in_the_one_found_inf(kind, bad):
    """The scaler or the optimizer may skip. Step result, optimizer and scale show the skip."""
    weight = torch.ones(4).requires_grad_()
    optimizer = make(kind, [weight], 0.1, momentum=0.9, max_grad_norm=1.0)
    scaler = mezzo.GradScaler("cpu", growth_interval=1)
    for is_bad in [False, True, False]:
        before, scale = weight.detach().clone(), scaler.get_scale()
        optimizer.zero_grad()
        scaler.scale(weight.sum()).backward()
        scaler.unscale_(optimizer)
        if is_bad:
            weight.grad[2] = bad
        assert scaler.step(optimizer).stepped() != is_bad
        scaler.update()
        assert optimizer.skipped == is_bad
        assert scaler.get_scale() == (scale / 2 if is_bad else scale * 2)
        assert torch.equal(weight, before) == is_bad


@pytest.mark.parametrize("kind", ["adamw", "sgd"])
def test_a_disabled_scaler_hears_that_the_optimizer_skipped(kind):
    weight = torch.ones(4).requires_grad_()
    scaler = mezzo.GradScaler("cpu", enabled=False)
    for max_grad_norm, gradient in [(1.0, 1.0), (1.0, float("nan")), (0.0, 1.0)]:
        optimizer = make(kind, [weight], 0.1, momentum=0.9, max_grad_norm=max_grad_norm)
        before = weight.detach().clone()
        weight.grad = torch.full((4,), gradient)
        assert scaler.step(optimizer).stepped() == (gradient == 1)
        assert torch.equal(weight, before) != (gradient == 1)


@pytest.mark.parametrize("kind", ["adamw", "sgd", "lamb"])
def test_a_scaler_skips_backs_off_and_sees_what_overflows_by_unscaling(kind):
    weight = torch.randn(8).requires_grad_()
    optimizer = make(kind, [weight], 0.1, momentum=0.9)
    for scale, gradient, taken in [(4.0, 1.0, True), (4.0, float("inf"), False), (2.0**-100, 1e30, False)]:
        scaler = mezzo.GradScaler("cpu", init_scale=scale)
        scaler.scale(torch.ones(1))
        before = weight.detach().clone()
        weight.grad = torch.full((8,), gradient)
        assert scaler.step(optimizer).stepped() == taken
        assert torch.equal(weight, before) != taken
        scaler.update()
        assert scaler.get_scale() == (scale if taken else scale / 2)


@pytest.mark.parametrize("kind, momentum, nesterov", KINDS)
@pytest.mark.parametrize("direction", ["to torch", "from torch"])
def test_training_goes_on_in_pytorch_and_back(kind, momentum, nesterov, direction, one_thread):
    generator = torch.Generator().manual_seed(7)
    mine = [[torch.randn(16, generator=generator).requires_grad_(), torch.randn(4, 8, generator=generator).requires_grad_()],
            [torch.randn(32, generator=generator).requires_grad_()]]
    theirs = [[t.detach().clone().requires_grad_() for t in group] for group in mine]
    def ours_with(groups, lr):
        return _mezzo.MezzoOptimizer(kind, groups, [0.3, 0.2], lr, momentum, nesterov, lr_scales=[1.0, 0.5])

    def torch_with(groups, lr):
        return reference(kind, [dict(params=g, weight_decay=d, lr=lr * s) for g, d, s in zip(groups, [0.1, 0.0], [1.0, 0.5])],
                         lr, momentum, nesterov)

    def step(*optimizers):
        for a, b in zip(sum(mine, []), sum(theirs, [])):
            a.grad = torch.randn(a.shape, generator=generator)
            b.grad = a.grad.clone()
        for optimizer in optimizers:
            optimizer.step()

    ours, oracle = ours_with(mine, 0.01 if direction == "to torch" else 0.5), torch_with(theirs, 0.01)
    if direction == "to torch":
        ours = _mezzo.MezzoOptimizer(kind, mine, [0.1, 0.0], 0.01, momentum, nesterov, lr_scales=[1.0, 0.5])
        for _ in range(3):
            step(ours)
        oracle = torch_with(theirs, 0.7)  # loading replaces all of it
        oracle.load_state_dict(copy.deepcopy(ours.torch_state_dict()))
        for group in oracle.param_groups:
            group["fused"] = True  # torch's own choice of kernel, which mezzo's state does not hold
    else:
        for _ in range(3):
            step(oracle)
        ours.load_torch_state_dict(oracle.state_dict())
        assert ours.lr() == pytest.approx(0.01, rel=1e-12)
    with torch.no_grad():
        for a, b in zip(sum(mine, []), sum(theirs, [])):
            b.copy_(a) if direction == "to torch" else a.copy_(b)
    for _ in range(5):
        step(ours, oracle)
        for a, b in zip(sum(mine, []), sum(theirs, [])):
            assert torch.equal(a, b)


@pytest.mark.parametrize("kind, make, options", [
    ("adamw", torch.optim.AdamW, [dict(amsgrad=True), dict(amsgrad=False, betas=(0.5, 0.6))]),
    ("sgd", torch.optim.SGD, [dict(momentum=0.9, dampening=0.25), dict(momentum=0.5, nesterov=True)]),
    ("sgd", torch.optim.SGD, [dict(momentum=0.0), dict(momentum=0.9, weight_decay=0.1)]),
])
def test_options_of_each_group_of_a_pytorch_state_are_taken_over(kind, make, options):
    """Into an optimizer that was made with others; training then goes on with PyTorch's numbers."""
    generator = torch.Generator().manual_seed(3)
    theirs = [torch.randn(24, generator=generator).requires_grad_() for _ in options]
    oracle = make([dict(params=[t], lr=0.1 / (i + 1), **o) for i, (t, o) in enumerate(zip(theirs, options))], lr=1.0)

    def give_gradients(*lists):
        for tensors in zip(*lists):
            gradient = torch.randn(24, generator=generator)
            for tensor in tensors:
                tensor.grad = gradient.clone()

    for _ in range(2):
        give_gradients(theirs)
        oracle.step()
    mine = [t.detach().clone().requires_grad_() for t in theirs]
    ours = _mezzo.MezzoOptimizer(kind, [[t] for t in mine], [0.0, 0.0], 0.5, 0.9)
    ours.load_torch_state_dict(oracle.state_dict())
    for _ in range(3):
        give_gradients(theirs, mine)
        oracle.step()
        ours.step()
        for a, b in zip(mine, theirs):  # a few ulps: PyTorch's formulas here consist of single operations
            torch.testing.assert_close(a, b, rtol=2e-6, atol=2e-6)


def test_states_of_pytorch_that_would_lose_data_are_refused():
    def pair(make, **torch_arguments):
        weight = torch.randn(4).requires_grad_()
        weight.grad = torch.ones(4)
        optimizer = make([weight], lr=0.1, **torch_arguments)
        optimizer.step()
        return optimizer.state_dict()

    weight = torch.randn(4).requires_grad_()
    adamw = _mezzo.MezzoOptimizer("adamw", [[weight]], [0.0], 0.5)
    sgd = _mezzo.MezzoOptimizer("sgd", [[weight]], [0.0], 0.5, 0.9)
    for optimizer, state, message in [
            (adamw, pair(torch.optim.Adam), "another decoupled_weight_decay"),
            (adamw, pair(torch.optim.AdamW, maximize=True), "another maximize"),
            (sgd, pair(torch.optim.SGD, maximize=True), "another maximize"),
            (adamw, dict(state={}, param_groups=[]), "0 parameter groups, this optimizer has 1"),
    ]:
        with pytest.raises(ValueError, match=message):
            optimizer.load_torch_state_dict(state)
        assert optimizer.lr() == 0.5 and not optimizer.state_dict()


def test_weight_decay_and_learning_rates_by_layer():
    names = ["bert.embeddings.word_embeddings.weight", "bert.embeddings.LayerNorm.weight",
             "bert.encoder.layer.0.output.dense.weight", "bert.encoder.layer.0.output.dense.bias",
             "bert.encoder.layer.1.output.LayerNorm.weight", "classifier.weight"]
    parameters = {n: torch.zeros(2) if "LayerNorm" in n or "bias" in n else torch.zeros(2, 2) for n in names}
    layer = lambda name: 0 if "embeddings" in name else 1 + int(name.split(".")[3]) if "layer" in name else 3
    groups = {name: (decay, scale) for decay, scale, members in _mezzo.param_groups(parameters, 0.5, layer) for name in members}
    assert groups == {names[0]: (0.01, 0.125), names[1]: (0.0, 0.125), names[2]: (0.01, 0.25), names[3]: (0.0, 0.25),
                      names[4]: (0.0, 0.5), names[5]: (0.01, 1.0)}
    assert [(d, s) for d, s, _ in _mezzo.param_groups(parameters, 1.0, layer)] == [(0.01, 1.0), (0.0, 1.0)]
    with pytest.raises(ValueError, match="layer_lr_decay must be above 0"):
        _mezzo.param_groups(parameters, 0.0, layer)
