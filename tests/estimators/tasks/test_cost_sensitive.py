"""Tests of `ovkgp.estimators.tasks.cost_sensitive`."""

import pickle
import warnings
from copy import deepcopy
from functools import cache

import numpy as np
import pandas as pd
import pytest
import torch
from gpytorch.kernels import RBFKernel
from sklearn.base import clone
from sklearn.datasets import make_circles, make_moons
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_score
from sklearn.svm import LinearSVC
from sklearn.utils.estimator_checks import parametrize_with_checks

import ovkgp
from ovkgp.estimators.tasks.cost_sensitive import InfiniteCostSensitiveClassifier, ROCCurve, compute_rates, signed_costs
from ovkgp.exceptions import FitWarning, InputError, ModelFileError, OptionError
from ovkgp.losses import gauss_legendre, grid, monte_carlo

COSTS = np.linspace(-1, 1, 21)


@parametrize_with_checks([InfiniteCostSensitiveClassifier(num_tasks=5, random_state=0)])
def test_scikit_learn_checks_pass(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks(
    [
        InfiniteCostSensitiveClassifier(coupling="independent", costs="unit"),
        InfiniteCostSensitiveClassifier(num_tasks=4, num_frequencies=20, kappa=0.1, random_state=0),
    ]
)
def test_scikit_learn_checks_pass_with_other_options(estimator, check):
    check(estimator)


def moons(n=120, seed=0, noise=0.4):
    return make_moons(n, noise=noise, random_state=seed)


@cache
def fitted(**options):
    return InfiniteCostSensitiveClassifier(**{"lam": 1e-3, "random_state": 0, **options}).fit(*moons())


# --- effect of the cost -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"kappa": 0.1}, {"num_frequencies": 50}, {"measure": "gauss_legendre"}])
def test_sensitivity_increases_and_specificity_decreases_with_the_cost(options):
    """LT-139, LT-E-29: near the upper end, nearly all positives are found."""
    curve = fitted(**options).roc_curve(*moons(600, seed=1), costs=COSTS)
    assert (np.diff(curve.sensitivity) > -0.02).all() and (np.diff(curve.specificity) < 0.02).all()
    assert curve.sensitivity[-1] > 0.97 and curve.specificity[0] > 0.97
    assert curve.sensitivity[0] < 0.4 and curve.specificity[-1] < 0.6
    assert curve.sensitivity[10] > 0.75 and curve.specificity[10] > 0.75
    assert curve.area > 0.88


def test_lt_e_29_both_cost_scales_give_one_classifier():
    X, _ = moons(30, seed=1)
    signed, unit = fitted(), fitted(costs="unit")
    np.testing.assert_allclose(
        signed.decision_function(X, COSTS), unit.decision_function(X, (COSTS + 1) / 2), atol=1e-12
    )
    np.testing.assert_array_equal(signed.decision_function(X), unit.decision_function(X, 0.5))
    assert unit.roc_curve(*moons(60, 1)).cost[[0, -1]].tolist() == [0, 1]
    assert signed.roc_curve(*moons(60, 1)).cost[[0, -1]].tolist() == [-1, 1]


def test_lt_e_29_high_cost_predicts_the_second_class():
    """θ is the cost of false negatives of `classes_[1]`: at the upper end that class is predicted nearly everywhere."""
    X, _ = moons(300, seed=1)
    assert (fitted().predict(X, 1.0) == 1).mean() > 0.6 > 0.4 > (fitted().predict(X, -1.0) == 1).mean()


def test_predictions_have_the_shape_of_the_costs():
    X, model = moons(7, seed=1)[0], fitted()
    assert model.predict(X).shape == model.predict(X, 0.3).shape == (7,)
    assert model.predict(X, [0.3]).shape == (7, 1) and model.decision_function(X, COSTS).shape == (7, 21)
    np.testing.assert_array_equal(model.decision_function(X), model.decision_function(X, 0.0))
    np.testing.assert_array_equal(model.predict(X, [0.0, 0.5])[:, 0], model.predict(X))
    np.testing.assert_array_equal(model.predict(X), (model.decision_function(X) >= 0).astype(int))


def test_roc_curve_matches_predictions():
    X, y = moons(80, seed=1)
    model = fitted()
    curve = model.roc_curve(X, y, costs=[0.9, -0.9, 0.0])
    np.testing.assert_array_equal(curve.cost, [-0.9, 0.0, 0.9])
    for k, cost in enumerate(curve.cost):
        predicted = model.predict(X, cost)
        assert curve.sensitivity[k] == (predicted[y == 1] == 1).mean()
        assert curve.specificity[k] == pytest.approx((predicted[y == 0] == 0).mean())
    assert len(model.roc_curve(X, y).cost) == 101
    assert fitted(coupling="independent", costs="unit").roc_curve(X, y).cost == pytest.approx([0.05, 0.5, 0.95])


# --- oracles ----------------------------------------------------------------------------------------------------------


def weighted_svm(rows, y, cost, C):
    """Fit a support vector machine without intercept, each label weighted by its cost."""
    class_weight = {1: (cost + 1) / 2, 0: 1 - (cost + 1) / 2}
    svm = LinearSVC(loss="hinge", C=C, fit_intercept=False, class_weight=class_weight, tol=1e-10, max_iter=1_000_000)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return svm.fit(rows, y)


@pytest.mark.parametrize("cost", [-0.6, 0.0, 0.8])
def test_one_cost_equals_a_weighted_support_vector_machine(cost):
    """(1/n) Σ c hinge + (λ/2) ‖w‖² with C = 1/(λn), in the coordinates of the kernel."""
    X, y = moons(60)
    model = InfiniteCostSensitiveClassifier(coupling="independent", levels=[cost], lam=1e-2, tol=1e-9).fit(X, y)
    rows = model.function_.inputs(model.scaling_.inputs(X)).numpy()
    svm = weighted_svm(rows, y, cost, 1 / (1e-2 * 60))
    new = moons(30, seed=1)[0]
    expected = svm.decision_function(model.function_.inputs(model.scaling_.inputs(new)).numpy())
    np.testing.assert_allclose(model.decision_function(new, cost), expected, atol=2e-4)
    w = svm.coef_.ravel()
    weights = np.where(y == 1, (cost + 1) / 2, 1 - (cost + 1) / 2)
    objective = (weights * np.clip(1 - (2 * y - 1) * (rows @ w), 0, None)).mean() + 1e-2 / 2 * w @ w
    assert model.fit_report_.objective == pytest.approx(objective, rel=1e-6)
    assert model.fit_report_.objective <= objective * (1 + 1e-8)


def test_independent_costs_equal_separate_fits_with_scaled_penalty():
    X, y = moons(60)
    levels = [-0.9, 0.0, 0.9]
    model = InfiniteCostSensitiveClassifier(coupling="independent", lam=1e-2, tol=1e-9).fit(X, y)
    new = moons(30, seed=1)[0]
    for cost in levels:
        single = InfiniteCostSensitiveClassifier(coupling="independent", levels=[cost], lam=3e-2, tol=1e-9).fit(X, y)
        np.testing.assert_allclose(model.decision_function(new, cost), single.decision_function(new, cost), atol=1e-3)


def test_task_kernel_of_small_lengthscale_decouples_costs():
    """LT G-14: k_Θ = δ at the levels."""
    X, y = moons(60)
    options = {"lam": 1e-2, "tol": 1e-9}
    independent = InfiniteCostSensitiveClassifier(coupling="independent", **options).fit(X, y)
    measure = grid([-0.9, 0.0, 0.9])
    infinite = InfiniteCostSensitiveClassifier(measure=measure, task_lengthscale=1e-3, **options).fit(X, y)
    new = moons(30, seed=1)[0]
    for cost in (-0.9, 0.0, 0.9):
        np.testing.assert_allclose(
            infinite.decision_function(new, cost), independent.decision_function(new, cost), atol=1e-3
        )


def test_coupled_costs_are_informative_where_independent_ones_are_not():
    """LT-139, circles: at θ = −.9 independent costs predict only negatives, the continuum does not; likewise at .9."""
    X, y = make_circles(200, noise=0.1, factor=0.8, random_state=0)
    independent = InfiniteCostSensitiveClassifier(coupling="independent", lam=1e-5).fit(X, y).roc_curve(X, y)
    joint = InfiniteCostSensitiveClassifier(lam=1e-5, random_state=0).fit(X, y).roc_curve(X, y, costs=[-0.9, 0.9])
    assert independent.sensitivity[0] == 0 < joint.sensitivity[0] and joint.specificity[0] == 1
    assert independent.specificity[-1] < 0.7 * joint.specificity[-1] and joint.sensitivity[-1] == 1


@pytest.mark.parametrize("kappa", [None, 0.2])
@pytest.mark.parametrize("lam", [1e-4, 1e-2])
def test_duality_gap_certifies_the_solution(kappa, lam):
    X, y = moons(80)
    model = InfiniteCostSensitiveClassifier(lam=lam, kappa=kappa, num_tasks=8, tol=1e-6, random_state=0).fit(X, y)
    assert 0 <= model.gap_ <= 1e-6 * model.fit_report_.objective and model.fit_report_.converged


def test_solution_is_the_mode_of_prior_and_pseudo_likelihood():
    """LT §6.0, ID-17: log joint = −Σ_ij (η_j/(nλ)) ℓ − ½ ‖W‖², W ~ N(0, I); its gradient is zero at the fit."""
    X, y = moons(50)
    lam, kappa = 1e-2, 0.3
    model = InfiniteCostSensitiveClassifier(lam=lam, kappa=kappa, num_tasks=6, measure="gauss_legendre", tol=1e-12).fit(
        X, y
    )
    phi = model.function_.inputs(model.scaling_.inputs(X))
    nodes, eta = model.measure_.nodes, model.measure_.weights
    psi = model.function_.tasks(nodes[:, None])
    W = model.function_.weights.clone().requires_grad_()
    labels = torch.from_numpy(2.0 * y - 1)[:, None]
    costs = torch.where(labels > 0, (nodes + 1) / 2, 1 - (nodes + 1) / 2)
    margin = 1 - labels * (phi @ W @ psi.T)
    hinge = torch.where(margin <= 0, 0.0, torch.where(margin <= kappa, margin**2 / (2 * kappa), margin - kappa / 2))
    log_joint = -(eta * costs * hinge).sum() / (50 * lam) - W.square().sum() / 2
    (gradient,) = torch.autograd.grad(log_joint, W)
    assert gradient.abs().max() < 1e-4 * W.detach().abs().max()
    other = (model.function_.weights * 1.01).clone()
    margin = 1 - labels * (phi @ other @ psi.T)
    hinge = torch.where(margin <= 0, 0.0, torch.where(margin <= kappa, margin**2 / (2 * kappa), margin - kappa / 2))
    assert -(eta * costs * hinge).sum() / (50 * lam) - other.square().sum() / 2 < log_joint


def test_lam_conventions_are_equivalent():
    """LT G-11: λ ‖h‖² with half the λ."""
    X = moons(20, seed=1)[0]
    half = fitted(lam=5e-4, convention="stability")
    assert half.lam_ == fitted().lam_ == 1e-3
    np.testing.assert_array_equal(half.decision_function(X, COSTS), fitted().decision_function(X, COSTS))


def test_smoothed_hinge_approaches_the_hinge():
    X = moons(40, seed=1)[0]
    exact = fitted(lam=1e-2, tol=1e-8).decision_function(X, COSTS)
    errors = [
        np.abs(fitted(lam=1e-2, tol=1e-8, kappa=k).decision_function(X, COSTS) - exact).max() for k in (1.0, 0.1, 0.01)
    ]
    assert errors[0] > errors[1] > errors[2] and errors[2] < 0.05


def test_random_features_approach_the_exact_kernel():
    X = moons(100, seed=1)[0]
    exact = fitted(lam=1e-2).decision_function(X)
    errors = [np.abs(fitted(lam=1e-2, num_frequencies=D).decision_function(X) - exact).mean() for D in (10, 500)]
    assert errors[1] < 0.5 * errors[0]


# --- uncertainty ------------------------------------------------------------------------------------------------------


def test_std_matches_variability_over_data_sets_and_shrinks():
    new = moons(30, seed=99)[0]
    options = {
        "lam": 1e-2,
        "num_tasks": 6,
        "measure": "gauss_legendre",
        "lengthscale": 1.0,
        "num_replicates": 15,
        "random_state": 0,
    }
    stds = []
    for n in (50, 200):
        model = InfiniteCostSensitiveClassifier(**options).fit(*moons(n))
        score, std = model.decision_function(new, [-0.5, 0.5], return_std=True)
        np.testing.assert_array_equal(score, model.decision_function(new, [-0.5, 0.5]))
        assert std.shape == (30, 2) and (std > 0).all()
        stds.append(std.mean())
    assert stds[0] > 1.4 * stds[1]
    fits = [InfiniteCostSensitiveClassifier(**options).fit(*moons(200, seed)) for seed in range(15)]
    variability = np.std([model.decision_function(new, [-0.5, 0.5]) for model in fits], axis=0, ddof=1).mean()
    assert 0.5 < stds[1] / variability < 2


def test_replicates_are_cached_until_the_next_fit():
    new = moons(5, seed=99)[0]
    model = InfiniteCostSensitiveClassifier(num_tasks=3, num_replicates=3, random_state=2, lam=1e-2).fit(*moons(40))
    first = model.decision_function(new, return_std=True)[1]
    assert first.shape == (5,) and model._replicates.shape[0] == 3
    np.testing.assert_array_equal(model.decision_function(new, return_std=True)[1], first)
    np.testing.assert_array_equal(clone(model).fit(*moons(40)).decision_function(new, return_std=True)[1], first)
    model.fit(*moons(40, seed=1))
    assert not hasattr(model, "_replicates")
    with pytest.raises(OptionError, match="num_replicates"):
        model.set_params(num_replicates=1).decision_function(new, return_std=True)


# --- labels and tables ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("labels", [("no", "yes"), (False, True), (-3.0, 7.0), (10, 20)])
def test_fit_accepts_labels_of_any_kind(labels):
    X, y = moons(40)
    named = np.array(labels)[y]
    model = InfiniteCostSensitiveClassifier(num_tasks=4, random_state=0).fit(X, named)
    assert model.classes_.tolist() == sorted(labels)
    np.testing.assert_array_equal(
        model.predict(X),
        np.array(labels)[InfiniteCostSensitiveClassifier(num_tasks=4, random_state=0).fit(X, y).predict(X)],
    )
    curve = model.roc_curve(X, named, costs=[0.0])
    assert curve.sensitivity[0] == (model.predict(X)[y == 1] == labels[1]).mean()


def test_fit_accepts_data_frames():
    X, y = moons(40)
    table, column = pd.DataFrame(X, columns=["a", "b"]), pd.Series(np.array(["no", "yes"])[y])
    model = InfiniteCostSensitiveClassifier(num_tasks=4, random_state=0).fit(table, column)
    assert list(model.feature_names_in_) == ["a", "b"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert model.score(table, column) > 0.7 and model.roc_curve(table, column).area > 0.8
    with pytest.raises(ValueError, match="feature names"):
        model.predict(table[["b", "a"]])


def test_classifier_supports_cross_validation():
    X, y = moons(100)
    assert (
        cross_val_score(InfiniteCostSensitiveClassifier(num_tasks=4, random_state=0, lam=1e-3), X, y, cv=3).mean()
        > 0.75
    )


@pytest.mark.parametrize(
    ("y", "match"),
    [
        (np.zeros(40), "one class"),
        (np.arange(40) % 3, "Only binary classification"),
        (np.linspace(0, 1, 40), "continuous"),
        (np.zeros(39), "inconsistent"),
        (np.full(40, np.nan), "NaN"),
    ],
)
def test_fit_rejects_invalid_labels(y, match):
    with pytest.raises(ValueError, match=match):
        InfiniteCostSensitiveClassifier(num_tasks=3).fit(moons(40)[0], y)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_fit_and_predict_reject_invalid_inputs(bad):
    X, y = moons(20)
    X[3, 1] = bad
    with pytest.raises(ValueError, match=r"NaN|infinity"):
        InfiniteCostSensitiveClassifier(num_tasks=3).fit(X, y)
    with pytest.raises(ValueError, match=r"NaN|infinity"):
        fitted().predict(X)
    with pytest.raises(ValueError, match="features"):
        fitted().predict(np.ones((2, 3)))


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"costs": "euro"}, "costs"),
        ({"coupling": "joint"}, "coupling"),
        ({"convention": "mean"}, "convention"),
        ({"lam": 0.0}, "lam"),
        ({"lam": [1e-3, 1e-2]}, "lam"),
        ({"kappa": 0.0}, "kappa"),
        ({"tol": -1.0}, "tol"),
        ({"max_iter": 0}, "max_iter"),
        ({"levels": [0.1]}, "independent"),
        ({"levels": [2.0], "coupling": "independent"}, "levels"),
        ({"measure": "halton"}, "measure"),
        ({"measure": grid([-0.5, 0.5]), "costs": "unit"}, "nodes"),
        ({"measure": gauss_legendre(2, num_dims=2)}, "one dimension"),
        ({"kernel": "gauss"}, "kernel"),
        ({"lengthscale": -1.0}, "lengthscale"),
        ({"task_kernel": "gauss"}, "task_kernel"),
        ({"task_lengthscale": "x"}, "task_lengthscale"),
        ({"num_tasks": 0}, "num_tasks"),
        ({"num_frequencies": -1}, "num_frequencies"),
        ({"num_replicates": 1}, "num_replicates"),
    ],
)
def test_fit_rejects_invalid_options(options, match):
    with pytest.raises((OptionError, InputError), match=match):
        InfiniteCostSensitiveClassifier(**options).fit(*moons(20))


