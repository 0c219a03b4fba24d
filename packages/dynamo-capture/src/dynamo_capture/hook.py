"""The Python side of the native frame hook: tells the extension about torch.

The extension itself needs no torch. `init_torch` gives it the tensor types, probe tensors whose metadata
Python states, and readers of torch's global state; it returns which native fast paths agreed with the
probes. The others read attributes, which is slower but means the same.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynamo_capture import _native

if TYPE_CHECKING:
    import torch

# c10::DeviceType, part of torch's stable C interface.
_DEVICE_TYPES = {"cpu": 0, "cuda": 1, "meta": 14}


@functools.cache
def init_torch() -> dict[str, bool]:
    """Makes tensor and global-state guards available; cheap to call again.

    Returns:
        `{"tensor": bool, "state": bool}`: whether the native fast path is used for each.
    """
    import torch

    lib = Path(torch.__file__).parent / "lib"
    libraries = tuple(str(lib / name) for name in ("libtorch_cpu.so", "libc10.so"))
    state = state_readers()
    plain = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
    with torch.no_grad():
        probes = _probes()
    with torch.inference_mode(False), torch.enable_grad():
        autograd = _autograd_probes()
        found = _native.init_torch(
            torch.Tensor, plain[:2], probes, autograd, tuple(state), tuple(state.values()), libraries
        )
    if found["state"] and not _state_agrees():
        _native.use_native(found["tensor"], False)
        found["state"] = False
    return found


def _probes() -> tuple[tuple[torch.Tensor, dict[str, int]], ...]:
    """Tensors of several dtypes, layouts and key sets, with what Python says about them."""
    import torch

    scalar_types = {torch.float32: 6, torch.float64: 7, torch.int64: 4, torch.bool: 11, torch.complex64: 9}
    scalar_types |= {torch.bfloat16: 15, torch.uint8: 0}
    tensors = [torch.empty((2, 3, 5)[: 1 + i % 3], dtype=d, device="cpu") for i, d in enumerate(scalar_types)]
    tensors.append(tensors[2].t() if tensors[2].ndim == 2 else tensors[2].transpose(0, 2))
    tensors.append(tensors[0][1:])
    tensors.append(torch.empty(3, device="cpu")[1:])  # as the first, but for the offset
    tensors.append(torch.empty(4, dtype=torch.complex64, device="cpu").conj())
    tensors.append(tensors[-1].imag)
    tensors.append(torch.empty((), dtype=torch.float32, device="cpu", requires_grad=True))
    tensors.append(torch.nn.Parameter(torch.empty(3, 4, device="cpu")))
    return tuple((t, _probe_facts(t, scalar_types[t.dtype])) for t in tensors)


def _autograd_probes() -> tuple[torch.Tensor, ...]:
    """Tensors in whose memory it shows where `requires_grad` is kept; the extension changes the last two."""
    import torch

    without, marked, back = (torch.zeros(2, device="cpu") for _ in range(3))
    return without, marked.requires_grad_(), back.requires_grad_().requires_grad_(False)


def _probe_facts(tensor: torch.Tensor, scalar_type: int) -> dict[str, int]:
    import torch

    try:
        keys = torch._C._dispatch_keys(tensor).raw_repr()
        impl = tensor._cdata
    except AttributeError:  # without these the native path is not verified, so it is not used
        keys = impl = 0
    return {
        "impl": impl,
        "dispatch_keys": keys,
        "scalar_type": scalar_type,
        "device_type": _DEVICE_TYPES[tensor.device.type],
        "device_index": -1 if tensor.device.index is None else tensor.device.index,
    }


def state_readers() -> dict[str, Callable[[], object]]:
    """The global state that a compiled graph depends on, by name."""
    import torch

    def autocast() -> tuple[object, ...]:
        devices = ("cpu", "cuda")
        enabled = tuple(torch.is_autocast_enabled(d) for d in devices)
        return (*enabled, *(torch.get_autocast_dtype(d) for d in devices), torch.is_autocast_cache_enabled())

    return {
        "grad mode": torch.is_grad_enabled,
        "inference mode": torch.is_inference_mode_enabled,
        "autocast": autocast,
        "torch function modes": torch._C._len_torch_function_stack,
        "torch function enablement": torch._C._is_torch_function_enabled,
        "dispatch modes": torch._C._len_torch_dispatch_stack,
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled,
        "deterministic warnings only": torch.is_deterministic_algorithms_warn_only_enabled,
        "default dtype": torch.get_default_dtype,
    }


def _state_agrees() -> bool:
    """Whether the native state changes exactly when torch's does: each change is tried and undone."""
    import torch

    before = _native.state_words()
    changes: list[Callable[[], Any]] = [
        torch.no_grad if torch.is_grad_enabled() else torch.enable_grad,
        torch.inference_mode,
        torch._C.DisableTorchFunctionSubclass,
        functools.partial(
            torch.autocast, "cpu", dtype=torch.bfloat16, enabled=not torch.is_autocast_enabled("cpu")
        ),
    ]
    for change in changes:
        with ExitStack() as stack:
            stack.enter_context(change())
            if _native.state_words() == before:
                return False
        if _native.state_words() != before:
            return False
    return True
