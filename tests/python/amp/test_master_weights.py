"""Master weights against the recipe written out in PyTorch."""
import collections
import copy

import _mezzo
import mezzo
import pytest
import torch

HALVES = [torch.float16, torch.bfloat16]
STEPS = 12


def make_model(seed=0):
    torch.manual_seed(seed)
    return torch.nn.Sequential(collections.OrderedDict(
        dense=torch.nn.Linear(16, 32), norm=torch.nn.LayerNorm(32), act=torch.nn.Tanh(), out=torch.nn.Linear(32, 3)))


def named(model):
    return dict(model.named_parameters())


def optimizer_of(masters, kind, lr, max_grad_norm=0.0, weight_decay=0.01):
    make = dict(adamw=mezzo.optim.AdamW, sgd=mezzo.optim.SGD)[kind]
    return make(masters.named_parameters(), lr=lr, max_grad_norm=max_grad_norm, weight_decay=weight_decay)


def batch(step, micro=0):
    generator = torch.Generator().manual_seed(1000 * step + micro)
    return torch.randn(8, 16, generator=generator), torch.randint(3, (8,), generator=generator)


def loss_of(model, step, micro=0):
    x, labels = batch(step, micro)
    for layer in model:  # each in the dtype of its weights, as autocast would arrange
        weight = getattr(layer, "weight", x)
        x = layer(x.to(weight.dtype))
    return torch.nn.functional.cross_entropy(x.float(), labels)


def train(model, dtype, kind, scale, accumulate, keep_norms=False, max_norm=0.0):
    """mezzo's: half weights and gradients, float32 masters."""
    masters = mezzo.MasterWeights(model, dtype, keep_norms_fp32=keep_norms)
    optimizer = optimizer_of(masters, kind, 0.02, max_norm)
    scaler = mezzo.GradScaler("cpu", init_scale=scale)
    for step in range(STEPS):
        for micro in range(accumulate):
            scaler.scale(loss_of(model, step, micro) / accumulate).backward()
            if accumulate > 1:
                masters.accumulate_gradients()
        assert scaler.step(optimizer).stepped()
        scaler.update()
        optimizer.zero_grad()
    return masters, optimizer


def reference(model, dtype, kind, scale, accumulate, keep_norms=False, max_norm=0.0):
    """FP32 master -> half copy -> forward -> loss * s -> backward -> gradients * 1/s in float32 -> update FP32 master."""
    norms = {id(p) for m in model if isinstance(m, torch.nn.LayerNorm) for p in m.parameters()}
    halves = list(model.parameters())
    masters = [p.detach().clone().requires_grad_() for p in halves]
    for p in halves:
        if not (keep_norms and id(p) in norms):
            p.data = p.data.to(dtype)
    make = dict(adamw=lambda: torch.optim.AdamW(masters, lr=0.02, weight_decay=0.01, fused=True),
                sgd=lambda: torch.optim.SGD(masters, lr=0.02, weight_decay=0.01, fused=True))
    optimizer = make[kind]()
    for step in range(STEPS):
        for micro in range(accumulate):
            (loss_of(model, step, micro) / accumulate * scale).backward()
            for p, master in zip(halves, masters):
                gradient = p.grad.float() / scale
                master.grad = gradient if master.grad is None else master.grad + gradient
                p.grad = None
        if max_norm:
            torch.nn.utils.clip_grad_norm_(masters, max_norm)
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for p, master in zip(halves, masters):
                p.copy_(master)
    return masters


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("kind", ["adamw", "sgd"])
@pytest.mark.parametrize("accumulate, keep_norms, max_norm", [(1, False, 0.0), (3, True, 0.0), (1, True, 0.1), (3, False, 0.1)])
def test_the_recipe_gives_the_numbers_it_gives_in_pytorch(dtype, kind, accumulate, keep_norms, max_norm):
    mine, theirs = make_model(), make_model()
    start = {name: parameter.detach().clone() for name, parameter in named(mine).items()}
    masters, _ = train(mine, dtype, kind, 1024.0, accumulate, keep_norms, max_norm)
    expected = reference(theirs, dtype, kind, 1024.0, accumulate, keep_norms, max_norm)
    norm = {"norm.weight", "norm.bias"}
    for (name, half), (_, other), master in zip(mine.named_parameters(), theirs.named_parameters(), expected):
        stays = keep_norms and name in norm
        assert half.dtype == other.dtype == (torch.float32 if stays else dtype), name
        mine_now = masters.state_dict()[name]
        if not max_norm and name != "out.bias":
            assert torch.equal(mine_now, master), name
        # out.bias has 3 elements, which PyTorch updates in double, and the clip factor may differ
        # by an ulp. Such ulps can tip the rounding of a weight, and Adam makes whole steps of
        # gradients that are rounding noise.
        assert (mine_now - master).norm() <= 0.01 * (master - start[name]).norm(), name
        assert torch.equal(half, masters.state_dict()[name].to(half.dtype)), "the model is the rounded masters"


