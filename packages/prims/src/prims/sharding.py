"""Sharded tensors (``DTensor``) in a torch-dialect graph, which takes and gives plain tensors only.

A ``DTensor`` is a local tensor and a spec: the mesh, how the tensor is placed on it, the global sizes. Where a graph
works with some it makes them of its plain inputs and ends with their local tensors; in between its nodes are the
program's calls on them::

    w = Joined(spec)(local_w)            # the weight's shard, a plain input of the graph
    x = FromLocal(mesh, placements)(h)   # the program's own DTensor.from_local
    y = F.linear(x, w)
    z = Redistributed(mesh, placements)(y)
    return ToLocal()(z)

Such a graph runs as it is. A stage that runs it on abstract tensors sees what ``DTensor`` itself makes of the calls,
in the derivative too: operators on local tensors and functional collectives, for ``DTensor`` decides by specs alone.
(In PyTorch's dispatcher a ``DTensor`` is asked below autograd and above every other tensor class, so the classes of
its local tensors do not matter.) What that rests on, the specs, is for whoever makes the graph to guard.

The histories of the sharded tensors outside and inside of a graph are tied by two pairs of functions. ``Shard`` gives
the local tensor of one outside, whose gradient is a ``DTensor`` again; how it is placed is what the derivative of
``Joined``, inside, has met, and kept in the pair's :class:`Pair`. It is placed as eager's gradient is, unless that has
a local tensor of another size, which autograd would not take: then as the tensor itself. ``ToLocal`` inside and
``Rejoined`` outside are those of PyTorch, with the gradient placed as the value is (of a partial sum: replicated).
"""

from __future__ import annotations

import hashlib
import sys
from typing import Any

import torch

from prims.errors import InternalError

__all__ = [
    "FromLocal", "Joined", "Pair", "Redistributed", "Rejoined", "Shard", "ToLocal", "awaited", "decides_itself",
    "is_collective_result", "is_fake_call", "is_placement", "is_sharded", "sharded_class", "text_of_spec",
]  # fmt: skip


def sharded_class() -> Any:
    """``DTensor``, if the program has imported it."""
    module = sys.modules.get("torch.distributed.tensor._api")
    return None if module is None else getattr(module, "DTensor", None)


def is_sharded(x: Any) -> bool:
    """Whether a tensor is a ``DTensor``."""
    cls = sharded_class()
    return cls is not None and isinstance(x, cls)


def is_placement(cls: type) -> bool:
    """Whether a class is one of PyTorch's placements (``Shard``, ``Replicate``, ``Partial``), which never change."""
    return cls.__module__ == "torch.distributed.tensor.placement_types"


def is_collective_result(x: Any) -> bool:
    """Whether a tensor is an ``AsyncCollectiveTensor``: what a collective will have written, once it is waited for."""
    module = sys.modules.get("torch.distributed._functional_collectives")
    return module is not None and isinstance(x, module.AsyncCollectiveTensor)


#: Classes of PyTorch's that make other calls of an operator on their instances.
_DECIDE = frozenset(("DTensor", "AsyncCollectiveTensor", "FakeTensor"))


def decides_itself(types: Any) -> bool:
    """Whether an operator is called on tensors of a class that is to be asked first, by the classes that have a say."""
    return any(cls.__name__ in _DECIDE and cls.__module__.startswith("torch.") for cls in types)


def is_fake_call(types: Any) -> bool:
    """Whether an operator is called on fake tensors, or makes one, under PyTorch's mode for them.

    By such calls ``DTensor`` finds the sizes of a result. That mode comes after all others, which pass the call on.
    """
    faking = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None  # type: ignore[attr-defined]
    return faking and not any(cls.__module__ == "prims.spec.tensor" for cls in types)


def _waited(local: torch.Tensor) -> torch.Tensor:
    return local.wait() if is_collective_result(local) else local  # type: ignore[attr-defined,no-any-return]


def _settled(x: Any) -> Any:
    """A ``DTensor`` whose collective has been waited for."""
    local = x._local_tensor
    if is_collective_result(local):
        x._local_tensor = local.wait()
    return x


def _make(local: torch.Tensor, spec: Any, requires_grad: bool) -> Any:
    return sharded_class()(local, spec, requires_grad=requires_grad)


def text_of_spec(spec: Any) -> str:
    """A spec in words: sizes, placements, and the mesh."""
    meta = spec.tensor_meta
    names = ", ".join(map(str, spec.placements))
    return f"{str(meta.dtype).removeprefix('torch.')}{list(meta.shape)} as {names} on {_text_of_mesh(spec.mesh)}"


def _text_of_mesh(mesh: Any) -> str:
    groups = ", ".join(str(mesh.get_group(dim).group_name) for dim in range(mesh.ndim))
    return f"{mesh.device_type} {tuple(mesh.shape)} of the groups {groups}"


class Pair:
    """What the two ends of one sharded input know: its spec, and that of its gradient once a derivative was taken."""

    __slots__ = ("gradient", "spec")

    def __init__(self, spec: Any) -> None:
        self.spec = spec
        self.gradient: Any = None


