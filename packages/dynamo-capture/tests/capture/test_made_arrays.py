"""Arrays of NumPy that the region makes, and what it reads of arrays that exist outside."""

from __future__ import annotations

import re

import pytest
import torch

import dynamo_capture
from dynamo_capture.values import made_arrays

np = pytest.importorskip("numpy")

A = "np.arange(6.0).reshape(2, 3)"
V = "np.array([3, 1, 2])"
M = "np.array([[4.0, 1.0], [1.0, 3.0]])"

#: Expressions that give an array, a number, or a tuple of such.
EXPRESSIONS = f"""
np.array([[1, 2], [3, 4.5]]); np.array([1, 2], dtype=np.float32); np.array([1, 2], dtype='int16'); np.array(2.0)
np.asarray([1, 2]); np.ascontiguousarray({A}.T); np.asfortranarray({A}); np.zeros((2, 3)); np.ones(3, dtype=int)
np.full((2, 2), 7); np.zeros_like({A}); np.ones_like({V}); np.full_like({A}, 2); np.eye(3, k=1); np.identity(2)
np.arange(5); np.arange(1, 9, 3); np.linspace(0, 1, 5); np.logspace(0, 1, 4); np.geomspace(1, 8, 4); np.diag([1, 2, 3])
np.diagflat([[1, 2], [3, 4]]); np.tri(3); np.tril({A}); np.triu({A}, k=1); np.vander([1, 2, 3]); np.copy({A})
np.meshgrid(np.arange(3), np.arange(2)); np.indices((2, 3)); np.concatenate([{V}, {V}]); np.stack([{V}, {V}], 1)
np.concat([{V}, {V}]); np.vstack([{V}, {V}]); np.hstack([{V}, {V}]); np.dstack([{V}, {V}]); np.column_stack([{V}, {V}])
np.row_stack([{V}, {V}]); np.split({V}, 3); np.array_split({V}, 2); np.hsplit({A}, 3); np.vsplit({A}, 2)
np.dsplit(np.ones((1, 2, 2)), 2); np.tile({V}, (2, 1)); np.repeat({V}, 2); np.block([[{M}, {M}]]); np.append({V}, 5)
np.insert({V}, 1, 9); np.delete({V}, 1); np.reshape({A}, (3, 2)); np.ravel({A}); np.transpose({A}); np.swapaxes({A}, 0, 1)
np.permute_dims({A}); np.matrix_transpose({A}); np.moveaxis({A}, 0, 1); np.rollaxis({A}, 1); np.expand_dims({V}, 0)
np.squeeze(np.ones((1, 2))); np.broadcast_to({V}, (2, 3)); np.broadcast_arrays({V}, {A}); np.broadcast_shapes((2, 1), (3,))
np.atleast_1d(3); np.atleast_2d({V}); np.atleast_3d({V}); np.flip({V}); np.fliplr({A}); np.flipud({A}); np.roll({V}, 1)
np.rot90({A}); np.resize({V}, (2, 2)); np.pad({V}, (1, 2)); np.trim_zeros(np.array([0, 1, 0]))
np.sum({A}, axis=0); np.prod({V}); np.mean({A}); np.std({A}); np.var({A}); np.median({A}); np.average({V}, weights=[1, 2, 3])
np.quantile({A}, 0.3); np.percentile({A}, 30); np.max({A}); np.min({A}); np.amax({A}); np.amin({A}); np.ptp({A})
np.cumsum({V}); np.cumprod({V}); np.diff({V}); np.ediff1d({V}); np.gradient({A}); np.cross({V}, [1, 0, 0])
np.trapezoid({V}); np.trapz({V}); np.clip({V}, 1, 2); np.round({A} / 3, 1); np.around({A} / 3); np.real(1 + 2j)
np.imag(1 + 2j); np.angle(1j); np.sinc({V} / 3); np.i0({V}); np.interp(1.5, [1, 2], [3, 4]); np.convolve({V}, {V})
np.correlate({V}, {V}); np.dot({A}, {V}); np.vdot({V}, {V}); np.inner({V}, {V}); np.outer({V}, {V})
np.tensordot({A}, {A}.T, 1); np.kron({V}, {V}); np.matmul({A}, {V}); np.einsum('ij,j->i', {A}, {V}); np.trace({M})
np.heaviside({V}, 0.5); np.unwrap([0, 7.0]); np.fix({A} / 4); np.nan_to_num(np.array([np.nan, np.inf])); np.nansum({A})
np.nanprod({V}); np.nanmean({A}); np.nanstd({A}); np.nanvar({A}); np.nanmedian({A}); np.nanmax({A}); np.nanmin({A})
np.nanquantile({A}, 0.2); np.nanpercentile({A}, 20); np.nancumsum({V}); np.nancumprod({V}); np.sort({V}); np.argsort({V})
np.lexsort(({V}, {V})); np.partition({V}, 1); np.argpartition({V}, 1); np.argmax({V}); np.argmin({V}); np.nanargmax({A})
np.nanargmin({A}); np.argwhere({V} > 1); np.nonzero({V} > 1); np.flatnonzero({V}); np.where({V} > 1, {V}, 0)
np.searchsorted([1, 2, 3], 2); np.extract({V} > 1, {V}); np.count_nonzero({V}); np.unique([1, 1, 2]); np.all({V}); np.any({V})
np.isclose({V}, 1); np.allclose({V}, {V}); np.array_equal({V}, {V}); np.array_equiv({V}, {V}); np.isscalar(3)
np.iscomplexobj({V}); np.isrealobj({V}); np.isreal({V}); np.iscomplex({V}); np.isposinf({A}); np.isneginf({A}); np.ndim({A})
np.shape({A}); np.size({A}); np.isin({V}, [1, 2]); np.intersect1d({V}, [1]); np.union1d({V}, [9]); np.setdiff1d({V}, [1])
np.setxor1d({V}, [1, 7]); np.take({V}, [0, 2]); np.take_along_axis({V}, np.argsort({V}), 0); np.choose([0, 1], [{M}, {M}])
np.compress([True, False, True], {V}); np.diagonal({A}); np.diag_indices(2); np.tril_indices(3); np.triu_indices(3)
np.tril_indices_from({M}); np.triu_indices_from({M}); np.unravel_index(3, (2, 2))
np.ravel_multi_index((1, 0), (2, 2)); np.ix_([0, 1], [2]); np.select([{V} > 2, {V} > 1], [{V}, -{V}]); np.bincount({V})
np.histogram({V}, 2); np.histogram_bin_edges({V}, 2); np.histogram2d({V}, {V}, 2); np.digitize({V}, [1, 2]); np.cov({A})
np.corrcoef({A}); np.polyval([1, 2], 3); np.polyfit([0, 1, 2], [1, 3, 5], 1); np.polyadd([1], [2]); np.polysub([1], [2])
np.polymul([1, 2], [2, 1]); np.poly([1, 2]); np.roots([1, -3, 2]); np.polyder([1, 2, 3]); np.polyint([1, 2])
np.hanning(4); np.hamming(4); np.blackman(4); np.bartlett(4); np.kaiser(4, 2.0)
np.result_type(np.float32, np.int64) == np.float64; np.promote_types('i2', 'f4') == 'f4'; np.can_cast('i2', 'f4')
np.common_type({V}) is np.float64; np.min_scalar_type(3) == 'u1'; np.issubdtype(np.float32, np.floating)
np.linalg.norm({A}); np.linalg.inv({M}); np.linalg.pinv({A}); np.linalg.det({M}); np.linalg.slogdet({M})
np.linalg.solve({M}, [1, 2]); np.linalg.lstsq({M}, [1, 2])[0]; np.linalg.cholesky({M}); np.linalg.qr({M}); np.linalg.svd({M})
np.linalg.svdvals({M}); np.linalg.eig({M}); np.linalg.eigh({M}); np.linalg.eigvals({M}); np.linalg.eigvalsh({M})
np.linalg.matrix_power({M}, 3); np.linalg.matrix_rank({M}); np.linalg.cond({M}); np.linalg.multi_dot([{M}, {M}, {M}])
np.linalg.tensorinv(np.ones((1, 1, 1)), ind=1); np.linalg.tensorsolve({M}, [1, 2]); np.fft.fft({V}); np.fft.ifft({V})
np.fft.rfft({V}); np.fft.irfft({V}); np.fft.fft2({A}); np.fft.ifft2({A}); np.fft.rfft2({A}); np.fft.irfft2({A})
np.fft.fftn({A}); np.fft.ifftn({A}); np.fft.rfftn({A}); np.fft.irfftn({A}); np.fft.hfft({V}); np.fft.ihfft({V})
np.fft.fftfreq(4); np.fft.rfftfreq(4); np.fft.fftshift({V}); np.fft.ifftshift({V}); np.exp({A}); np.hypot({V}, 4)
np.maximum({V}, 2); np.add.reduce({V}); {A} + 1; 2 ** {V}; {A} @ {V}; -{A}; abs(-{V}); ~{V}; {V} > 1; {A}[1]; {A}[:, ::2]
{A}[..., 0]; {A}[{A} > 2]; {V}[[0, 2]]; {A}[1, 2]; {A}[None]; {A}.T; {A}.sum(0); {A}.astype(np.float32); {V}.tolist()
{A}.mean(); {V}.argsort()[::-1]; {A}.reshape(-1, 2); {A}.ravel(); {A}.shape; {A}.size; {A}.ndim; len({A}); {A}.dtype == np.float64
{V}.copy(); {V}.max(); list({V}); sum({V}); max({V}); min({V}); [a * 2 for a in {V}]; tuple({A})[1]; 2 in {V}; bool({V}.any())
float({V}.sum()); int({V}[0]); {V}.item(1); {V}.view(np.int64); np.finfo(np.float32).eps; np.iinfo(np.int8).max
np.dtype('float32').itemsize; np.float32(3) * {V}; {V} * np.int64(2); {A}.flatten(); {A}.transpose(); {A}.strides
divmod({V}, 2); {V} // 2; {V} % 2; {V} & 1; {V} << 1; 1 / {V}; {V} == {V}; sorted({V}); enumerate and list(zip({V}, {V}))
"""
#: Functions that change what they are given, in programs of their own.
WRITING = {
    "fill_diagonal": "np.fill_diagonal(a, 9.0)", "place": "np.place(a, a > 2, [7.0])", "put": "np.put(a, [0, 1], [5, 6])",
    "copyto": "np.copyto(a, 3.0)", "put_along_axis": "np.put_along_axis(a, np.array([[0], [1]]), 9.0, 1)",
    "putmask": "np.putmask(a, a > 2, 0.0)", "setitem": "a[1, :2] = 4", "of a view": "a[0][1] = 8", "transposed": "a.T[2] = 1",
    "added": "a += 2", "filled": "a.fill(3)", "sorted": "a.sort(axis=0)", "a flat view": "a.reshape(-1)[3] = 5",
    "out": "np.add(a, 1, out=a)", "of a mask": "a[a > 2] = 0", "in a loop": "for i in range(2): a[i, i] = 7",
}  # fmt: skip


