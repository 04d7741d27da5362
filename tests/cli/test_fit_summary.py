"""What a fit says at the end of estimators without a summary of their own."""

import numpy as np
import pandas as pd
from cli_cases import waves

import ovkgp
from ovkgp.cli.fit_job import facts, facts_table

FRAME = waves()
X = FRAME[["a", "b"]]


def test_facts_of_a_classifier():
    found = facts(ovkgp.InfiniteCostSensitiveClassifier(random_state=0).fit(X, FRAME["label"]))
    assert found["inputs"] == "a, b" and found["outputs"] == "label" and found["classes"] == "high, low"
    assert found["rows"] == "30" and found["training"] and float(found["λ"]) == 1e-4


def test_many_outputs_are_shortened():
    Y = pd.DataFrame(np.outer(FRAME["a"], np.arange(40)), columns=[f"y{i}" for i in range(40)])
    found = facts(ovkgp.VectorTaskRegressor().fit(X, Y))
    assert found["outputs"].endswith("y11, … (40 in all)")


def test_a_table_has_a_row_for_each_fact():
    model = ovkgp.InfiniteOneClassSVM(random_state=0).fit(X.to_numpy())
    assert facts(model)["inputs"] == "0, 1"
    assert facts_table(model).row_count == len(facts(model))
