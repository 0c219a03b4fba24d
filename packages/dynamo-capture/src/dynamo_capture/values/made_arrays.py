"""Arrays of NumPy that the region makes of numbers: ``np.eye(3)``, ``np.linspace(0, 1, n)``, a table in a literal.

Everything in them is known, so that a value keeps a real array, on which the program's own operations are done while
it is captured: what NumPy gives, raises and shares memory with is NumPy's. A tensor made of one is made of its
numbers in every call; an array that lives on behind the region is made anew by the emitted code.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from dynamo_capture.breaks import GraphBreak
from dynamo_capture.sources import Source
from dynamo_capture.values.base import Value, display
from dynamo_capture.values.constant import ConstantValue, is_numpy_constant, is_numpy_scalar
from dynamo_capture.values.containers import ListValue, SliceValue, TupleValue, is_namedtuple

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture
    from dynamo_capture.codegen import CodeGen

__all__ = ["KINDS", "METHODS", "MadeArrayValue", "MadeArrays", "NumpyArray", "call_numpy", "index_of",
           "is_numpy_function", "on_arrays", "tensor_of_numbers"]  # fmt: skip

_NAMES = """
array asarray ascontiguousarray asfortranarray zeros ones full zeros_like ones_like full_like eye identity arange
linspace logspace geomspace diag diagflat tri tril triu vander meshgrid indices copy concatenate concat stack vstack
hstack dstack column_stack row_stack split array_split hsplit vsplit dsplit tile repeat block append insert delete
reshape ravel transpose permute_dims matrix_transpose swapaxes moveaxis rollaxis expand_dims squeeze broadcast_to
broadcast_arrays broadcast_shapes atleast_1d atleast_2d atleast_3d flip fliplr flipud roll rot90 resize pad trim_zeros
sum prod mean std var median average quantile percentile max min amax amin ptp cumsum cumprod diff ediff1d gradient
cross trapezoid trapz clip round around real imag angle sinc i0 interp convolve correlate dot vdot inner outer
tensordot kron matmul einsum trace heaviside unwrap fix nan_to_num nansum nanprod nanmean nanstd nanvar nanmedian
nanmax nanmin nanquantile nanpercentile nancumsum nancumprod sort argsort lexsort partition argpartition argmax argmin
nanargmax nanargmin argwhere nonzero flatnonzero where searchsorted extract count_nonzero unique all any isclose
allclose array_equal array_equiv isscalar iscomplexobj isrealobj isreal iscomplex isposinf isneginf ndim shape size
isin intersect1d union1d setdiff1d setxor1d take take_along_axis choose compress diagonal diag_indices tril_indices
triu_indices tril_indices_from triu_indices_from unravel_index ravel_multi_index ix_ select bincount histogram
histogram_bin_edges histogram2d digitize cov corrcoef polyval polyfit polyadd polysub polymul poly roots polyder
polyint hanning hamming blackman bartlett kaiser result_type promote_types can_cast common_type min_scalar_type
issubdtype fill_diagonal place put copyto put_along_axis putmask
""".split()  # fmt: skip
_OF_PARTS = {
    "linalg": """norm inv pinv det slogdet solve lstsq cholesky qr svd svdvals eig eigh eigvals eigvalsh matrix_power
    matrix_rank cond multi_dot tensorinv tensorsolve""".split(),
    "fft": """fft ifft rfft irfft fft2 ifft2 rfft2 irfft2 fftn ifftn rfftn irfftn hfft ihfft fftfreq rfftfreq fftshift
    ifftshift""".split(),
}
#: Methods of an array that follow from it and their arguments, or change it.
METHODS = frozenset("""
all any argmax argmin argsort astype choose clip compress conj conjugate copy cumprod cumsum diagonal dot flatten item
max mean min nonzero prod ptp ravel repeat reshape round searchsorted squeeze std sum swapaxes take tolist trace
transpose var view fill sort partition put __len__ __array__ __copy__ __deepcopy__ __contains__ __abs__ __neg__
__invert__ __pos__ __bool__ __int__ __float__ __index__ __complex__
""".split())  # fmt: skip
_ATTRIBUTES = frozenset(("shape", "ndim", "size", "dtype", "T", "mT", "real", "imag", "nbytes", "itemsize", "strides"))
#: Kinds of elements: bools, integers, floating and complex numbers.
KINDS = "biufc"
#: Elements up to which a tensor is made of an array as of a list; others are given to the graph.
_MOST_LISTED = 1024
#: Bytes up to which the graph is given such a tensor.
_MOST_GIVEN = 1 << 24
#: Bytes up to which emitted code holds an array.
_MOST_HELD = 1 << 20


def _functions() -> dict[int, Any]:
    """NumPy's functions whose results follow from their arguments alone, by identity."""
    numpy = sys.modules["numpy"]
    found = [getattr(numpy, name, None) for name in _NAMES]
    for part, names in _OF_PARTS.items():
        found += [getattr(getattr(numpy, part), name, None) for name in names]
    return {id(fn): fn for fn in found if fn is not None}


