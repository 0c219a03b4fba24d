"""Programs as ONNX models: each primitive and dtype through ONNX's checker and ONNX Runtime, beside eager."""

import sys

import pytest
import torch

import compile_api
from prims.errors import UserError
from prims.ops import TABLE

onnx = pytest.importorskip("onnx", reason="needs onnx")
onnxruntime = pytest.importorskip("onnxruntime", reason="needs onnxruntime")
pytest.importorskip("numpy", reason="needs NumPy, which onnx needs")

from interchange import ROUNDING, difference, program_of_samples, samples_of  # noqa: E402

from compile_api.deploy.interchange.onnx.model import model_of  # noqa: E402
from compile_api.deploy.interchange.onnx.table import ONNX  # noqa: E402

#: ONNX Runtime has no kernel of these on the CPU: ONNX's own evaluator runs them.
WITHOUT_KERNEL = {
    (name, torch.float64)
    for name in ("tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "erf", "atan2")
}  # fmt: skip
#: `BitCast` came with this one.
OPSETS = {"bitcast": 26}


def session(model):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    source = str(model) if not hasattr(model, "SerializeToString") else model.SerializeToString()
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def written(fn, args, path, opset=18, external_data=None, **more):
    """The exported program and its model, checked and loaded."""
    program = compile_api.export(fn, args, **more)
    file = compile_api.to_onnx(program, path / "model.onnx", opset=opset, external_data=external_data)
    onnx.checker.check_model(str(file), full_check=True)
    return program, session(file)


def run(loaded, *tensors, **more):
    names = [i.name for i in loaded.get_inputs()]
    given = {name: t.numpy() for name, t in zip(names, tensors, strict=False)}
    return [torch.from_numpy(v) for v in loaded.run(None, given | {n: t.numpy() for n, t in more.items()})]


# ---- the table -------------------------------------------------------------------------------------------------------


def test_every_primitive_has_a_row_or_a_reason():
    assert set(ONNX.rows) | set(ONNX.unmapped) == set(TABLE)
    assert not set(ONNX.rows) & set(ONNX.unmapped)
    assert all(ONNX.unmapped.values())
    assert set(ONNX.composites) == set(ONNX.takes)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of NumPy, in ONNX's evaluator
@pytest.mark.parametrize("name", list(ONNX.rows))
def test_primitive(name):
    op = TABLE[name]
    ran = 0
    for dtype in op.dtypes:
        samples = samples_of(op, dtype) if dtype in ONNX.dtypes else []
        if not samples:
            continue
        program, given = program_of_samples(op, samples)
        model, weights = model_of(program, OPSETS.get(name, 18), name)
        assert not weights
        onnx.checker.check_model(model, full_check=True)
        feed = {f"x{at}": t.numpy() for at, t in enumerate(given)}
        error = None
        if (name, dtype) in WITHOUT_KERNEL:
            with pytest.raises(Exception, match="NOT_IMPLEMENTED"):
                session(model)
            from onnx.reference import ReferenceEvaluator

            results = ReferenceEvaluator(model).run(None, feed)
            error = ROUNDING[torch.float32] if name == "erf" else None  # which it computes in single precision
        else:
            results = session(model).run(None, feed)
        assert len(results) == len(samples)
        for args, got in zip(samples, results, strict=True):
            wrong = difference(got, op.torch_ref(*args), error)
            assert not wrong, (dtype, args, wrong)
            ran += 1
    assert ran


# ---- names, sizes, weights -------------------------------------------------------------------------------------------


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 6)

    def forward(self, batch, scale=2.0):
        y = self.layer(batch["x"]) * scale
        return {"y": y, "sums": (y.sum(1), y.shape[0] * 2), "half": y[:, :3].t()}


def test_names_and_dimensions(tmp_path):
    torch.manual_seed(0)
    model = Model().eval()
    shapes = {"batch": {"x": {0: "n"}}}
    x = torch.randn(3, 4)
    program, loaded = written(model, ({"x": x},), tmp_path, dynamic_shapes=shapes)
    assert [(i.name, i.shape, i.type) for i in loaded.get_inputs()] == [("batch['x']", ["n", 4], "tensor(float)")]
    outputs = {o.name: o.shape for o in loaded.get_outputs()}
    assert outputs == {
        "result['y']": ["n", 6], "result['sums'][0]": ["n"], "result['sums'][1]": [], "result['half']": [3, "n"],
    }  # fmt: skip
    stored = onnx.load(tmp_path / "model.onnx")
    names = {w.name for w in stored.graph.initializer}
    assert names >= {"layer.weight", "layer.bias"}
    assert any("test_onnx.py" in node.doc_string for node in stored.graph.node)
    for n in (3, 7):
        x = torch.randn(n, 4)
        got = dict(zip(outputs, run(loaded, x), strict=True))
        want = model({"x": x})
        torch.testing.assert_close(got["result['y']"], want["y"])
        torch.testing.assert_close(got["result['sums'][0]"], want["sums"][0])
        torch.testing.assert_close(got["result['half']"], want["half"])
        assert int(got["result['sums'][1]"]) == 2 * n


