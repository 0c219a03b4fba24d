"""Stored graphs of unknown origin: a labelled error, and nothing of the file is imported, run or waited for."""

from __future__ import annotations

import copy
import json
import os
import pathlib
import random
import struct
import sys

import pytest
import torch
from ir_examples import EXAMPLES, Builder, aten_example, spec, torch_example

from prims.errors import QuintetError, StoredGraphError
from prims.ir import (
    FILE_RULES,
    from_json,
    load,
    parse_text,
    print_text,
    register_callable,
    save,
    structural_difference,
    to_json,
)
from prims.ir.callables import listed
from prims.ir.names import target_name, target_of
from prims.spec import SymbolContext


def call(target, *args, **kwargs):
    """The JSON of a graph with one call."""
    b = Builder("torch")
    data = json.loads(to_json(b.finish(b.call(torch.sin, (b.input("x", spec(2)),), spec(2)))))
    data["nodes"][0] |= {"target": target, "args": [{"node": 0}, *args], "kwargs": kwargs}
    return data


def refused(data, label):
    with pytest.raises(StoredGraphError) as caught:
        from_json(data if isinstance(data, str) else json.dumps(data))
    assert caught.value.label == label and f"[{label}]" in str(caught.value), caught.value
    assert len(str(caught.value)) < 2000


REFUSED = [
    "posix.system", "os.system", "builtins.exec", "builtins.eval", "builtins.__import__", "builtins.open",
    "builtins.setattr", "builtins.vars", "builtins.type", "builtins.map", "builtins.globals", "builtins.compile",
    "operator.attrgetter", "operator.methodcaller", "operator.itemgetter", "operator.call", "_operator.call",
    "operator.__loader__.load_module", "importlib.import_module", "subprocess.run", "functools.partial",
    "functools.reduce", "pickle.loads", "torch.load", "torch.save", "torch.hub.load", "torch.serialization.load",
    "torch.classes.load_library", "torch.ops.load_library", "torch._ops.ops.load_library", "torch.from_file",
    "torch.utils.cpp_extension.load", "torch.compile", "torch.jit.load", "torch.jit.script", "torch.package",
    "torch._dynamo.optimize", "torch.os.system", "torch.sys.exit", "torch.nn.functional.torch.load", "torch.frombuffer",
    "torch.nn.functional.importlib.import_module", "torch.nn.functional.handle_torch_function", "torch.set_printoptions",
    "torch.nn.functional.boolean_dispatch", "torch.nn.functional._overload", "torch.linalg._add_docstr",
    "torch.set_default_device", "torch._C._add_docstr", "torch._C._jit_pass_inline", "torch._C.__loader__",
    "torch.Tensor.__reduce_ex__", "torch.Tensor.apply_", "torch.Tensor.share_memory_", "torch.Tensor.__class__",
    "torch.Tensor.register_hook", "torch.Tensor.numpy", "torch.Tensor.__init_subclass__", "torch.__getattr__",
    "math.__loader__", "builtins.int.from_bytes", "builtins.int.__class__", "builtins.float.__reduce__",
    "prims.ir.load", "prims.ir.callables.listed", "prims.spec.sym.E", "", ".", "..", "torch", "torch.", "@torch.sin",
    "torch.ops", "torch.ops.aten", "torch.ops.aten.from_file", "torch.ops.aten.save", "torch.ops.prim.PythonOp",
    "torch.sin\n", "torch.sin ", "torch.sin()", "torch.sın", "a" * 10**6,
]  # fmt: skip
REFUSED_PLAIN = [
    "aten.from_file.default", "aten.save.default", "load_library.x.y", "aten.add.__class__", "aten.__class__.mro",
    "aten.no_such.default", "prim.__class__", "prim.no_such", "aten.add", "x", "os.path.join", "import_module.a.b", "",
]  # fmt: skip


@pytest.mark.parametrize("name", REFUSED, ids=lambda name: name[:60])
def test_file_c1_refuses_callables(name):
    refused(call("@" + name), "FILE-C1")
    refused(call("@torch.sin", {"target": "@" + name}), "FILE-C1")


@pytest.mark.parametrize("name", REFUSED_PLAIN)
def test_file_c1_refuses_other_names(name):
    refused(call(name), "FILE-C1")


@pytest.mark.parametrize("name", ["__class__", "__reduce__", "__getattribute__", "__dict__", "apply_", "numpy", "x(", "",
                                  "register_hook", "no_such_method", "backward", "_nnz", "sin()", "set_"])  # fmt: skip
def test_file_c1_refuses_methods(name):
    refused(call("." + name), "FILE-C1")


