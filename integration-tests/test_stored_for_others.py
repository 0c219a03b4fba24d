"""A program on disk serves no call that it was not made for: for each pair of unlike inputs, the one that a program is
stored for and the one that comes next. Nothing may be said of a tensor by the tensor of the later call itself."""

from __future__ import annotations

import shutil

import pytest
import torch

import compile_api

#: Tensors of two dimensions, of which many could take each other's place but for one fact.
INPUTS = {
    "dense": lambda: torch.randn(6, 4),
    "dense, of other sizes": lambda: torch.randn(9, 5),
    "transposed": lambda: torch.randn(4, 6).t(),
    "transposed, square": lambda: torch.randn(5, 5).t(),
    "square": lambda: torch.randn(5, 5),
    "with gaps": lambda: torch.randn(5, 8)[:, ::2],
    "every second row": lambda: torch.randn(12, 4)[::2],
    "part of wider rows": lambda: torch.randn(6, 7)[:, :4],
    "a row for all": lambda: torch.randn(1, 4).expand(6, 4),
    "a column for all": lambda: torch.randn(6, 1).expand(6, 4),
    "one number for all": lambda: torch.randn(()).expand(6, 4),
    "one row": lambda: torch.randn(1, 4),
    "one column": lambda: torch.randn(6, 1),
    "no rows": lambda: torch.randn(0, 4),
    "further on": lambda: torch.randn(7, 4)[1:],
    "overlapping": lambda: torch.randn(9).as_strided((6, 4), (1, 1)),
    "float64": lambda: torch.randn(6, 4, dtype=torch.float64),
    "bfloat16": lambda: torch.randn(6, 4, dtype=torch.bfloat16),
    "integers": lambda: torch.arange(24).view(6, 4),
    "complex": lambda: torch.randn(6, 4, dtype=torch.complex64),
    "conjugated": lambda: torch.randn(6, 4, dtype=torch.complex64).conj(),
    "negated": lambda: torch.randn(6, 4, dtype=torch.complex64).conj().imag,
    "of a gradient": lambda: torch.randn(6, 4).requires_grad_(),
    "transposed, of a gradient": lambda: torch.randn(4, 6).t().requires_grad_(),
    "a parameter": lambda: torch.nn.Parameter(torch.randn(6, 4)),
    "a part of a parameter": lambda: torch.nn.Parameter(torch.randn(7, 4))[1:],
}

#: Those that programs are stored for.
FIRST = (
    "dense", "transposed", "with gaps", "every second row", "a row for all", "one number for all", "one row", "no rows",
    "further on", "overlapping", "of a gradient", "a part of a parameter",
)  # fmt: skip


def written(x):
    """The copy lies as the input does, and so does what is written through the view."""
    copy = (x + 1).clone()
    copy[:, :2].mul_(3)
    return copy, copy.sum(0), x.reshape(-1)[:3] + 0


def told(made):
    return [(t.shape, t.dtype, t.stride(), t.requires_grad, t.is_conj()) for t in made]


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("first", FIRST)
def test_each_input_gets_its_own_program(first: str, dynamic: bool | None, tmp_path) -> None:
    """The programs of the first input, in another size too, are all there is on disk when each other one is called."""
    torch.manual_seed(0)
    options = {"program_cache": True, "cache_dir": str(tmp_path)}
    compiled = compile_api.compile(written, dynamic=dynamic, options=options)
    given = INPUTS[first]()
    for each in (given, given[:, : max(given.shape[1] - 1, 1)]):
        compiled(each)
    assert any(p.status == "stored" for p in compiled.report().programs)
    programs = tmp_path / "programs"
    shutil.copytree(programs, tmp_path / "kept")
    for name, make in INPUTS.items():
        shutil.rmtree(programs)
        shutil.copytree(tmp_path / "kept", programs)
        compile_api.reset()
        again = compile_api.compile(written, dynamic=dynamic, options=options)
        x = make()
        found, expected = again(x), written(x)
        torch.testing.assert_close(found, expected, equal_nan=True)
        assert told(found) == told(expected), name
        if name == first:
            assert any(p.status == "loaded" for p in again.report().programs), again.report().programs
