"""Python functions, bound methods, partials, cells and ``super()``."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from dynamo_capture.breaks import GraphBreak
from dynamo_capture.rules import is_library_class
from dynamo_capture.sources import Source
from dynamo_capture.values.base import Value
from dynamo_capture.values.classes import bind_attribute, class_source, no_attribute
from dynamo_capture.values.constant import ConstantValue
from dynamo_capture.values.containers import TupleValue
from dynamo_capture.values.identity import identity_key, pin

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture
    from dynamo_capture.codegen import CodeGen
    from dynamo_capture.values.dicts import DictValue

__all__ = ["CellValue", "FunctionValue", "MethodValue", "PartialValue", "SuperValue", "bind_arguments"]


class CellValue(Value):
    """A closure cell; ``content`` is None while it is empty."""

    __slots__ = ("_content", "_loaded", "cell", "content_source")

    mutable = True

    def __init__(
        self, content: Value | None = None, *, cell: Any = None, source: Any = None, content_source: Any = None
    ) -> None:
        self.source = source
        self.cell = cell
        self.content_source = content_source
        self._content = content
        self._loaded = cell is None

    @property
    def pytype(self) -> type:
        return types.CellType

    def get(self, tx: Capture) -> Value | None:
        """The content, or None when the cell is empty."""
        if not self._loaded:
            self._loaded = True
            try:
                self._content = tx.lazy(self.cell.cell_contents, self.content_source)
            except ValueError:
                self._content = None
        return self._content

    def set(self, tx: Capture, value: Value | None) -> None:
        """Store into the cell."""
        tx.side.mutate(self)
        self._loaded = True
        self._content = value

    @property
    def content(self) -> Value | None:
        """The content as last stored or read."""
        return self._content

    def getattr(self, tx: Capture, name: str) -> Value:
        if name == "cell_contents":
            content = self.get(tx)
            if content is None:
                raise tx.observed(ValueError("Cell is empty"))
            return content
        return super().getattr(tx, name)

    def reconstruct(self, cg: CodeGen) -> None:
        cg.call_const(types.CellType, [])  # filled as a side effect

    def children(self) -> Iterator[Value]:
        return iter(() if self._content is None else (self._content,))


class FunctionValue(Value):
    """A Python function: an existing one (``fn``), or one that the region defines."""

    __slots__ = ("_attrs", "_keywords", "closure", "code", "defaults", "fn", "globals", "kwdefaults", "name",
                 "qualname")  # fmt: skip

    mutable = True

    def __init__(self, fn: types.FunctionType | None, source: Any = None) -> None:
        self.source = source
        self.fn = fn
        self._attrs: dict[str, Value] = {}
        self.defaults: list[Value] | None = None
        self.kwdefaults: dict[str, Value] | None = None
        self._keywords: DictValue | None = None  # `__kwdefaults__`, once the program has it: it may write to it
        self.closure: tuple[CellValue, ...] | None = None
        if fn is not None:
            self.code = fn.__code__
            self.globals = fn.__globals__
            self.name = fn.__name__
            self.qualname = fn.__qualname__

    @classmethod
    def make(
        cls, code: types.CodeType, globals_: dict[str, Any], closure: tuple[CellValue, ...], qualname: str | None = None
    ) -> FunctionValue:
        """A function that the region defines."""
        self = cls(None)
        self.code = code
        self.globals = globals_
        self.closure = closure
        self.name = code.co_name
        self.qualname = qualname or code.co_qualname
        self.defaults = []
        self.kwdefaults = {}
        return self

    @property
    def pytype(self) -> type:
        return types.FunctionType

    def real(self) -> Any:
        if self.fn is None:
            raise GraphBreak("QB06", f"the function {self.qualname!r} defined in the region as a real object")
        return self.fn

    def key(self, tx: Capture) -> Any:
        return identity_key(tx, self)

    def truth(self, tx: Capture) -> bool:
        return True

    def root(self) -> Source:
        """The function's source, or the function itself as a constant."""
        return self.source or Source("constant", None, (self.fn,))

    def cells(self, tx: Capture) -> tuple[CellValue, ...]:
        """The closure's cells, in the order of ``co_freevars``."""
        if self.closure is None:
            cells = self.fn.__closure__ or ()  # type: ignore[union-attr]
            self.closure = tuple(
                tx.cell(
                    cell,
                    lambda i=i: Source("func_closure_cell", self.root(), i),  # type: ignore[misc]
                    lambda i=i: Source("func_closure", self.root(), i),  # type: ignore[misc]
                )
                for i, cell in enumerate(cells)
            )
        return self.closure

    def default_values(self, tx: Capture) -> list[Value]:
        """The positional defaults."""
        if self.defaults is None:
            values = self.fn.__defaults__ or ()  # type: ignore[union-attr]
            base = Source("func_defaults", self.source) if self.source else None
            if base is not None and values:
                tx.guards.length(base, len(values))
            elif base is not None:
                tx.guards.is_object(base, None)
            self.defaults = [tx.from_python(v, base and base.item(i)) for i, v in enumerate(values)]
        return self.defaults

    def keyword_defaults(self, tx: Capture) -> dict[str, Value]:
        """The keyword-only defaults."""
        if self._keywords is not None:
            return {key.realize().const(): value for key, value in self._keywords.whole(tx).values()}
        if self.kwdefaults is None:
            values = self.fn.__kwdefaults__ or {}  # type: ignore[union-attr]
            base = Source("func_kwdefaults", self.source) if self.source else None
            if base is not None and values:
                tx.guards.dict_keys(base, list(values))
            elif base is not None:
                tx.guards.is_object(base, None)
            self.kwdefaults = {k: tx.from_python(v, base and base.item(k)) for k, v in values.items()}
        return self.kwdefaults

    def call(self, tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return tx.call_function(self, args, kwargs)

    def getattr(self, tx: Capture, name: str) -> Value:
        if name in self._attrs:
            return self._attrs[name]
        simple = {"__name__": self.name, "__qualname__": self.qualname, "__code__": self.code}
        if name in simple:
            return tx.from_python(simple[name], self.root().attr(name) if self.fn is not None else None)
        if name == "__globals__":
            return tx.from_python(self.globals)  # the guard of the function says that they are these
        if name == "__closure__":
            cells = self.cells(tx)
            return TupleValue(list(cells)) if cells else ConstantValue(None)
        if name == "__defaults__":
            defaults = self.default_values(tx)
            return TupleValue(list(defaults)) if defaults else ConstantValue(None)
        if name == "__class__":
            return tx.from_python(types.FunctionType)
        if name == "__call__":
            return self
        if name == "__get__":
            from dynamo_capture.values.callables import HandlerValue

            return HandlerValue(lambda tx, args, kwargs: MethodValue(args[0], self), "__get__")
        if self.fn is not None:
            if tx.side.sets_on_functions:
                self._pin(tx)
                if (found := tx.side.found_on(self.fn, name)) is not None:
                    if tx.later is not None:
                        tx.later.of_function(self.fn, (name,))
                    return found
                if name == "__dict__" and tx.side.is_set_on(self.fn):
                    raise GraphBreak("QB06", f"__dict__ of {self.describe()}, whose attributes are set here")
            if name == "__kwdefaults__":
                return self._keyword_table(tx.from_python(self.fn.__kwdefaults__, self.root().attr(name)))
            written: Any = None if _is_part(name) else tx.changed(self.fn.__dict__)
            if written is not None:  # by way of `fn.__dict__`
                entries = {key.realize().const(): value for key, value in written.whole(tx).values()}
                if name not in entries:
                    raise tx.observed(no_attribute("function", name))
                return entries[name]
            if name in self.fn.__dict__:
                if tx.later is not None:
                    tx.later.of_function(self.fn, (name,))
                return tx.from_python(self.fn.__dict__[name], self.root().attr(name))
            if not hasattr(self.fn, name):
                tx.guards.no_instance_attr(self.root(), name)
                raise tx.observed(no_attribute("function", name))
            return tx.from_python(getattr(self.fn, name), self.root().attr(name))
        from dynamo_capture.values.dicts import DictValue, OwnAttributes

        if name == "__dict__":
            return OwnAttributes(self)
        if name == "__kwdefaults__":
            if self._keywords is None and self.kwdefaults:
                self._keywords = DictValue.named(self.kwdefaults)
            return self._keywords or ConstantValue(None)
        if name == "__annotations__":  # a dictionary of its own, made as it is asked for
            return self._annotations(tx)
        if name == "__annotate__" and _is_part(name):
            return ConstantValue(None)
        if name == "__module__":
            return tx.from_python(self.globals.get("__name__"))
        if name == "__doc__":
            consts = self.code.co_consts
            has = self.code.co_flags & _HAS_DOCSTRING or sys.version_info < (3, 14)
            return tx.from_python(consts[0] if has and consts and isinstance(consts[0], str) else None)
        if _is_part(name):
            raise GraphBreak("QB06", f"attribute {name!r} of a function made here")
        raise tx.observed(no_attribute("function", name))

    def _annotations(self, tx: Capture) -> Value:
        """The dictionary that is kept from now on; from Python 3.14 on a function of its own makes it."""
        from dynamo_capture.values.dicts import DictValue

        annotate = self._attrs.get("__annotate__")
        table: Value = DictValue.named({})
        if annotate is not None and not (annotate.realize().is_const and annotate.realize().const() is None):
            table = annotate.realize().call(tx, [ConstantValue(1)], {}).realize()
            if type(table) is not DictValue:
                raise GraphBreak("QB06", f"annotations of {self.describe()} that are {table.describe()}")
        tx.side.epoch += 1
        self._attrs["__annotations__"] = table  # which, set on the function that is made, takes the place of both
        return table

    def _keyword_table(self, table: Value) -> Value:
        """`table`, of which later calls take the defaults: the program may write to it."""
        from dynamo_capture.values.dicts import DictValue

        table = table.realize()
        self._keywords = table if isinstance(table, DictValue) else None
        return table

    def own_attributes(self) -> dict[str, Value]:
        """What stands in the `__dict__` of a function that the region defines."""
        return {k: v for k, v in self._attrs.items() if not _is_part(k)}

    def set_own(self, tx: Capture, name: Any, value: Value) -> None:
        """``function.__dict__[name] = value``."""
        if type(name) is not str or _is_part(name):
            raise GraphBreak("QB06", f"the key {name!r} in the __dict__ of a function made here")
        self.setattr(tx, name, value)

    def drop_own(self, tx: Capture, name: str) -> None:
        """``del function.__dict__[name]``."""
        tx.side.epoch += 1
        del self._attrs[name]

    def attribute_set(self, name: str) -> Value | None:
        """An attribute that the region has set."""
        return self._attrs.get(name)

    def setattr(self, tx: Capture, name: str, value: Value) -> None:
        if self.fn is not None:
            self._set_on_existing(tx, name, value)
            return
        tx.side.epoch += 1
        if name in ("__defaults__", "__kwdefaults__"):
            self._set_defaults(tx, name, value.realize())
            return
        if _is_part(name) and name not in _WRITTEN:
            raise GraphBreak("QB06", f"setting attribute {name!r} of a function made here")
        if name in _LAZY:
            self._attrs.pop(_LAZY[name], None)
        if name in ("__name__", "__qualname__"):
            text = value.realize()
            if not text.is_const or type(text.const()) is not str:
                raise GraphBreak("QB06", f"setting attribute {name!r} of a function made here to {text.describe()}")
            setattr(self, name.strip("_"), text.const())
        self._attrs[name] = value

    def _set_defaults(self, tx: Capture, name: str, value: Value) -> None:
        from dynamo_capture.values.dicts import DictValue

        none = value.is_const and value.const() is None
        if name == "__defaults__" and (none or isinstance(value, TupleValue)):
            self.defaults = [] if none else value.unpack(tx)
        elif name == "__kwdefaults__" and (none or type(value) is DictValue):
            self.kwdefaults, self._keywords = {}, value if type(value) is DictValue else None
        else:
            raise GraphBreak("QB06", f"setting attribute {name!r} of a function made here to {value.describe()}")

    def _set_on_existing(self, tx: Capture, name: str, value: Value) -> None:
        if name.startswith("__") or id(self.fn.__dict__) in tx.known:  # type: ignore[union-attr]
            raise GraphBreak("QB06", f"setting attribute {name!r} of the function {self.qualname!r}")
        self._pin(tx)
        tx.side.set_on(self, self.fn, name, value)

    def _pin(self, tx: Capture) -> None:
        """In every call it is this function, not one with the same code."""
        if self.source is not None and not self.source.is_fixed:
            tx.guards.is_object(self.source, self.fn)

    def children(self) -> Iterator[Value]:
        yield from self.closure or ()
        yield from self.defaults or ()
        yield from (self.kwdefaults or {}).values() if self._keywords is None else (self._keywords,)
        yield from self._attrs.values()

    def reconstruct(self, cg: CodeGen) -> None:
        if self.fn is not None:
            cg.load_const(self.fn)
            return
        kwdefaults: Value = self._keywords or ConstantValue(None)
        if self._keywords is None and self.kwdefaults:
            from dynamo_capture.values.dicts import DictValue

            kwdefaults = DictValue.named(self.kwdefaults)
        attrs: Value = ConstantValue(None)
        if self._attrs:
            from dynamo_capture.values.dicts import DictValue

            attrs = DictValue.named(self._attrs)
        cg.call_const(
            _make_function,
            [
                ConstantValue(self.code),
                _RawConstant(self.globals),
                ConstantValue((self.name, self.qualname)),
                TupleValue(list(self.closure or ())),
                TupleValue(list(self.defaults or ())),
                kwdefaults,
                attrs,
            ],
        )

    def describe(self) -> str:
        return f"the function {self.globals.get('__name__', '?')}.{self.qualname}"


#: The flag of code whose first constant is the docstring (``inspect.CO_HAS_DOCSTRING``); before 3.14 that is None else.
_HAS_DOCSTRING = 0x4000000
#: Parts of a function, beside its defaults, that a write to changes nothing else of.
_WRITTEN = frozenset(
    ("__name__", "__qualname__", "__module__", "__doc__", "__annotations__", "__annotate__", "__type_params__")
)
#: Of the annotations and what makes them, the one that is set replaces the other.
_LAZY = {"__annotations__": "__annotate__", "__annotate__": "__annotations__"}


def _is_part(name: str) -> bool:
    """Whether an attribute is one that every function has, no entry of its `__dict__`."""
    return any(name in vars(cls) for cls in types.FunctionType.__mro__)


class _RawConstant(ConstantValue):
    """Any object, put into the code's constants."""

    __slots__ = ()


def _make_function(
    code: types.CodeType, globals_: dict[str, Any], names: Any, closure: Any, defaults: Any, kwdefaults: Any, attrs: Any
) -> types.FunctionType:
    """Runs in the emitted code: a function that the region defined and that lives on after it."""
    fn = types.FunctionType(code, globals_, names[0], defaults or None, closure or None)
    fn.__qualname__ = names[1]
    fn.__kwdefaults__ = kwdefaults
    for name, value in (attrs or {}).items():
        setattr(fn, name, value)
    return fn


class MethodValue(Value):
    """A bound method of a Python function (or of anything callable)."""

    __slots__ = ("func", "owner")

    mutable = True

    def __init__(self, owner: Value, func: Value, source: Any = None) -> None:
        self.source = source
        self.owner = owner
        self.func = func

    @property
    def pytype(self) -> type:
        return types.MethodType

    def real(self) -> Any:
        return types.MethodType(self.func.real(), self.owner.realize().real())

    def key(self, tx: Capture) -> Any:
        real = self.real()  # of an object that the region makes there is none
        pin(tx, self)
        return real

    def truth(self, tx: Capture) -> bool:
        return True

    def call(self, tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return self.func.call(tx, [self.owner, *args], kwargs)

    def getattr(self, tx: Capture, name: str) -> Value:
        if name == "__self__":
            return self.owner
        if name == "__func__":
            return self.func
        if name == "__class__":
            return tx.from_python(types.MethodType)
        if name == "__call__":
            return self
        return self.func.getattr(tx, name)

    def children(self) -> Iterator[Value]:
        yield self.owner
        yield self.func

    def reconstruct(self, cg: CodeGen) -> None:
        cg.call_const(types.MethodType, [self.func, self.owner])

    def describe(self) -> str:
        return self.func.describe().replace("the function", "the method")


class PartialValue(Value):
    """``functools.partial``.

    Attributes:
        obj: the existing object, or None for one that the region has made.
        attrs: attributes that the region has set on one that it has made, as ``partialmethod`` does.
    """

    __slots__ = ("_keywords", "args", "attrs", "func", "keywords", "obj")

    mutable = True

    def __init__(
        self, func: Value, args: list[Value], keywords: dict[str, Value], source: Any = None, obj: Any = None
    ) -> None:
        self.source = source
        self.func = func
        self.args = args
        self.keywords = keywords
        self.obj = obj
        self._keywords: DictValue | None = None  # the attribute, once the program has it: it may write to it
        self.attrs: dict[str, Value] = {}

    @property
    def pytype(self) -> type:
        return functools.partial

    def key(self, tx: Capture) -> Any:
        return identity_key(tx, self)

    def truth(self, tx: Capture) -> bool:
        return True

    def call(self, tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return self.func.call(tx, [*self.args, *args], {**self.keywords_now(tx), **kwargs})

    def keywords_now(self, tx: Capture) -> dict[str, Value]:
        """The keywords with what the region has written."""
        table: Any = self._keywords if self.obj is None else tx.changed(self.obj.keywords)
        if table is None:
            return self.keywords
        return {key.realize().const(): value for key, value in table.whole(tx).values()}

    def getattr(self, tx: Capture, name: str) -> Value:
        if name in self.attrs:
            return self.attrs[name]
        if name == "func":
            return self.func
        if name == "args":
            return TupleValue(list(self.args))
        if name == "keywords":
            from dynamo_capture.values.dicts import DictValue

            if self.obj is not None:
                return tx.from_python(self.obj.keywords, self.source and self.source.attr("keywords"))
            if self._keywords is None:
                self._keywords = DictValue.named(self.keywords)
            return self._keywords
        if name == "__class__":
            return tx.from_python(functools.partial)
        if name == "__call__":
            return self
        if self.source is not None or hasattr(functools.partial, name):
            raise GraphBreak("QB06", f"attribute {name!r} of a functools.partial")
        raise tx.observed(no_attribute("functools.partial", name))

    def setattr(self, tx: Capture, name: str, value: Value) -> None:
        if self.source is not None or hasattr(functools.partial, name) or value.realize() is self:
            raise GraphBreak("QB06", f"setting attribute {name!r} of a functools.partial")
        tx.side.epoch += 1
        self.attrs[name] = value

    def children(self) -> Iterator[Value]:
        yield self.func
        yield from self.args
        yield from self.keywords.values() if self._keywords is None else (self._keywords,)
        yield from self.attrs.values()

    def reconstruct(self, cg: CodeGen) -> None:
        plain = PartialValue(self.func, self.args, {} if self._keywords is not None else self.keywords)
        if self._keywords is not None:
            plain.attrs = self.attrs
            cg.call_const(_with_keywords, [plain, self._keywords])
            return
        if self.attrs:
            names = TupleValue([*map(ConstantValue, self.attrs)])
            cg.call_const(_with_attributes, [plain, names, *self.attrs.values()])
            return
        cg.call_const(functools.partial, [self.func, *self.args], self.keywords)


def _with_keywords(made: Any, keywords: dict[str, Any]) -> Any:
    """Runs in the emitted code: a partial whose keywords are this very dictionary."""
    made.__setstate__((made.func, made.args, keywords, made.__dict__))
    return made


def _with_attributes(made: Any, names: tuple[str, ...], *values: Any) -> Any:
    """Runs in the emitted code."""
    made.__dict__.update(zip(names, values, strict=True))
    return made


class SuperValue(Value):
    """``super(cls, obj)``: attribute lookup starts after ``cls`` in the type's method resolution order."""

    __slots__ = ("after", "owner", "owner_type")

    def __init__(self, after: type, owner: Value, owner_type: type) -> None:
        self.source = None
        self.after = after
        self.owner = owner
        self.owner_type = owner_type

    @property
    def pytype(self) -> type:
        return super

    def getattr(self, tx: Capture, name: str) -> Value:
        mro = self.owner_type.__mro__
        for base in mro[mro.index(self.after) + 1 :]:
            if (found := tx.side.found_on(base, name)) is not None:
                return found
            if name not in base.__dict__:
                if not is_library_class(base):
                    tx.guards.class_lacks(base, name)
            else:
                found = base.__dict__[name]
                from dynamo_capture.values.callables import ClassValue

                owner = self.owner.realize()
                of_class = isinstance(owner, ClassValue) and owner.obj is self.owner_type
                if isinstance(found, types.FunctionType) and of_class:
                    return tx.function(found, class_source(base, name))
                return bind_attribute(tx, self.owner, self.owner_type, name, found, base)
        if name in ("__thisclass__", "__self__", "__self_class__"):
            raise GraphBreak("QB06", f"attribute {name!r} of super()")
        raise tx.observed(no_attribute("super", name))

    def children(self) -> Iterator[Value]:
        yield self.owner

    def reconstruct(self, cg: CodeGen) -> None:
        cg.call_const(super, [ConstantValue(self.after), self.owner])


def bind_arguments(
    tx: Capture, function: FunctionValue, args: list[Value], kwargs: dict[str, Value]
) -> dict[str, Value]:
    """The parameters of a call by name, as Python binds them.

    Raises:
        ObservedError: a ``TypeError`` for a wrong call.
    """
    code = function.code
    names = code.co_varnames
    npos, nkw = code.co_argcount, code.co_kwonlyargcount
    bound: dict[str, Value] = dict(zip(names[:npos], args, strict=False))
    rest = args[npos:]
    has_star, has_star2 = code.co_flags & 0x04, code.co_flags & 0x08
    if rest and not has_star:
        _wrong_call(tx, function, args, kwargs)
    extra: dict[str, Value] = {}
    if kwargs:
        by_keyword = names[code.co_posonlyargcount : npos + nkw]
        for name, value in kwargs.items():
            if name not in by_keyword:
                if not has_star2:
                    _wrong_call(tx, function, args, kwargs)
                extra[name] = value
            elif name in bound:
                _wrong_call(tx, function, args, kwargs)
            else:
                bound[name] = value
    if len(bound) < npos + nkw:
        defaults = function.default_values(tx)
        first_default = npos - len(defaults)
        for i in range(min(len(args), npos), npos):
            if names[i] not in bound:
                if i < first_default:
                    _wrong_call(tx, function, args, kwargs)
                bound[names[i]] = defaults[i - first_default]
        if nkw:
            kwdefaults = function.keyword_defaults(tx)
            for name in names[npos : npos + nkw]:
                if name not in bound:
                    if name not in kwdefaults:
                        _wrong_call(tx, function, args, kwargs)
                    bound[name] = kwdefaults[name]
    position = npos + nkw
    if has_star:
        bound[names[position]] = TupleValue(rest)
        position += 1
    if has_star2:
        from dynamo_capture.values.dicts import DictValue

        bound[names[position]] = DictValue.named(extra)
    return bound


def _wrong_call(tx: Capture, function: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> NoReturn:
    """The error of a wrong call, in Python's own words: an empty function with the same parameters is called so.

    Raises:
        ObservedError: the error.
    """
    code = function.code
    empty = (lambda: None).__code__
    probe = types.FunctionType(
        code.replace(
            co_code=empty.co_code, co_consts=empty.co_consts, co_names=(), co_exceptiontable=b"", co_freevars=(),
            co_cellvars=(), co_stacksize=1, co_flags=code.co_flags & 0x0F | 0x03, co_nlocals=len(code.co_varnames),
        ),
        {},
        code.co_name,
        (None,) * len(function.default_values(tx)),
    )  # fmt: skip
    probe.__qualname__ = function.qualname
    probe.__kwdefaults__ = dict.fromkeys(function.keyword_defaults(tx))
    tx.exact(probe, *[None] * len(args), **dict.fromkeys(kwargs))
    raise GraphBreak("QB03", f"a wrong call of {function.describe()}")