def flat(obj):
    """Everything in a result, as tensors and plain objects."""
    if isinstance(obj, (tuple, list)):
        return [type(obj).__name__, *(part for item in obj for part in flat(item))]
    if isinstance(obj, np.ndarray):
        return [(obj.dtype.str, obj.shape, obj.strides, obj.flags.writeable, obj.tobytes())]
    if isinstance(obj, torch.Tensor):
        return [(obj.dtype, obj.shape, obj.stride(), str(obj.tolist()))]
    return [(type(obj), str(obj))]


def made(body: str, **names):
    space = {"np": np, "torch": torch, "graph_break": dynamo_capture.graph_break, **names}
    exec("def fn(x):\n    " + body.replace("\n", "\n    "), space)
    return space["fn"]


def exists(expression: str) -> bool:
    part, name = re.match(r"np\.(?:(linalg|fft)\.)?(\w+)|", expression).groups()
    return name is None or hasattr(getattr(np, part) if part else np, name)


TABLE = [each.strip() for each in EXPRESSIONS.replace("\n", ";").split(";") if each.strip() and exists(each.strip())]


def test_the_table_has_each_function():
    text = EXPRESSIONS + str(WRITING)
    names = [*(f"np.{name}(" for name in made_arrays._NAMES)]
    names += [f"np.{part}.{name}(" for part, of_part in made_arrays._OF_PARTS.items() for name in of_part]
    assert [name for name in names if name not in text] == []


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("expression", TABLE)
def test_an_expression(expression, capture):
    """It is what NumPy makes of it: in tensors, and handed out."""
    fn = made(f"found = {expression}\nreturn x + 1, found")
    compiled = capture(fn, fullgraph=True, strict=False)
    x = torch.ones(2)
    is_held = not isinstance(fn(x)[1], np.ndarray) or fn(x)[1].flags.writeable
    if is_held and "broadcast_arrays" not in expression:
        for _ in range(2):
            assert flat(compiled(x)) == flat(fn(x)), expression
        assert len(compiled.graphs) == 1
    fn = made(f"found = {expression}\nfound = found if isinstance(found, tuple) or isinstance(found, list) and len(found) and isinstance(found[0], np.ndarray) else (found,)\n"
              "return [x.sum() * torch.tensor(np.array(each)) for each in found]")  # fmt: skip
    compiled = capture(fn, fullgraph=True, strict=False)
    assert flat(compiled(x)) == flat(fn(x))
    assert len(compiled.graphs) == 1


