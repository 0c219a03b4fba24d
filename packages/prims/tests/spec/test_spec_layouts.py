"""Strides of results against eager's for inputs of every layout, forward and backward."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

import pytest
import torch
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

from prims import decomp
from prims.handlers import TorchHandler
from prims.spec import AbstractMode, AbstractTensor, abstract, infer, spec_of
from prims.spec.rules.elementwise import BINARY

SHAPE = (2, 4, 6, 8)
LAYOUTS = {
    "contiguous": lambda: torch.rand(SHAPE),
    "channels_last": lambda: torch.rand(SHAPE).to(memory_format=torch.channels_last),
    "permuted": lambda: torch.rand(6, 2, 8, 4).permute(1, 3, 0, 2),
    "transposed": lambda: torch.rand(2, 6, 4, 8).transpose(1, 2),
    "sliced": lambda: torch.rand(2, 8, 6, 9)[:, ::2, :, :8],
    "expanded": lambda: torch.rand(2, 1, 6, 8).expand(SHAPE),
    "one channel of many": lambda: torch.rand(2, 4, 6, 8, 3)[..., 1],
}
CHANNEL, WEIGHT, DEPTHWISE = torch.rand(4), torch.rand(5, 4, 3, 3), torch.rand(4, 1, 3, 3)

#: A GPU's kernels lay some results out otherwise.
DEVICES = ["cpu", *["cuda"] * torch.cuda.is_available()]


def at(x: torch.Tensor, constant: torch.Tensor) -> torch.Tensor:
    return constant.to(x.device)


# Each takes the input and another one of the same shape.
CASES = {
    "add": lambda x, y: x + y,
    "add number": lambda x, y: x * 2 + 1,
    "broadcast": lambda x, y: x * y[:, :, :1, :1] + y[0],
    "gelu": lambda x, y: F.gelu(x),
    "compare": lambda x, y: (x > y) & (y < 0.5),
    "where": lambda x, y: torch.where(x > 0.5, x, y),
    "angle": lambda x, y: (x.angle(), torch.complex(x, y.contiguous()).angle()),
    "isin": lambda x, y: (x * 1, torch.isin(x, 0.5), torch.isin(x, y[0, 0, 0]), torch.isin(x, y)),
    "where number": lambda x, y: torch.where(y > 0.5, x, 0.0),
    "clamp": lambda x, y: x.clamp(0.1, 0.9),
    "lerp": lambda x, y: torch.lerp(x, y, 0.3),
    "addcmul": lambda x, y: torch.addcmul(x, y, y),
    "masked_fill": lambda x, y: x.masked_fill(y > 0.5, 0.0),
    "masked_fill broadcast": lambda x, y: x.masked_fill(y[:, :1] > 0.5, 0.0),
    "to": lambda x, y: x.to(torch.bfloat16),
    "clone": lambda x, y: x.clone(),
    "zeros_like": lambda x, y: (torch.zeros_like(x), torch.empty_like(x), torch.rand_like(x)),
    "contiguous": lambda x, y: x.contiguous(),
    "to channels_last": lambda x, y: x.contiguous(memory_format=torch.channels_last),
    "sum": lambda x, y: (x.sum(1), x.sum((0, 2), keepdim=True), x.sum()),
    "mean var": lambda x, y: (x.mean(-1), x.var(1), torch.std_mean(x, (2, 3))),
    "amax argmax": lambda x, y: (x.amax(1), x.argmax(2), x.max(3), x.any(0)),
    "softmax": lambda x, y: (x.softmax(1), x.log_softmax(-1), x.logsumexp(1)),
    "cumsum": lambda x, y: (x.cumsum(1), x.cumprod(2), x.cummax(1)),
    "sort": lambda x, y: (x.sort(1), x.topk(2, 2), x.argsort(-1), x.kthvalue(2, 1)),
    "matmul": lambda x, y: (x @ y.transpose(-1, -2), x @ torch.rand(8, 3)),
    "linear": lambda x, y: F.linear(x, torch.rand(3, 8), torch.rand(3)),
    "einsum": lambda x, y: torch.einsum("bchw,bdhw->bcd", x, y),
    "conv": lambda x, y: F.conv2d(x, at(x, WEIGHT), padding=1),
    "conv stride": lambda x, y: F.conv2d(x, at(x, WEIGHT), torch.rand(5), stride=2),
    "conv depthwise": lambda x, y: F.conv2d(x, at(x, DEPTHWISE), groups=4),
    "conv weight channels_last": lambda x, y: F.conv2d(x, at(x, WEIGHT).to(memory_format=torch.channels_last)),
    "conv transpose": lambda x, y: F.conv_transpose2d(x, torch.rand(4, 5, 3, 3), stride=2, output_padding=1),
    "conv 1x1": lambda x, y: F.conv2d(x, torch.rand(5, 4, 1, 1)),
    "batch_norm": lambda x, y: F.batch_norm(x, at(x, CHANNEL).clone(), at(x, CHANNEL).clone(), at(x, CHANNEL), at(x, CHANNEL), training=True),
    "batch_norm eval": lambda x, y: F.batch_norm(x, at(x, CHANNEL), at(x, CHANNEL), at(x, CHANNEL), at(x, CHANNEL)),
    "instance_norm": lambda x, y: F.instance_norm(x),
    "group_norm": lambda x, y: F.group_norm(x, 2, at(x, CHANNEL), at(x, CHANNEL)),
    "layer_norm": lambda x, y: F.layer_norm(x, (8,), torch.rand(8), torch.rand(8)),
    "max_pool": lambda x, y: F.max_pool2d(x, 2, return_indices=True),
    "max_pool pad": lambda x, y: F.max_pool2d(x, 3, 2, 1, ceil_mode=True),
    "avg_pool": lambda x, y: F.avg_pool2d(x, 2),
    "adaptive pools": lambda x, y: (F.adaptive_avg_pool2d(x, 1), F.adaptive_avg_pool2d(x, (3, 2))),
    "adaptive max": lambda x, y: F.adaptive_max_pool2d(x, (3, 2)),
    "interpolate": lambda x, y: (F.interpolate(x, scale_factor=2.0), F.interpolate(x, size=(3, 5), mode="bilinear")),
    "pad": lambda x, y: (F.pad(x, (1, 1)), F.pad(x, (1, 1, 1, 1), mode="reflect"), F.pad(x, (-1, 0))),
    "replicate": lambda x, y: F.pad(x, (1, 1, 1, 1), mode="replicate"),
    "cat": lambda x, y: (torch.cat([x, y], 1), torch.cat([x, y.contiguous()], 0), torch.stack([x, y], 1)),
    "index": lambda x, y: (x[:, [0, 2]], x[[1, 0], :, [0, 3]], x[:, :, torch.tensor([[0, 1]])], x[..., 1:, None]),
    "gather": lambda x, y: (x.gather(1, (y * 4).long()), x.index_select(2, torch.tensor([0, 3]))),
    "scatter": lambda x, y: x.scatter_add(1, (y * 4).long(), y),
    "index_put": lambda x, y: x.index_put((torch.tensor([0, 1]),), y[:1]),
    "index_add fill": lambda x, y: (
        x.index_add(0, torch.tensor([0, 1]), y),
        x.index_fill(1, torch.tensor([1]), 0.0),
    ),
    "reshape": lambda x, y: (x.reshape(2, -1), x.flatten(2), x.reshape(8, 48), x.unflatten(1, (2, 2))),
    "views": lambda x, y: (x.permute(3, 0, 2, 1), x.transpose(0, 2), x[1], x[:, None], x.unfold(3, 3, 2)),
    "more views": lambda x, y: (x.diagonal(0, 2, 3), x.narrow(3, 1, 4), x.select(2, -1), x.movedim(1, -1)),
    "splits": lambda x, y: (x.split(2, 1), x.chunk(3, 3), x.unbind(0), x.tensor_split(3, 2)),
    "flip roll": lambda x, y: (x.flip(1), x.roll(1, 2), x.roll((1, 1), (0, 1)), torch.rot90(x, 1, (2, 3))),
    "roll that moves nothing": lambda x, y: (x.roll(0, 1), x[:, :, :, :1].roll(1, 3), x.roll((1, 0), (0, 2))),
    "empty": lambda x, y: (x[:, :0].roll(1, 1), x[:, :, :0].clone(), x[:0].transpose(0, 2).flip(1)),
    "tril": lambda x, y: (x.tril(), x.triu(1)),
    "repeat": lambda x, y: (x.repeat(1, 2, 1, 1), x.repeat_interleave(2, 1), x.tile(2)),
    "sdpa": lambda x, y: F.scaled_dot_product_attention(x, x, x),
    "sdpa causal": lambda x, y: F.scaled_dot_product_attention(x, x, x, is_causal=True),
    "sdpa mask": lambda x, y: F.scaled_dot_product_attention(x, x, x, torch.zeros(6, 6)),
    "losses": lambda x, y: (F.mse_loss(x, y, reduction="none"), F.l1_loss(x, y), F.smooth_l1_loss(x, y)),
    "bce": lambda x, y: (
        F.binary_cross_entropy(x, y, reduction="none"),
        F.binary_cross_entropy_with_logits(x, y, reduction="none"),
    ),
    "cross_entropy": lambda x, y: F.cross_entropy(x, y.argmax(1), reduction="none"),
    "glu": lambda x, y: (F.glu(x, 1), F.prelu(x, torch.rand(4))),
    "pixel_shuffle": lambda x, y: (F.pixel_shuffle(x, 2), F.pixel_unshuffle(x, 2)),
    "channel_shuffle": lambda x, y: (F.channel_shuffle(x, 2), F.channel_shuffle(x, 1)),
    "norm": lambda x, y: (x.norm(dim=1), F.normalize(x, dim=1), torch.linalg.vector_norm(x, dim=(2, 3))),
    "complex": lambda x, y: (torch.complex(x, y), torch.view_as_real(torch.complex(x, y)), torch.polar(x, y)),
    "fft": lambda x, y: (torch.fft.rfft(x), torch.fft.fft2(x)),
    "fft real": lambda x, y: (torch.fft.rfft2(x), torch.fft.rfftn(x), torch.fft.rfftn(x, dim=(2, 0, 1))),
    "fft inverse": lambda x, y: [f(torch.complex(x, y)) for f in (torch.fft.irfft, torch.fft.irfft2, torch.fft.irfftn)],
    "fft of some": lambda x, y: (torch.fft.fftn(torch.complex(x, y)), torch.fft.irfft(torch.complex(x, y), dim=1)),
    "unpool": lambda x, y: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2),
    "dropout": lambda x, y: F.dropout(x, 0.5),
    "bernoulli": lambda x, y: (torch.bernoulli(x), torch.nn.functional.rrelu(x)),
}
# Backward is checked where the gradient's layout does not depend on a kernel's inner choices.
FORWARD_ONLY = {"compare", "zeros_like", "bernoulli", "sort", "cumsum", "complex", "fft", "fft real", "fft inverse", "fft of some", "amax argmax"}


def difference(got, want):
    a, e = tree_leaves(got), tree_leaves(want)
    assert len(a) == len(e)
    for x, y in zip(a, e):
        if not isinstance(y, torch.Tensor):
            continue
        assert isinstance(x, AbstractTensor)
        s, w = x.spec, spec_of(y)
        assert (s.shape, s.dtype, s.storage_offset) == (w.shape, w.dtype, w.storage_offset)
        strides = [(p, q) for n, p, q in zip(w.shape, s.strides, w.strides) if n > 1]
        assert all(p == q for p, q in strides), f"got {s}, eager gives {w}"


def eager(function, *args):
    """The results; not every layout suits a GPU's kernels."""
    try:
        return function(*args)
    except RuntimeError as error:
        if args[-1].device.type == "cpu" or not re.search("view size is not compatible|not correctly aligned", str(error)):
            raise
        pytest.skip(f"eager refuses it: {error}")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("case", CASES)