@pytest.mark.parametrize("cost", [1.5, -2, np.nan, "high", [[0.1]], []])
def test_predict_rejects_invalid_costs(cost):
    with pytest.raises(InputError, match="cost"):
        fitted().predict(moons(3)[0], cost)


def test_predict_rejects_unlearned_costs_if_independent():
    with pytest.raises(InputError, match="level"):
        fitted(coupling="independent").predict(moons(3)[0], 0.3)


def test_unlearned_cost_is_reported_in_the_scale_of_the_estimator():
    model = InfiniteCostSensitiveClassifier(costs="unit", coupling="independent", levels=[0.25, 0.75]).fit(*moons(20))
    with pytest.raises(InputError, match=r"\[0.25, 0.75\], got cost=0.6"):
        model.predict(moons(3)[0], 0.6)
    with pytest.raises(InputError, match="cost=None"):
        model.predict(moons(3)[0])


@pytest.mark.parametrize("costs", [["high"], [0.0, 3.0], [[0.1]], []])
def test_roc_curve_rejects_invalid_costs(costs):
    with pytest.raises(InputError, match="costs"):
        fitted().roc_curve(*moons(20), costs=costs)


def test_roc_curve_rejects_invalid_labels():
    X, y = moons(20)
    for labels, match in (
        (np.zeros(20), "both classes"),
        (y[:-1], "shape"),
        (np.array(["a", "b"])[y], "both classes"),
    ):
        with pytest.raises(InputError, match=match):
            fitted().roc_curve(X, labels)


