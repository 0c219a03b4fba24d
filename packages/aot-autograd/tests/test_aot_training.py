"""Training behaviour of compiled graphs: regions, custom functions, hooks, errors, absent gradients."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from aot_checks import check, nonleaf
from torch import nn
from torch.utils.checkpoint import checkpoint

from aot_autograd import (
    aot_function,
    default_partition,
    joint_graph,
    min_cut_partition,
    partition_joint,
    run_eagerly,
    saved_bytes,
)
from aot_autograd.runtime.emitted import new_seed
from aot_autograd.runtime.redraw import Redraw
from prims.errors import UserError
from prims.options import Options
from prims.report import Report


def module_graph(module: nn.Module, count: int = 1) -> torch.fx.GraphModule:
    """A graph that calls ``module`` on its inputs."""
    graph = torch.fx.Graph()
    inputs = tuple(graph.placeholder(f"x{i}") for i in range(count))
    root = nn.Module()
    root.inner = module
    graph.output(graph.call_module("inner", inputs))
    return torch.fx.GraphModule(root, graph)


def least_memory(joint, options):
    """The min-cut partition that keeps as little as it can."""
    return min_cut_partition(joint, options.replace(memory_budget=0.0))


PARTITIONS = {default_partition: "default", min_cut_partition: "min-cut", least_memory: "budget-0"}


def function_graph(function, count: int = 1) -> torch.fx.GraphModule:
    """A graph that calls ``function`` whole."""
    graph = torch.fx.Graph()
    inputs = tuple(graph.placeholder(f"x{i}") for i in range(count))
    graph.output(graph.call_function(function, inputs))
    return torch.fx.GraphModule(nn.Module(), graph)


def leaf(*shape: int) -> torch.Tensor:
    return torch.randn(*shape).requires_grad_()


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.qkv = nn.Linear(16, 48)
        self.out = nn.Linear(16, 16)
        self.drop = nn.Dropout(0.2)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (part.view(b, t, 4, 4).transpose(1, 2) for part in self.qkv(self.norm(x)).split(16, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.drop(self.out(y.transpose(1, 2).reshape(b, t, c)))


MODULES = {
    "mlp": (lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.LayerNorm(8), nn.Linear(8, 3), nn.GELU()), (4, 6)),
    "convnet": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Dropout(0.3)
        ),
        (2, 3, 8, 8),
    ),
    "attention": (Block, (2, 5, 16)),
    "tied": (lambda: _tied(), (4, 6)),
    "momentum average": (lambda: nn.BatchNorm1d(6, momentum=None), (8, 6)),
}


def _tied() -> nn.Module:
    first, second = nn.Linear(6, 6), nn.Linear(6, 6)
    second.weight = first.weight
    return nn.Sequential(first, nn.Tanh(), second)


@pytest.mark.parametrize("partition", PARTITIONS, ids=PARTITIONS.get)
@pytest.mark.parametrize("train", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("name", [n for n in MODULES if n != "momentum average"])
def test_module(name, train, partition):
    make, shape = MODULES[name]
    torch.manual_seed(0)
    module = make().train(train)
    check(module_graph(module), lambda: [leaf(*shape)], calls=3, partition=partition)


def test_buffers_follow_eager():
    import copy

    module = nn.BatchNorm1d(6)
    gm = module_graph(module)
    reference = copy.deepcopy(module)
    compiled = aot_function(gm, [torch.randn(8, 6)], fw_compiler=run_eagerly, options=Options(strict=True))
    for _ in range(3):
        x = torch.randn(8, 6)
        torch.testing.assert_close(compiled(x), reference(x))
    for mine, theirs in zip(module.buffers(), reference.buffers(), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_parameters_are_read_at_every_call():
    module = nn.Linear(3, 2)
    compiled = aot_function(module_graph(module), [torch.randn(4, 3)], fw_compiler=run_eagerly)
    with torch.no_grad():
        module.weight.zero_()
    module.bias = nn.Parameter(torch.ones(2))
    assert torch.equal(compiled(torch.randn(4, 3)), torch.ones(4, 2))


# Regions and constructs


def no_grad_region(x, y):
    with torch.no_grad():
        scale = x.abs().mean()
    return x * scale + y


def enable_grad_region(x, y):
    with torch.no_grad():
        a = x * 2
        with torch.enable_grad():
            b = y * x
    return a, b


def detached(x, y):
    return x.detach() * y + x.detach().sin()


def autocast_region(x, y):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        z = x @ y.t()
    return z.float() * 2


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * 3 * x * x + 0.125


class TwoResults(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.mark_non_differentiable(index := y > 0)
        ctx.save_for_backward(y)
        return x * y, index

    @staticmethod
    def backward(ctx, gradient, _):
        (y,) = ctx.saved_tensors
        return gradient * y, None


def checkpointed(x, y):
    def part(a, b):
        return torch.sin(a * b).exp()

    return checkpoint(part, x, y, use_reentrant=False) * 2


def checkpointed_dropout(x, y):
    def part(a, b):
        a = F.dropout(torch.sin(a * b), 0.5)
        return F.dropout(a.exp(), 0.3) * torch.rand_like(a)

    return checkpoint(part, checkpoint(part, x, y, use_reentrant=False), y, use_reentrant=False)


def hooked(x, y):
    z = x * y
    z.register_hook(lambda gradient: gradient * 2)
    return z.sin()


def inner_gradient(x, y):
    with torch.enable_grad():
        z = (x * x * y).sum()
        (gradient,) = torch.autograd.grad(z, x, create_graph=True)
    return gradient * y


FUNCTIONS = {
    "no_grad region": no_grad_region,
    "enable_grad region": enable_grad_region,
    "detach": detached,
    "autocast region": autocast_region,
    "custom function": lambda x, y: Cube.apply(x) * y,
    "custom function, two results": lambda x, y: TwoResults.apply(x, y),
    "checkpoint": checkpointed,
    "checkpoint with dropout": checkpointed_dropout,
    "hook on an intermediate": hooked,
    "gradient inside": inner_gradient,
    "integer result": lambda x, y: ((x * y).argmax(dim=1), x * y),
    "softmax": lambda x, y: F.softmax(x, 1) * y.log_softmax(0),
    "dropout": lambda x, y: F.dropout(x, 0.5) + y,
    "bernoulli and normal": lambda x, y: x * torch.bernoulli(torch.full_like(y, 0.5)) + torch.randn_like(y),
    "unused input": lambda x, y: x * 2,
    "zero-dimensional result": lambda x, y: (x * y).mean(),
    "cross entropy": lambda x, y: F.cross_entropy(x, y.detach().argmax(1)),
    "embedding": lambda x, y: F.embedding(torch.tensor([[0, 2], [3, 1]]), x) * 2,
    "complex": lambda x, y: torch.view_as_real(torch.complex(x, y) * torch.complex(y, x)),
    "index": lambda x, y: x[torch.tensor([0, 0, 2])] * y[:3],
}


@pytest.mark.parametrize("partition", PARTITIONS, ids=PARTITIONS.get)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_construct(name, partition):
    check(function_graph(FUNCTIONS[name], 2), lambda: [leaf(4, 4), leaf(4, 4)], partition=partition)


@pytest.mark.parametrize("name", ["no_grad region", "dropout", "embedding", "autocast region", "checkpoint"])
def test_construct_without_gradients(name):
    with torch.no_grad():
        check(function_graph(FUNCTIONS[name], 2), lambda: [torch.randn(4, 4), torch.randn(4, 4)])
    with torch.inference_mode():
        check(function_graph(FUNCTIONS[name], 2), lambda: [torch.randn(4, 4), torch.randn(4, 4)])


def test_autocast_around():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        check(function_graph(lambda x, y: x @ y, 2), lambda: [leaf(4, 4), leaf(4, 4)], rtol=2e-2, atol=2e-2)


def test_write_to_a_parameter_without_gradient():
    def step(p, g):
        with torch.no_grad():
            p.add_(g, alpha=-0.1)
        return g * 2

    check(function_graph(step, 2), lambda: [leaf(4, 4), torch.randn(4, 4)])


# Gradients for some results or inputs only


def two_heads(x, y):
    shared = x.sin()
    return shared * y, shared.cos()


def test_unused_result_gives_no_gradient():
    x, y = leaf(3, 3), leaf(3, 3)
    report = Report()
    compiled = aot_function(
        function_graph(two_heads, 2), [x, y], fw_compiler=run_eagerly, options=Options(strict=True), report=report
    )
    compiled(x, y)[1].sum().backward()
    assert y.grad is None
    torch.testing.assert_close(x.grad, -torch.sin(x.detach().sin()) * x.detach().cos())
    compiled(x, y)[0].sum().backward()
    torch.testing.assert_close(y.grad, x.detach().sin())
    assert [graph.name for graph in report.graphs] == ["forward"] + ["backward for some outputs"] * 2


def test_gradient_of_one_input_only():
    x, y = leaf(3, 3), leaf(3, 3)
    compiled = aot_function(function_graph(two_heads, 2), [x, y], fw_compiler=run_eagerly)
    (gradient,) = torch.autograd.grad(compiled(x, y)[0].sum(), [y])
    torch.testing.assert_close(gradient, x.detach().sin())


def test_backward_is_compiled_once_and_late():
    compiled_graphs = []

    def compiler(env, report):
        compiled_graphs.append(env)
        return run_eagerly(env)

    x, y = leaf(3, 3), leaf(3, 3)
    compiled = aot_function(function_graph(torch.mul, 2), [x, y], fw_compiler=compiler)
    result = compiled(x, y)
    assert len(compiled_graphs) == 1
    result.sum().backward()
    compiled(x, y).sum().backward()
    assert len(compiled_graphs) == 2
    assert [desc.kind for desc in compiled_graphs[1].inputs].count("tangent") == 1


def test_expanded_and_transposed_gradients():
    x = leaf(3, 4)
    compiled = aot_function(function_graph(torch.sin), [x], fw_compiler=run_eagerly)
    weight = torch.randn(4, 3)
    compiled(x).backward(weight.t())
    torch.testing.assert_close(x.grad, weight.t() * x.detach().cos())


# Errors are eager's


def _error(function, *args):
    try:
        function(*args)
    except Exception as error:
        return type(error), str(error)
    return None


def test_leaf_written_in_place():
    gm = function_graph(lambda x: x.mul_(2))
    report = Report()
    compiled = aot_function(gm, [leaf(3)], fw_compiler=run_eagerly, report=report)
    assert report.fallbacks
    assert _error(compiled, leaf(3)) == _error(lambda x: x.mul_(2), leaf(3)) != None  # noqa: E711


def test_second_backward_through_freed_graph():
    x = leaf(3)
    compiled = aot_function(function_graph(torch.sin), [x], fw_compiler=run_eagerly)

    def twice(f):
        loss = f(x).sum()
        loss.backward()
        loss.backward()

    assert _error(twice, compiled) == _error(twice, torch.sin) != None  # noqa: E711


def test_backward_twice_with_retained_graph():
    x = leaf(3)
    compiled = aot_function(function_graph(torch.sin), [x], fw_compiler=run_eagerly)
    loss = compiled(x).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    torch.testing.assert_close(x.grad, 2 * x.detach().cos())


def test_wrong_gradient_shape():
    x = leaf(3)
    compiled = aot_function(function_graph(torch.sin), [x], fw_compiler=run_eagerly)
    ours = _error(lambda: compiled(x).backward(torch.ones(4)))
    theirs = _error(lambda: torch.sin(x).backward(torch.ones(4)))
    assert ours is not None and theirs is not None and ours[0] is theirs[0]
    assert ours[1].split("output")[0] == theirs[1].split("output")[0]


def test_saved_tensor_changed_before_backward():
    x = leaf(3)
    compiled = aot_function(function_graph(lambda x: (x * 2).exp()), [x], fw_compiler=run_eagerly)
    result = compiled(x)
    with torch.no_grad():
        result.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


def test_input_changed_before_backward():
    x, y = leaf(3), torch.randn(3)
    compiled = aot_function(function_graph(torch.mul, 2), [x, y], fw_compiler=run_eagerly)
    result = compiled(x, y)
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


def test_result_changed_whose_sizes_alone_are_saved():
    """Eager's ``index_copy`` saves its source, here a part of another result, for no more than its sizes."""

    def program(x):
        h = x.abs()
        return h, h.index_copy(0, torch.tensor(0), h[1])

    x = leaf(3)
    for function in (program, aot_function(function_graph(program), [x], fw_compiler=run_eagerly)):
        h, copied = function(x)
        h[0] = 1
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            copied.sum().backward()