def test_forward(case, layout, device):
    with torch.device(device):
        x, y = LAYOUTS[layout](), LAYOUTS[layout]()
        want = eager(CASES[case], x, y)
        with AbstractMode():
            difference(CASES[case](abstract(x), abstract(y)), want)


def _of_layout(kind: str, dtype: torch.dtype, seed: int) -> torch.Tensor:
    """A tensor of small positive numbers, of shape (4, 3, 2) or one that is broadcast to it."""
    generator = torch.Generator().manual_seed(seed)

    def numbers(*sizes: int) -> torch.Tensor:
        return (torch.randint(0, 5, sizes, generator=generator) + 1).to(dtype)

    if kind == "contiguous":
        return numbers(4, 3, 2)
    if kind == "reversed":
        return numbers(2, 3, 4).permute(2, 1, 0)
    if kind == "reversed, with gaps":
        return numbers(2, 3, 9).permute(2, 1, 0)[1::2]
    if kind == "expanded":
        return numbers(1, 2, 3).transpose(1, 2).expand(4, 3, 2)
    if kind == "overlapping":
        return numbers(8).as_strided((4, 3, 2), (1, 1, 1))
    return numbers(1, 2).expand(3, 2)


TWO_TYPES = [
    (torch.float32, torch.float32), (torch.int32, torch.float32), (torch.float32, torch.float64),
    (torch.bool, torch.float32), (torch.int32, torch.int64), (torch.bfloat16, torch.float32), (torch.float64, torch.float32),
    (torch.complex64, torch.int64), (torch.float16, torch.float16),
]  # fmt: skip
THREE_OPERANDS = ["where.self", "addcmul.default", "addcdiv.default", "clamp.Tensor", "lerp.Tensor"]
TWO_OPERANDS = (
    [
        f"{name}.{overload}"
        for overloads, _, names in BINARY
        for name in names.split()
        for overload in overloads
        if overload in ("Tensor", "default", "Tensor_Tensor")
    ]
    + """rsub.Tensor logaddexp.default clamp_min.Tensor clamp_max.Tensor ldexp.Tensor float_power.Tensor_Tensor isclose.default
    tanh_backward.default threshold_backward.default leaky_relu_backward.default gelu_backward.default _prelu_kernel.default
    mse_loss.default huber_loss.default soft_margin_loss.default binary_cross_entropy_with_logits.default""".split()
)
MORE = {
    "threshold_backward.default": (0.5,), "leaky_relu_backward.default": (0.1, False), "mse_loss.default": (0,),
    "huber_loss.default": (0,), "soft_margin_loss.default": (0,),
    "binary_cross_entropy_with_logits.default": (None, None, 0),
}  # fmt: skip


