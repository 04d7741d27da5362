"""Odd inputs and options for all estimators and commands: every outcome is right or a clear error.

An outcome is right if it equals a reference: the same data in another container, order, unit or batch. A clear error is one of
`ovkgp.exceptions` (or scikit-learn's own for unfitted estimators) with a message that names what was wrong. The cases are
enumerated, not drawn, so that a failure can be repeated by its name.
"""

import subprocess
import sys
import warnings
from collections.abc import Callable
from functools import cache

import numpy as np
import pandas as pd
import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from scipy import sparse
from sklearn.base import clone

import ovkgp
from ovkgp.exceptions import OvkgpError
from ovkgp.kernels import DecomposableKernel
from tests.estimator_cases import default_cases, list_estimators

pytestmark = pytest.mark.slow

rng = np.random.default_rng(0)
N = 24
X = rng.uniform(0, 1, (N, 2))
Y = np.c_[np.sin(4 * X[:, 0]) + X[:, 1], np.cos(3 * X[:, 1]) - X[:, 0]] + 0.05 * rng.standard_normal((N, 2))
LABELS = np.where(Y[:, 0] > np.median(Y[:, 0]), 1, 0)
CURVES = np.stack([Y, 2 * Y], 1)
PROFILES = Y[:, :1] * np.sin(3 * np.linspace(0, 1, 8)) + Y[:, 1:] * np.linspace(0, 1, 8) ** 2
POINTS = rng.uniform(0, 1, (5, 2))
GRID = np.linspace(0, 1, 7)
SHAPES = Y[:, :1] * np.sin(3 * GRID) + Y[:, 1:] * GRID**2
FIXED = {"hyperparameters": "fixed", "random_state": 0}

ESTIMATORS = {
    "auto": (ovkgp.GPRegressor(random_state=0), Y),
    "independent": (ovkgp.GPRegressor("independent", **FIXED), Y),
    "decomposable": (ovkgp.GPRegressor("decomposable", **FIXED), Y),
    "lmc": (ovkgp.GPRegressor("lmc", **FIXED), Y),
    "helmholtz": (ovkgp.GPRegressor("helmholtz", **FIXED), Y),
    "divergence-free": (ovkgp.GPRegressor("divergence_free", **FIXED), Y),
    "kernel object": (ovkgp.GPRegressor(DecomposableKernel(RBFKernel(), num_outputs=2), **FIXED), Y),
    "one output": (ovkgp.GPRegressor("independent", **FIXED), Y[:, 0]),
    "orff": (ovkgp.GPRegressor("independent", approximation="orff", num_frequencies=20, **FIXED), Y),
    "nystrom": (ovkgp.GPRegressor("decomposable", approximation="nystrom", num_frequencies=8, **FIXED), Y),
    "variational": (ovkgp.GPRegressor("independent", approximation="variational", num_frequencies=8, **FIXED), Y),
    "student": (ovkgp.GPRegressor("independent", likelihood="student_t", num_frequencies=8, **FIXED), Y),
    "exact ridge": (ovkgp.OVKRidge(lam=0.01), Y),
    "field ridge": (ovkgp.OVKRidge("curl_free", lam=0.01), Y),
    "cg ridge": (ovkgp.OVKRidge(lam=0.01, solver="cg"), Y),
    "feature ridge": (ovkgp.ORFFRidge(lam=0.01, num_frequencies=20, random_state=0), Y),
    "manifold ridge": (ovkgp.ManifoldRidge(lam=0.01, num_neighbors=4, random_state=0), Y),
    "constrained": (ovkgp.ConstrainedORFF(num_frequencies=20, random_state=0), Y),
    "simplex": (ovkgp.SimplexClassifier(lam=0.01, random_state=0), LABELS),
    "quantiles": (ovkgp.InfiniteQuantileRegressor(lam=1e-2, lengthscale=1.0, num_tasks=5, random_state=0), Y[:, 0]),
    "vector tasks": (ovkgp.VectorTaskRegressor(tasks=[0.0, 1.0]), CURVES),
    "exact ridge, huber": (ovkgp.OVKRidge(lam=0.01, loss="huber"), Y),
    "exact ridge, pinball": (ovkgp.OVKRidge(lam=0.01, loss="pinball"), Y),
    "feature ridge, huber": (ovkgp.ORFFRidge(lam=0.01, loss="huber", num_frequencies=20, random_state=0), Y),
    "vector tasks, huber": (ovkgp.VectorTaskRegressor(tasks=[0.0, 1.0], loss="huber"), CURVES),
    "curves, gp": (ovkgp.FunctionGPRegressor(output_basis="kernel", kernel="rbf", deviations=False), SHAPES),
    "curves, kernel object": (
        ovkgp.FunctionGPRegressor(kernel=ScaleKernel(RBFKernel()), task_kernel=RBFKernel(), deviations=False),
        SHAPES,
    ),
    "curves, features": (ovkgp.FeatureProjectionRegressor(num_features=20, random_state=0), SHAPES),
    "curves, robust": (ovkgp.RobustFunctionalRegressor(max_iter=500, tolerance=1e-4), SHAPES),
    "curves, triple basis": (ovkgp.TripleBasisRegressor(num_features=20, random_state=0), SHAPES),
    "projections": (ovkgp.RandomProjectionDetector(num_projections=10, random_state=0), None),
    "components": (ovkgp.KernelPCADetector(num_components=3), None),
    "forest": (ovkgp.OneClassForest(num_trees=5, random_state=0), None),
}
TARGETS = {"table": Y, "labels": LABELS, "curves": SHAPES, "none": None}
ESTIMATORS |= {
    name: (kind(**options), TARGETS[target])
    for name, (kind, target, options) in default_cases(type(case[0]) for case in ESTIMATORS.values()).items()
}
JUNK = {
    "true": True,
    "minus one": -1,
    "zero": 0,
    "nan": float("nan"),
    "infinity": float("inf"),
    "minus infinity": -np.inf,
    "huge": 10**30,
    "fraction": 1.5,
    "empty text": "",
    "text": "nope",
    "bytes": b"rbf",
    "empty list": [],
    "list": [-1.0, "a"],
    "dict": {"a": 1},
    "object": object(),
    "array": np.full((3, 3, 3), np.nan),
    "class": ovkgp.GPRegressor,
    "complex": 1j,
    "frame": pd.DataFrame({"a": ["b"]}),
}
EXEMPT = {("kappa", "huge")}  # a valid number at which the covariance overflows, which the message says


