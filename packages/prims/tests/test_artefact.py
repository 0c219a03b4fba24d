"""Artefacts: their serial form, what breaks it, and values and tensors in them."""

import gc
import json
import math
import sys
import types
import weakref

import pytest
import torch

from prims.artefact import Artefact, NotPortable, artefact_of, child_of, from_bytes, register_loader, restore, to_bytes
from prims.coding import decoded, encoded, tensor_decoded, tensor_encoded
from prims.errors import StoredGraphError
from prims.options import Options

_TREE = Artefact(
    "test.sum", "1", {"terms": 3, "name": "s"}, {"code": b"\x00\xffabc", "empty": b""},
    {"inner": Artefact("test.inner", "2", {}, {"more": b"xyz"})},
)  # fmt: skip


def test_what_is_written_is_read() -> None:
    assert from_bytes(to_bytes(_TREE)) == _TREE


def test_the_serial_form_is_deterministic() -> None:
    assert to_bytes(from_bytes(to_bytes(_TREE))) == to_bytes(_TREE)


def test_every_flipped_byte_and_every_cut_is_seen() -> None:
    data = to_bytes(_TREE)
    for at in range(len(data)):
        for changed in (data[:at], bytes([*data[:at], data[at] ^ 1, *data[at + 1 :]])):
            with pytest.raises(StoredGraphError) as found:
                from_bytes(changed)
            assert found.value.label in ("ART-C1", "ART-C2")
    with pytest.raises(StoredGraphError, match="ART-C2"):
        from_bytes(data + b"0")


def _forged(change: object) -> bytes:
    """A serial form with another text and the right checksum."""
    import hashlib

    from prims import artefact

    data = to_bytes(_TREE)
    start = len(artefact._MAGIC) + artefact._HEAD.size
    words, rest, _ = artefact._HEAD.unpack_from(data, len(artefact._MAGIC))
    tree = json.loads(data[start : start + words])
    text = json.dumps(change(tree)).encode() if callable(change) else change
    body = data[start + words :]
    digest = hashlib.sha256(text + body).digest()
    return b"".join((artefact._MAGIC, artefact._HEAD.pack(len(text), len(body), digest), text, body))


@pytest.mark.parametrize(
    "change",
    [
        b"{", b"[" * 100_000, lambda t: [], lambda t: {**t, "more": 1}, lambda t: {**t, "kind": 3},
        lambda t: {**t, "kind": "x" * 2000}, lambda t: {**t, "files": {"code": [0, 10**9]}},
        lambda t: {**t, "files": {"code": [-1, 2]}}, lambda t: {**t, "files": {"code": [0.0, 2]}},
        lambda t: {**t, "files": []}, lambda t: {**t, "children": {"inner": 1}}, lambda t: {**t, "text": "x"},
    ],
)  # fmt: skip
def test_another_form_with_a_right_checksum_is_refused(change: object) -> None:
    with pytest.raises(StoredGraphError, match="ART-C3"):
        from_bytes(_forged(change))


def test_what_has_no_method_is_not_portable() -> None:
    found = artefact_of(lambda x: x)
    assert isinstance(found, NotPortable) and "function" in found.reason


def test_a_loader_makes_the_callable(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("a_stage")

    def load(artefact: Artefact, options: Options, report: object) -> object:
        count = artefact.text["count"]
        return lambda x: x + count

    module.load = load  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "a_stage", module)
    register_loader("test.add", "a_stage:load")
    made = restore(from_bytes(to_bytes(Artefact("test.add", "1", {"count": 2}))), options=Options())
    assert made(3) == 5
    with pytest.raises(StoredGraphError, match="ART-C5"):
        restore(Artefact("test.add", "1", {}), options=Options())
    with pytest.raises(StoredGraphError, match="ART-C4"):
        restore(Artefact("test.unheard", "1", {}), options=Options())


_VALUES = [
    None, True, 7, "text", 2.5, math.inf, -0.0, 1e-300, 1 + 2j, (1, (2.0, None)), [1, [2]], {"a": (1,), 3: None},
    slice(1, None, 2), torch.float16, torch.strided, torch.channels_last, torch.device("cuda:1"),
    torch.ops.aten.add.Tensor, Ellipsis, frozenset((1, 2)),
]  # fmt: skip


@pytest.mark.parametrize("value", _VALUES, ids=repr)
def test_values_come_back(value: object) -> None:
    found = decoded(json.loads(json.dumps(encoded(value))))
    assert found == value and type(found) is type(value) and repr(found) == repr(value)


def test_what_cannot_be_stored_says_so() -> None:
    for value in (object(), lambda: 0, torch.ones(2), print):
        with pytest.raises(NotPortable):
            encoded(value)


@pytest.mark.parametrize("data", [{"target": "os.system"}, {"target": "builtins.eval"}, {"torch": "save"}, {"x": 1},
                                  {"device": "cpu; x"}, {"a": 1, "b": 2}, {}])  # fmt: skip
def test_other_values_are_refused(data: object) -> None:
    with pytest.raises(StoredGraphError):
        decoded(data)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.randn(3, 4), lambda: torch.randn(4, 3).t(), lambda: torch.randn(3, 1).expand(3, 5),
        lambda: torch.randn(6)[2:5], lambda: torch.tensor(3), lambda: torch.empty(0, 3),
        lambda: torch.randn(5).bfloat16(), lambda: torch.tensor([True, False]), lambda: torch.randn(2) + 1j,
        lambda: torch.tensor([math.nan, -0.0]), lambda: torch.ones(2, requires_grad=True),
    ],
)  # fmt: skip
def test_tensors_come_back(make: object) -> None:
    tensor = make()  # type: ignore[operator]
    what, data = tensor_encoded(tensor)
    found = tensor_decoded(json.loads(json.dumps(what)), data)
    assert (found.shape, found.stride(), found.dtype) == (tensor.shape, tensor.stride(), tensor.dtype)
    assert found.requires_grad == tensor.requires_grad
    assert tensor_encoded(found)[1] == data
    assert torch.equal(found.nan_to_num(), tensor.nan_to_num())
    if data:
        with pytest.raises(StoredGraphError, match="ART-C5"):
            tensor_decoded(what, data[:-1])


class _Refuses:
    """Cannot be stored, for an error that follows another."""

    def artefact(self) -> Artefact:
        big = torch.ones(3)
        _SEEN.append(weakref.ref(big))
        try:
            raise StoredGraphError("FILE-C1", "no name")
        except StoredGraphError as error:
            raise NotPortable(str(error)) from None


class _Holds:
    def artefact(self) -> Artefact:
        return Artefact("test.holds", "1", {}, {}, {"inner": child_of(_Refuses())})


_SEEN: list[weakref.ref[torch.Tensor]] = []


def test_a_refusal_holds_nothing_of_what_was_to_be_stored() -> None:
    gc.disable()
    try:
        for what in (_Refuses(), _Holds()):
            refusal = artefact_of(what)
            assert isinstance(refusal, NotPortable) and "no name" in refusal.reason
            assert _SEEN.pop()() is None
    finally:
        gc.enable()
