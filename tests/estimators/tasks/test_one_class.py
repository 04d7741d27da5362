"""Tests of `ovkgp.estimators.tasks.one_class`."""

import pickle
import warnings
from copy import deepcopy
from functools import cache

import numpy as np
import pandas as pd
import pytest
import torch
from gpytorch.kernels import LinearKernel, RBFKernel
from scipy.stats import kstest, multivariate_normal, spearmanr
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.svm import OneClassSVM
from sklearn.utils.estimator_checks import parametrize_with_checks

import ovkgp
from ovkgp.estimators.tasks.one_class import REPLICATES, InfiniteOneClassSVM
from ovkgp.exceptions import FitWarning, InputError, ModelFileError, OptionError
from ovkgp.kernels import SkewedChi2Kernel
from ovkgp.losses import TaskMeasure, gauss_legendre, grid

LEVELS = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9)


@parametrize_with_checks([InfiniteOneClassSVM(num_tasks=8)])
def test_scikit_learn_checks_pass(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks(
    [
        InfiniteOneClassSVM(num_tasks=6, nested=False, calibrate=False, lam=0.0),
        InfiniteOneClassSVM(num_tasks=6, num_frequencies=20, measure="sobol", random_state=0),
    ]
)
def test_scikit_learn_checks_pass_with_other_options(estimator, check):
    check(estimator)


CENTERS, WIDTHS = np.array([[-1.5, 0.0], [1.5, 0.5]]), np.array([0.6, 0.9])


def mixture(n, seed):
    """½ N((−1.5, 0), .6² I) + ½ N((1.5, .5), .9² I), of LT-141."""
    rng = np.random.default_rng(seed)
    which = rng.integers(2, size=n)
    return CENTERS[which] + WIDTHS[which, None] * rng.standard_normal((n, 2))


def density(X):
    parts = [multivariate_normal(c, w**2).pdf(X) for c, w in zip(CENTERS, WIDTHS, strict=True)]
    return np.mean(parts, 0)


@cache
def fitted(**options):
    return InfiniteOneClassSVM(**options).fit(mixture(200, seed=0))


def fractions_inside(model, X):
    return np.array([(model.predict(X, nu) == 1).mean() for nu in LEVELS])


# --- masses -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lengthscale", ["local", "median", 0.3])
@pytest.mark.parametrize("lam", [0.0, 1e-4])
def test_training_fraction_inside_is_one_minus_nu_without_calibration(lengthscale, lam):
    """LT-119: for every ν, from one fit, to .03; without calibration it is the fraction of the training rows."""
    model = fitted(calibrate=False, lengthscale=lengthscale, lam=lam)
    for nu in np.linspace(0.02, 0.98, 25):
        assert (model.predict(mixture(200, seed=0), nu) == 1).mean() == pytest.approx(1 - nu, abs=0.03)


@pytest.mark.parametrize(
    ("nested", "lengthscale"),
    [pytest.param(True, "local", marks=pytest.mark.slow), (True, "median"), (False, "median")],
)
@pytest.mark.slow
def test_fraction_of_new_points_inside_is_one_minus_nu(nested, lengthscale):
    """Calibrated, and over six data sets to .03: each alone has the error of a quantile of 200 values."""
    options = {"nested": nested, "lengthscale": lengthscale}
    models = [InfiniteOneClassSVM(**options).fit(mixture(200, seed)) for seed in range(6)]
    found = np.mean([fractions_inside(model, mixture(4000, seed=99)) for model in models], 0)
    np.testing.assert_allclose(found, 1 - np.array(LEVELS), atol=0.03)


def test_both_fractions_are_correct_for_a_smooth_kernel():
    fits = [(InfiniteOneClassSVM(lengthscale="median").fit(mixture(300, seed)), seed) for seed in range(4)]
    training = np.mean([fractions_inside(model, mixture(300, seed)) for model, seed in fits], 0)
    new = np.mean([fractions_inside(model, mixture(4000, seed=99)) for model, _ in fits], 0)
    np.testing.assert_allclose(training, 1 - np.array(LEVELS), atol=0.03)
    np.testing.assert_allclose(new, 1 - np.array(LEVELS), atol=0.03)


def test_new_points_are_outside_too_often_without_calibration():
    X_new = mixture(4000, seed=99)
    assert fractions_inside(fitted(calibrate=False), X_new)[0] < 0.9 < fractions_inside(fitted(), X_new)[0]


def test_levels_equal_separate_support_vector_machines_without_penalty():
    """LT B-26 through the estimator, at the levels learned."""
    X = mixture(80, seed=1)
    model = InfiniteOneClassSVM(
        kernel="rbf", lengthscale=0.7, lam=0.0, calibrate=False, nested=False, num_tasks=5, scale_inputs=False
    ).fit(X)
    new = mixture(20, seed=2)
    for nu in model.levels_:
        svm = OneClassSVM(gamma=1 / (2 * 0.7**2), nu=nu, tol=1e-10).fit(X)
        scale = len(X) * nu
        np.testing.assert_allclose(model.decision_function(new, nu), svm.decision_function(new) / scale, atol=1e-5)
        np.testing.assert_allclose(model.score_samples(new, nu), svm.score_samples(new) / scale, atol=1e-5)


def test_fit_is_invariant_to_copies_of_the_rows():
    X = mixture(40, seed=0)
    options = {"calibrate": False, "num_tasks": 8}
    one, three = (InfiniteOneClassSVM(**options).fit(np.repeat(X, k, 0)) for k in (1, 3))
    new = mixture(30, seed=1)
    for nu in LEVELS:
        np.testing.assert_allclose(one.score_samples(new, nu), three.score_samples(new, nu), atol=0.02)
    np.testing.assert_allclose(one.thresholds_, three.thresholds_, rtol=1e-6)


def test_bt_e_34_nu_is_the_fraction_of_outliers():
    """BT-E-34: ν is the fraction *outside*, not inside."""
    outside = [(fitted(calibrate=False).predict(mixture(200, seed=0), nu) == -1).mean() for nu in (0.1, 0.9)]
    assert outside == pytest.approx([0.1, 0.9], abs=0.03)


def test_bt_e_33_threshold_is_a_function_of_the_level():
    """BT-E-33: t(ν) = φ_T(ν)ᵀ τ, one number per level, learned or not; d = h − t."""
    model = fitted(nested=False)
    new = mixture(5, seed=1)
    for nu in (model.levels_[3], 0.123, 0.777):
        h = model.score_samples(new, nu)
        t = h - model.decision_function(new, nu)
        np.testing.assert_allclose(t, t[0], atol=1e-12)
        offset = model.function_.offset
        assert t[0] == pytest.approx((offset.factor(torch.tensor([[nu]]).double()) @ offset.coefficients).item())


def test_bt_e_35_both_kernels_of_the_levels_are_supported(tmp_path):
    """BT-E-35: Gaussian, and the skewed χ² of the author's code."""
    X, X_new = mixture(150, seed=0), mixture(2000, seed=1)
    for kernel in ("rbf", SkewedChi2Kernel(c=0.5)):
        model = InfiniteOneClassSVM(task_kernel=kernel, threshold_kernel=kernel, num_tasks=10).fit(X)
        np.testing.assert_allclose(fractions_inside(model, X_new), 1 - np.array(LEVELS), atol=0.1)
        model.save(tmp_path / "model.ovkgp")
        np.testing.assert_array_equal(ovkgp.load(tmp_path / "model.ovkgp").level_score(X_new), model.level_score(X_new))


# --- scores, nesting --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_level_score_is_a_p_value():
    """LT-107: a fraction ν of new points has s < ν."""
    scores = np.concatenate(
        [InfiniteOneClassSVM().fit(mixture(200, seed)).level_score(mixture(500, 100 + seed)) for seed in range(6)]
    )
    assert scores.min() >= 0 and scores.max() <= 1
    assert kstest(scores, "uniform").statistic < 0.05
    assert fitted().level_score([[50.0, 50.0]])[0] == 0


def test_level_score_agrees_with_predict():
    new, model = mixture(500, seed=5), fitted()
    score = model.level_score(new)
    for nu in LEVELS:
        is_clear = np.abs(score - nu) > 0.01
        np.testing.assert_array_equal((score >= nu)[is_clear], (model.predict(new, nu) == 1)[is_clear])


def test_level_score_orders_points_as_the_density_does():
    new = mixture(2000, seed=5)
    model = InfiniteOneClassSVM().fit(mixture(400, seed=0))
    assert spearmanr(model.level_score(new), density(new)).statistic > 0.85


def test_nesting_rate_counts_nested_curves():
    new = mixture(300, seed=5)
    inside = np.stack([fitted().predict(new, nu) == 1 for nu in np.linspace(0.01, 1, 40)], 1)
    assert not (inside[:, 1:] & ~inside[:, :-1]).any()
    free = fitted(nested=False)
    inside = np.stack([free.predict(new, nu) == 1 for nu in np.linspace(0.01, 1, 101)], 1)
    is_not_nested = (inside[:, 1:] & ~inside[:, :-1]).any(1)
    assert free.nesting_rate(new) == pytest.approx(1 - is_not_nested.mean()) and 0.5 < free.nesting_rate(new) < 1
    assert fitted().nesting_rate(new) == free.nesting_rate(new)
    assert free.nesting_rate_ == pytest.approx(free.nesting_rate(mixture(200, seed=0)))
    copies = np.repeat(mixture(60, seed=0), np.arange(60) % 3 + 1, 0)
    model = InfiniteOneClassSVM(num_tasks=8).fit(copies)
    assert model.nesting_rate_ == pytest.approx(model.nesting_rate(copies))
    assert fitted(lengthscale="median").nesting_rate_ > free.nesting_rate_


def test_offset_follows_scikit_learn():
    new, model = mixture(50, seed=5), fitted()
    np.testing.assert_allclose(model.score_samples(new) - model.offset_, model.decision_function(new), atol=1e-12)
    np.testing.assert_array_equal(model.predict(new), np.where(model.decision_function(new) >= 0, 1, -1))
    np.testing.assert_array_equal(model.decision_function(new), model.decision_function(new, model.nu))
    np.testing.assert_array_equal(
        clone(model).fit_predict(mixture(60, seed=1)),
        clone(model).fit(mixture(60, seed=1)).predict(mixture(60, seed=1)),
    )


def test_distant_points_are_outside_at_every_level():
    far = [[40.0, 0.0], [0.0, -90.0]]
    for model in (fitted(), fitted(calibrate=False), fitted(nested=False)):
        assert all((model.predict(far, nu) == -1).all() for nu in (0.01, *LEVELS, 1.0))


# --- options ----------------------------------------------------------------------------------------------------------


def test_linear_density_weights_each_level_by_itself():
    """BT-104: 2ν on [min_nu, 1]; without penalty the levels are separate, and their weights do not matter."""
    linear, uniform = (
        InfiniteOneClassSVM(density=name, num_tasks=6, lam=0.0).fit(mixture(80, 0)) for name in ("linear", "uniform")
    )
    ratio = (linear.measure_.weights / uniform.measure_.weights).numpy()
    np.testing.assert_allclose(ratio / ratio.sum(), linear.levels_ / linear.levels_.sum(), rtol=1e-12)
    np.testing.assert_allclose(linear.thresholds_, uniform.thresholds_, rtol=1e-9)
    coupled = [
        InfiniteOneClassSVM(density=name, num_tasks=6, lam=1.0, calibrate=False).fit(mixture(80, 0))
        for name in ("linear", "uniform")
    ]
    assert np.abs(coupled[0].thresholds_ - coupled[1].thresholds_).max() > 1e-3


@pytest.mark.parametrize(
    "measure", ["gauss_legendre", "sobol", "monte_carlo", gauss_legendre(7, 0.02, 0.9), grid([0.1, 0.5, 0.7])]
)
def test_fit_supports_every_measure(measure):
    model = InfiniteOneClassSVM(measure=measure, num_tasks=7, random_state=0).fit(mixture(100, 0))
    assert (np.diff(model.levels_) > 0).all() and model.levels_.min() >= 0.01 and model.levels_.max() <= 1
    assert model.gap_ <= 1e-6 * abs(model.fit_report_.objective) and model.fit_report_.converged
    assert model.fit_report_.num_rows == 100
    again = clone(model).fit(mixture(100, 0))
    np.testing.assert_array_equal(again.thresholds_, model.thresholds_)


def test_penalty_shrinks_the_threshold_curve():
    """λ acts on t alone (LT §0.2): a larger λ shrinks the uncalibrated curve."""
    sizes = [np.abs(fitted(lam=lam, calibrate=False).thresholds_).max() for lam in (0.0, 1e-2, 1.0, 100.0)]
    assert sizes == sorted(sizes, reverse=True) and sizes[-1] < 0.1 * sizes[0]


@pytest.mark.parametrize(
    "options",
    [
        {"kernel": "matern52"},
        {"kernel": "laplace"},
        {"lengthscale": [0.5, 2.0]},
        {"kernel": RBFKernel()},
        {"task_kernel": "rbf", "threshold_kernel": "rbf"},
        {"num_frequencies": 60, "random_state": 1},
    ],
)
def test_fit_supports_kernels_and_features(options):
    model = InfiniteOneClassSVM(num_tasks=10, **options).fit(mixture(150, 0))
    assert model.gap_ <= 1e-6 * abs(model.fit_report_.objective)
    np.testing.assert_allclose(fractions_inside(model, mixture(4000, 9)), 1 - np.array(LEVELS), atol=0.12)


def test_local_lengthscale_adapts_to_the_dimension():
    """In ten dimensions too, new points have the nominal mass: .3 of the median distance, not a fixed length."""
    rng = np.random.default_rng(0)
    model = InfiniteOneClassSVM().fit(rng.standard_normal((200, 10)))
    assert model.function_.inputs.kernel.lengthscale.item() == pytest.approx(0.3 * np.sqrt(20), rel=0.1)
    np.testing.assert_allclose(fractions_inside(model, rng.standard_normal((4000, 10))), 1 - np.array(LEVELS), atol=0.1)


def test_inputs_are_scaled_except_for_a_kernel_object():
    X = mixture(60, 0) * [1.0, 1000.0]
    original, rescaled = InfiniteOneClassSVM(num_tasks=5).fit(mixture(60, 0)), InfiniteOneClassSVM(num_tasks=5).fit(X)
    np.testing.assert_allclose(
        original.level_score(mixture(20, 1)), rescaled.level_score(mixture(20, 1) * [1.0, 1000.0]), atol=1e-6
    )
    unscaled = InfiniteOneClassSVM(kernel=RBFKernel(), num_tasks=5).fit(X)
    assert unscaled.scaling_.inputs(X).numpy() == pytest.approx(X)


# --- uncertainty ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_std_decreases_with_more_rows():
    """The Bayesian bootstrap: about as √n, and close to the standard deviation over data sets."""
    new = mixture(40, 5)
    stds = []
    for n in (50, 200):
        model = InfiniteOneClassSVM(num_tasks=6, lengthscale="median", random_state=0, num_replicates=15).fit(
            mixture(n, 0)
        )
        mean, std = model.decision_function(new, 0.3, return_std=True)
        np.testing.assert_array_equal(mean, model.decision_function(new, 0.3))
        assert (std > 0).all()
        stds.append(std.mean())
    assert stds[0] > 1.4 * stds[1]
    variability = np.std(
        [
            InfiniteOneClassSVM(num_tasks=6, lengthscale="median").fit(mixture(200, seed)).decision_function(new, 0.3)
            for seed in range(15)
        ],
        axis=0,
        ddof=1,
    )
    assert 0.5 < stds[1] / variability.mean() < 2


def test_replicates_are_cached_until_the_next_fit():
    new = mixture(5, 5)
    model = InfiniteOneClassSVM(num_tasks=4, num_replicates=3, random_state=3).fit(mixture(40, 0))
    first = model.decision_function(new, return_std=True)[1]
    kept = model._replicates
    np.testing.assert_array_equal(model.decision_function(new, return_std=True)[1], first)
    assert model._replicates is kept and kept.shape[0] == 3
    np.testing.assert_array_equal(clone(model).fit(mixture(40, 0)).decision_function(new, return_std=True)[1], first)
    model.fit(mixture(40, 1))
    assert not any(hasattr(model, name) for name in REPLICATES)


# --- validation -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("X", "match"),
    [
        ([[1.0, np.nan], [0.0, 1.0]], "NaN"),
        ([[1.0, np.inf], [0.0, 1.0]], "infinity"),
        ([[1.0, 2.0]], "n_samples"),
        (np.ones((9, 2)), "distinct rows"),
        (np.ones(9), "2D"),
        (np.empty((0, 2)), "minimum of 1|0 sample"),
    ],
)
def test_fit_rejects_invalid_rows(X, match):
    model = InfiniteOneClassSVM(num_tasks=4)
    with pytest.raises(ValueError, match=match):
        model.fit(X)
    with pytest.raises(NotFittedError):
        model.predict([[0.0, 0.0]])