def test_measure_uses_the_scale_of_the_costs():
    X, y = moons(40)
    unit = InfiniteCostSensitiveClassifier(costs="unit", measure=gauss_legendre(5, 0.0, 1.0)).fit(X, y)
    signed = InfiniteCostSensitiveClassifier(measure=gauss_legendre(5, -1.0, 1.0)).fit(X, y)
    np.testing.assert_allclose(unit.measure_.nodes, signed.measure_.nodes, atol=1e-14)
    np.testing.assert_allclose(unit.decision_function(X, 0.9), signed.decision_function(X, 0.8), atol=1e-6)


def test_measure_may_have_separate_nodes_per_row():
    """LT-70: nodes drawn for each row."""
    X, y = moons(60)
    unit = monte_carlo(2, num_rows=60, random_state=0)
    model = InfiniteCostSensitiveClassifier(costs="unit", measure=unit, lam=1e-2).fit(X, y)
    curve = model.roc_curve(X, y, costs=[0.05, 0.5, 0.95])
    assert model.measure_.nodes.shape == (60, 2) and curve.sensitivity[0] < curve.sensitivity[-1]


# --- files ------------------------------------------------------------------------------------------------------------

SAVED = [
    {},
    {"coupling": "independent", "costs": "unit", "levels": [0.2, 0.5]},
    {"num_frequencies": 15, "kappa": 0.1},
    {"kernel": RBFKernel(), "measure": grid([-0.5, 0.5])},
]


