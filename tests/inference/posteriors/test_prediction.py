"""Tests of `ovkgp.inference.posteriors.prediction`."""

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel
from scipy.optimize import brentq
from scipy.stats import multivariate_normal, norm

from ovkgp.exceptions import InputError, OptionError
from ovkgp.features import ORFF
from ovkgp.inference import OperatorValuedGP
from ovkgp.inference.likelihoods import LikelihoodPrediction, make_likelihood
from ovkgp.inference.posteriors.prediction import FORMS, MixturePrediction, Prediction, bisect, check_form
from ovkgp.kernels import CurlFreeKernel, DecomposableKernel


def close(actual, expected, rtol=1e-12):
    torch.testing.assert_close(actual, torch.as_tensor(expected), rtol=rtol, atol=rtol)


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def predictions(m=4, p=3):
    """One mean and one whole covariance, in its three forms."""
    mean, root = normal(m, p), normal(m * p, m * p, seed=1)
    full = root @ root.mT + torch.eye(m * p)
    blocks = torch.stack([full[i * p : (i + 1) * p, i * p : (i + 1) * p] for i in range(m)])
    given = {"diag": full.diagonal().reshape(m, p), "output": blocks, "full": full}
    return full, {form: Prediction(mean, covariance, form) for form, covariance in given.items()}


SIZES = [(4, 3), (1, 3), (4, 1), (1, 1), (3, 3)]


@pytest.mark.parametrize("m, p", SIZES)
def test_prediction_variance_is_equal_in_every_form(m, p):
    full, made = predictions(m, p)
    for prediction in made.values():
        assert prediction.variance.shape == prediction.std.shape == (m, p)
        close(prediction.variance, full.diagonal().reshape(m, p))
        close(prediction.std.square(), prediction.variance)
    assert made["output"].cov.shape == (m, p, p)
    assert made["full"].cov.shape == (m * p, m * p)


@pytest.mark.parametrize("form", ["diag", "output", "full"])
def test_prediction_quantiles_equal_scipy(form):
    prediction = predictions()[1][form]
    mean, std = prediction.mean.numpy(), prediction.std.numpy()
    levels = [1e-6, 0.05, 0.5, 0.9]
    for q in levels:
        assert prediction.quantile(q).shape == (4, 3)
        close(prediction.quantile(q), norm.ppf(q, mean, std))
    several = prediction.quantile(levels)
    assert several.shape == (4, 4, 3)
    close(several, np.stack([norm.ppf(q, mean, std) for q in levels]))
    close(prediction.quantile(np.array([0.3])), norm.ppf(0.3, mean, std)[None])
    close(prediction.quantile(torch.tensor(0.3).double()), norm.ppf(np.float32(0.3).item(), mean, std))
    assert torch.equal(prediction.quantile(0.5), prediction.mean)


@pytest.mark.parametrize("level", [0.01, 0.5, 0.95])
def test_prediction_intervals_equal_scipy(level):
    prediction = predictions()[1]["diag"]
    expected = norm.interval(level, prediction.mean.numpy(), prediction.std.numpy())
    for end, wanted in zip(prediction.interval(level), expected, strict=True):
        assert end.shape == (4, 3)
        close(end, wanted)


def test_prediction_interval_has_its_probability():
    prediction = Prediction(torch.zeros(1, 1).double(), torch.ones(1, 1).double(), "diag")
    lower, upper = prediction.interval()
    draws = normal(100_000)
    assert abs(((draws > lower) & (draws < upper)).double().mean().item() - 0.9) < 0.005  # five standard errors


@pytest.mark.parametrize("form", ["diag", "output", "full"])
def test_prediction_cdf_equals_scipy(form):
    prediction = predictions()[1][form]
    mean, std = prediction.mean.numpy(), prediction.std.numpy()
    for y in (0.3, normal(3, seed=5), normal(4, 1, seed=6), normal(4, 3, seed=7), normal(2, 4, 3, seed=8)):
        y = torch.as_tensor(y, dtype=torch.float64)
        close(prediction.cdf(y), norm.cdf(y.numpy(), mean, std))
    close(prediction.cdf(prediction.quantile(0.2)), torch.full((4, 3), 0.2, dtype=torch.float64))
    y = normal(4, 3)
    y[1, 2] = torch.nan
    assert prediction.cdf(y).isnan().nonzero().tolist() == [[1, 2]]


