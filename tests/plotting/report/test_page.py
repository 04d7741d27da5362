"""Tests of `ovkgp.plotting.report.page`."""

import os
import re
import warnings
from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import NotFittedError

import ovkgp
from ovkgp import estimators
from ovkgp.estimators.common.descriptions import LIKELIHOODS, STRUCTURES
from ovkgp.exceptions import InputError
from ovkgp.kernels.records import named_kernels
from ovkgp.plotting import write_report
from ovkgp.plotting.report.figures import NO_FIGURE_NOTE
from ovkgp.plotting.report.page import format_formula, render
from ovkgp.plotting.report.sections import (
    Calibration,
    Column,
    DataSummary,
    ModelDescription,
    Parameter,
    ParameterTable,
    Report,
    ReportFigure,
)

EVIL = "<script>alert('x')</script> & \"quotes\""
FIGURE = ReportFigure("data:image/png;base64,AAAA", EVIL, EVIL, 100, 50)


@pytest.fixture
def report():
    return Report(
        title="Title",
        overview="Overview: 90 % of > 99 %.",
        data=DataSummary(
            "Three rows.", (Column("x", 3, 0.0, 0.0, 1.0, 2.0, 1.0),), (Column("y", 2, 1 / 3, 0.1, 0.2, 0.3, 0.1),)
        ),
        model=ModelDescription("A model", ("Text.",), ("f_a(x) < 1",), (("Noise", "none"),)),
        parameters=ParameterTable("Points.", (Parameter("lengthscale", "", "x", 0.123456789),)),
        traces=(),
        fit=(),
        fit_note="",
        calibration=Calibration("Nothing to assess."),
        warnings=(),
        extra=(),
        notes=(),
        file_name="report.html",
        version="0",
    )


def test_render_has_all_sections(report, read):
    page = read(render(report))
    assert page.open == [] and page.text.startswith("<!DOCTYPE html>")
    assert page.headings == ["Title", "Warnings", "Data", "Model", "Hyperparameters", "Fit", "Calibration"]
    assert "No warnings." in page.prose and "Nothing to assess." in page.prose


def test_render_forbids_external_resources(report):
    assert "default-src 'none'; img-src data:; style-src 'unsafe-inline'" in render(report)


def test_render_links_lead_to_sections(report, read):
    page = read(render(replace(report, extra=(FIGURE,), notes=("a note",))))
    links = [address for address in page.addresses if address.startswith("#")]
    assert {link[1:] for link in links} == set(page.ids) and len(links) == 8


def test_render_keeps_all_digits_for_machines(report, read):
    text = render(report)
    assert '<data value="0.123456789">0.1235</data>' in text
    page = read(text)
    assert page.row("y")[1:3] == ["2", "33 %"]


def test_render_shows_intervals_and_chains_only_if_present(report, read):
    header = ["parameter", "output", "input", "value"]
    assert header in read(render(report)).rows
    with_interval = Parameter("noise", "y", "", 1.0, 0.1, 0.8, 1.2)
    table = replace(report.parameters, rows=(*report.parameters.rows, with_interval))
    page = read(render(replace(report, parameters=table)))
    assert [*header, "std. dev.", "5 %", "95 %"] in page.rows and page.row("lengthscale")[4:] == ["–", "–", "–"]
    chain = replace(with_interval, rhat=1.01, ess=99.0)
    page = read(render(replace(report, parameters=replace(table, rows=(chain,)))))
    assert page.rows[-2][-2:] == ["R̂", "ESS"]


def test_render_escapes_text(report, read):
    evil = replace(
        report,
        title=EVIL,
        overview=EVIL,
        data=DataSummary(EVIL, (Column(EVIL, 1),), (Column(EVIL),), ((EVIL, 3),), EVIL, EVIL),
        model=ModelDescription(EVIL, (EVIL,), (EVIL,), ((EVIL, EVIL),)),
        parameters=ParameterTable(EVIL, (Parameter(EVIL, EVIL, EVIL, 1.0),), EVIL, EVIL, (EVIL,)),
        fit=(FIGURE,),
        fit_note=EVIL,
        calibration=Calibration(EVIL),
        warnings=(EVIL,),
        extra=(FIGURE,),
        notes=(EVIL,),
        file_name=EVIL,
    )
    page = read(render(evil))
    assert "<script" not in page.text and page.open == []
    assert page.headings[0] == EVIL and page.images[0]["alt"] == EVIL


def test_render_table_headers_have_scope(report, read):
    assert set(read(render(report)).scopes) == {"row", "col"}


def test_render_lists_names_without_table(report, read):
    page = read(render(replace(report, data=DataSummary("Two inputs.", (Column("a"), Column("b"))))))
    assert "Inputs: a , b ." in page.prose and not any("observed" in row for row in page.rows)