def test_sizes_in_arithmetic(tmp_path):
    def fn(x, y):
        n, m = x.shape
        tail = x[n - 2 :, 1:].reshape(-1) / (n // 2)
        grid = torch.arange(n * m, device=x.device).reshape(n, m) % 3
        return tail, grid + y.shape[0], torch.cat([x, x]).view(2, n, m).flip(0), y.new_full((m, n), float(m))

    shapes = {"x": {0: "n", 1: compile_api.Dim("m", 3)}, "y": {0: "k"}}
    _, loaded = written(fn, (torch.randn(4, 5), torch.randn(3)), tmp_path, dynamic_shapes=shapes)
    for n, m, k in ((4, 5, 3), (7, 3, 9)):
        x, y = torch.randn(n, m), torch.randn(k)
        for got, want in zip(run(loaded, x, y), fn(x, y), strict=True):
            torch.testing.assert_close(got, want)


def test_views_of_inputs_and_outputs(tmp_path):
    def fn(x):
        y = x + 1
        return x[1:, ::2], y, y.t(), y[0], x.expand(2, *x.shape), x

    program, loaded = written(fn, (torch.randn(4, 6),), tmp_path)
    x = torch.randn(4, 6)
    for got, want in zip(run(loaded, x), fn(x), strict=True):
        assert torch.equal(got, want)


def test_views_of_what_lies_with_gaps(tmp_path):
    def fn(x, y):
        return x[:, 1:].t(), x.unsqueeze(0).expand(2, 3, 4), y[1:], y.expand(5, 3)

    given = torch.arange(24.0).reshape(6, 4)[::2], torch.tensor([7.0]).expand(3)
    _, loaded = written(fn, given, tmp_path)
    for got, want in zip(run(loaded, *given), fn(*given), strict=True):
        assert torch.equal(got, want)


def test_what_is_computed_for_its_error_alone_is_left_out(tmp_path):
    def fn(x, i):
        torch.nn.functional.embedding(i, x)
        return x + 1, torch.linspace(0, 1, 5) * x[0, 0], torch.nn.functional.one_hot(i, 4)

    given = torch.randn(4, 3), torch.tensor([1, 3])
    _, loaded = written(fn, given, tmp_path)
    for got, want in zip(run(loaded, *given), fn(*given), strict=True):
        torch.testing.assert_close(got, want)


class Cache(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(3))

    def forward(self, x, out):
        self.total += x
        out.copy_(self.total * 2)
        return self.total - x


def test_what_the_program_writes_are_outputs(tmp_path):
    program, loaded = written(Cache(), (torch.ones(3), torch.ones(3)), tmp_path)
    names = [o.name for o in loaded.get_outputs()]
    assert names == ["result", "total.new", "out.new"]
    assert [i.name for i in loaded.get_overridable_initializers()] == ["total"]
    x = torch.tensor([1.0, 2.0, 3.0])
    first = run(loaded, x, torch.zeros(3))
    assert torch.equal(first[1], x) and torch.equal(first[2], x * 2) and torch.equal(first[0], x * 0)
    second = run(loaded, x, torch.zeros(3), total=first[1])
    assert torch.equal(second[1], x * 2) and torch.equal(second[0], x)


def test_weights_in_a_file_of_their_own(tmp_path):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 4)).eval()
    x = torch.randn(2, 8)
    _, loaded = written(model, (x,), tmp_path, external_data=True)
    torch.testing.assert_close(run(loaded, x)[0], model(x))
    assert (tmp_path / "model.onnx.data").stat().st_size >= 4 * (8 * 16 + 16 + 16 * 4 + 4)
    stored = onnx.load(tmp_path / "model.onnx", load_external_data=False)
    apart = {w.name for w in stored.graph.initializer if w.data_location == onnx.TensorProto.EXTERNAL}
    assert apart == {"0.weight", "0.bias", "1.weight", "1.bias"}
    written(model, (x,), tmp_path, external_data=False)
    stored = onnx.load(tmp_path / "model.onnx", load_external_data=False)
    assert not any(w.data_location == onnx.TensorProto.EXTERNAL for w in stored.graph.initializer)


