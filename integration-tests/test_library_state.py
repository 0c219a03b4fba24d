"""State that PyTorch's own functions keep in their modules and classes: what compiled code takes of it, it checks."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributions import Distribution, Normal
from torch.nn.utils import parametrizations, parametrize
from torch.utils import checkpoint

import compile_api


def test_a_cache_of_parametrized_weights():
    """``parametrize.cached`` sets two globals anew: weights of one block of it are no weights of the next."""
    model = parametrizations.weight_norm(nn.Linear(4, 4))
    compiled, x = compile_api.compile(model), torch.randn(3, 4)
    scale = model.parametrizations.weight.original0
    for k in range(6):
        with torch.no_grad():
            scale.fill_(k)
            if k % 2 == 0:
                with parametrize.cached():
                    ours = compiled(x) + compiled(x)
                with parametrize.cached():
                    theirs = model(x) + model(x)
            else:
                ours, theirs = compiled(x), model(x)
        torch.testing.assert_close(ours, theirs)
    for _ in range(2):
        with parametrize.cached():
            (compiled(x) + compiled(x)).sum().backward()
    assert compiled.report().kernels and not compiled.report().fallbacks


def test_a_cache_of_parametrized_weights_inside():
    model = parametrizations.weight_norm(nn.Linear(4, 4))

    def twice(x):
        with parametrize.cached():
            return model(x) + model(x)

    compiled = compile_api.compile(twice)
    for _ in range(4):
        x = torch.randn(3, 4)
        torch.testing.assert_close(compiled(x), twice(x))
        compiled(x).sum().backward()
    assert compiled.report().verdict == "compiled"
    assert not compiled.report().recompiles


@pytest.fixture
def validation():
    before = Distribution._validate_args
    yield
    Distribution.set_default_validate_args(before)


def test_a_default_of_a_class(validation):
    compiled = compile_api.compile(lambda x: Normal(x, 1.0).log_prob(x + 1), options={"data_dependent": False})
    nan = torch.tensor([torch.nan])
    for checked in (False, True, False):
        Distribution.set_default_validate_args(checked)
        assert compiled(torch.zeros(1)).isfinite().all()
        if checked:
            with pytest.raises(ValueError, match="constraint"):
                compiled(nan)
        else:
            assert compiled(nan).isnan().all()


def test_a_setting_of_a_module():
    def program(x):
        return x + 1 if torch.__future__.get_swap_module_params_on_conversion() else x - 1

    compiled = compile_api.compile(program, fullgraph=True)
    try:
        for swaps in (False, True, False):
            torch.__future__.set_swap_module_params_on_conversion(swaps)
            assert torch.equal(compiled(torch.zeros(2)), program(torch.zeros(2)))
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    assert len(compiled.report().recompiles) == 1


def test_a_setting_read_as_an_attribute():
    def program(x):
        return x + 1 if checkpoint._enable_checkpoint_early_stop else x - 1

    compiled = compile_api.compile(program, fullgraph=True)
    for early in (True, False, True):
        with checkpoint.set_checkpoint_early_stop(early):
            assert torch.equal(compiled(torch.zeros(2)), program(torch.zeros(2)))
