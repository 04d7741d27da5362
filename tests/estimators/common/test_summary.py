"""Tests of `ovkgp.estimators.common.summary`."""

import numpy as np
import pandas as pd
import pytest
from gpytorch.kernels import RBFKernel

import ovkgp
from ovkgp.criticism import coverage
from ovkgp.estimators.common import summary as summary_module
from ovkgp.estimators.common.summary import (
    MAX_CORRELATED_OUTPUTS,
    MAX_SUMMARY_ROWS,
    ColumnNames,
    Hyperparameter,
    Summary,
    format_hyperparameters,
    hyperparameter_table,
    list_hyperparameters,
    pluralize,
    split_output,
)
from ovkgp.exceptions import FactorizationError
from ovkgp.inference.sampling.diagnostics import rhat
from ovkgp.inference.strategies.exact import DenseStrategy, ExactStrategy, KroneckerStrategy
from ovkgp.inference.training import numpy_density
from ovkgp.kernels import IndependentKernel

INPUTS, OUTPUTS = ["east", "north"], ["u", "v"]
SIGNAL = np.array([[4.0, 3.0], [3.0, 9.0]])  # standard deviations 2 and 3, correlation 1/2


def listed(values, structure=None, inputs=INPUTS, outputs=OUTPUTS):
    """Return rows (parameter, output, input, value) for values (*shape) of one draw."""
    draws = {name: np.asarray(value, dtype=np.float64)[None, None] for name, value in values.items()}
    rows = list_hyperparameters(draws, ColumnNames(inputs, outputs, structure))
    return [(*row[:3], pytest.approx(row.draws.item())) for row in rows]


def table(n=12):
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 5, (n, 2)) * [1.0, 20.0]
    Y = np.c_[np.sin(X[:, 0]), 50 + 10 * np.cos(X[:, 1] / 20)] + rng.standard_normal((n, 2)) * [0.1, 1.0]
    return X, Y


def fitted(**options):
    """Return a model at its initial hyperparameters."""
    X, Y = table()
    model = ovkgp.GPRegressor(**{"hyperparameters": "fixed", "random_state": 0} | options)
    return model.fit(pd.DataFrame(X, columns=INPUTS), pd.DataFrame(Y, columns=OUTPUTS))


def row(parameter, output, column, *values):
    return Hyperparameter(parameter, output, column, np.array([values], dtype=np.float64))


# --- names ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("1.lengthscale", ("lengthscale", 1)),
        ("0.component_1.lengthscale", ("component_1.lengthscale", 0)),
        ("scale_1", ("scale", 1)),
        ("scale_2", ("scale_2", None)),  # there are two outputs
        ("lengthscale", ("lengthscale", None)),
        ("output_matrix", ("output_matrix", None)),
        ("curl_free.lengthscale", ("curl_free.lengthscale", None)),
        ("component_1.output_matrix", ("component_1.output_matrix", None)),
        ("mean.slopes", ("mean.slopes", None)),
    ],
)
def test_split_output_finds_the_output_of_a_hyperparameter(path, expected):
    assert split_output(path, num_outputs=2) == expected


def test_column_names_are_those_of_the_fit():
    assert ColumnNames.of(fitted(kernel="decomposable")) == (INPUTS, OUTPUTS, "decomposable")


@pytest.mark.parametrize(
    ("inputs", "outputs", "expected"),
    [
        (["a", "a"], ["u", "v"], (["x0", "x1"], ["u", "v"])),
        (["a", "b"], ["u", "u"], (["a", "b"], ["y0", "y1"])),
    ],
)
def test_column_names_are_numbered_if_duplicate(inputs, outputs, expected):
    """Data frames must have distinct names, but the names of a stream may repeat."""
    model = fitted(kernel="independent")
    model.feature_names_in_, model.output_names_ = np.array(inputs, dtype=object), outputs
    assert ColumnNames.of(model)[:2] == expected
    lengthscales = [entry[1:3] for entry in hyperparameter_table(model) if entry.parameter == "lengthscale"]
    assert lengthscales == [(output, column) for output in expected[1] for column in expected[0]]


def test_column_names_are_numbered_without_data_frames():
    model = ovkgp.GPRegressor("independent", hyperparameters="fixed").fit(*table())
    assert ColumnNames.of(model)[:2] == (["x0", "x1"], ["y0", "y1"])


