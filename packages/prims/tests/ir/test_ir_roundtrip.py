"""Text form and JSON: what is printed is read back the same."""

from __future__ import annotations

import json
import math

import pytest
import torch
from ir_examples import EXAMPLES, Builder, aten, aten_example, spec, torch_example

from prims.errors import UserError
from prims.ir import (
    from_json,
    hash_envelope,
    load,
    parse_text,
    print_text,
    save,
    structural_difference,
    to_json,
    verify,
)


@pytest.mark.parametrize("name", EXAMPLES)
def test_text_round_trip(name):
    env = verify(EXAMPLES[name]())
    text = print_text(env)
    back = parse_text(text, env.constants)
    assert structural_difference(env, back) is not None or print_text(back) == text
    # Symbols live in a new context, so that expressions compare by their hash-consed objects.
    assert structural_difference(env, back) is None
    assert print_text(back) == text
    verify(back)


@pytest.mark.parametrize("name", EXAMPLES)
def test_json_round_trip(name, tmp_path):
    env = EXAMPLES[name]()
    assert structural_difference(env, from_json(to_json(env), env.constants)) is None
    save(env, tmp_path / "graph.json")
    assert (tmp_path / "graph.json.safetensors").exists() == bool(env.constants)
    assert structural_difference(env, load(tmp_path / "graph.json")) is None


def test_json_has_the_version_first():
    assert next(iter(json.loads(to_json(torch_example())))) == "version"
    text = to_json(torch_example()).replace("[\n  1,\n  0\n ]", "[9, 0]", 1)
    with pytest.raises(UserError, match="schema version"):
        from_json(text)
    with pytest.raises(UserError, match="not a serialised envelope"):
        from_json("[1, 2]")


def test_names_are_deterministic():
    assert print_text(aten_example()) == print_text(aten_example())
    env = aten_example()
    for number, node in enumerate(env.graph.nodes):
        node.name = f"renamed_{number}"
    assert hash_envelope(env) == hash_envelope(aten_example())


def test_hash_covers_meaning_and_not_sources():
    plain = aten_example()
    moved = aten_example()
    for node in moved.graph.nodes:
        node.meta.pop("source", None)
    assert hash_envelope(plain) == hash_envelope(moved)
    changed = aten_example()
    changed.constants["scale"].mul_(2)
    assert hash_envelope(plain) != hash_envelope(changed)
    other = aten_example()
    for node in other.graph.nodes:
        if node.target is aten.add.Tensor:
            node.update_kwarg("alpha", 0.5)
    assert hash_envelope(plain) != hash_envelope(other)


LITERALS = [
    0, -3, 2**62, True, False, None, 0.1, -0.0, 1e-300, math.inf, -math.inf, 1 + 2j, "a \"quoted\"\n`text`",
    torch.bfloat16, torch.channels_last, torch.strided, torch.device("cuda:1"), slice(None, -1, 2), ...,
    (), (1,), [], [1, (2, [None])], {"k": [1.5]},
]  # fmt: skip


@pytest.mark.parametrize("literal", LITERALS, ids=repr)
def test_literals(literal):
    b = Builder("torch")
    x = b.input("x", spec(2))
    env = b.finish(b.call(torch.sin, (x, literal), spec(2), {"key": literal}))
    for back in (parse_text(print_text(env)), from_json(to_json(env))):
        assert structural_difference(env, back) is None


def test_nan_literal():
    b = Builder("torch")
    env = b.finish(b.call(torch.sin, (b.input("x", spec(2)), math.nan), spec(2)))
    node = next(n for n in parse_text(print_text(env)).graph.nodes if n.op == "call_function")
    assert math.isnan(node.args[1])


def test_layouts_and_devices():
    import torch as t

    from prims.spec import TensorSpec

    b = Builder("torch")
    strided = TensorSpec((2, 3, 4, 5), t.float16, t.device("cuda:0"), (60, 1, 15, 3), 7)
    env = b.finish(b.call(torch.sin, (b.input("x", strided),), strided), b.call(torch.cos, (1,), spec()))
    assert structural_difference(env, parse_text(print_text(env))) is None
    assert "float16[2, 3, 4, 5]{60, 1, 15, 3}+7 cuda:0" in print_text(env)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: "", "empty"),
        (lambda t: t.replace("envelope", "parcel"), "first line"),
        (lambda t: t.replace("aten.mul.Tensor", "aten.no_such_op.Tensor"), "no operator"),
        (lambda t: t.replace("(%1,", "(%77,"), "before it is defined"),
        (lambda t: t.replace("float32[3] cpu kind=buffer", "float99[3] cpu kind=buffer"), "float99"),
        (lambda t: t.replace("kind=buffer", "sort=buffer"), "form"),
        (lambda t: t + "nonsense\n", "nonsense"),
        (lambda t: t.replace("sha256=", "sha256=0" * 1)[:-1] + "\n", "form"),
    ],
)
def test_bad_text_names_the_line(change, message):
    env = aten_example()
    with pytest.raises(UserError, match=message):
        parse_text(change(print_text(env)), env.constants)


def test_constants_are_checked():
    env = aten_example()
    with pytest.raises(UserError, match="was not given"):
        parse_text(print_text(env))
    with pytest.raises(UserError, match="another content"):
        parse_text(print_text(env), {"scale": torch.zeros(3)})
    with pytest.raises(UserError, match="another content"):
        from_json(to_json(env), {"scale": torch.zeros(3)})


def test_structural_difference_sees_each_part():
    env = aten_example()
    assert structural_difference(env, aten_example()) is None
    assert structural_difference(env, env.replace(producer="other")) is not None
    assert structural_difference(env, env.replace(mutations=())) is not None
    assert structural_difference(env, env.replace(aliases=())) is not None
    assert structural_difference(env, env.replace(constants={"scale": torch.zeros(3)})) is not None
    for field, value in (("args", (1,)), ("kwargs", {"alpha": 2})):
        other = aten_example()
        setattr(other.op_nodes[2], field, value)
        assert structural_difference(env, other) is not None