def test_prediction_cdf_is_accurate_in_lower_tail():
    prediction = Prediction(torch.zeros(1, 1).double(), torch.ones(1, 1).double(), "diag")
    for y in (-3.0, -7.0, -12.0, -30.0):
        assert prediction.cdf(y).item() == pytest.approx(norm.cdf(y), rel=1e-12)


def test_prediction_cdf_without_variance_is_a_step():
    prediction = Prediction(torch.ones(1, 4), torch.zeros(1, 4), "diag")
    given = torch.tensor([[0.9, 1.0, 1.1, torch.nan]])
    assert prediction.cdf(given)[0, :3].tolist() == [0, 1, 1] and bool(prediction.cdf(given)[0, 3].isnan())


@pytest.mark.parametrize("shape", [(4,), (2, 3), (4, 2), (3, 4)])
def test_prediction_cdf_rejects_wrong_shapes(shape):
    with pytest.raises(InputError, match="y has shape"):
        predictions()[1]["diag"].cdf(torch.zeros(shape))


@pytest.mark.parametrize("m, p", SIZES)
@pytest.mark.parametrize("form", ["diag", "output", "full"])
def test_prediction_distribution_has_same_moments(form, m, p):
    full, made = predictions(m, p)
    distribution = made[form].distribution
    keep = {
        "diag": torch.eye(m * p),
        "output": torch.block_diag(*[torch.ones(p, p)] * m),
        "full": torch.ones(m * p, m * p),
    }
    expected = full * keep[form].double()
    assert distribution.event_shape == (m, p)
    close(distribution.mean, made[form].mean)
    close(distribution.variance, made[form].variance)
    close(distribution.covariance_matrix, expected)
    y = normal(m, p, seed=5)
    wanted = multivariate_normal.logpdf(y.flatten().numpy(), made[form].mean.flatten().numpy(), expected.numpy())
    close(distribution.log_prob(y), torch.tensor(wanted), 1e-10)


def test_prediction_quantile_without_variance_is_mean():
    prediction = Prediction(torch.ones(2, 1), torch.zeros(2, 1), "diag")
    assert prediction.quantile(0.1).tolist() == [[1], [1]]


def test_prediction_quantile_keeps_single_precision():
    prediction = Prediction(torch.zeros(2, 1), torch.ones(2, 1), "diag")
    assert prediction.quantile(0.975).dtype == torch.float32
    torch.testing.assert_close(prediction.quantile(0.975), torch.full((2, 1), 1.959964), rtol=1e-5, atol=0)


@pytest.mark.parametrize("attribute", ["variance", "std", "cov", "distribution"])
def test_prediction_rejects_access_to_missing_covariance(attribute):
    prediction = Prediction(normal(4, 3))
    with pytest.raises(OptionError, match=r'cov="none".*cov='):
        getattr(prediction, attribute)


def test_prediction_rejects_blocks_of_diagonal():
    with pytest.raises(OptionError, match=r'cov="diag".*cov="output" or cov="full"'):
        _ = predictions()[1]["diag"].cov


def test_prediction_rejects_quantiles_without_variances():
    for call in (lambda: Prediction(normal(4, 3)).quantile(0.5), lambda: Prediction(normal(4, 3)).interval()):
        with pytest.raises(OptionError, match='cov="none"'):
            call()


@pytest.mark.parametrize("q", [0, 1, -0.1, 1.5, float("nan"), [0.5, 1.0]])
def test_prediction_rejects_levels_outside_unit_interval(q):
    prediction = predictions()[1]["diag"]
    with pytest.raises(OptionError, match="strictly between 0 and 1"):
        prediction.quantile(q)
    if not isinstance(q, list):
        with pytest.raises(OptionError, match="strictly between 0 and 1"):
            prediction.interval(q)


