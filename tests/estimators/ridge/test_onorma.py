"""Tests of `ONORMA`: convergence, batches, budgets, missing outputs and scikit-learn's checks."""

import copy
import gc
import os
import pickle
import signal
import tracemalloc

import numpy as np
import pandas as pd
import pytest
import torch
from gpytorch.kernels import LinearKernel, RBFKernel
from sklearn.utils.estimator_checks import parametrize_with_checks

from ovkgp.estimators.ridge.onorma import ONORMA
from ovkgp.estimators.ridge.ovk_ridge import OVKRidge
from ovkgp.exceptions import FitWarning, InputError, OptionError
from ovkgp.inference import OperatorValuedGP
from ovkgp.inference.ridge.online import OnlineGradient
from ovkgp.kernels import CurlFreeKernel, DecomposableKernel


@parametrize_with_checks([ONORMA()])
def test_onorma_passes_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks(
    [ONORMA(kernel="decomposable", average=True, n_epochs=5, budget=30, shuffle=True, random_state=0)]
)
def test_onorma_passes_scikit_learn_checks_with_other_options(estimator, check):
    check(estimator)


def table(n=40, seed=0, missing=0.0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(0, 4, (n, 2))
    Y = np.c_[np.sin(X[:, 0]), np.cos(X[:, 1])] + 0.1 * rng.standard_normal((n, 2))
    Y[(rng.random(Y.shape) < missing) & (np.arange(2) > 0)] = np.nan
    return X, Y


@pytest.mark.parametrize("missing", [0.0, 0.3])
@pytest.mark.parametrize("kernel", ["auto", "curl_free"])
def test_onorma_converges_to_ridge(kernel, missing):
    """In the mean convention, σ² = nλ; 16 times the epochs divide the squared error by at least 16^power_t, as the steps do."""
    X, Y = table(missing=missing)
    options = dict(kernel=kernel, lam=0.1, lengthscale=1.0, power_t=0.75, shuffle=True, random_state=0)
    few, many = (ONORMA(n_epochs=n, **options).fit(X, Y) for n in (15, 240))
    ridge = OVKRidge(kernel, lam=0.1, convention="mean", lengthscale=1.0).fit(X, Y).predict(X)
    errors = [np.square(model.predict(X) - ridge).sum() for model in (few, many)]
    assert errors[1] <= errors[0] / 16**0.75 and errors[1] <= 1e-4 * np.square(ridge).sum()
    assert many.noise_ == pytest.approx(4.0) and many.num_rows_ == 40 and many.num_steps_ == 9600


def test_averaged_onorma_converges_to_ridge():
    X, Y = table()
    options = dict(lam=0.1, lengthscale=1.0, average=True, shuffle=True, random_state=0)
    few, many = (ONORMA(n_epochs=n, **options).fit(X, Y) for n in (10, 160))
    ridge = OperatorValuedGP(few.gp_.kernel, mean="zero", noise=4.0).condition(X, Y).predict(X).mean.numpy()
    errors = [np.square(model.predict(X) - ridge).sum() for model in (few, many)]
    assert errors[1] <= errors[0] / 16


@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("budget", [15, 1000])
@pytest.mark.parametrize("kernel", ["auto", "divergence_free"])
def test_partial_fit_in_several_calls_equals_fit(kernel, budget, average):
    X, Y = table(80, missing=0.1)
    options = dict(kernel=kernel, lengthscale=1.0, budget=budget, average=average)
    one, many = ONORMA(**options).fit(X, Y), ONORMA(**options)
    for part in np.split(np.arange(80), [3, 4, 40]):
        many.partial_fit(X[part], Y[part])
    np.testing.assert_allclose(many.predict(X), one.predict(X), rtol=0, atol=1e-12)
    np.testing.assert_array_equal(many.support_, one.support_)
    assert many.noise_ == one.noise_ and many.num_steps_ == one.num_steps_ == 80
    assert len(one.support_) == min(budget, 80)


def test_fit_restarts_and_partial_fit_resumes():
    X, Y = table()
    model = ONORMA(lengthscale=1.0).fit(X, Y)
    first = model.predict(X)
    assert model.partial_fit(X, Y).num_rows_ == 80
    assert np.abs(model.predict(X) - first).max() > 1e-3
    np.testing.assert_array_equal(model.fit(X, Y).predict(X), first)
    assert model.num_rows_ == 40


def test_partial_fit_keeps_the_kernel_of_the_first_batch():
    X, Y = table()
    model = ONORMA().partial_fit(X, Y)
    lengthscale = model.gp_.kernel.base_kernel.lengthscale.item()
    model.partial_fit(100 * X, Y)
    assert model.gp_.kernel.base_kernel.lengthscale.item() == lengthscale
    with pytest.raises(InputError, match="columns"):
        model.partial_fit(X, Y[:, :1])
    with pytest.raises(ValueError, match="features"):
        model.partial_fit(X[:, :1], Y)


@pytest.mark.slow
def test_partial_fit_memory_is_bounded():
    model, sizes, rng = ONORMA(lengthscale=1.0, budget=50), [], np.random.default_rng(0)
    model.partial_fit(*table(200, seed=1))
    tracemalloc.start()
    for _ in range(2):
        for _ in range(10):
            X = rng.uniform(0, 4, (200, 2))
            model.partial_fit(X, np.sin(X))
        gc.collect()  # GPyTorch's modules are reference cycles
        sizes.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert len(model.support_) == 50 and model.num_rows_ == 4200
    assert len(pickle.dumps(model.posterior_.expansion)) < 10_000
    assert sizes[1] - sizes[0] < 50_000  # 2000 rows of X and Y alone would be 64 000


def test_truncation_error_bounds_the_difference():
    X, Y = table(300)
    options = dict(lengthscale=1.0, lam=0.01)
    whole, short = ONORMA(**options).fit(X, Y), ONORMA(budget=30, **options).fit(X, Y)
    X_new = table(100, seed=2)[0]
    distances = np.linalg.norm(whole.predict(X_new) - short.predict(X_new), axis=1)
    assert whole.truncation_error_ == 0 and 0 < distances.max() <= short.truncation_error_  # ‖K(x, x)‖ = 1


def test_onorma_learns_with_a_small_budget():
    rng = np.random.default_rng(0)
    model = ONORMA(lengthscale=1.0, lam=1e-4, budget=60)
    X = rng.uniform(0, 6, (3000, 1))
    model.fit(X, np.hstack([np.sin(X), np.cos(X)]) + 0.1 * rng.standard_normal((3000, 2)))
    X_new = np.linspace(0, 6, 50)[:, None]
    assert model.score(X_new, np.hstack([np.sin(X_new), np.cos(X_new)])) > 0.98


def test_std_is_an_upper_bound():
    X, Y = table(120, missing=0.2)
    model = ONORMA(lengthscale=1.0, budget=20).fit(X, Y)
    exact = OperatorValuedGP(model.gp_.kernel, mean="zero", noise=model.noise_).condition(X, Y)
    mean, std = model.predict(X, return_std=True)
    assert mean.shape == std.shape == (120, 2) and model.noise_ == pytest.approx(120e-3)
    assert (std >= exact.predict(X, noise=True).std.numpy() - 1e-9).all()
    latent = model.predict(X, return_std=True, noise=False)[1]
    np.testing.assert_allclose(std**2, latent**2 + model.noise_, rtol=1e-9)
    np.testing.assert_allclose(np.sqrt(np.diagonal(model.predict(X, return_cov=True)[1], axis1=1, axis2=2)), std)
    assert model.sample_y(X[:3], 4).shape == (3, 2, 4)


def test_fit_ignores_rows_without_observations():
    X, Y = table()
    Y_more, X_more = np.r_[Y, np.full((5, 2), np.nan)], np.r_[X, X[:5] + 1]
    options = dict(lengthscale=1.0)
    one, other = ONORMA(**options).fit(X, Y), ONORMA(**options).fit(X_more, Y_more)
    np.testing.assert_array_equal(one.predict(X), other.predict(X))
    assert other.num_rows_ == 40
    other.partial_fit(X[:3], np.full((3, 2), np.nan))
    assert other.num_rows_ == 40
    with pytest.raises(InputError, match="observed"):
        ONORMA().fit(X, np.c_[Y[:, 0], np.full(40, np.nan)])


@pytest.mark.parametrize(
    "kernel",
    [
        DecomposableKernel(LinearKernel(), output_matrix=1e6 * torch.eye(2)),
        CurlFreeKernel(RBFKernel(), num_dims=2),
        DecomposableKernel(RBFKernel(), output_matrix=torch.ones(2, 2)),
    ],
)
@pytest.mark.parametrize("learning_rate", ["constant", "invscaling"])
def test_onorma_does_not_diverge_at_any_scale(kernel, learning_rate):
    X, Y = table(200)
    for eta0 in (0.5, 1.0):
        model = ONORMA(kernel, learning_rate=learning_rate, eta0=eta0, budget=50).fit(1e3 * X, Y)
        assert np.abs(model.predict(1e3 * X)).max() < 100


def test_fit_accepts_one_row_and_float32():
    model = ONORMA().fit([[1.0]], [2.0])
    assert model.predict([[1.0]]).shape == (1,) and model.predict([[1.0]])[0] == pytest.approx(2 / 1.001)
    X, Y = table()
    single = ONORMA(lengthscale=1.0).fit(X.astype(np.float32), Y.astype(np.float32))
    double = ONORMA(lengthscale=1.0).fit(X, Y)
    np.testing.assert_allclose(single.predict(X.astype(np.float32)), double.predict(X), atol=1e-4)


def test_onorma_can_be_copied_and_reproduced():
    X, Y = table()
    frame = pd.DataFrame(Y, columns=["a", "b"])
    model = ONORMA(shuffle=True, n_epochs=2, random_state=3).fit(torch.from_numpy(X), frame)
    assert model.output_names_ == ["a", "b"]
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), ONORMA(**model.get_params()).fit(X, Y)):
        np.testing.assert_array_equal(other.predict(X), model.predict(X))
    with pytest.raises(InputError, match="order"):
        model.partial_fit(X, frame[["b", "a"]])


