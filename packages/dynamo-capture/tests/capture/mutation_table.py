"""Objects, questions about them and changes to them: the rows of ``test_mutations.py``.

Each :class:`Topic` is a program in three parts: what it defines, expressions that a region asks about it, and statements
that run between two calls. Every question of a topic meets every change of it.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["TOPICS", "Topic"]


@dataclass(frozen=True)
class Topic:
    """``setup`` is run once, ``questions`` are asked in a compiled region, ``changes`` made between its calls."""

    setup: str
    questions: tuple[str, ...]
    changes: tuple[str, ...]


def _lines(text: str) -> tuple[str, ...]:
    return tuple(line.strip() for line in text.strip().splitlines())


CLASSES = Topic(
    setup="""
class Mixin:
    extra = 7
    def area(self): return 30
    def __len__(self): return 31
class Described:
    def __get__(self, obj, cls=None): return 8
class Base:
    n = 1
    shadowed = 2
    described = Described()
    tag: int
    def area(self): return 1
    @property
    def prop(self): return 3
    @staticmethod
    def static(a=2): return a
    @classmethod
    def of_class(cls, *, k=4): return cls.n + k
    @functools.cached_property
    def kept(self): return 5
class Other:
    n = 5
    other = 2
    def area(self): return 50
    def __len__(self): return 51
    @property
    def prop(self): return 53
    @staticmethod
    def static(a=2): return a + 50
    @classmethod
    def of_class(cls): return 54
class Root(Base):
    pass
class Thing(Root):
    "A thing."
    x: int = 3
    def __init__(self): self.v = 4
    def area(self): return super().area() + 1
    def plain(self, late=None): return 7 if late is None else late
    def twice(self): return 2 * self.area()
thing = Thing()
thing.shadowed = 6
thing.described = 9
another = Thing()
def replacement(self): return 99
""",
    questions=_lines("""
thing.area()
thing.twice()
thing.plain()
thing.shadowed
thing.described
thing.n
Thing.n
thing.v
thing.prop
thing.static()
Thing.static()
thing.of_class()
Thing.of_class()
thing.kept
Thing().v
Thing().area()
len(thing) if hasattr(Thing, '__len__') else -1
bool(thing)
isinstance(thing, Other)
isinstance(thing, Base)
isinstance(thing, (Mixin, int))
issubclass(Thing, Other)
issubclass(Thing, (Base, int))
hasattr(thing, 'other')
hasattr(Thing, 'other')
getattr(thing, 'extra', 0)
getattr(Thing, 'extra', 0)
Thing.__bases__[0].__name__
Root.__bases__[0].__name__
Thing.__base__.__name__
len(Thing.__bases__)
[c.__name__ for c in Thing.__mro__]
[c.__name__ for c in type(thing).__mro__]
[c.__name__ for c in Thing.mro()]
[c.__name__ for c in inspect.getmro(Thing)]
super(Thing, thing).area()
super(Root, thing).area()
list(Thing.__annotations__)
list(Base.__annotations__)
sorted(typing.get_type_hints(Thing))
Thing.__name__
thing.__class__.__name__
type(thing).__qualname__
Thing.__doc__
Thing.__module__
list(Base.__dict__)
'n' in Base.__dict__
'late' in vars(Base)
Base.__dict__['n']
vars(Base).get('late', 0)
'v' in thing.__dict__
list(vars(thing))
len(thing.__dict__)
callable(thing)
thing == another
thing != another
hash(thing) == hash(thing)
Base.prop.fget(thing)
Base.area.__code__.co_name
Thing.area(thing)
thing.area.__func__.__name__
inspect.isclass(Thing)
any('late' in c.__dict__ for c in Thing.__mro__)
"""),
    changes=_lines("""
