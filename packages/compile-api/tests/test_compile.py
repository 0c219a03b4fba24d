"""compile()'s arguments, modes, backends, fallbacks and messages."""

from __future__ import annotations

import copy
import pickle
import re
import subprocess
import sys
import threading
import warnings
import weakref

import pytest
import torch

import compile_api
from aot_autograd import inference_graph, joint_graph, partition_joint
from compile_api import CompileWarning, backends, environment
from compile_api import guarded as guarded_module
from compile_api.guarded import Guarded, eager_graph
from compile_api.modes import MODE_OPTIONS, make_options
from inductor_gen import compiled as compiled_module
from prims.errors import Refused, UserError
from prims.options import Options
from prims.report import Report


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: compile_api.compile(3), ["3", "int", "callable"]),
        (lambda: compile_api.compile(torch.sin, mode="fastest"), ["fastest", "'max-autotune'"]),
        (lambda: compile_api.compile(torch.sin, mode=3), ["3", "'default'"]),
        (lambda: compile_api.compile(torch.sin, backend="inducto"), ["inducto", "Did you mean 'inductor'"]),
        (lambda: compile_api.compile(torch.sin, backend=None), ["None", "f(gm, example_inputs)"]),
        (lambda: compile_api.compile(torch.sin, options={"fuell": 3}), ["fuell", "Did you mean 'fuel'"]),
        (lambda: compile_api.compile(torch.sin, options={"fuel": -3}), ["fuel", "-3"]),
        (lambda: compile_api.compile(torch.sin, options=[3]), ["[3]", "dict"]),
        (lambda: compile_api.compile(torch.sin, options={3: 3}), ["3", "string"]),
        (lambda: compile_api.compile(torch.sin, fullgraph="all"), ["fullgraph", "all"]),
        (lambda: compile_api.compile(dynamic=3), ["dynamic", "3"]),
        (lambda: compile_api.register_backend(3), ["3", "callable"]),
        (lambda: compile_api.register_backend(lambda gm, x: gm, name="inductor"), ["inductor", "exists"]),
        (lambda: compile_api.lookup_backend("none"), ["none", "aot_eager"]),
    ],
)
def test_bad_arguments_are_named(call, words):
    with pytest.raises(UserError) as caught:
        call()
    for word in words:
        assert word in str(caught.value)


def test_modes():
    def options(**kwargs):
        return make_options(**{"fullgraph": False, "dynamic": None, "mode": None, "options": None, **kwargs})

    assert options().mode == "default"
    assert options(mode="max-autotune").max_autotune and options(mode="max-autotune").cudagraphs
    assert not options(mode="max-autotune-no-cudagraphs").cudagraphs
    assert options(mode="reduce-overhead").cudagraphs
    assert not options(mode="max-autotune", options={"max_autotune": False}).max_autotune
    assert options(fullgraph=True, dynamic=False).fullgraph
    for mode in MODE_OPTIONS:
        assert options(mode=mode).mode == mode


def test_environment_options_apply(monkeypatch):
    monkeypatch.setenv("QUINTET_VERIFY", "every_pass")
    monkeypatch.setenv("QUINTET_MODE", "max-autotune")
    made = make_options(fullgraph=False, dynamic=None, mode=None, options=None)
    assert made.verify == "every_pass" and made.mode == "max-autotune" and made.max_autotune
    assert make_options(fullgraph=False, dynamic=None, mode="default", options=None).max_autotune is False


def test_disable_returns_the_model():
    model = torch.nn.Linear(2, 2)
    assert compile_api.compile(model, disable=True) is model


def test_decorators_keep_names_and_reports():
    @compile_api.compile(backend="eager")
    def with_arguments(x):
        """Doc."""
        return x + 1

    @compile_api.compile
    def plain(x):
        return x + 1

    assert with_arguments.__name__ == "with_arguments" and with_arguments.__doc__ == "Doc."
    assert plain.__name__ == "plain"
    assert with_arguments.report().graphs == [] and with_arguments.report() is not plain.report()


class Callable:
    def __init__(self) -> None:
        self.scale = 3

    def __call__(self, x):
        return x * self.scale

    @compile_api.compile(backend="eager")
    def method(self, x):
        return x + self.scale


