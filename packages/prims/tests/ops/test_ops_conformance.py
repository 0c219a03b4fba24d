"""The kit passes a right backend, catches wrong ones, and the frozen texts keep their meaning."""

import pytest
import torch

from prims.conformance import check_backend, check_compiler, instance, judge, symbolic_instance
from prims.conformance.frozen import example, read_snapshot, snapshot_names
from prims.errors import Unsupported, UserError
from prims.ir import print_text
from prims.ops import TABLE
from prims.reference import run_numpy, run_torch


def reference(op, args):
    return op.torch_ref(*args)


def test_the_reference_conforms():
    report = check_backend(reference)
    assert report.ok and report.passed > 6000 and not report.unsupported, str(report)


WRONG = {
    "an ulp-level slip is tolerated": (lambda op, a: reference(op, a) * (1 + 2e-7), "exp", True),
    "a low-precision result": (lambda op, a: reference(op, a).half().float(), "exp", False),
    "no NaN propagation": (lambda op, a: torch.fmax(*map(torch.as_tensor, a)), "maximum", False),
    "C's remainder": (lambda op, a: torch.fmod(*map(torch.as_tensor, a)), "remainder", False),
    "wrong shape": (lambda op, a: reference(op, a)[None], "add", False),
    "wrong dtype": (lambda op, a: reference(op, a).double(), "add", False),
    "a lost sign of zero": (lambda op, a: 0.0 - a[0], "neg", False),
    "the last maximum": (lambda op, a: (a[0].shape[a[1]] - 1 - torch.argmax(a[0].flip(a[1]), a[1])), "argmax", False),
    "rounding away from zero": (lambda op, a: torch.sign(a[0]) * torch.floor(a[0].abs() + 0.5), "round", False),
    "low-precision accumulation": (
        lambda op, a: a[0].half().sum(a[1]).float() if a[1] and a[0].numel() else reference(op, a), "sum", False),
    "a crash": (lambda op, a: 1 // 0, "add", False),
    "not a tensor": (lambda op, a: 1.0, "add", False),
    "another random layout": (
        lambda op, a: reference(op, a).reshape(-1).flip(0).reshape(a[0]), "random_uniform", False),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_departures_are_found(name):
    backend, op, conforms = WRONG[name]
    report = check_backend(backend, ops=[op], dtypes=[torch.float32])
    assert report.ok is conforms, str(report)
    if not conforms:
        failure = report.failures[0]
        assert failure.op == op and failure.dtype == torch.float32
        assert f"{op} float32 sample {failure.sample}" in str(report)


def test_what_a_backend_lacks_is_reported_not_failed():
    def backend(op, args):
        if op.kind != "binary":
            raise Unsupported(f"no {op.name} here")
        return reference(op, args)

    report = check_backend(backend, ops=["add", "exp"], dtypes=[torch.float32])
    assert report.ok and report.unsupported == {"exp": [torch.float32]}
    assert "not implemented: exp (float32)" in str(report)
    assert not check_backend(backend, ops=["exp"]).ok


def test_misuse():
    with pytest.raises(UserError, match="callable"):
        check_backend(3)
    with pytest.raises(UserError, match="gelu"):
        check_backend(reference, ops=["gelu"])


def run_reference(env):
    env.verify()
    return lambda *inputs: run_torch(env, inputs)


def test_a_compiler_is_checked_with_symbolic_sizes():
    f32 = [torch.float32]
    report = check_compiler(run_reference, dtypes=f32)
    assert report.ok and not report.unsupported, str(report)
    assert report.passed > check_backend(reference, dtypes=f32).passed * 2

    def static_only(env):
        shape = env.outputs[0].spec.shape
        fixed = tuple(s if isinstance(s, int) else s.hint for s in shape)

        def run(x):
            return [torch.exp(x).reshape(fixed)]

        return run

    found = check_compiler(static_only, ops=["exp"], dtypes=f32)
    assert found.failures and all("symbolic" in f.note for f in found.failures)


def test_which_rows_have_symbolic_instances():
    without = set()
    for op in TABLE.values():
        bound = [op.bind(*s.args) for s in op.samples(op.dtypes[0])]
        if not any(symbolic_instance(op, args) for args in bound):
            without.add(op.name)
    # No tensor operand whose size could vary.
    assert without == {"full", "iota", "random_bits", "random_uniform", "random_normal"}


def test_judge_explains():
    x = torch.tensor([1.0, 2.0])
    message = judge(TABLE["exp"], (x,), torch.exp(x) * 1.01)
    assert "2 of 2 elements" in message and "first at (0,)" in message


def test_every_primitive_has_a_frozen_text():
    assert set(snapshot_names((1, 0))) == set(TABLE)


@pytest.mark.parametrize("op", list(TABLE.values()), ids=lambda op: op.name)
def test_frozen_text_keeps_its_meaning(op):
    """Today's printer gives the frozen text, today's parser reads it, and it computes what the row does."""
    text, frozen = read_snapshot(op.name, (1, 0))
    args = example(op)
    env, tensors = instance(op, args)
    assert print_text(env) == text
    assert print_text(frozen) == text
    frozen.verify()
    want = op.torch_ref(*args)
    for run in (run_torch, run_numpy):
        assert judge(op, args, run(frozen, tensors)[0]) is None
    assert judge(op, args, frozen.module()(*tensors)[0]) is None
    assert frozen.outputs[0].spec.shape == tuple(want.shape)