def test_pluralize_agrees_with_the_number():
    assert pluralize(1, "row") == "1 row" and pluralize(0, "row") == "0 rows"
    assert pluralize(12_345, "entry", "entries") == "12,345 entries"


# --- rows of the table ----------------------------------------------------------------------------------------------


def test_list_hyperparameters_of_independent_outputs_names_outputs():
    values = {
        "0.outputscale": 4.0,
        "0.lengthscale": [[1.0, 2.0]],
        "1.outputscale": 9.0,
        "1.lengthscale": [[3.0, 4.0]],
        "mean": [5.0, 6.0],
        "noise": [0.25, 0.01],
    }
    assert listed(values, "independent") == [
        ("lengthscale", "u", "east", 1.0),
        ("lengthscale", "u", "north", 2.0),
        ("lengthscale", "v", "east", 3.0),
        ("lengthscale", "v", "north", 4.0),
        ("signal std", "u", "", 2.0),
        ("signal std", "v", "", 3.0),
        ("noise std", "u", "", 0.5),
        ("noise std", "v", "", 0.1),
        ("mean", "u", "", 5.0),
        ("mean", "v", "", 6.0),
    ]


def test_list_hyperparameters_of_a_decomposable_kernel_has_std_and_correlation():
    assert listed({"output_matrix": SIGNAL, "lengthscale": [[1.0, 2.0]]}, "decomposable") == [
        ("lengthscale", "", "east", 1.0),
        ("lengthscale", "", "north", 2.0),
        ("signal std", "u", "", 2.0),
        ("signal std", "v", "", 3.0),
        ("signal correlation", "u, v", "", 0.5),
    ]


def test_list_hyperparameters_of_a_helmholtz_kernel_has_prefixes():
    values = {
        "curl_free.outputscale": 4.0,
        "curl_free.lengthscale": [[1.0]],
        "divergence_free.outputscale": 9.0,
        "divergence_free.lengthscale": [[2.0]],
    }
    assert listed(values, "helmholtz") == [
        ("curl_free.potential std", "", "", 2.0),
        ("curl_free.lengthscale", "", "all", 1.0),
        ("divergence_free.stream function std", "", "", 3.0),
        ("divergence_free.lengthscale", "", "all", 2.0),
    ]


@pytest.mark.parametrize(
    ("structure", "label"), [("curl_free", "potential std"), ("divergence_free", "stream function std")]
)
def test_list_hyperparameters_of_a_field_kernel_names_its_scale(structure, label):
    assert listed({"outputscale": 4.0, "lengthscale": [[3.0]]}, structure) == [
        ("lengthscale", "", "all", 3.0),
        (label, "", "", 2.0),
    ]


def test_list_hyperparameters_of_lmc_has_components():
    values = {
        "component_1.output_matrix": SIGNAL,
        "component_2.output_matrix": np.diag([1.0, 16.0]),
        "component_1.lengthscale": [[1.0, 2.0]],
        "component_2.lengthscale": [[3.0, 4.0]],
    }
    assert listed(values, "lmc") == [
        ("component_1.signal std", "u", "", 2.0),
        ("component_1.signal std", "v", "", 3.0),
        ("component_1.signal correlation", "u, v", "", 0.5),
        ("component_2.signal std", "u", "", 1.0),
        ("component_2.signal std", "v", "", 4.0),  # a diagonal matrix has no correlations
        ("component_1.lengthscale", "", "east", 1.0),
        ("component_1.lengthscale", "", "north", 2.0),
        ("component_2.lengthscale", "", "east", 3.0),
        ("component_2.lengthscale", "", "north", 4.0),
    ]


def test_list_hyperparameters_of_full_noise_has_std_and_correlation():
    assert listed({"noise": SIGNAL}) == [
        ("noise std", "u", "", 2.0),
        ("noise std", "v", "", 3.0),
        ("noise correlation", "u, v", "", 0.5),
    ]


def test_list_hyperparameters_of_shared_noise_has_one_row():
    assert listed({"noise": 0.25}) == [("noise std", "", "", 0.5)]


def test_list_hyperparameters_of_one_input_and_output_names_both():
    values = {"0.outputscale": 4.0, "0.lengthscale": [[3.0]], "noise": [0.25]}
    assert listed(values, "independent", ["time"], ["level"]) == [
        ("lengthscale", "level", "time", 3.0),
        ("signal std", "level", "", 2.0),
        ("noise std", "level", "", 0.5),
    ]


