"""Plots are drawn on the Agg canvas, and the figures of a test are closed after it."""

import matplotlib
import pytest

matplotlib.use("Agg")


@pytest.fixture(autouse=True)
def no_open_figures():
    yield
    import matplotlib.pyplot as plt

    plt.close("all")
