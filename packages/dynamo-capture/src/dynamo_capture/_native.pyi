"""The frame hook and the guard evaluator (C extension; needs no torch).

**Frame hook (PEP 523).** While a `Context` is active on a thread, every Python frame that starts on it is
looked up in its code object's extra slot. Unknown code is shown once to `Context.filter`; code to be traced
is matched against its cached entries (per code *and* context) by their guards; on a miss `Context.translate`
is asked for a new `Entry`. Frames of generators, coroutines, class bodies and modules are always left alone,
and so is everything while a debugger looks: a trace function is set, or a tool has the debugger's place in
`sys.monitoring`. Profile functions see the code of entries. A trace or profile function is never captured itself.

**Guards.** A `GuardTree` is a tree of accessors (hash-consed: asking for the same accessor of the same parent
gives the same node id) with checks on the nodes. Evaluation is depth first, each node once, stopping at the
first failure. An accessor that raises `Exception` (a missing key or attribute ...) fails the guard.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from types import CellType, CodeType, FunctionType
from typing import Any, Final

# Actions: what to do with a code object (answers of `filter`, `translate`; arguments of `mark`).
RUN: Final[int]  # run this frame plainly now, remember nothing
SKIP: Final[int]  # run it plainly from now on; functions it calls are still looked at
SKIP_RECURSIVE: Final[int]  # run it plainly from now on, with the hook inactive inside
TRACE: Final[int]  # (filter, mark) look for entries, and ask `translate` on a miss
LEAVE: Final[int]  # (translate) run this frame plainly now with the hook inactive inside, remember nothing

# What `Context.notice` is called with.
BEFORE: Final[int]  # the call will run plainly
RAN: Final[int]  # it ran plainly, and returned
RAISED: Final[int]  # it ran plainly, and raised

class Context:
    """One compile configuration: cache entries are kept per (code object, context).

    `filter(code, globals) -> action` is called once per code object (not per context: its answer, unless
    `RUN`, is remembered on the code for every context).

    `translate(code, func, args, globals, builtins, closure, entries) -> Entry | action` is called when no
    entry matches. `args` maps each parameter's name to its value in the order of the frame's local variables:
    positional, keyword-only, then the `*args` tuple, then the `**kwargs` dict. `closure` is the function's
    tuple of cells (() if none; one per `co_freevars`). `entries` lists this context's entries for the code,
    most recently used first. It may answer

    - an `Entry`: cached (in front) and run at once, without evaluating its guards;
    - `RUN`: run this frame plainly, ask again next time;
    - `LEAVE`: likewise, with the hook inactive inside;
    - `TRACE`: look at the entries again (another thread may have added one), and ask again if none matches;
    - `SKIP` / `SKIP_RECURSIVE`: for this context, never ask again: the existing entries stay in use, and a
      frame
      that matches none of them runs plainly (this is how a recompile limit is made).

    While a callback runs the hook is inactive on the thread. An exception from a callback propagates out of
    the frame, as if the user's function had raised it. When a context dies its entries everywhere are
    dropped (so an entry, its code or its guards must not hold its context strongly, or neither dies before
    `reset_code`).

    `notice(when)` is called when a call through :class:`activate` runs no entry that is `compiled`: `BEFORE` it
    where that is known (`plain` is set, or a debugger looks), else after it `RAN` or `RAISED`. An exception from it
    takes the place of the call, or of its result; after `RAISED` it is dropped.
    """

    def __init__(
        self,
        filter: Callable[[CodeType, dict[str, Any]], int],
        translate: Callable[
            [
                CodeType,
                FunctionType,
                dict[str, Any],
                dict[str, Any],
                dict[str, Any],
                tuple[CellType, ...],
                list[Entry],
            ],
            Entry | int,
        ],
        *,
        tag: object = None,
        notice: Callable[[int], object] | None = None,
        plain: bool = False,
    ) -> None: ...
    tag: object
    plain: bool

class Entry:
    """One compiled form of a code object.

    `code` replaces the frame's code. Its parameters (plain positional ones: no defaults, keyword-only, `*` or
    `**`) are the original's locals-parameters in the order of `args` above, followed by one parameter per
    `guards.collect`ed node. `len(code.co_freevars)` is 0 or equal to the original's, in the same order; it
    gets the original frame's closure cells, globals and builtins. Put whatever else it needs (compiled
    graphs, resume functions) into `co_consts` or the globals. `code` is marked `SKIP` (it is never traced
    itself) but the hook stays active inside it, so call the compiled graph through `activate(graph, None)`.

    Give `code` the original's `co_name`, `co_qualname`, `co_filename` and line table: in tracebacks its frame
    stands for the user's, which is not shown.

    `guards=None` matches always. `hits` counts how often it ran. `tag` is yours. `compiled` says whether the code
    calls a compiled graph, rather than only leading on to the rest of the function.
    """

    def __init__(
        self, code: CodeType, guards: GuardTree | None = None, *, tag: object = None, compiled: bool = True
    ) -> None: ...
    @property
    def code(self) -> CodeType: ...
    @property
    def guards(self) -> GuardTree | None: ...
    @property
    def hits(self) -> int: ...
    @property
    def valid(self) -> bool: ...
    @property
    def compiled(self) -> bool: ...
    tag: Any
    def invalidate(self) -> None:
        """Remove the entry from the cache; it is never matched again."""

def set_active(context: Context | None) -> Context | None:
    """Make `context` the one of this thread (None: the hook passes through); returns the previous one.

    The evaluation function is installed in the interpreter only while some thread has a context.
    """

def get_active() -> Context | None:
    """This thread's active context."""