def test_norms_are_told_by_name_and_shape():
    one, two = torch.zeros(3), torch.zeros(3, 3)
    for name in ["bert.encoder.layer.0.output.LayerNorm.weight", "h.0.ln_1.weight", "ln_f.bias", "norm.weight", "bn1.weight",
                 "blocks.3.norm2.bias", "final_layer_norm.weight", "rmsnorm.weight"]:
        assert _mezzo.is_norm_parameter(name, one) and not _mezzo.is_norm_parameter(name, two), name
    for name in ["classifier.bias", "lnear.weight", "weight", "norm", "bnet.weight", "enormous_head.dense.bias"]:
        assert not _mezzo.is_norm_parameter(name, one), name


def test_state_round_trips_and_training_goes_on_to_the_bit():
    whole = make_model()
    expected, _ = train(whole, torch.bfloat16, "adamw", 1024.0, 1)

    first = make_model()
    masters = mezzo.MasterWeights(first, torch.bfloat16)
    optimizer = optimizer_of(masters, "adamw", 0.02)

    def steps(model, optimizer, some):
        for step in some:
            loss_of(model, step).backward()
            optimizer.step()
            optimizer.zero_grad()

    steps(first, optimizer, range(7))
    second = make_model(seed=1)
    others = mezzo.MasterWeights(second, torch.bfloat16)
    others.load_state_dict({k: t.clone() for k, t in masters.state_dict().items()})
    for a, b in zip(first.parameters(), second.parameters()):
        assert torch.equal(a, b)
    resumed = optimizer_of(others, "adamw", 0.02)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    steps(second, resumed, range(7, STEPS))
    for name, tensor in expected.state_dict().items():
        assert torch.equal(tensor, others.state_dict()[name]), name


def test_a_trained_model_converts_back_to_float32_and_trains_on():
    model = make_model()
    masters, _ = train(model, torch.float16, "adamw", 1024.0, 1)
    saved = {k: t.clone() for k, t in masters.state_dict().items()}
    masters.to_float32()
    for name, parameter in model.named_parameters():
        assert parameter.dtype == torch.float32 and torch.equal(parameter, saved[name]), name
    loss_of(model, 0).backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()


def test_what_would_lose_data_is_refused_by_name():
    masters = mezzo.MasterWeights(make_model(), torch.float16)
    state = {k: t.clone() for k, t in masters.state_dict().items()}
    big = torch.full_like(state["out.bias"], 70000.0)
    for changed, message in [
            ({"dense.weight": state["dense.weight"].half()}, "entry dense.weight of the state to load is float16"),
            ({"out.bias": torch.zeros(4)}, r"entry out.bias of the state to load is float32 of shape \[4\]"),
            ({"out.bias": big}, "parameter out.bias has values up to 70000, which overflow float16"),
            ({"other": torch.zeros(1)}, "1 entries that belong to no parameter")]:
        with pytest.raises(ValueError, match=message):
            masters.load_state_dict(state | changed)
    with pytest.raises(ValueError, match="no entry out.bias"):
        masters.load_state_dict({k: t for k, t in state.items() if k != "out.bias"})
    for name, tensor in masters.state_dict().items():
        assert torch.equal(tensor, state[name])

    model = named(make_model())
    for change, message in [(lambda: model["out.bias"].data.fill_(1e5), "out.bias has values up to 100000, which overflow float16"),
                            (lambda: setattr(model["out.bias"], "data", torch.zeros(3).double()), "parameter out.bias is float64"),
                            (lambda: setattr(model["out.bias"], "grad", torch.zeros(3)), "out.bias has a gradient already")]:
        model = named(make_model())
        change()
        with pytest.raises(ValueError, match=message):
            mezzo.MasterWeights(model.items(), torch.float16)
        assert all(p.dtype != torch.float16 for p in model.values()), "nothing has changed"
    model = named(make_model())
    model["out.bias"].data.fill_(1e5)
    mezzo.MasterWeights(model.items(), torch.bfloat16)  # which reaches as far as float32


