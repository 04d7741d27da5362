"""Tests of the entry of functional estimators: what they accept as curves and inputs, and at which points."""

import warnings
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import xarray
from curve_cases import simulate_curves
from gpytorch.kernels import AdditiveKernel, LinearKernel, MaternKernel, RBFKernel, ScaleKernel
from sklearn.model_selection import cross_val_predict

import ovkgp
from ovkgp.exceptions import DomainError, FitWarning, InputError, OptionError
from ovkgp.functional import BSplines, DictionaryKernel, Fourier, FunctionalData, TensorProduct
from ovkgp.metrics import r2_score

GRID, X, Y = simulate_curves(24, 12)
QUICK = {"kernel": "rbf", "task_kernel": "matern52", "output_basis": "kernel", "deviations": True}
GAPS = np.where(np.random.default_rng(0).random(Y.shape) < 0.2, np.nan, Y)


def fast():
    """Return an estimator of each entry that is quick to fit."""
    return [ovkgp.FunctionGPRegressor(**QUICK), ovkgp.KernelProjectionRegressor()]


def kind(estimator):
    return type(estimator).__name__


class FData:
    """Stand-in for scikit-fda's FDataGrid, whose `ndim` is 1."""

    ndim = 1

    def __init__(self, values, grid=GRID):
        self.data_matrix, self.grid_points = values[..., None], (grid,)
        self.domain_range, self.shape = ((grid[0], grid[-1]),), (len(values),)

    def __len__(self):
        return len(self.data_matrix)


class IrregularFData(SimpleNamespace):
    """Stand-in for scikit-fda's FDataIrregular, whose `ndim` is 1."""

    ndim = 1

    def __len__(self):
        return len(self.start_indices)


def irregular(values, grid=GRID):
    seen = ~np.isnan(values)
    return IrregularFData(
        start_indices=np.r_[0, seen.sum(1).cumsum()[:-1]],
        points=np.concatenate([grid[row] for row in seen])[:, None],
        values=values[seen][:, None],
        domain_range=((grid[0], grid[-1]),),
    )


@pytest.mark.parametrize("estimator", fast(), ids=kind)
def test_objects_of_scikit_fda_equal_arrays(estimator):
    expected = estimator.fit(X, Y, grid=GRID).predict(X)
    assert np.allclose(estimator.fit(X, FData(Y)).predict(X), expected)
    assert estimator.score(X, FData(Y)) == pytest.approx(estimator.score(X, Y))
    gaps = estimator.fit(X, GAPS, grid=GRID).predict(X)
    found = estimator.fit(X, irregular(GAPS))
    assert np.allclose(found.predict(X), gaps, atol=0.05)  # KPL weighs values along each curve
    assert found.score(X, irregular(GAPS)) == pytest.approx(found.score(X, GAPS))


def test_function_gp_takes_objects_of_scikit_fda_as_inputs_and_in_complete():
    model = ovkgp.FunctionGPRegressor(**QUICK).fit(FData(Y), Y, grid=GRID)
    assert model.predict(FData(Y)).shape == Y.shape
    model.fit(X, Y, grid=GRID)
    assert np.allclose(model.complete(X[:3], FData(Y[:3])), model.complete(X[:3], Y[:3]))


@pytest.mark.parametrize("estimator", fast(), ids=kind)
@pytest.mark.parametrize(
    ("columns", "grid"),
    [
        ([f"depth_{10 * (i + 1)}" for i in range(12)], 10.0 * np.arange(1, 13)),
        ([f"y_{v}" for v in (0, 1, 2, 3, 4, 5, 10, 20, 30, 40, 50, 100)], [0, 1, 2, 3, 4, 5, 10, 20, 30, 40, 50, 100]),
        (range(12), np.linspace(0, 1, 12)),  # no names
        (list("abcdefghijkl"), np.linspace(0, 1, 12)),
        (pd.date_range("2020-01-30", periods=12), 18291 + np.arange(12)),
        ([f"t 2020-{month:02d}" for month in range(1, 13)], None),
    ],
)
def test_grid_is_read_from_column_names(estimator, columns, grid):
    if grid is None:
        grid = np.arange("2020-01", "2021-01", dtype="datetime64[M]").astype("datetime64[D]").astype(float)
    found = estimator.fit(X, pd.DataFrame(Y, columns=columns))
    np.testing.assert_allclose(found.grid_, grid)
    np.testing.assert_allclose(found.domain_, [[grid[0], grid[-1]]])