Root.__bases__ = (Other,)
Thing.__bases__ = (Mixin, Root)
Thing.__bases__ = (Root, Other)
thing.__class__ = type('Changed', (Thing, Other), {'n': 8})
Base.prop.fget.__code__ = replacement.__code__
Base.area.__code__ = replacement.__code__
Thing.plain.__code__ = replacement.__code__
Base.of_class.__func__.__code__ = replacement.__code__
Base.of_class.__func__.__kwdefaults__['k'] = 9
Base.static.__code__ = (lambda a=1: 99).__code__
Base.static.__defaults__ = (9,)
Base.kept.func.__code__ = replacement.__code__
Thing.__init__.__code__ = (lambda self: setattr(self, 'v', 99)).__code__
Thing.__annotations__['late'] = int
Thing.__annotations__ = {}
Base.__annotations__['late'] = int
Thing.__name__ = 'Renamed'
Thing.__qualname__ = 'Some.Renamed'
Thing.__doc__ = 'Changed.'
Thing.__module__ = 'elsewhere'
Base.n = 9
Thing.n = 9
del Base.n; Thing.n = 8
Base.late = 1
Mixin.late = 1
Base.__len__ = lambda self: 0
Thing.__bool__ = lambda self: False
Thing.__eq__ = lambda self, other: True
Thing.__getattr__ = lambda self, name: 99
Thing.__getattribute__ = lambda self, name: 99
Thing.__call__ = lambda self: 99
thing.late = 1
thing.v = 9
thing.area = lambda: 99
thing.__dict__ = {'v': 9, 'late': 2}
Thing.__new__ = lambda cls: object.__new__(Other)
Base.prop = 9
Base.prop = property(replacement)
Base.shadowed = property(replacement)
Thing.shadowed = property(replacement)
del thing.shadowed
Described.__set__ = lambda self, obj, value: None
Described.__get__ = lambda self, obj, cls=None: 99
Described.__get__.__code__ = (lambda self, obj, cls=None: 99).__code__
Thing.plain.__defaults__ = (99,)
Thing.plain.__defaults__ = None
"""),
)

ENUMS = Topic(
    setup="""
class E(enum.Enum):
    A = 1
    B = 2
    def doubled(self): return self.value * 2
    @property
    def shown(self): return self.name + '!'
    @classmethod
    def first(cls): return next(iter(cls))
class I(enum.IntEnum):
    A = 1
    B = 2
class F(enum.Flag):
    A = 1
    B = 2
def extend(cls, name, value):
    made = object.__new__(cls) if cls is not I else int.__new__(cls, value)
    made._name_, made._value_ = name, value
    made.__objclass__ = cls
    cls._member_names_.append(name)
    cls._member_map_[name] = made
    cls._value2member_map_[value] = made
def drop(cls, name):
    cls._member_names_.remove(name)
    member = cls._member_map_.pop(name)
    del cls._value2member_map_[member.value]
""",
    questions=_lines("""
E.A.value
E.A.name
E.A.doubled()
E.A.shown
E['A'].value
E(1).name
E(3).name if len(E) > 2 else 0
len(E)
[m.name for m in E]
[m.value for m in I]
list(E)[-1].name
list(E.__members__)
'A' in E.__members__
'C' in E.__members__
E.__members__['A'].value
len(E.__members__)
[k for k, v in E.__members__.items()]
hasattr(E, 'C')
hasattr(E, 'A')
getattr(E, 'C', None) is None
hasattr(E.A, 'weight')
getattr(E.A, 'weight', 0)
isinstance(E.A, E)
E.A in E
E.first().name
E.A is E(1)
E.A == E.B
str(E.A)
repr(E.B)
f'{E.A}'
hash(E.A) == hash(E.A)
bool(E.A)
I.A + 1
I.A.value
int(I.B)
I(2).name
max(I).name
len(I)
sum(I)
I.A == 1
(F.A | F.B).value
F.A.value
F.A in (F.A | F.B)
bool(F.A & F.B)
E._member_names_
list(E._member_map_)
[m.value for m in reversed(E)]
{m: m.value for m in E}[E.A]
"""),
    changes=_lines("""
extend(E, 'C', 3)
extend(I, 'C', 3)
drop(E, 'A')
drop(E, 'B')
drop(I, 'B')
E._member_names_.reverse()
E._member_map_['A'] = E.B
E._value2member_map_[1] = E.B
E.A._value_ = 9
E.A._name_ = 'Z'
I.A._value_ = 9
F.A._value_ = 2
E.A.weight = 5
E.weight = 5
E.C = 3
E.doubled = lambda self: 99
E.doubled.__code__ = (lambda self: 99).__code__
E.shown.fget.__code__ = (lambda self: 99).__code__
E._missing_ = classmethod(lambda cls, value: cls.B)
E.__str__ = lambda self: 'changed'
E.__repr__ = lambda self: 'changed'
E.__eq__ = lambda self, other: True
E.__hash__ = lambda self: 1
E.__bool__ = lambda self: False
E.__contains__ = lambda self, other: False
F.__or__ = lambda self, other: F.A
"""),
)

FUNCTIONS = Topic(
    setup="""
