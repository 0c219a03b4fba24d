"""Templates of expressions by type; ``{int}`` stands for an expression of that type, a doubled brace for itself."""

from __future__ import annotations

__all__ = ["EXPRESSIONS"]

_INT = """
({int} + {int})
({int} - {int})
({int} * 2)
({int} // 3)
({int} % 4)
-{int}
abs({int})
len({list})
len({str})
len({dict})
len({tuple})
min({int}, {int})
max({int}, 2)
{int} if {bool} else {int}
sum({list})
({int} & 3)
({int} | 4)
({int} ^ 1)
({int} << 1)
({int} >> 1)
~{int}
int({bool})
int({float})
{dict}.get('a', 0)
{dict}.get({str}, {int})
{tensor}.shape[0]
{tensor}.dim()
{tensor}.size(-1)
{tensor}.numel()
{box}.value
{box}.scale
({list} or [4])[0]
({list} or [4])[-1]
LIMIT
TABLE['a']
ord(({str} or 'q')[0])
round({float})
(lambda q: q + {int})({int})
{str}.find('b')
{str}.count('a')
{list}.count({int})
Point({int}).x
Level.HIGH
({int} or 7)
({bool} and {int})
int({str} == {str})
{int}.bit_length()
pow({int}, 2)
sum(1 for q in {list} if q > 1)
next((q for q in {list} if q > 1), -1)
divmod({int}, 3)[1]
"""
_STR = """
({str} + {str})
({str} * 2)
str({int})
f'{n}'
f'<{s}>'
f'{m:+d}{n:>3}'
{str}.upper()
{str}.strip()
{str}[1:]
{str}[::-1]
{str}[:{int}]
'-'.join(str(q) for q in {list})
'{0}{1}'.format({int}, {str})
'%d' % {int}
('%s' % ({any},)).partition(' at 0x')[0]
repr({int})
{str} if {bool} else 'no'
({str} or 'empty')
{str}.replace('a', 'b')
{str}.ljust(4, '.')
type({any}).__name__
format({int}, '04d')
hex({int})
str({bool})
{str}.title()
str({float})
repr({str})
''.join(sorted({str}))
Color.RED.name
str({tuple})
"""
_BOOL = """
{int} > {int}
{int} == {int}
{int} != 2
0 < {int} < 4
not {bool}
({bool} and {bool})
({bool} or {bool})
{int} in {list}
{str} in {dict}
{str} == {str}
bool({list})
{int} % 2 == 0
{int} is None
{any} is None
{list} == {list}
{tuple} == {tuple}
isinstance({any}, int)
isinstance({any}, (str, list))
hasattr({box}, 'value')
{tensor}.shape[0] > {int}
{tensor}.shape == x.shape
bool({tensor}.sum() > {int})
{str}.startswith('a')
{str} < {str}
any({list})
all({list})
callable({any})
{set} <= {set}
{int} not in {tuple}
{dict} == {dict}
{float} > {float}
len({list}) > 2
{box} == {box}
bool({box})
x is {tensor}
{bool} ^ {bool}
{bool} != {bool}
"""
_FLOAT = """
({float} + {float})
({int} / 4)
{int} * 0.5
float({int})
{float} * {int}
abs({float})
round({float}, 2)
math.sqrt(abs({int}))
math.floor({float}) + 0.5
min({float}, 1.5)
{float} if {bool} else -0.0
max({float}, {float})
{tensor}.sum().item()
{float} // 1
{float} % 2
"""
_LIST = """
[{int}, {int}]
[{int}] * ({int} % 3)
({list} + {list})
[q + 1 for q in {list}]
[q for q in {list} if q > {int}]
sorted({list})
list(range({int} % 5))
list({tuple})[:0] + [1]
{list}[1:]
{list}[::-1]
{list}[:{int}]
list({dict}.values())
list(map(abs, {list}))
[*{list}, {int}]
{list} if {bool} else [0]
list(reversed({list}))
list({tensor}.shape)
[q * r for q in {list}[:2] for r in (1, 2)]
list(itertools.chain({list}, [{int}]))
{list}.copy()
[{int} for q in range(2)]
list(filter(lambda q: q != 1, {list}))
[len(p) for p in {str}.split(',')]
sorted({set}, key=str) and [1]
list(itertools.accumulate({list}))
"""
_DICT = """
{{'a': {int}, 'b': {int}}}
dict(a={int})
{{k: v + 1 for k, v in {dict}.items()}}
{{**{dict}, 'c': {int}}}
({dict} | {{'d': {int}}})
dict(zip({str}, {list}))
{dict}.copy()
{{q: i for i, q in enumerate({str})}}
dict.fromkeys('ab', {int})
collections.OrderedDict(b=1, a={int})
dict(sorted({dict}.items()))
{dict} if {bool} else {{}}
collections.Counter({str})
"""
_TUPLE = """
({int}, {str})
({int},)
tuple({list})
({tuple} + ({int},))
{tuple}[::-1]
tuple({tensor}.shape)
Pair({int}, {str})
divmod({int}, 3)
tuple(sorted({dict}))
({tuple} * 2)
{tensor}.shape
tuple(zip({list}, {str}))
(*{list}, 1)
{tuple} if {bool} else ()
keywords({int}, {int})
"""
_SET = """
{{{int}, {int}}}
set({list})
({set} | {{{int}}})
({set} & {{1, 2, 3}})
({set} - {{1}})
{{q % 3 for q in {list}}}
set({str})
frozenset({list})
set({dict})
({set} ^ {set})
"""
_TENSOR = """
{tensor} + {int}
{tensor} - {tensor}.sum()
({tensor} * 2)
{tensor}.relu()
{tensor}.clone()
{tensor}.neg()
torch.where({tensor} > {int}, {tensor}, 0)
({tensor} + x.sum()) % 7
{tensor}.abs()
{tensor}.t()
{tensor}.reshape(-1)
{tensor}[:1]
{tensor}[..., 0]
torch.cat([{tensor}.reshape(-1), x.reshape(-1)])
torch.stack([{tensor}, {tensor}]).sum(0) % 11
{tensor}.sum(0)
{tensor}.clamp(-2, {int})
x * {int}
x + x.shape[0]
torch.full((2,), {int})
torch.zeros({int} % 4, 3)
torch.arange({int} % 5)
torch.tensor({list})
torch.tensor([{int}, 2])
x.new_ones({tensor}.shape)
x[{int} % 2:]
{tensor} if {bool} else x
x.expand(2, *x.shape)
{tensor}.float()
{tensor}.to(torch.int64)
({tensor} > {int})
torch.ones(3) * {float}
sum([{tensor}, 1])
max({tensor}.sum(), torch.tensor(1.0))
x.view(-1)[:{int}]
x.flip(0)
x.unsqueeze({int} % 2)
"""
_ANY = """
{int}
{str}
{list}
{tuple}
{dict}
{bool}
{float}
None
{set}
{tensor}.sum()
Color.RED
Point({int})
Pair(1, {int})
{box}.items
[{any}, {any}]
({any}, {int})
{{'k': {any}}}
Box({int})
types.SimpleNamespace(a={int})
range({int})
slice(None, {int})
Level(1)
{any} if {bool} else {any}
{tensor}.dtype
{list}[0:1]
{any} or {int}
"""
_BOX = """
Box({int})
Child({int})
{box}.put({int})
{box} if {bool} else Box(0)
"""
_ITER = """
iter({list})
reversed({list})
enumerate({list})
zip({list}, {str})
map(lambda q: q * 2, {list})
filter(None, {list})
(q + {int} for q in {list})
itertools.islice(itertools.count({int}, 2), 5)
itertools.chain({list}, {tuple})
range({int} % 6)
itertools.islice(itertools.cycle({list} or [1]), 4)
iter({dict}.items())
iter({str})
itertools.repeat({int}, 2)
itertools.islice({list}, 1, None)
"""
#: Templates by the type of their value.
EXPRESSIONS: dict[str, list[str]] = {
    kind: [line for line in text.strip().splitlines() if line]
    for kind, text in {
        "int": _INT, "str": _STR, "bool": _BOOL, "float": _FLOAT, "list": _LIST, "dict": _DICT, "tuple": _TUPLE, "set": _SET,
        "tensor": _TENSOR, "any": _ANY, "box": _BOX, "iter": _ITER,
    }.items()
}  # fmt: skip