@pytest.mark.parametrize(
    "select",
    [
        lambda h: h.amin(1),
        lambda h: h.max(),
        lambda h: torch.linalg.vector_norm(h, float("inf"), -1),
        lambda h: torch.maximum(h, h.detach().amax(0)),
        lambda h: h * (h >= h.detach().topk(3, -1).values[:, -1:]),
    ],
    ids=["amin", "max", "norm", "maximum", "mask"],
)
def test_compared_values_are_not_made_again(select):
    """What a backward graph compares it takes from the forward graph: other bits would be no row's extremum."""
    x, w = leaf(17, 33), torch.rand(17, 33) + 0.5
    graph = function_graph(lambda x, w: select((x.sin() * w + x).t()), 2)
    parts = partition_joint(joint_graph(graph, [x, w]), min_cut_partition)
    backward = parts.backward.graph
    compared = [n for n in backward.nodes if str(n.target) in COMPARISONS]
    assert compared or any(desc.spec.dtype == torch.bool for desc in parts.backward.inputs)
    made_of = set()
    stack = [operand for node in compared for operand in node.all_input_nodes]
    while stack:
        node = stack.pop()
        made_of.add(str(node.target))
        stack.extend(node.all_input_nodes)
    assert not {"aten.sin.default", "aten.mul.Tensor", "aten.add.Tensor"} & made_of