def test_fit_does_not_modify_the_kernel_object():
    kernel = DecomposableKernel(RBFKernel(), output_matrix=torch.eye(2))
    before = {name: value.clone() for name, value in kernel.state_dict().items()}
    ONORMA(kernel).fit(*table())
    assert kernel.dtype == torch.float32 and all(torch.equal(kernel.state_dict()[k], v) for k, v in before.items())


def interrupt_at_chunk(monkeypatch, at):
    """Send Ctrl-C in the given chunk."""
    calls, original = [], OnlineGradient.learn

    def learn(self, *args):
        calls.append(1)
        if len(calls) == at:
            os.kill(os.getpid(), signal.SIGINT)
        return original(self, *args)

    monkeypatch.setattr(OnlineGradient, "learn", learn)


def test_interrupted_fit_keeps_finished_steps(monkeypatch):
    X, Y = table(1000)
    interrupt_at_chunk(monkeypatch, 3)
    with pytest.warns(FitWarning, match="interrupted"):
        model = ONORMA(lengthscale=1.0).fit(X, Y)
    assert model.num_rows_ == model.num_steps_ == 512 and model.noise_ == pytest.approx(0.512)
    monkeypatch.undo()
    np.testing.assert_array_equal(model.predict(X), ONORMA(lengthscale=1.0).fit(X[:512], Y[:512]).predict(X))