def fit(estimator, X, target):
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return estimator.fit(X) if target is None else estimator.fit(X, target)


def predict(estimator, points):
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return np.asarray(estimator.predict(points))


@cache
def fitted(name):
    estimator, target = ESTIMATORS[name]
    return fit(clone(estimator), X, target)


def run(cases: dict[str, Callable[[], str | None]], may_reject: Callable[[str], bool] = lambda name: True) -> None:
    """Run all cases; a case returns what is wrong with its outcome, or raises an error, which must be clear and allowed."""
    failures = []
    for name, case in cases.items():
        try:
            wrong = case()
        except OvkgpError as error:
            is_allowed = may_reject(name) and len(str(error)) > 15
            wrong = None if is_allowed else f"rejected: {error!r}"
        except Exception as error:  # what is tested is that there is none
            wrong = f"{type(error).__name__}: {str(error).splitlines()[0][:150] if str(error) else ''}"
        if wrong:
            failures.append(f"{name}: {wrong}")
    assert not failures, f"{len(failures)} of {len(cases)} cases failed:\n" + "\n".join(failures)


def differs(found, expected, rtol=1e-8) -> str | None:
    """Say how much two predictions differ; None if they are equal within the tolerance."""
    found, expected = np.asarray(found), np.asarray(expected)
    if found.shape != expected.shape:
        return f"shape {found.shape} instead of {expected.shape}"
    if found.dtype.kind in "OUi":
        return None if (found == expected).all() else "other labels"
    if not np.isfinite(found).all():
        return "a prediction is not finite"
    size = np.abs(expected).max() if expected.size else 1.0
    worst = np.abs(found - expected).max() / size if expected.size else 0.0
    return None if worst <= rtol else f"differs by {worst:.2e} of the largest value"