def jumps_in_backward(made, jump, dtype) -> set[str]:
    x, w = torch.randn(17, 33, dtype=dtype).requires_grad_(), torch.rand(17, 33, dtype=dtype) + 0.5
    parts = partition_joint(joint_graph(function_graph(lambda x, w: jump(made(x, w)), 2), [x, w]), min_cut_partition)
    return {str(n.target).split(".")[-2] for n in parts.backward.graph.nodes if n.op == "call_function"} & JUMPS


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(
    "made",
    [lambda x, w: x * w + x, lambda x, w: x.sin(), lambda x, w: (x * w).sum(0) * x, lambda x, w: (x.t() * w.t()).t() - x],
    ids=["product added", "sine", "sum", "product behind a view"],
)  # fmt: skip
@pytest.mark.parametrize(
    "jump",
    [lambda h: torch.where(h > 0.1, h * h, h), lambda h: h * h.sign(), lambda h: h * h.floor(),
     lambda h: h * (h * 4).int(), lambda h: h * (h != 0), lambda h: h * h.remainder(0.3),
     lambda h: h * torch.div(h, 0.3, rounding_mode="trunc"), lambda h: h * h.isnan().logical_not()],
    ids=["gt", "sign", "floor", "int", "ne", "remainder", "div", "isnan"],
)  # fmt: skip
def test_jumps_are_made_once(made, jump, dtype):
    """A comparison of what may round otherwise in the backward graph's kernels is handed over, not made there."""
    assert not jumps_in_backward(made, jump, dtype)


