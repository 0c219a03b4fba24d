"""Random programs: generated text, compiled and compared with eager, forward and gradients.

A program is a few statements over a handful of tensors: arithmetic on mixed dtypes, reductions, views, writes through
views, on inputs that are strided, expanded, offset, empty, of no dimensions, or views of each other. Statements that
eager refuses are left out while a program is made. Results, arguments after the call, strides, ``requires_grad``, what
shares memory with what, and gradients must be as in eager, on two calls with different data.
"""

from __future__ import annotations

import linecache
import random
from typing import Any

import pytest
import torch

import compile_api

DTYPES = [torch.float32] * 5 + [
    torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.int8, torch.bool,
    torch.complex64,
]  # fmt: skip
LAYOUTS = ["contiguous"] * 3 + ["transposed", "sliced", "expanded", "offset", "channels_last"]

UNARY = """
{a}.abs()
-{a}
{a}.relu()
{a}.float().sin()
torch.sigmoid({a}.float())
{a}.to(torch.float16)
{a}.to(torch.int32)
{a} > 0
{a}.bool()
{a}.logical_not()
{a}.double()
{a}.bfloat16()*1.5
{a}.exp2()
torch.floor({a})
{a}.clamp(-1,2)
{a}.clamp(min=0.5)
{a}.square()
{a}.sign()
torch.nan_to_num({a})
torch.where({a}>0,{a},0)
torch.where({a}.bool(),{a},{a}*2)
{a}.round()
{a}*{k}
{a}+{k}
{k}-{a}
{a}/{kz}
{a}//{kz}
{a}%{kz}
{a}**2
2.0**{a}
{a}.rsqrt()
torch.erf({a})
torch.tanh({a})
F.gelu({a}.float())
F.silu({a}.float())
{a}.frac()
{a}.isnan()
~({a}.bool())
{a}.cos()
torch.log1p({a}.abs())
F.softplus({a}.float())
F.hardtanh({a}.float())
{a}.neg()
{a}.conj()
{a}.real
torch.view_as_real({a})
{a}.angle()
""".strip().splitlines()

BINARY = """
{a}+{b}
{a}-{b}
{a}*{b}
{a}/{b}
torch.maximum({a},{b})
torch.minimum({a},{b})
{a}>{b}
{a}=={b}
torch.where({a}>{b},{a},{b})
torch.add({a},{b},alpha=2)
torch.atan2({a}.float(),{b}.float())
{a}&{b}
{a}|{b}
{a}^{b}
torch.fmod({a},{b})
torch.remainder({a},{b})
{a}//{b}
{a}@{b}
torch.matmul({a}.float(),{b}.float())
{a}.float()@{b}.float().mT
torch.outer({a}.flatten(),{b}.flatten())
torch.lerp({a}.float(),{b}.float(),0.3)
torch.cat([{a},{b}],{d})
torch.stack([{a},{b}],{d})
torch.logical_xor({a},{b})
{a}.type_as({b})
torch.copysign({a}.float(),{b}.float())
torch.addcmul({a},{b},{b},value=0.5)
F.mse_loss({a}.float(),{b}.float())
torch.hypot({a}.float(),{b}.float())
torch.einsum('...i,...i->...',{a}.float(),{b}.float())
torch.isclose({a},{b})
{a}.masked_fill({b}.bool(),{k})
torch.masked_fill({a},{b}>0,1)
torch.fmax({a},{b})
torch.floor_divide({a},{b})
""".strip().splitlines()

REDUCTIONS = """
{a}.sum()
{a}.sum({d})
{a}.sum({d},keepdim=True)
{a}.float().mean({d})
{a}.amax({d})
{a}.amin(({d},))
{a}.prod()
{a}.float().var()
{a}.float().std({d})
{a}.any()
{a}.all({d})
{a}.argmax()
{a}.argmin({d})
{a}.max({d})[0]
{a}.min({d})[1]
{a}.cumsum({d})
{a}.float().softmax({d})
{a}.float().log_softmax({d})
{a}.float().norm()
{a}.float().norm(dim={d})
torch.logsumexp({a}.float(),{d})
{a}.sum(dim=())
{a}.float().mean()
{a}.sort({d})[0]
{a}.count_nonzero()
{a}.float().var({d},unbiased=False)
F.layer_norm({a}.float(),{a}.shape[-1:])
{a}.cumprod({d})
{a}.sum(-1).sum()
F.normalize({a}.float(),dim={d})
{a}.logcumsumexp({d})
{a}.float().median()
{a}.nansum()
{a}.sum({d},dtype=torch.float64)
{a}.argsort({d},stable=True)
""".strip().splitlines()

