"""Symbolic sizes of one compilation: symbols with ranges and hints, recorded guards, what they imply."""

from __future__ import annotations

import dataclasses
import math
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from prims.errors import DataDependentError
from prims.records import record
from prims.source import SourceLoc
from prims.spec import expr as E
from prims.spec.expr import Expr
from prims.spec.ranges import Interval, interval, shifted_bounds

if TYPE_CHECKING:
    from prims.spec.sym import Sym

# Frames under these folders are never the user's: torch itself and the five packages.
_PACKAGES = ("prims", "dynamo_capture", "aot_autograd", "inductor_gen", "compile_api")
_ON_A_SIZE = "control flow on a size"
#: Nodes of an expression's tree: bits of numbers that are made of each other double it with every operation, and sizes
#: of a hundred layers have some hundred.
HEAVIEST = 2000
#: What a context has learned from guards, beside the ranges of symbols.
_LEARNED = ("replacements", "sums", "_known", "_exact", "_atoms")


def _unknown(what: str, reason: str) -> str:
    """What to say of something about a number that only the running program knows."""
    shown = re.sub(r"fbits\((\w+)\)", r"\1", what)  # a float, whose bits are the symbol
    default = _ON_A_SIZE if shown == what else "control flow on a float"
    return f"{shown} is needed, but is known only at run time ({reason or default})"


@record
class SizeGuard:
    """A boolean expression over symbols that the compiled program relies on, why, and whose line asked."""

    expr: Expr
    reason: str
    where: SourceLoc | None

    def __str__(self) -> str:
        return f"{self.expr}  # {self.reason}" + (f" at {self.where}" if self.where else "")


@record(frozen=False)
class SymbolInfo:
    """What is known of a symbol. ``min`` and ``max`` are inclusive; ``max`` None means unbounded."""

    name: str
    min: int
    max: int | None
    hint: int | float | None
    source: str


def _internal_roots() -> tuple[str, ...]:
    roots = []
    for name in ("torch", *_PACKAGES):
        module = sys.modules.get(name)
        if module is not None and getattr(module, "__file__", None):
            roots.append(os.path.dirname(os.path.abspath(str(module.__file__))) + os.sep)
    return tuple(roots)


def user_location() -> SourceLoc | None:
    """The innermost frame outside torch and the five packages, or None."""
    roots = _internal_roots()
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith(roots) and not code.co_filename.startswith("<"):
            return SourceLoc(code.co_filename, frame.f_lineno, code.co_qualname)
        frame = frame.f_back  # type: ignore[assignment]
    return None


def symbol_prefix(least: int) -> str:
    """What a symbol's name begins with, before a number: of such names alone, stages read how small it may be.

    ``s``: a size of 1 at least; ``u``: one that may be 0, as the data may say; ``int``: a number that may be negative.
    """
    return "int" if least < 0 else "u" if least == 0 else "s"


def likely(low: int, high: int | None) -> int:
    """What a number of which nothing was seen is taken for: 64, or -64, or what of its range is next to that."""
    if high is not None and high <= 0:
        return min(max(low, -_LIKELY), high)
    return max(low, _LIKELY if high is None else min(high, _LIKELY))


_LIKELY = 64


def least_by_name(name: str) -> int | None:
    """What the symbol of that name is never below, by its prefix; None: it may be any number."""
    prefix = name.rstrip("0123456789")
    return None if prefix in ("int", "f") and prefix != name else 0 if prefix == "u" else 1