def set_eager(eager: bool) -> None:
    """Whether every call of an :class:`activate` runs with the hook off, on all threads; contexts are told `BEFORE`.

    Calls that have begun go on as they were.
    """

class activate:
    """A callable that runs `fn` with `context` active on the thread and restores the previous one after.

    `activate(fn, None)` runs `fn` with the hook off. Binds like a function when found on a class
    (`descriptor.__get__`); has a `__dict__`, so `functools.update_wrapper` works on it. Overhead about 50 ns.
    """

    def __init__(self, fn: Callable[..., Any], context: Context | None) -> None: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
    def __get__(self, instance: object, owner: type | None = None) -> Any: ...
    @property
    def fn(self) -> Callable[..., Any]: ...
    @property
    def context(self) -> Context | None: ...
    __dict__: dict[str, Any]

def mark(code: CodeType, action: int) -> None:
    """Set what the hook does with `code` (`SKIP`, `SKIP_RECURSIVE`, `TRACE`; `RUN` forgets the filter's
    answer).

    Entries are kept. Raises ValueError for another action.
    """

def looks_up_plainly(cls: type) -> bool:
    """Whether a class's instances look up attributes as those of `object` do, in C."""

def marked(code: CodeType) -> int:
    """The remembered action of `code`; `RUN` when the filter has not been asked."""

def entries(code: CodeType, context: Context | None = None) -> list[Entry]:
    """The cached entries of `code` (of one context, or of all), most recently used first."""

def reset_code(code: CodeType) -> None:
    """Drop all entries of `code` and its remembered action."""

def dict_entry(dict: dict[Any, Any], place: int) -> tuple[Any, Any] | None:
    """The first entry at or behind a place of a dict's table, as `GuardTree.dict_key` and `dict_value` take it: the
    n-th one where nothing was taken out of the dict."""

def reset_all() -> None:
    """`reset_code` for every code object that has entries or a remembered `TRACE`."""

