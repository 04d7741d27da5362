"""Weight space against dense algebra with explicit (n·p) × (n·p) matrices: mean, covariance, evidence, gradients,
paths."""

import itertools

import pytest
import torch
from linear_operator import to_dense, to_linear_operator
from pairwise import pairwise
from weight_space_cases import MAPS, NOISES, WHITENED, Case

from ovkgp.exceptions import FactorizationError, InputError, KernelTypeError, OptionError
from ovkgp.features.operators import ComplexFeatureOperator, FeatureOperator, ReflectedFeatureOperator, stack_features
from ovkgp.inference.statistics.accumulation import compute_statistics, whitening_roots
from ovkgp.inference.statistics.factors import DenseFactor, KroneckerFactor
from ovkgp.inference.statistics.statistics import Statistics
from ovkgp.inference.statistics.weight_space import make_weight_system

TIGHT = {"rtol": 1e-8, "atol": 1e-10}


def system_of(case, statistics=None, **options):
    template = case.features(case.data.X[:1])
    if statistics is None:
        statistics = compute_statistics(case.features, case.mean, case.noise, case.data, template=template, **options)
    return make_weight_system(statistics, template, case.noise.matrix(), case.mean.coefficients)


def gradients(value, parameters):
    found = torch.autograd.grad(value, list(parameters.values()), allow_unused=True)
    return {name: torch.zeros(()) if g is None else g for name, g in zip(parameters, found, strict=True)}


def close(actual, expected):
    torch.testing.assert_close(actual, expected, **TIGHT)


GRID = pairwise(name=MAPS, noise=NOISES, missing=(0.0, 0.3))


@pytest.mark.parametrize("name, noise, missing", GRID)
def test_id_1_2_3_mean_covariance_and_evidence_equal_dense_algebra(name, noise, missing):
    case = Case(name, noise, missing)
    with torch.no_grad():
        system = system_of(case)
        mean, covariance = case.dense_posterior()
        close(case.features(case.test) @ system.weights, mean)
        close(system.log_density, case.dense_log_density())
        p, m = case.num_outputs, len(case.test)
        Phi = case.features(case.test)
        close(system.variance(Phi, "full", p), covariance)
        blocks = covariance.unflatten(1, (m, p)).unflatten(0, (m, p))
        close(system.variance(Phi, "output", p), torch.stack([blocks[i, :, i] for i in range(m)]))
        close(system.variance(Phi, "diag", p), covariance.diagonal().unflatten(0, (m, p)))


@pytest.mark.parametrize("name, noise, missing", GRID)
def test_id_3_evidence_gradients_equal_dense_algebra(name, noise, missing):
    """Compared with autograd through the dense algebra, in one chunk and in several."""
    case = Case(name, noise, missing)
    parameters = case.parameters()
    expected = gradients(case.dense_log_density(), parameters)
    whole = gradients(system_of(case).log_density, parameters)
    streamed = gradients(system_of(case, chunk_rows=7).log_density, parameters)
    for key, value in expected.items():
        scale = {"rtol": 1e-7, "atol": 1e-9 * max(1.0, value.abs().max().item())}
        torch.testing.assert_close(whole[key].expand_as(value), value, **scale, check_dtype=False)
        torch.testing.assert_close(
            streamed[key].expand_as(value), whole[key].expand_as(value), **scale, check_dtype=False
        )


@pytest.mark.parametrize("chunk_rows", [None, 6])
@pytest.mark.parametrize("name", ["curl-free", "decomposable", "delays"])
def test_evidence_gradients_equal_finite_differences(name, chunk_rows):
    """Fourth-order central differences along a random direction of each parameter: error h⁴ and 1e-14 |L| / h."""
    case = Case(name, "full", 0.3)
    parameters = case.parameters()
    value = system_of(case, chunk_rows=chunk_rows).log_density
    found, h = gradients(value, parameters), 1e-3
    torch.manual_seed(0)
    for key, parameter in parameters.items():
        direction = torch.randn_like(parameter)
        values = []
        for step in (-2, -1, 1, 2):
            with torch.no_grad():
                parameter.add_(step * h * direction)
                values.append(system_of(case, chunk_rows=chunk_rows).log_density.item())
                parameter.sub_(step * h * direction)
        slope = (values[0] - 8 * values[1] + 8 * values[2] - values[3]) / (12 * h)
        assert (found[key] * direction).sum().item() == pytest.approx(slope, rel=1e-6, abs=1e-7), key