_KNOWN: dict[int, Any] = {}


def is_numpy_function(fn: Any) -> bool:
    """Whether it is a function of NumPy whose results follow from its arguments alone."""
    module = getattr(fn, "__module__", None)
    if not isinstance(module, str) or module.partition(".")[0] != "numpy":
        return False
    if type(fn).__name__ == "ufunc":
        return True
    if not _KNOWN:
        _KNOWN.update(_functions())
    return id(fn) in _KNOWN


class MadeArrays:
    """The arrays of a capture.

    Attributes:
        values: the values, by the identity of their arrays.
        shared: the memory that a tensor shares, by the identity of the array that owns it.
        like: arrays that are like existing ones as the region found them, by identity.
    """

    def __init__(self) -> None:
        self.values: dict[int, Value] = {}
        self.shared: set[int] = set()
        self.like: dict[int, Any] = {}

    def value(self, array: Any) -> Value:
        """The value of an array, the same whenever it is met."""
        found = self.values.get(id(array))
        if found is None:
            found = self.values[id(array)] = MadeArrayValue(self, array)
        return found


def _owner(array: Any) -> Any:
    while type(array.base) is type(array):
        array = array.base
    return array


class NumpyArray(Value):
    """An array, ``obj``, of which the program may read all that is in it."""

    __slots__ = ("obj",)

    mutable = True

    def array(self, tx: Capture) -> Any:
        """The array, to look at, or to change where it is the region's."""
        raise NotImplementedError