@pytest.mark.parametrize("name", ["__class__", "__globals__", "grad_fn", "_backward_hooks", "", "x y", 3, None])
def test_file_c1_refuses_attributes(name):
    refused(call("@builtins.getattr", name), "FILE-C1")
    refused(call("@torch.sin", {"target": "@builtins.getattr"}), "FILE-C1")


def test_file_c1_callable_arguments_are_overloads():
    back = from_json(json.dumps(call("@torch.sin", {"target": "aten.add.Tensor"})))
    assert back.op_nodes[0].args[1:] == (torch.ops.aten.add.Tensor,)
    back.module()
    refused(call("@torch.sin", {"target": "@builtins.int"}), "FILE-C1")
    refused(call("@torch.sin", {"target": "@torch.cos"}), "FILE-C1")
    b = Builder("torch")
    with pytest.raises(StoredGraphError, match="FILE-C1"):
        to_json(b.finish(b.call(torch.sin, (b.input("x", spec(2)), torch.cos), spec(2))))


def test_file_c1_imports_nothing(tmp_path, monkeypatch):
    (tmp_path / "hostile_module_of_a_file.py").write_text("raise SystemExit('imported')\ndef sin(x): return x\n")
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    for name in ("hostile_module_of_a_file.sin", "hostile_module_of_a_file", "torch.hostile_module_of_a_file.sin"):
        refused(call("@" + name), "FILE-C1")
    text = print_text(torch_example())
    with pytest.raises(StoredGraphError, match="FILE-C1"):
        parse_text(text.replace("@torch.", "@hostile_module_of_a_file."))
    assert set(sys.modules) == before


def test_every_listed_name_leads_back():
    """What is allowed by name, the name is printed for: nothing is reachable only under another name."""
    import operator

    names = [f"torch.{n}" for n in dir(torch)] + [f"torch.nn.functional.{n}" for n in dir(torch.nn.functional)]
    names += [f"operator.{n}" for n in operator.__all__] + [f"torch.Tensor.{n}" for n in dir(torch.Tensor) if n[0] != "_"]
    allowed = [name for name in names if listed(name) is not None]
    assert len(allowed) > 900
    for name in allowed:
        function = listed(name)
        assert target_of(target_name(function)) == function, name
        assert not isinstance(function, type) or function in (int, float, bool, complex, tuple, list, slice, range), name


def test_registered_callables():
    def mine(x):
        return x + 1

    b = Builder("torch")
    env = b.finish(b.call(mine, (b.input("x", spec(2)),), spec(2)))
    with pytest.raises(StoredGraphError, match="register_callable") as caught:
        to_json(env)
    assert caught.value.label == "FILE-C1"
    assert register_callable(mine) is mine
    for back in (from_json(to_json(env)), parse_text(print_text(env))):
        assert structural_difference(env, back) is None
        assert back.module()(torch.zeros(2))[0].tolist() == [1, 1]
    register_callable(torch.hub.load_state_dict_from_url, "mine.by.another.name")
    assert target_of("@mine.by.another.name") is torch.hub.load_state_dict_from_url


def with_path(data, path, value):
    data = copy.deepcopy(data)
    inner = data
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return data


def paths(data, at=()):
    """Every place of a JSON value."""
    if at:
        yield at
    for key, item in data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ():
        yield from paths(item, (*at, key))


def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", "[" * 100_000, '{"a":' * 100_000, '{"version": [1, 0]}', '{"version": [1, 1e400]}', "NaN",
     '{"version": [true, 0]}', '{"version": 1}', "9" * 10_000, "\ud800"],
    ids=range(13),
)  # fmt: skip
def test_file_c2_text_is_no_envelope(text):
    refused(text, "FILE-C2")


@pytest.mark.parametrize(
    "argument",
    [nested(70), {"tuple": [nested(70)]}, 2**64, -(2**63) - 1, 1.5, {"node": -1}, {"node": 99}, {"node": True},
     {"node": "0"}, {"torch": "hub"}, {"torch": "_dynamo"}, {"torch": ["float32"]}, {"device": "no_such_device"},
     {"device": "cpu; import os"}, {"device": 0}, {"float": "x"}, {"float": 1}, {"complex": [1, 2]}, {"slice": [1]},
     {"dict": [[{"tuple": []}, 1]]}, {"dict": [[[], 1]]}, {"unknown": 1}, {}, {"node": 0, "tuple": []}, {"size": "s9"},
     {"size": "1+" * 20_000 + "1"}, {"size": "(" * 500 + "1" + ")" * 500}, {"size": "-" * 15_000 + "1"},
     {"size": "9**9**9**9"}, {"size": "__import__('os').system('true')"}, {"size": 3}, {"size": "1//0"},
     {"size": "*".join(f"(1+{k}*{k + 1})**64" for k in range(64))}, {"size": "s0.x"}, {"size": "min()"}],
    ids=range(35),
)  # fmt: skip
def test_file_c2_arguments(argument):
    refused(call("@torch.sin", argument), "FILE-C2")
    refused(call("@torch.sin", key=argument), "FILE-C2")


