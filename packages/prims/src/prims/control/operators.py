"""Control flow in the aten and prim dialects: operators whose bodies are envelopes.

An operator is made for each set of bodies: ``quintet::scan_5f1c...(Tensor a, Tensor b, SymInt c) -> (Tensor, Tensor)``,
named after a digest of the bodies' texts, so that equal ones share it, in this process and in a cache on disk. To every
stage it is one functional operator with a rule for its metadata; who looks into it asks :func:`control_of`. It runs in
eager mode by running its bodies.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import torch

from prims.control.form import Form, run
from prims.control.losses import loss_results
from prims.control.scored import attention_results
from prims.errors import InternalError
from prims.ir import Envelope
from prims.ir.bodies import keep_bodies
from prims.records import record
from prims.registry import define_operator
from prims.spec import TensorSpec
from prims.spec.expr import Expr, substitute, symbol, to_expr
from prims.spec.infer import RULES, op_name

__all__ = ["Control", "control_of", "control_operator"]


@record(eq=False)
class Control:
    """What an operator of control flow does.

    Attributes:
        bodies: their inputs are those of the form, tensors and sizes, and nothing else; they write none of them.
    """

    form: Form
    bodies: tuple[Envelope, ...]

    @property
    def inputs(self) -> list[str]:
        """The kinds of what the operator takes: ``"size"`` or another."""
        taken, made = self.form.own
        return ["input"] * taken + [desc.kind for desc in self.bodies[0].inputs[made:]]

    @property
    def results(self) -> int:
        """How many tensors the operator returns."""
        if self.form.kind == "linear_loss":
            return 1 + len(self.form.learns)
        return {"attention": 2, "attention_backward": 3}.get(self.form.kind, len(self.step.outputs))

    @property
    def step(self) -> Envelope:
        """A body that gives the results (of a loop, one step's)."""
        return self.bodies[1] if self.form.kind == "while_loop" else self.bodies[0]


_CONTROLS: dict[Any, Control] = {}


def control_of(target: Any) -> Control | None:
    """What an operator of control flow does; None for any other target."""
    return _CONTROLS.get(target)


def control_operator(form: Form, bodies: Sequence[Envelope]) -> Any:
    """The overload for a form and its bodies, made on first use. It returns a tensor, or several as a tuple.

    Raises:
        InternalError: a body writes to an input or gives one back, takes others than the first, or returns no tensors.
    """
    control = Control(form, tuple(bodies))
    first = [(desc.kind, desc.spec) for desc in bodies[0].inputs]
    for body in bodies:
        if body.mutations or body.aliases or {kind for kind, _ in first} - {"input", "size"}:
            raise InternalError(f"a body of {form.kind} writes or gives back what it is given, or takes more:\n{body}")
        if [(desc.kind, desc.spec) for desc in body.inputs] != first or body.dialect != bodies[0].dialect:
            raise InternalError(f"the bodies of {form.kind} take different inputs")
        if not body.outputs or not all(isinstance(desc.spec, TensorSpec) for desc in body.outputs):
            raise InternalError(f"a body of {form.kind} returns other than tensors:\n{body}")
    text = repr(form) + "".join(body.hash() for body in bodies)
    name = f"{form.kind}_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    known = getattr(getattr(torch.ops.quintet, name, None), "default", None)
    if known in _CONTROLS:
        return known
    taken = ", ".join(f"{'SymInt' if kind == 'size' else 'Tensor'} a{i}" for i, kind in enumerate(control.inputs))
    returned = ", ".join(["Tensor"] * control.results)
    define_operator(f"{name}({taken}) -> ({returned})", _implementation(control))
    overload = getattr(torch.ops.quintet, name).default
    RULES[op_name(overload)] = _rule(control)
    keep_bodies(overload, control.bodies)
    _CONTROLS[overload] = control  # last: an operator that is known is whole
    return overload


def _implementation(control: Control) -> Callable[..., Any]:
    @functools.cache
    def modules() -> list[Callable[..., Any]]:
        return [body.module().forward for body in control.bodies]

    def call(*args: Any) -> Any:
        results = []
        taken = {id(x) for x in args}
        for value in run(control.form, modules(), args):
            results.append(value.clone() if id(value) in taken else value)
            taken.add(id(value))
        return results[0] if len(results) == 1 else tuple(results)

    return call


def _rule(control: Control) -> Callable[..., Any]:
    form, step = control.form, control.step
    mapped = range(form.carried, form.carried + form.mapped)

    if form.kind in ("attention", "attention_backward"):
        return lambda *args: tuple(attention_results(form.kind, args))
    if form.kind == "linear_loss":
        return lambda *args: _one_or_all(loss_results(form.learns, step.outputs[0].spec, args))  # type: ignore[arg-type]

    def rule(*args: Any) -> Any:
        given = args[1:] if form.kind == "cond" else args
        sizes: dict[Expr, Any] = {}
        owner = None
        for entry in step.symbols:
            assert entry.binding is not None
            at, dim = entry.binding
            size = given[at] if dim is None else given[at].shape[dim + (at in mapped)]
            sizes[symbol(entry.name)] = to_expr(getattr(size, "expr", size))
            owner = getattr(size, "ctx", owner)
        results = [_with_sizes(desc.spec, sizes, owner) for desc in step.outputs]
        if form.kind == "scan":
            length = given[form.carried].shape[0]
            results[form.carried :] = [
                TensorSpec((length, *s.shape), s.dtype, s.device) for s in results[form.carried :]
            ]
        return _one_or_all(results)

    return rule


def _one_or_all(results: Sequence[TensorSpec]) -> Any:
    return results[0] if len(results) == 1 else tuple(results)


def _with_sizes(spec: Any, sizes: dict[Expr, Any], context: Any) -> TensorSpec:
    """The spec of a body's result for a call's sizes."""

    def size(value: Any) -> Any:
        if isinstance(value, int):
            return value
        found = substitute(value.expr, sizes)
        return found.value if found.is_const else context.make(found)

    return TensorSpec(map(size, spec.shape), spec.dtype, spec.device, map(size, spec.strides))
