"""Predictions of every form: the same variances, quantiles of the normal law, GPyTorch's distribution, refusals."""

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal, norm

from ovkgp.exceptions import InputError, OptionError
from ovkgp.inference.posteriors.prediction import FORMS, Prediction, require_form


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
def test_variances_are_the_same_in_every_form(m, p):
    full, made = predictions(m, p)
    for prediction in made.values():
        assert prediction.variance.shape == prediction.std.shape == (m, p)
        close(prediction.variance, full.diagonal().reshape(m, p))
        close(prediction.std.square(), prediction.variance)
    assert made["output"].cov.shape == (m, p, p)
    assert made["full"].cov.shape == (m * p, m * p)


@pytest.mark.parametrize("form", ["diag", "output", "full"])
def test_quantiles_are_those_of_scipy(form):
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
def test_intervals_are_those_of_scipy(level):
    prediction = predictions()[1]["diag"]
    expected = norm.interval(level, prediction.mean.numpy(), prediction.std.numpy())
    for end, wanted in zip(prediction.interval(level), expected, strict=True):
        assert end.shape == (4, 3)
        close(end, wanted)


def test_an_interval_covers_what_it_says():
    prediction = Prediction(torch.zeros(1, 1).double(), torch.ones(1, 1).double(), "diag")
    lower, upper = prediction.interval()
    draws = normal(100_000)
    assert abs(((draws > lower) & (draws < upper)).double().mean().item() - 0.9) < 0.005  # five standard errors


@pytest.mark.parametrize("form", ["diag", "output", "full"])
def test_the_distribution_function_is_that_of_scipy(form):
    prediction = predictions()[1][form]
    mean, std = prediction.mean.numpy(), prediction.std.numpy()
    for y in (0.3, normal(3, seed=5), normal(4, 1, seed=6), normal(4, 3, seed=7), normal(2, 4, 3, seed=8)):
        y = torch.as_tensor(y, dtype=torch.float64)
        close(prediction.cdf(y), norm.cdf(y.numpy(), mean, std))
    close(prediction.cdf(prediction.quantile(0.2)), torch.full((4, 3), 0.2, dtype=torch.float64))
    y = normal(4, 3)
    y[1, 2] = torch.nan
    assert prediction.cdf(y).isnan().nonzero().tolist() == [[1, 2]]


def test_the_distribution_function_keeps_its_digits_in_the_lower_tail():
    prediction = Prediction(torch.zeros(1, 1).double(), torch.ones(1, 1).double(), "diag")
    for y in (-3.0, -7.0, -12.0, -30.0):
        assert prediction.cdf(y).item() == pytest.approx(norm.cdf(y), rel=1e-12)


def test_the_distribution_function_of_a_point_is_a_step():
    prediction = Prediction(torch.ones(1, 4), torch.zeros(1, 4), "diag")
    given = torch.tensor([[0.9, 1.0, 1.1, torch.nan]])
    assert prediction.cdf(given)[0, :3].tolist() == [0, 1, 1] and bool(prediction.cdf(given)[0, 3].isnan())


@pytest.mark.parametrize("shape", [(4,), (2, 3), (4, 2), (3, 4)])
def test_thresholds_of_another_shape_are_refused(shape):
    with pytest.raises(InputError, match="y must be a number or broadcast to"):
        predictions()[1]["diag"].cdf(torch.zeros(shape))


@pytest.mark.parametrize("m, p", SIZES)
@pytest.mark.parametrize("form", ["diag", "output", "full"])
def test_distribution_agrees(form, m, p):
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


def test_a_variance_of_zero_is_a_point():
    prediction = Prediction(torch.ones(2, 1), torch.zeros(2, 1), "diag")
    assert prediction.quantile(0.1).tolist() == [[1], [1]]


def test_single_precision():
    prediction = Prediction(torch.zeros(2, 1), torch.ones(2, 1), "diag")
    assert prediction.quantile(0.975).dtype == torch.float32
    torch.testing.assert_close(prediction.quantile(0.975), torch.full((2, 1), 1.959964), rtol=1e-5, atol=0)


@pytest.mark.parametrize("ask", ["variance", "std", "cov", "distribution"])
def test_what_was_not_asked_for_is_refused_with_advice(ask):
    prediction = Prediction(normal(4, 3))
    with pytest.raises(OptionError, match=r'made with cov="none": ask for it with predict\(X, cov='):
        getattr(prediction, ask)


def test_blocks_of_a_diagonal_are_refused_with_advice():
    with pytest.raises(OptionError, match=r'made with cov="diag".*cov="output" or cov="full"'):
        _ = predictions()[1]["diag"].cov


def test_quantiles_and_intervals_without_variances_are_refused():
    for ask in (lambda: Prediction(normal(4, 3)).quantile(0.5), lambda: Prediction(normal(4, 3)).interval()):
        with pytest.raises(OptionError, match='made with cov="none"'):
            ask()


@pytest.mark.parametrize("q", [0, 1, -0.1, 1.5, float("nan"), [0.5, 1.0]])
def test_levels_outside_the_unit_interval_are_refused(q):
    prediction = predictions()[1]["diag"]
    with pytest.raises(OptionError, match="strictly between 0 and 1"):
        prediction.quantile(q)
    if not isinstance(q, list):
        with pytest.raises(OptionError, match="strictly between 0 and 1"):
            prediction.interval(q)


@pytest.mark.parametrize("form", ["variance", "FULL", None, ""])
def test_unknown_forms_are_refused(form):
    with pytest.raises(OptionError, match=r"cov must be one of 'none', 'diag', 'output', 'full', got"):
        require_form(form)


def test_a_covariance_that_its_form_contradicts_is_refused():
    made = predictions()[1]
    for form in FORMS:
        for other, prediction in made.items():
            if form != other:
                with pytest.raises(InputError, match=r"`form` says what it is"):
                    Prediction(prediction.mean, prediction._covariance, form)
    with pytest.raises(InputError, match=r"form='diag' and a mean \(4, 3\) .* \(4, 3\), got None"):
        Prediction(made["diag"].mean, None, "diag")
    with pytest.raises(InputError, match=r"has shape \(m, p\), got \(4,\)"):
        Prediction(torch.zeros(4))


def test_repr():
    assert repr(predictions()[1]["output"]) == "Prediction(mean=(4, 3), cov='output')"