def test_render_does_not_break_numbers(report):
    assert "90\N{NO-BREAK SPACE}% of &gt;\N{NO-BREAK SPACE}99\N{NO-BREAK SPACE}%" in render(report)


def test_render_counts_warnings(report, read):
    page = read(render(replace(report, warnings=("one", "two"))))
    assert "Warnings 2" in page.prose and "No warnings" not in page.prose


ESTIMATORS = {
    name: getattr(ovkgp, name).description
    for name in estimators.__all__
    if name[0].isupper() and name != "BayesSearchCV"
}
TABLES = {"estimators": ESTIMATORS, "structures": STRUCTURES, "bases": named_kernels(), "likelihoods": LIKELIHOODS}


def test_format_formula_escapes_markup():
    assert "<script>" not in format_formula("<script> & x_{<b>}")
    assert "&lt;" in format_formula("a < b")


def test_format_formula_formats_indices_and_powers():
    assert format_formula("B_{ab}") == "<var>B</var><sub><var>a</var><var>b</var></sub>"
    assert format_formula("r^2") == "<var>r</var><sup>2</sup>"
    assert format_formula("exp(x)") == "exp(<var>x</var>)"
    assert format_formula("Σ_i") == "Σ<sub><var>i</var></sub>"


@pytest.mark.parametrize("table", TABLES)
def test_format_formula_parses_all_descriptions(table):
    for description in TABLES[table].values():
        html = str(format_formula(description.formula))
        assert not re.search(r"[_^{}]", html), description.formula
        assert html.count("<sub>") == html.count("</sub>") == description.formula.count("_")
        assert html.count("<sup>") == html.count("</sup>") == description.formula.count("^")


def test_write_report_rejects_path_before_computing(tmp_path):
    link = tmp_path / "report.html"
    link.symlink_to(tmp_path / "missing" / "report.html")
    for path, error in ((tmp_path, IsADirectoryError), (link, FileNotFoundError)):
        with pytest.raises(error, match="folder"):
            write_report(None, path)


SECTIONS = ["Warnings", "Data", "Model", "Hyperparameters", "Fit", "Calibration"]
MODELS = ["coupled", "features", "mixed", "chains", "field", "quantiles", "trees", "costs", "levels", "styles"]


def written(model, folder, **options):
    """A report, with every warning an error and every figure closed."""
    before = plt.get_fignums()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        path = write_report(model, folder / "report.html", **options)
    assert plt.get_fignums() == before
    return path


@pytest.fixture(scope="module")
def reports(request, tmp_path_factory):
    """Reports of the models by name, each written once."""
    made = {}

    def report(name):
        if name not in made:
            model = request.getfixturevalue(name)
            made[name] = written(model[0] if isinstance(model, tuple) else model, tmp_path_factory.mktemp(name))
        return made[name]

    return report


@pytest.mark.parametrize("name", MODELS)
def test_write_report_makes_valid_page(name, reports, read):
    path = reports(name)
    page = read(path)
    assert page.open == [] and page.headings[1:] == SECTIONS and len(set(page.ids)) == len(page.ids)
    assert all(address.startswith(("#", "data:image/png;base64,")) for address in page.addresses)
    assert "url(" not in page.text and "@import" not in page.text and "<script" not in page.text
    assert all(image["alt"] for image in page.images) and path.stat().st_size < 2_000_000
    assert str(path.parent) not in page.text and page.prose.count("nan") == 0


def test_write_report_shows_numbers_of_estimator(coupled, time_series, reports, read):
    page = read(reports("coupled"))
    assert page.headings[0] == "u, v and w over time"
    for a, name in enumerate("uvw"):
        assert page.row("noise std", name)[3] == pytest.approx(np.sqrt(coupled.noise_[a, a]))
        column = page.row(name, str(time_series[1][name].count()))
        assert column[3:] == pytest.approx(time_series[1][name].agg(["min", "mean", "max", "std"]).tolist())
    assert page.row("lengthscale", "", "time")[4] is not None
    assert "Output 'w' has 6 observations" in page.prose and "No warnings." not in page.prose
    assert len(page.images) == 5


def test_write_report_of_loaded_model_is_identical(field, reports, tmp_path):
    field.save(tmp_path / "model.ovkgp")
    after = written(ovkgp.load(tmp_path / "model.ovkgp"), tmp_path)
    assert after.read_bytes() == reports("field").read_bytes()


def test_write_report_shows_traces_of_chains(reports, read):
    page = read(reports("chains"))
    assert page.headings[0] == "height over time" and any("Traces" in image["alt"] for image in page.images)
    assert any(row[-2:] == ["R̂", "ESS"] for row in page.rows)