VIEWS = """
{a}.t()
{a}.mT
{a}.transpose(0,-1)
{a}.flatten()
{a}.view(-1)
{a}.reshape(-1)
{a}.unsqueeze({d})
{a}.squeeze()
{a}.squeeze({d})
{a}[0]
{a}[...,0]
{a}[1:]
{a}[...,::2]
{a}[:, None]
{a}[-1]
{a}.flip({d})
{a}.expand(2,*{a}.shape)
{a}.diagonal()
{a}.unfold(-1,2,1)
{a}.chunk(2,{d})[0]
{a}.split(1,{d})[-1]
{a}.unbind({d})[0]
{a}.roll(1,{d})
{a}.narrow({d},0,1)
{a}.select({d},0)
{a}.contiguous()
{a}.clone()
{a}.detach()
{a}.permute(*range({a}.dim()-1,-1,-1))
{a}.movedim(0,-1)
{a}.repeat(2,*[1]*({a}.dim()-1))
{a}.repeat_interleave(2)
F.pad({a},(1,2))
F.pad({a},(1,0),value=2)
F.pad({a},(-1,1))
{a}.tril()
{a}.triu(1)
torch.broadcast_to({a},(3,*{a}.shape))
{a}.as_strided({a}.shape,{a}.stride())
{a}.rot90()
{a}.view_as({a})
{a}.unflatten(0,(1,-1))
{a}.index_select({d},torch.tensor([0,0]))
{a}[torch.tensor([0,-1])]
{a}[{a}.argmax(0)*0] if {a}.dim()==1 else {a}
{a}.gather({d},torch.zeros_like({a},dtype=torch.int64))
{a}[[0],...]
{a}.take(torch.tensor([0]))
torch.atleast_2d({a})
{a}.view(torch.int32)
{a}.swapaxes(0,-1)
{a}.tile((2,))
{a}.T
{a}.ravel()
{a}[None]
{a}.new_zeros(3)
torch.zeros_like({a})
torch.ones_like({a})+{a}
torch.full_like({a},{k})
{a}.tensor_split(2)[0]
{a}.hsplit(1)[0]
{a}.new_full((2,2),{k})
""".strip().splitlines()

WRITES = """
{a}.add_({k})
{a}.mul_(2)
{a}.zero_()
{a}.fill_({k})
{a}[0]={k}
{a}[...,0]=1
{a}[...,::2]=0
{a}[1:]+=1
{a}.copy_({b})
{a}.add_({b})
{a}[0]={b}[0]
{a}.mul_({b})
{a}.relu_()
{a}.neg_()
{a}.clamp_(-1,1)
{a}+=1
{a}*={b}
{a}.masked_fill_({a}>0,-1)
{a}[{a}>0]=1
{a}.index_add_(0,torch.tensor([0]),{a}[:1].clone())
{a}.t()[0]=3
{a}.view(-1)[0]=5
{a}.index_fill_(0,torch.tensor([0]),2)
{a}.scatter_(0,torch.zeros_like({a},dtype=torch.int64),1)
{a}.index_put_((torch.tensor([0]),),{a}[-1:])
{a}.diagonal().add_(1)
{a}.transpose(0,-1).mul_(2)
{a}.flatten().add_(1)
{a}.squeeze_()
{a}.unsqueeze_(0)
{a}.t_()
{a}[torch.tensor([0,0])]+=1
{a}.index_put_((torch.tensor([0,0]),),{a}[:1].clone(),accumulate=True)
{a}.sigmoid_()
{a}.select(0,0).copy_({a}.select(0,-1))
{a}.bernoulli_(0)
{a}.addcmul_({b},{b})
{a}.lerp_({b},.5)
{a}.swapaxes_(0,-1)
{a}.resize_as_({a})
{a}.sub_({b},alpha=2)
{a}.div_(2)
{a}.floor_()
{a}.data.add_(1)
{a}.detach().mul_(2)
""".strip().splitlines()


