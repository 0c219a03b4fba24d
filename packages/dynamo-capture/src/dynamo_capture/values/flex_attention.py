"""``flex_attention``: its score and mask functions are captured for one score and run for all of them at once.

A score function is written for scalars: a score and the places that it belongs to. Captured on tensors without
dimensions, its elementwise calls mean the same on tensors of four dimensions that broadcast against each other
(``batch x head x query x key``), and reading a tensor at such places (``bias[head]``) is an indexing by them. Calls
that would mean something else there break the graph. The functions' calls then are calls of the graph like any other,
between the product that makes the scores and the softmax over them.
"""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any

import torch
import torch.fx
from torch.utils._python_dispatch import TorchDispatchMode

from dynamo_capture.breaks import GraphBreak
from dynamo_capture.subgraph import InnerEffects, SubgraphBuilder
from dynamo_capture.values.base import Value, display
from dynamo_capture.values.constant import ConstantValue
from dynamo_capture.values.containers import ListValue, SliceValue, TupleValue
from dynamo_capture.values.tensor import SymValue, TensorValue
from dynamo_capture.values.torch_calls import special_by_name
from prims.control import ScoredAttention
from prims.spec import TensorSpec

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture
    from dynamo_capture.graph_builder import GraphBuilder

_MODULE = "torch.nn.attention.flex_attention"
_PLACES = ("batch", "head", "query_index", "key_index")
_POINTWISE = torch.Tag.pointwise
#: Overloads that are elementwise though PyTorch does not say so, by packet.
_ELEMENTWISE = frozenset(
    ("aten::alias", "aten::clone", "aten::detach", "aten::lift_fresh", "aten::_to_copy", "aten::zeros_like",
     "aten::ones_like", "aten::full_like", "aten::scalar_tensor", "aten::full", "aten::masked_fill",
     "aten::masked_fill_", "aten::floor_divide", "aten::floor_divide_", "aten::log_sigmoid_forward")
)  # fmt: skip
#: Makers of tensors that take no more than type and device of what they are asked of.
_MAKERS = frozenset(("aten::new_ones", "aten::new_zeros", "aten::new_full", "aten::new_empty"))