@pytest.mark.parametrize("form", ["variance", "FULL", None, ""])
def test_prediction_rejects_unknown_forms(form):
    with pytest.raises(OptionError, match=r"cov must be one of .*'full', got"):
        check_form(form)


def test_prediction_rejects_covariance_of_other_form():
    made = predictions()[1]
    for form in FORMS:
        for other, prediction in made.items():
            if form != other:
                with pytest.raises(InputError, match=r"`form`"):
                    Prediction(prediction.mean, prediction._covariance, form)
    with pytest.raises(InputError, match=r"covariance has shape None.*form='diag'"):
        Prediction(made["diag"].mean, None, "diag")
    with pytest.raises(InputError, match=r"mean has shape \(4,\)"):
        Prediction(torch.zeros(4))


def test_prediction_repr_shows_shape_and_form():
    assert repr(predictions()[1]["output"]) == "Prediction(mean=(4, 3), cov='output')"


M, P, S = 3, 2, 5


def in_form(full, form):
    blocks = torch.stack([full[i * P : (i + 1) * P, i * P : (i + 1) * P] for i in range(M)])
    return {"diag": full.diagonal().reshape(M, P), "output": blocks, "full": full}[form]


def components(form, scale=1.0):
    """S Gaussian predictions, and their means (S, m, p) and whole covariances (S, m·p, m·p)."""
    roots = normal(S, M * P, M * P, seed=1)
    means, covariances = scale * normal(S, M, P), roots @ roots.mT
    return [Prediction(m, in_form(c, form), form) for m, c in zip(means, covariances, strict=True)], means, covariances


@pytest.mark.parametrize("form", ["diag", "output", "full"])
def test_mixture_moments_equal_total_covariance(form):
    """Cov y = E[y yᵀ] − E[y] E[y]ᵀ, with the second moments of the components."""
    made, means, covariances = components(form, scale=10.0)
    flat = means.flatten(1)
    second = (covariances + flat.unsqueeze(-1) * flat.unsqueeze(-2)).mean(0)
    expected = second - flat.mean(0).outer(flat.mean(0))
    mixture = MixturePrediction(made)
    close(mixture.mean, means.mean(0))
    close(mixture.variance, expected.diagonal().reshape(M, P), 1e-11)
    close(mixture.std, expected.diagonal().reshape(M, P).sqrt(), 1e-11)
    if form != "diag":
        close(mixture.cov, in_form(expected, form), 1e-11)


def test_mixture_variance_is_accurate_for_distant_means():
    offset = 1e8
    means = torch.tensor([offset - 1, offset + 1], dtype=torch.float64).reshape(2, 1, 1)
    made = [Prediction(mean, torch.ones(1, 1).double(), "diag") for mean in means]
    assert MixturePrediction(made).variance.item() == pytest.approx(2.0, rel=1e-12)


@pytest.mark.parametrize("form", ["diag", "output", "full"])
@pytest.mark.parametrize("q", [1e-12, 0.025, 0.5, 0.99, 1 - 1e-9])
def test_mixture_quantiles_invert_cdf(form, q):
    made, means, covariances = components(form, scale=3.0)
    found = MixturePrediction(made).quantile(q)
    means, std = means.numpy(), covariances.diagonal(dim1=-2, dim2=-1).sqrt().reshape(S, M, P).numpy()
    for i, a in np.ndindex(M, P):
        distribution = norm(means[:, i, a], std[:, i, a])
        ends = distribution.ppf(q)
        expected = brentq(
            lambda y, distribution=distribution: distribution.cdf(y).mean() - q,
            ends.min(),
            ends.max(),
            xtol=1e-13,
            rtol=1e-15,
        )
        assert found[i, a].item() == pytest.approx(
            expected, rel=1e-7 if q > 0.999 else 1e-10
        )  # 1 − q has few digits there