def test_failed_fit_keeps_the_previous_model():
    model = InfiniteOneClassSVM(num_tasks=4).fit(mixture(30, 0))
    before = model.decision_function(mixture(5, 1))
    with pytest.raises(ValueError, match="NaN"):
        model.fit([[np.nan, 1.0], [0.0, 1.0]])
    np.testing.assert_array_equal(model.decision_function(mixture(5, 1)), before)


@pytest.mark.parametrize("nu", [0.0, -0.1, 1.01, np.nan, "half", None, True, [0.1, 0.2]])
def test_fit_and_predict_reject_invalid_levels(nu):
    if nu is not None:
        with pytest.raises(OptionError, match="nu"):
            fitted().predict(mixture(3, 1), nu)
    with pytest.raises(OptionError, match="nu"):
        InfiniteOneClassSVM(nu=nu).fit(mixture(30, 0))


def test_min_nu_bounds_the_levels():
    model = InfiniteOneClassSVM(nu=0.002, min_nu=0.001, num_tasks=5).fit(mixture(50, 0))
    assert (model.predict(mixture(50, 0)) == 1).all()
    with pytest.raises(OptionError, match=r"\[0.001, 1\]"):
        model.predict(mixture(3, 1), 0.0005)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"lam": -1.0}, "lam"),
        ({"lam": "auto"}, "lam"),
        ({"lam": np.nan}, "lam"),
        ({"min_nu": 0.0}, "min_nu"),
        ({"min_nu": 1.0}, "min_nu"),
        ({"density": "beta"}, "density"),
        ({"kernel": "gauss"}, "kernel"),
        ({"lengthscale": "auto"}, "'local', 'median'"),
        ({"lengthscale": [1.0, 2.0, 3.0]}, "lengthscale"),
        ({"task_lengthscale": 0.0}, "task_lengthscale"),
        ({"threshold_kernel": "gauss"}, "threshold_kernel"),
        ({"threshold_lengthscale": -1}, "threshold_lengthscale"),
        ({"measure": "halton"}, "measure"),
        ({"measure": grid([0.001, 0.5])}, "nodes"),
        ({"measure": TaskMeasure(torch.full((30, 2), 0.5).double())}, "measure"),
        ({"measure": TaskMeasure(torch.full((30, 2), 0.5).double(), num_dims=2)}, "one dimension"),
        ({"num_tasks": 0}, "num_tasks"),
        ({"num_frequencies": 0}, "num_frequencies"),
        ({"num_replicates": 1}, "num_replicates"),
        ({"kernel": LinearKernel()}, "positive values"),
    ],
)
def test_fit_rejects_invalid_options(options, match):
    with pytest.raises((OptionError, InputError), match=match):
        InfiniteOneClassSVM(**options).fit(mixture(30, 0))