def wrapped(a, b=2): return a
def make(k):
    def inner(a, b=2, *c, d: int = 4, **e) -> int:
        "An inner function."
        return a + b * 10 + d * 100 + k * 1000
    return inner
fn = make(1)
fn.attr = 5
fn.__wrapped__ = wrapped
class Owner:
    def method(self, a=1, *, b=2): return a + b
    @staticmethod
    def static(a=3): return a
    @classmethod
    def of_class(cls, a=4): return a
    def __call__(self, a=6): return a
owner = Owner()
owner.fn = fn
bound = owner.method
table = {'f': fn}
plain = lambda a, b=1: a + b
""",
    questions=_lines("""
fn(1)
fn(1, d=1)
owner.fn(1)
table['f'](1)
bound()
owner.method()
owner()
Owner.static()
Owner.of_class()
plain(1)
[f(1) for f in (fn, plain)]
fn.__defaults__
fn.__kwdefaults__
fn.__kwdefaults__['d'] if fn.__kwdefaults__ else 0
len(fn.__defaults__ or ())
plain.__defaults__
bound.__defaults__
owner.method.__kwdefaults__
fn.attr
hasattr(fn, 'late')
hasattr(fn, 'attr')
getattr(fn, 'late', 0)
getattr(fn, 'attr', 0)
getattr(owner.method, 'late', 0)
getattr(bound, 'late', 0)
hasattr(Owner.method, 'late')
list(fn.__dict__)
fn.__dict__.get('late')
fn.__dict__.get('attr')
'attr' in fn.__dict__
'late' in vars(fn)
len(vars(fn))
vars(fn)['attr'] if 'attr' in vars(fn) else -1
fn.__annotations__
list(fn.__annotations__)
sorted(typing.get_type_hints(fn))
fn.__name__
fn.__qualname__
fn.__doc__
fn.__module__
bound.__name__
bound.__doc__
fn.__code__.co_argcount
fn.__code__.co_varnames
fn.__closure__[0].cell_contents
fn.__globals__ is globals()
fn.__wrapped__(7)
callable(fn)
inspect.isfunction(fn)
inspect.ismethod(bound)
str(inspect.signature(fn))
list(inspect.signature(fn).parameters)
list(inspect.signature(fn, follow_wrapped=False).parameters)
inspect.signature(plain).parameters['b'].default
list(inspect.signature(bound).parameters)
list(inspect.signature(owner).parameters)
list(inspect.signature(Owner).parameters)
inspect.getfullargspec(plain).args
inspect.getfullargspec(plain).defaults
inspect.unwrap(fn).__name__
functools.wraps(fn)(lambda: 0).__name__
functools.wraps(fn)(lambda: 0).__dict__.get('attr')
isinstance(fn, types.FunctionType)
fn == plain
"""),
    changes=_lines("""
fn.__defaults__ = (9,)
fn.__defaults__ = None; fn.__defaults__ = (8, 9)
fn.__kwdefaults__ = {'d': 9}
fn.__kwdefaults__['d'] = 9
fn.__code__ = make(2).__code__.replace(co_name='other', co_varnames=('a', 'z', 'd', 'c', 'e'))
fn.__name__ = 'renamed'
fn.__qualname__ = 'some.renamed'
fn.__doc__ = 'Changed.'
fn.__module__ = 'elsewhere'
fn.__annotations__['late'] = int
fn.__annotations__ = {}
fn.attr = 6
fn.late = 1
del fn.attr
fn.__dict__ = {'attr': 7, 'late': 8, '__wrapped__': plain}
fn.__dict__['attr'] = 9
fn.__dict__['late'] = 9
fn.__closure__[0].cell_contents = 9
fn.__wrapped__ = lambda q: 9
del fn.__wrapped__
fn.__signature__ = inspect.signature(plain)
wrapped.__defaults__ = (9,)
wrapped.__name__ = 'renamed'
wrapped.__code__ = (lambda q, b: 9).__code__
plain.__defaults__ = (9,)
plain.__defaults__ = None; plain.__code__ = (lambda a: 9).__code__
Owner.method.__defaults__ = (9,)
Owner.method.__kwdefaults__['b'] = 9
Owner.method.late = 9
Owner.static.__defaults__ = (9,)
Owner.of_class.__func__.__defaults__ = (9,)
Owner.__call__.__defaults__ = (9,)
Owner.__init__ = lambda self, q: None
Owner.__call__ = lambda self, q=1: q
Owner.__signature__ = inspect.signature(plain)
owner.fn = plain
table['f'] = plain
fn = plain
bound = Owner().of_class
"""),
)

MODULES = Topic(
    setup="""
