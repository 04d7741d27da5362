"""InfiniteOneClassSVM: the share inside is 1 − ν, on old and fresh rows, for all ν; and scikit-learn's own checks."""

from sklearn.utils.estimator_checks import parametrize_with_checks

from ovkgp.estimators.infinite_one_class_svm import InfiniteOneClassSVM


@parametrize_with_checks(
    [
        InfiniteOneClassSVM(num_tasks=8),
        InfiniteOneClassSVM(num_tasks=6, nested=False, calibrate=False, lam=0.0),
        InfiniteOneClassSVM(num_tasks=6, num_frequencies=20, measure="sobol", random_state=0),
    ]
)
def test_scikit_learn_checks(estimator, check):
    check(estimator)