class MadeArrayValue(NumpyArray):
    """An array of known numbers that is made in the region."""

    __slots__ = ("arrays",)

    def __init__(self, arrays: MadeArrays, obj: Any) -> None:
        self.source = None
        self.arrays = arrays
        self.obj = obj

    @property
    def pytype(self) -> type:
        return type(self.obj)

    def array(self, tx: Capture) -> Any:
        """The array, to look at or to change.

        Raises:
            GraphBreak: a tensor shares its memory, so that what is in it is the tensor's.
        """
        if id(_owner(self.obj)) in self.arrays.like and tx.graph.writes_inputs:
            raise GraphBreak("QB09", "what is in an array, after a write to a tensor that may have its memory")
        return self._unshared()

    def _unshared(self) -> Any:
        if id(_owner(self.obj)) in self.arrays.shared:
            raise GraphBreak("QB09", "an array of which torch.from_numpy() has made a tensor")
        return self.obj

    def getattr(self, tx: Capture, name: str) -> Value:
        if name in _ATTRIBUTES or not hasattr(self.obj, name):  # which raises
            return _value(tx, tx.exact(getattr, self.array(tx), name))
        if name in METHODS:
            from dynamo_capture.values.callables import HandlerValue

            return HandlerValue(lambda tx, args, kwargs: self.call_method(tx, name, args, kwargs), name)
        raise GraphBreak("QB09", f"attribute {name!r} of {display(self)}")

    def call_method(self, tx: Capture, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name not in METHODS:
            raise GraphBreak("QB09", f"the method {name!r} of {display(self)}")
        return _run(tx, tx.exact(getattr, self.array(tx), name), args, kwargs)

    def getitem(self, tx: Capture, key: Value) -> Value:
        return _run(tx, operator.getitem, [self, key], {})

    def setitem(self, tx: Capture, key: Value, value: Value) -> None:
        _run(tx, operator.setitem, [self, key, value], {})

    def contains(self, tx: Capture, item: Value) -> bool:
        return _run(tx, operator.contains, [self, item], {}).truth(tx)

    def length(self, tx: Capture) -> Value:
        return _run(tx, len, [self], {})

    def truth(self, tx: Capture) -> bool:
        return bool(tx.exact(bool, self.array(tx)))

    def iterate(self, tx: Capture) -> Iterator[Value]:
        array = self.array(tx)
        return (_value(tx, item) for item in tx.exact(iter, array))

    def children(self) -> Iterator[Value]:
        array = self._unshared()
        if array.nbytes > _MOST_HELD or not array.flags.writeable:
            raise GraphBreak("QB10", f"{self.describe()} that lives on, with {array.nbytes:,} bytes, or read only")
        if (owner := _owner(array)) is not array:
            if not owner.flags.c_contiguous or owner.base is not None:
                raise GraphBreak("QB10", f"{self.describe()} that lives on, a view")
            yield self.arrays.value(owner)

    def reconstruct(self, cg: CodeGen) -> None:
        array = self.obj
        kind, owner = array.dtype.str, _owner(array)
        if owner is not array:
            offset = array.__array_interface__["data"][0] - owner.__array_interface__["data"][0]
            parts = [kind, array.shape, array.strides, offset]
            cg.call_const(_view, [self.arrays.value(owner), *map(ConstantValue, parts)])
            return
        order = "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
        cg.call_const(_filled, [ConstantValue(part) for part in (array.tobytes(order), kind, array.shape, order)])

    def describe(self) -> str:
        return "a numpy ndarray that the function makes"


def _filled(data: bytes, kind: str, shape: tuple[int, ...], order: Any) -> Any:
    """Runs in the emitted code: a new array of these numbers."""
    import numpy

    return numpy.frombuffer(data, kind).reshape(shape, order=order).copy(order)


def _view(owner: Any, kind: str, shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> Any:
    """Runs in the emitted code: a view of an array, by strides and an offset in bytes."""
    return type(owner)(shape, kind, owner, offset, strides)


# --- operations -----------------------------------------------------------------------------------------------------


def call_numpy(tx: Capture, fn: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """One of NumPy's functions (:func:`is_numpy_function`) of numbers that are known, and of arrays of them.

    Raises:
        ObservedError: what the function raises.
        GraphBreak: an argument is no such thing, or the function warns or gives something else.
    """
    return _run(tx, fn, args, kwargs)


def on_arrays(tx: Capture, fn: Callable[..., Any], *operands: Value) -> Value:
    """An operator of which one operand is an array that the region makes (see :func:`call_numpy`)."""
    return _run(tx, fn, list(operands), {})


def _run(tx: Capture, fn: Callable[..., Any], args: list[Value], kwargs: dict[str, Value]) -> Value:
    import numpy

    given = [_real(tx, arg) for arg in args]
    named = {name: _real(tx, value) for name, value in kwargs.items()}

    def strictly() -> Any:
        try:
            with numpy.errstate(divide="raise", over="raise", invalid="raise"), _disable_current_modes():
                return fn(*given, **named)
        except ValueError as error:
            if "read-only" in str(error):
                raise GraphBreak("QB09", f"a write to an array that is read only: {error}") from None
            raise
        except FloatingPointError as error:
            raise GraphBreak("QB09", f"an operation of NumPy that warns or raises: {error}") from None

    return _value(tx, tx.exact(strictly))


def _real(tx: Capture, value: Value) -> Any:
    """The object that a value stands for in an operation of NumPy."""
    from dynamo_capture.values.callables import ClassValue
    from dynamo_capture.values.numpy_scalars import NumpyNumberValue
    from dynamo_capture.values.tensor import SymValue

    value = value.realize()
    if isinstance(value, NumpyArray):
        return value.array(tx)
    if isinstance(value, (TupleValue, ListValue)) and value.pytype in (tuple, list, torch.Size):
        return value.pytype(_real(tx, item) for item in value.items)
    if isinstance(value, SliceValue):
        return slice(*[_real(tx, part) for part in value.parts])
    if type(value) is ConstantValue or isinstance(value, (SymValue, NumpyNumberValue)):
        return value.const()
    if isinstance(value, ClassValue) and _is_element_class(cls := value.real()):
        return cls
    raise GraphBreak("QB09", f"a function of NumPy on {display(value)}")


def _is_element_class(cls: Any) -> bool:
    return cls in (bool, int, float, complex) or any(base.__name__ == "generic" for base in cls.__mro__)


def _value(tx: Capture, result: Any) -> Value:
    """The value of what an operation of NumPy gives."""
    import numpy

    kind = type(result)
    if kind is numpy.ndarray:
        if result.dtype.kind not in KINDS:
            raise GraphBreak("QB09", f"an array of {result.dtype}")
        return tx.made_arrays.value(result)
    if kind in (tuple, list) or is_namedtuple(kind):
        items = [_value(tx, item) for item in result]
        return ListValue(items) if kind is list else TupleValue(items, kind)
    plain = result is None or result is NotImplemented or kind in (bool, int, float, complex)
    if plain or is_numpy_scalar(result) or isinstance(result, type):
        return tx.from_python(result)
    if is_numpy_constant(result):
        return ConstantValue(result)
    raise GraphBreak("QB09", f"an operation of NumPy that gives a {kind.__name__}")


# --- tensors --------------------------------------------------------------------------------------------------------


def tensor_of_numbers(tx: Capture, value: MadeArrayValue, *, shared: bool, dtype: torch.dtype | None = None) -> Value:
    """A tensor of an array's numbers, on the CPU.

    Args:
        shared: in eager it has the array's memory: nothing else is done with the array.
        dtype: the tensor's; None for the array's.

    Raises:
        ObservedError: there is no such tensor (of 16-bit unsigned integers, say, in older versions).
        GraphBreak: eager warns.
    """
    array = value.array(tx)
    if shared and not array.flags.writeable:
        raise GraphBreak("QB09", "a tensor of an array that is read only, of which PyTorch warns")
    with _disable_current_modes():
        made = tx.exact(torch.from_numpy if shared else torch.tensor, array)
        tensor = _constants(tx, array, made.to(dtype or made.dtype), made.stride())
    if shared:
        value.arrays.shared.add(id(_owner(array)))
    return tensor


def _constants(tx: Capture, array: Any, held: torch.Tensor, strides: tuple[int, ...]) -> Value:
    """A new tensor of an array's numbers, in these strides."""
    if held.nbytes > _MOST_GIVEN:
        raise GraphBreak("QB09", f"a tensor of an array of {held.nbytes:,} bytes, which the graph would keep")
    if held.numel() > _MOST_LISTED:
        held = held.clone()
        copied = tx.wrap(held, Source("constant", None, (held,)))
        return tx.graph_call("clone", [copied], {}, method=True)
    options: dict[str, Value] = {"dtype": ConstantValue(held.dtype), "device": ConstantValue(torch.device("cpu"))}
    sizes = TupleValue([ConstantValue(size) for size in held.shape])
    numbers = ListValue([ConstantValue(number) for number in array.ravel().tolist()])
    made = tx.graph_call("view", [tx.graph_call(torch.tensor, [numbers], options), sizes], {}, method=True)
    if held.is_contiguous():
        return made
    given: list[Value] = [sizes, TupleValue([ConstantValue(stride) for stride in strides])]
    return tx.graph_call("copy_", [tx.graph_call(torch.empty_strided, given, options), made], {}, method=True)


def index_of(tx: Capture, value: MadeArrayValue) -> Value:
    """The tensor that PyTorch makes of an array in an index.

    Raises:
        GraphBreak: its elements are none that an index takes.
    """
    if value.obj.dtype.kind not in "biu":
        raise GraphBreak("QB09", f"an index that is an array of {value.obj.dtype}")
    return tensor_of_numbers(tx, value, shared=False)