def make(shape: list[int], dtype: torch.dtype, layout: str, generator: torch.Generator) -> torch.Tensor:
    """A random tensor of that layout (contiguous where the shape does not allow it)."""

    def base(sizes: list[int]) -> torch.Tensor:
        if dtype == torch.bool:
            return torch.rand(sizes, generator=generator) > 0.5
        if not dtype.is_floating_point and not dtype.is_complex:
            return torch.randint(0 if dtype == torch.uint8 else -4, 6, sizes, generator=generator).to(dtype)
        return torch.randn(sizes, generator=generator, dtype=dtype if dtype.is_complex else torch.float32).to(dtype)

    if layout == "transposed" and len(shape) >= 2:
        return base(shape[::-1]).permute(*range(len(shape) - 1, -1, -1))
    if layout == "sliced" and shape:
        return base([*shape[:-1], shape[-1] * 2 + 1])[..., 1::2][..., : shape[-1]]
    if layout == "expanded" and shape and shape[0] > 0:
        return base([1, *shape[1:]]).expand(shape)
    if layout == "offset":
        return base([3, *shape])[1]
    if layout == "channels_last" and len(shape) == 4:
        return base(shape).to(memory_format=torch.channels_last)
    return base(shape)


class Program:
    """The program of a seed: ``source`` defines ``f``; ``arguments(k)`` are the tensors of its k-th call."""

    def __init__(self, seed: int, sizes: tuple[int, ...] = (1, 2, 3, 4), rare: tuple[int, ...] = (0, 5, 7)) -> None:
        self.pick = random.Random(seed)
        self.inputs = [self._input(sizes, rare) for _ in range(self.pick.choice([1, 2, 2, 3]))]
        self.wants = [self.pick.random() < 0.35 for _ in self.inputs]
        self.alias = self.pick.choice(["x0", "x0.view_as(x0)", "x0[...]", "x0[:1] if x0.dim() else x0"])
        if self.pick.random() > 0.15:
            self.alias = ""
        self.lines: list[str] = []
        self.parameters = [f"x{i}" for i in range(len(self.inputs) + bool(self.alias))]
        results = self._statements(self.pick.choice([2, 4, 6, 10]))
        head = f"import torch\nimport torch.nn.functional as F\n\ndef f({', '.join(self.parameters)}):\n"
        body = "".join(f"    {line}\n" for line in self.lines)
        self.source = f"{head}{body}    return {', '.join(results)},\n"
        low = any(d in (torch.float16, torch.bfloat16) for _, d, _ in self.inputs)
        self.coarse = low or "float16" in self.source

    def _input(self, sizes: tuple[int, ...], rare: tuple[int, ...]) -> tuple[list[int], torch.dtype, str]:
        dims = self.pick.choice([0, 1, 1, 2, 2, 2, 3, 3, 4] if max(sizes) < 10 else [1, 2, 2])
        shape = [self.pick.choice(rare if self.pick.random() < 0.1 else sizes) for _ in range(dims)]
        return shape, self.pick.choice(DTYPES), self.pick.choice(LAYOUTS)

    def arguments(self, call: int) -> list[torch.Tensor]:
        """Fresh arguments; those of one call are always the same."""
        generator = torch.Generator().manual_seed(call)
        made = []
        for (shape, dtype, layout), wants in zip(self.inputs, self.wants, strict=True):
            x = make(shape, dtype, layout, generator)
            made.append(x.requires_grad_() if wants and (dtype.is_floating_point or dtype.is_complex) else x)
        if self.alias:
            made.append(eval(self.alias, {"x0": made[0]}))
        return made

    def _runs(self, line: str, result: str | None) -> bool:
        scope: dict[str, Any] = dict(zip(self.parameters, self.arguments(0), strict=True))
        scope.update(torch=torch, F=torch.nn.functional)
        try:
            exec("\n".join([*self.lines, line]), scope)
        except Exception:
            return False
        return result is None or (isinstance(scope[result], torch.Tensor) and scope[result].numel() < 400_000)

    def _statements(self, count: int) -> list[str]:
        names = list(self.parameters)
        made = 0
        for _ in range(count * 12):
            if made == count:
                break
            kind = self.pick.choice([UNARY, UNARY, BINARY, BINARY, REDUCTIONS, VIEWS, VIEWS, WRITES])
            a, b = (self.pick.choice(names[-4:] + names) for _ in range(2))
            line = self.pick.choice(kind).format(
                a=a, b=b, d=self.pick.choice([0, 0, -1, -1, 1]), k=self.pick.choice(["1", "2.5", "-1", "True", "0", "3"]),
                kz=self.pick.choice(["2", "3", "-2", "1.5", "0.5"]),
            )  # fmt: skip
            result = None if kind is WRITES else f"t{made}"
            line = line if result is None else f"{result} = {line}"
            if self._runs(line, result):
                self.lines.append(line)
                if result is not None:
                    names.append(result)
                    made += 1
        results = [name for name in names if name.startswith("t")] or names[:1]
        self.pick.shuffle(results)
        return sorted(results[: self.pick.choice([1, 2, 3])])