def test_file_c2_sizes_are_bounded():
    context = SymbolContext()
    b = Builder("torch", context)
    x = b.input("x", spec(context.new_symbol(7, "x.size(0)")))
    data = json.loads(to_json(b.finish(b.call(torch.sin, (x,), spec(2)))))
    name = data["symbols"][0]["name"]
    for text in (f"({name}+1)**4000", "*".join(f"({name}+{k})**60" for k in range(80)), f"{name}**-1",
                 "*".join(["9" * 70] * 20), "//".join([name] * 100), f"ite({name})", f"float('{'x' * 100}')"):  # fmt: skip
        refused(with_path(data, ("nodes", 0, "args", 0), {"size": text}), "FILE-C2")


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_file_c2_every_place_of_every_type(name):
    """Each value of a stored graph, exchanged for values of other types: an error with a label, or a graph."""
    env = EXAMPLES[name]()
    data = json.loads(to_json(env))
    strange = [None, True, -1, 2**70, 1.5, "", "x y", "__class__", [], {}, nested(80), {"node": 0}, {"tuple": [None]}]
    chosen = random.Random(name)
    for path in paths(data):
        for value in chosen.sample(strange, 4):
            try:
                back = from_json(json.dumps(with_path(data, path, value)), env.constants)
                back.verify()
            except QuintetError as error:
                assert getattr(error, "label", None), (path, value, error)
            else:
                back.module()
        parent = with_path(data, path, None)
        inner = parent
        for key in path[:-1]:
            inner = inner[key]
        del inner[path[-1]]
        try:
            from_json(json.dumps(parent), env.constants).verify()
        except QuintetError as error:
            assert getattr(error, "label", None), (path, error)


@pytest.mark.parametrize("name", ["x=print(1)", "x, y", "class", "self", "__class__", "x\n", "ｘ", "", "1x", None, ["x"]])
def test_file_c3_names(name):
    data = json.loads(to_json(torch_example()))
    refused(with_path(data, ("inputs", 0, "name"), name), "FILE-C3")
    if isinstance(name, str):
        refused(call("@torch.sin", **{name: 1}), "FILE-C3")


def test_an_argument_that_is_named_like_a_keyword():
    b = Builder("torch")
    env = b.finish(b.call(torch.ops.aten.uniform.default, (b.input("x", spec(2)),), spec(2), {"from": 1.0, "to": 1.0}))
    back = from_json(to_json(env))
    assert structural_difference(env, back) is None
    assert back.module()(torch.zeros(2))[0].tolist() == [1, 1]
    refused(to_json(env).replace("aten.uniform.default", "aten.sin.default"), "FILE-C3")


@pytest.mark.parametrize("name", ["forward", "__class__", "a.forward", "a..b", "graph", "", 'a"+b'])
def test_file_c3_constants(name):
    env = aten_example()
    text = to_json(env).replace('"scale"', json.dumps(name))
    refused(text, "FILE-C3")
    with pytest.raises(StoredGraphError):
        parse_text(print_text(env).replace("$scale", f"${name}"), env.constants)


def test_file_c3_symbols():
    data = json.loads(to_json(aten_example())) | {"constants": {}}
    for name in ("s0;system()", "lambda", "s 0", ""):
        refused(with_path(data, ("symbols", 0, "name"), name), "FILE-C3")