mod = sys.modules['changing'] = types.ModuleType('changing', 'Docs.')
other = types.ModuleType('other')
other.a, other.late, other.f = 11, 12, lambda: 13
mod.a = 1
mod.items = [1, 2]
mod.f = lambda: 3
mod.sub = sys.modules['changing.sub'] = types.ModuleType('changing.sub')
mod.sub.a = 4
mod.__path__ = []
class Kind(types.ModuleType):
    kind = 7
    def __getattr__(self, name):
        if name == 'late': return 8
        raise AttributeError(name)
def imports():
    import changing
    return changing.a
def imports_from():
    from changing import a
    return a
def imports_late():
    try:
        from changing import late
    except ImportError:
        return None
    return late
def imports_sub():
    import changing.sub as s
    return s.a
def imports_missing():
    try:
        import changing.late
    except ImportError:
        return None
    return changing.late.a
def restore():
    sys.modules['changing'], sys.modules['changing.sub'] = mod, mod.sub
""",
    questions=_lines("""
mod.a
mod.f()
mod.items[0]
mod.sub.a
hasattr(mod, 'a')
hasattr(mod, 'late')
hasattr(mod.sub, 'late')
getattr(mod, 'a', 5)
getattr(mod, 'late', 5)
getattr(mod, 'kind', 5)
'a' in mod.__dict__
'late' in mod.__dict__
'late' in vars(mod)
mod.__dict__['a'] if 'a' in mod.__dict__ else 0
mod.__dict__.get('late')
vars(mod).get('a')
len(mod.__dict__)
list(vars(mod))[-1]
'late' in dir(mod)
mod.__name__
mod.__doc__
type(mod).__name__
'changing' in sys.modules
'late_module' in sys.modules
sys.modules['changing'].a if 'changing' in sys.modules else 0
sys.modules.get('late_module') is None
sys.modules.get('changing') is mod
imports()
imports_from()
imports_late()
imports_sub()
imports_missing()
importlib.import_module('changing').a
__import__('changing').a
inspect.ismodule(mod)
hasattr(torch, 'late_attribute')
getattr(torch.nn, 'late_attribute', 0)
hasattr(math, 'late_attribute')
'late_attribute' in vars(math)
math.__dict__.get('late_attribute', 0)
hasattr(os.path, 'late_attribute')
hasattr(F, 'late_attribute')
getattr(builtins, 'late_attribute', 0)
'late_global' in globals()
globals().get('late_global', 0)
len(globals()) > 1000
len([1, 2])
"""),
    changes=_lines("""
mod.a = 9
mod.late = 9
mod.kind = 9
del mod.a
mod.f = lambda: 9
mod.f.__code__ = (lambda: 9).__code__
mod.items.insert(0, 9)
mod.sub = other
mod.sub.a = 9
mod.sub.late = 9
mod.__dict__['a'] = 9
mod.__dict__['late'] = 9
mod.__name__ = 'renamed'
mod.__doc__ = 'Changed.'
mod.__class__ = Kind
mod.__getattr__ = lambda name: 9
mod = other
sys.modules['changing'] = other
sys.modules['changing.sub'] = other
sys.modules['changing.late'] = other; mod.late = other
sys.modules['late_module'] = other
torch.late_attribute = torch.nn.late_attribute = 9
math.late_attribute = os.path.late_attribute = F.late_attribute = 9
builtins.late_attribute = 9
late_global = 9
len = lambda xs: 9
mod.items = []; mod.items.append(7)
"""),
)

RECORDS = Topic(
    setup="""
@dataclasses.dataclass
class P:
    x: int = 1
    y: int = dataclasses.field(default=2, metadata={'k': 3})
    def total(self): return self.x + self.y
@dataclasses.dataclass(frozen=True, order=True)
class Q:
    x: int = 1
class N(typing.NamedTuple):
    a: int = 1
    b: int = 2
Pair = collections.namedtuple('Pair', 'a b')
class T(typing.TypedDict):
    k: int