@pytest.mark.parametrize("made", ["product", "sum", "input"])
def test_jumps_of_what_rounds_in_one_way_are_made_again(made):
    values = {"product": lambda x, w: x * w, "sum": lambda x, w: -(x + w).abs(), "input": lambda x, w: x}

    def jump(h):
        return torch.where(h > 0.1, h * h, h)

    assert jumps_in_backward(values[made], jump, torch.float32) == {"gt"}
    # A half that is computed is rounded where it is kept, not in the kernel that makes it.
    assert jumps_in_backward(values[made], jump, torch.bfloat16) == ({"gt"} if made == "input" else set())


JUMPS = {"gt", "sign", "floor", "_to_copy", "ne", "remainder", "div", "isnan", "logical_not"}
COMPARISONS = {f"aten.{name}.Tensor" for name in ("eq", "ne", "lt", "le", "gt", "ge")}


DECISIONS = {
    "sum > 0": lambda x: (x.sin().sum() > 0) * 0.25,
    "mean of rows < 1": lambda x: (x.sin().mean(1, keepdim=True) < 1) * 0.25,
    "norm, floored": lambda x: (x.sin().norm() * 3).floor(),
    "variance, compared": lambda x: torch.where(x.sin().var(0) >= 0.5, 2.0, 3.0),
    "largest, as an integer": lambda x: (x.sin().amax() * 9 + 1).to(torch.int32),
    "sign of a sum": lambda x: (x.sin().sum(1, keepdim=True) - 1e-3).sign(),
    "two of them": lambda x: ((x.sin().sum() > 0) & (x.cos().sum() < 3)).float(),
}


@pytest.mark.parametrize("name", DECISIONS)
def test_decisions_by_sums_are_not_made_again(name):
    """In another kernel a sum is rounded otherwise: the backward pass would go another way than the forward pass did."""
    x = leaf(17, 33)
    graph = function_graph(lambda x: (x.tanh() * DECISIONS[name](x.detach())).exp(), 1)
    parts = partition_joint(joint_graph(graph, [x]), min_cut_partition)
    names = {str(n.target).split(".")[1] for n in parts.backward.graph.nodes if n.op == "call_function"}
    assert not names & {"sin", "cos", "gt", "lt", "ge", "floor", "sign", "amax", "linalg_vector_norm", "var"}, names