@pytest.mark.parametrize(
    ("name", "mean", "missing"),
    pairwise(
        name=["decomposable", "helmholtz", "own"], mean=["zero", "constant", "linear", "bumps"], missing=[0.0, 0.3]
    ),
)
def test_weight_system_accounts_for_every_mean(name, mean, missing):
    case = Case(name, "per_output", missing, mean)
    parameters = case.parameters()
    expected = case.dense_log_density()
    slopes = gradients(expected, parameters)
    for chunk_rows in (None, 4):
        system = system_of(case, chunk_rows=chunk_rows)
        close(system.log_density, expected)
        close(case.features(case.test) @ system.weights, case.dense_posterior()[0])
        found = gradients(system.log_density, parameters)
        for key, value in slopes.items():
            torch.testing.assert_close(found[key].expand_as(value), value, rtol=1e-7, atol=1e-9, check_dtype=False)


def test_weight_system_allows_changes_of_coefficients_noise_and_factors():
    case = Case("decomposable", "full", 0.0, "linear")
    statistics = compute_statistics(case.features, case.mean, case.noise, case.data)
    with torch.no_grad():
        for name, parameter in case.parameters().items():
            if "lengthscale" not in name:
                parameter.add_(0.2 * torch.rand_like(parameter))
    close(system_of(case, statistics).log_density, case.dense_log_density())


def test_id_5_weights_have_the_norm_of_the_function():
    """‖f‖² = uᵀ K̃ u = ‖θ‖² with u = (K̃ + N)⁻¹ y."""
    case = Case("curl-free", "shared", 0.3)
    with torch.no_grad():
        Phi, N, residual = case.dense()
        u = torch.linalg.solve(Phi @ Phi.mT + N, residual)
        weights = system_of(case).weights
        close(weights.square().sum(), u @ Phi @ Phi.mT @ u)
        close(weights, Phi.mT @ u)


@pytest.mark.parametrize(
    "name, kind", [("decomposable", KroneckerFactor), ("curl-free", DenseFactor), ("scalar", DenseFactor)]
)
def test_weight_system_uses_kronecker_factor_for_one_separable_part(name, kind):
    assert isinstance(system_of(Case(name, "full", 0.0)).factor, kind)


@pytest.mark.parametrize("name", ["scalar", "decomposable", "decomposable rank < p", "helmholtz", "own"])
def test_bt_76_path_of_noises_equals_dense_algebra(name):
    case = Case(name, "per_output", 0.0)
    multipliers = torch.tensor([1e-2, 0.3, 1.0, 50.0], dtype=torch.float64)
    with torch.no_grad():
        system = system_of(case)
        close(system.path(multipliers), torch.stack([case.dense_log_density(c) for c in multipliers]))
        Phi, N, residual = case.dense()
        for c in multipliers:
            close(system.path_weights(c), Phi.mT @ torch.linalg.solve(Phi @ Phi.mT + c * N, residual))


@pytest.mark.parametrize("name", ["decomposable", "helmholtz"])
@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_inverse_diagonal_and_alpha_equal_dense_algebra(name, noise, missing):
    case = Case(name, noise, missing)
    with torch.no_grad():
        system, data = system_of(case), case.data
        Phi, N, residual = case.dense()
        inverse = torch.linalg.inv(Phi @ Phi.mT + N)
        expected = torch.zeros_like(data.Y), torch.zeros_like(data.Y)
        expected[0][data.observed], expected[1][data.observed] = inverse.diagonal(), inverse @ residual
        root = whitening_roots(data, case.noise.matrix()).expand(len(data.Y), -1, -1)
        precision, features = root.mT @ root, case.features(data.X)
        rest = data.Y - case.mean(data.X)
        close(system.inverse_diagonal(features, precision), expected[0])
        close(system.alpha(features, precision, rest), expected[1])
        if noise != "full":
            diagonal = precision.diagonal(dim1=1, dim2=2)
            close(system.inverse_diagonal(features, diagonal), expected[0])
            close(system.alpha(features, diagonal, rest), expected[1])