p, q, n, pair = P(), Q(), N(), Pair(1, 2)
added = dataclasses.make_dataclass('Added', ['z']).__dataclass_fields__['z']
""",
    questions=_lines("""
[f.name for f in dataclasses.fields(p)]
[f.name for f in dataclasses.fields(P)]
[f.default for f in dataclasses.fields(P)]
dataclasses.fields(P)[1].metadata['k']
len(dataclasses.fields(P))
dataclasses.is_dataclass(P)
dataclasses.is_dataclass(p)
list(P.__dataclass_fields__)
'z' in P.__dataclass_fields__
P.__dataclass_fields__['x'].default
P.__dataclass_params__.frozen
dataclasses.asdict(p)
dataclasses.astuple(p)
dataclasses.replace(p, x=5).total()
P().x
P().total()
P(3).y
p.total()
p == P()
p == P(1, 2)
repr(p)
P.x
P.__match_args__
Q(1) < Q(2)
Q() == q
hash(q) == hash(Q())
n.a
n._fields
N()
N().a
N(5).b
n._asdict()
n._replace(a=3)
N._field_defaults
N.__annotations__
N._fields
pair.a
Pair(1, 2)._fields
Pair(1, 2).b
Pair._make([3, 4]).a
isinstance(n, tuple)
len(n)
n[0]
list(n)
n == (1, 2)
hasattr(n, '_fields')
list(T.__annotations__)
sorted(T.__required_keys__)
list(typing.get_type_hints(P))
list(inspect.signature(P).parameters)
list(P.__annotations__)
"""),
    changes=_lines("""
P.__dataclass_fields__['z'] = added; p.z = 5
del P.__dataclass_fields__['y']
P.__dataclass_fields__['x'].default = 9
P.__dataclass_fields__['x'].name = 'y'
del P.__dataclass_fields__
P.x = 9
P.__init__.__defaults__ = (8, 9)
P.__init__ = lambda self: (setattr(self, 'x', 8), setattr(self, 'y', 9))[0]
P.__eq__ = lambda self, other: False
P.__eq__.__code__ = (lambda self, other: False).__code__
P.__repr__ = lambda self: 'changed'
P.__match_args__ = ('x',)
P.__annotations__['z'] = int
P.total.__code__ = (lambda self: 99).__code__
P.__dataclass_params__.frozen = True
p.x = 9
p = P(7)
Q.__lt__ = lambda self, other: False
Q.__hash__ = lambda self: 5
Q.__init__.__defaults__ = (9,)
n = N(9)
N._fields = ('a',)
N._field_defaults['a'] = 9
N.__new__.__defaults__ = (8, 9)
N.a = 9
N.__len__ = lambda self: 9
N.__getitem__ = lambda self, index: 9
N.__iter__ = lambda self: iter((9,))
N.__eq__ = lambda self, other: False
N.__new__ = lambda cls, a=1, b=2: tuple.__new__(cls, (8, 9))
N.a = property(lambda self: 9)
Pair.a = 9
Pair._fields = ('x', 'y')
pair = Pair(9, 9)
T.__annotations__['late'] = int
T.__required_keys__ = frozenset('ab')
"""),
)

CALLABLES = Topic(
    setup="""
def f(a, b=2, *, k=3): return a + 10 * b + 100 * k
def g(a, b=2, *, k=3): return 9000 + a
class Thing:
    def __init__(self): self.a, self.b, self.inner = 1, 2, types.SimpleNamespace(c=3, a=4)
    def get(self, n=1): return n
    def other(self, n=1): return n * 50
    part = functools.partialmethod(get, 5)
thing = Thing()
p = functools.partial(f, 1, k=2)
nested = functools.partial(p, 5)
holder = types.SimpleNamespace(p=p)
attr = operator.attrgetter('a')
deep = operator.attrgetter('inner.c')
item = operator.itemgetter(0)
items = operator.itemgetter(0, 1)
method = operator.methodcaller('get', 7)
xs = [3, 4, 5]
@functools.lru_cache(None)
def cached(a): return a * 2
@functools.singledispatch
def single(a): return 1
@single.register
def of_int(a: int): return 2
@contextlib.contextmanager
def manager():
    yield 6
def uses_manager():
    with manager() as v:
        return v
def outer(fn):
    @functools.wraps(fn)
    def inner(*args): return fn(*args) + 1
    return inner