@pytest.mark.parametrize("body", WRITING.values(), ids=WRITING)
def test_what_is_written(body, capture):
    """Writes go into the array, its views and what was made of its memory; each call has an array of its own."""
    fn = made(f"a = {A}\nb = a[:, 1:]\nc = a.copy()\n{body}\nreturn x * torch.from_numpy(b.copy()), a, b, c, torch.tensor(a)")
    compiled = capture(fn, fullgraph=True, strict=False)
    x = torch.ones(2, 2)
    for _ in range(3):
        mine, eager = compiled(x), fn(x)
        assert flat(mine) == flat(eager)
        mine[1][0, 1] = 77.0
        assert mine[2][0, 0] == 77.0 and mine[3][0, 1] != 77.0  # a view is one
    assert len(compiled.graphs) == 1


@pytest.mark.parametrize("body", WRITING.values(), ids=WRITING)
def test_what_is_written_around_a_break(body, capture):
    fn = made(f"a = {A}\nb = a[:, 1:]\nd = [a, b]\n{body}\ny = x.sin()\ngraph_break()\nb[0, 0] = 44\nreturn y + 1, d, a is d[0]")
    compiled = capture(fn, strict=False)
    for _ in range(2):
        assert flat(compiled(torch.ones(2))) == flat(fn(torch.ones(2)))


