"""Inputs whose strides change from call to call without following from their sizes: parts of longer buffers, captured
once or twice more and no more, with eager's results, gradients and writes."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch.nn import functional as F

import compile_api

LENGTHS = (9, 10, 12, 17, 9, 33, 11, 8)

#: What a call is given, of a length: never a whole buffer.
LAYOUTS = {
    "all but the last column": lambda n: torch.randn(4, n)[:, :-1],
    "all but the first column": lambda n: torch.randn(4, n)[:, 1:],
    "columns of a fixed number": lambda n: torch.randn(4, n)[:, :5],
    "one column": lambda n: torch.randn(4, n)[:, 3:4],
    "every other row": lambda n: torch.randn(8, n)[::2],
    "every other column": lambda n: torch.randn(4, 2 * n)[:, ::2],
    "one of three projections": lambda n: torch.randn(4, 3 * n).chunk(3, 1)[1],
    "transposed": lambda n: torch.randn(n, 7)[:, :4].T,
    "transposed part": lambda n: torch.randn(n + 3, n)[:4].T,
    "a row of a batch of one": lambda n: torch.randn(1, n, 6)[:, -1:],
    "rows of a batch": lambda n: torch.randn(3, n, 6)[:, -1:],
    "last of a batch": lambda n: torch.randn(3, n, 6)[:, -1],
    "a filled part": lambda n: torch.randn(2, 3, n + 20, 4)[:, :, : n - 2],
    "a part of all dimensions": lambda n: torch.randn(n, n + 1, n + 2)[1:-1, 2:, :5],
    "heads": lambda n: torch.randn(2, n, 24).view(2, n, 3, 8).transpose(1, 2)[:, :, 1:],
    "heads of one of three": lambda n: torch.randn(2, n, 3, 2, 4)[:, :, 1].transpose(1, 2),
    "expanded": lambda n: torch.randn(4, n)[:, :-1].unsqueeze(1).expand(4, 3, n - 1),
    "images": lambda n: torch.randn(2, 3, 2 * n, n)[..., 1:-1, 2:],
    "images, channels last": lambda n: torch.randn(2, 3, n, n).to(memory_format=torch.channels_last)[:, :, 1:, 2:],
}  # fmt: skip

PROGRAMS = {
    "pointwise": lambda x: x.sin() * 2 + x.abs(),
    "reductions": lambda x: (x.sum(0), x.amax(-1), x.mean(), x.softmax(-1)),
    "products": lambda x: (x.transpose(-1, -2) @ x).relu(),
    "with another layout": lambda x: x + x.transpose(-1, -2).contiguous().transpose(-1, -2),
    "views": lambda x: (x[..., 1:] * x[..., :-1], x.unsqueeze(0).flatten(0, 1), x.reshape(-1) + 1),
    "joined": lambda x: torch.cat([x, x.flip(-1), x * 3], -1),
    "its strides": lambda x: (x + x.stride(0), torch.empty_like(x).stride(), x.is_contiguous(), x.contiguous().stride()),
    "kept layout": lambda x: (x.clone(), (x + 1).stride(), x.to(torch.float64), torch.zeros_like(x)),
    "a view of it": lambda x: (x.transpose(0, -1), x[..., 1:], x.unsqueeze(-1)),
    "a normalisation": lambda x: F.layer_norm(x, x.shape[-1:]),
}  # fmt: skip


def alike(found, wanted):
    torch.testing.assert_close(found, wanted, equal_nan=True)
    for a, b in zip(*map(torch.utils._pytree.tree_leaves, (found, wanted)), strict=True):
        if isinstance(a, torch.Tensor):
            assert a.stride() == b.stride() and a.storage_offset() == b.storage_offset() and a._is_view() == b._is_view()


def settled(compiled, program):
    """It was captured for the changing sizes and strides, twice where these begin to change apart; nothing was left to eager."""
    report = compiled.report()
    assert report.verdict == "compiled", str(report)
    assert len(report.recompiles) <= 2, f"{program}: {[each.reason for each in report.recompiles]}"


@pytest.mark.parametrize("dynamic", [None, True], ids=["changing", "dynamic"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_part_of_a_longer_buffer(program, layout, dynamic):
    torch.manual_seed(0)
    fn = PROGRAMS[program]
    compiled = compile_api.compile(fn, dynamic=dynamic)
    for length in LENGTHS:
        x = LAYOUTS[layout](length)
        alike(compiled(x), fn(x))
    settled(compiled, program)


@pytest.mark.parametrize("layout", [layout for layout in LAYOUTS if layout != "expanded"])
def test_written_in_place(layout):
    def fn(x, y):
        x.mul_(2)
        x[..., 1:] += 1
        y.copy_(x.sin())
        return x.sum()

    torch.manual_seed(0)
    compiled = compile_api.compile(fn)
    for length in LENGTHS:
        wholes = [LAYOUTS[layout](length) for _ in range(2)]
        bases = [whole if whole._base is None else whole._base for whole in wholes]
        twins = copy.deepcopy(bases)
        others = [
            torch.as_strided(twin, x.shape, x.stride(), x.storage_offset())
            for twin, x in zip(twins, wholes, strict=True)
        ]
        torch.testing.assert_close(compiled(*wholes), fn(*others))
        torch.testing.assert_close(bases, twins)
    settled(compiled, "in place")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("program", ["pointwise", "reductions", "products", "views", "joined", "a normalisation"])
def test_gradients(program, layout):
    fn = PROGRAMS[program]
    torch.manual_seed(0)

    def run(fn, x):
        x = x.detach().requires_grad_()
        out = fn(x)
        sum(each.pow(2).sum() for each in (out if isinstance(out, tuple) else (out,))).backward()
        return out, x.grad

    compiled = compile_api.compile(fn)
    for length in LENGTHS:
        x = LAYOUTS[layout](length)
        found, wanted = run(compiled, x), run(fn, x)
        torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)
        assert found[1].stride() == wanted[1].stride()
    settled(compiled, program)


def test_overlapping_memory_is_none_of_them():
    """Windows overlap in some calls; what is written into an expanded tensor is refused as eager refuses it."""

    def windows(step):
        return torch.arange(40.0).as_strided((4, 4), (step, 1))

    compiled = compile_api.compile(lambda x: x.sin() + 1)
    for step in (1, 2, 3, 4, 5, 2, 6):
        torch.testing.assert_close(compiled(windows(step)), windows(step).sin() + 1)

    def written(x):
        return x.mul_(2).sum()

    compiled = compile_api.compile(written)
    for step in (4, 5, 6, 7):
        torch.testing.assert_close(compiled(windows(step)), written(windows(step)))
    for run in (written, compiled):
        with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
            run(windows(0))


def test_several_parts_of_one_buffer():
    """Query, key and value of one projection, of a length that changes, through attention."""

    def fn(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    compiled = compile_api.compile(fn)
    torch.manual_seed(0)
    for length in LENGTHS:
        q, k, v = torch.randn(2, length + 4, 3, 2, 8)[:, :length].permute(2, 0, 3, 1, 4)
        torch.testing.assert_close(compiled(q, k, v), fn(q, k, v), atol=1e-5, rtol=1e-5)
    settled(compiled, "attention")


def test_two_layouts_in_turn_keep_their_strides():
    """A stride that never changes stays a number, whatever other layouts come between."""
    compiled = compile_api.compile(lambda x: x * 2)
    for _ in range(3):
        for x in (torch.randn(4, 8), torch.randn(4, 17)[:, :8], torch.randn(8, 4).T):
            torch.testing.assert_close(compiled(x), x * 2)
    assert len(compiled.report().recompiles) == 2


def test_of_alternating_layouts_only_what_changes_is_symbolic():
    """The fourth layout differs from the second in a stride that no size tells: one capture serves all such."""
    compiled = compile_api.compile(lambda x: x * 2)
    for length in (17, 17, 18, 19, 20, 23):
        for x in (torch.randn(4, 8), torch.randn(4, length)[:, :8]):
            torch.testing.assert_close(compiled(x), x * 2)
    assert len(compiled.report().recompiles) == 2


def test_no_stride_is_symbolic_where_sizes_are_not():
    compiled = compile_api.compile(lambda x: x * 2, dynamic=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for length in (9, 10, 11):
            x = torch.randn(4, length)[:, :5]
            torch.testing.assert_close(compiled(x), x * 2)
    assert len(compiled.report().recompiles) == 2