def test_interrupted_fit_restores_the_model_without_finished_steps(monkeypatch):
    X, Y = table(100)
    model = ONORMA(lengthscale=1.0).fit(X, Y)
    before = model.predict(X)
    interrupt_at_chunk(monkeypatch, 1)
    with pytest.raises(KeyboardInterrupt):
        model.fit(X + 1, Y)
    np.testing.assert_array_equal(model.predict(X), before)


@pytest.mark.parametrize(
    "options",
    [
        {"lam": 0.0},
        {"lam": -1.0},
        {"lam": np.inf},
        {"lam": np.nan},
        {"lam": [0.1, 1.0]},
        {"learning_rate": "adaptive"},
        {"eta0": 0.0},
        {"eta0": 1.1},
        {"power_t": 0.0},
        {"power_t": "fast"},
        {"power_t": 2.0},
        {"budget": 0},
        {"budget": 1.5},
        {"n_epochs": 0},
        {"lengthscale": -1.0},
        {"kernel": "nothing"},
        {"random_state": -1, "shuffle": True},
    ],
)
def test_fit_names_invalid_options(options):
    with pytest.raises((OptionError, InputError), match=next(iter(options))):
        ONORMA(**options).fit(*table())


def test_fit_is_silent_unless_verbose(capsys):
    ONORMA().fit(*table())
    assert capsys.readouterr().err == ""
    ONORMA(verbose=1).fit(*table())
    assert "learning" in capsys.readouterr().err