@pytest.mark.parametrize("name", [*TWO_OPERANDS, *THREE_OPERANDS])
def test_operands_of_two_types_and_layouts(name: str) -> None:
    """Eager converts on a CPU before it looks at strides, and an expanded or overlapping operand's copy is dense."""
    packet, overload = name.split(".")
    op = getattr(getattr(torch.ops.aten, packet), overload)
    kinds = ("contiguous", "reversed", "reversed, with gaps", "expanded", "overlapping", "smaller")
    count = 3 if name in THREE_OPERANDS else 2
    compared = 0
    for types in TWO_TYPES:
        for layouts in itertools.product(kinds if count == 2 else kinds[1:5], repeat=count):
            operands = [_of_layout(kind, types[i % 2], i) for i, kind in enumerate(layouts)]
            if packet == "where":
                operands[0] = _of_layout(layouts[0], torch.bool, 0)
            if packet == "_prelu_kernel" and layouts[0] == "smaller":
                continue
            try:
                want = op(*operands, *MORE.get(name, ()))
            except (RuntimeError, NotImplementedError):
                continue  # not of these types
            got = infer(op, (*(spec_of(x) for x in operands), *MORE.get(name, ())), {})
            compared += 1
            assert (got.shape, got.dtype, got.strides) == (want.shape, want.dtype, want.stride()), (types, layouts)
    assert compared >= 20


