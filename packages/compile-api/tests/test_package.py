"""Packages: a C client without Python gets the bits that Python gets, and errors as texts."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from compile_api import export, load_package, package
from compile_api.deploy.package import _Tensor as Tensor
from prims.errors import CompileWarning, InvalidData, StoredGraphError, UserError
from prims.ir.tensors import read_tensors, write_tensors

CODES = {torch.float32: 6, torch.int64: 4, torch.bool: 11, torch.float16: 5, torch.bfloat16: 15, torch.float64: 7}
EXAMPLES = Path(__file__).parents[3] / "docs" / "deployment"

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc")


def as_file(tensors) -> bytes:
    """Tensors as the client reads and writes them."""
    found = b""
    for x in tensors:
        raw = x.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes() if x.numel() else b""
        found += struct.pack(f"ii{x.dim()}q", CODES[x.dtype], x.dim(), *x.shape) + raw
    return found


def run_client(folder, inputs, threads=1, calls=1, place=None, omp="1"):
    """What the C client writes and prints, run without anything of Python around it."""
    program = folder / "client"
    if not program.exists():
        native = folder / "native"
        subprocess.run(
            ["gcc", "-Wall", "-Wextra", "-Werror", EXAMPLES / "client.c", "-I", native, "-L", native, "-lprogram",
             f"-Wl,-rpath,{native}", "-lpthread", "-o", program], check=True,
        )  # fmt: skip
    for k, x in enumerate(inputs):
        (folder / f"in{k}").write_bytes(as_file([x]))
    (folder / "out").unlink(missing_ok=True)
    names = [folder / f"in{k}" for k in range(len(inputs))]
    done = subprocess.run(
        [program, place or folder, str(threads), str(calls), folder / "out", *names], capture_output=True, errors="replace",
        env={"OMP_NUM_THREADS": omp},
    )  # fmt: skip
    out = folder / "out"
    return (out.read_bytes() if out.exists() and not done.returncode else b""), done.stderr + done.stdout, done.returncode


def mlp():
    torch.manual_seed(0)
    layers = [torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.LayerNorm(128), torch.nn.Linear(128, 10)]
    return torch.nn.Sequential(*layers).eval()


@pytest.fixture(scope="module")
def packaged(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mlp")
    program = export(mlp(), (torch.randn(16, 64),), dynamic_shapes={"input": {0: ("batch", 2, 256)[1:]}})
    package(program, folder)
    return folder, program


@pytest.mark.parametrize("rows", [16, 2, 100])
def test_a_client_in_c_gets_the_same_bits(packaged, rows):
    folder, program = packaged
    x = torch.randn(rows, 64)
    wanted = program(x)
    torch.testing.assert_close(wanted, mlp()(x).detach())
    assert torch.equal(load_package(folder)(x), wanted)
    found, said, code = run_client(folder, [x])
    assert code == 0 and found == as_file([wanted]), said
    assert found != as_file([wanted + 1e-6])


def test_the_library_links_no_python(packaged):
    folder, _ = packaged
    said = subprocess.run(["ldd", folder / "native" / "libprogram.so"], capture_output=True, text=True).stdout
    assert "libtorch_cpu" in said and "python" not in said.replace(str(Path(torch.__file__).parent), "")
    names = subprocess.run(["nm", "-D", "--defined-only", folder / "native" / "libprogram.so"], capture_output=True, text=True)
    exported = [line.split()[-1] for line in names.stdout.splitlines() if line.split()[1] == "T"]
    assert exported and all(name.startswith("quintet_") for name in exported)


def test_threads_at_once(packaged):
    folder, program = packaged
    x = torch.randn(64, 64)
    found, said, code = run_client(folder, [x], threads=4, calls=50)
    assert code == 0 and found == as_file([program(x)] * 4), said


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ([torch.ones(4, 64, dtype=torch.float64)], ["run: the input input has dtype float64, expected float32"]),
        ([torch.ones(4, 63)], ["size 63 in dimension 1, expected 64"]),
        ([torch.ones(64)], ["1 dimensions, expected 2"]),
        ([torch.ones(1, 64)], ["size 1 in dimension 0", "input_0 is at least 2"]),
        ([torch.ones(257, 64)], ["input_0 is at most 256"]),
        ([], ["takes 1 inputs and was given 0"]),
        ([torch.ones(4, 64)] * 2, ["takes 1 inputs and was given 2"]),
    ],
)
def test_errors_of_calls_are_texts(packaged, inputs, words):
    _, said, code = run_client(packaged[0], inputs)
    assert code == 4 and all(word in said for word in words), said


@pytest.mark.parametrize("missing", ["inputs", "sizes", "data"])
def test_inputs_that_are_not_there_are_named(packaged, missing):
    package = load_package(packaged[0])
    sizes = (ctypes.c_int64 * 2)(4, 64)
    data = torch.ones(4, 64)
    given = (Tensor * 1)((data.data_ptr(), 6, 2, sizes, None))
    if missing == "sizes":
        given[0].sizes = None
    elif missing == "data":
        given[0].data = None
    error, result = ctypes.c_void_p(), ctypes.c_void_p()
    at = None if missing == "inputs" else given
    assert package._library.quintet_model_run(package._model, at, 1, ctypes.byref(result), ctypes.byref(error))
    words = {"inputs": "there are no inputs at the place", "sizes": "the input input has no sizes", "data": "has no data"}
    assert words[missing] in package._taken(error) and not result.value


def test_files_of_a_package_are_read_by_the_same_people(packaged):
    names = ("contract.json", "graph.json", "weights.safetensors")
    modes = {name: (packaged[0] / name).stat().st_mode & 0o777 for name in names}
    assert len(set(modes.values())) == 1, modes


def test_errors_of_weights_are_texts(packaged, tmp_path):
    folder, program = packaged
    weights = dict(program.weights)
    place = tmp_path / "other.safetensors"

    def load(changed):
        if isinstance(changed, bytes):
            place.write_bytes(changed)
        else:
            write_tensors(changed, place)
        _, said, code = run_client(folder, [torch.ones(4, 64)], place=place)
        return said if code == 3 else f"code {code}: {said}"

    assert "code 0" in load({**weights, "more": torch.ones(3)})
    assert "the weight 0.bias is missing" in load({n: w for n, w in weights.items() if n != "0.bias"})
    assert "0.bias has another shape" in load({**weights, "0.bias": torch.ones(3)})
    assert "0.bias has dtype F64, expected float32" in load({**weights, "0.bias": weights["0.bias"].double()})
    good = (folder / "weights.safetensors").read_bytes()
    for damaged in (b"", b"1234567", good[:200], good[:-4], b"\xff" * 64, good[:8] + b"[" + good[9:]):
        assert "load: " in load(damaged)
    for at in range(8, 300, 7):  # no byte of the header makes it fall over
        said = load(good[:at] + bytes([good[at] ^ 0x15]) + good[at + 1 :])
        assert "load: " in said or "code 0" in said, said
    _, said, code = run_client(folder, [torch.ones(4, 64)], place=tmp_path / "nothing")
    assert code == 3 and "cannot be read" in said


def test_weights_are_exchanged_without_compiling(packaged, tmp_path):
    folder, _ = packaged
    other = mlp()
    with torch.no_grad():
        for k, parameter in enumerate(other.parameters()):
            parameter.copy_(torch.randn_like(parameter) if k % 2 else torch.zeros_like(parameter))
    place = tmp_path / "tuned.safetensors"
    write_tensors(dict(other.state_dict()), place)
    x = torch.randn(8, 64)
    wanted = export(other, (x,))(x)
    found, said, code = run_client(folder, [x], place=place)
    assert code == 0 and found == as_file([wanted]), said
    assert torch.equal(load_package(folder, weights=place)(x), wanted)
    assert torch.equal(load_package(folder, weights=dict(other.state_dict()))(x), wanted)
    with pytest.raises(UserError, match=r"0.bias has shape \[3\]"):
        load_package(folder, weights={"0.bias": torch.ones(3)})


def test_in_python_nothing_that_compiles_is_imported(packaged, tmp_path):
    folder, program = packaged
    x = torch.randn(5, 64)
    torch.save(x, tmp_path / "x.pt")
    text = (
        "import sys, torch, compile_api\n"
        "program = compile_api.load_package(sys.argv[1])\n"
        "torch.save(program(torch.load(sys.argv[2])), sys.argv[3])\n"
        "wrong = {'dynamo_capture', 'aot_autograd', 'inductor_gen', 'triton'} & set(sys.modules)\n"
        "assert not wrong, wrong\n"
    )
    subprocess.run([sys.executable, "-c", text, folder, tmp_path / "x.pt", tmp_path / "y.pt"], check=True)
    assert torch.equal(torch.load(tmp_path / "y.pt"), program(x))


@pytest.mark.parametrize(
    ("compiler", "example", "flags"),
    [
        ("g++", "client.cpp", ["-Wall", "-Werror", "-I", "NATIVE", "-L", "NATIVE", "-lprogram", "-Wl,-rpath,NATIVE"]),
        ("rustc", "client.rs", ["-D", "warnings", "-L", "NATIVE", "-l", "program", "-C", "link-arg=-Wl,-rpath,NATIVE"]),
    ],
)
def test_examples_in_other_languages(packaged, tmp_path, compiler, example, flags):
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler}")
    folder, program = packaged[0], tmp_path / "client"
    flags = [flag.replace("NATIVE", str(folder / "native")) for flag in flags]
    subprocess.run([compiler, EXAMPLES / example, *flags, "-o", program], check=True)
    done = subprocess.run([program, folder, "3", "64"], capture_output=True, text=True)
    assert done.stdout.splitlines() == ["takes input", "gives result[3, 10]"], done.stderr
    done = subprocess.run([program, folder, "3", "65"], capture_output=True, text=True)
    assert done.returncode == 1 and "size 65" in done.stderr


# ---- programs of other forms --------------------------------------------------------------------------------------


class Everything(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(6))
        self.table = torch.nn.Embedding(20, 6)
        self.conv = torch.nn.Conv2d(1, 4, 3, padding=1)

    def forward(self, ids, x, options):
        self.seen.add_(x.sum(0))
        e = self.table(ids)
        images = self.conv((e @ x.t())[:, None])
        best, where = images.flatten(1).topk(3)
        options["into"][0] = best.sum()
        kept = torch.cat([images.amax(1), torch.tensor([[[1.0]], [[2.0]]]).expand(2, 1, x.shape[0])], 1)
        return {
            "best": best, "where": where, "row": kept[0], "turned": images.transpose(1, 3), "x": x, "n": ids.shape[1],
            "mask": best > 0, "seen": self.seen, "two": 2, "half": best.half(),
        }  # fmt: skip


def test_views_writes_and_several_types(tmp_path):
    torch.manual_seed(0)
    model = Everything()
    ids, x, into = torch.randint(0, 20, (2, 5)), torch.randn(7, 6), torch.zeros(3)
    shapes = {"ids": {1: "n"}, "x": {0: "m"}}
    program = export(model, (ids, x, {"into": into}), dynamic_shapes=shapes)
    package(program, tmp_path)
    packed = load_package(tmp_path)
    for n, m in ((5, 7), (9, 4), (2, 12)):
        ids, x = torch.randint(0, 20, (2, n)), torch.randn(6, m).t()  # not in rows
        mine, theirs = torch.zeros(3), torch.zeros(6)[::2]
        wanted, found = program(ids, x, {"into": mine}), packed(ids, x, {"into": theirs})
        with torch.no_grad():
            eager = model(ids, x, {"into": torch.zeros(3)})
        assert list(found) == list(wanted)
        for name, value in wanted.items():
            if isinstance(value, torch.Tensor):
                assert torch.equal(found[name], value) and found[name].dtype == value.dtype, name
                torch.testing.assert_close(value, eager[name], atol=2e-3, rtol=1e-3)
            else:
                assert found[name] == value == eager[name]
        assert found["x"] is x and torch.equal(mine, theirs) and float(mine[0]) != 0
        assert found["turned"].stride() == wanted["turned"].stride()
    found["row"].zero_()  # results outlive the package and the next call
    del packed
    assert float(found["row"].sum()) == 0 and found["best"].shape == (2, 3)


class Remembers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("cache", torch.zeros(64, 16))
        self.into = torch.nn.Linear(16, 16)

    def forward(self, x, at):
        self.cache.index_copy_(0, at, self.into(x))
        return (self.cache @ x.t()).softmax(0)


def test_a_cache_is_written_where_it_is(tmp_path):
    torch.manual_seed(0)
    model = Remembers()
    x, at = torch.randn(1, 16), torch.tensor([3])
    program = export(model, (x, at))
    package(program, tmp_path)
    packed = load_package(tmp_path)
    text = (tmp_path / "native" / "program.c").read_text()
    assert "#define QR_WRITES 1" in text and "qr_rows(" not in text
    for k in (3, 5, 3, 60):
        x, at = torch.randn(1, 16), torch.tensor([k])
        with torch.no_grad():
            eager = model(x, at)
        wanted = program(x, at)
        torch.testing.assert_close(wanted, eager)
        assert torch.equal(packed(x, at), wanted)
    torch.testing.assert_close(program.weights["cache"], model.cache)
    found, said, code = run_client(tmp_path, [x, at], threads=3, calls=20)  # one after the other
    assert code == 0 and len(found) == 3 * len(as_file([wanted])), said


def test_a_client_writes_what_the_program_writes(tmp_path):
    def step(cache, x):
        cache.mul_(2).add_(x)
        return cache.sum()

    program = export(step, (torch.ones(4), torch.ones(4)))
    package(program, tmp_path)
    found, said, code = run_client(tmp_path, [torch.ones(4), torch.ones(4)], calls=3)
    assert code == 0 and found == as_file([torch.tensor(4 * 15.0)]), said


def test_without_operators_nothing_of_pytorch_is_linked(tmp_path):
    program = export(lambda x: (x.exp() + 1).sum(-1).to(torch.bfloat16), (torch.randn(3, 8),))
    package(program, tmp_path)
    said = subprocess.run(["ldd", tmp_path / "native" / "libprogram.so"], capture_output=True, text=True).stdout
    assert "torch" not in said
    x = torch.randn(3, 8)
    found, said, code = run_client(tmp_path, [x])
    assert code == 0 and found == as_file([program(x)]), said


def test_bad_data_is_an_error(tmp_path):
    program = export(lambda x, at: x[at] * 2, (torch.randn(5), torch.tensor([1, 2])))
    package(program, tmp_path)
    packed = load_package(tmp_path)
    assert packed(torch.ones(5), torch.tensor([4, 0])).tolist() == [2, 2]
    with pytest.raises(InvalidData, match="index out of range"):
        packed(torch.ones(5), torch.tensor([5, 0]))
    _, said, code = run_client(tmp_path, [torch.ones(5), torch.tensor([5, 0])])
    assert code == 4 and "index out of range" in said


@pytest.mark.parametrize(
    ("fn", "words"),
    [
        (lambda x: torch.nn.functional.dropout(x, 0.5), ["random numbers"]),
        (lambda x: torch.special.bessel_j0(x) + torch.special.chebyshev_polynomial_t(x, 3), ["chebyshev", __file__]),
        (lambda x: torch.linalg.inv(x), ["linalg"]),
        (lambda x: torch.fft.rfft(x).abs(), ["complex64"]),
        (lambda x: torch.histc(x, 4), ["aten.histc.default", "number"]),
        (lambda x: torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,)), ["cond"]),
    ],
)
def test_what_cannot_be_called_is_refused_by_name(tmp_path, fn, words):
    program = export(fn, (torch.rand(4, 4),))
    with pytest.raises(UserError) as caught:
        package(program, tmp_path)
    assert all(word in str(caught.value) for word in words), str(caught.value)


OPERATORS = {
    "products": lambda x, s: (torch.baddbmm(x[None], s[None], x[None], beta=2.0), torch.addmm(x[0], s, x, alpha=0.5)),
    "orders": lambda x, s: (*x.sort(-1), *x.topk(2), *x[:, :1].expand(6, 6).contiguous().median(1), x.kthvalue(2)[0]),
    "matrices": lambda x, s: (*torch.linalg.qr(s), torch.linalg.det(s), torch.linalg.svd(s)[1]),
    "halves": lambda x, s: (x.half() @ s.half(), torch.nn.functional.linear(x.bfloat16(), s.bfloat16()).relu()),
    "attention": lambda x, s: torch.nn.functional.scaled_dot_product_attention(*[(x.t() * s)[None, None]] * 3),
    "pools": lambda x, s: torch.nn.functional.max_pool2d(torch.stack([x, s])[None], 2, return_indices=True),
    "nothing": lambda x, s: (x[:0] @ s, (x @ s).sum()),
}


@pytest.mark.parametrize("what", OPERATORS)
def test_operators_give_the_same_bits(tmp_path, what):
    torch.manual_seed(1)
    x, s = torch.rand(6, 6), torch.rand(6, 6) + 3 * torch.eye(6)
    program = export(OPERATORS[what], (x, s))
    package(program, tmp_path)
    wanted, found, eager = program(x, s), load_package(tmp_path)(x, s), OPERATORS[what](x, s)
    for a, b, c in zip(*(y if isinstance(y, tuple) else (y,) for y in (wanted, found, eager)), strict=True):
        assert torch.equal(a, b) and a.dtype == b.dtype
        torch.testing.assert_close(a, c, atol=1e-2, rtol=1e-2) if c.dtype != torch.int64 else None


@pytest.mark.parametrize("sizes", [None, {"x": {0: "rows"}}])
def test_products_by_onednn(tmp_path, monkeypatch, sizes):
    from inductor_gen.extern import cpu

    if cpu.onednn() is None:
        pytest.skip("no oneDNN")
    monkeypatch.setattr(cpu, "blas_is_slow", lambda: True)
    fn = lambda x, w, b: torch.nn.functional.linear(x, w, b).tanh() @ w  # noqa: E731
    x, w, b = torch.randn(128, 128), torch.randn(160, 128), torch.randn(160)
    program = export(fn, (x, w, b), dynamic_shapes=sizes)
    package(program, tmp_path)
    assert "mkldnn::_linear_pointwise" in (tmp_path / "native" / "program.c").read_text()
    for given in (x, x[:3] if sizes else x):  # the smaller one by the usual library
        wanted = program(given, w, b)
        assert torch.equal(load_package(tmp_path)(given, w, b), wanted)
        torch.testing.assert_close(wanted, fn(given, w, b), atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("damage", ["machine", "libtorch", "library", "cut off", "outside", "exported"])
def test_packages_for_elsewhere_are_refused(packaged, tmp_path, damage):
    folder = tmp_path / "copy"
    shutil.copytree(packaged[0], folder)
    place = folder / "contract.json"
    data = json.loads(place.read_text())
    if damage == "library":
        (folder / "native" / "libprogram.so").write_bytes(b"no library")
    elif damage == "cut off":
        library = folder / "native" / "libprogram.so"
        library.write_bytes(library.read_bytes()[:3000])  # to use its missing pages would be a signal
    elif damage == "outside":
        data["native"]["library"] = "../../libprogram.so"
    elif damage == "exported":
        del data["native"]
    else:
        data["native"][damage] = "another"
    place.write_text(json.dumps(data))
    with pytest.raises(StoredGraphError if damage in ("library", "cut off", "outside", "exported") else UserError):
        load_package(folder)


def test_a_package_moves(packaged, tmp_path):
    folder, program = packaged
    shutil.copytree(folder, tmp_path / "elsewhere")
    x = torch.randn(3, 64)
    assert torch.equal(load_package(tmp_path / "elsewhere")(x), program(x))
    assert read_tensors(folder / "weights.safetensors").keys() == program.weights.keys()
    assert os.path.exists(folder / "native" / "quintet.h")


def test_a_folder_is_packaged_again(tmp_path):
    """The loader of libraries would give the first one for the same path, whatever is there now."""
    x, kept = torch.randn(3), []
    for fn in (lambda x: x.sin() + 1, lambda x: x.cos() * 2, lambda x: x * 100):
        shutil.rmtree(tmp_path / "model", ignore_errors=True)
        package(export(fn, (x,)), tmp_path / "model")
        kept.append((fn, load_package(tmp_path / "model"), load_package(tmp_path / "model")))
    for fn, *loaded in kept:
        for model in loaded:
            torch.testing.assert_close(model(x), fn(x))


def test_weights_of_other_names_are_told(tmp_path):
    model, x = torch.nn.Linear(3, 2).eval(), torch.ones(4, 3)
    package(export(model, (x,)), tmp_path)
    zeros = {name: torch.zeros_like(weight) for name, weight in model.state_dict().items()}
    with pytest.raises(UserError, match="no weight of these names: linear.weight, linear.bias"):
        load_package(tmp_path, weights={f"linear.{name}": weight for name, weight in zeros.items()})
    with pytest.warns(CompileWarning, match="does not use these weights: counter"):
        loaded = load_package(tmp_path, weights={**zeros, "counter": torch.ones(())})
    assert not loaded(x).any()


def test_tensors_of_other_kinds(tmp_path):
    program = export(lambda x: x * 2 + 1, (torch.ones(2, 2),))
    package(program, tmp_path)
    x = torch.view_as_complex(torch.randn(2, 2, 2)).conj().imag
    assert x.is_neg()
    for run in (program, load_package(tmp_path)):
        assert torch.equal(run(x), x * 2 + 1)
        for other in (torch.ones(2, 2).to_sparse(), torch.empty(2, 2, device="meta")):
            with pytest.raises(UserError):
                run(other)


@pytest.mark.parametrize("command, words", [("/bin/true", "made no library"), ("gcc -m99", "refuses even a program")])
def test_compilers_that_do_not_work(tmp_path, monkeypatch, command, words):
    program = export(lambda x: x.sin() + 1, (torch.ones(3),))
    monkeypatch.setenv("CC", command)
    with pytest.raises(UserError, match=words):
        package(program, tmp_path)
