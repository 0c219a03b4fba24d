"""Tensors and symbolic numbers: values that are computed by the graph."""

from __future__ import annotations

import operator
import types
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from dynamo_capture.breaks import GraphBreak
from dynamo_capture.rules import is_library_name
from dynamo_capture.values.base import Value
from dynamo_capture.values.classes import full_name, no_attribute
from dynamo_capture.values.composites import body_of
from dynamo_capture.values.constant import ConstantValue
from dynamo_capture.values.identity import identity_key
from dynamo_capture.values.tensor_state import STATE, tensor_state

if TYPE_CHECKING:
    from torch.fx import Node

    from dynamo_capture.capture import Capture
    from dynamo_capture.codegen import CodeGen

__all__ = [
    "AUTOGRAD", "GIVES_NUMBERS", "PYTHON_STATE", "READS_DATA", "SymValue", "TensorMethodValue", "TensorValue",
    "check_renewed", "size_value",
]  # fmt: skip

READS_DATA = frozenset(
    ("item", "tolist", "numpy", "__bool__", "__int__", "__float__", "__index__", "__complex__", "__array__",
     "data_ptr", "const_data_ptr", "untyped_storage", "storage", "_typed_storage", "is_set_to",
     "__dlpack__", "__contains__", "__format__", "__repr__", "__str__",
     "is_nonzero", "equal", "allclose")
)  # fmt: skip
#: Those of them that say nothing but what the numbers are.
GIVES_NUMBERS = frozenset(
    ("item", "tolist", "__bool__", "__int__", "__float__", "__index__", "__complex__", "__contains__", "is_nonzero",
     "equal", "allclose")
)  # fmt: skip
#: Those that give Python numbers.
_NUMBERS = frozenset(("item", "tolist"))
AUTOGRAD = frozenset(("backward", "register_hook", "retain_grad", "register_post_accumulate_grad_hook"))
PYTHON_STATE = frozenset(
    ("apply_", "map_", "map2_", "share_memory_", "pin_memory", "__deepcopy__", "__reduce_ex__", "__setstate__",
     "set_", "resize_", "resize_as_", "record_stream", "to_sparse", "register_module_full",
     "is_pinned", "is_shared", "_fix_weakref")
)  # fmt: skip
_CONST_ATTRIBUTES = frozenset(
    ("dtype", "device", "layout", "requires_grad", "ndim", "is_cuda", "is_cpu", "is_sparse", "is_quantized",
     "is_mps", "is_mkldnn", "is_meta", "is_nested", "is_xpu", "is_mtia", "is_ipu", "is_xla", "is_vulkan",
     "is_sparse_csr", "is_maia", "names", "itemsize")
)  # fmt: skip
#: Attributes by which ``isinstance`` tells a tensor for a Parameter or a Buffer.
_MARKS = frozenset(("_is_param", "_is_buffer"))
_TENSOR_ATTRIBUTES = frozenset(("T", "mT", "H", "mH", "real", "imag", "data"))


def _flag(args: list[Value], kwargs: dict[str, Value]) -> Any:
    """The argument of ``requires_grad_``."""
    given = [value.realize() for value in (*args, *kwargs.values())]
    return True if not given else given[0].const() if given[0].is_const else None


def check_renewed(tx: Capture, tensor: Value) -> None:
    """End the graph before a tensor is used whose ``data`` are set once the graph has run."""
    if id(tensor) in tx.renewed:
        raise GraphBreak("QB06", "use of a tensor whose data have been set")


