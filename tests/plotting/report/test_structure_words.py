from ovkgp.estimators.common.named_kernels import RIDGE_KERNELS
from ovkgp.estimators.common.named_kernels import STRUCTURES as NAMED
from ovkgp.estimators.common.task_options import TASK_KERNELS
from ovkgp.inference.likelihoods.factory import LIKELIHOODS as KNOWN
from ovkgp.plotting.report.descriptions import BASES, LIKELIHOODS, STRUCTURES


def test_every_structure_that_a_kernel_may_have_has_words():
    assert {*NAMED, *(name for name in RIDGE_KERNELS if name != "auto"), "given"} <= set(STRUCTURES)


def test_every_base_kernel_and_every_likelihood_has_words():
    assert set(BASES) == set(TASK_KERNELS)
    assert set(LIKELIHOODS) == set(KNOWN)


def test_words_are_sentences():
    for words in STRUCTURES.values():
        assert words.text.endswith(".") and words.name[0].islower() and words.formula