CONTAINERS = {
    "list": lambda values: values.tolist(),
    "tuple": lambda values: tuple(map(tuple, values)) if values.ndim == 2 else tuple(values.tolist()),
    "frame": lambda values: pd.DataFrame(values) if values.ndim == 2 else pd.Series(values),
    "tensor": lambda values: torch.from_numpy(values.copy()),
    "fortran": np.asfortranarray,
    "strided": lambda values: np.repeat(values, 2, axis=0)[::2],
    "reversed twice": lambda values: values[::-1].copy()[::-1],
    "read-only": lambda values: np.frombuffer(values.tobytes(), values.dtype).reshape(values.shape),
    "objects": lambda values: values.astype(object),
    "masked": lambda values: np.ma.masked_array(values, mask=np.zeros(values.shape, bool)),
    "extended": lambda values: values.astype(np.longdouble) if values.dtype.kind == "f" else values,
    "big-endian": lambda values: values.astype(values.dtype.newbyteorder(">")),
}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_containers_and_layouts_give_the_same_predictions(name):
    estimator, target = ESTIMATORS[name]
    expected = predict(fitted(name), POINTS)
    cases = {}
    for label, convert in CONTAINERS.items():
        cases[f"{label} at predict"] = lambda c=convert: differs(predict(fitted(name), c(POINTS)), expected)

        def fit_and_predict(c=convert):
            given = target if target is None or target.ndim > 2 else c(target)
            return differs(predict(fit(clone(estimator), c(X), given), np.asarray(c(POINTS))), expected, 1e-5)

        cases[f"{label} at fit"] = fit_and_predict
    is_labeled = target is LABELS  # scikit-learn rejects labels that are neither texts nor numbers
    run(cases, may_reject=lambda name: is_labeled and name == "objects at fit")


@pytest.mark.parametrize("name", ESTIMATORS)
def test_order_of_rows_and_batches_do_not_change_predictions(name):
    estimator, target = ESTIMATORS[name]
    model, expected = fitted(name), predict(fitted(name), POINTS)
    order = np.random.default_rng(1).permutation(N)
    cases = {}
    # random rows are chosen by position, and online learning reads the rows in their order
    if not name.startswith(("nystrom", "variational", "student", "manifold", "ONORMA")):

        def permuted():
            given = None if target is None else target[order]
            return differs(predict(fit(clone(estimator), X[order], given), POINTS), expected, 1e-4)

        cases["permuted rows"] = permuted
    odd = (1e3, -1e6, 1e9, 999999999.0, 1e15, 1e100, -1e150, 1e154, 1e200, 5e-324, 1e-300, 0.0, -0.0)
    for value in odd:
        for place in range(0, 6, 2):

            def with_odd_row(value=value, place=place):
                batch = np.insert(POINTS, place, [[value, 0.5]], axis=0)
                return differs(np.delete(predict(model, batch), place, axis=0), expected, 1e-9)

            cases[f"a row with {value:g} at {place}"] = with_odd_row
    for k in range(1, len(POINTS)):
        cases[f"batches of {k}"] = lambda k=k: differs(
            np.concatenate([predict(model, POINTS[i : i + k]) for i in range(0, len(POINTS), k)]), expected, 1e-9
        )
    cases["repeated rows"] = lambda: differs(predict(model, np.repeat(POINTS, 3, 0))[::3], expected, 1e-9)
    huge = tuple(f"{value:g} at" for value in odd if abs(value) >= 1e100)  # an error names the row
    run(cases, may_reject=lambda name: any(value in name for value in huge))


SCALE_EQUIVARIANT = ("auto", "independent", "decomposable", "lmc", "one output", "orff", "nystrom", "variational")


@pytest.mark.parametrize("name", SCALE_EQUIVARIANT)
def test_units_of_the_data_do_not_change_predictions(name):
    estimator, target = ESTIMATORS[name]
    expected = predict(fitted(name), POINTS)
    cases = {}
    for power in (-12, -6, -3, 3, 6, 12, 60, -60):
        factor = 10.0**power

        def scaled_outputs(factor=factor):
            return differs(predict(fit(clone(estimator), X, factor * target), POINTS) / factor, expected, 1e-3)

        def scaled_inputs(factor=factor):
            return differs(predict(fit(clone(estimator), factor * X, target), factor * POINTS), expected, 1e-3)

        cases |= {f"Y times 1e{power}": scaled_outputs, f"X times 1e{power}": scaled_inputs}
    for shift in (-1e6, -10.0, 1e3, 1e6):

        def shifted_outputs(shift=shift):
            found = predict(fit(clone(estimator), X, target + shift), POINTS) - shift
            return differs(found, expected, 1e-3)

        def shifted_inputs(shift=shift):
            return differs(predict(fit(clone(estimator), X + shift, target), POINTS + shift), expected, 1e-3)

        cases |= {f"Y plus {shift:g}": shifted_outputs, f"X plus {shift:g}": shifted_inputs}
    run(cases, may_reject=lambda name: False)