@pytest.mark.parametrize("options", SAVED)
@pytest.mark.parametrize("replicates", [False, True])
def test_save_and_load_keep_predictions_exactly(tmp_path, options, replicates):
    X, y = moons(30)
    y = np.array(["no", "yes"])[y]
    model = InfiniteCostSensitiveClassifier(**{"num_tasks": 4, "num_replicates": 3, "random_state": 0, **options}).fit(
        X, y
    )
    new = moons(6, seed=1)[0]
    if replicates:
        model.decision_function(new, return_std=True)
    model.save(tmp_path / "model.ovkgp")
    for again in (ovkgp.load(tmp_path / "model.ovkgp"), pickle.loads(pickle.dumps(model)), deepcopy(model)):
        assert hasattr(again, "_replicates") == replicates
        for mine, other in zip(
            model.decision_function(new, return_std=True), again.decision_function(new, return_std=True), strict=True
        ):
            np.testing.assert_array_equal(mine, other)
        np.testing.assert_array_equal(model.predict(new), again.predict(new))
        assert (
            again.gap_ == model.gap_ and again.lam_ == model.lam_ and repr(again.fit_report_) == repr(model.fit_report_)
        )
        assert again.roc_curve(X, y).area == model.roc_curve(X, y).area
        again.fit(X, y)
        np.testing.assert_array_equal(model.decision_function(new), again.decision_function(new))