def test_kinds_of_callables():
    x = torch.randn(3)
    thing = Callable()
    torch.testing.assert_close(compile_api.compile(thing, backend="eager")(x), x * 3)
    torch.testing.assert_close(thing.method(x), x + 3)
    torch.testing.assert_close(compile_api.compile(torch.sin, backend="eager")(x), x.sin())
    import functools

    partial = functools.partial(torch.add, alpha=2)
    torch.testing.assert_close(compile_api.compile(partial, backend="eager")(x, x), 3 * x)


def test_builtin_backends_agree():
    def function(x, y):
        return torch.softmax(x @ y, -1).relu() + 1

    x, y = torch.randn(4, 5), torch.randn(5, 6)
    for name in ("eager", "aot_eager", "inductor"):
        compiled = compile_api.compile(function, backend=name, fullgraph=True)
        with torch.no_grad():
            torch.testing.assert_close(compiled(x, y), function(x, y))
        assert not compiled.report().fallbacks, name
        assert any(graph.dialect == "torch" for graph in compiled.report().graphs)


def test_registered_backends():
    seen = []

    @compile_api.register_backend(name="recording")
    def recording(gm, example_inputs):
        seen.append((isinstance(gm, torch.fx.GraphModule), [tuple(x.shape) for x in example_inputs]))
        return gm.forward

    assert "recording" in compile_api.list_backends()
    x = torch.randn(3)
    torch.testing.assert_close(compile_api.compile(lambda x: x.sin() + 1, backend="recording")(x), x.sin() + 1)
    assert seen == [(True, [(3,)])]
    assert compile_api.register_backend(recording, name="recording") is recording
    with pytest.raises(UserError, match="exists"):
        compile_api.register_backend(lambda gm, x: gm.forward, name="recording")


@pytest.mark.parametrize("result", [ZeroDivisionError("backend is broken"), 7])
def test_a_failing_backend_falls_back_once(result):
    calls = []

    def broken(gm, example_inputs):
        calls.append(gm)
        if isinstance(result, Exception):
            raise result
        return result

    compiled = compile_api.compile(lambda x: x.sin() + 1, backend=broken)
    x = torch.randn(3)
    for _ in range(3):
        torch.testing.assert_close(compiled(x), x.sin() + 1)
    assert len(calls) == len(compiled.report().fallbacks) == 1
    assert compiled.report().fallbacks[0].stage == "backend broken"
    assert str(result) in compiled.report().fallbacks[0].reason


def test_strict_raises():
    def broken(gm, example_inputs):
        raise ZeroDivisionError("backend is broken")

    compiled = compile_api.compile(lambda x: x.sin() + 1, backend=broken, options={"strict": True})
    with pytest.raises(ZeroDivisionError):
        compiled(torch.randn(3))


@pytest.mark.parametrize("stage", ["lower", "codegen", "run"])
def test_a_failing_stage_falls_back_once(monkeypatch, stage):
    import inductor_gen
    import prims.lower

    def broken(*args, **kwargs):
        raise AssertionError("a defect")

    if stage == "lower":
        monkeypatch.setattr(prims.lower, "lower", broken)
    elif stage == "codegen":
        monkeypatch.setattr(inductor_gen, "compile_graph", broken)
    else:
        monkeypatch.setattr(inductor_gen, "compile_graph", lambda *args, **kwargs: broken)
    compiled = compile_api.compile(lambda x: x.sin() + 1)
    x = torch.randn(3)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(compiled(x), x.sin() + 1)
    (fallback,) = compiled.report().fallbacks
    assert fallback.stage == stage and "a defect" in fallback.reason