def invalid_inputs():
    """Inputs that no estimator supports."""
    bad = {label: X.copy() for label in ("nan", "infinity", "minus infinity")}
    for label, value in (("nan", np.nan), ("infinity", np.inf), ("minus infinity", -np.inf)):
        bad[label][3, 1] = value
    texts = X.astype(object)
    texts[3, 1] = "seven"
    return bad | {
        "one-dimensional": X[:, 0],
        "three-dimensional": X[:, :, None],
        "no rows": X[:0],
        "no columns": X[:, :0],
        "none": None,
        "text": "inputs",
        "number": 3.0,
        "strings": X.astype(str),
        "a string": texts,
        "complex": X + 1j,
        "dict": {"a": 1},
        "ragged": [[1.0, 2.0], [3.0]],
        "sparse": sparse.csr_matrix(X),
        "generator": (row for row in X),
        "missing category": pd.DataFrame({"a": X[:, 0], "b": pd.Categorical(["u"] * N)}),
        "not a time": pd.DataFrame({"a": X[:, 0], "b": pd.to_datetime([None] * N)}),
    }


@pytest.mark.parametrize("name", ESTIMATORS)
def test_invalid_inputs_are_rejected(name):
    estimator, target = ESTIMATORS[name]
    accepted = ("strings",)  # numbers as text are numbers for scikit-learn
    accepted += ("three-dimensional",) * isinstance(estimator, ovkgp.FunctionGPRegressor)  # input curves with channels
    cases = {}
    for label, bad in invalid_inputs().items():

        def fit_it(bad=bad, label=label):
            model = fit(clone(estimator), bad, target)
            return None if label in accepted else f"was accepted: {predict(model, POINTS).ravel()[:2]}"

        def predict_it(bad=bad, label=label):
            found = predict(fitted(name), bad)
            is_right = label in accepted or (label == "no rows" and len(found) == 0)
            return None if is_right else f"was accepted: {found.ravel()[:2]}"

        cases |= {f"fit with {label}": fit_it, f"predict with {label}": predict_it}
    if target is not None:
        targets = {
            "none": None,
            "too short": target[:-1],
            "no rows": target[:0],
            "infinity": np.where(np.arange(target.size).reshape(target.shape) == 3, np.inf, target.astype(float)),
            "all missing": np.full(target.shape, np.nan),
            "text": "targets",
            "complex": target + 1j,
            "four dimensions": np.zeros((N, 2, 2, 2)),
            "dict": {"a": 1},
        }
        for label, bad in targets.items():

            def fit_target(bad=bad):
                model = clone(estimator)
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    model.fit(X, bad)
                return f"was accepted: {predict(model, POINTS).ravel()[:2]}"

            cases[f"fit to {label}"] = fit_target
    cases["predict with three columns"] = lambda: f"was accepted: {predict(fitted(name), np.ones((2, 3)))}"
    run(cases)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_odd_options_are_rejected_or_right(name):
    estimator, target = ESTIMATORS[name]
    cases = {}
    for option in estimator.get_params(deep=False):
        for label, value in JUNK.items():

            def with_option(option=option, value=value):
                model = clone(estimator).set_params(**{option: value})
                try:
                    fit(model, X, target)
                except OvkgpError as error:
                    return None if option in str(error) else f"the message does not name {option}: {error}"
                together = predict(model, POINTS)
                alone = np.concatenate([predict(model, point[None]) for point in POINTS])
                return differs(alone, together, 1e-7)

            if (option, label) not in EXEMPT:
                cases[f"{option}={label}"] = with_option
    run(cases)