def test_list_hyperparameters_of_likelihoods_names_outputs():
    assert listed({"scale_0": 2.0, "df_0": 5.0, "noise_1": 0.25}) == [
        ("scale", "u", "", 2.0),
        ("degrees of freedom", "u", "", 5.0),
        ("noise std", "v", "", 0.5),
    ]


def test_list_hyperparameters_of_a_linear_mean_has_slopes():
    slopes = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
    found = listed({"mean.slopes": slopes, "mean": [7.0, 8.0]}, inputs=["a", "b", "c"])
    assert found[:2] == [("mean", "u", "", 7.0), ("mean", "v", "", 8.0)]
    assert found[2:] == [
        ("mean slope", output, column, slopes[i][a]) for i, column in enumerate("abc") for a, output in enumerate("uv")
    ]


def test_list_hyperparameters_omits_correlations_of_many_outputs():
    p = MAX_CORRELATED_OUTPUTS + 1
    found = listed({"output_matrix": np.eye(p) + 1}, outputs=[f"y{a}" for a in range(p)])
    assert [entry[0] for entry in found] == ["signal std"] * p


def test_list_hyperparameters_converts_each_draw():
    draws = np.array([SIGNAL, 4 * SIGNAL, np.eye(2)]).reshape(1, 3, 2, 2)
    first, second, correlation = list_hyperparameters({"output_matrix": draws}, ColumnNames(INPUTS, OUTPUTS, None))
    np.testing.assert_allclose(first.draws, [[2.0, 4.0, 1.0]])
    np.testing.assert_allclose(second.draws, [[3.0, 6.0, 1.0]])
    np.testing.assert_allclose(correlation.draws, [[0.5, 0.5, 0.0]])


# --- table of a fitted model ----------------------------------------------------------------------------------------


def values_of(model):
    return {entry[:3]: entry.draws.item() for entry in hyperparameter_table(model)}


def test_hyperparameter_table_of_independent_outputs_is_in_original_units():
    model = fitted(kernel="independent")
    found, scaling = values_of(model), model.scaling_
    for a, output in enumerate(OUTPUTS):
        kernel = model.gp_.kernel.kernels[a]
        for i, column in enumerate(INPUTS):
            lengthscale = kernel.base_kernel.lengthscale[0, i].item() * scaling.input_scale[i]
            assert found["lengthscale", output, column] == pytest.approx(lengthscale)
        std = np.sqrt(kernel.outputscale.item()) * scaling.output_scale[a]
        assert found["signal std", output, ""] == pytest.approx(std)
        assert found["noise std", output, ""] == pytest.approx(np.sqrt(model.noise_[a, a]))
        assert found["mean", output, ""] == pytest.approx(table()[1][:, a].mean())
    assert len(found) == 4 + 2 + 2 + 2


def test_hyperparameter_table_of_a_decomposable_kernel_is_in_original_units():
    model = fitted(kernel="decomposable")
    scale = model.scaling_.output_scale
    matrix = model.gp_.kernel.output_matrix.detach().numpy() * np.outer(scale, scale)
    found = values_of(model)
    for a, output in enumerate(OUTPUTS):
        assert found["signal std", output, ""] == pytest.approx(np.sqrt(matrix[a, a]))
    correlation = matrix[0, 1] / np.sqrt(matrix[0, 0] * matrix[1, 1])
    assert found["signal correlation", "u, v", ""] == pytest.approx(correlation) and correlation != 0


@pytest.mark.parametrize(
    ("kernel", "parameters"),
    [
        (
            "helmholtz",
            {
                "curl_free.potential std",
                "curl_free.lengthscale",
                "divergence_free.stream function std",
                "divergence_free.lengthscale",
            },
        ),
        (
            "lmc",
            {f"component_{k}.{name}" for k in (1, 2) for name in ("signal std", "signal correlation", "lengthscale")},
        ),
        ("curl_free", {"potential std", "lengthscale"}),
        ("divergence_free", {"stream function std", "lengthscale"}),
    ],
)
def test_hyperparameter_table_names_the_terms_of_a_kernel(kernel, parameters):
    found = hyperparameter_table(fitted(kernel=kernel))
    assert {entry.parameter for entry in found} == parameters | {"noise std", "mean"}
    inputs = {entry.input for entry in found if entry.parameter.endswith("lengthscale")}
    assert inputs == (set(INPUTS) if kernel == "lmc" else {"all"})