@pytest.mark.parametrize("estimator", fast(), ids=kind)
@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (GRID[::-1], "increasing.*Sort"),
        ([f"y_{i}" for i in (*range(10), 8.5, 11)], "increasing"),
        ([f"{'abc'[i % 3]}_{i}" for i in range(12)], "no grid"),
        ([f"{i}_{i}" for i in range(12)], "no grid"),  # no product of two sets of numbers
    ],
)
def test_ambiguous_column_names_are_rejected(estimator, columns, message):
    with pytest.raises(InputError, match=message):
        estimator.fit(X, pd.DataFrame(Y, columns=columns))


def test_columns_with_two_numbers_are_a_plane_with_a_warning():
    frame = pd.DataFrame(Y, columns=[f"u_{i}_{j}" for i in range(3) for j in range(4)])
    with pytest.warns(FitWarning, match="plane"):
        found = ovkgp.FunctionGPRegressor(**QUICK).fit(X, frame)
    assert found.grid_.tolist() == [[i, j] for i in range(3) for j in range(4)]


@pytest.mark.parametrize("estimator", fast(), ids=kind)
def test_score_pools_all_observed_values(estimator):
    model = estimator.fit(X, GAPS, grid=GRID)
    known = ~np.isnan(GAPS)
    expected = r2_score(GAPS[known], model.predict(X)[known])
    assert model.score(X, GAPS) == pytest.approx(expected)
    ragged = FunctionalData([y[k] for y, k in zip(GAPS, known, strict=True)], [GRID[k] for k in known], (0, 1))
    assert model.score(X, ragged) == pytest.approx(expected)
    weights = np.arange(24) % 2
    assert model.score(X, GAPS, weights) == pytest.approx(model.score(X[1::2], GAPS[1::2]))


def test_intervals_have_level_90_percent_by_default():
    for estimator in fast():
        model = estimator.fit(X, Y, grid=GRID)
        for found, expected in zip(model.predict_interval(X), model.predict_interval(X, 0.9), strict=True):
            np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("estimator", fast(), ids=kind)
def test_score_reads_the_points_of_its_argument(estimator):
    frame = pd.DataFrame(Y, columns=[f"t_{t:.4f}" for t in GRID])
    model = estimator.fit(X, frame)
    expected = model.score(X, Y)
    assert model.score(X, frame) == model.score(X, frame[frame.columns[::-1]]) == pytest.approx(expected)
    half = r2_score(Y[:, :6].ravel(), model.predict(X)[:, :6].ravel())
    coordinates = xarray.DataArray(Y[:, :6], dims=("curve", "t"), coords={"t": model.grid_[:6]})
    assert model.score(X, frame.iloc[:, :6]) == pytest.approx(half)
    assert model.score(X, coordinates) == pytest.approx(half)
    with pytest.raises(InputError, match="columns"):
        model.score(X, frame.set_axis(list("abcdefghijkl"), axis=1))
    with pytest.raises(InputError, match=r"6 columns|12 columns"):
        model.score(X, Y[:, :6])
    for wrong in (FunctionalData(Y, 10 * GRID), coordinates.assign_coords(t=GRID[:6] + 3)):
        with pytest.raises(DomainError, match="domain"):
            model.score(X, wrong)


def test_score_after_a_fit_to_an_array_reads_column_names():
    model = ovkgp.KernelProjectionRegressor().fit(X, Y, GRID)
    expected = model.score(X, Y)
    for columns in (GRID, range(12), list("abcdefghijkl"), [f"y{i}" for i in range(12)]):
        assert model.score(X, pd.DataFrame(Y, columns=columns)) == pytest.approx(expected)
    with pytest.raises(InputError, match="increasing"):
        model.score(X, pd.DataFrame(Y, columns=GRID[::-1]))
    with pytest.raises(DomainError):
        model.score(X, pd.DataFrame(Y, columns=10 * GRID))