def assert_same(ours: torch.Tensor, theirs: torch.Tensor, what: str, coarse: bool) -> None:
    """Equal metadata, close values."""
    assert ours.shape == theirs.shape and ours.dtype == theirs.dtype, what
    assert ours.requires_grad == theirs.requires_grad, f"{what}: requires_grad"
    steps = [[s for s, n in zip(x.stride(), x.shape, strict=True) if n > 1] for x in (ours, theirs)]
    assert steps[0] == steps[1] or not theirs.numel(), f"{what}: strides {steps}"
    limit = 2e-2 if coarse or theirs.dtype in (torch.float16, torch.bfloat16) else 1e-4
    torch.testing.assert_close(
        ours.detach(), theirs.detach(), rtol=limit, atol=limit, equal_nan=True, msg=lambda text: f"{what}: {text}"
    )


def sharing(tensors: list[torch.Tensor]) -> list[int]:
    """For each tensor, the position of the first one with its memory."""
    first: dict[int, int] = {}
    return [first.setdefault(t.untyped_storage().data_ptr(), i) if t.numel() else -1 for i, t in enumerate(tensors)]


def loss(tensors: list[torch.Tensor]) -> Any:
    """A number that every differentiable result counts in, each element with another weight."""
    total: Any = 0.0
    for i, t in enumerate(tensors):
        if t.requires_grad and not t.is_leaf:
            flat = (torch.view_as_real(t.resolve_conj()) if t.is_complex() else t).double().reshape(-1)
            total = total + (flat * torch.linspace(0.5, 1.5 + i % 3, max(flat.numel(), 1))[: flat.numel()]).sum()
    return total


def attempt(function: Any, *args: Any) -> tuple[Any, str]:
    """The result, and the name of the error's type ("" without one)."""
    try:
        return function(*args), ""
    except Exception as error:
        return None, "division" if "ZeroDivision" in str(error) else type(error).__name__


def compare(function: Any, compiled: Any, program: Program, call: int) -> None:
    """One call of both."""
    mine, theirs = program.arguments(call), program.arguments(call)
    expected, error = attempt(function, *theirs)
    got, own_error = attempt(compiled, *mine)
    if error == "division":  # of integers by zero: generated code gives a number
        return
    assert own_error == error
    if error:
        return
    for i, (a, b) in enumerate(zip([*got, *mine], [*expected, *theirs], strict=True)):
        assert_same(a, b, f"tensor {i}", program.coarse)
    assert sharing([*mine, *got]) == sharing([*theirs, *expected])
    ours, reference = loss([*got, *mine]), loss([*expected, *theirs])
    if not isinstance(reference, torch.Tensor):
        return
    _, error = attempt(reference.backward)
    _, own_error = attempt(ours.backward)
    assert bool(error) == bool(own_error), (error, own_error)
    for i, (a, b) in enumerate(zip(mine, theirs, strict=True)):
        if b.is_leaf and not error:
            assert (a.grad is None) == (b.grad is None), f"gradient {i}"
            if b.grad is not None:
                limit = 4e-2 if program.coarse else 1e-3
                torch.testing.assert_close(a.grad, b.grad, rtol=limit, atol=limit, equal_nan=True)


def run(program: Program, name: str, dynamic: bool | None) -> Any:
    """Compile a program and compare two calls; its report."""
    linecache.cache[name] = (len(program.source), None, program.source.splitlines(True), name)
    scope: dict[str, Any] = {}
    exec(compile(program.source, name, "exec"), scope)
    compile_api.reset()
    compiled = compile_api.compile(scope["f"], dynamic=dynamic)
    for call in (0, 1):
        torch.manual_seed(3)
        compare(scope["f"], compiled, program, call)
    return compiled.report()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "first,count,sizes,dynamic",
    [(10_000, 40, (1, 2, 3, 4), None), (20_000, 14, (1, 33, 70, 128, 300), None), (30_000, 12, (1, 2, 3, 4), True)],
    ids=["small", "large", "dynamic"],
)
def test_random_programs(first: int, count: int, sizes: tuple[int, ...], dynamic: bool | None) -> None:
    compiled_parts = 0
    for seed in range(first, first + count):
        program = Program(seed, sizes, rare=(0, 5, 7) if max(sizes) < 10 else sizes)
        try:
            report = run(program, f"<program {seed}>", dynamic)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {program.inputs}\n{program.source}") from error
        assert not any(record.stage in ("codegen", "run", "backend inductor") for record in report.fallbacks), (
            seed, report.fallbacks, program.source,
        )  # fmt: skip
        compiled_parts += bool(report.kernels)
    assert compiled_parts > count // 2