@pytest.mark.parametrize("noise", [0.25, [0.25, 4.0], np.array([[0.25, 0.5], [0.5, 4.0]])])
def test_hyperparameter_table_has_fixed_noise(noise):
    found = values_of(fitted(kernel="decomposable", noise=noise))
    first, second = (0.5, 0.5) if np.ndim(noise) == 0 else (0.5, 2.0)
    assert found["noise std", "u", ""] == pytest.approx(first)
    assert found["noise std", "v", ""] == pytest.approx(second)
    correlation = found.get(("noise correlation", "u, v", ""))
    assert correlation == (pytest.approx(0.5) if np.ndim(noise) == 2 else None)


def test_hyperparameter_table_of_full_noise_equals_the_noise():
    X, Y = table()
    model = ovkgp.GPRegressor("decomposable", noise="full", hyperparameters="evidence", random_state=0).fit(X, Y)
    found, noise = values_of(model), model.noise_
    std = np.sqrt(np.diag(noise))
    assert found["noise std", "y0", ""] == pytest.approx(std[0])
    assert found["noise std", "y1", ""] == pytest.approx(std[1])
    assert found["noise correlation", "y0, y1", ""] == pytest.approx(noise[0, 1] / std.prod())


def test_hyperparameter_table_of_a_kernel_object_is_not_converted():
    kernel = IndependentKernel([RBFKernel(ard_num_dims=2), RBFKernel()])
    kernel.kernels[0].lengthscale, kernel.kernels[1].lengthscale = 1.5, 2.5
    found = values_of(fitted(kernel=kernel, noise=[0.01, 1.0]))
    assert found["lengthscale", "u", "east"] == found["lengthscale", "u", "north"] == pytest.approx(1.5)
    assert found["lengthscale", "v", "all"] == pytest.approx(2.5)


# --- text -----------------------------------------------------------------------------------------------------------


def test_format_hyperparameters_has_one_value_without_draws():
    rows = [
        row("lengthscale", "u", "east", 2.92345),
        row("lengthscale", "u", "north", 1665.692),
        row("lengthscale", "v", "east", 3.0),
        row("signal std", "v", "", 1e-7),
    ]
    assert format_hyperparameters(rows) == [
        "parameter     output   input   value",
        "lengthscale   u        east    2.923",
        "                       north   1666",
        "              v        east    3",
        "signal std    v                1e-07",
    ]


def test_format_hyperparameters_omits_empty_columns():
    assert format_hyperparameters([row("noise std", "u", "", 0.5)]) == [
        "parameter   output   value",
        "noise std   u        0.5",
    ]
    assert format_hyperparameters([row("lengthscale", "", "all", 0.5)]) == [
        "parameter     input   value",
        "lengthscale   all     0.5",
    ]


def test_format_hyperparameters_has_mean_and_quantiles_with_draws():
    draws = np.random.default_rng(0).normal(3, 1, (2, 50))
    rows = [Hyperparameter("lengthscale", "u", "east", draws), row("noise std", "u", "", 0.5)]
    header, first, fixed = (line.split() for line in format_hyperparameters(rows))
    assert header == ["parameter", "output", "input", "mean", "sd", "5", "%", "95", "%", "R̂"]
    low, high = np.quantile(draws, [0.05, 0.95])
    expected = [f"{value:.4g}" for value in (draws.mean(), draws.std(), low, high)]
    assert first == ["lengthscale", "u", "east", *expected, f"{rhat(draws):.3f}"]
    assert fixed == ["noise", "std", "u", "0.5"]  # a fixed value has a mean only


def test_format_hyperparameters_omits_rhat_of_constant_draws():
    lines = format_hyperparameters([row("noise std", "u", "", 0.5, 0.5, 0.5)])
    assert lines[1].split() == ["noise", "std", "u", "0.5", "0", "0.5", "0.5"]


def test_format_hyperparameters_limits_the_number_of_rows():
    rows = [row("lengthscale", f"y{a}", "all", 1.0) for a in range(MAX_SUMMARY_ROWS + 3)]
    lines = format_hyperparameters(rows)
    assert len(lines) == MAX_SUMMARY_ROWS + 2 and lines[-1] == "... 3 more rows"