@pytest.mark.parametrize(
    ("change", "label"),
    [
        (lambda t: t.replace("return", "%9 = @posix.system(%x)\nreturn", 1), "FILE-C1"),
        (lambda t: t.replace("return", "%9 = @torch.sin(@os.system)\nreturn", 1), "FILE-C1"),
        (lambda t: t.replace("return", "%9 = .__class__(%x)\nreturn", 1), "FILE-C1"),
        (lambda t: t.replace("return", "%9 = torch.hub.load(%x)\nreturn", 1), "FILE-C1"),
        (lambda t: t.replace("return", "%9 = @torch.sin(torch.hub)\nreturn", 1), "FILE-C2"),
        (lambda t: t.replace("return", "%9 = @torch.sin(" + "[" * 5000 + "\nreturn", 1), "FILE-C2"),
        (lambda t: t.replace("return", "%9 = @torch.sin(" + "slice(" * 5000 + "\nreturn", 1), "FILE-C2"),
        (lambda t: t.replace("return", "%9 = @torch.sin(" + "9" * 5000 + ")\nreturn", 1), "FILE-C2"),
        (lambda t: t.replace("return", "%9 = @torch.sin(complex(`s0`, 1))\nreturn", 1), "FILE-C2"),
        (lambda t: t.replace("return", "%9 = @torch.sin({%x: 1})\nreturn", 1), "FILE-C2"),
        (lambda t: t.replace("return", "%9 = @torch.sin(device(3))\nreturn", 1), "FILE-C2"),
        (lambda t: t.replace("return", "%9 = @torch.sin(%x) : " + "(" * 3000 + "\nreturn", 1), "FILE-C2"),
        (lambda t: t.replace("return", "%9 = @torch.sin(%x) : hub[2] cpu\nreturn", 1), "FILE-C2"),
        (lambda t: t.replace("input %x :", "input %class :"), "FILE-C3"),
        (lambda t: t.replace("symbol s0 in", "symbol if in"), "FILE-C3"),
        (lambda t: t.replace("kind=input", 'kind=input source="' * 5000), "FILE-C2"),
        (lambda t: t[: len(t) // 2], "FILE-C2"),
    ],
    ids=range(17),
)
def test_hostile_text(change, label):
    env = aten_example()
    text = change(print_text(env))
    assert text != print_text(env)
    with pytest.raises(StoredGraphError) as caught:
        parse_text(text, env.constants)
    assert caught.value.label == label, caught.value


def test_long_lines_are_read_in_linear_time():
    b = Builder("torch")
    x = b.input("x", spec(2))
    env = b.finish(b.call(torch.sin, (x, list(range(200_000))), spec(2)))
    assert structural_difference(env, parse_text(print_text(env))) is None


@pytest.fixture
def stored(tmp_path):
    path = tmp_path / "graph.json"
    save(aten_example(), path)
    assert load(path).constants
    return path


def not_a_file(path):
    path.unlink()
    return path


@pytest.mark.parametrize("suffix", ["", ".safetensors"])
@pytest.mark.parametrize("kind", ["fifo", "folder", "loop", "dangling", "device", "empty", "truncated", "header", "noise"])
def test_file_c4_what_is_no_such_file(stored, suffix, kind):
    path = pathlib.Path(f"{stored}{suffix}")
    data = path.read_bytes()
    path.unlink()
    match kind:
        case "fifo":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "loop":
            path.symlink_to(path)
        case "dangling":
            path.symlink_to(path.parent / "nowhere")
        case "device":
            path.symlink_to("/dev/zero")
        case "empty":
            path.write_bytes(b"")
        case "truncated":
            path.write_bytes(data[: len(data) // 2])
        case "header":
            path.write_bytes(struct.pack("<Q", 2**63) + data[8:])
        case "noise":
            path.write_bytes(random.Random(1).randbytes(4096))
    with pytest.raises(StoredGraphError) as caught:
        load(stored)
    assert caught.value.label == ("FILE-C4" if suffix or kind in ("fifo", "folder", "loop", "dangling", "device") else "FILE-C2")


def test_file_c4_constants_of_another_graph(stored):
    other = aten_example()
    other.constants["scale"].mul_(2)
    save(other, stored.parent / "other.json")
    os.replace(stored.parent / "other.json.safetensors", f"{stored}.safetensors")
    with pytest.raises(StoredGraphError, match="another content") as caught:
        load(stored)
    assert caught.value.label == "FILE-C4"
    os.unlink(f"{stored}.safetensors")
    with pytest.raises(StoredGraphError, match="was not given"):
        load(stored)


def test_file_c4_size_limit(stored, monkeypatch):
    monkeypatch.setattr("prims.ir.serial.MAX_FILE", 100)
    with pytest.raises(StoredGraphError, match="at most 100") as caught:
        load(stored)
    assert caught.value.label == "FILE-C4"


def test_a_link_to_a_stored_graph_is_one(stored, tmp_path):
    (tmp_path / "link.json").symlink_to(stored)
    (tmp_path / "link.json.safetensors").symlink_to(f"{stored}.safetensors")
    assert structural_difference(load(stored), load(tmp_path / "link.json")) is None


def test_specification_lists_every_rule():
    text = (pathlib.Path(__file__).parents[4] / "docs" / "ir.md").read_text()
    own = pathlib.Path(__file__).read_text()
    for label, sentence in FILE_RULES.items():
        assert f"**{label}**: {sentence}" in text, label
        assert f"def test_{label.lower().replace('-', '_')}_" in own, label
