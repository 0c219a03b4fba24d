"""``package()``: a folder that runs a program where neither the model's code nor the compiler is.

    contract.json         what goes in and out, versions, what the program was compiled for
    weights.safetensors   parameters and buffers by qualified name; may be exchanged
    graph.json            the graph, for other devices to compile anew
    native/               C sources and one library with a C interface (``quintet.h``); on the CPU
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import platform
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from compile_api.deploy import trees
from compile_api.deploy.contract import Contract, dtype_name, dtype_of
from compile_api.deploy.exported import FORMAT, Exported, check_weight, new_folder, read_json
from prims.eager import warn_user
from prims.errors import InvalidData, StoredGraphError, Unsupported, UserError
from prims.forking import compiling
from prims.ir.tensors import read_tensors, write_tensors

__all__ = ["Package", "load_package", "package"]


def package(exported: Exported, path: str | os.PathLike[str]) -> Path:
    """Compile a program for the CPU into a folder with a library that needs no Python.

    Returns:
        The folder.

    Raises:
        UserError: something in the program cannot run without Python: the error names the operator.
    """
    with compiling():
        from inductor_gen.native_host.build import LIBRARY, build_library, processor
        from inductor_gen.pipeline import lower_graph

    if not isinstance(exported, Exported):
        raise UserError(f"package() got a {type(exported).__name__}", todo="Give what compile_api.export() returns.")
    exported.refuse_numbers("packaged")
    if any(kind == "seed" for kind, _ in exported.contract.sources):
        raise UserError(
            "the program draws random numbers, which a package cannot repeat",
            todo="Call model.eval() before exporting, or pass the numbers as an argument.",
        )
    folder = new_folder(path)
    native = folder / "native"
    if native.exists():
        shutil.rmtree(native)
    native.mkdir()
    try:
        with compiling():
            env = exported.lowered()
            lowered = lower_graph(env, exported.options, exported.report(), in_place=True)
            calls_torch = build_library(lowered, _interface(exported), native)
    except Unsupported as error:
        raise UserError(
            f"the program cannot be packaged: {error.reason}", where=error.where,
            todo=_otherwise(exported),
        ) from error  # fmt: skip
    exported.save(folder)
    data = {
        "format": list(FORMAT), "torch": str(torch.__version__), "contract": exported.contract.to_data(),
        "weights": {n: [dtype_name(w.dtype), list(w.shape)] for n, w in exported.weights.items()},
        "native": {
            "library": f"native/{LIBRARY}", "digest": _digest(native / LIBRARY),
            "machine": platform.machine(), "system": platform.system(),
            "processor": processor(), "libtorch": str(torch.__version__) if calls_torch else None,
        },
    }  # fmt: skip
    (folder / "contract.json").write_text(json.dumps(data, indent=1), encoding="utf-8")
    return folder


def _otherwise(exported: Exported) -> str:
    """What to do with a program that cannot be packaged."""
    from prims.control import control_of

    if any(control_of(node.target) is not None for node in exported.envelope.op_nodes):
        return "It runs in this process only: no file holds branches and loops. Write it with torch.where to store it."
    return "Exported.save() keeps it for use in Python."


def _interface(exported: Exported) -> Any:
    """The contract as the C interface has it: leaves that are tensors only."""
    from inductor_gen.native_host.interface import Interface, Output, Tensor

    contract = exported.contract
    tensors = [at for at, what in enumerate(contract.inputs) if what.dtype is not None]
    inputs = [
        Tensor(what.name, dtype_of(what.dtype or ""), what.shape) for what in (contract.inputs[at] for at in tensors)
    ]
    names = list(exported.weights)
    weights = [Tensor(name, w.dtype, tuple(w.shape)) for name, w in exported.weights.items()]
    sources = [
        (kind, tensors.index(what) if kind == "argument" else names.index(what)) for kind, what in contract.sources
    ]
    outputs = []
    for name, r in zip(trees.paths(contract.gives, "result"), contract.results, strict=True):
        if r.kind == "size":
            outputs.append(Output(name, "size", value=r.value))
        elif r.kind != "literal":
            dtype = dtype_of(r.dtype or "")
            outputs.append(Output(name, r.kind, r.index, "", dtype, r.shape, r.strides, r.offset))
    dims = tuple((d.name, d.min, d.max) for d in contract.dims)
    mutations = tuple((m.input_index, m.output_index) for m in exported.envelope.mutations)
    return Interface(tuple(inputs), tuple(weights), dims, tuple(sources), tuple(outputs), mutations)


# ---- in Python ----------------------------------------------------------------------------------------------------


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p), ("dtype", ctypes.c_int32), ("ndim", ctypes.c_int32),
        ("sizes", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
    )  # fmt: skip


_CODES = {
    "uint8": 0, "int8": 1, "int16": 2, "int32": 3, "int64": 4, "float16": 5, "float32": 6, "float64": 7, "bool": 11,
    "bfloat16": 15,
}  # fmt: skip
_DTYPES = {code: name for name, code in _CODES.items()}


class Package:
    """A packaged program in Python: its library, called with a call's arguments.

    Attributes:
        contract: what it takes and gives.
        path: the package's folder.
    """

    def __init__(self, path: Path, contract: Contract, library: ctypes.CDLL, weights: Path) -> None:
        self.path = path
        self.contract = contract
        self._library = library
        error = ctypes.c_void_p()
        self._model = library.quintet_model_load(os.fsencode(weights), ctypes.byref(error))
        if not self._model:
            raise UserError(f"{str(path)!r} cannot be loaded: {self._taken(error)}")

    def _taken(self, error: ctypes.c_void_p) -> str:
        text = ctypes.string_at(error.value).decode(errors="replace") if error.value else "no reason given"
        self._library.quintet_error_free(error)
        return text

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program.

        Raises:
            UserError: an argument is not what the contract says.
            InvalidData: the program met an index out of range or an integer division by zero.
        """
        leaves = self.contract.leaves(args, kwargs)
        given = [leaf for leaf, what in zip(leaves, self.contract.inputs, strict=True) if what.dtype is not None]
        for at, leaf in enumerate(leaves):
            if isinstance(leaf, torch.Tensor) and (leaf.is_neg() or leaf.is_conj()) and at in self.contract.writes:
                name = self.contract.inputs[at].name
                raise UserError(f"{name}, which the program writes, is a view with another sign", todo="Clone it.")
        given = [leaf.resolve_neg().resolve_conj() for leaf in given]
        array = (_Tensor * max(len(given), 1))(*map(_described, given))
        result, error = ctypes.c_void_p(), ctypes.c_void_p()
        failed = self._library.quintet_model_run(
            self._model, array, ctypes.c_int64(len(given)), ctypes.byref(result), ctypes.byref(error)
        )
        if failed:
            raise InvalidData(self._taken(error))
        held = _Held(self._library, result)
        found: list[Any] = []
        at = 0
        for r in self.contract.results:
            if r.kind == "literal":
                found.append(r.value)
                continue
            tensor = _tensor(self._library.quintet_result_get(result, ctypes.c_int64(at)).contents, held, self)
            at += 1
            if r.kind == "size":
                found.append(int(tensor))
            elif r.kind == "input" and r.strides is None and self.contract.sources[r.index][0] == "argument":
                found.append(leaves[self.contract.sources[r.index][1]])
            else:
                found.append(tensor)
        return trees.build(self.contract.gives, found)

    def __del__(self) -> None:
        if getattr(self, "_model", None):
            self._library.quintet_model_free(self._model)

    def __str__(self) -> str:
        return f"{self.contract}\nin {self.path}"