@pytest.mark.parametrize("view", ["a", "a.T", "a[:, 1:]", "a.astype(np.float32)", "a[1]", "a.reshape(3, 2)", "a[:0]", "a[0, 1:2]"])
@pytest.mark.parametrize("call", ["torch.from_numpy(v)", "torch.as_tensor(v)", "torch.tensor(v)", "torch.as_tensor(v, dtype=torch.float16)", "torch.tensor(v, dtype=torch.int64)"])  # fmt: skip
def test_tensors(view, call, capture):
    fn = made(f"a = {A}\nv = {view}\nt = {call}\nt.add_(1)\nreturn t, t * 2 + x")
    compiled = capture(fn, fullgraph=True, strict=False)
    for _ in range(2):
        assert flat(compiled(torch.ones(()))) == flat(fn(torch.ones(())))
    assert len(compiled.graphs) == 1


def test_large_arrays_are_given_to_the_graph(capture):
    fn = made("t = torch.from_numpy(np.linspace(0, 1, 5000).reshape(50, 100).T)\nt += 1\nreturn t, t @ x")
    compiled = capture(fn, fullgraph=True)
    for _ in range(3):
        assert flat(compiled(torch.ones(50, dtype=torch.float64))) == flat(fn(torch.ones(50, dtype=torch.float64)))
    assert len(compiled.graphs) == 1