class GuardTree:
    """Accessors and checks over a frame's values. Node ids are small ints.

    Every `check_*` takes `text` (shown by `explain_failure`; by default made from the node's path) and
    `reason` (why the guard exists, e.g. the user's line).
    """

    def __init__(self) -> None: ...

    # Roots
    def local(self, index: int, name: str | None = None) -> int:
        """The `index`-th parameter, in the order of `Context.translate`'s `args`."""
    def closure(self, index: int, name: str | None = None) -> int:
        """The contents of the closure cell `index` (fails while the cell is empty)."""
    def closure_cell(self, index: int) -> int:
        """The closure cell `index` itself."""
    def global_(self, name: str) -> int:
        """`globals[name]`, else (as the language does) `builtins[name]`."""
    def globals_dict(self) -> int:
        """The globals dict itself (to `check_contains` a name, say)."""
    def builtin(self, name: str) -> int:
        """`builtins[name]`."""
    def constant(self, obj: object) -> int:
        """`obj` itself, held strongly (e.g. another module's `__dict__`)."""
    def weak(self, obj: object) -> int:
        """`obj` itself, held weakly: the tree turns invalid when it dies."""

    # Accessors
    def attr(self, parent: int, name: str) -> int:
        """`getattr(parent, name)`, with all its semantics."""
    def dict_attr(self, parent: int, name: str) -> int:
        """`parent.__dict__[name]` for an instance (a class or module too); no class lookup, no
        `__getattr__`."""
    def instance_dict(self, parent: int) -> int:
        """`parent.__dict__` itself (for `check_contains`, `check_dict_keys`)."""
    def item(self, parent: int, key: object) -> int:
        """`parent[key]`: the raw dict item (dict and subclasses, no `__missing__`), tuple and list by int
        index (negative too), anything else through `__getitem__`."""
    def module_item(self, parent: int, table: str, name: str) -> int:
        """`parent.__dict__[table][name]`; table is "_parameters", "_buffers" or "_modules"."""
    def dict_key(self, parent: int, index: int) -> int:
        """The first key at or behind a place of a dict's table: the `index`-th one where nothing was taken out."""
    def dict_value(self, parent: int, index: int) -> int:
        """The value of the same entry as `dict_key`'s."""
    def type_of(self, parent: int) -> int:
        """`type(parent)`."""
    def func_closure(self, parent: int, index: int) -> int:
        """`parent.__closure__[index].cell_contents` of a Python function."""
    def func_closure_cell(self, parent: int, index: int) -> int:
        """`parent.__closure__[index]`, the cell itself."""
    def func_defaults(self, parent: int) -> int:
        """`parent.__defaults__` of a Python function (None if it has none)."""
    def func_kwdefaults(self, parent: int) -> int:
        """`parent.__kwdefaults__` of a Python function (None if it has none)."""
    def func_code(self, parent: int) -> int:
        """`parent.__code__` of a Python function."""
    def method_self(self, parent: int) -> int:
        """`parent.__self__` of a bound method."""
    def method_func(self, parent: int) -> int:
        """`parent.__func__` of a bound method."""
    def grad(self, parent: int) -> int:
        """`parent.grad` of a tensor."""
    def call(self, parent: int, fn: Callable[[Any], Any], text: str | None = None) -> int:
        """`fn(parent)`: last resort."""

    # Checks on one node
    def check_type(self, node: int, cls: type, *, text: str | None = None, reason: str | None = None) -> None:
        """`type(node) is cls`."""
    def check_id(self, node: int, obj: object, *, text: str | None = None, reason: str | None = None) -> None:
        """`node is obj`. `obj` is held weakly where it can be (the tree turns invalid when it dies), else
        strongly."""
    def check_equals(
        self, node: int, value: object, *, text: str | None = None, reason: str | None = None
    ) -> None:
        """Same type and value. Floats and complex compare by bits except that NaNs are equal (so -0.0 is not
        0.0); tuples, lists and slices element by element; anything else by identity or `==`."""
    def check_len(self, node: int, n: int, *, text: str | None = None, reason: str | None = None) -> None:
        """`len(node) == n` (`n=0`: "is empty", e.g. hook dicts)."""
    def check_dict_keys(
        self, node: int, keys: Sequence[object], *, text: str | None = None, reason: str | None = None
    ) -> None:
        """A dict with exactly these keys, in this order."""
    def check_contains(
        self,
        node: int,
        key: object,
        present: bool = True,
        *,
        text: str | None = None,
        reason: str | None = None,
    ) -> None:
        """`(key in node) is present`, for dicts and sets (raw lookup) and anything with `__contains__`."""
    def check_no_instance_attr(
        self, node: int, name: str, *, text: str | None = None, reason: str | None = None
    ) -> None:
        """The object has no instance `__dict__` or no `name` in it (so a class attribute is not shadowed)."""
    def check_set(
        self, node: int, value: frozenset[Any] | set[Any], *, text: str | None = None, reason: str | None =
        None
    ) -> None:
        """A set or frozenset with equal contents."""
    def check_tensor(
        self,
        node: int,
        example: Any,
        *,
        sizes: Sequence[int | None] | None = None,
        strides: Sequence[int | None] | None = None,
        min_size: int = 2,
        requires_grad: bool | None = None,
        storage_offset: bool = False,
        stored: bool = False,
        text: str | None = None,
        reason: str | None = None,
    ) -> None:
        """A tensor of the example's exact Python type, dtype, device, layout, dispatch keys (conj and neg
        bits, inference, functorch wrappers, subclass), dimension, and

        - `sizes`: per dimension an int, or None for "dynamic: at least `min_size`"; default the example's;
        - `strides`: per dimension an int, or None for unchecked; default the example's, or if any size is
          dynamic and the example is contiguous: "is contiguous";
        - `requires_grad`: default the example's;
        - `stored`: the metadata of a subclass are those in its memory; else it is asked, which may run its Python.

        Only metadata of `example` is kept. Needs `init_torch`.
        """
    def check_lambda(
        self, node: int, fn: Callable[[Any], bool], *, text: str | None = None, reason: str | None = None
    ) -> None:
        """`fn(node)` is true; an `Exception` from it fails the guard."""

    # Checks over several nodes: evaluated after all nodes, in the order given
    def check_same(self, a: int, b: int, *, text: str | None = None, reason: str | None = None) -> None:
        """`a is b`."""
    def check_distinct(
        self, nodes: Sequence[int], *, text: str | None = None, reason: str | None = None
    ) -> None:
        """All these objects are different objects."""
    def check_together(
        self, nodes: Sequence[int], fn: Callable[..., bool], *, text: str | None = None, reason: str | None = None
    ) -> None:
        """`fn(*nodes)` is true; an `Exception` from it fails the guard."""
    def check_no_overlap(
        self,
        written: Sequence[int],
        others: Sequence[int],
        *,
        text: str | None = None,
        reason: str | None = None,
    ) -> None:
        """No tensor of `written` reaches memory that another of `written` or `others` reaches (by the range of
        addresses from the first to the last element)."""
    def check_shape(
        self,
        program: Sequence[int | str | tuple[Any, ...]],
        *,
        text: str | None = None,
        reason: str | None = None,
    ) -> None:
        """A postfix integer program leaves a nonzero value. Tokens: an int; operands `("size", node, dim)`,
        `("stride", node, dim)`, `("offset", node)`, `("numel", node)`, `("int", node)`; operators `+ - *`
        `//` `%` (floor, as Python) `ceildiv min max neg abs == != < <= > >= and or not`. 64-bit; overflow or
        division by zero fails the guard. Several checks that share operands: pass them in one program joined
        by `and`."""
    def check_global_state(self, *, text: str | None = None, reason: str | None = None) -> None:
        """The torch state of now: grad and inference mode, thread-local dispatch keys (autocast, dispatch
        modes, functorch), autocast dtypes, torch-function stack depth and enablement, deterministic
        algorithms, default dtype. Needs `init_torch`."""
    def check_call(
        self, fn: Callable[[], object], value: object, *, text: str | None = None, reason: str | None = None
    ) -> None:
        """`fn()` is `value`, or equal to it as by `check_equals` (state known only to Python)."""

    # Evaluation
    def collect(self, nodes: Sequence[int]) -> None:
        """Pass these nodes' values (in this order) as extra positional arguments to the entry's code, which may take
        the last ones as a tuple (``*rest``)."""
    def check(
        self,
        args: Sequence[Any],
        globals: Mapping[str, Any] | None = None,
        builtins: Mapping[str, Any] | None = None,
        closure: Sequence[CellType] | None = None,
    ) -> bool:
        """Evaluate against explicit values (the hook does this itself)."""
    def collected(
        self,
        args: Sequence[Any],
        globals: Mapping[str, Any] | None = None,
        builtins: Mapping[str, Any] | None = None,
        closure: Sequence[CellType] | None = None,
    ) -> tuple[Any, ...] | None:
        """The collected values, or None when a guard fails."""
    def explain_failure(
        self,
        args: Sequence[Any],
        globals: Mapping[str, Any] | None = None,
        builtins: Mapping[str, Any] | None = None,
        closure: Sequence[CellType] | None = None,
    ) -> str | None:
        """Which guard fails first, with the value found and the reason; None if all hold."""
    def describe(self) -> list[str]:
        """All guards as text, in evaluation order."""
    def trails(self) -> list[tuple[int, int, int]]:
        """Of each root whose guards held: the words and tensors they rest on, and how many are evaluated anew."""
    def path(self, node: int) -> str:
        """The node as a Python-like expression: `L['x'].weight`, `G['torch'].nn`."""
    @property
    def valid(self) -> bool:
        """False once a weakly held object has died."""
    def __len__(self) -> int:
        """The number of checks."""