class _Held:
    """Frees a result when no tensor of it is left."""

    def __init__(self, library: ctypes.CDLL, result: ctypes.c_void_p) -> None:
        self.library, self.result = library, result

    def __del__(self) -> None:
        self.library.quintet_result_free(self.result)


def _described(x: torch.Tensor) -> _Tensor:
    sizes, strides = ((ctypes.c_int64 * max(x.dim(), 1))(*values) for values in (x.shape, x.stride()))
    return _Tensor(x.data_ptr(), _CODES[dtype_name(x.dtype)], x.dim(), sizes, strides)


def _tensor(found: _Tensor, *owners: Any) -> torch.Tensor:
    """A tensor in a result's memory, which the tensor keeps."""
    sizes, strides = found.sizes[: found.ndim], found.strides[: found.ndim]
    dtype = dtype_of(_DTYPES[found.dtype])
    if 0 in sizes or not found.data:
        return torch.empty_strided(sizes, strides, dtype=dtype)
    extent = (1 + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))) * dtype.itemsize
    buffer = (ctypes.c_uint8 * extent).from_address(found.data)
    buffer.owners = owners  # type: ignore[attr-defined]
    return torch.frombuffer(buffer, dtype=dtype).as_strided(sizes, strides)


def load_package(
    path: str | os.PathLike[str], *, weights: str | os.PathLike[str] | Mapping[str, torch.Tensor] | None = None
) -> Package:
    """A packaged program, for calls from Python. Nothing is traced, lowered or compiled; its library is run, so take
    packages from whom you would take a program from.

    Args:
        weights: other weights, a file of safetensors or tensors by name; those that it lacks are the package's.

    Raises:
        UserError: a weight is missing, or has another dtype or shape; none of the weights given is the program's; the
            package is for other machines.
        StoredGraphError: the folder is no package, or a damaged one.

    Names among ``weights`` that the program does not use are told in a warning.
    """
    folder = Path(path).absolute()
    data = read_json(folder / "contract.json")
    contract = Contract.from_data(data.get("contract"))
    native = data.get("native")
    if not isinstance(native, dict) or not isinstance(data.get("weights"), dict):
        raise StoredGraphError(
            "FILE-C2", f"{str(folder)!r} holds a program and no package", todo="Use load_exported()."
        )
    for what, here in (("machine", platform.machine()), ("system", platform.system())):
        if native.get(what) != here:
            raise UserError(
                f"{str(folder)!r} was compiled for {native.get(what)}, this is {here}", todo="Package it here."
            )
    if native.get("libtorch") not in (None, str(torch.__version__)):
        raise UserError(
            f"{str(folder)!r} was compiled for PyTorch {native['libtorch']}, this is {torch.__version__}",
            todo="Package it again with this version.",
        )
    place = folder / "weights.safetensors"
    if weights is not None:
        if not isinstance(weights, (Mapping, str, os.PathLike)):
            raise UserError(
                f"weights is a {type(weights).__name__}", todo="Give a file of safetensors, or tensors by their names."
            )
        given = dict(weights) if isinstance(weights, Mapping) else read_tensors(weights)
        _check_names(given, data["weights"])
        merged = {**read_tensors(place), **{n: w for n, w in given.items() if n in data["weights"]}}
        for name, (dtype, shape) in data["weights"].items():
            check_weight(name, merged.get(name), dtype_of(dtype), shape)
        with tempfile.TemporaryDirectory() as temporary:
            write_tensors(merged, Path(temporary) / place.name)
            return Package(folder, contract, _library(folder, native), Path(temporary))
    return Package(folder, contract, _library(folder, native), place)


