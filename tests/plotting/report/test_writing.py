import os
import subprocess
import sys
import warnings

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import NotFittedError

import ovkgp
from ovkgp.exceptions import InputError
from ovkgp.plotting import write_report
from ovkgp.plotting.report.figures import NO_PICTURE

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
def test_a_report_of_every_kind_of_model_is_one_whole_page(name, reports, read):
    path = reports(name)
    page = read(path)
    assert page.open == [] and page.headings[1:] == SECTIONS and len(set(page.ids)) == len(page.ids)
    assert all(address.startswith(("#", "data:image/png;base64,")) for address in page.addresses)
    assert "url(" not in page.text and "@import" not in page.text and "<script" not in page.text
    assert all(image["alt"] for image in page.images) and path.stat().st_size < 2_000_000
    assert str(path.parent) not in page.text and page.prose.count("nan") == 0


def test_numbers_of_the_page_are_those_of_the_estimator(coupled, waves, reports, read):
    page = read(reports("coupled"))
    assert page.headings[0] == "u, v and w over time"
    for a, name in enumerate("uvw"):
        assert page.row("noise standard deviation", name)[2] == pytest.approx(np.sqrt(coupled.noise_[a, a]))
        column = page.row(name, str(waves[1][name].count()))
        assert column[3:] == pytest.approx(waves[1][name].agg(["min", "mean", "max", "std"]).tolist())
    assert page.row("lengthscale", "time")[3] is not None
    assert "Output 'w' has 6 observations" in page.prose and "No warnings." not in page.prose
    assert len(page.images) == 5


def test_a_loaded_model_has_the_same_report_to_the_letter(field, reports, tmp_path):
    field.save(tmp_path / "model.ovkgp")
    after = written(ovkgp.load(tmp_path / "model.ovkgp"), tmp_path)
    assert after.read_bytes() == reports("field").read_bytes()


def test_traces_are_shown_where_chains_drew(reports, read):
    page = read(reports("chains"))
    assert page.headings[0] == "height over place" and any("Traces" in image["alt"] for image in page.images)
    assert any(row[-2:] == ["R̂", "ESS"] for row in page.rows)


def test_names_that_are_markup_stay_names(tmp_path, read):
    evil = "<script>alert(1)</script>"
    X = pd.DataFrame({evil: np.linspace(0, 1, 8)})
    model = ovkgp.OVKRidge(lam=0.1).fit(X, pd.DataFrame({"<b>$u$</b>": X[evil], "v & w": 1.0}))
    page = read(written(model, tmp_path, notes=[evil], extra_figures=[(evil, plt.figure())]))
    plt.close("all")
    assert "<script" not in page.text and "<b>" not in page.text
    assert page.row(evil)[0] == evil and page.row("v & w", "8")[0] == "v & w" and page.headings[-1] == "Notes"
    assert page.images[-1]["alt"] == evil


def test_rows_given_are_judged(features, tmp_path, read):
    X = np.linspace(0, 6, 25)[:, None]
    page = read(written(features, tmp_path, X=X, Y=np.full((25, 3), 1000.0)))
    assert "25 rows given to this report" in page.prose and "too narrow" in page.prose
    assert "On the rows given" in page.prose


def test_without_rows_the_page_says_what_to_do(tmp_path, read):
    X = np.linspace(0, 1, 9)[:, None]
    page = read(written(ovkgp.ORFFRidge(lam=0.1, num_frequencies=5, random_state=0).fit(X, X), tmp_path))
    assert NO_PICTURE in page.prose and not page.images and "--data" in page.prose


def test_three_rows_and_twenty_inputs(tmp_path, read):
    few = ovkgp.GPRegressor("independent", random_state=0).fit([[0.0], [1.0], [2.0]], [1.0, 2.0, 4.0])
    assert "too few to say more" in read(written(few, tmp_path)).prose
    X = np.random.default_rng(0).normal(size=(30, 20))
    wide = ovkgp.OVKRidge(lam=0.1).fit(X, X[:, :7])
    page = read(written(wide, tmp_path))
    assert "30 rows for 20 inputs" in page.prose and "7 outputs over 20 inputs" in page.headings


def test_bad_input_is_refused_before_anything_is_written(coupled, tmp_path):
    target = tmp_path / "report.html"
    with pytest.raises(NotFittedError):
        write_report(ovkgp.GPRegressor(), target)
    with pytest.raises(InputError, match="together"):
        write_report(coupled, target, X=[[1.0]])
    with pytest.raises(InputError, match="X is not as it was"):
        write_report(coupled, target, X=np.zeros((2, 5)), Y=np.zeros((2, 3)))
    with pytest.raises(InputError, match="pairs"):
        write_report(coupled, target, extra_figures=["picture.png"])
    with pytest.raises(IsADirectoryError):
        write_report(coupled, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_report_goes_through_a_link_and_keeps_the_mode_of_the_file(levels, tmp_path):
    page, link = tmp_path / "page.html", tmp_path / "report.html"
    page.write_text("old")
    page.chmod(0o640)
    link.symlink_to(page)
    assert written(levels[0], tmp_path) == link and link.is_symlink()
    assert "<h1>" in page.read_text(encoding="utf-8") and page.stat().st_mode & 0o777 == 0o640


def test_where_writing_fails_the_older_file_stays(levels, tmp_path, monkeypatch):
    target = tmp_path / "report.html"
    target.write_text("old")

    def fail(source, destination):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_report(levels[0], target)
    assert target.read_text() == "old" and os.listdir(tmp_path) == ["report.html"]


def test_a_title_and_one_note(levels, tmp_path, read):
    page = read(written(levels[0], tmp_path, title="Stars", notes="Only this."))
    assert "Only this." in page.prose and page.headings[0] == "Stars"


def test_the_table_of_plots_loads_neither_torch_nor_matplotlib():
    code = "import sys, ovkgp.plotting; assert not {'matplotlib', 'torch'} & set(sys.modules); assert 'write_report' in dir(ovkgp.plotting)"
    subprocess.run([sys.executable, "-c", code], check=True)