def test_a_gradient_on_master_and_model_at_once_is_refused():
    model = make_model()
    masters = mezzo.MasterWeights(model, torch.bfloat16)
    optimizer = optimizer_of(masters, "sgd", 0.1)
    loss_of(model, 0).backward()
    masters.accumulate_gradients()
    loss_of(model, 1).backward()
    with pytest.raises(ValueError, match="and its half copy both have a gradient"):
        optimizer.step()


def tiny_loss_of(model, step):
    """Its gradients are around 1e-8, which is 0 in float16."""
    return loss_of(model, step) * 1e-7


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("kind, lr", [("adamw", 0.02), ("sgd", 1e5)])
@pytest.mark.parametrize("accumulate", [False, True])
def test_small_gradients_survive_being_unscaled(dtype, kind, lr, accumulate):
    """A step after unscale_ is the step without it, bit for bit, and close to one of a float32 model."""
    tolerance = 16 * torch.finfo(dtype).eps  # forward and backward round about as often
    results = {}
    for how in ["step", "unscale", "float32"]:
        model = make_model()
        scaler = mezzo.GradScaler("cpu", init_scale=65536.0)
        if how == "float32":
            for p in model.parameters():
                p.data = p.data.to(dtype).float()  # the weights that the half models start their forward from
            parameters = list(model.parameters())
            optimizer = dict(adamw=mezzo.optim.AdamW, sgd=mezzo.optim.SGD)[kind](parameters, lr=lr, weight_decay=0.0)
        else:
            masters = mezzo.MasterWeights(model, dtype)
            optimizer = optimizer_of(masters, kind, lr, weight_decay=0.0)
        scaler.scale(tiny_loss_of(model, 0)).backward()
        if accumulate and how != "float32":
            masters.accumulate_gradients()
        if how != "step":
            scaler.unscale_(optimizer)
            results[how, "gradients"] = [p.grad for p in (parameters if how == "float32" else masters.parameters())]
        assert scaler.step(optimizer).stepped()
        scaler.update()
        results[how, "weights"] = ({n: p.detach() for n, p in named(model).items()} if how == "float32" else
                                   {n: t.clone() for n, t in masters.state_dict().items()})
        optimizer.zero_grad()
        assert all(p.grad is None for p in model.parameters())
    for name, weight in results["step", "weights"].items():
        assert torch.equal(weight, results["unscale", "weights"][name]), name
    start = named(make_model())
    for name, weight in results["float32", "weights"].items():
        moved = results["unscale", "weights"][name] - start[name].detach()
        truth = weight - start[name].detach().to(dtype).float()
        assert truth.abs().max() > 1e-4 and (moved - truth).norm() <= tolerance * truth.norm(), name
    for mine, truth in zip(results["unscale", "gradients"], results["float32", "gradients"]):
        assert mine.dtype == torch.float32 and (mine - truth).norm() <= tolerance * truth.norm()
    largest = [gradient.abs().max() for gradient in results["float32", "gradients"]]
    assert sum(gradient < 2**-25 for gradient in largest) > len(largest) / 2, "most round to 0 in float16"


def test_unscaled_gradients_of_half_weights_are_clipped_as_float32_ones():
    model, other = make_model(), make_model()
    masters, others = mezzo.MasterWeights(model, torch.float16), mezzo.MasterWeights(other, torch.float16)
    one, two = optimizer_of(masters, "sgd", 1e6, 1e-8, 0.0), optimizer_of(others, "sgd", 1e6, 0.0, 0.0)
    for m, o, set_up in [(model, one, masters), (other, two, others)]:
        scaler = mezzo.GradScaler("cpu", init_scale=65536.0)
        scaler.scale(tiny_loss_of(m, 0)).backward()
        if o is two:
            scaler.unscale_(o)
            assert _mezzo.clip_grad_norm_(set_up.parameters(), 1e-8) > 1e-8
        assert scaler.step(o).stepped()
    for name, weight in masters.state_dict().items():
        # Up to 1e-2 was added, times a norm that is summed otherwise: an ulp or two of either.
        torch.testing.assert_close(others.state_dict()[name], weight, rtol=2**-22, atol=1e-2 * 2**-22)


