import re

import pytest

from ovkgp.plotting.report.descriptions import BASES, ESTIMATORS, LIKELIHOODS, STRUCTURES
from ovkgp.plotting.report.page import formula_html

TABLES = {"estimators": ESTIMATORS, "structures": STRUCTURES, "bases": BASES, "likelihoods": LIKELIHOODS}


def test_markup_in_a_formula_is_escaped():
    assert "<script>" not in formula_html("<script> & x_{<b>}")
    assert "&lt;" in formula_html("a < b")


def test_indices_and_powers():
    assert formula_html("B_{ab}") == "<var>B</var><sub><var>a</var><var>b</var></sub>"
    assert formula_html("r^2") == "<var>r</var><sup>2</sup>"
    assert formula_html("exp(x)") == "exp(<var>x</var>)"
    assert formula_html("Σ_i") == "Σ<sub><var>i</var></sub>"


@pytest.mark.parametrize("table", TABLES)
def test_every_formula_of_the_tables_is_read_to_its_end(table):
    for words in TABLES[table].values():
        html = str(formula_html(words.formula))
        assert not re.search(r"[_^{}]", html), words.formula
        assert html.count("<sub>") == html.count("</sub>") == words.formula.count("_")
        assert html.count("<sup>") == html.count("</sup>") == words.formula.count("^")
