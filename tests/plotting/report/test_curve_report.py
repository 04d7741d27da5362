"""Reports on estimators of curves: sections, figures, and curves given again or held out."""

import warnings

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

import ovkgp
from ovkgp.exceptions import InputError, OptionError
from ovkgp.functional import FunctionalData
from ovkgp.plotting import write_report
from ovkgp.plotting.report.curve_data import collect_curve_rows, cover_whole_curves, predict_entries
from ovkgp.plotting.report.curve_sections import assess_curves, collect_curve_warnings

GRID = np.linspace(0, 2, 45)
SECTIONS = ["Warnings", "Data", "Model", "Hyperparameters", "Fit", "Calibration"]


def make_curves(num_rows, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (num_rows, 2))
    Y = np.sin(3 * GRID + X[:, :1]) + X[:, 1:] * GRID + 0.1 * rng.standard_normal((num_rows, len(GRID)))
    return X, Y


X, Y = make_curves(30)
NEW_X, NEW_Y = make_curves(25, seed=1)


def write(model, folder, read, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        page = read(write_report(model, folder / "report.html", **options))
    assert plt.get_fignums() == []
    assert page.open == [] and page.headings[1:] == SECTIONS and page.prose.count("nan") == 0
    assert len(page.rows) < 30  # no table with a row per point
    assert all(image["alt"] for image in page.images)
    return page


@pytest.fixture(scope="module")
def ridge():
    frame = pd.DataFrame(X, columns=["age", "dose"])
    return ovkgp.FunctionalRidge(lam=1e-4).fit(frame, Y, GRID)


@pytest.fixture(scope="module")
def gp():
    return ovkgp.FunctionGPRegressor(output_basis="pca", num_components=3).fit(X, Y, grid=GRID)


def test_report_shows_curves_of_the_fit(ridge, tmp_path, read):
    page = write(ridge, tmp_path, read)
    assert page.headings[0] == "Curves on 45 points over age and dose"
    assert "30 curves with 1350 observed values" in page.prose and "in-sample" in page.prose
    assert page.row("curves", "1350")[3:6] == pytest.approx([Y.min(), Y.mean(), Y.max()])
    alts = " ".join(image["alt"] for image in page.images)
    assert "simultaneous 90 % bands" in alts and "residuals along the domain" in alts and len(page.images) == 2
    assert "not assessed on the curves of the fit" in page.prose


def test_report_assesses_bands_on_held_out_curves(ridge, tmp_path, read):
    page = write(ridge, tmp_path, read, X=NEW_X, Y=NEW_Y)
    lower, upper = ridge.predict_interval(pd.DataFrame(NEW_X, columns=["age", "dose"]), 0.9)
    inside = np.mean((lower <= NEW_Y) & (upper >= NEW_Y))
    assert f"Coverage of the 90 % pointwise bands: {100 * inside:.0f} % of 1125 values" in page.prose
    assert "90 % simultaneous bands" in page.prose and "of 25 curves" in page.prose
    assert any("inside of pointwise bands" in image["alt"] for image in page.images)


@pytest.mark.slow
def test_report_of_loaded_model_is_identical(ridge, tmp_path, read):
    ridge.save(tmp_path / "m.ovkgp")
    first = write(ridge, tmp_path, read).text
    assert write(ovkgp.load(tmp_path / "m.ovkgp"), tmp_path, read).text == first


@pytest.mark.slow
def test_report_shows_components_and_weights(gp, tmp_path, read):
    page = write(gp, tmp_path, read, X=NEW_X, Y=NEW_Y)
    assert any("principal components" in image["alt"] for image in page.images)
    np.testing.assert_allclose(gp.basis_functions().values.T @ gp.basis_functions().values, np.eye(3), atol=1e-8)
    mixture = ovkgp.FunctionGPRegressor(output_basis="kernel", task_kernel="rbf").fit(X[:12], Y[:12, ::5], GRID[::5])
    assert sum(mixture.model_weights().values()) == pytest.approx(1)
    page = write(mixture, tmp_path, read)
    assert any("weights of the models" in image["alt"] for image in page.images)
    assert any("kernel of the domain: lengthscale" in str(row) for row in page.rows)


def test_report_shows_outliers_of_robust_regression(tmp_path, read):
    outlying = Y.copy()
    outlying[:3] += 5.0
    model = ovkgp.RobustFunctionalRegressor(p=2, lam=1e-3).fit(X, outlying, GRID)
    page = write(model, tmp_path, read)
    number = int((model.outlier_scores_ > 0.5).sum())
    assert f"{number} curves have a score above 0.5" in page.prose and "regular curves" in page.prose
    assert any("outlier scores" in image["alt"] for image in page.images)
    assert "bands" not in page.images[0]["alt"]  # the model has none


def test_report_shows_dictionaries_and_estimators_without_bands(tmp_path, read):
    model = ovkgp.KernelProjectionRegressor(lam=1e-3, num_functions=6).fit(X, Y, GRID)
    page = write(model, tmp_path, read)
    assert any("functions of the dictionary" in image["alt"] for image in page.images)
    page = write(ovkgp.KernelCurveRegressor().fit(X, Y, GRID), tmp_path, read, X=NEW_X, Y=NEW_Y)
    assert len(page.images) == 2 and "Coverage" not in page.prose.replace("Calibration", "")


@pytest.mark.slow
def test_report_supports_curves_at_different_points_and_channels(tmp_path, read):
    rng = np.random.default_rng(0)
    grids = [np.sort(rng.choice(GRID, 8, replace=False)) for _ in X]
    ragged = FunctionalData([np.interp(t, GRID, y) for t, y in zip(grids, Y, strict=True)], grids, (0, 2))
    model = ovkgp.KernelProjectionRegressor(lam=1e-3, num_functions=5).fit(X, ragged)
    page = write(model, tmp_path, read, X=X, Y=ragged)
    assert "different points" in page.prose and "those of the fit" in page.prose
    channels = FunctionalData(np.stack([Y, -Y], -1)[:, ::9], GRID[::9])
    options = {"output_basis": "kernel", "task_kernel": "rbf", "kernel": "rbf", "deviations": False}
    page = write(ovkgp.FunctionGPRegressor(**options).fit(X, channels), tmp_path, read)
    assert page.row("channel 1", "150")[4] == pytest.approx(-Y[:, ::9].mean())


@pytest.mark.slow
def test_report_maps_functions_on_a_plane(tmp_path, read):
    points = np.stack(np.meshgrid(np.linspace(0, 1, 8), np.linspace(0, 1, 7), indexing="ij"), -1).reshape(-1, 2)
    fields = np.exp(-np.square(points - X[:, None]).sum(-1))
    model = ovkgp.FunctionGPRegressor(output_basis="pca").fit(X[:20], fields[:20], grid=points)
    page = write(model, tmp_path, read, X=X[20:], Y=fields[20:])
    assert page.headings[0] == "Functions on 56 points over 2 inputs"
    assert any("Maps of given curves" in image["alt"] for image in page.images)


def test_training_curves_of_gaussian_process_are_those_of_the_fit():
    options = {"output_basis": "kernel", "task_kernel": "rbf", "kernel": "rbf", "deviations": False}
    grids = [GRID[i % 3 : 30 : 6] for i in range(8)]
    ragged = FunctionalData([Y[i, i % 3 : 30 : 6] for i in range(8)], grids, (0, 2))
    model = ovkgp.FunctionGPRegressor(**options).fit(X[:8], ragged)
    found, curves = model.training_curves()
    np.testing.assert_allclose(found, X[:8])
    assert curves.is_ragged and model.training_data() is None
    for (points, values), (wanted_points, wanted) in zip(curves.curves(), ragged.curves(), strict=True):
        np.testing.assert_allclose(points, wanted_points)
        np.testing.assert_allclose(values, wanted)
    assert not any("points (from" in text for text in collect_curve_warnings(model, collect_curve_rows(model)))
    inputs = FunctionalData(np.sin(GRID[::9] * X[:8, :1]), GRID[::9])
    model = ovkgp.FunctionGPRegressor(**options).fit(inputs, Y[:8, ::9], grid=GRID[::9])
    np.testing.assert_allclose(model.predict(model.training_curves()[0]), model.predict(inputs), atol=1e-8)


def test_predict_entries_are_predictions_at_observed_values(ridge):
    values = NEW_Y.copy()
    values[0, 10:] = np.nan
    rows = collect_curve_rows(ridge, NEW_X, values)
    entries = predict_entries(ridge, rows)
    observed = np.isfinite(values)
    np.testing.assert_allclose(entries.y, values[observed])
    mean, std = ridge.predict(rows.X, return_std=True)
    np.testing.assert_allclose(entries.mean, mean[observed])
    np.testing.assert_allclose(entries.std, std[observed])
    total = np.sum((values[observed] - values[observed].mean()) ** 2)
    assert entries.explained == pytest.approx(1 - np.sum((values - mean)[observed] ** 2) / total)


def test_cover_whole_curves_counts_curves_inside_at_all_points(ridge):
    rows = collect_curve_rows(ridge, NEW_X, NEW_Y)
    lower, upper = ridge.predict_interval(rows.X, 0.9, simultaneous=True)
    wanted = ((lower <= NEW_Y) & (upper >= NEW_Y)).all(1)
    np.testing.assert_array_equal(cover_whole_curves(ridge, rows, 0.9), wanted)


def test_curves_of_the_fit_are_excluded_from_the_assessment(ridge):
    rows = collect_curve_rows(ridge, np.vstack([X[:5], NEW_X]), np.vstack([Y[:5], NEW_Y]))
    np.testing.assert_array_equal(np.flatnonzero(rows.is_training), np.arange(5))
    found = assess_curves(ridge, rows, predict_entries(ridge, rows))
    alone = collect_curve_rows(ridge, NEW_X, NEW_Y)
    assert found.assessments == assess_curves(ridge, alone, predict_entries(ridge, alone)).assessments
    assert found.note.startswith("5 of the 30 given curves")


def test_collect_curve_warnings_finds_few_curves_gaps_and_extrapolation():
    values = Y[:8].copy()
    values[2:, 40:] = np.nan
    model = ovkgp.FunctionalRidge().fit(X[:8], values, GRID)
    few, gaps = collect_curve_warnings(model, collect_curve_rows(model))
    assert "8 curves" in few and "5 points" in gaps and "at most 2 curves" in gaps
    rows = collect_curve_rows(model, 10 + X, Y)
    assert "100 %" in collect_curve_warnings(model, rows)[-1]


def test_report_rejects_invalid_rows(ridge, tmp_path):
    with pytest.raises(InputError, match="together"):
        write_report(ridge, tmp_path / "r.html", X=X)
    with pytest.raises(InputError, match="45 columns"):
        write_report(ridge, tmp_path / "r.html", X=X, Y=Y[:, :4])
    with pytest.raises(InputError, match="no observed values"):
        write_report(ridge, tmp_path / "r.html", X=X, Y=np.full_like(Y, np.nan))
    with pytest.raises(OptionError, match="groups"):
        write_report(ridge, tmp_path / "r.html", X=X, Y=Y, groups=np.arange(30))
    assert not (tmp_path / "r.html").exists()