def test_unsupported_device_is_named():
    compiled = compile_api.compile(lambda x: x + 1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        environment._warned.clear()
        for _ in range(2):
            assert compiled(torch.empty(3, device="meta")).device.type == "meta"
    (message,) = [str(w.message) for w in caught if issubclass(w.category, CompileWarning)]
    assert "'meta'" in message and "cpu" in message
    assert len(compiled.report().fallbacks) == 1


@pytest.mark.parametrize(("version", "found"), [((3, 15, 0), "3.15"), ((3, 10, 2), "3.10")])
def test_unsupported_python(monkeypatch, version, found):
    class Info(tuple):
        pass

    monkeypatch.setattr(sys, "version_info", Info(version))
    monkeypatch.setattr(sys, "version", f"{found}.0 (main)")
    problem = environment.unsupported_environment()
    assert problem is not None and found in problem and "3.11 to 3.14" in problem


def test_a_free_threaded_python_is_refused(monkeypatch):
    monkeypatch.setattr(environment.sysconfig, "get_config_var", lambda name: name == "Py_GIL_DISABLED" or None)
    problem = environment.unsupported_environment()
    assert problem is not None and "free-threaded" in problem and "eagerly" in problem


@pytest.mark.parametrize("version", ["2.10.1", "2.14.0", "3.0", "nightly"])
def test_unsupported_torch(monkeypatch, version):
    monkeypatch.setattr(torch, "__version__", version)
    monkeypatch.setattr(environment, "_warned", set())
    with pytest.warns(CompileWarning, match="2.11 to 2.13") as caught:
        compiled = compile_api.compile(lambda x: x.sin() + 1)
        module = compile_api.compile(torch.nn.Linear(2, 2))
    assert len(caught) == 1 and version in str(caught[0].message)
    torch.testing.assert_close(compiled(torch.ones(2)), torch.ones(2).sin() + 1)
    assert module(torch.ones(2)).shape == (2,)
    assert version in compiled.report().fallbacks[0].reason


def test_supported_here():
    assert environment.unsupported_environment() is None


def test_import_is_light():
    """The stages and heavy libraries come with the first program that needs them."""
    script = (
        "import sys, torch\nbefore = {m.partition('.')[0] for m in sys.modules}\nimport compile_api\n"
        "print(sorted({m.partition('.')[0] for m in sys.modules} - before - set(sys.stdlib_module_names)))\n"
        "print([m for m in ('sympy', 'torch._dynamo', 'torch._inductor') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.splitlines() == ["['compile_api', 'prims']", "[]"]


@compile_api.compile(backend="eager")
def decorated(x):
    return x + 1


def plain(x):
    return x + 1


compiled_plain = compile_api.compile(plain, backend="eager")


def test_functions_copy_and_pickle():
    # A decorated function is found under its name, as functions are.
    assert copy.deepcopy(decorated) is decorated
    # One that stands beside its original is compiled anew from it.
    clone = copy.deepcopy(compiled_plain)
    assert clone is not compiled_plain and clone.__wrapped__ is plain
    torch.testing.assert_close(clone(torch.ones(2)), torch.full((2,), 2.0))
    with pytest.raises((pickle.PicklingError, AttributeError)):
        pickle.dumps(compile_api.compile(lambda x: x, backend="eager"))


def test_compiling_a_compiled_function_does_not_nest():
    again = compile_api.compile(compiled_plain, backend="eager")
    assert again.__wrapped__ is plain


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_torchscript_is_named():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scripted = torch.jit.script(torch.nn.Linear(2, 2))
    environment._warned.clear()
    with pytest.warns(CompileWarning, match="TorchScript"):
        compiled = compile_api.compile(scripted)
    torch.testing.assert_close(compiled(torch.ones(2)), scripted(torch.ones(2)))
    assert "TorchScript" in compiled.report().fallbacks[0].reason


def test_threads():
    compiled = compile_api.compile(lambda x: x.sin() * 2 + x)
    failures = []

    def work():
        try:
            for size in (3, 4, 5, 3):
                x = torch.randn(size, 4)
                torch.testing.assert_close(compiled(x), x.sin() * 2 + x)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def two_products(x, w):
    return (torch.exp(x @ w) @ w).tanh()


def gradients(function, x, w):
    x, w = x.clone().requires_grad_(), w.clone().requires_grad_()
    function(x, w).sum().backward()
    return x.grad, w.grad


def breakable(monkeypatch, prefix):
    """From now on generated code's calls of functions ``<prefix><number>`` are counted; that of number ``state["at"]`` fails."""
    from inductor_gen.runtime import wrapper

    original = wrapper.Wrapper.build
    state = {"at": None, "calls": 0}

    def build(self):
        call = original(self)

        def counted(function):
            def call(*args):
                state["calls"] += 1
                if state["calls"] == state["at"]:
                    raise RuntimeError("the kernel is gone")
                return function(*args)

            return call

        for name, function in self.space.items():
            if re.fullmatch(rf"{prefix}\d+", name):
                self.space[name] = counted(function)
        return call

    monkeypatch.setattr(wrapper.Wrapper, "build", build)
    return state


def test_a_backward_that_fails_late_is_mended(monkeypatch):
    state = breakable(monkeypatch, "run")
    x, w = (torch.randn(n, 8, dtype=torch.float64) for n in (4, 8))  # what is asked is not of roundings
    compiled = compile_api.compile(two_products)
    wanted = gradients(two_products, x, w)
    for got in (gradients(compiled, x, w), gradients(compiled, x, w)):
        torch.testing.assert_close(got, wanted)
    assert not compiled.report().fallbacks
    forward = compiled(x.requires_grad_(), w.requires_grad_())
    state["at"], state["calls"] = 1, 0  # the backward graph's first launch: nothing was freed yet
    forward.sum().backward()
    assert state["calls"] == 1
    torch.testing.assert_close((x.grad, w.grad), wanted)
    (record,) = compiled.report().fallbacks
    assert record.stage == "run" and "the kernel is gone" in record.reason
    torch.testing.assert_close(gradients(compiled, x.detach(), w.detach()), wanted)


def test_an_eager_backward_gets_what_was_saved_with_eagers_strides():
    """A compiled forward pass may save images with channels last, of which this backward cannot take its view."""

    class Net(torch.nn.Module):
        def forward(self, x, w):
            return x.exp().flatten(1) @ w

    example = [torch.randn(2, 3, 4, 5, requires_grad=True), torch.randn(60, 7, requires_grad=True)]
    env = partition_joint(joint_graph(torch.fx.symbolic_trace(Net()), example)).backward
    inputs = [torch.randn(desc.spec.shape) for desc in env.inputs]
    images = [k for k, desc in enumerate(env.inputs) if desc.kind == "saved" and desc.spec.ndim == 4]
    assert images
    wanted = env.module()(*inputs)
    for k in images:
        inputs[k] = inputs[k].to(memory_format=torch.channels_last)
    with pytest.raises(RuntimeError, match="view"):
        env.module()(*inputs)
    torch.testing.assert_close(eager_graph(env)(*inputs), wanted)


def test_a_library_that_refuses_is_not_asked_again():
    asked = []

    def refuses(*inputs):
        asked.append(inputs)
        raise Refused("no plan for these operands")

    report = Report()
    env = joint_graph(torch.fx.symbolic_trace(torch.nn.ReLU()), [torch.randn(3, requires_grad=True)]).envelope
    guarded = Guarded(refuses, env, frozenset(), Options(), report)
    for call in (lambda: guarded(torch.ones(3)), lambda: guarded.boxed([torch.ones(3)])):
        with pytest.raises(RuntimeError, match="no plan"):
            call()
    assert len(asked) == 2 and not report.fallbacks and guarded.compiled is refuses


@pytest.mark.parametrize("kind", [torch.OutOfMemoryError, RuntimeError])
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("boxed", [True, False])
def test_nothing_of_a_failed_run_is_alive_when_eager_runs(monkeypatch, kind, first, boxed):
    """Else a program that eager has memory for would have none. A kernel fails while the region holds two results."""
    made, freed = [], []

    def function(x, w):
        return ((x @ w).relu() @ w + x + w[0]).relu().sum()

    def launcher(program):
        run = launch(program)

        def call(*args):
            if not state["fails"]:
                return run(*args)
            made.extend(weakref.ref(arg) for arg in args if isinstance(arg, torch.Tensor) and arg is not x and arg is not w)
            if len(made) == 1:
                return run(*args)
            try:
                raise ValueError(f"of a launch of {len(args)}")
            except ValueError as error:
                raise kind("a test's memory is full") from error

        return call

    def eager(env):
        forward = original(env)

        def run(*inputs):
            freed.append([x() is None for x in made])
            return forward(*inputs)

        return run

    state = {"fails": first}
    x, w = (torch.randn(n, 8, dtype=torch.float64) for n in (4, 8))  # what is asked is not of roundings
    as_launcher, original = compiled_module.as_launcher, guarded_module.eager_graph
    launch = None

    def patched(address):
        nonlocal launch
        launch = as_launcher(address)
        return launcher

    monkeypatch.setattr(compiled_module, "as_launcher", patched)
    monkeypatch.setattr(guarded_module, "eager_graph", eager)
    forgotten = []
    monkeypatch.setattr("inductor_gen.free_memory", lambda: forgotten.append(True))
    report = Report()
    env = inference_graph(torch.fx.symbolic_trace(function), [x, w])
    guarded = backends._Generator(Options(), report)(env)
    if not first:
        guarded(x, w)
        state["fails"] = True
    (found,) = guarded.boxed([x, w]) if boxed else guarded(x, w)
    torch.testing.assert_close(found, function(x, w))
    (gone,) = freed
    assert len(gone) >= 2 and all(gone), "what the region computed"
    assert len(forgotten) == (kind is torch.OutOfMemoryError)


def test_a_backward_that_fails_after_freeing_says_so(monkeypatch):
    state = breakable(monkeypatch, "run")
    x, w = (torch.randn(n, 8, dtype=torch.float64) for n in (4, 8))  # what is asked is not of roundings
    compiled = compile_api.compile(two_products)
    wanted = gradients(two_products, x, w)
    for _ in range(2):
        gradients(compiled, x, w)
    forward = compiled(x.clone().requires_grad_(), w.clone().requires_grad_())
    state["at"], state["calls"] = 2, 0
    with pytest.raises(RuntimeError, match="the kernel is gone") as caught:
        forward.sum().backward()
    assert "The next ones run eagerly" in caught.value.__notes__[0]
    state["at"] = None
    torch.testing.assert_close(gradients(compiled, x, w), wanted)
    assert [r.stage for r in compiled.report().fallbacks] == ["run"]


def test_first_calls_from_many_threads_at_once():
    seen = []

    def function(x, w):
        return torch.softmax(x @ w, -1) + x.sum()

    compiled = compile_api.compile(function)
    start = threading.Barrier(8)
    x, w = torch.randn(16, 8), torch.randn(8, 8)
    wanted = function(x, w)

    def work():
        start.wait()
        for _ in range(20):
            seen.append(torch.allclose(compiled(x, w), wanted, atol=1e-5))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [True] * 160
    report = compiled.report()
    assert not report.fallbacks and not report.breaks
    assert len([g for g in report.graphs if g.dialect == "torch"]) == 1


class TestAsFunctions:
    """What is asked of functions: signatures, code, names; ``explain`` of what is compiled already."""

    @staticmethod
    def function(x, y=2, *rest, key: int = 3, **more) -> torch.Tensor:
        """Documented."""
        return x * y + key

    class Model(torch.nn.Module):
        def forward(self, x, scale=2.0):
            return x * scale

    def kinds(self):
        import functools

        compiled = functools.partial(compile_api.compile, backend="eager")
        model = self.Model()
        yield self.function, compiled(self.function)
        yield model.forward, compiled(model.forward)
        yield model.forward, compiled(model).forward
        yield Callable().__call__, compiled(Callable().__call__)

    def test_inspect(self):
        import inspect

        for original, compiled in self.kinds():
            assert inspect.getfullargspec(compiled) == inspect.getfullargspec(original)
            assert inspect.signature(compiled) == inspect.signature(original)
            assert inspect.getsource(compiled) == inspect.getsource(original)
            for name in ("__code__", "__defaults__", "__kwdefaults__", "__globals__", "__closure__", "__name__",
                         "__qualname__", "__doc__", "__module__", "__annotations__"):  # fmt: skip
                assert getattr(compiled, name) == getattr(original, name), name
            assert hasattr(compiled, "__self__") is hasattr(original, "__self__")

    def test_explain_of_compiled_modules(self):
        model, x = self.Model(), torch.ones(2)
        nested = torch.nn.Sequential(self.Model(), compile_api.compile(self.Model(), backend="eager"))
        for plain in (model, nested):
            compiled = compile_api.compile(plain, backend="eager")
            for _ in range(2):
                explained = compile_api.explain(compiled)(x)
                assert explained.graph_count == 1 == compile_api.explain(plain)(x).graph_count
                torch.testing.assert_close(explained.result, compiled(x))

    def test_wrappers_are_not_taken_for_what_they_wrap(self):
        import functools

        inner = compile_api.compile(lambda x: x + 1, backend="eager")

        @functools.wraps(inner)
        def outer(x):
            return inner(x) * 10

        assert compile_api.compile(outer, backend="eager")(torch.ones(2)).tolist() == [20, 20]

    def test_callable_objects_are_not_asked_for_names(self):
        asked = []

        class Base:
            def __call__(self, x):
                return x * 2

        class Greedy(Base):
            def __getattr__(self, name):
                asked.append(name)
                return "anything"

        compiled = compile_api.compile(Greedy(), backend="eager")
        assert compiled(torch.ones(2)).tolist() == [2, 2]
        assert len(compiled.report().graphs) == 1 and asked == []


def test_a_backend_of_the_users_is_never_asked_for_other_sizes():
    def program(x):
        return x.sin() * x.shape[0]

    def tracing(gm, example_inputs):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.jit.trace(gm, example_inputs, check_trace=False)

    sizes = (2, 3, 4, 5, 3)
    compiled = compile_api.compile(program, backend=tracing)
    for size in sizes:
        torch.testing.assert_close(compiled(torch.ones(size)), program(torch.ones(size)))
    assert compiled.report().verdict == "compiled" and len(compiled.report().graphs) == 4
    # Asked for symbolic sizes, it gets abstract inputs: the size that it makes a number of is then a guard.
    compiled = compile_api.compile(program, backend=tracing, dynamic=True)
    for size in sizes:
        torch.testing.assert_close(compiled(torch.ones(size)), program(torch.ones(size)))
    assert len(compiled.report().graphs) == 4
    assert "a size used as a Python int" in compiled.report().recompiles[0].reason

    @compile_api.supports_dynamic_shapes
    def as_it_is(gm, example_inputs):
        return gm.forward

    for backend in (as_it_is, "eager", "aot_eager", "inductor"):
        compiled = compile_api.compile(program, backend=backend)
        for size in sizes:
            torch.testing.assert_close(compiled(torch.ones(size)), program(torch.ones(size)))
        assert sum(graph.dialect == "torch" for graph in compiled.report().graphs) == 2


@pytest.mark.parametrize("stage", ["lower", "codegen", "run", "backend"])
def test_fullgraph_refuses_a_failing_stage(monkeypatch, stage):
    import inductor_gen
    import prims.lower

    def broken(*args, **kwargs):
        raise AssertionError("a defect")

    if stage == "lower":
        monkeypatch.setattr(prims.lower, "lower", broken)
    elif stage == "codegen":
        monkeypatch.setattr(inductor_gen, "compile_graph", broken)
    elif stage == "run":
        monkeypatch.setattr(inductor_gen, "compile_graph", lambda *args, **kwargs: broken)
    compiled = compile_api.compile(
        lambda x: x.sin() + 1, fullgraph=True, backend=broken if stage == "backend" else "inductor"
    )
    with pytest.raises(compile_api.errors.NotCompiled, match="a defect"):
        compiled(torch.randn(3))
    assert compiled.report().verdict.startswith("eager: ") and "a defect" in compiled.report().verdict


@pytest.mark.parametrize("name", ["compile", "disable"])
def test_what_is_to_be_called_once_and_outside_is_named(name):
    made = getattr(compile_api, name)
    compiled = compile_api.compile(lambda x: made(lambda y: y.cos())(x.sin()) + 1)
    x = torch.randn(3)
    torch.testing.assert_close(compiled(x), x.sin().cos() + 1)
    assert f"{name}(), whose result is to be made once, outside" in compiled.report().breaks[0].reason
    assert compiled.report().kernels