@pytest.mark.parametrize("kinds", list(itertools.product([torch.bfloat16, torch.float32, torch.float64], repeat=4)))
def test_a_loss_of_logits_has_the_type_of_its_target(kinds) -> None:
    """Whatever the types of the logits and of both weights; eager computes it in the memory of ``1 - target``."""
    logits, target, weight, positive = (torch.rand(3, 4, dtype=kind) for kind in kinds)
    op = torch.ops.aten.binary_cross_entropy_with_logits.default
    for weights in ((None, None), (weight, None), (None, positive), (weight, positive)):
        want = op(logits, target, *weights)
        got = infer(op, (spec_of(logits), spec_of(target), *(w if w is None else spec_of(w) for w in weights)), {})
        assert got.dtype == want.dtype
        lowered = decomp.by_name(str(op))(TorchHandler(), logits, target, *weights, 1)
        assert lowered.dtype == want.dtype
        torch.testing.assert_close(lowered, want, rtol=2e-2, atol=2e-2)


def gradient(f, x, y):
    x, y = x.detach().requires_grad_(), y.detach()
    out = [t for t in tree_leaves(f(x, y)) if isinstance(t, torch.Tensor) and t.requires_grad]
    return torch.autograd.grad([t.float().pow(2).sum() for t in out], [x])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("layout", [k for k in LAYOUTS if k != "expanded"])