def test_overflow_of_half_gradients_skips_the_step_after_unscaling_and_a_quotient_beyond_half_does_not():
    for scale, taken in [(2.0**60, False), (65536.0, True), (2.0**-20, True)]:
        model = make_model()
        masters = mezzo.MasterWeights(model, torch.float16)
        optimizer = optimizer_of(masters, "adamw", 0.02)
        before = [p.detach().clone() for p in model.parameters()]
        scaler = mezzo.GradScaler("cpu", init_scale=scale)
        scaler.scale(loss_of(model, 0)).backward()
        if scale < 1:  # true gradients of 2e9
            for p in model.parameters():
                p.grad.fill_(2000.0)
        scaler.unscale_(optimizer)
        assert all(p.grad is None for p in model.parameters()), "the masters have them now"
        assert scaler.step(optimizer).stepped() == taken
        optimizer.zero_grad()
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), before)) != taken


@pytest.mark.parametrize("dtype", HALVES)
def test_frozen_parameters_are_half_in_the_model_and_keep_their_values(dtype):
    model = make_model()
    model.dense.weight.requires_grad_(False)
    start = {n: p.detach().clone() for n, p in named(model).items()}
    masters = mezzo.MasterWeights(model, dtype)
    assert sorted(name for name, _ in masters.named_parameters()) == ["dense.bias", "norm.bias", "norm.weight", "out.bias", "out.weight"]
    assert model.dense.weight.dtype == dtype and not model.dense.weight.requires_grad
    optimizer = optimizer_of(masters, "adamw", 0.02)
    loss_of(model, 0).backward()
    optimizer.step()
    state = masters.state_dict()
    for name, values in start.items():
        assert torch.equal(state[name], values) == (name == "dense.weight"), name
    masters.load_state_dict({n: t + 0.5 for n, t in state.items()})
    assert torch.equal(model.dense.weight, (start["dense.weight"] + 0.5).to(dtype))
    masters.to_float32()
    assert torch.equal(model.dense.weight, start["dense.weight"] + 0.5) and not model.dense.weight.requires_grad


@pytest.mark.parametrize("dtype", HALVES)
def test_a_tied_parameter_has_one_float32_master(dtype):
    def tied_model():
        torch.manual_seed(0)
        encode, decode = torch.nn.Linear(8, 8, bias=False), torch.nn.Linear(8, 8, bias=False)
        decode.weight = encode.weight
        return torch.nn.Sequential(collections.OrderedDict(encode=encode, act=torch.nn.Tanh(), decode=decode))

    def loss(model):
        x = torch.randn(4, 8, generator=torch.Generator().manual_seed(1)).to(model.encode.weight.dtype)
        return model(x).float().square().sum()

    model, truth = tied_model(), tied_model()
    names = dict(model.named_parameters(remove_duplicate=False))
    assert list(names) == ["encode.weight", "decode.weight"]
    masters = mezzo.MasterWeights(model, dtype)
    assert [name for name, _ in masters.named_parameters()] == ["encode.weight"], "the first of them"
    optimizer = optimizer_of(masters, "sgd", 0.01)
    loss(model).backward()
    optimizer.step()
    loss(truth).backward()
    torch.optim.SGD(truth.parameters(), lr=0.01, weight_decay=0.01).step()
    state = masters.state_dict()
    assert sorted(state) == ["decode.weight", "encode.weight"] and state["encode.weight"].dtype == torch.float32
    assert state["encode.weight"].data_ptr() == state["decode.weight"].data_ptr()
    moved, expected = state["encode.weight"] - tied_model().encode.weight, truth.encode.weight - tied_model().encode.weight
    assert (moved - expected).norm() < 16 * torch.finfo(dtype).eps * expected.norm()  # as forward and backward round
    assert torch.equal(model.encode.weight, state["encode.weight"].to(dtype)) and model.decode.weight is model.encode.weight

    values = {n: t.clone() for n, t in state.items()}
    masters.load_state_dict({"encode.weight": values["decode.weight"] * 2})
    assert torch.equal(masters.state_dict()["encode.weight"], values["decode.weight"] * 2)
    with pytest.raises(ValueError, match="entries encode.weight and decode.weight of the state to load differ"):
        masters.load_state_dict(values | {"decode.weight": values["encode.weight"] + 1})
    masters.load_state_dict(values)
    masters.to_float32()
    assert model.decode.weight is model.encode.weight and torch.equal(model.encode.weight, values["encode.weight"])