def test_summary_describes_data_evidence_and_hyperparameters():
    model = fitted(kernel="independent", noise=[0.01, 1.0])
    text = model.summary()
    assert isinstance(text, Summary) and repr(text) == str(text)
    title, data, evidence, held_out, _, header, *rows = text.splitlines()
    assert title == "GPRegressor: independent kernel, exact inference"
    assert data == "  data           2 inputs, 2 outputs, 24 observed entries (12 per output)"
    total = model.log_evidence_
    assert evidence == f"  log evidence   {total:.4g} ({total / 24:.4g} per observed entry)"
    found = model.leave_one_out_entries()
    explained = 1 - ((found.Y - found.mean) ** 2).sum(0) / ((found.Y - found.Y.mean(0)) ** 2).sum(0)
    assert held_out.startswith(f"  held-out       R² {explained[0]:.2g} (u), {explained[1]:.2g} (v); ")
    assert f"coverage of 90 % intervals: {100 * coverage(model, levels=[0.9]).overall[0]:.0f} %" in held_out
    assert header == "  hyperparameters (original units)"
    assert rows == [f"    {line}" for line in format_hyperparameters(hyperparameter_table(model))]


def test_summary_lists_counts_of_incomplete_outputs_and_notes_few():
    X, Y = table()
    Y[5:, 1] = np.nan
    text = ovkgp.GPRegressor("independent", hyperparameters="fixed").fit(X, Y).summary()
    assert "17 observed entries (y0 12, y1 5)" in text
    assert text.splitlines()[-1] == "  note: output y1 has only 5 observations"


def test_summary_lists_candidates_and_optimization():
    model = ovkgp.GPRegressor(random_state=0).fit(*table())
    text = model.summary()
    assert f"optimization: {model.fit_report_.message}" in text
    (line,) = (line for line in text.splitlines() if line.startswith("  candidates"))
    for name, score in model.candidates_.items():
        assert f"{name} {score.weight:.0%} ({score.log_density:.3g} ± {score.standard_error:.1g})" in line
    assert "mixture of candidates" in text and f"candidate {next(iter(model.candidates_))} at its mode" in text


@pytest.mark.parametrize("kernel", ["independent", "decomposable", "auto"])
def test_failed_training_lists_hyperparameters_by_column(kernel, monkeypatch):
    def fail(self, model, data):
        raise FactorizationError("The covariance matrix is not positive definite.")

    def fail_in_numpy(*arguments):
        raise np.linalg.LinAlgError

    for strategy in (KroneckerStrategy, DenseStrategy):
        monkeypatch.setattr(strategy, "log_evidence", fail)
    monkeypatch.setattr(numpy_density, "solve_and_invert", fail_in_numpy)
    monkeypatch.setattr(numpy_density.SingleOutputEvidence, "value", fail_in_numpy)
    X = pd.DataFrame({"depth": np.linspace(0, 1, 12), "age": np.linspace(3, 2, 12) ** 2})
    Y = pd.DataFrame({"salt": np.sin(X["depth"]), "heat": np.cos(X["age"])})
    with pytest.raises(FactorizationError, match="not positive definite") as caught:
        ovkgp.GPRegressor(kernel=kernel, random_state=0).fit(X, Y)
    message = str(caught.value)
    assert "lengthscale (" in message and "depth) = " in message and "noise std (salt) = " in message
    assert "raw_" not in message and "log_scale" not in message and "component" not in message


def test_failed_conditioning_lists_hyperparameters_by_column(monkeypatch):
    def fail(self, model, data, landmarks=0):
        raise FactorizationError("The covariance matrix is not positive definite.")

    monkeypatch.setattr(ExactStrategy, "condition", fail)
    X = pd.DataFrame({"depth": np.linspace(0, 1, 12)})
    with pytest.raises(FactorizationError, match=r"lengthscale \(depth\) = ") as caught:
        ovkgp.GPRegressor(kernel="decomposable", random_state=0).fit(X, pd.DataFrame({"salt": np.sin(X["depth"])}))
    assert "noise std (salt) = " in str(caught.value)