@pytest.mark.parametrize("case", [c for c in CASES if c not in FORWARD_ONLY])
def test_backward(case, layout, device):
    with torch.device(device):
        x, y = LAYOUTS[layout](), LAYOUTS[layout]()
        want = eager(gradient, CASES[case], x, y)
        with AbstractMode():
            difference(gradient(CASES[case], abstract(x), abstract(y)), want)


def in_every_order(shape, dtype):
    """A tensor of the shape in every order of its dimensions in memory."""
    for order in itertools.permutations(range(len(shape))):
        back = [order.index(d) for d in range(len(shape))]
        yield torch.zeros([shape[d] for d in order], dtype=dtype).permute(back)


def indexed() -> Iterator[tuple[torch.Tensor, list[torch.Tensor | None]]]:
    for shape in ((2, 3), (1, 3, 4), (2, 1, 3)):
        for x, wanted in itertools.product(in_every_order(shape, torch.float32), ((3,), (1, 3), (2, 1), (3, 1, 2))):
            for index, dim in itertools.product(in_every_order(wanted, torch.int64), range(len(shape))):
                yield x, [None] * dim + [index]
                if dim + 1 < len(shape):
                    yield x, [None] * dim + [index, index[:1]]
                    yield x, [index[..., :1], *[None] * dim, index]


def test_indexed_tensors_of_every_order():
    """Dimensions of size one have a say in the order of a result's dimensions, those of views of the indices too."""
    for x, indices in indexed():
        want = torch.ops.aten.index.Tensor(x, indices)
        with AbstractMode():
            got = torch.ops.aten.index.Tensor(abstract(x), [None if i is None else abstract(i) for i in indices])
        difference(got, want)