def test_write_report_escapes_names(tmp_path, read):
    evil = "<script>alert(1)</script>"
    X = pd.DataFrame({evil: np.linspace(0, 1, 8)})
    model = ovkgp.OVKRidge(lam=0.1).fit(X, pd.DataFrame({"<b>$u$</b>": X[evil], "v & w": 1.0}))
    page = read(written(model, tmp_path, notes=[evil], extra_figures=[(evil, plt.figure())]))
    plt.close("all")
    assert "<script" not in page.text and "<b>" not in page.text
    assert page.row(evil)[0] == evil and page.row("v & w", "8")[0] == "v & w" and page.headings[-1] == "Notes"
    assert page.images[-1]["alt"] == evil


def test_write_report_assesses_given_rows(features, tmp_path, read):
    X = np.linspace(0, 6, 25)[:, None]
    page = read(written(features, tmp_path, X=X, Y=np.full((25, 3), 1000.0)))
    assert "25 rows given to this report" in page.prose and "too narrow" in page.prose
    assert "Each entry of the given rows" in page.prose


def test_write_report_without_rows_asks_for_data(tmp_path, read):
    X = np.linspace(0, 1, 9)[:, None]
    page = read(written(ovkgp.ORFFRidge(lam=0.1, num_frequencies=5, random_state=0).fit(X, X), tmp_path))
    assert NO_FIGURE_NOTE in page.prose and not page.images and "--data" in page.prose


@pytest.mark.slow
def test_write_report_supports_small_and_wide_data(tmp_path, read):
    few = ovkgp.GPRegressor("independent", random_state=0).fit([[0.0], [1.0], [2.0]], [1.0, 2.0, 4.0])
    assert "too few for an assessment" in read(written(few, tmp_path)).prose
    X = np.random.default_rng(0).normal(size=(30, 20))
    wide = ovkgp.OVKRidge(lam=0.1).fit(X, X[:, :7])
    page = read(written(wide, tmp_path))
    assert "30 rows for 20 inputs" in page.prose and "7 outputs over 20 inputs" in page.headings


def test_write_report_rejects_invalid_input_before_writing(coupled, tmp_path):
    target = tmp_path / "report.html"
    with pytest.raises(NotFittedError):
        write_report(ovkgp.GPRegressor(), target)
    with pytest.raises(InputError, match="together"):
        write_report(coupled, target, X=[[1.0]])
    with pytest.raises(InputError, match="X"):
        write_report(coupled, target, X=np.zeros((2, 5)), Y=np.zeros((2, 3)))
    with pytest.raises(InputError, match="pairs"):
        write_report(coupled, target, extra_figures=["figure.png"])
    with pytest.raises(IsADirectoryError):
        write_report(coupled, tmp_path)
    assert not list(tmp_path.iterdir())


def test_write_report_follows_link_and_keeps_mode(levels, tmp_path):
    page, link = tmp_path / "page.html", tmp_path / "report.html"
    page.write_text("old")
    page.chmod(0o640)
    link.symlink_to(page)
    assert written(levels[0], tmp_path) == link and link.is_symlink()
    assert "<h1>" in page.read_text(encoding="utf-8") and page.stat().st_mode & 0o777 == 0o640


def test_write_report_keeps_old_file_on_errors(levels, tmp_path, monkeypatch):
    target = tmp_path / "report.html"
    target.write_text("old")

    def fail(source, destination):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_report(levels[0], target)
    assert target.read_text() == "old" and os.listdir(tmp_path) == ["report.html"]


def test_write_report_shows_the_table_of_criticism(tmp_path, read):
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"time": rng.uniform(0, 6, 40)})
    model = ovkgp.OVKRidge(lam=0.1).fit(X, np.sin(X["time"]).rename("level & rate") + 0.2 * rng.normal(size=40))
    table = ovkgp.criticism.criticize(model, random_state=0)
    page = write_report(model, tmp_path / "r.html", criticism=table).read_text(encoding="utf-8")
    section = page.partition('<section id="criticism">')[2].partition("</section>")[0]
    assert '<a href="#criticism">' in page
    assert section.count("<tr>") == 1 + sum(check.applies for check in table)
    assert section.count("Not applicable: ") == sum(not check.applies for check in table)
    assert section.count("<img") == 2
    assert "PIT of level &amp; rate" in section
    assert all(note.split(";")[0] in section for note in table.notes)
    assert "criticism" not in write_report(model, tmp_path / "r.html").read_text(encoding="utf-8").partition("<body")[2]
    with pytest.raises(InputError, match="criticism must be a table of criticize"):
        write_report(model, tmp_path / "r.html", criticism=table.to_frame())


def test_write_report_takes_title_and_note(levels, tmp_path, read):
    page = read(written(levels[0], tmp_path, title="Stars", notes="Only this."))
    assert "Only this." in page.prose and page.headings[0] == "Stars"