COMMANDS = [
    ["fit"],
    ["fit", "nope", "{data}", "--out", "{out}"],
    ["fit", "auto", "{folder}/none.csv", "--out", "{out}"],
    ["fit", "auto", "{data}"],
    ["fit", "auto", "{data}", "--out", "{folder}/none/model"],
    ["fit", "auto", "{data}", "--out", "{out}", "--outputs", "z"],
    ["fit", "auto", "{data}", "--out", "{out}", "--outputs", "u", "--inputs", "u"],
    ["fit", "auto", "{text}", "--out", "{out}", "--outputs", "u"],
    ["fit", "auto", "{empty}", "--out", "{out}", "--outputs", "u"],
    ["fit", "auto", "{binary}", "--out", "{out}", "--outputs", "u"],
    ["fit", "auto", "{data}", "--out", "{out}", "--outputs", "u", "--set", "rank=-1"],
    ["fit", "auto", "{data}", "--out", "{out}", "--outputs", "u", "--set", "nope=1"],
    ["fit", "auto", "{data}", "--out", "{out}", "--outputs", "u", "--seed", "-1"],
    ["predict", "{data}", "{data}", "--out", "{out}"],
    ["predict", "{folder}/none", "{data}", "--out", "{out}"],
    ["report", "{data}", "--out", "{out}"],
    ["report", "{data}", "--out", "{out}.html", "--groups", "x"],
    ["fit", "auto", "{dates}", "--out", "{out}", "--outputs", "u", "--inputs", "nope"],
    ["fit", "curves", "{curves}", "--out", "{out}", "--outputs", "nope_*"],
    ["fit", "curves", "{curves}", "--out", "{out}", "--outputs", "y_*", "--grid", "{folder}/none.csv"],
    ["fit", "curves", "{dated_curves}", "--out", "{out}", "--outputs", "y_*", "--inputs", "x"],
    ["models", "nope"],
    ["features", "--lengthscale", "1e-300"],
    ["features", "--lengthscale", "nan"],
    ["features", "--rows", "1e12", "--dims", "1000000"],
    ["features", "--rows", "-1"],
    ["demo", "--nope"],
    ["nope"],
]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_commands_end_with_one_clear_sentence(words, tmp_path):
    pd.DataFrame({"x": X[:, 0], "u": Y[:, 0]}).to_csv(tmp_path / "data.csv", index=False)
    (tmp_path / "text.csv").write_text("x,u\na,b\nc,d\n", encoding="utf-8")
    (tmp_path / "empty.csv").write_text("", encoding="utf-8")
    (tmp_path / "binary.csv").write_bytes(bytes(range(256)) * 4)
    dates = pd.Series(pd.date_range("2024-01-01", periods=N))
    pd.DataFrame({"t": dates, "u": Y[:, 0]}).to_csv(tmp_path / "dates.csv", index=False)
    curves = pd.DataFrame(SHAPES, columns=[f"y_{t:.2f}" for t in GRID]).assign(x=X[:, 0])
    curves.to_csv(tmp_path / "curves.csv", index=False)
    curves.assign(**{"y_0.00": dates}).to_csv(tmp_path / "dated_curves.csv", index=False)
    names = ("data", "text", "empty", "binary", "dates", "curves", "dated_curves")
    places = {name: str(tmp_path / f"{name}.csv") for name in names}
    places |= {"folder": str(tmp_path), "out": str(tmp_path / "out")}
    command = [sys.executable, "-m", "ovkgp", *(word.format(**places) for word in words)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=120, check=False)
    assert "Traceback" not in done.stderr
    assert done.returncode == 2 or (words[0] in ("features",) and done.returncode == 0), done.stderr
    if done.returncode:
        assert done.stderr.strip()
        assert not (tmp_path / "out").exists()
    else:
        assert "nan" not in done.stdout.lower()


def test_suite_has_every_loss():
    with_losses = {kind for kind in list_estimators() if "huber" in str(kind._parameter_constraints.get("loss"))}
    fuzzed = {
        type(estimator) for estimator, _ in ESTIMATORS.values() if getattr(estimator, "loss", "square") != "square"
    }
    assert {ovkgp.OVKRidge, ovkgp.ORFFRidge, ovkgp.VectorTaskRegressor} <= fuzzed
    assert with_losses <= fuzzed | {type(ESTIMATORS["curves, robust"][0])}


def test_suite_has_at_least_five_thousand_cases():
    options = sum(len(estimator.get_params(deep=False)) for estimator, _ in ESTIMATORS.values()) * len(JUNK)
    containers, batches = len(ESTIMATORS) * 2 * len(CONTAINERS), len(ESTIMATORS) * 45
    assert options + containers + batches + len(ESTIMATORS) * 2 * len(invalid_inputs()) >= 5000
