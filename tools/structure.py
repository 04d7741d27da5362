"""Print figures about the layout of the package.

    python tools/structure.py                    files, lines, largest folder and files, single-importer modules, cycles
    python tools/structure.py --trace            files and cross-file calls of a default fit and predict
    python tools/structure.py --words PATTERNS   matches of a file of regular expressions in ovkgp, README and docs

A name that a package's `__init__` re-exports counts as an import of the module that defines it.
"""

import argparse
import ast
import re
import sys
from collections import Counter, defaultdict
from pathlib import Path

import networkx

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "ovkgp"


def find_modules() -> dict[str, Path]:
    """Return the files of the package by dotted name."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = ["ovkgp", *path.relative_to(PACKAGE).with_suffix("").parts]
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def find_imports(path: Path, modules: dict[str, Path]) -> list[tuple[str, str | None]]:
    """Return pairs (module, imported name or None), without imports for type checking, with modules named in strings."""
    found = []
    tree = ast.parse(path.read_text(encoding="utf-8"))
    typing_only = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.dump(block.test)
        for node in ast.walk(block)
    }
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            found += [(alias.name, None) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found += [(node.module, alias.name) for alias in node.names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in modules:
            found.append((node.value, None))
    return found


def build_graph(modules: dict[str, Path]) -> networkx.DiGraph:
    """Return the imports between modules as edges importer → imported."""
    imports = {name: find_imports(path, modules) for name, path in modules.items()}
    packages = {name for name, path in modules.items() if path.name == "__init__.py"}
    for name in packages:
        stub = modules[name].with_suffix(".pyi")  # of a package that loads names at their first use
        imports[name] += find_imports(stub, modules) if stub.exists() else []
    exports = {name: {item: source for source, item in imports[name] if item} for name in packages}

    def resolve(source: str, item: str | None, depth: int = 0) -> str | None:
        if item and f"{source}.{item}" in modules:
            return f"{source}.{item}"
        if item and depth < 5 and item in exports.get(source, {}):
            return resolve(exports[source][item], item, depth + 1)
        return source if source in modules else None

    graph = networkx.DiGraph()
    graph.add_nodes_from(modules)
    for name, statements in imports.items():
        targets = {resolve(source, item) for source, item in statements} - {None, name}
        graph.add_edges_from((name, target) for target in targets)
    return graph


def find_packages(modules: dict[str, Path]) -> set[str]:
    """Return the names of packages and of `__main__`."""
    return {name for name, path in modules.items() if path.name in ("__init__.py", "__main__.py")}


def find_single_importers(modules: dict[str, Path], graph: networkx.DiGraph) -> dict[str, str]:
    """Return the modules that no package exports and exactly one other module imports, with that module."""
    packages = find_packages(modules)
    exported = {target for name in packages for target in graph.successors(name)}
    importers = {name: set(graph.predecessors(name)) - packages for name in modules if name not in packages | exported}
    return {name: found.copy().pop() for name, found in importers.items() if len(found) == 1}


def find_cycles(modules: dict[str, Path], graph: networkx.DiGraph) -> list[list[str]]:
    """List groups of modules, other than packages, that import each other; imports inside functions count too."""
    inner = graph.subgraph(set(modules) - find_packages(modules))
    return [sorted(group) for group in networkx.strongly_connected_components(inner) if len(group) > 1]


def print_structure() -> None:
    """Print sizes, modules with one importer, and import cycles."""
    modules = find_modules()
    graph = build_graph(modules)
    lines = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in modules.items()}
    folders = defaultdict(list)
    for name, path in modules.items():
        folders[path.parent.relative_to(ROOT).as_posix()].append(name)
    print(f"{'folder':36} files  lines")
    for folder, names in sorted(folders.items()):
        print(f"{folder:36} {len(names):5} {sum(lines[name] for name in names):6}")
    print(f"{'total':36} {len(modules):5} {sum(lines.values()):6}")
    largest = sorted(lines, key=lines.get, reverse=True)[:8]
    print("largest files: " + ", ".join(f"{name.removeprefix('ovkgp.')} {lines[name]}" for name in largest))

    single = find_single_importers(modules, graph)
    print(f"unexported modules with one importer: {len(single)}")
    for name, importer in single.items():
        print(f"  {name.removeprefix('ovkgp.'):44} <- {importer.removeprefix('ovkgp.')}")
    cycles = find_cycles(modules, graph)
    print(f"import cycles: {len(cycles)}")
    for group in cycles:
        print("  " + " ".join(name.removeprefix("ovkgp.") for name in group))


def print_trace() -> None:
    """Print the files that a default fit and predict pass through, and the calls between files."""
    import numpy as np

    import ovkgp

    rng = np.random.default_rng(0)
    X = rng.uniform(0, 6, (60, 2))
    Y = np.stack([np.sin(X[:, 0]), np.cos(X[:, 1])], 1) + 0.1 * rng.standard_normal((60, 2))
    entered, calls = Counter(), 0

    def record(frame, event, _):
        nonlocal calls
        name = frame.f_code.co_filename
        if event != "call" or not name.startswith(str(PACKAGE)) or name.endswith("lazy.py"):
            return
        entered[name] += 1
        caller = frame.f_back.f_code.co_filename if frame.f_back else ""
        calls += caller != name

    model = ovkgp.GPRegressor(random_state=0)
    sys.setprofile(record)
    try:
        model.fit(X, Y).predict(X)
    finally:
        sys.setprofile(None)
    print(f"default fit and predict: {len(entered)} files, {calls} calls from another file")
    for name in sorted(entered):
        print(f"  {Path(name).relative_to(PACKAGE).as_posix():44} {entered[name]}")


def print_words(patterns: Path) -> None:
    """Print how often each pattern occurs in the package, README and docs."""
    texts = [path.read_text(encoding="utf-8") for path in (*PACKAGE.rglob("*.py"), *(ROOT / "docs").glob("*.md"))]
    texts.append((ROOT / "README.md").read_text(encoding="utf-8"))
    total = 0
    for line in patterns.read_text(encoding="utf-8").splitlines():
        count = sum(1 for text in texts for _ in re.finditer(line, text, flags=re.MULTILINE))
        total += count
        print(f"{count:6}  {line}")
    print(f"{total:6}  total")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", action="store_true", help="trace a default fit and predict")
    parser.add_argument("--words", type=Path, metavar="PATTERNS", help="count matches of the patterns in this file")
    arguments = parser.parse_args()
    if arguments.trace:
        print_trace()
    elif arguments.words:
        print_words(arguments.words)
    else:
        print_structure()
