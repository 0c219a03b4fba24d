"""Parts of states on a GPU, made of what these held: the part alone is read and written (``test_updates_of_parts``)."""

from __future__ import annotations

import pytest
import torch
from on_gpu import DEVICE
from test_updates_of_parts import CHANGES, COLUMNS, PARTS, TENSORS, THROUGH, judged, tensors

#: Given to the library, which copies the state.
LIBRARY = ("largest",)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("part", [*PARTS, *THROUGH])
def test_parts(part, change):
    def program(k, x):
        CHANGES[change]((PARTS | THROUGH)[part](k), x)

    judged(program, lambda: [t.to(DEVICE) for t in tensors()])


@pytest.mark.parametrize("how", TENSORS)
def test_parts_by_tensors(how):
    summed = how in ("added", "put, summed", "scattered", "largest")

    def make():
        places = torch.tensor([4, 4, 4] if summed else [4, 3, 2], device=DEVICE)
        return tensors()[0].to(DEVICE), places, torch.linspace(0, 1, 3 * COLUMNS, device=DEVICE).view(3, COLUMNS)

    def program(k, i, v):
        return TENSORS[how](k, i, v) if how == "read" else [TENSORS[how](k, i, v), None][1]

    judged(program, make, check=how not in LIBRARY)
