"""Before a compilation: libraries whose import was broken off would fail for the rest of the process."""

from __future__ import annotations

import importlib.machinery
import sys

__all__ = ["forget_broken_imports"]

#: Packages that mend themselves: their tables take a definition again (:mod:`prims.registry`).
_OWN = frozenset(("prims", "dynamo_capture", "aot_autograd", "inductor_gen", "compile_api"))
#: The names of all modules that were ever there at a compilation, and the packages that any of them is in: thousands of
#: names are not taken apart again for each compilation.
_SEEN: set[str] = set()
_PACKAGES: set[str] = set()


def forget_broken_imports() -> None:
    """Forget the rest of each package whose own import was broken off, so that the next import of it begins anew.

    Python forgets the package and keeps its finished submodules. These are no attributes of the package that is made
    at the next import, which then fails, and so does whatever needs it. (``Tensor.backward`` imports sympy at its first
    call: without this, Ctrl-C there would leave a process without gradients.) Packages with modules in C stay: such a
    module cannot be loaded twice.
    """
    new = set(sys.modules).difference(_SEEN)
    _SEEN.update(new)
    _PACKAGES.update(name.partition(".")[0] for name in new if "." in name)
    gone = _PACKAGES.difference(sys.modules, _OWN)
    if not gone:
        return
    broken: dict[str, list[str]] = {}
    for name in list(sys.modules):
        top, _, rest = name.partition(".")
        if rest and top in gone:
            broken.setdefault(top, []).append(name)
    for names in broken.values():
        if not any(map(_in_c, names)):
            for name in names:
                sys.modules.pop(name, None)


def _in_c(name: str) -> bool:
    spec = getattr(sys.modules.get(name), "__spec__", None)
    return isinstance(getattr(spec, "loader", None), importlib.machinery.ExtensionFileLoader)