def test_load_rejects_a_corrupt_file(tmp_path):
    path = tmp_path / "model.ovkgp"
    fitted().save(path)
    whole = path.read_bytes()
    for bad in (whole[: len(whole) // 2], whole[:-200] + bytes(200), b""):
        path.write_bytes(bad)
        with pytest.raises(ModelFileError):
            ovkgp.load(path)
    with pytest.raises(NotFittedError):
        InfiniteCostSensitiveClassifier().save(path)


def test_failed_fit_keeps_the_previous_model():
    X, y = moons(20)
    model = InfiniteCostSensitiveClassifier(num_tasks=3, random_state=0).fit(X, y)
    before = model.decision_function(X)
    with pytest.raises(InputError, match="one class"):
        model.fit(X, np.zeros(20))
    np.testing.assert_array_equal(model.decision_function(X), before)


def test_fit_warns_without_convergence():
    with pytest.warns(FitWarning, match="max_iter"):
        model = InfiniteCostSensitiveClassifier(num_tasks=4, lam=1e-5, max_iter=1, tol=1e-9).fit(*moons(40))
    assert not model.fit_report_.converged


def test_interrupted_bootstrap_keeps_complete_replicates(monkeypatch):
    from ovkgp.inference.tasks.solvers.certificates import Certificate

    model = InfiniteCostSensitiveClassifier(num_tasks=3, num_replicates=9, random_state=0, tol=1e-9).fit(*moons(30))
    fits, run = [], Certificate.run

    def run_interrupted(certificate, search):
        fits.append(1)

        def interrupt_fourth(bar):
            if len(fits) == 4:
                raise KeyboardInterrupt
            search(bar)

        return run(certificate, interrupt_fourth)

    monkeypatch.setattr(Certificate, "run", run_interrupted)
    with pytest.warns(FitWarning) as warned:
        model.decision_function(moons(3)[0], return_std=True)
    assert any("3 of 9 replicates are kept" in str(warning.message) for warning in warned)
    assert len(model._replicates) == 3 and len(fits) == 4


def test_lt_e_29_signed_costs_convert_both_scales():
    """c = (θ + 1)/2 for θ ∈ [−1, 1], or θ = c ∈ [0, 1]."""
    unit = np.array([0.0, 0.25, 0.5, 1.0])
    np.testing.assert_array_equal(signed_costs(unit, "unit"), [-1, -0.5, 0, 1])
    np.testing.assert_array_equal(signed_costs([-1, -0.5, 0, 1], "signed"), signed_costs(unit, "unit"))
    assert signed_costs(0.75, "unit").shape == (1,)


@pytest.mark.parametrize(
    ("costs", "scale"),
    [
        (-0.1, "unit"),
        (1.1, "unit"),
        (-1.1, "signed"),
        (np.nan, "signed"),
        ([], "unit"),
        ([[0.1]], "unit"),
        ("a", "unit"),
    ],
)
def test_signed_costs_reject_invalid_costs(costs, scale):
    with pytest.raises(InputError, match="cost"):
        signed_costs(costs, scale)


def test_signed_costs_suggest_the_other_scale():
    with pytest.raises(InputError, match='costs="signed"'):
        signed_costs(-0.5, "unit", "levels")


def test_compute_rates_uses_each_class():
    positive = np.array([True, True, True, True, False, False])
    predicted = np.array([[1, 1], [1, 0], [1, 0], [0, 0], [1, 0], [0, 0]], dtype=bool)
    sensitivity, specificity = compute_rates(positive, predicted)
    np.testing.assert_allclose(sensitivity, [0.75, 0.25])
    np.testing.assert_allclose(specificity, [0.5, 1.0])


def test_roc_area_includes_corners_and_ignores_order():
    cost = np.array([-0.5, 0.5])
    assert ROCCurve(cost, np.array([1.0, 1.0]), np.array([1.0, 1.0])).area == 1.0
    assert ROCCurve(cost, np.array([0.3, 0.8]), np.array([0.7, 0.2])).area == pytest.approx(0.5)
    one = ROCCurve(cost, np.array([0.5, 0.9]), np.array([0.9, 0.4])).area
    assert one == pytest.approx(0.1 * 0.25 + 0.5 * 0.7 + 0.4 * 0.95)
    assert ROCCurve(cost, np.array([0.9, 0.5]), np.array([0.4, 0.9])).area == one