def test_second_derivatives():
    """The region runs again, eagerly, where a gradient with a history is asked for."""

    def penalty(function, x, w):
        y = function(x, w)
        (gradient,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        (y.mean() + (gradient.norm(dim=1) - 1).square().mean()).backward()
        return [gradient.detach(), x.grad, w.grad]

    def function(x, w):
        with torch.no_grad():
            scale = x.abs().max()
        return (x * scale).sin() @ w.tanh()

    inputs = [leaf(4, 3), leaf(3, 2)]
    compiled = aot_function(function_graph(function, 2), inputs, fw_compiler=run_eagerly)
    found = []
    for one in (compiled, function):
        found.append(penalty(one, *(t.detach().clone().requires_grad_() for t in inputs)))
    torch.testing.assert_close(*found)
    hessians = [torch.autograd.functional.hessian(lambda x, f=f: f(x, inputs[1]).sum(), inputs[0].detach())
                for f in (compiled, function)]  # fmt: skip
    torch.testing.assert_close(*hessians)
    assert hessians[1].abs().max() > 0


def test_second_derivative_of_one_tensor_given_twice():
    compiled = aot_function(function_graph(lambda x, y: x * x * y, 2), [leaf(3), leaf(3)], fw_compiler=run_eagerly)
    x = leaf(3)
    (gradient,) = torch.autograd.grad(compiled(x, x).sum(), x, create_graph=True)
    torch.testing.assert_close(gradient, 3 * x * x)
    (second,) = torch.autograd.grad(gradient.sum(), x)
    torch.testing.assert_close(second, 6 * x)


def counts_its_calls(x, y, mean, var, calls):
    calls.add_(1)
    return (F.batch_norm(x * y, mean, var, y, y.sin(), training=True, momentum=0.3).sin(),)


def norms_without_statistics(x, y, mean, var, calls):
    return (F.batch_norm(x * y, None, None, training=True).tanh(),)


def drops_twice(x, y, mean, var, calls):
    return (F.dropout(F.dropout(x, 0.5).sin() * y, 0.3).exp(),)


def drops_and_norms(x, y, mean, var, calls):
    return (F.dropout(counts_its_calls(x, y, mean, var, calls)[0], 0.4) * x,)


REPEATED = {
    "batch norm": counts_its_calls,
    "batch norm without statistics": norms_without_statistics,
    "dropout": drops_twice,
    "dropout and batch norm": drops_and_norms,
    "noise": lambda x, y, *rest: ((x + torch.randn_like(x)).sin() * torch.rand(3) * x.new_empty(3).uniform_(1, 2) * y,),
    "chunks": lambda x, y, *rest: (x.sin() * y).chunk(2),
    "a transposed result": lambda x, y, *rest: (lambda z: (z.t(), z[1:]))((x * y).tanh()),
    "a result and its part": lambda x, y, *rest: (lambda z: (z, z[1:]))((x * y).tanh()),
}


def _second(function, seed):
    """Gradient, second derivative and statistics of a penalised step."""
    torch.manual_seed(seed)
    x, y = (torch.randn(shape, dtype=torch.double, requires_grad=True) for shape in ((6, 3), (3,)))
    state = [torch.zeros(3).double(), torch.ones(3).double(), torch.tensor(0)]
    results = function(x, y, *state)
    loss = torch.stack([(result * torch.arange(result.numel()).view_as(result)).sum() for result in results]).sum()
    first = torch.autograd.grad(loss, (x, y), create_graph=True)
    second = torch.autograd.grad(sum(g.square().sum() for g in first), (x, y))
    return [*results, *first, *second, *state]


@pytest.mark.parametrize("name", REPEATED)
def test_second_derivatives_with_random_numbers_statistics_and_views(name):
    """Judged by the same program under the same drawn numbers: those of the compiled call."""
    program = REPEATED[name]
    floats = [leaf(6, 3), leaf(3), torch.zeros(3), torch.ones(3)]
    example = [*(t.detach().double().requires_grad_(t.requires_grad) for t in floats), torch.tensor(0)]
    compiled = aot_function(function_graph(program, 5), example, fw_compiler=run_eagerly)

    def drawn(*args):
        with Redraw({torch.device("cpu"): new_seed(torch.device("cpu"))}):
            return program(*args)

    for seed in range(3):
        got, want = _second(compiled, seed), _second(drawn, seed)
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b)


def writes_an_input(x, y):
    y.add_(1)
    return (x.sin() * y,)


def test_second_derivative_by_what_an_input_was():
    compiled = aot_function(function_graph(writes_an_input, 2), [leaf(4), torch.randn(4)], fw_compiler=run_eagerly)
    start = torch.randn(4)
    found = []
    for function in (writes_an_input, compiled):
        x, y = torch.linspace(-1, 1, 4).requires_grad_(), start.clone()
        (gradient,) = torch.autograd.grad(function(x, y)[0].square().sum(), x, create_graph=True)
        found += torch.autograd.grad(gradient.sin().sum(), x)
    torch.testing.assert_close(found[1], found[0])


REFUSED = {
    "random": lambda x, y: (x[torch.randperm(4)].sin() * y,),
}