#: Libraries by path, with what told their files when they were opened.
_OPENED: dict[Path, tuple[int, ...]] = {}


def _opened(place: Path) -> ctypes.CDLL:
    """A library as it is in its file now: by a path that it knows, the loader gives what was there before."""
    status = place.stat()
    now = status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
    if _OPENED.setdefault(place, now) == now:
        return ctypes.CDLL(str(place))
    with tempfile.TemporaryDirectory() as temporary:
        return ctypes.CDLL(shutil.copy(place, temporary))


def _digest(place: Path) -> str:
    return hashlib.sha256(place.read_bytes()).hexdigest()


def _check_names(given: Mapping[str, Any], taken: Mapping[str, Any]) -> None:
    """Tell of weights that the program has no use for, as those of a checkpoint that it does not read are.

    Raises:
        UserError: that is all of them.
    """
    unknown = [name for name in given if name not in taken]
    if not unknown:
        return
    text = ", ".join(unknown[:5]) + (f" and {len(unknown) - 5} more" if len(unknown) > 5 else "")
    if len(unknown) == len(given):
        some = ", ".join([*taken][:3]) or "none"
        raise UserError(f"the program has no weight of these names: {text}", todo=f"Its weights: {some}, ...")
    warn_user(f"the program does not use these weights: {text}")


def _library(folder: Path, native: Mapping[str, Any]) -> ctypes.CDLL:
    place = (folder / str(native.get("library"))).resolve()
    if folder.resolve() not in place.parents:
        raise StoredGraphError("FILE-C2", f"the library {str(place)!r} is not in the package")
    try:
        if native.get("digest", "") not in ("", _digest(place)):  # to map part of a library is to end by a signal
            text = f"{str(place)!r} is not the library that was packaged"
            raise StoredGraphError("FILE-C4", text, todo="Copy or package it anew.")
        library = _opened(place)
        library.quintet_model_load.restype = ctypes.c_void_p
        library.quintet_model_free.argtypes = [ctypes.c_void_p]
        library.quintet_model_run.argtypes = [
            ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p
        ]  # fmt: skip
        library.quintet_result_get.restype = ctypes.POINTER(_Tensor)
        library.quintet_result_get.argtypes = [ctypes.c_void_p, ctypes.c_int64]
        library.quintet_result_free.argtypes = library.quintet_error_free.argtypes = [ctypes.c_void_p]
    except (OSError, AttributeError) as error:
        raise StoredGraphError("FILE-C4", f"{str(place)!r} cannot be loaded: {error}") from error
    return library
