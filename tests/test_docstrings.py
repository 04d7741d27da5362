"""Docstrings of everything that `__all__` reaches have the sections of numpydoc, with the parameters of the signature."""

import importlib
import inspect
import pkgutil
import re

import pytest

import ovkgp

HEADING = re.compile(r"^(\w[\w ]*)\n-{3,}$", flags=re.MULTILINE)
PACKAGES = ["ovkgp", *(module.name for module in pkgutil.walk_packages(ovkgp.__path__, "ovkgp.") if module.ispkg)]


def read_sections(obj) -> dict[str, str]:
    """Return the text of each section of a docstring, "" for the summary."""
    _, *parts = HEADING.split("Summary\n---\n" + inspect.cleandoc(obj.__doc__ or ""))
    return {name.strip(): text for name, text in zip(parts[::2], parts[1::2], strict=True)}


def documented_names(section: str) -> set[str]:
    """Return the names that a section describes: lines that are not indented, such as "mean, std : float"."""
    heads = [line.split(" : ")[0] for line in section.splitlines() if line and not line.startswith(" ")]
    return {name.strip().lstrip("*") for head in heads for name in head.split(",")} - {""}


def public_objects() -> dict[str, object]:
    """Return functions and classes of the package that some `__all__` exports, by their full name."""
    found = {}
    for package in map(importlib.import_module, PACKAGES):
        for name in getattr(package, "__all__", ()):
            obj = getattr(package, name)
            if (inspect.isfunction(obj) or inspect.isclass(obj)) and obj.__module__.startswith("ovkgp"):
                found[f"{obj.__module__}.{obj.__qualname__}"] = obj
    return found


def public_methods(kind: type) -> dict[str, object]:
    """Return the public methods of a class by name, where they are defined first: others override them and inherit their parameters."""
    found = {}
    for name in {name for parent in kind.__mro__ for name in vars(parent) if not name.startswith("_")}:
        root = [parent for parent in kind.__mro__ if name in vars(parent)][-1]
        method = getattr(vars(root)[name], "__func__", vars(root)[name])
        is_default = getattr(method, "__name__", "<lambda>") == "<lambda>"  # the default of a field
        if root.__module__.startswith("ovkgp") and inspect.isfunction(method) and not is_default:
            found[f"{root.__module__}.{root.__qualname__}.{name}"] = method
    return found


def parameters_of(function) -> set[str]:
    return {name for name in inspect.signature(function).parameters if name not in ("self", "cls")}


def find_problems(function) -> list[str]:
    """List what a docstring of a function or method lacks."""
    sections, expected = read_sections(function), parameters_of(function)
    named, returned = documented_names(sections.get("Parameters", "")), inspect.signature(function).return_annotation
    problems = [] if sections.get("Summary", "").strip() else ["no summary"]
    problems += [f"Parameters lacks {name}" for name in sorted(expected - named)]
    problems += [f"Parameters has {name}" for name in sorted(named - expected)]
    is_silent = returned in (None, "None") or {"Returns", "Yields"} & sections.keys()
    return problems if is_silent else [*problems, "no Returns"]


@pytest.fixture(scope="module")
def objects():
    return public_objects()


def test_functions_and_methods_document_parameters_and_results(objects):
    methods = [public_methods(obj) for obj in objects.values() if inspect.isclass(obj)]
    functions = {name: obj for name, obj in objects.items() if inspect.isfunction(obj)}
    for found in methods:
        functions |= found
    assert len(functions) > 350
    problems = {name: found for name, function in functions.items() if (found := find_problems(function))}
    assert problems == {}


def test_classes_document_parameters_of_their_constructor(objects):
    """Results, which functions of the package make, have Attributes instead; constructors of other libraries are theirs."""
    problems = {}
    for name, kind in objects.items():
        if not inspect.isclass(kind) or not getattr(kind.__init__, "__module__", "").startswith("ovkgp"):
            continue
        sections = read_sections(kind)
        named, expected = documented_names(sections.get("Parameters", "")), parameters_of(kind.__init__)
        is_result = "Parameters" not in sections and "Attributes" in sections
        if (expected != named and not is_result) or not sections.get("Summary", "").strip():
            problems[name] = sorted(expected ^ named)
    assert problems == {}


def test_problems_of_docstrings_are_found():
    def incomplete(x, y) -> int:
        """Return a number.

        Parameters
        ----------
        x, z : int
            Number.
        """

    assert find_problems(incomplete) == ["Parameters lacks y", "Parameters has z", "no Returns"]