@pytest.mark.parametrize("shape", [(2, 1), (1, 2, 1), (2, 1, 3)])
def test_views_keep_the_strides_of_dimensions_of_one(shape):
    ends = [(1,) * a + shape + (1,) * b for a in range(3) for b in range(3)]
    for strides in itertools.product((1, 2, 3, 7), repeat=len(shape)):
        x = torch.empty_strided(shape, strides)
        for wanted in ends:
            with AbstractMode():
                assert spec_of(abstract(x).view(wanted)).strides == x.view(wanted).stride(), (strides, wanted)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_results_on_a_gpu_that_are_made_like_the_operand(layout):
    """There ``log_sigmoid`` and batch norms write into ``empty_like(x)``; the CPU's kernels go by its memory format."""
    aten, gpu = torch.ops.aten, torch.device("cuda", 0)
    for x in (LAYOUTS[layout](), LAYOUTS[layout]()[:1, :, :, :1], LAYOUTS[layout]()[0, :, :, 0]):
        spec, channel = spec_of(x).replace(device=gpu), spec_of(torch.rand(x.shape[1])).replace(device=gpu)
        wanted = tuple(torch.empty_like(x).stride())
        assert infer(aten.log_sigmoid_forward.default, (spec,), {})[0].strides == wanted
        args = (spec, None, None, channel, channel, False, 0.1, 1e-5)
        assert infer(aten.native_batch_norm.default, args, {})[0].strides == wanted


@pytest.mark.parametrize("layout", LAYOUTS)
def test_scattered_by_a_mask(layout):
    """Into a contiguous copy, whatever is copied."""
    x = LAYOUTS[layout]()
    for mask in (x > 0, (x > 0)[:1], x[..., :1] > 0):
        want = torch.masked_scatter(x, mask, x)
        with AbstractMode():
            difference(torch.masked_scatter(abstract(x), abstract(mask), abstract(x)), want)


GROUPED = {
    "rows": ((10, 16), (2, 16, 20), [3, 10]),
    "rows that fill their places": ((10, 16), (2, 16, 24), [3, 10]),
    "columns": ((2, 8, 16), (16, 20), [8, 20]),
    "sums": ((8, 16), (16, 24), [8, 16]),
    "matrices": ((2, 10, 16), (2, 16, 20), None),
}


@pytest.mark.parametrize("case", GROUPED)
def test_products_of_groups(case):
    """Rows of the result begin at multiples of 16 bytes."""
    left, right, ends = GROUPED[case]
    a = torch.randn(left).bfloat16()
    b = torch.randn(right).bfloat16().mT.contiguous().mT
    offs = None if ends is None else torch.tensor(ends, dtype=torch.int32)
    want = torch._grouped_mm(a, b, offs=offs)
    with AbstractMode():
        difference(torch._grouped_mm(abstract(a), abstract(b), offs=None if offs is None else abstract(offs)), want)


def test_products_of_groups_that_do_not_fit():
    """The errors are eager's."""
    a, b, two = torch.randn(10, 16).bfloat16(), torch.randn(2, 16, 24).bfloat16(), torch.tensor([3, 10]).int()
    three = torch.cat([two, two[1:]])
    for operands in ((a, b), (a[:, :8], b, two), (a, b, three), (b[:1].mT, b), (b.mT, b, two), (b.mT, b[0], three)):
        with pytest.raises(RuntimeError) as eager:
            torch._grouped_mm(*operands)
        with AbstractMode(), pytest.raises(RuntimeError) as ours:
            torch._grouped_mm(*map(abstract, operands))
        assert str(eager.value) == str(ours.value)


#: Operators, and what they take beside the tensor; eager makes the numbers of most tensors without dimensions.
WITH_NUMBERS = {
    "eq.Scalar": (2,), "add.Tensor": (2,), "mul.Tensor": (2.0,), "rsub.Scalar": (2,), "div.Tensor": (2.0,),
    "floor_divide.default": (2,), "remainder.Scalar": (2,), "fmod.Scalar": (2,), "pow.Tensor_Scalar": (3,),
    "clamp_min.default": (2,), "xlogy.Scalar_Other": (2.0,), "copysign.Scalar": (2.0,), "neg.default": (), "lt.Scalar": (1,),
}  # fmt: skip