@pytest.mark.parametrize("name", REFUSED)
def test_second_derivative_is_refused_with_advice(name):
    x, y = leaf(4), torch.randn(4)
    compiled = aot_function(function_graph(REFUSED[name], 2), [x, y], fw_compiler=run_eagerly)
    loss = torch.stack([result.square().sum() for result in compiled(x, y)]).sum()
    (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
    with pytest.raises(RuntimeError, match="second derivatives"):
        gradient.sum().backward()
    with pytest.raises(RuntimeError, match="second derivatives"):
        torch.autograd.grad(torch.autograd.grad(compiled(x, y)[0].exp().sum(), x, create_graph=True)[0].sum(), x)


@pytest.mark.parametrize("change", ["written", "gone"])
def test_second_derivative_without_the_inputs_of_the_call(change):
    def function(x, y):
        return (x + y.abs()).exp()  # whose first derivative needs the result only

    compiled = aot_function(function_graph(function, 2), [leaf(4), torch.randn(4)], fw_compiler=run_eagerly)
    for is_first in (True, False):  # whose inputs are not kept
        x, y = leaf(4), torch.randn(4)
        result = compiled(x, y)
        if change == "written":
            y.add_(1)
        else:
            del y
        (gradient,) = torch.autograd.grad(result.sum(), x, create_graph=True)
        torch.testing.assert_close(gradient.detach(), result.detach())
        if is_first:
            with pytest.raises(RuntimeError, match="modified since" if change == "written" else "no longer there"):
                gradient.sum().backward()
        else:
            gradient.sum().backward()
            torch.testing.assert_close(x.grad, result.detach())


def test_random_numbers_in_the_backward_pass_run_eagerly():
    class Noisy(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient * torch.rand_like(gradient)

    report = Report()
    aot_function(function_graph(lambda x: Noisy.apply(x)), [leaf(3)], fw_compiler=run_eagerly, report=report)
    assert "random numbers during the backward" in report.fallbacks[0].reason


def test_hooks_on_results_inputs_and_parameters():
    module = nn.Linear(3, 3)
    compiled = aot_function(module_graph(module), [leaf(2, 3)], fw_compiler=run_eagerly)
    seen = []
    module.weight.register_hook(lambda g: seen.append("weight"))
    module.bias.register_post_accumulate_grad_hook(lambda p: seen.append("bias"))
    x = leaf(2, 3)
    x.register_hook(lambda g: g * 3)
    result = compiled(x)
    result.register_hook(lambda g: g * 2)
    result.sum().backward()
    assert sorted(seen) == ["bias", "weight"]
    torch.testing.assert_close(x.grad, 6 * torch.ones(2, 3) @ module.weight.detach())


def test_results_can_be_written_in_place():
    x = leaf(4, 4)
    compiled = aot_function(function_graph(lambda x: (x.sin().t(), x.cos())), [x], fw_compiler=run_eagerly)
    first, _ = compiled(x)
    first.mul_(2)
    first.sum().backward()
    torch.testing.assert_close(x.grad, 2 * x.detach().cos())


def test_inputs_that_share_memory_run_eagerly():
    def write(x, y):
        x.add_(1)
        return y * 2

    report = Report()
    compiled = aot_function(
        function_graph(write, 2), [torch.zeros(4), torch.zeros(4)], fw_compiler=run_eagerly, report=report
    )
    base = torch.zeros(8)
    assert torch.equal(compiled(base[:4], base[2:6]), torch.tensor([2.0, 2.0, 0.0, 0.0]))
    assert "shares memory" in report.fallbacks[0].reason


def test_data_dependent_program_runs_eagerly():
    report = Report()
    gm = function_graph(lambda x: x * x.sum().item())
    compiled = aot_function(gm, [torch.ones(3)], fw_compiler=run_eagerly, report=report)
    assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 3.0))
    assert len(report.fallbacks) == 1 and report.fallbacks[0].stage == "aot_autograd"


def test_failing_compiler_runs_the_graph():
    def compiler(env, report):
        raise ValueError("no")

    report = Report()
    x = leaf(3)
    compiled = aot_function(function_graph(torch.sin), [x], fw_compiler=compiler, report=report)
    compiled(x).sum().backward()
    torch.testing.assert_close(x.grad, x.detach().cos())
    assert ["no" in record.reason for record in report.fallbacks] == [True, True]


def test_bad_arguments():
    gm = function_graph(torch.sin)
    with pytest.raises(UserError, match="GraphModule"):
        aot_function(torch.sin, [torch.ones(3)], fw_compiler=run_eagerly)
    with pytest.raises(UserError, match="inputs"):
        aot_function(gm, [], fw_compiler=run_eagerly)
    with pytest.raises(UserError, match="fw_compiler"):
        aot_function(gm, [torch.ones(3)], fw_compiler=5)
    with pytest.raises(UserError, match="gradient"):
        joint_graph(gm, [torch.ones(3)])


def test_joint_graph_runs():
    x, y = leaf(3, 3), leaf(3, 3)
    joint = joint_graph(function_graph(two_heads, 2), [x, y])
    joint.envelope.verify("every_pass")
    tangents = [torch.randn(3, 3), torch.randn(3, 3)]
    results = joint.envelope.module()(x.detach(), y.detach(), *tangents)
    expected = torch.autograd.grad(two_heads(x, y), [x, y], tangents)
    for mine, theirs in zip(results[2:], expected, strict=True):
        torch.testing.assert_close(mine, theirs)
    partition = partition_joint(joint)
    assert {desc.kind for desc in partition.forward.outputs} == {"output", "saved"}