def test_weights_too_large_for_one_file_are_apart_by_default(tmp_path, monkeypatch):
    from compile_api.deploy.interchange.onnx import model as writing

    monkeypatch.setattr(writing, "LARGEST_FILE", 100)
    layer = torch.nn.Linear(8, 4)
    layer.register_buffer("empty", torch.ones(0, 4))
    fn = torch.nn.Sequential(layer).eval()
    layer.forward = lambda x: torch.cat([x @ layer.weight.T, layer.empty])
    x = torch.randn(2, 8)
    _, loaded = written(fn, (x,), tmp_path)
    torch.testing.assert_close(run(loaded, x)[0], fn(x).detach())
    assert (tmp_path / "model.onnx.data").exists()


def test_a_program_that_was_saved(tmp_path):
    torch.manual_seed(0)
    model = Model().eval()
    x = {"x": torch.randn(3, 4)}
    compile_api.export(model, (x,), dynamic_shapes={"batch": {"x": {0: "n"}}}).save(tmp_path / "saved")
    file = compile_api.to_onnx(compile_api.load_exported(tmp_path / "saved"), tmp_path / "model.onnx")
    torch.testing.assert_close(run(session(file), torch.ones(5, 4))[0], model({"x": torch.ones(5, 4)})["y"].detach())


def test_names_that_meet(tmp_path):
    """An argument, a parameter, a primitive's name and a result of one name."""

    class Same(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.result = torch.nn.Parameter(torch.ones(3))

        def forward(self, add, mul):
            return add + mul * self.result

    _, loaded = written(Same(), (torch.ones(3), torch.ones(3)), tmp_path)
    assert [i.name for i in loaded.get_inputs()] == ["add", "mul"]
    assert [o.name for o in loaded.get_outputs()] == ["result.out"]
    assert torch.equal(run(loaded, torch.ones(3), torch.ones(3) * 2)[0], torch.full((3,), 3.0))


@pytest.mark.parametrize("opset", [18, 21, 23])
def test_opsets(tmp_path, opset):
    x = torch.randn(2, 5)
    _, loaded = written(lambda x: torch.softmax(x, 1).cumsum(0), (x,), tmp_path, opset=opset)
    torch.testing.assert_close(run(loaded, x)[0], torch.softmax(x, 1).cumsum(0))
    assert [o.version for o in onnx.load(tmp_path / "model.onnx").opset_import] == [opset]


# ---- what primitives have no samples of ------------------------------------------------------------------------------

F = torch.nn.functional
X = torch.arange(2 * 4 * 9 * 8.0).mul(1.7).sin().mul(2).reshape(2, 4, 9, 8)
W = torch.arange(6 * 2 * 3 * 3.0).cos().reshape(6, 2, 3, 3)
HOLES = torch.where((torch.arange(X.numel()) % 7 == 0).reshape(X.shape), float("nan"), X)
KEYS = torch.tensor([[3.0, 1.0, float("nan"), 1.0, float("inf"), -0.0, 0.0], [2.0] * 7])

CALLS = {
    "conv1d": lambda: (lambda x: F.conv1d(x, W[:, :, 0], stride=2, padding=1, groups=2), X[:, :, 0]),
    "conv2d": lambda: (lambda x: F.conv2d(x, W, torch.ones(6), (2, 1), (1, 2), (1, 2), groups=2), X),
    "conv2d, one image": lambda: (lambda x: F.conv2d(x, W, groups=2), X[0]),
    "conv2d, float16": lambda: (lambda x: F.conv2d(x.half(), W.half(), groups=2).float(), X),
    "conv3d": lambda: (lambda x: F.conv3d(x.unsqueeze(2), W.unsqueeze(2), groups=2, padding=(0, 1, 1)), X),
    "conv_transpose2d": lambda: (
        lambda x: F.conv_transpose2d(x, W[:4], torch.ones(4), (2, 3), 1, (1, 2), groups=2, dilation=(1, 2)), X),
    "conv_transpose1d": lambda: (lambda x: F.conv_transpose1d(x, W[:4, :, 0], padding=1, dilation=2), X[0][:, 0]),
    "max_pool2d": lambda: (lambda x: F.max_pool2d(x, 3, 2, 1, dilation=2), HOLES),
    "max_pool2d, up to the end": lambda: (lambda x: F.max_pool2d(x, 2, 2, ceil_mode=True), HOLES),
    "max_pool2d, places": lambda: (lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), X),
    "max_pool3d": lambda: (lambda x: F.max_pool3d(x, (1, 2, 2)), HOLES),
    "avg_pool2d": lambda: (lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False), X),
    "adaptive_avg_pool2d": lambda: (lambda x: F.adaptive_avg_pool2d(x, (2, 3)), X),
    "adaptive_max_pool2d": lambda: (lambda x: F.adaptive_max_pool2d(x, (3, 4)), X),
    "interpolate": lambda: (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), X),
    "attention": lambda: (lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True), X),
    "sort": lambda: (lambda x: x.sort(1), KEYS),
    "sort, descending": lambda: (lambda x: x.sort(stable=True, dim=1, descending=True), KEYS),
    "sort, int8": lambda: (lambda x: x.sort(0), torch.tensor([[5, -3], [5, 100], [-7, 3]], dtype=torch.int8)),
    "topk": lambda: (lambda x: x.topk(3, 1), KEYS[:1, [0, 1, 2, 4]]),  # among equals eager takes any
    "topk, least": lambda: (lambda x: x.topk(2, 0, largest=False), KEYS[:1, [0, 2, 4, 5]].T),
    "lstm": lambda: (torch.nn.LSTM(8, 5, 2, bidirectional=True), X[0, :3]),
    "gru": lambda: (torch.nn.GRU(8, 5, batch_first=True), X[0, :3]),
    "embedding": lambda: (torch.nn.Embedding(10, 4), torch.tensor([[1, 9], [0, 3]])),
    "layer_norm": lambda: (torch.nn.LayerNorm(8), X),
    "cross_entropy": lambda: (lambda x: F.cross_entropy(x, torch.tensor([1, 3])), X[0, :2, 0]),
}  # fmt: skip