decorated = outer(g)
weak = weakref.ref(thing)
variable = contextvars.ContextVar('variable', default=1)
local = threading.local(); local.a = 1
counter = itertools.count(5)
proxy = types.MappingProxyType(vars(holder))
""",
    questions=_lines("""
p()
p(4)
nested()
holder.p()
p.args
p.keywords
p.keywords['k']
list(p.keywords)
p.func.__name__
p.func(1)
hasattr(p, 'late')
getattr(p, 'late', 0)
isinstance(p, functools.partial)
functools.partial(p, k=9)()
list(inspect.signature(p).parameters)
thing.part()
attr(thing)
deep(thing)
item(xs)
items(xs)
method(thing)
sorted([(2, 1), (1, 2)], key=item)
[item(r) for r in ((1, 2), (3, 4))]
max(xs, key=lambda v: -v)
cached(3)
cached.__wrapped__(3)
cached.__name__
single(1)
single(1.0)
single.registry[int](1)
single.dispatch(int).__name__
uses_manager()
decorated(1)
decorated.__wrapped__(1)
decorated.__name__
weak().a
weak() is thing
variable.get()
local.a
hasattr(local, 'b')
proxy['p'] is p
len(proxy)
os.environ.get('LATE_VARIABLE')
'LATE_VARIABLE' in os.environ
os.getenv('LATE_VARIABLE', 'none')
sys.argv
sys.path[0]
sys.flags.optimize
sys.getrecursionlimit()
sys.maxsize
sys.byteorder
sys.platform
os.getcwd()
gc.isenabled()
warnings.filters[0][0]
logging.getLogger('mutations').level
logging.getLogger('mutations').isEnabledFor(10)
"""),
    changes=_lines("""
p.__setstate__((f, (5,), {'k': 2}, {}))
p.__setstate__((g, (1,), {'k': 2}, {}))
p.__setstate__((f, (1, 4), {}, {}))
p.keywords['k'] = 9
p.keywords['b'] = 9
p.late = 9
p = functools.partial(g, 1)
nested = functools.partial(p, 9)
holder.p = functools.partial(g, 1)
f.__code__ = g.__code__
f.__defaults__ = (9,)
f.__kwdefaults__['k'] = 9
g.__code__ = f.__code__
g.__name__ = 'renamed'
Thing.get.__code__ = (lambda self, n=1: 99).__code__
Thing.get.__defaults__ = (9,)
Thing.get = Thing.other
Thing.part = functools.partialmethod(Thing.other, 9)
attr = operator.attrgetter('b')
attr = operator.itemgetter(0); thing = xs
deep = operator.attrgetter('inner.a')
item = operator.itemgetter(1)
items = operator.itemgetter(1, 2)
method = operator.methodcaller('get', 8)
method = operator.methodcaller('other', 7)
thing.a = 9
thing.inner.c = 9
xs[0] = 9
cached = functools.lru_cache(None)(lambda a: 9)
single.register(int, lambda a: 9)
single.register(float, lambda a: 9)
of_int.__code__ = (lambda a: 9).__code__
manager.__wrapped__.__code__ = (lambda: (yield 9)).__code__
inner_of = decorated.__closure__[0]; inner_of.cell_contents = f
decorated.__wrapped__ = f
weak = weakref.ref(Thing); Thing.a = 9
variable.set(9)
local.a = 9
local.b = 9
holder.late = 9
os.environ['LATE_VARIABLE'] = 'set'
sys.argv.append('late')
sys.argv = ['late']
sys.path.insert(0, '/late')
sys.path = ['/late']
sys.setrecursionlimit(sys.getrecursionlimit() + 7)
gc.disable()
warnings.filters.insert(0, ('once', None, Warning, None, 0))
logging.getLogger('mutations').setLevel(10)
"""),
)

TYPES = Topic(
    setup="""
V = typing.TypeVar('V', bound=int)
class G(typing.Generic[V]):
    k = 1
    def __class_getitem__(cls, item): return cls.k + item
class H(typing.Generic[V]):
    x: V
class Proto(typing.Protocol):
    def area(self): ...
@typing.runtime_checkable
class Checked(typing.Protocol):
    def area(self): ...
class Shape:
    w: int = 1
    def area(self): return 1
class Abstract(abc.ABC):
    @abc.abstractmethod
    def area(self): ...
class Counted:
    subclasses = []
    def __init_subclass__(cls, **kw): Counted.subclasses.append(cls.__name__)