class TensorValue(Value):
    """A tensor: a node of the graph and an abstract example with its metadata."""

    __slots__ = ("_number", "cls", "example", "node", "real_tensor", "scalar")

    mutable = True

    def __init__(self, node: Node, example: torch.Tensor, source: Any = None, real: Any = None) -> None:
        self.source = source
        self.node = node
        self.example = example
        self.real_tensor = real
        self.cls: type = torch.Tensor if real is None else type(real)
        self._number: tuple[Value, int] | None = None
        #: The float that it holds, as long as it has this version: see :mod:`dynamo_capture.values.scalar_tensors`.
        self.scalar: tuple[Callable[[], Value | None], float] | None = None

    @property
    def number(self) -> Value | None:
        """The int that a tensor made of a Python int holds, as long as nothing has written into it."""
        if self._number is None or self._number[1] != self.example._version:
            return None
        return self._number[0]

    @number.setter
    def number(self, value: Value) -> None:
        if not self.example.is_inference():
            self._number = (value, self.example._version)

    @property
    def pytype(self) -> type:
        return self.cls

    def real(self) -> Any:
        if self.real_tensor is None:
            raise GraphBreak("QB02", "the value of a computed tensor")
        return self.real_tensor

    def key(self, tx: Capture) -> Any:
        return identity_key(tx, self)

    def truth(self, tx: Capture) -> bool:
        from dynamo_capture.values.scalar_tensors import known_number

        number = known_number(tx, self)
        if number is None:
            from dynamo_capture.values.known_tensors import computed_of_known

            number = computed_of_known(tx, "__bool__", [self], {}, True)
        if number is None:
            raise GraphBreak("QB01", "truth value of a tensor")
        return number.truth(tx)

    def getattr(self, tx: Capture, name: str) -> Value:
        tx.guards.read_class(torch.Tensor, name)
        if tx.renewed:
            check_renewed(tx, self)
        if name in ("shape",):
            return size_value(tx, self)
        if name in _CONST_ATTRIBUTES and hasattr(torch.Tensor, name):  # PyTorch 2.13 has no `names` any more
            return tx.from_python(getattr(self.example, name))
        if name in STATE and not callable(getattr(torch.Tensor, name)):
            return tensor_state(tx, self, name)
        if name in _TENSOR_ATTRIBUTES:
            return tx.graph_call(getattr, [self, ConstantValue(name)], {})
        if name == "__class__":
            return tx.from_python(self.cls)
        if name == "nbytes":
            size = ConstantValue(self.example.element_size())
            return self.call_method(tx, "numel", [], {}).call_method(tx, "__mul__", [size], {})
        return self._other_attribute(tx, name)

    def _other_attribute(self, tx: Capture, name: str) -> Value:
        from dynamo_capture.values.leaves import is_own_leaf

        real = self.real_tensor
        written = tx.side.found_on_tensor(self, name)
        if written is not None:
            return written
        if name == "grad" and real is not None and self.source is not None:
            from dynamo_capture.sources import Source

            if str(tx.frames[-1].globals.get("__name__")).partition(".")[0] != "torch":
                tx.side.look_at_gradient(self)
            return tx.wrap(real.grad, Source("grad", self.source))
        if name == "grad" and is_own_leaf(self):
            return ConstantValue(None)
        if real is not None:
            own = real.__dict__
            if name in own:
                return tx.read(own[name], self.source and self.source.attr(name))
            if self.source is not None and not hasattr(self.cls, name):
                tx.guards.has_attr(self.source, name, False)
        if not hasattr(self.cls, name):
            raise tx.observed(no_attribute(full_name(self.cls), name))
        if callable(getattr(torch.Tensor, name, None)):
            return TensorMethodValue(self, name)
        raise GraphBreak("QB06", f"attribute {name!r} of a tensor")

    def setattr(self, tx: Capture, name: str, value: Value) -> None:
        from dynamo_capture.values.leaves import is_own_leaf

        value = value.realize()
        if tx.renewed:
            check_renewed(tx, self)
        if name == "data" and self._takes_data(tx, value):
            from dynamo_capture.values.leaves import renewed

            data = tx.graph_call("detach", [value], {}, method=True)
            tx.side.set_on_tensor(self, name, data)
            if not renewed(tx, self, data):
                tx.renewed[id(self)] = self
            return
        if name == "requires_grad" and type(value) is ConstantValue and type(value.value) is bool:
            self._require_grad(tx, value.value)
            return
        if name == "grad" and is_own_leaf(self) and type(value) is ConstantValue and value.value is None:
            tx.side.set_gradient_of_own(self, value)
            return
        if name == "grad" and self._takes_gradient(tx, value):
            if type(value) is ConstantValue and not tx.graph.op_count:
                tx.side.drop_gradient(self)
            tx.side.set_on_tensor(self, name, value)
            return
        if not hasattr(self.cls, name) and name not in _MARKS and tx.graph.is_outermost:
            tx.side.set_on_tensor(self, name, value)
            return
        raise GraphBreak("QB06", f"setting attribute {name!r} of a tensor")

    def _takes_data(self, tx: Capture, value: Value) -> bool:
        """Whether ``.data`` can be set after the graph: of a tensor that exists outside, and that no history holds, in
        which eager would find the new data."""
        if self.real_tensor is None or self.source is None or not tx.graph.is_outermost or tx.levels:
            return False
        if not isinstance(value, TensorValue) or not {self.cls, value.cls} <= {torch.Tensor, torch.nn.Parameter}:
            return False
        mine, other = self.example, value.example
        alike = (mine.dtype, mine.device, mine.layout) == (other.dtype, other.device, other.layout)
        plain = not mine.is_inference() and not other.is_inference()
        return alike and plain and not self._is_in_a_history(tx)

    def _is_in_a_history(self, tx: Capture) -> bool:
        """Whether something has been computed with the tensor itself whose backward pass is still to come."""
        from dynamo_capture.spent import is_spent

        used = {later for user in self.node.users for later in (user, *user.users)}  # an operator, and its results
        made = [v for v in tx.graph.values() if v.node in used and v.real_tensor is None and v.example.requires_grad]
        return any(v.example.grad_fn is None or not is_spent(v.example.grad_fn) for v in made)

    def _takes_gradient(self, tx: Capture, value: Value) -> bool:
        """Whether ``.grad`` of a tensor that exists outside can be set after the graph: to None, or to what fits."""
        if self.real_tensor is None or self.source is None or not tx.graph.is_outermost:
            return False
        if isinstance(value, TensorValue):
            mine, other = self.example, value.example
            same = (mine.dtype, mine.device, mine.shape) == (other.dtype, other.device, other.shape)
            return same and value is not self and not other.requires_grad and value.cls is torch.Tensor
        return type(value) is ConstantValue and value.value is None

    def call_method(self, tx: Capture, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        tx.guards.read_class(torch.Tensor, name)
        if tx.renewed:
            check_renewed(tx, self)
        added = _added_method(tx, name)
        if added is not None:
            return added.call(tx, [self, *args], kwargs)
        if name in ("item", "__int__", "__index__") and not args and not kwargs and self.number is not None:
            return self.number
        if name in ("item", "__float__") and not args and not kwargs and self.example.is_floating_point():
            from dynamo_capture.values.scalar_tensors import known_number

            number = known_number(tx, self)
            if number is not None:
                return number
        if name in _NUMBERS and tx.unbacked and not args and not kwargs and self.example.dtype != torch.bool:
            return tx.graph_call("tolist" if name == "tolist" else "item", [self], {}, method=True)
        if name in READS_DATA:
            from dynamo_capture.values.known_tensors import computed_of_known

            known = computed_of_known(tx, name, [self, *args], kwargs, True) if name in GIVES_NUMBERS else None
            if known is not None:
                return known
            raise GraphBreak("QB02", f"Tensor.{name}()")
        if name in STATE and not args and not kwargs:
            return tensor_state(tx, self, name)
        if "generator" in kwargs:
            from dynamo_capture.values.torch_generators import draw_into, generator_in

            generator, kwargs = generator_in(kwargs, self.example.device)
            if generator is not None:
                return draw_into(tx, self, name, generator, args, kwargs)
        if name == "backward":
            from dynamo_capture.values.accumulated import tensor_backward

            return tensor_backward(tx, [self, *args], kwargs)
        if name in ("register_hook", "register_post_accumulate_grad_hook"):
            from dynamo_capture.values.hooks import hook_on

            return hook_on(tx, self, name, args, kwargs)
        if name in AUTOGRAD:
            raise GraphBreak("QB12", f"Tensor.{name}()")
        if name == "requires_grad_":
            return self._require_grad(tx, _flag(args, kwargs))
        if name in PYTHON_STATE or name.startswith("__array"):
            raise GraphBreak("QB17" if name == "to_sparse" else "QB06", f"Tensor.{name}()")
        if name in ("size", "stride"):
            return self._extents(tx, name, args, kwargs)
        if name in ("numel", "nelement") and not args:
            return tx.sym(self.example.numel(), torch.ops.aten.sym_numel.default, [self])
        if name == "__len__":
            return self.length(tx)
        if name == "__getitem__" and len(args) == 1:
            return self.getitem(tx, args[0])
        if name in ("__getitem__", "__setitem__"):
            return tx.graph_call(operator.getitem if name == "__getitem__" else operator.setitem, [self, *args], {})
        if name == "__iter__":
            return self.get_iter(tx)
        if name == "new" and len(args) == 1 and args[0].realize().pytype is torch.Size:
            name = "new_empty"  # a size as a size: in the graph it is a plain tuple, which would be data
        if name == "new_tensor" and len(args) == 1 and not kwargs.keys() - {"dtype", "device"}:
            from dynamo_capture.values.torch_calls import has_place, has_symbols

            data = args[0].realize()
            if has_place(tx, data) if isinstance(data, SymValue) else has_symbols(tx, data):
                like = {each: self.getattr(tx, each) for each in ("dtype", "device")}
                return tx.from_python(torch.tensor).realize().call(tx, args, like | kwargs)
        if name == "as_subclass":
            from dynamo_capture.values.overrides import as_subclass

            return as_subclass(tx, self, args)
        body = body_of(getattr(torch.Tensor, name, None), kwargs)
        if body is not None:
            return tx.from_python(body).realize().call(tx, [self, *args], kwargs)
        return tx.graph_call(name, [self, *args], kwargs, method=True)

    def _require_grad(self, tx: Capture, flag: Any) -> Value:
        from dynamo_capture.values.leaves import froze, make_leaf

        if self.example.requires_grad is flag:
            return self
        if type(flag) is bool and froze(tx, self, flag):
            return self
        if flag is not True:
            raise GraphBreak("QB06", "Tensor.requires_grad_()")
        return make_leaf(tx, self, "Tensor.requires_grad_()")

    def _extents(self, tx: Capture, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """``size`` or ``stride``, of one dimension or of all; PyTorch reads the arguments and raises its errors."""
        from dynamo_capture.values.containers import TupleValue

        extents = size_value(tx, self)
        if name == "stride":
            op, strides = torch.ops.aten.sym_stride.int, enumerate(self.example.stride())
            extents = TupleValue([tx.sym(s, op, [self, ConstantValue(d)]) for d, s in strides])
        given = [value.realize() for value in (*args, *kwargs.values())]
        if not all(isinstance(value, ConstantValue) for value in given):
            return extents.getitem(tx, given[0])
        constants: list[Any] = [value.value for value in given]  # type: ignore[attr-defined]
        numbers = tuple(range(self.example.dim()))
        numbered = torch.empty_strided(numbers, numbers)
        named = dict(zip(kwargs, constants[len(args) :], strict=True))
        asked = tx.exact(getattr(numbered, name), *constants[: len(args)], **named)
        return extents.getitem(tx, ConstantValue(asked)) if isinstance(asked, int) else extents

    def getitem(self, tx: Capture, key: Value) -> Value:
        if tx.index_modes:
            return tx.index_modes[-1].getitem_of(tx, self, key)  # type: ignore[no-any-return]
        key = _plain_key(tx, key)
        rows = _drawn_rows(tx, key)
        if rows is None:
            try:
                return tx.graph_call(operator.getitem, [self, key], {})
            except GraphBreak as brk:
                if brk.number != "QB02":
                    raise
                from dynamo_capture.values.picks import pick

                return pick(tx, self, key, brk)
        from dynamo_capture.values.containers import ListValue

        taken = [tx.graph_call("select", [self, ConstantValue(0), row], {}, method=True) for row in rows]
        if key.realize() is rows[0]:
            return taken[0]
        return tx.graph_call(torch.stack, [ListValue(taken)], {})

    def setitem(self, tx: Capture, key: Value, value: Value) -> None:
        key = _plain_key(tx, key)
        if (mask := _mask_of(self, key, value.realize())) is not None:
            from dynamo_capture.values.composites import set_by_mask

            dim, chosen = mask
            tx.from_python(set_by_mask).realize().call(tx, [self, chosen, value, ConstantValue(dim)], {})
            return
        try:
            tx.graph_call(operator.setitem, [self, key, value], {})
        except GraphBreak as brk:
            if brk.number != "QB02":
                raise
            from dynamo_capture.values.picks import put

            put(tx, self, key, value, brk)

    def iterate(self, tx: Capture) -> Iterator[Value]:
        if self.example.dim() == 0:
            raise tx.observed(TypeError("iteration over a 0-d tensor"))
        return iter(self.call_method(tx, "unbind", [ConstantValue(0)], {}).unpack(tx))

    def contains(self, tx: Capture, item: Value) -> bool:
        from dynamo_capture.values.known_tensors import computed_of_known

        known = computed_of_known(tx, "__contains__", [self, item], {}, True)
        if known is not None:
            return known.truth(tx)
        raise GraphBreak("QB02", "membership test on a tensor")

    def length(self, tx: Capture) -> Value:
        if self.example.dim() == 0:
            raise tx.observed(TypeError("len() of a 0-d tensor"))
        return size_value(tx, self).getitem(tx, ConstantValue(0))

    def reconstruct(self, cg: CodeGen) -> None:
        cg.load_graph_output(self)

    def describe(self) -> str:
        return "a tensor"


def _added_method(tx: Capture, name: str) -> Value | None:
    """A method in Python that the program has put on ``torch.Tensor``; it is inlined like any function."""
    found = torch.Tensor.__dict__.get(name)
    if type(found) is not types.FunctionType or is_library_name(found.__module__):
        return None
    from dynamo_capture.sources import Source

    return tx.function(found, Source("dict_attr", Source("constant", None, (torch.Tensor,)), name))


class TensorMethodValue(Value):
    """A bound method of a tensor, such as ``x.view``."""

    __slots__ = ("name", "tensor")

    def __init__(self, tensor: TensorValue, name: str) -> None:
        self.source = None
        self.tensor = tensor
        self.name = name

    @property
    def pytype(self) -> type:
        return types.BuiltinMethodType

    def call(self, tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return self.tensor.call_method(tx, self.name, args, kwargs)

    def truth(self, tx: Capture) -> bool:
        return True

    def children(self) -> Iterator[Value]:
        yield self.tensor

    def reconstruct(self, cg: CodeGen) -> None:
        cg.load(self.tensor)
        cg.load_attr(self.name)


class SymValue(Value):
    """A symbolic int, float or bool: an example (``torch.SymInt`` ...) and how the graph computes it.

    The graph node is made only when an operator or an output needs it, so that sizes which are merely compared or
    only used in shapes that vanish leave nothing behind.
    """

    __slots__ = ("_node", "example", "make")

    def __init__(self, example: Any, make: Callable[[], Node], source: Any = None) -> None:
        self.source = source
        self.example = example
        self.make = make
        self._node: Node | None = None

    @property
    def known_node(self) -> Node | None:
        """The graph node, if it has been made."""
        return self._node

    @property
    def node(self) -> Node:
        """The graph node, made on first use."""
        if self._node is None:
            self._node = self.make()
        return self._node

    @property
    def pytype(self) -> type:
        return {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}[type(self.example)]

    @property
    def is_const(self) -> bool:
        return False

    def const(self) -> Any:
        """Specialise: the value is guarded to be what it is in this call."""
        return self.pytype(self.example)

    def key(self, tx: Capture) -> Any:
        return self.const()

    def truth(self, tx: Capture) -> bool:
        return bool(self.example)

    def getattr(self, tx: Capture, name: str) -> Value:
        if name == "__class__":
            return tx.from_python(self.pytype)
        if name == "real" and self.pytype is not bool:
            return self
        return ConstantValue(self.const()).getattr(tx, name)

    def iterate(self, tx: Capture) -> Iterator[Value]:
        return ConstantValue(self.const()).iterate(tx)

    def getitem(self, tx: Capture, key: Value) -> Value:
        return ConstantValue(self.const()).getitem(tx, key)

    def setitem(self, tx: Capture, key: Value, value: Value) -> None:
        raise GraphBreak("QB06", f"setting an item of {self.describe()}")

    def delitem(self, tx: Capture, key: Value) -> None:
        raise GraphBreak("QB06", f"deleting an item of {self.describe()}")

    def contains(self, tx: Capture, item: Value) -> bool:
        return ConstantValue(self.const()).contains(tx, item)

    def length(self, tx: Capture) -> Value:
        return ConstantValue(self.const()).length(tx)

    def call_method(self, tx: Capture, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        from dynamo_capture.values.arith import DUNDER_OPERATORS, binary

        fn = DUNDER_OPERATORS.get(name)
        if fn is not None and len(args) == 1:
            return binary(tx, fn, self, args[0].realize())
        return ConstantValue(self.const()).call_method(tx, name, args, kwargs)

    def reconstruct(self, cg: CodeGen) -> None:
        cg.load_graph_output(self)

    def describe(self) -> str:
        return f"the symbolic number {self.example}"


def _plain_key(tx: Capture, key: Value) -> Value:
    """A key, in which arrays made here are tensors, and a bool is a mask of no dimensions: whether there are elements,
    it says (guarded)."""
    from dynamo_capture.values.containers import TupleValue
    from dynamo_capture.values.made_arrays import MadeArrayValue, index_of

    key = key.realize()
    if type(key) is MadeArrayValue:
        return index_of(tx, key)
    if isinstance(key, SymValue) and key.pytype is bool:
        return ConstantValue(key.const())
    if type(key) is TupleValue and any(isinstance(i.realize(), (SymValue, MadeArrayValue)) for i in key.items):
        return TupleValue([_plain_key(tx, item) for item in key.items])
    return key


def _mask_of(tensor: TensorValue, key: Value, value: Value) -> tuple[int, Value] | None:
    """The mask that is a key, and the whole dimensions before it, where the values it places get a gradient."""
    from dynamo_capture.values.composites import has_gradient_of_a_mask
    from dynamo_capture.values.containers import TupleValue

    if not isinstance(value, TensorValue) or not value.example.requires_grad:
        return None
    parts = [part.realize() for part in key.items] if isinstance(key, TupleValue) else [key]
    masks = [(d, part) for d, part in enumerate(parts) if isinstance(part, TensorValue)]
    whole = slice(None, None, None)
    if len(masks) != 1 or not all(p.is_const and p.const() == whole for p in parts if p is not masks[0][1]):
        return None
    at, mask = masks[0]
    fits = len(parts) - 1 + mask.example.ndim <= tensor.example.ndim
    return masks[0] if fits and has_gradient_of_a_mask(tensor.example, mask.example, value.example, at) else None


def _drawn_rows(tx: Capture, key: Value) -> list[Value] | None:
    """The index, or those in a list (shuffled in the region), where an int is known only when the region runs."""
    from dynamo_capture.values.containers import ListValue

    key = key.realize()
    rows = [item.realize() for item in key.items] if isinstance(key, ListValue) else [key]
    if not all(row.pytype is int for row in rows):
        return None
    drawn = any(isinstance(row, SymValue) and tx.symbols.is_open(row.example.node.expr) for row in rows)
    return rows if drawn else None


def size_value(tx: Capture, tensor: TensorValue) -> Value:
    """``tensor.shape`` with symbolic sizes where they are dynamic."""
    from dynamo_capture.values.containers import TupleValue

    items: list[Value] = [
        ConstantValue(s) if type(s) is int else tx.sym(s, torch.ops.aten.sym_size.int, [tensor, ConstantValue(d)])
        for d, s in enumerate(tensor.example.shape)
    ]
    return TupleValue(items, cls=torch.Size)