@pytest.mark.parametrize("name", ["decomposable", "divergence-free"])
def test_draws_have_the_posterior_covariance_and_are_reproducible(name):
    case = Case(name, "shared", 0.0)
    with torch.no_grad():
        system = system_of(case)
        Phi, N, _ = case.dense()
        root = system.factor.half_solve(torch.eye(system.num_features, dtype=torch.float64))
        C = torch.eye(system.num_features) + Phi.mT @ torch.linalg.solve(N, Phi)
        close(root @ root.mT, torch.linalg.inv(C))
        draws = [system.draw(3, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)]
        assert draws[0].shape == (3, system.num_features)
        assert torch.equal(draws[0], draws[1]) and not torch.equal(draws[0], draws[2])
        scores = torch.randn(system.num_features, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        close(draws[0], system.weights + (root @ scores).mT)


@pytest.mark.parametrize("name", ["decomposable", "helmholtz"])
def test_variance_accepts_other_processes_of_the_same_weights(name):
    """Any operator on the weights will do, with any number of outputs."""
    case = Case(name, "per_output", 0.0)
    with torch.no_grad():
        system = system_of(case)
        rows = torch.randn(8, system.num_features, dtype=torch.float64)
        root = system.factor.half_solve(torch.eye(system.num_features, dtype=torch.float64))
        full = rows @ root @ root.mT @ rows.mT
        operator = to_linear_operator(rows)
        close(system.variance(operator, "full", 4), full)
        close(system.variance(operator, "diag", 4), full.diagonal().reshape(2, 4))
        close(system.variance(operator, "output", 4), torch.stack([full[:4, :4], full[4:, 4:]]))


@pytest.mark.parametrize("name", ["decomposable", "helmholtz", "delays"])
def test_second_derivatives_in_one_chunk_equal_dense_algebra(name):
    """Against autograd twice through the dense algebra, along one direction."""
    case = Case(name, "per_output", 0.0, n=12)
    parameters = case.parameters()

    def hessian_product(value):
        first = torch.autograd.grad(value, list(parameters.values()), create_graph=True, allow_unused=True)
        total = sum(g.cos().sum() for g in first if g is not None)
        return gradients(total, parameters)

    found, expected = hessian_product(system_of(case).log_density), hessian_product(case.dense_log_density())
    for key, value in expected.items():
        torch.testing.assert_close(found[key].expand_as(value), value, rtol=1e-6, atol=1e-7, check_dtype=False)


def test_second_derivatives_are_rejected_with_several_chunks():
    case = Case("curl-free", "shared", 0.0)
    value = system_of(case, chunk_rows=5).log_density
    with pytest.raises(OptionError, match="create_graph"):
        torch.autograd.grad(value, list(case.features.parameters()), create_graph=True)


def test_streamed_gradients_without_feature_parameters():
    case = Case("curl-free", "shared", 0.0)
    for parameter in case.features.parameters():
        parameter.requires_grad_(False)
    value = system_of(case, chunk_rows=5).log_density
    expected = gradients(case.dense_log_density(), case.parameters())
    for key, found in gradients(value, case.parameters()).items():
        close(found, expected[key])


def test_streamed_gradients_reject_unregistered_tensors():
    case = Case("own", "shared", 0.0)
    outside = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    del case.features._parameters["bend"]
    case.features.__dict__["bend"] = outside
    (whole,) = torch.autograd.grad(system_of(case).log_density, outside)
    assert whole.abs() > 0
    with pytest.raises(KernelTypeError, match="parameters"):
        system_of(case, chunk_rows=5)


def test_streamed_gradients_use_the_parameters_of_the_forward_pass():
    """`functional_call` puts the old parameters back before backward runs."""
    case = Case("curl-free", "shared", 0.0)
    names = [name for name, _ in case.features.named_parameters()]

    def evidence(chunk_rows, values):
        class Whole(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.features = case.features

            def forward(self):
                return system_of(case, chunk_rows=chunk_rows).log_density

        return torch.func.functional_call(Whole(), {f"features.{n}": v for n, v in zip(names, values, strict=True)}, ())

    found = []
    for chunk_rows in (None, 5):
        values = [(t.detach() + 0.4).requires_grad_() for t in case.features.parameters()]
        found.append(torch.autograd.grad(evidence(chunk_rows, values), values))
    for whole, streamed in zip(*found, strict=True):
        close(streamed, whole)
        assert whole.abs().max() > 1e-3


def test_weight_system_rejects_nan_noise():
    case = Case("curl-free", "shared", 0.0)
    statistics = compute_statistics(case.features, case.mean, case.noise, case.data)
    bad = torch.full((2, 2), torch.nan, dtype=torch.float64)
    with pytest.raises((FactorizationError, torch.linalg.LinAlgError)):
        make_weight_system(statistics, case.features(case.data.X[:1]), bad, case.mean.coefficients)


def test_weight_system_rejects_mismatched_inputs():
    case, other = Case("curl-free", "shared", 0.3), Case("helmholtz", "shared", 0.3)
    statistics = compute_statistics(case.features, case.mean, case.noise, case.data)
    template, noise, beta = case.features(case.data.X[:1]), case.noise.matrix(), case.mean.coefficients
    with pytest.raises(InputError, match="24 scalar features"):
        make_weight_system(statistics, other.features(case.data.X[:1]), noise, beta)
    with pytest.raises(InputError, match="coefficients"):
        make_weight_system(statistics, template, noise, beta[:0])
    with pytest.raises(InputError, match="correlated"):
        make_weight_system(statistics, template, noise + 0.01, beta)
    with pytest.raises(InputError, match="no data"):
        make_weight_system(Statistics.empty(), template, noise, beta)
    with pytest.raises(InputError, match="Y has"):
        compute_statistics(Case("scalar").features, case.mean, case.noise, case.data)


# --- operators: products from scalar features ------------------------------------------------------------------


def operators():
    torch.manual_seed(0)
    make = {"dtype": torch.float64}
    n, D, p = 5, 3, 2
    scalar_features = [torch.randn(n, 2 * D, **make) for _ in range(4)]
    return [
        FeatureOperator(scalar_features[0], torch.randn(p, 2, **make), num_outputs=p),
        FeatureOperator(scalar_features[1], torch.randn(D * p, 1, **make), num_outputs=p),
        ComplexFeatureOperator(scalar_features[2], *torch.randn(2, D * p, 1, **make), num_outputs=p),
        ReflectedFeatureOperator(
            scalar_features[3], torch.randn(D, p, **make), torch.rand(D, 1, **make), num_outputs=p
        ),
    ]


@pytest.mark.parametrize("left, right", list(itertools.product(range(4), repeat=2)))
def test_gram_from_scalar_features_equals_dense_for_every_pair_of_operators(left, right):
    a, b = operators()[left], operators()[right]
    weight = torch.tensor([[2.0, 0.3], [0.5, 1.0]], dtype=torch.float64)  # not symmetric: the order must be right
    expected = to_dense(a).mT @ torch.kron(torch.eye(5, dtype=torch.float64), weight) @ to_dense(b)
    close(a.gram_from_scalar_features(b, a.features.mT @ b.features, weight), expected)
    close(a.cross_gram(b, weight), expected)


def test_stacked_features_from_scalar_features_equal_dense():
    Phi = stack_features(*operators())
    scalar_features = torch.cat([part.features for part in Phi.parts], 1)
    weight, dense = torch.tensor([[2.0, 0.3], [0.3, 1.0]], dtype=torch.float64), to_dense(Phi)
    expected = dense.mT @ torch.kron(torch.eye(5, dtype=torch.float64), weight) @ dense
    close(Phi.gram_from_scalar_features(Phi, scalar_features.mT @ scalar_features, weight), expected)
    values = torch.randn(5, 2, 3, dtype=torch.float64)
    close(
        Phi.adjoint_from_scalar_features(torch.einsum("nm,npk->mpk", scalar_features, values)),
        dense.mT @ values.flatten(0, 1),
    )
    for a in range(2):
        close(to_dense(Phi.output(a)), dense[a::2])


def test_choose_layout_returns_the_smallest_layout():
    layouts = {
        (name, noise, missing): compute_statistics(
            *(getattr(case, part) for part in ("features", "mean", "noise", "data"))
        ).layout
        for name, noise, missing in GRID
        for case in (Case(name, noise, missing),)
    }
    for (name, noise, missing), layout in layouts.items():
        missing = missing and name != "scalar"  # a row without its only output is no row
        if name in WHITENED or (noise == "full" and missing):
            assert layout == "whitened"
        else:
            assert layout == ("shared" if noise != "known" and not missing else "by_output")
