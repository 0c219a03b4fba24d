"""A text is of what the objects in it hold where it is made, whatever the region does to them before and after."""

from __future__ import annotations

import pytest
import torch

import dynamo_capture
from prims.options import Options

#: What is written: each has a number that differs from call to call beside something that can change.
WRITTEN = ["(held, n)", "(n, (held, 1))", "(held, x.shape)", "((n, held), held)", "(box.items, n)", "[held, n]", "{n: held}"]
TEXTS = ["str({})", "repr({})", "ascii({})", "f'{{ {} }}'", "f'{{ {} !r:>90}}'", "'%s' % ({},)", "'%r|%d' % ({}, n)", "'{{}}'.format({})"]
#: How it changes: of ``held``, which ``box`` holds too.
CHANGES = {
    "list": ("[]", ["held.append(7)", "held.append(n)", "held.append(x.sum())", "held[:] = [x.shape[0]]"]),
    "dict": ("{}", ["held[n] = 1", "held['a'] = x.sum()", "held.update(a=n)"]),
    "set": ("set()", ["held.add(7)", "held.add(n)", "held.update([n, 7])", "held |= {n, 7, 8}"]),
    "tensor": ("torch.ones(2)", ["held.add_(1)", "held[0] = n"]),
}
PLACES = ["{change}; text = {text}", "text = {text}; {change}", "{change}; text = ({text}).partition(' at 0x')",
          "text = ({text}, {text}); {change}"]  # fmt: skip


class Box:
    def __init__(self, items):
        self.items = items


@pytest.mark.parametrize("written", WRITTEN)
@pytest.mark.parametrize("kind", CHANGES)
def test_texts_of_what_changes(kind, written):
    empty, changes = CHANGES[kind]
    for number, form in enumerate(TEXTS):
        text = form.format(written)
        change = changes[number % len(changes)]
        for place in PLACES:
            body = place.format(text=text, change=change)
            scope = {"torch": torch}
            exec(f"def f(x, n, held, box):\n    {body}\n    return x + n, text", scope)
            exec(f"def new():\n    return {empty}", scope)
            compiled = dynamo_capture.optimize(scope["f"], lambda gm, xs: gm.forward, options=Options(dynamic=True))
            for n in (3, 4, 5):
                seen = []
                for fn in (scope["f"], compiled):
                    held = scope["new"]()
                    seen.append((fn(torch.ones(n), n, held, Box(held))[1], str(held)))
                assert seen[0] == seen[1], body