class SymbolContext:
    """Owns the symbols of one compilation and every guard on them.

    ``guards`` lists the guards in the order they were needed. An equality guard also becomes a replacement
    (``s1 -> s0``, ``s0 -> 5``), an inequality on a symbol narrows its range, so that what follows from earlier
    guards is decided without a new one. Set ``location`` to a function returning a ``SourceLoc`` to override
    where guards are said to come from (a bytecode interpreter knows better than the Python stack).
    """

    def __init__(self) -> None:
        self.symbols: dict[str, SymbolInfo] = {}
        self.guards: list[SizeGuard] = []
        self.replacements: dict[Expr, Expr] = {}
        self.sums: dict[Expr, Expr] = {}  # what sums come to, without their constants, that no atom was solved for
        self.location: Callable[[], SourceLoc | None] = user_location
        #: Unbacked symbols that calls have made, by the call and its tensors (:mod:`prims.spec.unbacked`).
        self.made: dict[Any, Any] = {}
        self._are_many = False
        self._all_sizes = False
        self._known: dict[Expr, bool] = {}
        self._exact: dict[Expr, tuple[Expr, Expr]] = {}  # quotients without remainder: a // b to (a, b)
        self._atoms: dict[Expr, Interval] = {}  # what guards say of atoms that are not symbols
        self._simplified: dict[Expr, Expr] = {}
        self._decided: dict[Expr, bool | None] = {}
        self._syms: dict[Expr, Sym] = {}
        # Layouts computed under the present guards, by the shapes and strides they follow from.
        self.layouts: dict[Any, Any] = {}

    # ---- symbols -------------------------------------------------------------------------------------------

    def new_symbol(
        self, hint: int | None, source: str = "", min: int = 2, max: int | None = None, prefix: str | None = None
    ) -> Sym:
        """A new symbol in ``[min, max]`` whose value in this call is ``hint``: ``s0``, ``u0``, ``int0``
        (:func:`symbol_prefix`), or by ``prefix``.

        ``hint`` None makes a size known only at run time: any decision on it raises DataDependentError unless
        its range settles it.
        """
        n = len(self.symbols)
        if prefix is None:
            prefix = symbol_prefix(min) if hint is not None or min < 0 else "u"
        while f"{prefix}{n}" in self.symbols:
            n += 1
        return self.declare(f"{prefix}{n}", hint, min, max, source)

    def declare(self, name: str, hint: int | None, min: int = 2, max: int | None = None, source: str = "") -> Sym:
        """The symbol of that name, made if it does not exist."""
        if name not in self.symbols:
            if hint is not None and (hint < min or (max is not None and hint > max)):
                raise ValueError(f"hint {hint} of size {name} ({source}) is outside [{min}, {max}]")
            self.symbols[name] = SymbolInfo(name, min, max, hint, source)
        return self._sym(E.symbol(name))

    def info(self, name: str) -> SymbolInfo:
        """The record of a symbol; KeyError for an unknown name."""
        return self.symbols[name]

    def symbol(self, name: str) -> Sym:
        """The symbol of that name as a size, though guards may have found it equal to something else."""
        return self._sym(E.symbol(name))

    def __iter__(self) -> Iterator[SymbolInfo]:
        return iter(self.symbols.values())

    def hints(self) -> dict[str, Any]:
        """The value of each symbol in the call being compiled."""
        return {name: info.hint for name, info in self.symbols.items() if info.hint is not None}

    def estimates(self) -> dict[str, Any]:
        """A likely value of each symbol, for costs: that in this call, or of what it may be."""
        return {
            name: likely(info.min, info.max) if info.hint is None else info.hint for name, info in self.symbols.items()
        }

    def is_unbacked(self, name: str) -> bool:
        """Whether only the data of a call tells the symbol's value."""
        return self.symbols[name].hint is None

    def is_open(self, b: Expr) -> bool:
        """Whether only the data of a call tells if a condition holds."""
        return self.statically_known(b) is None and any(self.is_unbacked(name) for name in b.free_symbols())

    def may_be_one(self, e: Expr) -> bool:
        """Whether a size is in it that calls have shown to be one, and more."""
        infos = [self.symbols[name] for name in self.simplify(e).free_symbols() if name in self.symbols]
        return any(info.min == 1 for info in infos) and not any(info.hint is None for info in infos)

    def _sym(self, e: Expr) -> Sym:
        found = self._syms.get(e)
        if found is None:
            from prims.spec.sym import Sym

            found = self._syms[e] = Sym(e, self)
        return found

    def make(self, e: Expr) -> Any:
        """The int, or the Sym, of an integer expression after simplification. Of one that is too heavy, the symbols
        become what they are in this call."""
        e = self.simplify(e)
        if e.weight > HEAVIEST and self.hint(e) is not None:
            for name in sorted(e.free_symbols()):
                self.specialise(E.symbol(name), "a size of which many operations made a number")
            e = self.simplify(e)
        return e.args[0] if e.kind == "const" else self._sym(e)

    def number(self, size: Any) -> Any:
        """A size as an int where the guards say which it is, else as it is."""
        if isinstance(size, int):
            return size
        e = self.simplify(size.expr)
        return e.args[0] if e.kind == "const" else size

    # ---- what is known -------------------------------------------------------------------------------------

    def _atom_range(self, atom: Expr) -> Interval | None:
        if atom.kind != "symbol":
            return self._atoms.get(atom)
        info = self.symbols.get(atom.args[0])
        if info is None:
            return None
        return info.min, math.inf if info.max is None else info.max

    def bounds(self, e: Expr) -> Interval:
        """Inclusive bounds of an integer expression."""
        low, high = interval(e, self._atom_range)
        if e.kind == "poly" and len(e.terms) > 1:
            low2, high2 = shifted_bounds(e, self._atom_range)
            low, high = max(low, low2), min(high, high2)
        return low, high

    def simplify(self, e: Expr) -> Expr:
        """``e`` with what the guards and ranges imply put in."""
        if e.kind in ("const", "symbol") and not self.replacements:
            return e
        found = self._simplified.get(e)
        if found is None:
            found = E.substitute(e, self.replacements) if self.replacements else e
            if self._exact and found.kind == "poly":
                found = self._multiply_out(found)
            found = self._by_range(found)
            if self.sums:
                found = self._come_to(found)
            self._simplified[e] = found
        return found

    def _multiply_out(self, e: Expr) -> Expr:
        """``b * (a // b)`` as ``a`` for the quotients known to be exact."""
        for mono, coeff in e.terms:
            powers = dict(mono)
            for quotient, (a, b) in self._exact.items():
                if quotient not in powers or len(b.terms) != 1:
                    continue
                b_mono, k = b.terms[0]
                divisor = E.from_terms({((quotient, 1),): 1})
                whole = E.mul(divisor, E.from_terms({b_mono: k}))
                rest = E.exact_quotient(E.from_terms({mono: coeff}), whole)
                if rest is not None:
                    term = E.from_terms({mono: coeff})
                    return self.simplify(E.add(E.sub(e, term), E.mul(rest, a)))
        return e

    def _come_to(self, e: Expr) -> Expr:
        """Sums and products whose values equations give, as those values, also in what is divided or compared."""
        if e.is_const or e.kind == "symbol":
            return e
        if e.kind != "poly":
            args = tuple(map(self._come_to, e.args))
            return e if args == e.args else E.rebuild(e.kind, args)
        constant = E.const(next((c for mono, c in e.terms if not mono), 0))
        rest = E.sub(e, constant)
        times = math.gcd(*(c for _, c in rest.terms))
        for count, total in ((1, rest), (times, E.exact_quotient(rest, E.const(times)))):
            value = self.sums.get(total) if total is not None else None
            if value is not None:
                return E.add(E.mul(value, count), constant)
        for total, value in self.sums.items():
            for term in rest.terms if len(total.terms) == 1 and value.is_const else ():
                part = E.from_terms(dict([term]))
                others = E.exact_quotient(part, total)
                if others is not None:
                    return self._come_to(E.add(E.sub(e, part), E.mul(others, value)))
        return e

    def _by_range(self, e: Expr) -> Expr:
        """Resolves ``min``, ``max``, ``mod`` and ``floordiv`` that the ranges decide."""
        if e.kind in ("const", "symbol"):
            return e
        if e.kind == "poly":
            atoms = {a for mono, _ in e.terms for a, _ in mono if a.kind != "symbol"}
            changed = {a: new for a in atoms if (new := self.simplify(a)) is not a}
            return E.substitute(e, changed) if changed else e
        if e.kind in ("min", "max"):
            keep = list(e.args)
            for x in e.args:
                for y in keep:
                    better = E.le(y, x) if e.kind == "min" else E.le(x, y)
                    if y is not x and self._decide(better) is True:
                        keep.remove(x)
                        break
            return E.rebuild(e.kind, tuple(keep)) if len(keep) < len(e.args) else e
        if e.kind in ("mod", "floordiv"):
            low, high = self.bounds(e.args[0])
            if low >= 0 and high < self.bounds(e.args[1])[0]:
                return e.args[0] if e.kind == "mod" else E.const(0)  # type: ignore[no-any-return]
        if e.kind == "ite":
            decided = self._decide(self.simplify(e.args[0]))
            if decided is not None:
                return e.args[1] if decided else e.args[2]  # type: ignore[no-any-return]
        return e

    def _decide(self, b: Expr) -> bool | None:
        kind = b.kind
        if kind == "true":
            return True
        if kind == "false":
            return False
        if b in self._known:
            return self._known[b]
        if kind == "le":
            low, high = self.bounds(b.args[0])
            return True if high <= 0 else False if low > 0 else None
        if kind in ("eq", "ne"):
            low, high = self.bounds(b.args[0])
            if low > 0 or high < 0:
                return kind == "ne"
            return None
        if kind in ("feq", "flt", "fle"):
            return self._decide_floats(kind, self.bounds(b.args[0]), self.bounds(b.args[1]))
        if kind in ("and", "or"):
            results = [self._decide(x) for x in b.args]
            stop = kind == "or"
            if stop in results:
                return stop
            return None if None in results else not stop
        if kind == "not":
            inner = self._decide(b.args[0])
            return None if inner is None else not inner
        return None

    @staticmethod
    def _decide_floats(kind: str, a: Interval, b: Interval) -> bool | None:
        if kind == "feq":
            return False if a[1] < b[0] or b[1] < a[0] else None
        if a[1] < b[0] or (kind == "fle" and a[1] == b[0]):
            return True
        if b[1] < a[0] or (kind == "flt" and b[1] == a[0]):
            return False
        return None

    def statically_known(self, b: Expr | bool) -> bool | None:
        """Whether ``b`` holds for every size the guards allow: True, False, or None if it depends. No guard."""
        if isinstance(b, bool):
            return b
        b = self.simplify(b)
        if b not in self._decided:
            self._decided[b] = self._decide(b)
        return self._decided[b]

    def hint(self, e: Expr) -> Any:
        """The value of ``e`` in this call; None if it needs a symbol without a hint."""
        try:
            return e.evaluate(self.hints())
        except KeyError:
            return None

    # ---- guards --------------------------------------------------------------------------------------------

    def evaluate(self, b: Expr | bool, reason: str = "") -> bool:
        """Whether ``b`` holds: by ranges if they decide, else by the hints, recording a guard.

        Raises:
            DataDependentError: it depends on a size that has no hint.
        """
        known = self.statically_known(b)
        if known is not None:
            return known
        b = self.simplify(E.to_expr(b))
        if self._all_sizes:
            raise DataDependentError(f"it depends on the sizes whether {b}", where=self.location())
        if self._are_many and b.kind in ("eq", "ne") and self.may_be_one(b) and self._asks_for_one(b):
            return bool(b.kind == "ne")
        value = self.hint(b)
        if value is None:
            raise DataDependentError(_unknown(str(b), reason), where=self.location())
        fact = b if value else E.not_(b)
        for guard in self._nontrivial_sizes(fact) or (fact,):
            self.add_guard(guard, reason or _ON_A_SIZE)
        return bool(value)

    def tell_whether_empty(self, size: Expr) -> None:
        """Record whether a size is 0 or at least 1, unless that is known, or only the data of a call tells it."""
        if size.kind == "symbol" and not self.replacements:
            return
        some = E.ge(size, 1)
        if self.statically_known(some) is None and self.hint(size) is not None:
            self.evaluate(some, "whether a dimension is empty")

    @contextmanager
    def apart(self) -> Iterator[list[SizeGuard]]:
        """What is learned in here is forgotten afterwards; the list has the guards that it rests on then."""
        before = {name: dict(getattr(self, name)) for name in _LEARNED}
        infos = {name: dataclasses.replace(info) for name, info in self.symbols.items()}
        count, guards = len(self.guards), list[SizeGuard]()
        try:
            yield guards
        finally:
            guards += self.guards[count:]
            del self.guards[count:]
            self.symbols.update(infos)
            for name, known in before.items():
                setattr(self, name, known)
            self._forget()

    @contextmanager
    def for_all_sizes(self) -> Iterator[None]:
        """What is compiled in here is for all sizes that the guards allow: nothing goes by those of one call.

        A question that the ranges do not settle raises DataDependentError, and nothing is recorded.
        """
        before, self._all_sizes = self._all_sizes, True
        try:
            yield
        finally:
            self._all_sizes = before

    @contextmanager
    def are_many(self) -> Iterator[None]:
        """No size that may be one is one in here, and no guard says so: what is computed is the same if it is."""
        before, self._are_many = self._are_many, True
        try:
            yield
        finally:
            self._are_many = before

    @staticmethod
    def _asks_for_one(b: Expr) -> bool:
        """Whether it compares a symbol with 1."""
        terms = dict(b.args[0].terms)
        constant = terms.pop((), 0)
        return len(terms) == 1 and all(len(m) == 1 and m[0][1] == 1 and c == -constant for m, c in terms.items())

    def _nontrivial_sizes(self, fact: Expr) -> list[Expr]:
        """Guards ``2 <= a`` on opaque sizes in ``fact`` (quotients and the like) if they imply it: one such guard
        answers every later question whether a dimension is 0 or 1. Empty if they do not.
        """
        if fact.kind not in ("ne", "le"):
            return []
        atoms = {a for mono, _ in fact.args[0].terms for a, _ in mono if a.kind in ("floordiv", "max", "min")}
        atoms = {a for a in atoms if self.bounds(a)[0] < 2 and self.hint(a) >= 2}
        if not atoms:
            return []
        before = dict(self._atoms)
        for a in atoms:
            self._atoms[a] = (2, self.bounds(a)[1])
        implied = self._decide(fact)
        self._atoms = before
        return [E.ge(a, 2) for a in sorted(atoms, key=Expr.sort_key)] if implied else []

    def specialise(self, e: Expr | Sym, reason: str = "a size used as a Python int") -> Any:
        """The value of ``e`` in this call, recording the guard that it stays so.

        Raises:
            DataDependentError: it depends on a size that has no hint.
        """
        e = self.simplify(e if isinstance(e, Expr) else e.expr)
        if e.is_const:
            return e.value
        if e.kind == "fbits":
            self.specialise(e.args[0], reason)
            return self.simplify(e).value
        value = None if self._all_sizes else self.hint(e)
        if value is None:
            raise DataDependentError(_unknown(f"the value of {e}", reason), where=self.location())
        self.add_guard(E.float_compare("feq", e, value) if e.is_float else E.eq(e, value), reason)
        return value

    def add_guard(self, b: Expr, reason: str) -> None:
        """Record that ``b`` holds, and learn from it."""
        if b.kind == "and":
            for part in b.args:
                self.add_guard(part, reason)
            return
        if b.is_const:
            return
        self.guards.append(SizeGuard(b, reason, self.location()))
        self.assume(b)

    def assume(self, b: Expr) -> None:
        """Learn from ``b``, which the program checks itself (``torch._check``) before it relies on it."""
        if b.kind == "and":
            for part in b.args:
                self.assume(part)
            return
        if b.is_const:
            return
        self._learn(b)
        self._forget()

    def _forget(self) -> None:
        """Drop what was worked out under other guards."""
        self._simplified.clear()
        self._decided.clear()
        self.layouts.clear()

    def _learn(self, b: Expr) -> None:
        self._known[b] = True
        self._known[E.not_(b)] = False
        d = b.args[0]
        if b.kind == "eq":
            if d.kind == "mod":
                self._learn_exact(d)
            self._learn_equation(d)
        elif b.kind == "le":
            self._narrow(d)

    def _learn_exact(self, remainder: Expr) -> None:
        """After ``a % b == 0``: the quotient is exact."""
        quotient = E.floordiv(*remainder.args)
        if quotient.kind == "floordiv":
            self._exact[quotient] = quotient.args  # type: ignore[assignment]

    def _learn_equation(self, d: Expr) -> None:
        """Solve ``d == 0`` for an atom that occurs once, linearly, with coefficient one: the youngest. Where there is
        none, the sum's value is known all the same (``s0 // 2 + s0 % 2`` is 1)."""
        best: Expr | None = None
        for mono, coeff in d.terms:
            if len(mono) != 1 or mono[0][1] != 1 or abs(coeff) != 1:
                continue
            atom = mono[0][0]
            others = sum(1 for m, _ in d.terms for a, _ in m if a is atom or atom in a.symbols)
            if others == 1 and (best is None or _rank(atom) > _rank(best)):
                best = atom
        if best is None:
            self._learn_sum(d)
            return
        coeff = dict(d.terms)[((best, 1),)]
        rest = E.sub(d, E.mul(best, coeff))
        value = E.neg(rest) if coeff == 1 else rest
        if best.kind != "symbol" and best.symbols & value.symbols:
            self._learn_sum(d)
            return
        if best.kind == "symbol":
            self._intersect(value, best)
        one = {best: value}
        self.replacements = {k: E.substitute(v, one) for k, v in self.replacements.items()}
        self.replacements[best] = value
        sums = {k: (E.substitute(k, one), v) for k, v in self.sums.items()}
        self.sums = {left: v for k, (left, v) in sums.items() if left is k}
        for k, (left, v) in sums.items():
            if left is not k and not (rest := E.sub(left, v)).is_const:
                self._learn_equation(rest)  # there may be an atom to solve it for now
        for atom, (low, high) in list(self._atoms.items()):  # what is known of `s0 * s1 // 2`, of `s1` where `s0` is 2
            left = E.substitute(atom, one)
            if left is not atom and not left.is_const:
                if not math.isinf(low):
                    self._narrow(E.sub(int(low), left))
                if not math.isinf(high):
                    self._narrow(E.sub(left, int(high)))

    def _learn_sum(self, d: Expr) -> None:
        if d.kind != "poly":
            return
        self._learn_product(d)
        constant = E.const(next((c for mono, c in d.terms if not mono), 0))
        for total, value in ((E.sub(d, constant), E.neg(constant)), (E.sub(constant, d), constant)):
            self.sums[total] = value

    def _learn_product(self, d: Expr) -> None:
        """After ``a * b == c`` of sizes: none is above c, nor 0. What is one is then one by its expression, as whoever
        asks for a dimension of one looks at that."""
        (none, c), *rest = sorted(d.terms, key=lambda term: len(term[0]))
        if none or len(rest) != 1 or c % rest[0][1] or -c // rest[0][1] < 1:
            return
        atoms = [atom for atom, _ in rest[0][0]]
        if all(self.bounds(atom)[0] >= 0 for atom in atoms):
            for atom in atoms:
                for bound in (E.sub(1, atom), E.sub(atom, -c // rest[0][1])):
                    if not self.simplify(bound).is_const:
                        self._narrow(bound)

    def _intersect(self, value: Expr, old: Expr) -> None:
        """After ``old == value``: a bare symbol ``value`` gets the narrower of both ranges."""
        if value.kind != "symbol" or value.args[0] not in self.symbols:
            return
        new, gone = self.symbols[value.args[0]], self.symbols[old.args[0]]
        new.min = max(new.min, gone.min)
        highs = [m for m in (new.max, gone.max) if m is not None]
        new.max = min(highs) if highs else None

    def _narrow(self, d: Expr) -> None:
        """Learn from ``d <= 0`` when d is ``k*atom + c``."""
        variable = [(m, c) for m, c in d.terms if m]
        if len(variable) != 1:
            return
        mono, k = variable[0]
        if len(mono) != 1 or mono[0][1] != 1:
            return
        atom = mono[0][0]
        c = next((c for m, c in d.terms if not m), 0)
        low, high = self._atom_range(atom) or (-math.inf, math.inf)
        if k > 0:
            high = min(high, -c // k)
        else:
            low = max(low, -(-c // -k))
        if atom.kind != "symbol":
            self._atoms[atom] = (low, high)
        elif atom.args[0] in self.symbols:
            info = self.symbols[atom.args[0]]
            info.min, info.max = int(low), None if math.isinf(high) else int(high)
            if info.min == info.max and atom not in self.replacements:
                self._learn_equation(E.sub(atom, E.const(info.min)))


def _rank(atom: Expr) -> tuple[int, tuple[int, int, str]]:
    return (1 if atom.kind != "symbol" else 0, atom.sort_key())
