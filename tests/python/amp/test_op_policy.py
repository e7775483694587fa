"""Op policies against PyTorch's own autocast: its test lists, random programs, and ops outside its
lists."""
import json
import random
import threading

import mezzo
import pytest
import torch
from devices import DEVICES
from torch.testing._internal.autocast_test_lists import AutocastCPUTestLists, AutocastTestLists

CPU = mezzo.OpPolicy.preset("cpu")
CUDA = mezzo.OpPolicy.preset("cuda")


def resolve(name, modules):
    return next(getattr(m, name) for m in modules if hasattr(m, name))


TORCH = (torch, torch._C._VariableFunctions)
NN = (torch._C._nn, torch.nn.functional)
LINALG = (torch._C._linalg,)


def cases(lists, groups, dtype=None, half_pairs=None):
    """(id, function, args, kwargs) for the entries of PyTorch's lists; an entry is (name, args[, kwargs or skip flag])."""
    for group, modules in groups:
        for i, (name, *rest) in enumerate(getattr(lists, group)):
            if name == "einsum":  # PyTorch's own entry is malformed, and its tests pass over it
                rest = [("ij,jk->ik", *rest[1])]
            args, kwargs = rest[0], next((r for r in rest[1:] if isinstance(r, dict)), {})
            if group == half_pairs:  # (name, arguments with bfloat16, the same with float16)
                args = rest[1] if dtype == torch.float16 else rest[0]
            if modules is None:
                yield f"{name}-{i}", (lambda first, *others, _n=name: getattr(first, _n)(*others)), args, kwargs
            else:
                yield f"{name}-{i}", resolve(name, modules), args, kwargs


def cast(value, dtype):
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if value.is_floating_point() and value.dtype != torch.float64 else value
    return type(value)(cast(v, dtype) for v in value) if isinstance(value, (tuple, list)) else value


def halves_as(value, dtype):
    """PyTorch's lists have arguments in float16. It does not promote them with arguments of a bfloat16
    region."""
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if value.dtype == torch.float16 else value
    return type(value)(halves_as(v, dtype) for v in value) if isinstance(value, (tuple, list)) else value


def same(a, b):
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a.nan_to_num(), b.nan_to_num())
    return len(a) == len(b) and all(map(same, a, b)) if isinstance(a, (tuple, list)) else a == b


# ---------------------------------------------------------------- PyTorch's own lists

CPU_GROUPS = [("torch_16", TORCH), ("nn_16", NN), ("torch_fp32", TORCH), ("nn_fp32", NN), ("torch_need_autocast_promote", TORCH)]


CPU_LISTS = AutocastCPUTestLists("cpu")
CPU_CASES = [(dtype, *case) for dtype in (torch.bfloat16, torch.float16)
             for case in cases(CPU_LISTS, CPU_GROUPS, dtype, half_pairs="torch_need_autocast_promote")]


@pytest.mark.parametrize("case", CPU_CASES, ids=lambda c: f"{c[0]}-{c[1]}")
def test_cpu_preset_does_what_pytorch_does_on_its_cpu_list(case):
    dtype, _, function, args, kwargs = case
    with torch.autocast("cpu", dtype):
        torch.manual_seed(0)
        expected = function(*args, **kwargs)
    with mezzo.autocast("cpu", dtype, policy=CPU):
        torch.manual_seed(0)
        assert same(function(*args, **kwargs), expected)


NOT_ON_CPU = {"cudnn_convolution", "cudnn_convolution_transpose"}
CUDA_LISTS = AutocastTestLists("cpu")


def cuda_cases(*groups):
    return [c for c in cases(CUDA_LISTS, groups) if c[0].rsplit("-", 1)[0] not in NOT_ON_CPU]


@pytest.mark.parametrize("case", cuda_cases(("torch_fp16", TORCH), ("nn_fp16", NN), ("linalg_fp16", LINALG), ("methods_fp16", None)), ids=lambda c: c[0])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_cuda_preset_lowers_pytorchs_list(case, dtype):
    _, function, args, kwargs = case
    expected = function(*cast(args, dtype), **kwargs)
    with mezzo.autocast("cpu", dtype, policy=CUDA):
        got = function(*args, **kwargs)
    assert same(got, expected)
    assert all(t.dtype == dtype for t in (got if isinstance(got, tuple) else [got]))


