"""GradScaler in several processes whose gradients differ: random programs of calls on 2 and 3 ranks, against
torch.amp.GradScaler with the maximum of all ranks' found_inf written into every rank's."""
import random

import _mezzo
import pytest
import ranks
import torch
from scaled_optimizers import Shim, Told

INF, NAN = float("inf"), float("nan")
PROGRAMS = 100
KINDS = ["sgd", "adamw", "fused", "mezzo"]
CPU = torch.device("cpu")


def random_gradient(generator, parameter, bad):
    gradient = torch.randn(parameter.shape, generator=generator) * 100
    if bad is not None:
        gradient.view(-1)[torch.randint(gradient.numel(), (), generator=generator)] = bad
    return gradient


def random_program(seed, world_size):
    rng = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    optimizers = [(rng.choice(KINDS), [torch.randn(rng.choice([(1,), (3,), (2, 3)]), generator=generator)
                                       for _ in range(rng.randint(1, 3))]) for _ in range(rng.choice([1, 1, 2]))]
    iterations = []
    for _ in range(6):
        calls = []
        for kind, parameters in optimizers:
            has_none = [rng.random() < 0.2 for _ in range(world_size)] if rng.random() < 0.9 else [True] * world_size
            bad_rank = rng.randrange(world_size) if rng.random() < 0.4 else None
            gradients = []
            for rank in range(world_size):
                bad = rng.choice([INF, -INF, NAN]) if rank == bad_rank else None
                gradients.append([None if has_none[rank] or rng.random() < 0.2 else
                                  random_gradient(generator, p, bad) for p in parameters])
            how = rng.choice(["step", "unscale", "closure"] if kind in ("sgd", "adamw") else ["step", "unscale"])
            calls.append((how, gradients))
        iterations.append((calls, rng.choice([None, None, None, None, 8.0])))
    return dict(optimizers=optimizers, iterations=iterations, allow_no_gradients=rng.random() < 0.5,
                options=dict(init_scale=rng.choice([1.0, 1024.0, 65536.0]), growth_interval=rng.randint(1, 3)))


def make_optimizer(kind, parameters, is_mezzo):
    if kind == "fused" and not is_mezzo:
        return Told(torch.optim.SGD)(parameters, lr=0.125, fused=True)
    optimizer = {
        "sgd": lambda: _mezzo.SGD(parameters, lr=0.125, momentum=0.5),
        "adamw": lambda: _mezzo.AdamW(parameters, lr=0.01),
        "fused": lambda: _mezzo.FusedSGD(parameters, lr=0.125),
        "mezzo": lambda: _mezzo.MezzoOptimizer("adam", [parameters], [0.0], 0.01),
    }[kind]()
    return optimizer if is_mezzo else Shim(optimizer, parameters)


class Side:
    """The model of one rank."""

    def __init__(self, program, rank, scaler, is_mezzo):
        self.rank, self.scaler = rank, scaler
        self.parameters = [[p.clone().requires_grad_() for p in parameters] for _, parameters in program["optimizers"]]
        self.optimizers = [make_optimizer(kind, parameters, is_mezzo)
                           for (kind, _), parameters in zip(program["optimizers"], self.parameters)]
        scaler.scale(torch.ones(()))
        self.log = []

    def set_gradients(self, index, gradients):
        for parameter, gradient in zip(self.parameters[index], gradients[self.rank]):
            parameter.grad = None if gradient is None else gradient.clone()

    def note(self, results):
        state = self.scaler.state_dict()
        weights = [p.tolist() for parameters in self.parameters for p in parameters]
        self.log.append((results, state["scale"], state["_growth_tracker"], weights))


def errors_of(call):
    try:
        return call()
    except RuntimeError as error:
        assert "no gradient" in str(error).lower(), error
        return "error"


def play(program, rank, scaler):
    """mezzo, on one of the ranks."""
    side = Side(program, rank, scaler, is_mezzo=True)
    for calls, new_scale in program["iterations"]:
        results = []
        for index, (how, gradients) in enumerate(calls):
            optimizer = side.optimizers[index]

            def closure():
                side.set_gradients(index, gradients)
                return scaler.scale(torch.ones(()))

            if how == "closure":
                results.append(errors_of(lambda: scaler.step_with_closure(optimizer, closure)))
                continue
            side.set_gradients(index, gradients)
            if how == "unscale":
                scaler.unscale_(optimizer)
            results.append(errors_of(lambda: scaler.step(optimizer)))
        results.append(errors_of(lambda: scaler.update()))
        if new_scale is not None or results[-1] == "error":
            scaler.update(new_scale or scaler.get_scale())
        side.note(results)
    return side.log