def test_mixture_cdf_is_average():
    made, means, covariances = components("diag")
    mixture, y = MixturePrediction(made), normal(4, M, P, seed=9)
    std = covariances.diagonal(dim1=-2, dim2=-1).sqrt().reshape(S, M, P)
    close(mixture.cdf(y), norm.cdf(y.numpy()[:, None], means.numpy(), std.numpy()).mean(1))
    close(mixture.cdf(0.3), norm.cdf(0.3, means.numpy(), std.numpy()).mean(0))
    levels = [0.05, 0.5, 0.9]
    assert mixture.quantile(levels).shape == (3, M, P)
    expected = torch.tensor(levels, dtype=torch.float64)[:, None, None].expand(3, M, P)
    close(mixture.cdf(mixture.quantile(levels)), expected)


def test_mixture_interval_has_its_probability_unlike_gaussian():
    """Two narrow distant components: the 50 % interval of a Gaussian with the same moments contains almost nothing."""
    made = [
        Prediction(torch.full((1, 1), level).double(), torch.ones(1, 1).double(), "diag") for level in (-50.0, 50.0)
    ]
    mixture = MixturePrediction(made)
    lower, upper = mixture.interval(0.5)
    assert (mixture.cdf(upper) - mixture.cdf(lower)).item() == pytest.approx(0.5, abs=1e-12)
    assert lower.item() == pytest.approx(-50, abs=1e-9) and upper.item() == pytest.approx(50, abs=1e-9)
    lower, upper = Prediction(mixture.mean, mixture.variance, "diag").interval(0.5)
    assert (mixture.cdf(upper) - mixture.cdf(lower)).item() < 1e-12


@pytest.mark.parametrize("form", ["diag", "output", "full"])
def test_mixture_of_one_component_equals_it(form):
    made, *_ = components(form)
    mixture = MixturePrediction(made[:1])
    close(mixture.mean, made[0].mean)
    close(mixture.variance, made[0].variance)
    close(mixture.quantile(0.3), made[0].quantile(0.3))
    close(mixture.cdf(0.1), made[0].cdf(0.1))


def test_mixture_of_points_has_step_cdf():
    """Components without variance: the quantile is the smallest y at which the mixture reaches the level."""
    made = [Prediction(torch.full((1, 1), float(s)).double(), torch.zeros(1, 1).double(), "diag") for s in range(4)]
    mixture = MixturePrediction(made)
    assert [mixture.quantile(q).item() for q in (0.2, 0.25, 0.26, 0.99)] == pytest.approx([0, 0, 1, 3], abs=1e-12)


def likelihood_predictions(likelihood, form="diag"):
    """Two predictions of counts (the first output) and of a heavy-tailed number (the second), at one point."""
    latent = torch.tensor([[[0.3, 4.0]], [[3.0, 7.0]]]).double(), torch.tensor([[[0.2, 0.5]], [[0.01, 2.0]]]).double()
    return [LikelihoodPrediction(Prediction(m, v, form), likelihood) for m, v in zip(*latent, strict=True)]


def test_mixture_of_likelihood_predictions():
    """One likelihood per output: quantiles of counts are integers, all of them invert the averaged cdf."""
    made = likelihood_predictions(make_likelihood(["poisson", "student_t"], 2))
    mixture = MixturePrediction(made)
    means, variances = (torch.stack([getattr(m, name) for m in made]) for name in ("mean", "variance"))
    close(mixture.mean, means.mean(0))
    close(mixture.variance, variances.mean(0) + means.var(0, correction=0), 1e-11)
    counts = torch.arange(200.0).double()
    reached = sum(m.cdf(counts[:, None, None].expand(200, 1, 2))[..., 0, 0] for m in made) / 2
    for q in (0.01, 0.4, 0.5, 0.77, 0.999):
        found = mixture.quantile(q)
        assert found[0, 0].item() == counts[(reached >= q).nonzero()[0, 0]]
        assert (sum(m.cdf(found) for m in made)[0, 1] / 2).item() == pytest.approx(q, abs=1e-9)


