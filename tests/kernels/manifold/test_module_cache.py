"""Tests of `ovkgp.kernels.manifold.module_cache`."""

import pickle
from copy import deepcopy

import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel

from ovkgp.kernels.manifold.module_cache import ModuleCache


class Counted(torch.nn.Module):
    """Module with a parameter, a buffer and a kernel that counts how often its value is computed."""

    def __init__(self):
        super().__init__()
        self.kernel = RBFKernel().double()
        self.register_buffer("scale", torch.ones(2).double())
        self.memory, self.count = ModuleCache(), 0

    def make(self):
        self.count += 1
        return self.kernel.lengthscale.sum() * self.scale.sum()

    def value(self, key=None):
        return self.memory.get_or_compute([self], key, self.make)


def test_module_cache_computes_once_without_changes():
    module = Counted()
    with torch.no_grad():
        assert module.value() is module.value()
    assert module.count == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.kernel.initialize(lengthscale=3.0),  # through .data: the version does not move
        lambda m: m.kernel.raw_lengthscale.add_(1.0),
        lambda m: m.scale.mul_(2.0),
        lambda m: setattr(m, "scale", 3 * m.scale),
        lambda m: setattr(m, "kernel", ScaleKernel(m.kernel)),
        lambda m: m.load_state_dict({**m.state_dict(), "scale": torch.full((2,), 5.0)}),
        lambda m: m.float(),
    ],
)
def test_module_cache_recomputes_after_change(change):
    module = Counted()
    with torch.no_grad():
        module.value()
        change(module)
        if isinstance(module.kernel, ScaleKernel):
            module.make = lambda: torch.tensor(7.0)
            assert module.value() == 7.0
            return
        found = module.value()
        assert module.count == 2
        assert found == module.make()


def test_module_cache_recomputes_for_another_key():
    module = Counted()
    with torch.no_grad():
        module.value("a"), module.value("b")
    assert module.count == 2


def test_module_cache_recomputes_for_module_of_another_class():
    module = Counted()
    with torch.no_grad():
        module.value()
        module.kernel = MaternKernel().double()  # the same parameters with the same values
        module.value()
    assert module.count == 2


def test_module_cache_keeps_gradients():
    module = Counted()
    with torch.no_grad():
        module.value()
    value = module.value()
    (gradient,) = torch.autograd.grad(value, module.kernel.raw_lengthscale)
    assert gradient.abs().item() > 0 and module.count == 2
    module.requires_grad_(False)
    assert not module.value().requires_grad and module.count == 2  # the value cached without a graph is used


def test_module_cache_ignores_torch_func_transforms():
    module = Counted()
    raw = module.kernel.raw_lengthscale.detach()

    def value(raw):
        return torch.func.functional_call(_Caller(module), {"module.kernel.raw_lengthscale": raw}, ())

    with torch.no_grad():
        batch = torch.func.vmap(value)(torch.stack([raw, raw + 1]))
    assert batch[0] != batch[1]
    with torch.no_grad():
        assert module.value() == module.make() == batch[0]
    _, slope = torch.func.jvp(value, (raw,), (torch.ones_like(raw),))
    assert slope > 0


class _Caller(torch.nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self):
        return self.module.value()


def test_module_cache_ignores_inference_mode():
    module = Counted().requires_grad_(False)
    with torch.inference_mode():
        module.value()
    assert not module.value().is_inference() and module.count == 2


def test_module_cache_is_copied_but_not_pickled():
    module = Counted()
    with torch.no_grad():
        module.scale.mul_(2.0)  # a version above zero
        module.value()
        twin = deepcopy(module)
        twin.value()
        assert twin.count == 1 and twin.memory is not module.memory
        twin.kernel.initialize(lengthscale=9.0)
        assert twin.value() == twin.make() != module.value()
        read = pickle.loads(pickle.dumps(module))
        read.value()
        assert read.count == 2


def test_module_cache_copy_of_changed_module_recomputes():
    module = Counted()
    with torch.no_grad():
        module.value()
        module.scale.mul_(2.0)
        twin = deepcopy(module)
        assert twin.value() == twin.make()