def test_nonleaf_inputs():
    check(function_graph(two_heads, 2), lambda: [nonleaf(torch.randn(3, 3)), leaf(3, 3)])


@pytest.mark.parametrize("dim", [0, 1])
def test_two_numbers_of_a_row_are_kept_of_a_log_softmax(dim):
    graph = function_graph(lambda x, t: ((logits := x @ x).log_softmax(dim) * t).sum() + logits.sin().sum(), 2)
    partition = partition_joint(joint_graph(graph, [leaf(64, 64), torch.randn(64, 64)]), min_cut_partition)
    saved = [tuple(d.spec.shape) for d in partition.forward.outputs if d.kind == "saved"]
    assert saved == [(64, 64)] + [((1, 64), (64, 1))[dim]] * 2
    check(graph, lambda: [leaf(64, 64), torch.randn(64, 64)])


def test_a_log_softmax_of_what_its_owner_may_write_is_kept():
    """Eager keeps the result, so that the argument may change before the backward pass."""
    graph = function_graph(lambda x, t: (x.log_softmax(1) * t).sum(), 2)
    partition = partition_joint(joint_graph(graph, [leaf(64, 64), torch.randn(64, 64)]), min_cut_partition)
    assert [tuple(d.spec.shape) for d in partition.forward.outputs if d.kind == "saved"] == [(64, 64)]


def test_saved_bytes_shrink_with_the_budget():
    torch.manual_seed(0)
    module = nn.Sequential(Block(), Block()).train()
    joint = joint_graph(module_graph(module), [leaf(2, 5, 16)])
    default = saved_bytes(joint, default_partition(joint, Options()))
    sizes = [saved_bytes(joint, min_cut_partition(joint, Options(memory_budget=b))) for b in (1.0, 0.5, 0.2, 0.0)]
    assert default > sizes[0] >= sizes[1] >= sizes[2] >= sizes[3]
    assert sizes[1] <= 0.5 * default
    # What is left at 0 are the normalisations' two statistics per row, and copies of the biases of products that run
    # again: eager does not save these, so that they may be written before the backward pass.
    biases = sum(4 * p.numel() for name, p in module.named_parameters() if name in ("0.qkv.bias", "0.out.bias", "1.qkv.bias"))
    assert sizes[3] == 2 * (2 * 2 * 5 * 4) + biases
    # Eager's random operators do not run twice: the dropout masks stay, at one byte an element.
    joint = joint_graph(module_graph(module), [leaf(2, 5, 16)], Options(fallback_random=True))
    assert saved_bytes(joint, min_cut_partition(joint, Options(memory_budget=0.0))) == sizes[3] + 2 * (2 * 5 * 16)


def test_contractions_are_not_run_again_at_full_budget():
    module = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8), nn.Tanh())
    joint = joint_graph(module_graph(module), [leaf(4, 8)])
    partition = partition_joint(joint, min_cut_partition)
    targets = [str(node.target) for node in partition.backward.op_nodes]
    assert targets.count("aten.mm.default") == 4 and "aten.addmm.default" not in targets
    assert "aten.gelu.default" in targets


class Normed(nn.Module):
    """16-bit values through normalisations with float32 parameters: their statistics are float32, as all on a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.BatchNorm1d(6), nn.BatchNorm1d(6), nn.LayerNorm(6)])
        for norm in self.norms:
            nn.init.uniform_(norm.weight)
            nn.init.normal_(norm.bias)

    def forward(self, x, w):
        for norm in self.norms:
            x = torch.relu(norm(x @ w))
        return x @ w


def test_16_bit_norms_are_made_again_from_float32_statistics():
    """No second reduction, and no value that is another than the forward pass's: a rectifier's gradient would show."""
    torch.manual_seed(0)
    module, given = Normed(), [torch.randn(40, 6).bfloat16(), torch.randn(6, 6).bfloat16()]
    joint = joint_graph(module_graph(module, 2), [t.requires_grad_() for t in given])
    partition = partition_joint(joint, min_cut_partition)
    again = {str(node.target) for node in partition.backward.op_nodes}
    assert "aten.rsqrt.default" not in again and not any("norm" in name and "backward" not in name for name in again), again
    saved = [d.spec for d in partition.forward.outputs if d.kind == "saved"]
    # Two statistics each, and copies of two biases: of a batch norm eager does not save it, of a layer norm it does.
    assert sum(spec.dtype == torch.float32 for spec in saved) == 8
    leaves = lambda: [t.detach().clone().requires_grad_() for t in given]
    check(module_graph(module, 2), leaves, partition=min_cut_partition, rtol=2e-2, atol=2e-2)


class Affine(torch.autograd.Function):
    """Its backward is not linear in the gradients."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * 2, y * 3

    @staticmethod
    def backward(ctx, a, b):
        x, y = ctx.saved_tensors
        return a * 2 + b + 1, (b * 3 + 0.5) * y + a