def test_summary_of_classifier_lists_columns_and_classes():
    X, labels = pd.DataFrame(np.random.default_rng(0).normal(size=(30, 2)), columns=["a", "b"]), ["low", "high"] * 15
    model = ovkgp.InfiniteCostSensitiveClassifier(random_state=0).fit(X, pd.Series(labels, name="label"))
    lines = dict(line.split(maxsplit=1) for line in str(model.summary()).splitlines())
    assert lines["estimator"] == "InfiniteCostSensitiveClassifier" and lines["inputs"] == "a, b"
    assert lines["outputs"] == "label" and lines["classes"] == "high, low" and lines["rows"] == "30"
    assert lines["training"] == model.fit_report_.message and float(lines["λ"]) == 1e-4


def test_summary_of_unnamed_columns_numbers_inputs_and_shortens_outputs():
    X = np.random.default_rng(0).normal(size=(20, 2))
    text = str(ovkgp.VectorTaskRegressor().fit(X, X @ np.ones((2, 40))).summary())
    assert "\ninputs     0, 1\n" in text and "y11, … (40 in total)\n" in text and "\nmissing    0" in text


def test_summary_omits_expensive_held_out_rows(monkeypatch):
    monkeypatch.setattr(summary_module, "MAX_SUMMARY_COST", 1.0)
    assert "held-out" not in fitted(kernel="independent", noise=[0.01, 1.0]).summary()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"hyperparameters": "laplace", "sampling": {"draws": 30}}, "hyperparameters='laplace'"),
        ({"noise": "shared"}, "noise"),
        ({"base_kernel": "laplace"}, "base_kernel='laplace'"),
        ({"approximation": "orff", "num_frequencies": 20}, "approximation='orff'"),
        pytest.param(
            {"likelihood": "student_t", "num_frequencies": 10}, "likelihood='student_t'", marks=pytest.mark.slow
        ),
    ],
)
def test_summary_says_why_auto_is_one_model(options, reason):
    X = np.random.default_rng(0).uniform(0, 5, (30, 1))
    Y = np.hstack([np.sin(X), np.cos(X)])
    text = ovkgp.GPRegressor(random_state=0, **options).fit(X, Y).summary()
    assert "no mixture of candidates, because of" in text and reason in text


def test_summary_of_one_model_with_checkpoint_or_added_rows(tmp_path):
    X = np.random.default_rng(0).uniform(0, 5, (30, 1))
    y = np.sin(X[:, 0]) + 0.1 * np.random.default_rng(1).normal(size=30)
    model = ovkgp.GPRegressor(random_state=0, num_frequencies=50)
    assert "because of a checkpoint" in model.fit(X, y, checkpoint=tmp_path / "c").summary()
    assert "no mixture" not in model.fit(X, y).summary()
    text = model.partial_fit(X, y).summary()
    assert "kernel of the candidate" in text and "rows that were added" in text


@pytest.mark.parametrize("kernel", ["independent", "decomposable", "auto"])
def test_kt_35_and_38_summary_has_degrees_of_freedom_and_components(kernel):
    """Of the entries that were observed, and of the heaviest candidate of a mixture."""
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 6, (40, 1))
    Y = np.hstack([np.sin(X), np.cos(X)]) + 0.1 * rng.standard_normal((40, 2))
    Y[::5, 1] = np.nan
    model = ovkgp.GPRegressor(kernel, random_state=0).fit(X, Y)
    seen = np.isfinite(Y).ravel()
    K = model.gp_.kernel(model.scaling_.inputs(X)).to_dense().detach().numpy()[seen][:, seen]
    noise = np.diag(np.tile(model.gp_.noise.detach().numpy(), 40)[seen])
    freedom = np.trace(K @ np.linalg.inv(K + noise))
    H = np.eye(72) - 1 / 72
    values = np.linalg.eigvalsh(H @ K @ H)[::-1]
    number = int((np.cumsum(values) / values.sum() < 0.95).sum() + 1)
    components = "component has" if number == 1 else "components have"
    expected = (
        f"the mean has {freedom:.3g} degrees of freedom for 72 entries; {number} {components} 95 % of their prior"
    )
    assert expected in model.summary()


def test_summary_omits_components_of_many_entries(monkeypatch):
    monkeypatch.setattr(summary_module, "MAX_SPECTRUM_ENTRIES", 10)
    X = np.linspace(0, 1, 20)[:, None]
    text = ovkgp.GPRegressor("independent", random_state=0).fit(X, np.sin(5 * X)).summary()
    assert "for 20 entries\n" in text
