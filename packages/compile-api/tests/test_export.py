"""Programs ahead of time: what export gives is eager's result, for every call that its contract allows and no other."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections import namedtuple

import pytest
import torch

import compile_api
from compile_api import Dim, export, load_exported
from prims.errors import StoredGraphError, UserError

Pair = namedtuple("Pair", "first second")


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(8, 8)
        self.register_buffer("calls", torch.zeros(8))
        self.own = torch.ones(8)

    def forward(self, x, *, batch, flag=True):
        self.calls.add_(1)
        h = self.first(x).relu() + self.calls + self.own + batch["bias"]
        rest = Pair(h.t(), None)
        return {"h": h, "row": h[0], "x": x, "three": 3, "size": h.shape[0], "rest": rest, "sum": h.sum(0) if flag else h}


def example(rows=4):
    torch.manual_seed(rows)
    return torch.randn(rows, 8), {"bias": torch.randn(8)}


def exported():
    model = Model()
    x, batch = example()
    return model, export(model, (x,), {"batch": batch}, dynamic_shapes={"x": {0: "rows"}})


def assert_same(found, wanted):
    if isinstance(wanted, dict):
        assert list(found) == list(wanted)
        for key in wanted:
            assert_same(found[key], wanted[key])
    elif isinstance(wanted, tuple):
        assert found._fields == wanted._fields
        for a, b in zip(found, wanted):
            assert_same(a, b)
    elif isinstance(wanted, torch.Tensor):
        assert found.stride() == wanted.stride()
        torch.testing.assert_close(found, wanted.detach(), atol=1e-5, rtol=1e-5)
    else:
        assert found == wanted and type(found) is type(wanted)


def test_runs_as_the_model_for_every_size():
    model, program = exported()
    assert float(model.calls.sum()) == 0  # exporting changes nothing
    for rows in (4, 7, 2, 33):
        x, batch = example(rows)
        assert_same(program(x, batch=batch), model(x, batch=batch))
    assert torch.equal(program.weights["calls"], model.calls)
    assert float(model.calls.sum()) == 32
    assert program.report().kernels and not program.report().fallbacks


def test_results_that_are_views_share_memory():
    _, program = exported()
    x, batch = example()
    found = program(x, batch=batch)
    assert found["x"] is x
    found["row"].zero_()
    assert float(found["h"][0].abs().sum()) == 0 == float(found["rest"].first[:, 0].abs().sum())


def test_qualified_names_and_text():
    _, program = exported()
    assert set(program.weights) == {"first.weight", "first.bias", "calls", "constant.self.own"}
    text = str(program)
    for part in ("takes x: float32[rows, 8] cpu", "takes batch['bias']: float32[8] cpu", "gives result['size']: rows",
                 "where rows in [2, inf]", "aten.addmm.default"):  # fmt: skip
        assert part in text


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda p, x, b: p(x.double(), batch=b), ["x has dtype float64", "float32[rows, 8]"]),
        (lambda p, x, b: p(x[:, :3], batch=b), ["x has size 3 in dimension 1", "expected 8"]),
        (lambda p, x, b: p(x[0], batch=b), ["x has 1 dimensions"]),
        (lambda p, x, b: p(x[:1], batch=b), ["x has size 1", "rows in [2, inf]"]),
        (lambda p, x, b: p(x.to("meta"), batch=b), ["x is on meta", "expected cpu"]),
        (lambda p, x, b: p(None, batch=b), ["x is a NoneType"]),
        (lambda p, x, b: p(x), ["batch is missing"]),
        (lambda p, x, b: p(x, batch={}), ["batch lacks the key 'bias'"]),
        (lambda p, x, b: p(x, batch={**b, "more": 1}), ["'more' too many"]),
        (lambda p, x, b: p(x, b), ["by place"]),
        (lambda p, x, b: p(x, batch=b, y=1), ["no argument 'y'"]),
        (lambda p, x, b: p(x, x=x, batch=b), ["x is given twice"]),
        (lambda p, x, b: p(x, batch=b, flag=False), ["no argument 'flag'"]),
    ],
)
def test_calls_against_the_contract_are_refused(call, words):
    _, program = exported()
    x, batch = example()
    with pytest.raises(UserError) as caught:
        call(program, x, batch)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_literals_stay():
    program = export(lambda x, k, s=None: x * k, (torch.ones(3), 2))
    assert torch.equal(program(torch.ones(3), 2), torch.full((3,), 2.0))
    assert torch.equal(program(torch.ones(3)), torch.full((3,), 2.0))  # it can have one value only
    with pytest.raises(UserError, match="k is 3, but the program was exported for 2"):
        program(torch.ones(3), 3)


@pytest.mark.parametrize("value", [float("nan"), 0.0, -0.0, float("inf"), 2.5])
def test_numbers_stay_by_their_bits(value):
    """Zeros by their signs; a NaN is what the program was exported with."""
    program = export(lambda x, k: torch.full_like(x, k).reciprocal(), (torch.ones(3), value))
    torch.testing.assert_close(
        program(torch.ones(3), value), torch.full((3,), value).reciprocal(), rtol=0, atol=0, equal_nan=True
    )
    with pytest.raises(UserError, match="the program was exported for"):
        program(torch.ones(3), -value if value in (0.0, 2.5) else 0.5)


@pytest.mark.parametrize(
    "options", [{"data_dependent": True}, {"dynamic": True}, {"background": True}, {"check": "nan"},
                {"offload": True}], ids=str
)
def test_options_that_are_not_for_exported_programs(options):
    (name,) = options
    with pytest.raises(UserError, match=f"{name} is not for exported programs"):
        export(lambda x: x.log() + 1, (torch.ones(3),), options=options)


def test_no_hint_at_an_option_that_is_not_for_exported_programs():
    with pytest.raises(UserError) as caught:
        export(lambda x: x[x > 0].sum(), (torch.ones(3),))
    assert "data-dependent read" in str(caught.value) and "option data_dependent" not in str(caught.value)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("made", [torch.nn.Linear(3, 3), lambda x: x + 1], ids=["module", "function"])
def test_torchscript_is_told_apart(made):
    scripted = torch.jit.trace(made, (torch.ones(2, 3),))
    with pytest.raises(UserError, match="of TorchScript"):
        export(scripted, (torch.ones(2, 3),))


def test_other_strides_are_laid_out():
    program = export(lambda x: (x @ x.t()).relu() + 1, (torch.randn(6, 6),))
    x = torch.randn(6, 6)
    torch.testing.assert_close(program(x.t()), (x.t() @ x).relu() + 1)


def test_written_arguments_are_written():
    def step(cache, x):
        cache[0] = x
        return cache.sum()

    program = export(step, (torch.zeros(3, 4), torch.ones(4)))
    cache = torch.zeros(4, 3).t()
    assert float(program(cache, torch.ones(4))) == 4
    assert float(cache.sum()) == 4


def test_arguments_that_share_memory_with_a_written_one_are_refused():
    def step(cache, x):
        cache.add_(1)
        return cache + x

    program = export(step, (torch.zeros(4), torch.ones(4)))
    x = torch.zeros(8)
    assert program(x[:4], torch.ones(4)).tolist() == [2.0] * 4
    with pytest.raises(UserError, match="cache, which the program writes, shares memory with x"):
        program(x[:4], x[2:6])


# ---- dynamic_shapes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "form",
    [{"x": {0: "n"}}, {"x": {0: Dim("n", 2, 64)}}, {"x": {0: (2, 64)}}, {"x": {0: True}}, {"x": ["n", None]},
     [{0: "n"}], {"x": {-2: "n"}}, {"x": {0: "n", 1: 8}}],
)  # fmt: skip
def test_forms_of_dynamic_shapes(form):
    program = export(lambda x: x.softmax(-1) * x.shape[0], (torch.randn(4, 8),), dynamic_shapes=form)
    x = torch.randn(9, 8)
    torch.testing.assert_close(program(x), x.softmax(-1) * 9)


def test_dimensions_of_people_who_know_torch_export():
    class TheirDim:  # what an object of torch.export.Dim shows
        min, max = 0, 9223372036854775807

    TheirDim.__name__ = "n"
    program = export(lambda x: x.relu() * 3, (torch.ones(4),), dynamic_shapes={"x": {0: TheirDim}})
    assert torch.equal(program(torch.ones(2)), torch.full((2,), 3.0))


def test_a_size_of_one_where_the_program_does_not_mind():
    program = export(lambda x: x.relu() * 2, (torch.randn(4, 3),), dynamic_shapes={"x": {0: (1, 16)}})
    assert torch.equal(program(torch.ones(1, 3)), torch.full((1, 3), 2.0))
    with pytest.raises(UserError, match=r"x has size 17 in dimension 0, expected x_0 in \[1, 16\]"):
        program(torch.ones(17, 3))


def test_equal_names_are_equal_sizes():
    x = torch.randn(4, 8)
    with pytest.raises(UserError, match="p == q") as caught:
        export(lambda a, b: a + b, (x, x + 1), dynamic_shapes={"a": {0: "p"}, "b": {0: "q"}})
    assert "test_export.py" in str(caught.value)
    program = export(lambda a, b: a + b, (x, x + 1), dynamic_shapes={"a": {0: "p"}, "b": {0: "p"}})
    y = torch.randn(5, 8)
    assert torch.equal(program(y, y), y + y)
    with pytest.raises(UserError, match="but p is 5 elsewhere"):
        program(y, x)


def _by_four(x):
    if x.shape[0] % 4 == 0:
        return x + 1
    return x - 1


def _fixed(x):
    return x + torch.ones(4, 8)


@pytest.mark.parametrize(
    ("fn", "form", "words"),
    [
        (_by_four, {"x": {0: "n"}}, ["(n % 4) == 0", "_by_four"]),
        (_fixed, {"x": {0: "n"}}, ["n"]),
        (_fixed, {"y": {0: "n"}}, ["'y'", "no argument"]),
        (_fixed, {"x": {2: "n"}}, ["dimension 2"]),
        (_fixed, {"x": {0: (5, 9)}}, ["outside of"]),
        (_fixed, {"x": {0: 5}}, ["says that dimension 0 of x is 5, and it is 4"]),
        (_fixed, {"x": {0: "a b"}}, ["no name"]),
        (_fixed, {"x": {0: 1.5}}, ["1.5"]),
        (_fixed, 7, ["int"]),
    ],
)
def test_dynamic_shapes_that_cannot_be(fn, form, words):
    with pytest.raises(UserError) as caught:
        export(fn, (torch.randn(4, 8),), dynamic_shapes=form)
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ({"d": {"b": [{0: "n"}]}}, ["d['b'], which is not there", "d has ['a']"]),
        ({"d": {"a": [{0: "n"}], "c": {0: "n"}}}, ["d['c']"]),
        ({"d": {"a": [{0: "n"}, {0: "m"}]}}, ["2 entries for d['a'], which has 1"]),
        ({"d": {"a": {1: {0: "n"}}}}, ["d['a'][1]"]),
    ],
)
def test_parts_of_dynamic_shapes_that_are_not_there(form, words):
    with pytest.raises(UserError) as caught:
        export(lambda d: d["a"][0] + 1, ({"a": [torch.ones(3, 4)]},), dynamic_shapes=form)
    assert all(word in str(caught.value) for word in words), str(caught.value)


# ---- what prevents export -------------------------------------------------------------------------------------------


def _branches(x):
    if x.sum() > 0:
        return x + 1
    return x


class Counts(torch.nn.Module):
    count = 0

    def forward(self, x):
        self.count += 1
        return x * 2


class Replaces(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("last", torch.zeros(3))

    def forward(self, x):
        self.last = x * 2
        return self.last + 1


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (_branches, ["_branches", "if x.sum() > 0", "torch.where"]),
        (Counts(), ["'count'", "test_export.py:", "in forward"]),
        (Replaces(), ["'last'", "self.last.copy_(...)", "in forward"]),
        (torch.nn.Sequential(Counts()), ["'0.count'", "in forward"]),
        (lambda x: {torch.relu: x + 1}, ["key"]),
        (lambda x: {"a", "b"} if (x + 1).shape else x, ["set"]),
        (lambda x: 3, ["captured"]),
    ],
)
def test_the_error_names_what_prevents_it(model, words):
    with pytest.raises(UserError) as caught:
        export(model, (torch.ones(3),))
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert getattr(model, "count", 0) == 0
    assert not isinstance(model, Replaces) or float(model.last.sum()) == 0


class Holder:
    """Something of the program's that a model writes to."""

    def __init__(self):
        self.numbers, self.by_name, self.names = [1.0], {"old": torch.ones(3)}, {"old"}
        self.count, self.none = 0, None

    def state(self):
        return list(self.numbers), dict(self.by_name), set(self.names), self.count, self.none