class Constant(torch.autograd.Function):
    """Its backward does not even look at the gradient."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return ctx.saved_tensors[0] * 0.1


def of_custom_functions(x, y):
    a, b = Affine.apply(x, y)
    return a.sin(), b.cos(), Constant.apply(x), y * 2, Constant.apply(y * x).sum()


@pytest.mark.parametrize("used", [(0,), (1,), (2,), (3,), (4,), (0, 4), (1, 2), (2, 3), (1, 3, 4), (0, 1, 2, 3, 4)])
def test_custom_backwards_run_for_the_gradients_that_call_them(used):
    graph = torch.fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    graph.output(graph.call_function(of_custom_functions, (x, y)))
    gm = torch.fx.GraphModule(torch.nn.Module(), graph)
    report = Report()
    inputs = [torch.randn(3, 4).requires_grad_() for _ in range(2)]
    compiled = aot_function(gm, inputs, fw_compiler=run_eagerly, report=report)
    gradients = []
    for function in (compiled, of_custom_functions):
        own = [t.detach().clone().requires_grad_() for t in inputs]
        results = function(*own)
        sum(results[i].square().sum() for i in used).backward()
        gradients.append([t.grad for t in own])
    for ours, theirs in zip(*gradients):
        assert (ours is None) == (theirs is None)
        if theirs is not None:
            torch.testing.assert_close(ours, theirs)
    assert not report.fallbacks


def test_constants_of_a_backward():
    """A Python number written into a gradient is a constant that only the backward graph has."""

    class Writes(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            gradient = gradient.clone()
            gradient[0] = 1
            return gradient + torch.tensor([1.0, 2.0, 3.0])

    graph = torch.fx.Graph()
    graph.output(graph.call_function(Writes.apply, (graph.placeholder("x"),)))
    report = Report()
    x = torch.randn(2, 3).requires_grad_()
    gm = torch.fx.GraphModule(torch.nn.Module(), graph)
    aot_function(gm, [x], fw_compiler=run_eagerly, report=report)(x).sum().backward()
    torch.testing.assert_close(x.grad, torch.tensor([[2.0, 3.0, 4.0], [2.0, 3.0, 4.0]]))
    assert not report.fallbacks


@pytest.mark.parametrize("training", [True, False])
def test_cudnns_batch_norm_is_the_native_one(training):
    """On a GPU PyTorch calls it by another name, for the library's kernel; the graphs are the same."""

    class Norm(nn.Module):
        def __init__(self, function):
            super().__init__()
            self.function = function
            self.norm = nn.BatchNorm2d(5)

        def forward(self, x):
            n = self.norm
            out = self.function(x, n.weight, n.bias, n.running_mean, n.running_var, training, 0.1, 1e-5)
            return out[0].sin()

    ours, theirs, report = Norm(torch.cudnn_batch_norm), Norm(torch.native_batch_norm), Report()
    mine, other = (torch.linspace(-2, 3, 240).view(3, 5, 4, 4).requires_grad_() for _ in range(2))
    compiled = aot_function(
        module_graph(ours), [mine], fw_compiler=run_eagerly, report=report, options=Options(strict=True)
    )
    out, expected = compiled(mine), theirs(other)
    torch.testing.assert_close(out, expected)
    out.square().sum().backward(), expected.square().sum().backward()
    torch.testing.assert_close(mine.grad, other.grad)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)
    for a, b in zip(ours.buffers(), theirs.buffers(), strict=True):
        torch.testing.assert_close(a, b)
    assert not any("cudnn" in op for graph in report.graphs for op in graph.ops)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_embedding_bag(mode):
    ids, starts = torch.tensor([1, 2, 3, 1, 5]), torch.tensor([0, 2])
    found = []
    report = Report()

    def function(weight, ids, starts):
        return F.embedding_bag(ids, weight, starts, mode=mode)

    weight = leaf(10, 4)
    compiled = aot_function(function_graph(function, 3), [weight, ids, starts], fw_compiler=run_eagerly, report=report)
    for one in (compiled, function):
        found.append(torch.autograd.grad(one(weight, ids, starts).square().sum(), weight))
    torch.testing.assert_close(*found)
    assert not report.fallbacks


def test_a_rest_keeps_the_signs_of_zeros() -> None:
    from aot_autograd.runtime.nested import _difference

    handed = torch.tensor([0.0, -0.0, 0.0, 2.0, float("inf"), 1.0])
    rest = torch.tensor([-3.0, -0.0, 5.0, 0.0, 0.0, 4.0])
    found = _difference(handed + rest, handed)
    assert torch.equal(found, rest) and torch.equal(found.signbit(), rest.signbit())
