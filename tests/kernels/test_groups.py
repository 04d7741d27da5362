import math
import pickle

import pytest
import torch

from ovkgp.exceptions import DomainError, InputError, OptionError
from ovkgp.kernels.groups import (
    AdditiveGroup,
    CyclicGroup,
    MultiplicativeGroup,
    ProductGroup,
    SkewedMultiplicativeGroup,
)

GROUPS = {
    "additive": lambda: AdditiveGroup(3),
    "multiplicative": lambda: MultiplicativeGroup(3),
    "skewed": lambda: SkewedMultiplicativeGroup([0.1, 1.0, 4.0]),
    "cyclic": lambda: CyclicGroup([1.0, 24.0, 7.0]),
    "product": lambda: ProductGroup([AdditiveGroup(), SkewedMultiplicativeGroup(0.3), CyclicGroup(5.0)]),
}


@pytest.fixture(params=GROUPS)
def group(request):
    return GROUPS[request.param]()


def points(n=6, seed=0):
    return torch.rand(n, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 3 + 0.05


def same(group, x, z):
    """Assert equality in the group: on a circle, 0 and the period are the same point."""
    torch.testing.assert_close(group.embed(x), group.embed(z), rtol=1e-10, atol=1e-10)


def test_groups_satisfy_the_group_axioms(group):
    x, y, z = points(), points(seed=1), points(seed=2)
    e = group.identity.expand_as(x)
    same(group, group.op(e, x), x)
    same(group, group.op(x, group.inverse(x)), e)
    same(group, group.op(x, z), group.op(z, x))
    same(group, group.op(group.op(x, y), z), group.op(x, group.op(y, z)))


def test_pairing_is_a_homomorphism_and_its_conjugate_is_the_inverse(group):
    x, z = points(), points(seed=1)
    integers = torch.tensor([[0.0, 1.0, -2.0], [3.0, -1.0, 1.0]], dtype=torch.float64)  # valid for every group
    pairing = group.pairing(x, integers)
    assert pairing.shape == (6, 2) and pairing.is_complex()
    torch.testing.assert_close(group.pairing(group.op(x, z), integers), pairing * group.pairing(z, integers))
    torch.testing.assert_close(group.pairing(group.inverse(x), integers), pairing.conj().resolve_conj())
    torch.testing.assert_close(pairing, torch.exp(1j * (group.log(x) @ integers.mT)))


def test_group_call_checks_domain_and_embeds(group):
    x = points()
    assert torch.equal(group(x), group.embed(x))
    assert group(x).shape == (6, group.embedding_dim)
    with pytest.raises(InputError, match="3 column"):
        group(x[:, :2])
    x[2, 1] = float("nan")
    with pytest.raises(DomainError, match="column 1"):
        group(x)


def test_bt_14_skewed_group_formulas():
    group = SkewedMultiplicativeGroup([0.5, 2.0])
    x, z = torch.tensor([1.0, 3.0]).double(), torch.tensor([2.0, -1.0]).double()
    torch.testing.assert_close(group.op(x, z), torch.tensor([1.5 * 2.5 - 0.5, 5.0 * 1.0 - 2.0]).double())
    torch.testing.assert_close(group.identity, torch.tensor([0.5, -1.0]).double())
    torch.testing.assert_close(group.inverse(x), torch.tensor([1 / 1.5 - 0.5, 1 / 5 - 2.0]).double())


def test_bt_e_10_logarithm_of_the_skewed_group_is_log_x_plus_c():
    group = SkewedMultiplicativeGroup(0.7)
    x = torch.tensor([[0.2], [3.0]], dtype=torch.float64)
    torch.testing.assert_close(group.log(x), (x + 0.7).log())


def test_domain_error_names_the_input_column():
    x = torch.tensor([[1.0, 1.0, -3.0]])
    with pytest.raises(DomainError, match=r"column 2 .*smallest value is -3"):
        MultiplicativeGroup(3).check(x)
    with pytest.raises(DomainError, match="column 2"):
        ProductGroup([AdditiveGroup(2), MultiplicativeGroup()]).check(x)
    with pytest.raises(DomainError, match="column 9"):
        ProductGroup([AdditiveGroup(2), MultiplicativeGroup()]).check(x, columns=[4, 5, 9])
    SkewedMultiplicativeGroup(4.0, num_dims=3).check(x)


def test_bt_e_19_lipschitz_constant_of_the_skewed_group_is_a_minimum_over_coordinates():
    """BT-E-19: 1 / min_k(min x_k + c_k), and not 1 / (min‖x‖ + c), which is smaller than the slope that it bounds."""
    group = SkewedMultiplicativeGroup([0.1, 1.0])
    lower = torch.tensor([0.05, 3.0])
    assert group.lipschitz(lower) == pytest.approx(1 / 0.15, rel=1e-6)  # `lower` is in single precision
    assert group.lipschitz(lower) > 1 / (lower.norm().item() + 0.1)
    x = lower.double() + torch.rand(200, 2, dtype=torch.float64)
    z = lower.double() + torch.rand(200, 2, dtype=torch.float64)
    slopes = (group.log(x) - group.log(z)).norm(dim=-1) / (x - z).norm(dim=-1)
    assert slopes.max() <= group.lipschitz(lower)
    assert group.lipschitz() == math.inf
    with pytest.raises(DomainError, match="column 0"):
        group.lipschitz([-0.1, 0.0])


def test_lipschitz_constants_of_other_groups_equal_their_formula():
    assert AdditiveGroup(2).lipschitz() == 1
    assert MultiplicativeGroup().lipschitz(0.25) == 4
    assert CyclicGroup([1.0, 4.0]).lipschitz() == pytest.approx(2 * math.pi)
    group = ProductGroup([AdditiveGroup(), MultiplicativeGroup()])
    assert group.lipschitz([0.0, 0.5]) == 2 and group.lipschitz() == math.inf


def test_circle_has_the_period_as_circumference():
    group = CyclicGroup(7.0)
    x = torch.linspace(0, 7, 20_001, dtype=torch.float64).unsqueeze(-1)
    assert group(x).diff(dim=0).norm(dim=-1).sum().item() == pytest.approx(7.0, rel=1e-7)


def test_cyclic_group_of_integers_has_dft_characters():
    group = CyclicGroup(5)
    x = torch.arange(5.0, dtype=torch.float64).unsqueeze(-1)
    assert torch.equal(group.op(x, x), torch.tensor([0.0, 2.0, 4.0, 1.0, 3.0]).double().unsqueeze(-1))
    dft = torch.fft.fft(torch.eye(5, dtype=torch.float64)).conj()
    torch.testing.assert_close(group.pairing(x, x), dft.resolve_conj())


def test_groups_survive_pickle_and_reject_invalid_options(group):
    copy = pickle.loads(pickle.dumps(group))
    copy.load_state_dict(group.state_dict())
    assert torch.equal(copy(points()), group(points()))
    for make in (lambda: AdditiveGroup(0), lambda: CyclicGroup(-1.0), lambda: CyclicGroup([1.0, 2.0], num_dims=3)):
        with pytest.raises(OptionError):
            make()


@pytest.mark.parametrize("groups", [[], AdditiveGroup(), [AdditiveGroup], [AdditiveGroup(), 3]])
def test_product_group_rejects_other_types(groups):
    with pytest.raises(OptionError):
        ProductGroup(groups)


@pytest.mark.parametrize("make", [AdditiveGroup, MultiplicativeGroup, lambda d: CyclicGroup(1.0, num_dims=d)])
def test_groups_reject_noninteger_num_dims(make):
    with pytest.raises(OptionError, match="num_dims"):
        make(2.5)


@pytest.mark.parametrize(
    ("group", "shown"),
    [
        (AdditiveGroup(2), "AdditiveGroup(num_dims=2)"),
        (MultiplicativeGroup(2), "MultiplicativeGroup(num_dims=2)"),
        (CyclicGroup(24), "CyclicGroup(period=24.0, num_dims=1)"),
        (CyclicGroup(24).float(), "CyclicGroup(period=24.0, num_dims=1)"),
        (CyclicGroup([24.0, 7.0]), "CyclicGroup(period=[24.0, 7.0], num_dims=2)"),
        (SkewedMultiplicativeGroup(0.1, 3).float(), "SkewedMultiplicativeGroup(c=0.1, num_dims=3)"),
    ],
)
def test_repr_shows_the_parameters(group, shown):
    assert repr(group) == shown