class Meta(type):
    scale = 2
    def __len__(cls): return 3
    def __iter__(cls): return iter((1, 2))
    def __contains__(cls, item): return item == 1
    def __getitem__(cls, item): return item + 1
    def __call__(cls, *a): return super().__call__(*a)
    def __instancecheck__(cls, obj): return type(obj) is int
    @property
    def prop(cls): return 5
class M(metaclass=Meta):
    k = 6
class Descriptor:
    stored = 1
    def __get__(self, obj, cls=None): return self.stored
class Setter:
    def __get__(self, obj, cls=None): return obj.__dict__.get('s', 2)
    def __set__(self, obj, value): obj.__dict__['s'] = value
class Slotted:
    __slots__ = ('a', 'b')
class D:
    d = Descriptor()
    s = Setter()
    __match_args__ = ('a', 'b')
    def __init__(self): self.a, self.b = 1, 2
shape, d, m, slotted = Shape(), D(), M(), Slotted()
slotted.a = 1
Alias = list[int]
Union = int | str
Old = typing.Union[int, str]
Opt = typing.Optional[int]
def matched(v):
    match v:
        case D(1, y): return y
        case Shape(w=w): return w
        case _: return 0
""",
    questions=_lines("""
G[1]
H[int].__origin__.__name__
typing.get_origin(Alias).__name__
typing.get_args(Alias)[0].__name__
Alias.__args__[0].__name__
isinstance(1, Union)
isinstance(1.0, Old)
typing.get_args(Opt)[0].__name__
V.__bound__.__name__
V.__name__
isinstance(shape, Checked)
issubclass(Shape, Checked)
isinstance(shape, Abstract)
issubclass(Shape, Abstract)
sorted(Abstract.__abstractmethods__)
Counted.subclasses
len(Counted.__subclasses__())
len(M)
[v for v in M]
1 in M
M[1]
M().k
isinstance(1, M)
M.prop
M.scale
type(M).__name__
d.d
D.d
d.s
slotted.a
hasattr(slotted, 'b')
Slotted.__slots__
matched(d)
matched(shape)
shape.w
typing.get_type_hints(Shape)['w'].__name__
list(typing.get_type_hints(H))
typing.cast(int, 4)
isinstance(shape, collections.abc.Sized)
isinstance(shape, collections.abc.Hashable)
isinstance(shape, collections.abc.Callable)
"""),
    changes=_lines("""
G.k = 9
G.__class_getitem__ = classmethod(lambda cls, item: 9)
Alias = tuple[str]
Union = str | float
Old = typing.Union[float, bytes]
Opt = typing.Optional[str]
V = typing.TypeVar('W', bound=str)
Abstract.register(Shape)
Shape.__len__ = lambda self: 1
Shape.__hash__ = None
Shape.__call__ = lambda self: 1
del Shape.area
Shape.w = 9
shape.w = 9
Shape.__annotations__['w'] = str
Abstract.__abstractmethods__ = frozenset('xy')
type('Sub', (Counted,), {})
Counted.subclasses = []
Meta.scale = 9
Meta.__len__ = lambda cls: 9
Meta.__iter__ = lambda cls: iter((9,))
Meta.__contains__ = lambda cls, item: False
Meta.__getitem__ = lambda cls, item: 9
Meta.__instancecheck__ = lambda cls, obj: False
Meta.__instancecheck__.__code__ = (lambda cls, obj: False).__code__
Meta.__call__ = lambda cls, *a: shape; Shape.k = 9
Meta.prop.fget.__code__ = (lambda cls: 9).__code__
Meta.prop = 9
M.k = 9
Descriptor.stored = 9
Descriptor.__get__ = lambda self, obj, cls=None: 9
Descriptor.__get__.__code__ = (lambda self, obj, cls=None: 9).__code__
Descriptor.__set__ = lambda self, obj, value: None
vars(D)['d'].stored = 9
d.d = 9
D.d = 9
D.d = Descriptor(); vars(D)['d'].stored = 9
d.s = 9
D.__match_args__ = ('b', 'a')
D.__match_args__ = ('a', 'a')
d.b = 9
slotted.a = 9
slotted.b = 9
del slotted.a; slotted.a = 8
d.__class__ = Shape
"""),
)

TOPICS = {
    "classes": CLASSES,
    "enums": ENUMS,
    "functions": FUNCTIONS,
    "modules": MODULES,
    "records": RECORDS,
    "callables": CALLABLES,
    "types": TYPES,
}