def test_complete_reads_the_points_of_its_argument():
    frame = pd.DataFrame(np.where(GRID < 0.5, Y, np.nan), columns=GRID)
    model = ovkgp.FunctionGPRegressor(**QUICK).fit(X, pd.DataFrame(Y, columns=GRID))
    expected = model.complete(X, frame.to_numpy())
    np.testing.assert_allclose(model.complete(X, frame[frame.columns[::-1]]), expected, atol=1e-8)
    part = xarray.DataArray(Y[:, :6], dims=("curve", "t"), coords={"t": GRID[:6]})
    np.testing.assert_allclose(model.complete(X, part), expected, atol=1e-8)
    np.testing.assert_allclose(model.complete(X, Y[:, :6], observed_grid=GRID[:6]), expected, atol=1e-8)
    with pytest.raises(InputError, match="distinct"):
        model.complete(X, np.hstack([Y, Y]), observed_grid=np.r_[GRID, GRID])
    for y, points in ((Y[:, :3], [5.0, 6.0, 7.0]), (FunctionalData(Y, 10 * GRID), None)):
        with pytest.raises(DomainError, match="domain"):
            model.complete(X, y, observed_grid=points)


def test_unobserved_points_stay_in_the_grid():
    partial = Y.copy()
    partial[:, 4] = np.nan
    names = [f"t{t:.3f}" for t in GRID]
    with pytest.warns(FitWarning, match="1 of 12 points"):
        model = ovkgp.FunctionGPRegressor(**QUICK).fit(X, pd.DataFrame(partial, columns=names))
    np.testing.assert_allclose(model.grid_, np.round(GRID, 3))
    assert model.output_names_ == names and model.predict(X).shape == Y.shape
    assert model.score(X, partial) == pytest.approx(model.score(X, Y), abs=0.05)
    assert np.abs(model.complete(X, partial) - Y).mean() < 0.2
    np.testing.assert_allclose(model.training_data()[1], partial, atol=1e-12)
    alone = Y.copy()
    alone[1:, 3] = np.nan
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        assert cross_val_predict(ovkgp.FunctionGPRegressor(**QUICK), X, alone, cv=3).shape == Y.shape


@pytest.mark.parametrize("estimator", fast(), ids=kind)
def test_masked_values_are_missing(estimator):
    masked = np.ma.masked_array(np.where(np.isnan(GAPS), 999.0, Y), mask=np.isnan(GAPS))
    expected = estimator.fit(X, GAPS, grid=GRID).predict(X)
    for y in (masked, FunctionalData(masked, GRID)):
        np.testing.assert_allclose(estimator.fit(X, y, None if y is not masked else GRID).predict(X), expected)


@pytest.mark.parametrize("estimator", fast(), ids=kind)
def test_square_table_with_a_list_of_grids_is_ragged(estimator):
    grids = [GRID + 0.01 * i for i in range(12)]
    found = estimator.fit(X[:12], Y[:12], grids)
    assert found.domain_.shape == (1, 2) and found.grid_.ndim == 1
    plane = FunctionalData(np.zeros((2, 2)), [[0.0, 0.0], [1.0, 1.0]])  # points of columns
    assert plane.num_dims == 2


@pytest.mark.parametrize("estimator", fast(), ids=kind)
def test_series_and_lists_of_arrays_are_curves(estimator):
    expected = estimator.fit(X, Y, grid=GRID).predict(X)
    for y in (pd.Series(list(Y)), list(Y)):
        np.testing.assert_allclose(estimator.fit(X, y, grid=GRID).predict(X), expected)
    with pytest.raises(InputError, match="numbers"):
        estimator.fit(X, [y[: 5 + i % 3] for i, y in enumerate(Y)])


@pytest.mark.parametrize("estimator", fast(), ids=kind)
def test_dates_are_points_in_days(estimator):
    days = np.datetime64("2020-01-01") + np.arange(12) * np.timedelta64(36, "h")
    model = estimator.fit(X, Y, grid=days)
    expected = model.predict(X)[:, :3]
    assert np.ptp(model.grid_) == pytest.approx(16.5)
    for grid in (days[:3].astype("datetime64[ns]"), pd.DatetimeIndex(days[:3]), days[:3].tolist()):
        np.testing.assert_allclose(model.predict(X, grid=grid), expected, atol=1e-9)
    coordinates = xarray.DataArray(Y, dims=("curve", "t"), coords={"t": days})
    np.testing.assert_allclose(estimator.fit(X, coordinates).grid_, model.grid_)


