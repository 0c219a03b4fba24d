"""Before a compilation: libraries whose import was broken off would fail for the rest of the process."""

from __future__ import annotations

import importlib.machinery
import sys

__all__ = ["forget_broken_imports"]

#: Packages that mend themselves: their tables take a definition again (:mod:`prims.registry`).
_OWN = frozenset(("prims", "dynamo_capture", "aot_autograd", "inductor_gen", "compile_api"))


def forget_broken_imports() -> None:
    """Forget the rest of each package whose own import was broken off, so that the next import of it begins anew.

    Python forgets the package and keeps its finished submodules. These are no attributes of the package that is made
    at the next import, which then fails, and so does whatever needs it. (``Tensor.backward`` imports sympy at its first
    call: without this, Ctrl-C there would leave a process without gradients.) Packages with modules in C stay: such a
    module cannot be loaded twice.
    """
    broken: dict[str, list[str]] = {}
    for name in list(sys.modules):
        top, _, rest = name.partition(".")
        if rest and top not in sys.modules and top not in _OWN:
            broken.setdefault(top, []).append(name)
    for names in broken.values():
        if not any(map(_in_c, names)):
            for name in names:
                sys.modules.pop(name, None)


def _in_c(name: str) -> bool:
    spec = getattr(sys.modules.get(name), "__spec__", None)
    return isinstance(getattr(spec, "loader", None), importlib.machinery.ExtensionFileLoader)