@pytest.mark.parametrize("name", WITH_NUMBERS)
def test_strides_of_single_elements_beside_numbers(name):
    """They decide whether a concatenation of such results has channels last."""
    base, _, overload = name.partition(".")
    func = getattr(getattr(torch.ops.aten, base), overload)
    for shape in ((5, 1, 4, 1), (2, 3, 1, 1), (4, 1), (1,), (3, 1, 2), (1, 2, 3, 4, 1)):
        places = list(itertools.permutations(range(len(shape))))
        laid_out = [torch.ones([shape[d] for d in p]).permute([p.index(d) for d in range(len(p))]) for p in places]
        for x in (*laid_out, torch.ones([2 * n for n in shape])[tuple(slice(None, None, 2) for _ in shape)]):
            args = WITH_NUMBERS[name]
            assert infer(func, (spec_of(x), *args), {}).strides == func(x, *args).stride(), x.stride()
            if base == "eq":
                where = torch.ops.aten.where.ScalarOther
                assert infer(where, (spec_of(x > 0), spec_of(x), 0.0), {}).strides == where(x > 0, x, 0.0).stride()


@pytest.mark.parametrize("reduction", [0, 1, 2])
@pytest.mark.parametrize("name", ["huber_loss", "soft_margin_loss", "mse_loss", "smooth_l1_loss"])
def test_losses_of_two_types(name: str, reduction: int) -> None:
    """Some are of their input's type and raise where that does not hold the numbers, others of the common type."""
    op = getattr(torch.ops.aten, name).default
    types = (torch.float32, torch.float64, torch.bfloat16, torch.int64)
    for first, second in itertools.product(types, types):
        x, y = torch.ones(3, 2).to(first), torch.ones(3, 2).to(second)
        try:
            want = op(x, y, reduction)
        except (RuntimeError, NotImplementedError):
            if name == "huber_loss" and first is torch.int64 and second is not first:
                with pytest.raises(RuntimeError, match="can't be cast"):
                    infer(op, (spec_of(x), spec_of(y), reduction), {})
            continue
        assert infer(op, (spec_of(x), spec_of(y), reduction), {}) == spec_of(want)


def odd_strides() -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Dense layouts of few sizes of which some are one, with any strides for these."""
    for sizes in itertools.product((1, 2, 3), repeat=3):
        for order in itertools.permutations(range(3)):
            strides, step = [0, 0, 0], 1
            for d in order:
                strides[d] = step
                step *= sizes[d]
            for odd in (1, 3, step):
                yield sizes, tuple(odd if n == 1 else s for n, s in zip(sizes, strides, strict=True))


@pytest.mark.parametrize("op", [torch.eq, torch.add, torch.lt, torch.atan2, torch.mul], ids=lambda op: op.__name__)
def test_dimensions_of_one_have_a_say_in_the_result_of_two_types(op) -> None:
    layouts = sorted(set(odd_strides()))
    for k, (sizes, strides) in enumerate(layouts):
        x = torch.empty_strided(sizes, strides, dtype=torch.int32).zero_()
        for other in ((2, 1), (1, 2, 1), (3,), layouts[k * 7 % len(layouts)][0]):
            y = torch.zeros(other)
            try:
                expected = op(x, y)
            except RuntimeError:
                continue
            spec = infer(getattr(torch.ops.aten, op.__name__).default if op is torch.atan2 else getattr(
                torch.ops.aten, op.__name__).Tensor, (spec_of(abstract(x)), spec_of(abstract(y))), {})  # fmt: skip
            assert spec.strides == expected.stride(), (sizes, strides, other)