@pytest.mark.parametrize("body", [
    "a = np.zeros(3)\nt = torch.from_numpy(a)\nt.add_(1)\nreturn x + float(a[0])",
    "a = np.zeros(3)\nt = torch.from_numpy(a)\na[0] = 5\nreturn x + t",
    "a = np.zeros(3)\nt = torch.from_numpy(a[1:])\nx = x + t[0]\na[1] = 3\nreturn t + x[1:], a",
    "a = np.zeros(3)\ns, t = torch.from_numpy(a), torch.from_numpy(a)\ns.add_(1)\nreturn x + t",
    "a = np.zeros(3)\nt = torch.from_numpy(a)\nreturn x + t, a",
    "a = np.broadcast_to(np.arange(3.0), (2, 3))\nreturn x + torch.tensor(a)[0], a",
    "return x + np.log(np.arange(3.0) * 0).sum().clip(-1)",
    "return x + torch.tensor(np.array([1, 0]) / 0).isnan().sum()",
    "return x * torch.from_numpy(np.asarray(x.numpy()) + 1)",
    "return x + len(np.array(['a', 'b']))", "return x[np.array([1, 0, 1], dtype=np.uint8)]", "return x[np.array([True, False, True])]",
    "return x + len(np.array([{}, {}], dtype=object))",
    "a = np.arange(3.0)\na.shape = (3, 1)\nreturn x + torch.from_numpy(a)",
    "return x + np.vectorize(lambda a: a + 1)(np.arange(3)).sum()",
    "return x[:, None] * np.arange(3.0)[:0].sum() + x[np.array([1.0]).astype(int)]",
])  # fmt: skip
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_what_ends_a_graph_is_right(body, capture):
    fn = made(body)
    compiled = capture(fn, strict=False)
    for _ in range(3):
        assert flat(compiled(torch.ones(3))) == flat(fn(torch.ones(3)))


@pytest.mark.parametrize("body", [
    "return x + np.zeros(3)[5]", "return x + np.zeros((2, 3)) @ np.zeros(2)", "return x + np.array([[1], [1, 2]])",
    "return x + (1 if np.zeros(2) else 0)", "return x + int(np.zeros(2))", "return x + np.zeros(3).reshape(2)",
    "return x + np.linalg.inv(np.zeros((2, 2)))", "a, b = np.zeros(3)\nreturn x", "return {np.zeros(2): x}",
    "np.zeros(3)[:2] = [1, 2, 3]\nreturn x", "return x + torch.from_numpy(np.zeros(3)[::-1])", "np.broadcast_to(1.0, 3)[0] = 2\nreturn x",
    "return x + np.zeros(3).nonsense", "return x + np.zeros(3).nonsense()",
])  # fmt: skip
def test_what_numpy_raises(body, capture):
    fn = made(body)
    compiled = capture(fn, strict=False)
    with pytest.raises(Exception) as eager:  # noqa: PT011  (whatever NumPy raises)
        fn(torch.ones(3))
    for _ in range(2):
        with pytest.raises(type(eager.value), match=re.escape(str(eager.value))):
            compiled(torch.ones(3))