def test_xarray_inputs_are_curves_if_they_have_coordinates():
    with_points = xarray.DataArray(Y, dims=("curve", "t"), coords={"t": GRID})
    model = ovkgp.FunctionGPRegressor(**QUICK).fit(with_points, Y, grid=GRID)
    expected = ovkgp.FunctionGPRegressor(**QUICK).fit(FunctionalData(Y, GRID), Y, grid=GRID)
    np.testing.assert_allclose(model.predict(with_points), expected.predict(FunctionalData(Y, GRID)))
    table = xarray.DataArray(X, dims=("row", "column"), coords={"column": ["a", "b"]})
    assert ovkgp.FunctionGPRegressor(**QUICK).fit(table, Y).n_features_in_ == 2
    for wrong, message in (
        (with_points.to_dataset(name="y"), "Dataset"),
        (xarray.DataArray(np.zeros((24, 12, 2, 3)), dims=("s", "t", "a", "b"), coords={"t": GRID}), "DataArray"),
        (with_points.transpose("t", "curve").assign_coords(curve=np.arange(24)), "equally many rows"),
    ):
        with pytest.raises(InputError, match=message):
            model.fit(X, wrong)


def test_input_curves_have_the_channels_and_dimensions_of_the_fit():
    curves = FunctionalData(Y, GRID)
    for estimator in fast():
        model = estimator.fit(curves, Y, grid=GRID)
        with pytest.raises(InputError, match=r"channels|features"):
            model.predict(FunctionalData(np.stack([Y, Y], -1), GRID))
    with pytest.raises(InputError, match="table of inputs"):
        ovkgp.FunctionGPRegressor(**QUICK).fit(X, Y).predict(curves)
    rng = np.random.default_rng(0)
    surfaces = FunctionalData(list(Y[:, :5]), [rng.uniform(size=(5, 2)) for _ in range(24)], [(0, 1), (0, 1)])
    assert ovkgp.FunctionGPRegressor(**QUICK).fit(surfaces, Y).predict(surfaces[:2]).shape == (2, 12)


def fixed_options():
    kernel, task_kernel = ScaleKernel(RBFKernel()).double(), MaternKernel(nu=2.5).double()
    return {"kernel": kernel, "task_kernel": task_kernel, "noise": 0.1, "hyperparameters": "fixed"}


def test_fixed_hyperparameters_restrict_the_mixture_to_the_given_model():
    found = ovkgp.FunctionGPRegressor(**fixed_options()).fit(X, Y, grid=GRID)
    assert list(found.scores_) == ["given ⊗ matern52"] and found.weights_.tolist() == [1.0]
    expected = ovkgp.FunctionGPRegressor(output_basis="kernel", **fixed_options()).fit(X, Y, grid=GRID)
    np.testing.assert_array_equal(found.predict(X), expected.predict(X))


@pytest.mark.parametrize("basis", ["pca", "shared"])
@pytest.mark.parametrize(
    "option", [{"kernel": "rbf"}, {"task_kernel": "rbf"}, {"noise": "varying"}, {"deviations": False}]
)
def test_options_of_the_kernel_model_are_rejected_with_other_bases(basis, option):
    with pytest.raises(OptionError, match=f"{next(iter(option))}=.*output_basis"):
        ovkgp.FunctionGPRegressor(output_basis=basis, **option).fit(X, Y)
    with pytest.raises(OptionError, match="output_basis"):
        ovkgp.FunctionGPRegressor(output_basis=basis, **fixed_options()).fit(X, Y)


def test_given_kernel_restricts_the_mixture_to_the_kernel_model():
    found = ovkgp.FunctionGPRegressor(kernel="rbf", task_kernel="matern52", deviations=False).fit(X, Y, grid=GRID)
    assert list(found.scores_) == ["linear + rbf, ARD ⊗ matern52"]


@pytest.mark.parametrize("kernel", ["rbf", ScaleKernel(RBFKernel(ard_num_dims=2)).double(), RBFKernel().double()])
def test_predictions_do_not_depend_on_the_order_of_groups(kernel):
    groups, renamed = np.repeat(list("abcdef"), 4), np.repeat(list("dbface"), 4)
    shift = np.random.default_rng(0).standard_normal((6, 1))[np.repeat(np.arange(6), 4)]
    models = [
        ovkgp.FunctionGPRegressor(**QUICK | {"kernel": kernel}).fit(X, Y + shift, grid=GRID, groups=one)
        for one in (groups, renamed)
    ]
    np.testing.assert_allclose(models[0].predict(X, groups=groups), models[1].predict(X, groups=renamed), atol=1e-8)
    new = models[0].predict(X)
    np.testing.assert_allclose(models[1].predict(X), new, atol=1e-8)
    np.testing.assert_allclose(models[0].predict(X[::-1])[::-1], new, atol=1e-8)
    known = models[0].predict(X, groups=groups)
    assert np.abs(known - Y - shift).mean() < 0.6 * np.abs(new - Y - shift).mean()