def test_predict_rejects_other_columns():
    table = pd.DataFrame(mixture(30, 0), columns=["a", "b"])
    model = InfiniteOneClassSVM(num_tasks=4).fit(table)
    assert list(model.feature_names_in_) == ["a", "b"]
    with pytest.raises(ValueError, match="Feature names"):
        model.predict(pd.DataFrame(np.ones((2, 3)), columns=["a", "b", "c"]))
    with pytest.raises(ValueError, match="feature names"):
        model.predict(table[["b", "a"]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.level_score(table)


def test_fit_converges_for_near_copies_and_lattices():
    X = mixture(25, 0)
    near = InfiniteOneClassSVM(num_tasks=5).fit(np.vstack([X, X + 1e-10]))
    assert near.fit_report_.converged
    lattice = np.stack(np.meshgrid(np.arange(6.0), np.arange(6.0)), -1).reshape(-1, 2)
    assert InfiniteOneClassSVM(num_tasks=5).fit(lattice).fit_report_.converged
    assert list(InfiniteOneClassSVM().fit([[0.0, 0.0], [1.0, 1.0]]).predict([[0.0, 0.0], [9.0, 9.0]])) == [1, -1]


# --- files ------------------------------------------------------------------------------------------------------------

SAVED = [
    {},
    {"nested": False, "calibrate": False, "lam": 0.0, "measure": "sobol"},
    {"num_frequencies": 15, "density": "linear"},
    {"kernel": RBFKernel(), "measure": gauss_legendre(4, 0.1, 1.0)},
]


@pytest.mark.parametrize("options", SAVED)
@pytest.mark.parametrize("replicates", [False, True])
@pytest.mark.slow
def test_save_and_load_keep_predictions_exactly(tmp_path, options, replicates):
    model = InfiniteOneClassSVM(**{"num_tasks": 5, "num_replicates": 3, "random_state": 0, **options}).fit(
        mixture(40, 0)
    )
    new = mixture(6, 1)
    if replicates:
        model.decision_function(new, return_std=True)
    model.save(tmp_path / "model.ovkgp")
    for again in (ovkgp.load(tmp_path / "model.ovkgp"), pickle.loads(pickle.dumps(model)), deepcopy(model)):
        assert hasattr(again, REPLICATES[0]) == replicates
        for nu in (0.05, 0.5):
            for mine, other in zip(
                model.decision_function(new, nu, return_std=True),
                again.decision_function(new, nu, return_std=True),
                strict=True,
            ):
                np.testing.assert_array_equal(mine, other)
            np.testing.assert_array_equal(model.score_samples(new, nu), again.score_samples(new, nu))
        np.testing.assert_array_equal(model.level_score(new), again.level_score(new))
        for name in ("offset_", "nesting_rate_", "gap_", "lam_"):
            assert getattr(again, name) == getattr(model, name)
        np.testing.assert_array_equal(again.thresholds_, model.thresholds_)
        assert repr(again.fit_report_) == repr(model.fit_report_)
    again.fit(mixture(40, 2))


def test_load_rejects_a_corrupt_file(tmp_path):
    path = tmp_path / "model.ovkgp"
    InfiniteOneClassSVM(num_tasks=4).fit(mixture(30, 0)).save(path)
    whole = path.read_bytes()
    for bad in (
        whole[: len(whole) // 2],
        whole[:-200] + bytes(200),
        b"",
        whole.replace(b"ThresholdOffset", b"ThresholdXffset"),
    ):
        path.write_bytes(bad)
        with pytest.raises(ModelFileError):
            ovkgp.load(path)


def test_save_raises_for_an_unfitted_model(tmp_path):
    with pytest.raises(NotFittedError):
        InfiniteOneClassSVM().save(tmp_path / "model.ovkgp")


def test_interrupted_bootstrap_keeps_complete_replicates(capsys, monkeypatch):
    model = InfiniteOneClassSVM(num_tasks=4, num_replicates=4, verbose=1, random_state=0).fit(mixture(30, 0))
    model.decision_function(mixture(3, 1), return_std=True)
    assert "replicates" in capsys.readouterr().err
    from ovkgp.estimators.tasks import one_class as module

    calls, solve = [], module.solve_one_class

    def interrupt_fourth(*args, **options):
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return solve(*args, **options)

    model = clone(model).fit(mixture(30, 0))
    monkeypatch.setattr(module, "solve_one_class", interrupt_fourth)
    with pytest.warns(FitWarning, match="3 of 4 replicates are kept"):
        model.decision_function(mixture(3, 1), return_std=True)
    assert len(model._replicates) == 3