class _Seen(TorchDispatchMode):
    """Notes the operators that a call comes to."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: list[torch._ops.OpOverload] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.ops.append(func)
        return func(*args, **(kwargs or {}))


class _ScalarGraph(SubgraphBuilder):
    """Builds the graph of a function of scalars that holds for tensors of many.

    Attributes:
        varying: the nodes whose values differ from score to score.
    """

    def __init__(self, tx: Capture, outer: GraphBuilder) -> None:
        super().__init__(tx, outer)
        self.varying: set[torch.fx.Node] = set()
        #: The one input that is written as a whole, as all scores are one tensor.
        self.score: TensorValue | None = None
        #: A row that was read of a tensor, by its node: the tensor, and the places that it was read at.
        self._rows: dict[torch.fx.Node, tuple[Value, list[Value]]] = {}

    def scalar(self, name: str, dtype: torch.dtype, device: torch.device) -> TensorValue:
        """An input that differs from score to score."""
        value = self.new_input(name, TensorSpec((), dtype, device, ()))
        self.varying.add(value.node)
        return value

    def call(self, fn: Any, args: list[Value], kwargs: dict[str, Value], *, method: bool = False) -> Value:
        operands = [v for v in _tensors([*args, *kwargs.values()]) if self.lower(v)[0] in self.varying]
        if not operands:
            return super().call(fn, args, kwargs, method=method)
        if fn is operator.getitem:
            return self._read(args[0].realize(), args[1].realize())
        before = [(v, v.example._version) for v in operands if not v.example.is_inference()]
        uncounted = [v for v in operands if v.example.is_inference() and v is not self.score]
        with _Seen() as seen:
            result = super().call(fn, args, kwargs, method=method)
        names = {op._schema.name for op in seen.ops}
        for op in seen.ops:
            if _POINTWISE not in op.tags and op._schema.name not in _ELEMENTWISE | _MAKERS:
                raise _varies(f"{op._schema.name} of")
        if any(v.example.ndim for v in _tensors([*args, *kwargs.values(), result])):
            raise _varies(f"{', '.join(sorted(names))} of a tensor with dimensions and of")
        written = any(v.example._version != version and v is not self.score for v, version in before)
        if written or uncounted and any(op._schema.is_mutable for op in seen.ops):
            raise _varies("writing into")
        if isinstance(result, TensorValue) and not names & _MAKERS:
            self.varying.add(result.node)
        return result

    def _read(self, tensor: Value, key: Value) -> Value:
        """``tensor[key]`` with places in the key."""
        places: list[Value] = []
        if isinstance(tensor, TensorValue) and self.lower(tensor)[0] in self.varying:
            if self.lower(tensor)[0] not in self._rows:
                raise _varies("an item of")
            tensor, places = self._rows[self.lower(tensor)[0]]
            places = list(places)
        if not isinstance(tensor, TensorValue):
            raise _varies("reading another object than a tensor at")
        items = key.items if isinstance(key, TupleValue) else [key]
        for item in [value.realize() for value in items]:
            if isinstance(item, TensorValue) and item.example.ndim == 0 and item.example.dtype in _INDICES:
                places.append(item)
            elif isinstance(item, ConstantValue) and type(item.value) is int:
                at = ConstantValue(item.value)
                tensor = super().call(torch.select, [tensor, ConstantValue(len(places)), at], {}).realize()
            else:
                kind = "a slice" if isinstance(item, SliceValue) else display(item)
                raise _varies(f"{kind} beside")
        result = super().call(torch.ops.aten.index.Tensor, [tensor, ListValue(places)], {}).realize()
        assert isinstance(result, TensorValue)
        self.varying.add(result.node)
        if result.example.ndim:
            self._rows[result.node] = (tensor, places)
        return result

    def broadcast(self) -> torch.fx.GraphModule:
        """The graph for tensors of four dimensions: what has none and meets such a one is given four."""
        for node in list(self.graph.nodes):
            if node in self._rows and not node.users:
                self.graph.erase_node(node)
            elif node in self.varying and node.op != "placeholder":
                skipped = node.args[0] if node.target is torch.ops.aten.index.Tensor else None
                for operand in node.all_input_nodes:
                    is_tensor = hasattr(operand.meta["spec"], "dtype")
                    if is_tensor and operand not in self.varying and operand is not skipped:
                        with self.graph.inserting_before(node):
                            view = self.graph.call_method("view", (operand, (1, 1, 1, 1)))
                        node.replace_input_with(operand, view)
        return torch.fx.GraphModule(torch.nn.Module(), self.graph, "Scores")


_INDICES = (torch.int64, torch.int32)


def _tensors(values: list[Value]) -> list[TensorValue]:
    found: list[TensorValue] = []
    for value in [value.realize() for value in values]:
        if isinstance(value, TensorValue):
            found.append(value)
        else:
            found += _tensors(list(getattr(value, "items", ())))
    return found


def _varies(what: str) -> GraphBreak:
    return GraphBreak("QB23", f"{what} what differs from score to score")


@special_by_name(_MODULE, "flex_attention")
def _call(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    from torch.nn.attention import flex_attention as module

    names = ("query", "key", "value", "score_mod", "block_mask", "scale", "enable_gqa", "return_lse", "kernel_options")
    given = {name: value.realize() for name, value in {**dict(zip(names, args, strict=False)), **kwargs}.items()}
    query, key, value = (given.get(name) for name in names[:3])
    if not all(isinstance(v, TensorValue) for v in (query, key, value)):
        raise _refused("other arguments than tensors")
    assert isinstance(query, TensorValue) and isinstance(key, TensorValue) and isinstance(value, TensorValue)
    block_mask = _present(given.get("block_mask"))
    grouped = _flag(given.get("enable_gqa"))
    _check(query.example, key.example, value.example, grouped, block_mask is not None)
    scale = _present(given.get("scale"))
    factor = 1.0 / math.sqrt(query.example.shape[-1]) if scale is None else scale.const()
    mask = None if block_mask is None else _mask_function(tx, module, block_mask, query.example, key.example)
    device = query.example.device
    scores, read = _captured(tx, _present(given.get("score_mod")), True, query.example.dtype, device)
    seen, also = _captured(tx, mask, False, query.example.dtype, device)
    aux = _present(given.get("return_aux"))
    largest = aux is not None and _flag(aux.getattr(tx, "max_scores"))
    tables, block = _tables(tx, block_mask)
    target = ScoredAttention(scores, seen, len(read), float(factor), largest, len(tables), block)
    taken = (query, key, value, *tables, *read, *also)
    operands, examples = [tx.graph.lower(v)[0] for v in taken], [_example(v) for v in taken]
    result = tx.graph.wrap_result(target(*examples), tx.graph.call_node(target, operands))
    out, sums, most = result.unpack(tx)
    if aux is None:
        return TupleValue([out, sums]) if _flag(given.get("return_lse")) else out
    asked = [(sums, _flag(aux.getattr(tx, "lse"))), (most, largest)]
    if largest and device.type == "cpu":
        raise _refused("the largest scores asked for on a CPU")
    fields = [value if wanted else ConstantValue(None) for value, wanted in asked]
    return TupleValue([out, tx.from_python(module.AuxOutput).realize().call(tx, fields, {})])


#: A block mask's tables: how many blocks each one sees and which, then those that it sees whole.
_OF_QUERIES = ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices")
_OF_KEYS = ("q_num_blocks", "q_indices", "full_q_num_blocks", "full_q_indices")


def _tables(tx: Capture, block_mask: Value | None) -> tuple[list[TensorValue], tuple[int, int]]:
    """The tables of a block mask that has them for queries and keys alike, and the sizes of its blocks."""
    if block_mask is None:
        return [], (0, 0)
    found: list[list[TensorValue]] = []
    for names in (_OF_QUERIES, _OF_KEYS):
        values = [block_mask.getattr(tx, name).realize() for name in names]
        found.append([v for v in values if isinstance(v, TensorValue)])
    queries, keys = (v.realize().const() for v in block_mask.getattr(tx, "BLOCK_SIZE").realize().unpack(tx))
    if len(found[0]) != len(found[1]) or len(found[0]) % 2:
        return [], (0, 0)
    return [*found[0], *found[1]], (queries, keys)


def _example(value: Value) -> Any:
    return value.example if isinstance(value, (TensorValue, SymValue)) else value.const()


def _refused(why: str) -> GraphBreak:
    return GraphBreak("QB08", f"flex_attention with {why}")


def _present(value: Value | None) -> Value | None:
    value = None if value is None else value.realize()
    return None if isinstance(value, ConstantValue) and value.value is None else value


def _flag(value: Value | None) -> bool:
    return value is not None and bool(value.realize().const())


def _check(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, grouped: bool, masked: bool) -> None:
    """Break before a call that PyTorch refuses, which says why."""
    tensors = (query, key, value)
    if any(t.ndim != 4 for t in tensors):
        raise _refused("tensors of other than four dimensions")
    if len({t.device for t in tensors}) > 1 or query.device.type not in ("cpu", "cuda"):
        raise _refused("tensors of these devices")
    if not all(t.dtype.is_floating_point and t.dtype.itemsize > 1 for t in tensors):
        raise _refused("tensors of these element types")
    heads, given = query.shape[1], key.shape[1]
    if value.shape[1] != given or (heads != given if not grouped else heads % given != 0):
        raise _refused("these numbers of heads")
    if query.shape[3] != key.shape[3] or key.shape[2] != value.shape[2] or key.shape[0] != value.shape[0]:
        raise _refused("these shapes")
    if query.shape[0] != key.shape[0] and (key.shape[0] != 1 or not masked):
        raise _refused("these batch sizes")


def _mask_function(tx: Capture, module: Any, block_mask: Value, query: torch.Tensor, key: torch.Tensor) -> Value | None:
    if block_mask.pytype is not module.BlockMask:
        raise _refused(f"{display(block_mask)} as its block mask")
    sizes = [v.realize().const() for v in block_mask.getattr(tx, "BLOCK_SIZE").realize().unpack(tx)]
    if sizes != [module._LARGE_SPARSE_BLOCK_SIZE] * 2:
        lengths = [v.realize() for v in block_mask.getattr(tx, "seq_lengths").realize().unpack(tx)]
        if not all(_example(v) == n for v, n in zip(lengths, (query.shape[2], key.shape[2]), strict=True)):
            raise _refused("a block mask for other lengths")
    blocks = block_mask.getattr(tx, "kv_num_blocks").realize()
    if not isinstance(blocks, TensorValue) or blocks.example.device != query.device:
        raise _refused("a block mask on another device")
    if query.shape[0] != key.shape[0] and blocks.example.shape[0] != query.shape[0]:
        raise _refused("these batch sizes")
    mask = block_mask.getattr(tx, "mask_mod").realize()
    function = mask.real() if mask.source is not None else getattr(mask, "fn", None)
    if function is getattr(module, "_sliced_mask_mod_error", None):
        raise _refused("a sliced block mask")
    return None if function is module.noop_mask else mask


def _captured(
    tx: Capture, function: Value | None, scored: bool, dtype: torch.dtype, device: torch.device
) -> tuple[torch.fx.GraphModule | None, list[Value]]:
    """A function's graph over broadcast tensors, and the values of the program that it reads."""
    if function is None:
        return None, []
    outer, effects, modes = tx.graph, tx.side, dict(tx.modes)
    builder = tx.graph = _ScalarGraph(tx, outer)
    side = tx.side = InnerEffects(effects)
    try:
        working = torch.float64 if dtype == torch.float64 else torch.float32
        builder.score = builder.scalar("score", working, device) if scored else None
        inputs: list[Value] = [builder.score] if builder.score is not None else []
        inputs += [builder.scalar(name, torch.int64, device) for name in _PLACES]
        result = function.call(tx, inputs, {}).realize()
        if not isinstance(result, TensorValue) or result.example.ndim:
            raise GraphBreak("QB23", f"it returns {display(result)}, not a scalar tensor")
        if side.reached([function]) or builder.writes_outside() or tx.modes != modes:
            raise GraphBreak("QB23", "it has side effects")
        builder.graph.output(builder.lower(result)[0])
    finally:
        tx.graph, tx.side = outer, effects
        effects.epoch += side.epoch
    return builder.broadcast(), builder.lifted
