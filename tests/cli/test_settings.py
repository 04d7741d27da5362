"""Options of a recipe as they are typed: --set key=value."""

import pytest

from ovkgp.cli.arguments import settings
from ovkgp.exceptions import OptionError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("k=3", 3),
        ("k = 0.5", 0.5),
        ("k=1e-3", 1e-3),
        ("k=true", True),
        ("k=rbf", "rbf"),
        ("k=full noise", "full noise"),
        ('k="3"', "3"),
        ("k=[1, 2.5]", [1, 2.5]),
        ('k=[["a", "b"]]', [["a", "b"]]),
        ("k=a=b", "a=b"),
        ('k=say "no"', 'say "no"'),
        ("k=C:\\path", "C:\\path"),
    ],
)
def test_values_are_toml_or_else_texts(text, value):
    found = settings([text])
    assert found == {"k": value} and type(found["k"]) is type(value)


def test_dots_lead_into_tables():
    texts = ["sampling.draws=50", "sampling.chains=2", "graph.edges=chain", "rank=1"]
    assert settings(texts) == {"sampling": {"draws": 50, "chains": 2}, "graph": {"edges": "chain"}, "rank": 1}


@pytest.mark.parametrize("text", ["rank", "=3", "rank=", "rank= ", ""])
def test_texts_that_set_nothing(text):
    with pytest.raises(OptionError, match="--set takes key=value"):
        settings([text])


@pytest.mark.parametrize("key", ["a b", "a..b", "é"])
def test_keys_that_are_no_names(key):
    with pytest.raises(OptionError, match="--set takes the name of an option"):
        settings([f"{key}=3"])


def test_an_option_is_set_once():
    with pytest.raises(OptionError, match="gives rank twice"):
        settings(["rank=3", "rank=4"])
    with pytest.raises(OptionError, match="twice"):
        settings(["a.b=3", "a=4"])
