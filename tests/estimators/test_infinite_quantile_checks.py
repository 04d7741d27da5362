"""scikit-learn's checks of `InfiniteQuantileRegressor`."""

from sklearn.utils.estimator_checks import parametrize_with_checks

from ovkgp.estimators import InfiniteQuantileRegressor

FIXED = {"lengthscale": "median", "lam": 1e-5, "num_tasks": 5, "tol": 1e-3}


@parametrize_with_checks(
    [
        InfiniteQuantileRegressor(random_state=0),
        InfiniteQuantileRegressor(coupling="joint", random_state=0, **FIXED),
        InfiniteQuantileRegressor(num_frequencies=50, random_state=0, **FIXED),
    ]
)
def test_scikit_learn_checks_pass(estimator, check):
    check(estimator)