@pytest.mark.parametrize("key", ["np.array([2, 0])", "np.array([[1]]), 0", "..., np.array([1, 1])", "np.array(1)", "None, np.arange(2)"])  # fmt: skip
def test_indices(key, capture):
    fn = made(f"y = x.clone()\ny[{key}] = 5.0\nreturn x[{key}], y")
    compiled = capture(fn, fullgraph=True, strict=False)
    x = torch.randn(3, 3)
    assert flat(compiled(x)) == flat(fn(x))


def test_sizes_in_arrays_are_guarded(capture):
    fn = made("return x + torch.from_numpy(np.linspace(0, 1, x.shape[0])).float()")
    compiled = capture(fn)
    for size in (3, 4, 7):
        assert flat(compiled(torch.ones(size))) == flat(fn(torch.ones(size)))


READS = ["x * array[0]", "x * array.sum()", "x + len(array) + array.mean()", "sum(x * float(a) for a in array)",
         "x * float(array[1:].max())", "x[int(np.argmax(array)):] + 1", "x * (2 if array.any() else 3)", "x + torch.tensor(array * 2)",
         "x * (2 if array[0] > 5 else 3)", "x * np.maximum(array, 2).sum()", "x + (1.0 in array)", "(x + 1, array + 1)",
         "(x + 1, np.asarray(array) is array)", "x + (array.dtype == np.float64)"]  # fmt: skip


@pytest.mark.parametrize("read", READS)
def test_reads_of_an_existing_array(read, capture):
    """They are guarded: what was read and changes later is seen, whoever changes it."""
    array = np.array([1.0, 2.0, 3.0])
    fn = made(f"return {read}", array=array)
    compiled = capture(fn, fullgraph=True, strict=False)
    x = torch.randn(3, dtype=torch.float64)
    assert flat(compiled(x)) == flat(fn(x)) == flat(compiled(x))
    assert len(compiled.graphs) == 1
    array[0] = 9.0
    assert flat(compiled(x)) == flat(fn(x))


def test_an_array_that_changes_from_call_to_call(capture):
    """Its numbers end the graph then, without compiling anew for each."""
    array = np.zeros(3)
    fn = made("y = x.sin() + 1\nreturn y * array.sum()", array=array)
    compiled = capture(fn, strict=False)
    for number in range(30):
        array[1] = number
        assert flat(compiled(torch.ones(2))) == flat(fn(torch.ones(2)))
    assert len(compiled.graphs) <= 12


@pytest.mark.parametrize("body", [
    "array[0] += 1\nreturn x * float(array[0])",
    "view = array[1:]\nview += 1\nreturn x * float(array[1])",
    "t = torch.from_numpy(array)\nt.add_(1)\nreturn x * float(array[0])",
    "seen = float(array[0])\ntorch.from_numpy(array).add_(1)\nreturn x * seen, x * float(array[0])",
    "v = array.reshape(1, 3)\ntorch.from_numpy(array).add_(1)\nreturn x * float(v[0, 0])",
    "array.sort()\nreturn x * float(array[0])",
    "np.add(array, 1, out=array)\nreturn x + float(array[0])",
    "v = array.reshape(1, 3)\nx = x + v.sum()\nv[0, 1] = 5\nreturn x, v, array",
    "return x + torch.from_numpy(array[1:])[0], array[1:]",
])  # fmt: skip
def test_writes_to_an_existing_array(body, capture):
    arrays = np.array([5.0, 2.0, 3.0]), np.array([5.0, 2.0, 3.0])
    fn, reference = (made(body, array=array) for array in arrays)
    compiled = capture(fn, strict=False)
    for _ in range(3):
        assert flat(compiled(torch.ones(2))) == flat(reference(torch.ones(2)))
        assert flat(arrays[0]) == flat(arrays[1])