def test_mixture_quantiles_of_real_outputs_are_not_rounded():
    """Components whose quantiles happen to be integers."""
    likelihood = make_likelihood(["gaussian", "gaussian"], 2)
    made = [
        LikelihoodPrediction(Prediction(torch.full((1, 2), m).double(), torch.ones(1, 2).double(), "diag"), likelihood)
        for m in (0.0, 2.0, 7.0)
    ]
    assert all(m.quantile(0.5).frac().abs().max() < 1e-9 for m in made)
    median = MixturePrediction(made).quantile(0.5)
    assert (sum(m.cdf(median) for m in made) / 3 - 0.5).abs().max() < 1e-12 and (median.frac() > 1e-3).all()


def test_bisect_converges_to_last_bit():
    root = bisect(lambda y: y**3, 0.5, torch.zeros(1).double(), torch.full((1,), 1e10).double())
    assert root.item() == pytest.approx(0.5 ** (1 / 3), rel=4e-16)


def test_mixture_of_means_rejects_access_to_variance():
    mixture = MixturePrediction(Prediction(mean) for mean in normal(S, M, P))
    close(mixture.mean, normal(S, M, P).mean(0))
    for call in (lambda: mixture.std, lambda: mixture.quantile(0.5), lambda: mixture.cdf(0.0)):
        with pytest.raises(OptionError, match='cov="none"'):
            call()


def test_mixture_rejects_gaussian_distribution():
    mixture = MixturePrediction(components("full")[0])
    with pytest.raises(OptionError, match=r"not Gaussian"):
        _ = mixture.distribution
    assert "5 components" in repr(mixture)


def test_mixture_rejects_different_components():
    with pytest.raises(InputError, match="at least one"):
        MixturePrediction([])
    with pytest.raises(InputError, match="same shape and form"):
        MixturePrediction([components("diag")[0][0], components("full")[0][0]])
    with pytest.raises(InputError, match="same shape and form"):
        MixturePrediction([Prediction(normal(2, 1)), Prediction(normal(3, 1))])


@pytest.mark.parametrize("q", [0, 1, float("nan"), [0.5, 2.0]])
def test_mixture_rejects_levels_outside_unit_interval(q):
    with pytest.raises(OptionError, match="strictly between 0 and 1"):
        MixturePrediction(components("diag")[0]).quantile(q)


STEP = 1e-5


def icm():
    return DecomposableKernel(RBFKernel(ard_num_dims=2), num_outputs=2, rank=2)


def posterior(strategy: str, variance: str):
    kernel = CurlFreeKernel(RBFKernel(ard_num_dims=2)) if strategy == "dense" else icm()
    features = ORFF(kernel, 20, random_state=0) if strategy == "features" else None
    gp = OperatorValuedGP(kernel, noise=0.1, features=features, strategy=strategy)
    generator = torch.Generator().manual_seed(0)
    X, Y = (torch.randn(30, 2, generator=generator, dtype=torch.float64) for _ in range(2))
    return gp.condition(X, Y, variance=variance)


@pytest.mark.parametrize("form", ["none", "diag", "output", "full"])
@pytest.mark.parametrize(
    ("strategy", "variance"),
    [
        ("kronecker", "features"),
        ("dense", "features"),
        ("iterative", "features"),
        ("features", "features"),
        ("features", "guarded"),
    ],
)
def test_mixture_is_differentiable_in_inputs(strategy, variance, form):
    given = posterior(strategy, variance)

    def value(x):
        prediction = given.predict(x, form)
        total = (prediction.mean * torch.arange(1.0, 7.0).reshape(3, 2)).sum()
        parts = [] if form == "none" else [prediction.variance, *([prediction.cov] if form != "diag" else [])]
        return total + sum((part * torch.linspace(-1, 2, part.numel()).reshape(part.shape)).sum() for part in parts)

    x = torch.randn(3, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64).requires_grad_()
    (gradient,) = torch.autograd.grad(value(x), x)
    expected = torch.zeros_like(x)
    with torch.no_grad():
        for step in torch.eye(6, dtype=torch.float64).reshape(6, 3, 2) * STEP:
            expected += (value(x + step) - value(x - step)) / (2 * STEP**2) * step
    torch.testing.assert_close(gradient, expected, rtol=1e-6, atol=1e-7)  # central differences
