"""What runs at every call as an artefact (:mod:`prims.artefact`): its text, what it names, the compiled graph under it.

What emitted code names is stored by a closed list: helpers by their names, operators, types and numbers as values of
JSON, constants by their bytes. A name of another kind makes the program one that cannot be stored, which says so.
"""

from __future__ import annotations

import functools
import importlib
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from aot_autograd.autocast import no_autocast
from aot_autograd.runtime import emitted
from aot_autograd.runtime.emitted import SIZE_FUNCTIONS, RunEagerly, emitted_function
from prims.artefact import Artefact, NotPortable, child_of, restore
from prims.coding import decoded, encoded, tensor_decoded, tensor_encoded
from prims.errors import StoredGraphError
from prims.options import Options
from prims.report import Report
from prims.undo import writes_when_done

__all__ = [
    "KIND", "OUTSIDE_AUTOCAST", "StoredProgram", "check_version", "load", "load_outside_autocast", "names_from",
    "names_of", "outside_autocast", "storable", "text_of",
]  # fmt: skip

KIND, OUTSIDE_AUTOCAST = "aot_autograd.run", "aot_autograd.outside_autocast"
_VERSION = "1"
_HELPERS: dict[str, Any] = {
    **{name: getattr(emitted, name) for name in (
        "aligned", "as_made", "as_strided_from", "copy_all", "counter_of", "gate_tensor", "lead_nowhere",
        "loses_its_views", "new_seed", "refuses_writes", "shares_memory", "write_over", "written")},
    **SIZE_FUNCTIONS, "no_grad": torch.no_grad, "detach": torch.Tensor.detach, "conj": torch.conj,
    "neg_view": torch._neg_view, "ref": weakref.ref, "enable_grad": torch.enable_grad,
    "grad_enabled": torch.is_grad_enabled, "transforms": torch._C._are_functorch_transforms_active,
}  # fmt: skip


#: Helpers that only runtimes with gradients name, with their modules, which others need not import.
_OF_TRAINING = {
    "bucket_limits": "aot_autograd.runtime.handing", "hush": "aot_autograd.runtime.hush",
    "handed_to_inputs": "aot_autograd.runtime.nested", "less": "aot_autograd.runtime.nested",
    "keep_box": "aot_autograd.runtime.halves", "kept_box": "aot_autograd.runtime.halves",
    "standing_in": "aot_autograd.runtime.refusing",
}  # fmt: skip


def storable(run: Any, names: Mapping[str, Any]) -> Any:
    """Give an emitted function its method ``artefact()``; ``names`` are those that its text uses."""
    run.artefact = functools.partial(_artefact, run.__source__, dict(names))
    return run


def _artefact(text: str, names: Mapping[str, Any]) -> Artefact:
    files: dict[str, bytes] = {}
    children = {name: child_of(value) for name, value in names.items() if name == "compiled"}
    kept = names_of({name: value for name, value in names.items() if name not in children}, files)
    return Artefact(KIND, _VERSION, {"source": text, "names": kept}, files, children)


def names_of(names: Mapping[str, Any], files: dict[str, bytes], prefix: str = "") -> dict[str, Any]:
    """What an emitted function names, as JSON and ``files``.

    Args:
        prefix: begins the names of its constants' files.

    Raises:
        NotPortable: it names something that cannot be stored.
    """
    return {name: _encoded(prefix + name, value, files) for name, value in names.items()}


def names_from(
    told: Mapping[str, Any], files: Mapping[str, bytes], prefix: str, eager: Callable[..., Any] | None,
    options: Options, report: Report | None,
) -> dict[str, Any]:  # fmt: skip
    """The names of :func:`names_of`.

    Args:
        eager: the program that some calls are left to.

    Raises:
        StoredGraphError: it names what no emitted code names.
    """
    names: dict[str, Any] = {}
    for name, said in told.items():
        ((kind, content),) = said.items()
        if kind == "helper":
            names[name] = _helper(content)
        elif kind == "tensor":
            names[name] = tensor_decoded(content, files[prefix + name])
        elif kind == "eagerly" and eager is not None:
            written, reason = content
            names[name] = RunEagerly(eager, tuple(written), str(reason), options, report)
        elif kind == "value":
            names[name] = decoded(content)
        else:
            raise StoredGraphError("ART-C5", f"{name!r:.80} is of the unknown kind {kind!r:.80}")
    return names