@pytest.mark.parametrize("case", cuda_cases(("torch_fp32", TORCH), ("nn_fp32", NN), ("methods_fp32", None)), ids=lambda c: c[0])
def test_cuda_preset_computes_pytorchs_list_in_float32(case):
    _, function, args, kwargs = case
    expected = function(*cast(args, torch.float32), **kwargs)
    with mezzo.autocast("cpu", torch.float16, policy=CUDA):
        got = function(*args, **kwargs)
    assert got.dtype == torch.float32 and same(got, expected)


@pytest.mark.parametrize("case", cuda_cases(("torch_need_autocast_promote", TORCH)), ids=lambda c: c[0])
def test_cuda_preset_promotes_pytorchs_list(case):
    _, function, args, kwargs = case
    expected = function(*cast(args, torch.float32), **kwargs)
    low = cast(args, torch.float16)
    with mezzo.autocast("cpu", torch.float16, policy=CUDA):
        got, got_low = function(*args, **kwargs), function(*low, **kwargs)
    assert got.dtype == torch.float32 and same(got, expected)
    assert got_low.dtype == torch.float16 and same(got_low, function(*low, **kwargs))


@pytest.mark.parametrize("case", cuda_cases(("torch_expect_builtin_promote", TORCH), ("methods_expect_builtin_promote", None)), ids=lambda c: c[0])
def test_cuda_preset_leaves_built_in_promotion_alone(case):
    name, function, args, kwargs = case
    if name.startswith("__div__"):
        function = lambda a, b: a / b
    expected = function(*args, **kwargs)
    with mezzo.autocast("cpu", torch.float16, policy=CUDA):
        assert same(function(*args, **kwargs), expected)


def test_cuda_preset_bans_pytorchs_list():
    for name, args, module in CUDA_LISTS.banned:
        with mezzo.autocast("cpu", torch.float16, policy=CUDA):
            with pytest.raises(RuntimeError, match="autocast: aten::binary_cross_entropy is banned by the op policy in force"):
                getattr(module, name)(*args)
            with mezzo.autocast("cpu", torch.float16, enabled=False):
                getattr(module, name)(*args)