@pytest.mark.parametrize("name", list(CALLS))
def test_call(name, tmp_path):
    torch.manual_seed(0)
    fn, x = CALLS[name]()
    _, loaded = written(fn, (x,), tmp_path)
    with torch.no_grad():
        want = torch.utils._pytree.tree_leaves(fn(x))
    got = run(loaded, x)
    assert len(got) == len(want)
    error = 2e-3 if "float16" in name else 1e-5
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=error, atol=error, equal_nan=True)


# ---- what does not map -----------------------------------------------------------------------------------------------


def test_all_that_does_not_map_is_listed(tmp_path):
    def fn(x):
        a = torch.special.digamma(x)
        b = torch.special.i0(x)
        return a + torch.lgamma(x) + b, torch.linalg.inv(x)

    program = compile_api.export(fn, (torch.randn(2, 2),))
    with pytest.raises(UserError) as raised:
        compile_api.to_onnx(program, tmp_path / "model.onnx")
    text = str(raised.value)
    for name in ("digamma", "lgamma", "aten.i0.default", "aten.linalg_inv_ex.default"):
        assert name in text
    assert text.count("test_onnx.py") >= 4
    assert not (tmp_path / "model.onnx").exists()


def test_complex_numbers_and_random_ones_are_refused(tmp_path):
    file = tmp_path / "model.onnx"
    program = compile_api.export(lambda x: torch.fft.fft(x), (torch.randn(4),))
    with pytest.raises(UserError, match=r"aten\._fft_r2c.*complex numbers are not mapped"):
        compile_api.to_onnx(program, file)
    program = compile_api.export(lambda x: x * x, (torch.randn(4, dtype=torch.complex64),))
    with pytest.raises(UserError, match="input x: complex numbers are not mapped"):
        compile_api.to_onnx(program, file)
    program = compile_api.export(lambda x: x + torch.rand(4), (torch.randn(4),))
    with pytest.raises(UserError, match=r"random_uniform: .*test_\w+\.py:\d+"):
        compile_api.to_onnx(program, file)


def test_reasons(tmp_path):
    """Control flow, a check, and why a call has no form in primitives."""

    def fn(x, i):
        y = torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))
        return y, torch.linalg.inv(x), (x > 0).index_add(0, i, x > 1), x.to(torch.float8_e4m3fn).float()

    program = compile_api.export(fn, (torch.eye(3), torch.tensor([0, 1, 2])))
    with pytest.raises(UserError) as raised:
        compile_api.to_onnx(program, tmp_path / "model.onnx")
    text = str(raised.value)
    assert "control flow is not mapped" in text
    assert "linalg_checked.default: a check that is no computation" in text
    assert "in primitives: index_put that accumulates bool" in text
    assert "convert: numbers of torch.float8_e4m3fn are not mapped" in text


def test_wrong_arguments(tmp_path, monkeypatch):
    program = compile_api.export(lambda x: x + 1, (torch.randn(4),))
    with pytest.raises(UserError, match="opset is 17"):
        compile_api.to_onnx(program, tmp_path / "model.onnx", opset=17)
    with pytest.raises(UserError, match="got a function"):
        compile_api.to_onnx(lambda x: x, tmp_path / "model.onnx")
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(UserError, match=r"quintet-compile-api\[onnx\]"):
        compile_api.to_onnx(program, tmp_path / "model.onnx")
