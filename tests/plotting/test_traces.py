"""Tests of `ovkgp.plotting.traces`."""

import numpy as np
import plot_cases
import pytest
from matplotlib.figure import Figure
from scipy.stats import gaussian_kde
from sklearn.exceptions import NotFittedError

import ovkgp
from ovkgp.exceptions import InputError, OptionError
from ovkgp.inference.sampling.arviz_data import make_dataset, to_arviz_object
from ovkgp.plotting import plot_traces
from ovkgp.plotting.traces import Entry, list_entries, select_entries, select_worst

pytestmark = pytest.mark.filterwarnings("error")


def draws(seed: int = 0):
    """Two chains of a number for each output, a matrix between them, and a number that does not vary."""
    rng = np.random.default_rng(seed)
    matrix = rng.normal(size=(2, 40, 2, 2))
    values = {
        "noise": rng.gamma(2.0, size=(2, 40, 2)),
        "output_matrix": matrix + matrix.swapaxes(2, 3),
        "df": np.ones((2, 40)),
    }
    names = ("chain", "draw")
    dims = {"noise": (*names, "output"), "output_matrix": (*names, "output", "output_bis"), "df": names}
    return make_dataset(values, dims, {"output": ["u", "v"], "output_bis": ["u", "v"]})


@pytest.mark.parametrize("kind", ["inference_data", "datatree", "dataset"])
def test_plot_traces_shows_row_per_entry_and_line_per_chain(kind):
    group = draws()
    axes = plot_traces(group if kind == "dataset" else to_arviz_object({"posterior": group}, kind))
    names = ["noise[u]", "noise[v]", "output_matrix[u, u]", "output_matrix[u, v]", "output_matrix[v, v]"]
    assert axes.shape == (5, 2) and [left.get_xlabel() for left in axes[:, 0]] == names
    for chain, line in enumerate(axes[0, 1].get_lines()):
        np.testing.assert_array_equal(line.get_ydata(), group["noise"].values[chain, :, 0])
    for chain, line in enumerate(axes[0, 0].get_lines()):
        wanted = gaussian_kde(group["noise"].values[chain, :, 0])(line.get_xdata())
        np.testing.assert_allclose(line.get_ydata(), wanted)
    assert len({line.get_linestyle() for line in axes[0, 0].get_lines()}) == 2
    assert axes[-1, 1].get_xlabel() == "draw"


def test_plot_traces_of_model_is_in_original_units():
    model = plot_cases.drawn()
    axes = plot_traces(model, names="lengthscale")
    wanted = model.to_arviz()["posterior"]["lengthscale"].values.ravel()
    np.testing.assert_allclose(axes[0, 1].get_lines()[0].get_ydata(), wanted)
    assert not np.allclose(wanted, model.draws_["posterior"]["lengthscale"].values.ravel())
    assert len(plot_traces(model)) == len(
        [entry for entry in list_entries(model.to_arviz()["posterior"]) if np.ptp(entry.draws)]
    )


def test_plot_traces_does_not_warn():
    plot_traces(draws(), names="noise")[0, 0].figure.canvas.draw()


def test_select_entries_finds_variable_or_entry_name():
    entries = list_entries(draws())
    assert [e.name for e in select_entries(entries, ["output_matrix[u, v]", "noise"])] == [
        "output_matrix[u, v]",
        "noise[u]",
        "noise[v]",
    ]
    with pytest.raises(OptionError, match="'noise', 'output_matrix', 'df', got 'sigma'"):
        select_entries(entries, ["sigma"])


def test_select_worst_keeps_largest_rhat():
    rng = np.random.default_rng(0)
    entries = [Entry(f"e{i}", "e", rng.normal(size=(2, 50))) for i in range(6)]
    entries[3] = Entry("e3", "e", rng.normal([[0.0], [5.0]], size=(2, 50)))  # two modes
    entries.append(Entry("fixed", "fixed", np.ones((2, 50))))
    assert [entry.name for entry in select_worst(entries, max_entries=1)] == ["e3"]
    assert len(select_worst(entries, max_entries=6)) == 6


def test_plot_traces_of_few_draws_shows_marks():
    group = make_dataset({"noise": np.array([[1.0, 2.0, 3.0]])}, {"noise": ("chain", "draw")})
    axes = plot_traces(group, ax=Figure().subplots(1, 2))
    assert axes[0, 0].get_lines()[0].get_marker() == "|"


def test_plot_traces_rejects_invalid_input():
    with pytest.raises(NotFittedError):
        plot_traces(ovkgp.GPRegressor())
    with pytest.raises(OptionError, match='hyperparameters="nuts"'):
        plot_traces(plot_cases.two_outputs())
    for data in ({}, 3, np.ones(3)):
        with pytest.raises(InputError, match="ArviZ"):
            plot_traces(data)
    with pytest.raises(OptionError, match="no draws"):
        plot_traces(draws()[["df"]])
    with pytest.raises(InputError, match="expected 4"):
        plot_traces(draws(), names="noise", ax=Figure().subplots(1, 3))