def simulate(program, world_size):
    """PyTorch, on all ranks in turn."""
    sides = [Side(program, rank, torch.amp.GradScaler("cpu", **program["options"]), is_mezzo=False)
             for rank in range(world_size)]
    allow = program["allow_no_gradients"]
    for calls, new_scale in program["iterations"]:
        results = [[] for _ in sides]
        anything_checked = False
        for index, (_, gradients) in enumerate(calls):
            states = []
            for side in sides:
                side.set_gradients(index, gradients)
                side.scaler.unscale_(side.optimizers[index])
                states.append(side.scaler._per_optimizer_states[id(side.optimizers[index])]["found_inf_per_device"])
            found = [state[CPU].item() for state in states if state]
            anything_checked |= bool(found)
            for side, state, result in zip(sides, states, results):
                if found:
                    state[CPU] = torch.tensor(max(found))
                    result.append(bool(side.scaler.step(side.optimizers[index])))
                else:
                    result.append(False if allow else "error")
        for side, result in zip(sides, results):
            result.append(None if anything_checked or allow else "error")
            if anything_checked:
                side.scaler.update()
            if new_scale is not None or not anything_checked:
                side.scaler.update(new_scale or side.scaler.get_scale())
            side.note(result)
    return [side.log for side in sides]


def play_all(rank, world_size, reproduce_pytorch):
    group = _mezzo.ProcessGroup()
    logs = []
    for seed in range(PROGRAMS):
        program = random_program(seed, world_size)
        scaler = _mezzo.agreeing_grad_scaler(group, **program["options"], reproduce_pytorch=reproduce_pytorch,
                                             allow_no_gradients=program["allow_no_gradients"])
        logs.append(play(program, rank, scaler))
    group.shutdown()
    return logs


@pytest.mark.parametrize("world_size, reproduce_pytorch", [(2, False), (3, False), (3, True)])
def test_all_ranks_skip_the_same_steps(world_size, reproduce_pytorch):
    mine = ranks.run(world_size, play_all, world_size, reproduce_pytorch)
    skipped = errors = 0
    for seed in range(PROGRAMS):
        theirs = simulate(random_program(seed, world_size), world_size)
        for rank in range(world_size):
            for i, (a, b) in enumerate(zip(mine[rank][seed], theirs[rank])):
                place = f"program {seed}, iteration {i}, rank {rank}"
                assert a == b, place
                assert a[:3] == mine[0][seed][i][:3], place
                skipped += a[0].count(False)
                errors += a[0].count("error")
    assert skipped > 100 and errors > 20  # else the programs show nothing


def stay_stuck(rank):
    """Gradients of rank 1 alone stay inf."""
    group = _mezzo.ProcessGroup()
    scaler = _mezzo.agreeing_grad_scaler(group, max_consecutive_skips=2)
    parameter = torch.ones(2, requires_grad=True)
    optimizer = _mezzo.SGD([parameter], lr=0.1)
    scaler.scale(torch.ones(()))
    for _ in range(2):
        parameter.grad = torch.full((2,), INF if rank == 1 else 1.0)
        try:
            scaler.step(optimizer)
        except RuntimeError as error:
            group.shutdown()
            return str(error)
        scaler.update()


def test_ranks_without_overflow_look_at_the_others():
    finite, overflowed = ranks.run(2, stay_stuck)
    assert "No gradient of this process is inf or NaN: check the other processes." in finite
    assert "1 of 1 gradients" in overflowed and "2 inf" in overflowed


def spoil_after_unscaling(rank):
    """NaN comes into the gradients of rank 1 alone, between unscale_ and a step that measures them."""
    group = _mezzo.ProcessGroup()
    scaler = _mezzo.agreeing_grad_scaler(group, growth_interval=1)
    parameter = torch.ones(2, requires_grad=True)
    optimizer = _mezzo.MezzoOptimizer("adamw", [[parameter]], [0.0], 0.1, max_grad_norm=1.0)
    scaler.scale(torch.ones(()))
    log = []
    for spoiled in [False, True, False]:
        parameter.grad = torch.full((2,), 65536.0)
        scaler.unscale_(optimizer)
        if spoiled and rank == 1:
            parameter.grad[0] = NAN
        stepped = scaler.step(optimizer)
        scaler.update()
        log.append((stepped, optimizer.found_inf().item(), scaler.get_scale(), parameter.tolist()))
    group.shutdown()
    return log


def test_ranks_agree_on_what_one_of_them_finds_after_unscaling():
    one, other = ranks.run(2, spoil_after_unscaling)
    assert one == other
    assert [(stepped, found_inf) for stepped, found_inf, *_ in one] == [(True, 0), (False, 1), (True, 0)]
    assert [scale for _, _, scale, _ in one] == [2.0**17, 2.0**16, 2.0**17] and one[0][3] == one[1][3] != one[2][3]
