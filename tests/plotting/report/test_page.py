from dataclasses import replace

import pytest

from ovkgp.plotting.report.page import render
from ovkgp.plotting.report.sections import (
    Calibration,
    Column,
    DataSummary,
    ModelWords,
    Parameter,
    ParameterTable,
    Picture,
    Report,
)

EVIL = "<script>alert('x')</script> & \"quotes\""
PICTURE = Picture("data:image/png;base64,AAAA", EVIL, EVIL, 100, 50)


@pytest.fixture
def report():
    return Report(
        title="Title",
        verdict="The verdict: 90 % of > 99 %.",
        data=DataSummary(
            "Three rows.", (Column("x", 3, 0.0, 0.0, 1.0, 2.0, 1.0),), (Column("y", 2, 1 / 3, 0.1, 0.2, 0.3, 0.1),)
        ),
        model=ModelWords("A model", ("Words.",), ("f_a(x) < 1",), (("Noise", "none"),)),
        parameters=ParameterTable("Points.", (Parameter("lengthscale", "x", 0.123456789),)),
        traces=(),
        fit=(),
        fit_note="",
        calibration=Calibration("Nothing to judge."),
        warnings=(),
        extra=(),
        notes=(),
        file_name="report.html",
        version="0",
    )


def test_the_page_has_its_sections_and_no_warnings(report, read):
    page = read(render(report))
    assert page.open == [] and page.text.startswith("<!DOCTYPE html>")
    assert page.headings == ["Title", "Warnings", "Data", "Model", "Hyperparameters", "Fit", "Calibration"]
    assert "No warnings." in page.prose and "Nothing to judge." in page.prose


def test_the_page_forbids_itself_to_load_anything(report):
    assert "default-src 'none'; img-src data:; style-src 'unsafe-inline'" in render(report)


def test_every_link_leads_to_a_section(report, read):
    page = read(render(replace(report, extra=(PICTURE,), notes=("a note",))))
    links = [address for address in page.addresses if address.startswith("#")]
    assert {link[1:] for link in links} == set(page.ids) and len(links) == 8


def test_numbers_are_whole_for_machines_and_short_for_readers(report, read):
    text = render(report)
    assert '<data value="0.123456789">0.1235</data>' in text
    page = read(text)
    assert page.row("y")[1:3] == ["2", "33 %"]


def test_columns_of_intervals_and_chains_come_only_with_them(report, read):
    header = ["hyperparameter", "of", "value"]
    assert header in read(render(report)).rows
    with_interval = Parameter("noise", "y", 1.0, 0.1, 0.8, 1.2)
    table = replace(report.parameters, rows=(*report.parameters.rows, with_interval))
    page = read(render(replace(report, parameters=table)))
    assert [*header, "std. dev.", "5 %", "95 %"] in page.rows and page.row("lengthscale")[3:] == ["–", "–", "–"]
    chain = replace(with_interval, rhat=1.01, ess=99.0)
    page = read(render(replace(report, parameters=replace(table, rows=(chain,)))))
    assert page.rows[-2][-2:] == ["R̂", "ESS"]


def test_text_of_the_user_is_escaped_everywhere(report, read):
    evil = replace(
        report,
        title=EVIL,
        verdict=EVIL,
        data=DataSummary(EVIL, (Column(EVIL, 1),), (Column(EVIL),), ((EVIL, 3),), EVIL, EVIL),
        model=ModelWords(EVIL, (EVIL,), (EVIL,), ((EVIL, EVIL),)),
        parameters=ParameterTable(EVIL, (Parameter(EVIL, EVIL, 1.0),), EVIL, EVIL, (EVIL,)),
        fit=(PICTURE,),
        fit_note=EVIL,
        calibration=Calibration(EVIL),
        warnings=(EVIL,),
        extra=(PICTURE,),
        notes=(EVIL,),
        file_name=EVIL,
    )
    page = read(render(evil))
    assert "<script" not in page.text and page.open == []
    assert page.headings[0] == EVIL and page.images[0]["alt"] == EVIL


def test_every_head_of_a_table_says_what_it_is_the_head_of(report, read):
    assert set(read(render(report)).scopes) == {"row", "col"}


def test_names_alone_are_no_table(report, read):
    page = read(render(replace(report, data=DataSummary("Two inputs.", (Column("a"), Column("b"))))))
    assert "Inputs: a , b ." in page.prose and not any("observed" in row for row in page.rows)


def test_numbers_do_not_break_over_lines(report):
    assert "90\N{NO-BREAK SPACE}% of &gt;\N{NO-BREAK SPACE}99\N{NO-BREAK SPACE}%" in render(report)


def test_warnings_are_counted_at_the_top(report, read):
    page = read(render(replace(report, warnings=("one", "two"))))
    assert "Warnings 2" in page.prose and "No warnings" not in page.prose