def init_torch(
    tensor_type: type,
    plain_types: tuple[type, ...],
    probes: tuple[tuple[Any, dict[str, int]], ...],
    autograd: tuple[Any, ...],
    state_names: tuple[str, ...],
    state_readers: tuple[Callable[[], object], ...],
    libraries: tuple[str, ...],
) -> dict[str, bool]:
    """Called by `dynamo_capture.hook.init_torch`, once: `plain_types` may be read natively, `probes` are
    tensors with what Python knows of them, `autograd` three whose `requires_grad` was never set, is set, was set
    and set back, the state readers are the slow path of `check_global_state`, `libraries` are paths of the loaded
    torch libraries. Returns which native paths agreed with the probes ("tensor", "state")."""

def use_native(tensor: bool, state: bool) -> None:
    """Switch the native paths of later checks on (where they agreed with the probes) or off."""

def read_tensor(tensor: Any) -> dict[str, Any]:
    """Sizes, strides, offset and requires_grad as the guards see them."""

def state_words() -> dict[str, int] | None:
    """torch's global state as the guards see it, by name; None without the native path."""

def store_attribute(owner: object, name: str, value: object, /) -> None:
    """``object.__setattr__``, which C code calls faster than through the slot's wrapper."""

def fill_ordered(target: OrderedDict[Any, Any], items: dict[Any, Any], /) -> None:
    """``OrderedDict.__setitem__`` of each item in turn; nothing else may have ``items``."""

def stats() -> dict[str, int]:
    """Counters since the last `reset_stats`: frames looked at, hits, misses, translations."""

def reset_stats() -> None:
    """Set the counters to zero."""