HELD = Holder()
KEPT = 0


class Keeps(torch.nn.Module):
    def __init__(self, held):
        super().__init__()
        self.held, self.by_name = held, held.by_name

    def forward(self, x):
        if "new" not in self.by_name:
            self.by_name["new"] = torch.ones(3)
        return x * self.by_name["new"]


def _global_number(x):
    global KEPT
    KEPT += 1
    return x * 2


def _keyword_argument(x, kept):
    kept["new"] = x + 1
    return x * 2


def _function_attribute(x):
    _function_attribute.calls = getattr(_function_attribute, "calls", 0) + 1
    return x * 2


def _changing(change):
    def model(x):
        y = x * 2
        change(HELD, y)
        return y

    return model


CHANGES = {
    "append": lambda held, y: held.numbers.append(y),
    "extend": lambda held, y: held.numbers.extend((y, y)),
    "clear": lambda held, y: held.numbers.clear(),
    "set an item": lambda held, y: held.numbers.__setitem__(0, y),
    "set a key": lambda held, y: held.by_name.__setitem__("new", y),
    "update": lambda held, y: held.by_name.update(old=y),
    "pop": lambda held, y: held.by_name.pop("old"),
    "setdefault": lambda held, y: held.by_name.setdefault("new", y),
    "add": lambda held, y: held.names.add("new"),
    "discard": lambda held, y: held.names.discard("old"),
    "count": lambda held, y: setattr(held, "count", held.count + 1),
    "keep": lambda held, y: setattr(held, "none", y),
    "delete": lambda held, y: delattr(held, "count"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_is_kept_beside_tensors_prevents_it_and_is_left_alone(name):
    before = HELD.state()
    with pytest.raises(UserError, match="running it changes HELD") as caught:
        export(_changing(CHANGES[name]), (torch.ones(3),))
    assert caught.value.where is not None and caught.value.where.filename == __file__
    assert HELD.state() == before


@pytest.mark.parametrize(
    ("model", "kwargs", "words"),
    [
        (Keeps(HELD), {}, "by_name"), (_global_number, {}, "KEPT"), (_function_attribute, {}, "calls"),
        (_keyword_argument, {"kept": {"old": torch.ones(3)}}, "kept"),
    ],
)  # fmt: skip
def test_wherever_it_is_kept(model, kwargs, words):
    before = HELD.state()
    with pytest.raises(UserError, match=f"running it changes .*{words}"):
        export(model, (torch.ones(3),), kwargs)
    assert HELD.state() == before and KEPT == 0 and not hasattr(_function_attribute, "calls")
    assert list(kwargs.get("kept", {"old": 0})) == ["old"]


def test_what_is_kept_for_later_calls_is_there_after_one():
    held = Holder()
    model = Keeps(held)
    expected = model(torch.full((3,), 2.0))
    assert torch.equal(export(model, (torch.ones(3),))(torch.full((3,), 2.0)), expected)


def test_what_is_as_it_was_prevents_nothing():
    def model(x, **more):
        HELD.count += 1
        HELD.numbers.append(x)
        more["twice"] = HELD.numbers[-1] * 2  # a dictionary of this call's
        HELD.numbers.pop()
        HELD.count -= 1
        return more["twice"] + more["bias"]

    before = HELD.state()
    program = export(model, (torch.ones(3),), {"bias": torch.ones(3)})
    assert program(torch.ones(3), bias=torch.ones(3)).tolist() == [3.0] * 3
    assert HELD.state() == before


def test_arguments_that_the_model_does_not_take():
    with pytest.raises(UserError, match="missing a required argument"):
        export(_fixed, ())
    with pytest.raises(UserError, match="Give a tuple"):
        export(_fixed, torch.ones(4, 8))


# ---- files ----------------------------------------------------------------------------------------------------------

READER = """
import sys, torch, compile_api
program = compile_api.load_exported(sys.argv[1])
x, bias = torch.load(sys.argv[2])
torch.save(program(x, batch={"bias": bias})["h"], sys.argv[3])
assert "dynamo_capture" not in sys.modules and "aot_autograd" not in sys.modules
"""


def test_another_process_without_the_model(tmp_path):
    model, program = exported()
    program.save(tmp_path / "program")
    x, batch = example(6)
    torch.save((x, batch["bias"]), tmp_path / "given.pt")
    subprocess.run(
        [sys.executable, "-c", READER, str(tmp_path / "program"), str(tmp_path / "given.pt"), str(tmp_path / "out.pt")],
        check=True,
    )
    assert torch.equal(torch.load(tmp_path / "out.pt"), program(x, batch=batch)["h"])
    torch.testing.assert_close(torch.load(tmp_path / "out.pt"), model(x, batch=batch)["h"].detach())


def test_weights_can_be_exchanged(tmp_path):
    model, program = exported()
    program.save(tmp_path)
    again = load_exported(tmp_path)
    again.weights["first.weight"] = torch.zeros(8, 8)
    x, batch = example()
    with torch.no_grad():
        model.first.weight.zero_()
    assert_same(again(x, batch=batch), model(x, batch=batch))


@pytest.mark.parametrize("damage", ["json", "form", "contract", "weights", "weight", "graph"])
def test_damaged_folders_are_refused(tmp_path, damage):
    from safetensors.torch import save_file

    _, program = exported()
    program.save(tmp_path)
    place = tmp_path / "contract.json"
    data = json.loads(place.read_text())
    if damage == "json":
        place.write_text(place.read_text()[:100])
    elif damage == "form":
        place.write_text(json.dumps({**data, "format": [9, 0]}))
    elif damage == "contract":
        data["contract"]["inputs"].pop()
        place.write_text(json.dumps(data))
    elif damage == "weights":
        (tmp_path / "weights.safetensors").write_bytes(b"no weights")
    elif damage == "weight":
        save_file({n: w for n, w in program.weights.items() if n != "calls"}, tmp_path / "weights.safetensors")
    else:
        (tmp_path / "graph.json").unlink()
    with pytest.raises(UserError if damage == "weight" else StoredGraphError) as caught:
        load_exported(tmp_path)
    assert damage != "weight" or "calls is missing" in str(caught.value)


def test_random_numbers_repeat():
    program = export(lambda x: torch.nn.functional.dropout(x, 0.5), (torch.ones(64),))
    torch.manual_seed(3)
    first, second = program(torch.ones(64)), program(torch.ones(64))
    torch.manual_seed(3)
    assert torch.equal(program(torch.ones(64)), first) and not torch.equal(first, second)


def test_a_compiled_model_is_exported_as_its_original():
    model = torch.nn.Linear(4, 4)
    program = export(compile_api.compile(model), (torch.ones(2, 4),))
    torch.testing.assert_close(program(torch.ones(2, 4)), model(torch.ones(2, 4)).detach())


LAYOUTS = {
    "every other row": lambda base: base.view(8, 3)[::2],
    "every other column": lambda base: base.view(4, 6)[:, ::2],
    "transposed": lambda base: base[:12].view(3, 4).t(),
    "expanded": lambda base: base[:3].expand(4, 3),
    "with an offset": lambda base: base[3:15].view(4, 3),
}
VIEWS = {
    "reshape": lambda x: x.reshape(-1),
    "transpose": lambda x: (x.t(), x + 1),
    "parts": lambda x: (x.chunk(2), x[1], x.unsqueeze(0).sum()),
    "a part of a flat one": lambda x: x.reshape(-1)[2:5],
    "diagonal": lambda x: x.diagonal(),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", VIEWS)
def test_views_of_inputs_in_other_strides(tmp_path, name, layout):
    fn, make = VIEWS[name], LAYOUTS[layout]
    program = export(fn, (torch.randn(4, 3),))
    program.save(tmp_path)
    x = make(torch.arange(24.0))
    wanted = torch.utils._pytree.tree_leaves(fn(x))
    for run in (program, load_exported(tmp_path)):
        for mine, eager in zip(torch.utils._pytree.tree_leaves(run(x)), wanted, strict=True):
            assert torch.equal(mine, eager)


def test_views_of_an_argument_that_is_written():
    def fn(x, y):
        x.add_(y)
        return x.unsqueeze(0), x.chunk(2), x.sum()

    program = export(fn, (torch.randn(4, 3), torch.ones(3)))
    for layout in ("every other row", "transposed", "with an offset"):
        mine, eager = (LAYOUTS[layout](torch.arange(24.0)) for _ in range(2))
        results = [torch.utils._pytree.tree_leaves(run(x, torch.ones(3))) for run, x in ((program, mine), (fn, eager))]
        assert torch.equal(mine, eager) and all(map(torch.equal, *results))


def test_a_dataclass_is_no_argument():
    @dataclasses.dataclass
    class Pair:
        a: torch.Tensor
        b: torch.Tensor

    with pytest.raises(UserError, match="the argument pair is a Pair"):
        export(lambda pair: pair.a + pair.b, (Pair(torch.ones(2), torch.ones(2)),))


def test_what_no_file_holds_leaves_nothing_behind(tmp_path):
    """And advice is not what is refused as well."""
    from compile_api import package

    program = export(lambda x: torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,)), (torch.ones(3),))
    torch.testing.assert_close(program(-torch.ones(3)), torch.full((3,), -2.0))
    with pytest.raises(StoredGraphError, match="a branch or loop"):
        program.save(tmp_path / "new")
    assert not (tmp_path / "new").exists()
    with pytest.raises(UserError, match="no file holds branches and loops") as caught:
        package(program, tmp_path / "packaged")
    assert "Exported.save()" not in str(caught.value)