def _helper(name: str) -> Any:
    """The helper of a name."""
    home = _OF_TRAINING.get(name)
    return _HELPERS[name] if home is None else getattr(importlib.import_module(home), name)


def _helper_name(value: Any) -> str | None:
    """The name of a helper; None of something else."""
    found = next((name for name, fn in _HELPERS.items() if fn is value), None)
    if found is None:
        for name, home in _OF_TRAINING.items():
            if home in sys.modules and getattr(sys.modules[home], name) is value:
                return name
    return found


def _encoded(name: str, value: Any, files: dict[str, bytes]) -> Any:
    helper = _helper_name(value)
    if helper is not None:
        return {"helper": helper}
    if isinstance(value, torch.Tensor):
        what, files[name] = tensor_encoded(value)
        return {"tensor": what}
    if isinstance(value, RunEagerly):
        if "eager" not in files:
            files["eager"] = text_of(value.eager)
        return {"eagerly": [list(value.written), value.reason]}
    return {"value": encoded(value)}


def text_of(eager: Callable[..., Any]) -> bytes:
    """A captured graph as text.

    Raises:
        NotPortable: it has constants, or no description.
    """
    if isinstance(eager, StoredProgram):
        return eager.text
    from prims.ir.serial import to_json

    env = eager.meta.get("envelope") if isinstance(eager, torch.fx.GraphModule) else None
    if env is None or env.constants:
        raise NotPortable("the program that some calls are left to has constants, or no description")
    return to_json(env, indent=None).encode()


class StoredProgram:
    """A captured graph that is read when it is first called."""

    def __init__(self, text: bytes) -> None:
        self.text = text
        self._forward: Callable[..., Any] | None = None

    def __call__(self, *args: Any) -> Any:
        if self._forward is None:
            from prims.ir.serial import from_json

            self._forward = from_json(self.text.decode()).module().forward
        return self._forward(*args)


def load(artefact: Artefact, options: Options, report: Report | None) -> Callable[..., Any]:
    """The function of an artefact of :func:`storable` (a loader).

    Raises:
        StoredGraphError: it is of another version, or names what no emitted code names.
    """
    check_version(artefact)
    eager = StoredProgram(artefact.files["eager"]) if "eager" in artefact.files else None
    names = names_from(artefact.text["names"], artefact.files, "", eager, options, report)
    if "compiled" in artefact.children:
        names["compiled"] = restore(artefact.children["compiled"], options=options, report=report)
    return storable(writes_when_done(emitted_function(artefact.text["source"], names)), names)  # type: ignore[no-any-return]


def outside_autocast(compiled: Callable[..., Sequence[Any]]) -> Callable[..., Sequence[Any]]:
    """The compiled graph, run without autocast: its casts are in it, and its operators would cast again."""

    def call(*inputs: Any) -> Sequence[Any]:
        with no_autocast():
            return compiled(*inputs)

    boxed = getattr(compiled, "boxed", None)
    if boxed is not None:

        def call_boxed(inputs: list[Any]) -> Sequence[Any]:
            with no_autocast():
                return boxed(inputs)

        call.boxed = call_boxed  # type: ignore[attr-defined]

    def artefact() -> Artefact:
        return Artefact(OUTSIDE_AUTOCAST, _VERSION, {}, {}, {"compiled": child_of(compiled)})

    call.artefact = artefact  # type: ignore[attr-defined]
    return call


def load_outside_autocast(
    artefact: Artefact, options: Options, report: Report | None
) -> Callable[..., Sequence[Any]]:
    """The function of an artefact of :func:`outside_autocast` (a loader).

    Raises:
        StoredGraphError: it is of another version.
    """
    check_version(artefact)
    return outside_autocast(restore(artefact.children["compiled"], options=options, report=report))


def check_version(artefact: Artefact) -> None:
    """Whether the version is that of this module.

    Raises:
        StoredGraphError: it is another.
    """
    if artefact.version != _VERSION:
        raise StoredGraphError("ART-C4", f"a {artefact.kind} of version {artefact.version!r}")
