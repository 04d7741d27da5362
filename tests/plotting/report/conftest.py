"""Small fitted models, made once, and a parser of pages."""

from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest

import ovkgp

VOID = {"meta", "img", "link", "br", "hr", "input"}


class Page(HTMLParser):
    """Parsed page: headings, texts, rows of tables, images, addresses; `open` is empty if every tag was closed."""

    def __init__(self, text: str):
        super().__init__()
        self.text, self.open, self.texts = text, [], []
        self.headings, self.rows, self.images, self.addresses, self.ids, self.scopes = [], [], [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        if tag not in VOID:
            self.open.append(tag)
        self.addresses += [attrs[name] for name in ("src", "href", "data", "action") if name in attrs]
        self.ids += [attrs["id"]] if "id" in attrs else []
        if tag == "img":
            self.images.append(attrs)
        if tag == "tr":
            self.rows.append([])
        if tag in ("th", "td"):
            self.rows[-1].append("")
            self.scopes += [attrs.get("scope")] if tag == "th" else []
        if tag == "data":
            self.rows[-1][-1] = float(attrs["value"])
        if tag in ("h1", "h2"):
            self.headings.append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" in self.open:
            return
        self.texts.append(data.replace("\N{NO-BREAK SPACE}", " "))
        if self.open and self.open[-1] in ("h1", "h2"):
            self.headings[-1] += data
        if self.open and self.open[-1] in ("th", "td"):
            self.rows[-1][-1] += data

    @property
    def prose(self) -> str:
        """All texts, with single spaces."""
        return " ".join(" ".join(self.texts).split())

    def row(self, *beginning) -> list:
        """The one row of a table that begins so."""
        (found,) = [row for row in self.rows if tuple(row[: len(beginning)]) == beginning]
        return found


@pytest.fixture(scope="session")
def read():
    """Parser of a page, from its path or its text."""
    return lambda source: Page(source if isinstance(source, str) else source.read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def time_series():
    """Thirty rows of time ↦ u, v, w as data frames, with entries missing; w has few."""
    rng = np.random.default_rng(0)
    time = np.sort(rng.uniform(0, 6, 30))
    Y = np.column_stack([np.sin(time), 50 * np.sin(time) + 100, np.cos(time)]) + [0.1, 5.0, 0.1] * rng.normal(
        size=(30, 3)
    )
    Y[::5, 1] = np.nan
    Y[:24, 2] = np.nan
    return pd.DataFrame({"time": time}), pd.DataFrame(Y, columns=["u", "v", "w"])


@pytest.fixture(scope="session")
def coupled(time_series):
    """An exact model of `time_series`, by evidence."""
    return ovkgp.GPRegressor("decomposable", hyperparameters="evidence", random_state=0).fit(*time_series)


@pytest.fixture(scope="session")
def ridge(time_series):
    """A miscalibrated ridge regression of `time_series`."""
    return ovkgp.OVKRidge("decomposable", lam=1e-2, fit_intercept=True).fit(*time_series)


@pytest.fixture(scope="session")
def features(time_series):
    """A model of `time_series` that stores no rows."""
    return ovkgp.GPRegressor("decomposable", approximation="orff", num_frequencies=20, random_state=0).fit(*time_series)


@pytest.fixture(scope="session")
def mixed():
    """Counts and numbers with heavy tails over two inputs, by variational inference, which stores no rows."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (12, 2))
    Y = np.column_stack([rng.poisson(3, 12), X[:, 0]])
    model = ovkgp.GPRegressor("independent", likelihood=["poisson", "student_t"], num_frequencies=4, random_state=0)
    return model.fit(X, Y)


@pytest.fixture(scope="session")
def chains():
    """A model of twelve numbers with two short chains of NUTS."""
    X = np.linspace(0, 6, 12)[:, None]
    y = pd.Series(np.sin(X[:, 0]) + 0.1 * np.random.default_rng(0).normal(size=12), name="height")
    sampling = {"draws": 25, "tune": 25, "chains": 2, "max_draws": 4, "prior_draws": 0}
    model = ovkgp.GPRegressor("independent", hyperparameters="nuts", sampling=sampling, random_state=0)
    with pytest.warns(ovkgp.exceptions.FitWarning):
        return model.fit(pd.DataFrame(X, columns=["time"]), y)


@pytest.fixture(scope="session")
def field():
    """A divergence-free field in the plane."""
    X = np.random.default_rng(0).uniform(-1, 1, (25, 2))
    names = {"X": ["east", "north"], "Y": ["u", "v"]}
    X, Y = pd.DataFrame(X, columns=names["X"]), pd.DataFrame(np.stack([-X[:, 1], X[:, 0]], 1), columns=names["Y"])
    return ovkgp.OVKRidge("divergence_free", lam=1e-2, lengthscale=1.0).fit(X, Y)


@pytest.fixture(scope="session")
def quantiles():
    """All quantiles of forty rows with two inputs."""
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 3, (40, 2))
    y = np.sin(X[:, 0]) + 0.3 * rng.normal(size=40)
    return ovkgp.InfiniteQuantileRegressor(lengthscale=1.0, lam=1e-2, random_state=0).fit(X, y)


@pytest.fixture(scope="session")
def trees():
    """Thirty rows of three kinds of trees in the plane, and their classifier."""
    rng = np.random.default_rng(0)
    kinds = np.repeat(["ash", "birch", "cedar"], 10)
    X = rng.normal(size=(30, 2)) + np.repeat([[0, 0], [3, 0], [0, 3]], 10, axis=0)
    return ovkgp.SimplexClassifier(lam=0.1).fit(X, kinds), X, kinds


@pytest.fixture(scope="session")
def costs():
    """A classifier for all costs, fitted to two classes in the plane."""
    rng = np.random.default_rng(0)
    labels = np.repeat(["no", "yes"], 15)
    X = rng.normal(size=(30, 2)) + 2.0 * (labels == "yes")[:, None]
    return ovkgp.InfiniteCostSensitiveClassifier(lam=1e-2, num_tasks=5, random_state=0).fit(X, labels), X, labels


@pytest.fixture(scope="session")
def levels():
    """Level sets of forty points in the plane."""
    X = np.random.default_rng(0).normal(size=(40, 2))
    return ovkgp.InfiniteOneClassSVM(num_tasks=6).fit(X), X


@pytest.fixture(scope="session")
def styles():
    """Two outputs at three tasks, for twelve rows."""
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 3, (12, 1))
    Y = np.sin(X[:, :, None] + np.arange(3)[:, None] + np.array([0.0, 0.5]))
    return ovkgp.VectorTaskRegressor(lam=1e-4).fit(X, Y), X, Y