CUDA_GROUPS = [("torch_fp16", TORCH), ("nn_fp16", NN), ("linalg_fp16", LINALG), ("methods_fp16", None), ("torch_fp32", TORCH),
               ("nn_fp32", NN), ("methods_fp32", None), ("torch_need_autocast_promote", TORCH)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("device", DEVICES)
def test_a_devices_own_list_computes_what_it_does_under_pytorchs_autocast(device, dtype):
    """Without a policy, and under the policy that says the same."""
    if device == "cpu":
        policy, all_cases = CPU, cases(CPU_LISTS, CPU_GROUPS, dtype, half_pairs="torch_need_autocast_promote")
    else:
        policy, all_cases = CUDA, cases(AutocastTestLists("cuda"), CUDA_GROUPS)
        all_cases = [(name, function, halves_as(args, dtype), kwargs) for name, function, args, kwargs in all_cases]
    count = 0
    for name, function, args, kwargs in all_cases:
        results = []
        for region in (torch.autocast(device, dtype), mezzo.autocast(device, dtype), mezzo.autocast(device, dtype, policy=policy)):
            torch.manual_seed(0)
            with region:
                results.append(function(*args, **kwargs))
        assert same(results[1], results[0]) and same(results[2], results[0]), name
        count += 1
    assert count > 30


@pytest.mark.parametrize("policy", [CPU, CUDA], ids=["cpu", "cuda"])
def test_ignored_types_are_not_cast(policy):
    with mezzo.autocast("cpu", torch.bfloat16, policy=policy):
        for dtype in (torch.float64, torch.int64, torch.complex64):
            a = torch.ones(3, 3, dtype=dtype)
            assert (a @ a).dtype == dtype
            assert torch.cat([a, a]).dtype == dtype
            assert torch.addcmul(a, a, a).dtype == dtype
        a = torch.ones(3, 3, dtype=torch.float64)
        assert torch.exp(a).dtype == a.sum().dtype == a.norm().dtype == torch.softmax(a, -1).dtype == torch.float64
        low = torch.ones(3, 3)
        torch.mm(low, low, out=low)  # out= and in-place forms are never cast
        assert low.dtype == torch.float32 and low.addmm_(low, low).dtype == torch.float32
        assert torch.addcmul(a, low, low).dtype == torch.float64


# ---------------------------------------------------------------- random programs

F = torch.nn.functional
BINARY = [torch.mm, torch.matmul, torch.add, torch.mul, F.linear, F.mse_loss, F.l1_loss, torch.cdist, torch.atan2, F.smooth_l1_loss,
          lambda a, b: torch.cat([a, b]), lambda a, b: torch.stack([a, b])[1], lambda a, b: torch.einsum("ij,jk->ik", a, b),
          lambda a, b: torch.addmm(a, b, a), lambda a, b: torch.addcmul(a, b, b), lambda a, b: torch.bmm(a[None], b[None])[0],
          lambda a, b: F.conv1d(a[None], b[:, :, None])[0], lambda a, b: torch.index_copy(a, 0, torch.tensor([0]), b[:1]),
          lambda a, b: F.scaled_dot_product_attention(a[None, None], b[None, None], b[None, None])[0, 0], lambda a, b: torch.mv(a, b[0]),
          lambda a, b: F.binary_cross_entropy_with_logits(a, b), lambda a, b: torch.chain_matmul(a, b)]
UNARY = [torch.exp, torch.tanh, torch.relu, F.gelu, torch.sum, torch.prod, torch.trace, lambda a: torch.softmax(a, -1), lambda a: F.layer_norm(a, a.shape[-1:]),
         lambda a: a.cumsum(0), lambda a: a.norm(), lambda a: F.cross_entropy(a, torch.zeros(len(a), dtype=torch.long)), lambda a: torch.quantile(a, 0.3),
         lambda a: a.t(), lambda a: a.mean(0, keepdim=True).expand_as(a), lambda a: F.prelu(a, torch.full((1,), 0.25)), lambda a: a.float(), lambda a: a.bfloat16()]


def run_program(seed, guard):
    """A random program of ops and nested regions; returns every result, and the gradients of its parameters.

    Nested regions share one dtype: in one of another, PyTorch takes the enclosing region's casts out of its cache."""
    rng = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    parameters = [torch.randn(4, 4, generator=generator).requires_grad_() for _ in range(2)]
    square = parameters + [torch.randn(4, 4, generator=generator, dtype=torch.float32).to(d) for d in (torch.float32, torch.float16, torch.bfloat16, torch.float64)]
    results = []

    def step():
        try:
            if rng.random() < 0.6:
                result = rng.choice(BINARY)(rng.choice(square), rng.choice(square))
            else:
                result = rng.choice(UNARY)(rng.choice(square))
        except RuntimeError:
            results.append("error")
            return
        results.append(result)
        if result.shape == (4, 4):
            square.append(result)

    def region(depth, dtype):
        for _ in range(rng.randint(1, 6)):
            if depth < 3 and rng.random() < 0.3:
                with guard(dtype, rng.random() < 0.75, rng.choice([None, True, False])):
                    region(depth + 1, dtype)
            else:
                step()

    for dtype in rng.choices([torch.float16, torch.bfloat16], k=3):
        with guard(dtype, True, None):
            region(0, dtype)
    losses = [r.float().sum() for r in results if isinstance(r, torch.Tensor) and r.requires_grad]
    try:
        gradients = torch.autograd.grad(sum(losses), parameters, allow_unused=True) if losses else []
    except RuntimeError as error:  # of PyTorch's own: before 2.13 it has no backward for some mixtures of dtypes
        return results, [str(error)]
    return results, [g if g is not None else "none" for g in gradients]


@pytest.mark.parametrize("seed", range(300))
def test_random_programs_give_pytorchs_dtypes_and_bits(seed):
    def python(dtype, enabled, cache):
        return torch.autocast("cpu", dtype, enabled=enabled, cache_enabled=cache)

    def by_policy(dtype, enabled, cache):
        return mezzo.autocast("cpu", dtype, enabled=enabled, cache_enabled=cache, policy=CPU)

    results, gradients = run_program(seed, python)
    got, got_gradients = run_program(seed, by_policy)
    assert same(got, results) and same(got_gradients, gradients), seed

    logs = []  # a log alone changes nothing, PyTorch's cache included

    def logged(dtype, enabled, cache):
        logs.append(mezzo.CastLog())
        return mezzo.autocast("cpu", dtype, enabled=enabled, cache_enabled=cache, log=logs[-1])

    got, got_gradients = run_program(seed, logged)
    assert same(got, results) and same(got_gradients, gradients), seed

    rng = random.Random(seed)
    # Either kind of region in the other. Each has its own cache, so gradients
    # are summed in another order.
    got, _ = run_program(seed, lambda *region: rng.choice([python, by_policy])(*region))
    assert same(got, results), seed
    assert torch.ops.mezzo.autocast_cache_size() == 0


# ---------------------------------------------------------------- what PyTorch lacks


def test_presets_are_the_lists_they_say():
    removed = [op for op in ("cholesky", "qr") if not hasattr(torch.ops.aten, op)]  # by torch 2.15
    assert len(CPU.lines()) == 127 - len(removed) and len(CUDA.lines()) == 119 and mezzo.OpPolicy().lines() == []
    norms = set(CUDA.lines()) - set(mezzo.OpPolicy.preset("norms_stay_low").lines())
    assert norms == {(f"aten::{op}", "fp32") for op in ("layer_norm", "native_layer_norm", "rms_norm")}
    first = mezzo.OpPolicy.preset("cuda_2020").lines()
    names_of_2020 = """matmul addbmm addmm addmv addr baddbmm bmm chain_matmul conv1d conv2d conv3d conv_transpose1d
                       conv_transpose2d conv_transpose3d linear mm mv prelu""".split()
    assert sorted(op.split("::")[1].split(".")[0] for op, p in first if p == "lower_precision_fp") == sorted(names_of_2020)
    assert set(first) < set(CUDA.lines())


def test_a_changed_line_holds_in_its_scope_and_thread_only():
    policy = mezzo.OpPolicy.preset("cpu")
    policy.set("layer_norm", "fp32")
    policy.set("gelu", "fp32")
    policy.set("mm", "untouched")
    half, full = torch.randn(4, 4).bfloat16(), torch.randn(4, 4)
    norm = lambda: F.layer_norm(half, (4,)).dtype
    seen = {}

    def elsewhere():
        with torch.autocast("cpu", torch.bfloat16):
            seen["thread"] = (norm(), (full @ full).dtype)

    with mezzo.autocast("cpu", torch.bfloat16, policy=policy):
        assert (norm(), F.gelu(half).dtype, torch.mm(full, full).dtype) == (torch.float32,) * 3
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        with torch.autocast("cpu", torch.float16):  # a guard without a policy keeps the enclosing one
            assert (norm(), torch.mm(full, full).dtype, torch.bmm(full[None], full[None]).dtype) == (torch.float32, torch.float32, torch.float16)
        with mezzo.autocast("cpu", torch.bfloat16, policy=CPU):
            assert (norm(), torch.mm(full, full).dtype) == (torch.bfloat16, torch.bfloat16)
        with torch.autocast("cpu", enabled=False):
            assert norm() == torch.bfloat16
        assert norm() == torch.float32
    assert seen["thread"] == (torch.bfloat16, torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        assert norm() == torch.bfloat16
    assert norm() == torch.bfloat16
    assert CPU.get("layer_norm") == "untouched" and CPU.get("mm") == "lower_precision_fp"


def test_policies_of_two_device_types_act_on_their_own_tensors():
    a = torch.ones(2, 2)
    with mezzo.autocast("cuda", torch.float16, policy=CUDA):
        assert (a @ a).dtype == torch.float32
        with mezzo.autocast("cpu", torch.bfloat16, policy=CPU):
            assert (a @ a).dtype == torch.bfloat16
        assert (a @ a).dtype == torch.float32
        with torch.autocast("cpu", torch.bfloat16):  # PyTorch's own kernels go on for a device without a policy
            assert (a @ a).dtype == torch.bfloat16


def test_an_exception_leaves_no_region_behind():
    policy = mezzo.OpPolicy()
    policy.set("relu", "banned")
    with pytest.raises(RuntimeError, match="aten::relu is banned"):
        with mezzo.autocast("cpu", torch.bfloat16, policy=policy):
            torch.relu(torch.ones(2))
    torch.relu(torch.ones(2))
    assert torch.ops.mezzo.autocast_cache_size() == 0


@pytest.mark.parametrize("op, policy, message", [
    ("no_such_op", "fp32", "there is no op aten::no_such_op"),
    ("pow", "fp32", "there are .*aten::pow.Tensor_Tensor"),
    ("relu_", "fp32", "aten::relu_ writes to its arguments"),
    ("mm.out", "lower_precision_fp", "writes to its arguments"),
    ("mm", "fp32_set_opt_dtype", "aten::mm has no optional dtype argument"),
    ("mm", "fp32_append_dtype", "has no overload with an additional argument dtype"),
    ("mm", "fp16", "op policy 'fp16' is not known: lower_precision_fp, fp32,"),
])
def test_a_line_that_makes_no_sense_is_refused(op, policy, message):
    changed = mezzo.OpPolicy.preset("cuda")
    with pytest.raises(ValueError, match=message):
        changed.set(op, policy)
    assert changed.lines() == CUDA.lines()


def test_a_parameter_updated_in_a_region_is_cast_again_where_pytorch_uses_the_old_values():
    def outputs(guard):
        weight, x = torch.nn.Parameter(torch.eye(3)), torch.ones(2, 3)
        with guard:
            first = x @ weight
            with torch.no_grad():
                weight.mul_(2)
            second = x @ weight
            weight.data = torch.eye(3) * 3
            third = x @ weight
        return [t.max().item() for t in (first, second, third)]

    assert outputs(torch.autocast("cpu", torch.bfloat16)) == [1, 1, 1]  # PyTorch's defect
    assert outputs(mezzo.autocast("cpu", torch.bfloat16, log=mezzo.CastLog())) == [1, 1, 1]  # which a log leaves alone
    assert outputs(mezzo.autocast("cpu", torch.bfloat16, policy=CPU)) == [1, 2, 3]


def test_a_region_of_another_dtype_gets_its_own_cast_where_pytorch_uses_the_wrong_one():
    weight, x = torch.nn.Parameter(torch.eye(3)), torch.ones(2, 3)
    with pytest.raises(RuntimeError, match="same dtype"), torch.autocast("cpu", torch.bfloat16):
        x @ weight
        with torch.autocast("cpu", torch.float16):
            x @ weight
    with mezzo.autocast("cpu", torch.bfloat16, policy=CPU):
        x @ weight
        with mezzo.autocast("cpu", torch.float16):
            assert (x @ weight).dtype == torch.float16
        assert (x @ weight).dtype == torch.bfloat16
        assert torch.ops.mezzo.autocast_cache_size() == 2


def test_casts_of_parameters_are_kept_once_and_given_up():
    weights = [torch.nn.Parameter(torch.randn(3, 3)) for _ in range(5)]
    x = torch.ones(3, 3)
    with mezzo.autocast("cpu", torch.bfloat16, policy=CPU):
        for _ in range(3):
            for weight in weights:
                x @ weight
        assert torch.ops.mezzo.autocast_cache_size() == 5
        with mezzo.autocast("cpu", torch.float16):
            x @ weights[0]
        assert torch.ops.mezzo.autocast_cache_size() == 6
        with mezzo.autocast("cpu", torch.bfloat16, cache_enabled=False):
            x @ torch.nn.Parameter(torch.randn(3, 3))
        x @ weights[0].detach(), x @ weights[0].t()
        assert torch.ops.mezzo.autocast_cache_size() == 6
        with torch.no_grad():  # kept while gradients are off, and still differentiable when they are on
            fresh = torch.nn.Parameter(torch.randn(3, 3))
            x @ fresh
        assert (x @ fresh).requires_grad
        with torch.inference_mode():
            x @ torch.nn.Parameter(torch.randn(3, 3))
    assert torch.ops.mezzo.autocast_cache_size() == 0


def test_a_parameter_that_died_in_the_region_is_not_mistaken_for_its_successor():
    x = torch.ones(3, 3)
    with mezzo.autocast("cpu", torch.bfloat16, policy=CPU):
        for value in range(50):  # the allocator hands the same addresses out again
            assert (x @ torch.nn.Parameter(torch.full((3, 3), float(value)))).max() == 3 * value


# ---------------------------------------------------------------- the log


def test_the_log_counts_every_cast_with_its_line():
    log = mezzo.CastLog()
    weight, x = torch.nn.Parameter(torch.randn(8, 4)), torch.randn(2, 4)
    with mezzo.autocast("cpu", torch.float16, policy=CUDA, log=log):
        hidden = F.linear(x, weight)  # casts x and weight
        F.linear(x, weight)  # x again; the weight is kept
        F.layer_norm(hidden, (8,))
        torch.softmax(hidden, -1)
        torch.addcmul(torch.ones(2, 8), hidden, hidden)
        with mezzo.autocast("cpu", torch.float16, enabled=False):
            x @ x.t()
    entries = {e["op"]: e for e in json.loads(log.to_json())}
    row = lambda op, policy, source, to, count, size, cached: dict(
        {"op": f"aten::{op}", "policy": policy, "from": source, "to": to, "module": "", "count": count, "bytes": size, "cached": cached})
    assert entries == {e["op"]: e for e in (
        row("linear", "lower_precision_fp", "float32", "float16", 3, 2 * (2 * 4) * 2 + 8 * 4 * 2, 1),
        row("layer_norm", "fp32", "float16", "float32", 1, 2 * 8 * 4, 0),
        row("softmax.int", "fp32_set_opt_dtype", "float16", "float32", 1, 0, 0),
        row("addcmul", "promote", "float16", "float32", 2, 2 * (2 * 8) * 4, 0))}
    table = log.to_table().splitlines()
    assert table[0].split() == ["op", "policy", "from", "to", "module", "casts", "cached", "MB"]
    assert table[-1].split() == ["all", "7", "1", "0.000"] and len(table) == 6
    log.clear()
    assert json.loads(log.to_json()) == []


@pytest.mark.parametrize("case", CPU_CASES, ids=lambda c: f"{c[0]}-{c[1]}")
def test_a_log_alone_hears_what_the_log_of_a_policy_hears(case):
    dtype, _, function, args, kwargs = case

    def entries(**options):
        log = mezzo.CastLog()
        with mezzo.autocast("cpu", dtype, log=log, **options):
            function(*args, **kwargs)
        return json.loads(log.to_json())

    assert entries() == entries(policy=CPU)


def test_a_dry_run_lists_the_casts_and_leaves_no_trace():
    model = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.Dropout(0.5), torch.nn.Flatten(), torch.nn.Linear(144, 10))
    log, wet = mezzo.CastLog(), mezzo.CastLog()
    torch.manual_seed(3)
    before = torch.get_rng_state()
    x = torch.ones(2, 1, 8, 8)
    assert not log.dry_run("cpu", torch.float16, lambda: model(x)).requires_grad
    assert torch.equal(torch.get_rng_state(), before)
    block = mezzo.CastLog()
    with block.dry_run("cpu", torch.float16):
        model(x)
    assert block.entries() == log.entries() and torch.equal(torch.get_rng_state(), before) and torch.is_grad_enabled()
    with mezzo.autocast("cpu", torch.float16, log=wet):
        model(x).float().sum().backward()
    assert json.loads(log.to_json()) == [e for e in json.loads(wet.to_json())]
    assert [e["op"] for e in json.loads(log.to_json())] == ["aten::linear", "aten::conv2d"]