class _Target:
    """A call of a graph that holds constants, named after them: equal names are equal calls."""

    def __init__(self, *constants: Any) -> None:
        digest = hashlib.sha256("\n".join(map(repr, constants)).encode()).hexdigest()[:8]
        kind = type(self).__name__.lower()
        self.__name__ = self.__qualname__ = f"{kind}_{digest}" if constants else kind
        self.__module__ = __name__

    def __repr__(self) -> str:
        return self.__name__


# --- inputs -----------------------------------------------------------------------------------------------------------


class _TakeApart(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, pair: Pair) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        ctx.pair = pair
        local = _waited(x._local_tensor)
        return local.view_as(local)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:  # type: ignore[override]
        if gradient is None:
            return None, None
        spec = ctx.pair.gradient
        if spec is None:
            raise InternalError("the gradient of a sharded tensor came before the derivative that places it")
        return _make(gradient, spec, gradient.requires_grad), None


class Shard(_Target):
    """Outside of the graph: the local tensor of a ``DTensor``, with its history."""

    def __init__(self, pair: Pair) -> None:
        super().__init__()
        self.pair = pair

    def __call__(self, x: Any) -> torch.Tensor:
        if torch.is_inference_mode_enabled() or not x.requires_grad:
            return _waited(x._local_tensor)
        with torch.enable_grad():  # a graph is told of gradients by its inputs, wherever it runs
            return _TakeApart.apply(x, self.pair)  # type: ignore[no-any-return]


class _PutTogether(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, local: torch.Tensor, pair: Pair) -> Any:
        ctx.set_materialize_grads(False)
        ctx.pair, ctx.shape = pair, local.shape
        return _make(local.view_as(local), pair.spec, True)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:  # type: ignore[override]
        if gradient is None:
            return None, None
        spec = ctx.pair.spec
        gradient = _settled(gradient)
        if gradient._local_tensor.shape != ctx.shape:  # as a sum of parts is, where the tensor itself is in shards
            gradient = _settled(gradient.redistribute(spec.mesh, spec.placements))
        ctx.pair.gradient = gradient._spec
        return gradient._local_tensor, None


class Joined(_Target):
    """In the graph: the ``DTensor`` of which :class:`Shard` gave the local tensor."""

    def __init__(self, pair: Pair) -> None:
        super().__init__(text_of_spec(pair.spec))
        self.pair = pair

    def __call__(self, local: torch.Tensor) -> Any:
        if not local.requires_grad:
            return _make(local, self.pair.spec, False)
        with torch.enable_grad():
            return _PutTogether.apply(local, self.pair)


# --- what a collective will have written ------------------------------------------------------------------------------


class _Wait(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> torch.Tensor:
        found = x.wait()
        return found.view_as(found)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:  # type: ignore[override]
        return gradient


def awaited(x: Any) -> torch.Tensor:
    """Outside of a graph: an ``AsyncCollectiveTensor`` as the plain tensor that it becomes, with its history."""
    if torch.is_inference_mode_enabled() or not x.requires_grad:
        return x.wait()  # type: ignore[no-any-return]
    with torch.enable_grad():
        return _Wait.apply(x)  # type: ignore[no-any-return]


# --- results ----------------------------------------------------------------------------------------------------------


class ToLocal(_Target):
    """``x.to_local()``, waited for."""

    def __init__(self, grad_placements: Any = None) -> None:
        super().__init__(grad_placements)
        self.grad_placements = grad_placements

    def __call__(self, x: Any) -> torch.Tensor:
        found = _settled(x).to_local(grad_placements=self.grad_placements)
        return found.view_as(found) if found is x._local_tensor else found  # type: ignore[no-any-return]


class Rejoined(_Target):
    """Outside of the graph: the ``DTensor`` of which the graph gave the local tensor by :class:`ToLocal`."""

    def __init__(self, spec: Any) -> None:
        super().__init__(text_of_spec(spec))
        self.spec = spec

    def __call__(self, local: torch.Tensor) -> Any:
        spec = self.spec
        with torch.set_grad_enabled(local.requires_grad):
            return sharded_class().from_local(
                local, spec.mesh, spec.placements, run_check=False, shape=spec.shape, stride=spec.stride
            )


# --- the program's own calls ------------------------------------------------------------------------------------------


class FromLocal(_Target):
    """``DTensor.from_local`` without a check of the other processes."""

    def __init__(self, mesh: Any, placements: Any, shape: Any, stride: Any, grad_placements: Any) -> None:
        super().__init__(_text_of_mesh(mesh), placements, shape, stride, grad_placements)
        self.mesh, self.placements = mesh, placements
        self.kwargs = {"shape": shape, "stride": stride}
        if grad_placements is not None:  # which torch 2.11 does not know
            self.kwargs["grad_placements"] = grad_placements

    def __call__(self, local: torch.Tensor) -> Any:
        return sharded_class().from_local(local, self.mesh, self.placements, run_check=False, **self.kwargs)


class Redistributed(_Target):
    """``x.redistribute(...)``, waited for."""

    def __init__(self, mesh: Any, placements: Any, dtypes: dict[str, torch.dtype]) -> None:
        super().__init__(None if mesh is None else _text_of_mesh(mesh), placements, dtypes)
        self.mesh, self.placements, self.dtypes = mesh, placements, dtypes

    def __call__(self, x: Any) -> Any:
        return _settled(x.redistribute(self.mesh, self.placements, **self.dtypes))