def test_model_with_groups_and_a_kernel_object_is_saved(tmp_path):
    groups = np.repeat(list("abcdef"), 4)
    kernel = AdditiveKernel(RBFKernel(active_dims=(0,)), ScaleKernel(LinearKernel())).double()
    model = ovkgp.FunctionGPRegressor(**QUICK | {"kernel": kernel}).fit(X, Y, grid=GRID, groups=groups)
    model.save(tmp_path / "m.ovkgp")
    loaded = ovkgp.load(tmp_path / "m.ovkgp")
    np.testing.assert_allclose(loaded.predict(X, groups=groups), model.predict(X, groups=groups), rtol=1e-12)


def test_groups_reject_missing_labels_and_fixed_hyperparameters():
    model = ovkgp.FunctionGPRegressor(**QUICK)
    for groups in ([None, *"abcdefghijklmnopqrstuvw"], np.r_[np.nan, np.arange(23)]):
        with pytest.raises(InputError, match="row 0"):
            model.fit(X, Y, groups=groups)
    with pytest.raises(OptionError, match="fixed"):
        ovkgp.FunctionGPRegressor(**fixed_options()).fit(X, Y, groups=np.arange(24) // 4)


@pytest.mark.parametrize(
    ("dictionary", "grid"),
    [
        (Fourier(4), 2 * GRID),
        (BSplines(8), GRID - 0.5),
        (TensorProduct(BSplines(5), BSplines(5)), GRID),
        (Fourier(3), np.random.default_rng(0).uniform(size=(12, 2))),
    ],
)
def test_dictionary_must_be_defined_on_the_domain_of_the_curves(dictionary, grid):
    with pytest.raises(DomainError, match="output_basis"):
        ovkgp.FunctionGPRegressor(dictionary, kernel="rbf").fit(X, Y, grid=grid)


@pytest.mark.parametrize(
    "options",
    [
        {"output_basis": BSplines(5), "kernel": "rbf", "deviations": False},
        {**fixed_options(), "output_basis": "kernel", "task_kernel": DictionaryKernel(Fourier(3))},
        {"output_basis": Fourier(3), **{k: v for k, v in fixed_options().items() if k != "task_kernel"}},
    ],
)
def test_models_with_a_dictionary_are_saved(options, tmp_path):
    model = ovkgp.FunctionGPRegressor(**options).fit(X, Y, grid=GRID)
    model.save(tmp_path / "m.ovkgp")
    loaded = ovkgp.load(tmp_path / "m.ovkgp")
    for found, expected in zip(
        loaded.predict(X, grid=[0.1, 0.9], return_std=True),
        model.predict(X, grid=[0.1, 0.9], return_std=True),
        strict=True,
    ):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("basis", ["kernel", "pca", "shared", BSplines(5)])
def test_derivatives_of_higher_order_are_rejected(basis):
    options = {} if basis in ("pca", "shared") else QUICK | {"deviations": False}
    model = ovkgp.FunctionGPRegressor(**options | {"output_basis": basis}).fit(X[:12], Y[:12], grid=GRID)
    for method in (model.predict, model.predict_interval, model.sample_y):
        with pytest.raises(OptionError, match="derivative"):
            method(X[:2], derivative=2)


def test_derivatives_on_a_plane_are_rejected():
    plane = np.random.default_rng(0).uniform(size=(12, 2))
    model = ovkgp.FunctionGPRegressor(output_basis="shared").fit(X, Y, grid=plane)
    with pytest.raises(OptionError, match="derivative"):
        model.predict(X, derivative=1)


def test_one_training_curve_gives_a_warning():
    with pytest.warns(FitWarning, match="only one training row"):
        ovkgp.FunctionGPRegressor(**QUICK).fit(X[:1], Y[:1], grid=GRID)


@pytest.mark.parametrize("basis", ["pca", "shared"])
@pytest.mark.parametrize("value", [0.0, 0.1])
def test_equal_constant_curves_are_predicted(basis, value):
    model = ovkgp.FunctionGPRegressor(output_basis=basis).fit(X, np.full(Y.shape, value), grid=GRID)
    mean, std = model.predict(X, return_std=True)
    np.testing.assert_allclose(mean, value, atol=1e-3)
    assert np.isfinite(std).all()
