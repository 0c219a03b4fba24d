"""The modes of ``compile()`` as sets of options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prims.errors import UserError
from prims.options import MODES, Options

__all__ = ["MODE_OPTIONS", "list_mode_options", "list_modes", "list_options", "make_options"]

#: What each mode changes. On the CPU there are no CUDA graphs, and the rest applies.
MODE_OPTIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "reduce-overhead": {"cudagraphs": True},
    "max-autotune": {"max_autotune": True, "cudagraphs": True},
    "max-autotune-no-cudagraphs": {"max_autotune": True},
}


def list_modes() -> list[str]:
    """The names of all modes."""
    return [*MODE_OPTIONS]


def list_options() -> list[str]:
    """The names of all options."""
    return [*Options.names()]


def list_mode_options(mode: str | None = None) -> dict[str, Any]:
    """The options that a mode sets, or of every mode by name."""
    return dict(MODE_OPTIONS) if mode is None else dict(MODE_OPTIONS[mode])


def make_options(
    *, fullgraph: bool, dynamic: bool | None, mode: str | None, options: Mapping[str, Any] | None
) -> Options:
    """The options of one ``compile()`` call: the environment's, then the mode's, then ``options``.

    Raises:
        UserError: an unknown mode or option, or a bad value.
    """
    if options is not None and not isinstance(options, Mapping):
        raise UserError(
            f"options is {options!r} (of type {type(options).__name__})",
            todo="Give a dict of option names and values, such as {'memory_budget': 0.5}.",
        )
    among = (options or {}).get("mode")
    if mode is not None and among is not None and mode != among:
        raise UserError(f"mode is {mode!r}, and {among!r} among the options", todo="Give it once.")
    # A mode that is given stands even where QUINTET_MODE says otherwise.
    base = Options.from_environment()
    name = next((one for one in (mode, among) if one is not None), base.mode)
    if not isinstance(name, str) or name not in MODE_OPTIONS:
        raise UserError(f"unknown mode {name!r}", todo=f"It must be one of {', '.join(map(repr, MODES))}.")
    for key in options or ():
        if not isinstance(key, str):
            raise UserError(f"option name {key!r} is not a string")
    changes = {"mode": name, **MODE_OPTIONS[name], **(options or {})}
    if fullgraph is not False:
        changes["fullgraph"] = fullgraph
    if dynamic is not None:
        changes["dynamic"] = dynamic
    return base.replace(**changes)
