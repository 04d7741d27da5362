"""Check that every tutorial runs in an empty folder without errors or warnings, and that its stored outputs come from one run."""

import re
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
import pytest
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[1] / "tutorials"
PATHS = sorted(FOLDER.glob("*.ipynb"))
MAX_CELL_SECONDS = 600
MAX_NOTEBOOK_BYTES = 600_000
FINAL_HEADINGS = ["## Try this on your data", "## References"]
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:home|root|tmp|work|Users|usr|private|var)/|\b[A-Z]:\\|file://")

for_every_tutorial = pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)


def slow_after_first(path):
    """Mark all tutorials but the first as slow."""
    marks = () if path.stem[:2] == "01" else (pytest.mark.slow,)
    return pytest.param(path, id=path.stem, marks=marks)


def read(path):
    return nbformat.read(path, as_version=4)


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def outputs(notebook):
    return [output for cell in code_cells(notebook) for output in cell.outputs]


def stderr_texts(notebook):
    """Return what was written to stderr: warnings and progress bars."""
    return [output.text for output in outputs(notebook) if output.output_type == "stream" and output.name == "stderr"]


def visible_texts(notebook):
    """Yield prose, code and printed outputs."""
    for cell in notebook.cells:
        yield cell.source
    for output in outputs(notebook):
        yield output.get("text", "")
        yield from (shown for kind, shown in output.get("data", {}).items() if kind.startswith("text/"))


def run(path, folder):
    """Run a notebook with *this* interpreter, independent of the installed kernels, and return it."""
    notebook = read(path)
    with TemporaryDirectory() as sockets:  # sockets as files: two kernels may pick the same port; paths must be short
        kernel = AsyncKernelManager(
            kernel_name="python3",
            kernel_spec_manager=KernelSpecManager(kernel_dirs=[]),
            transport="ipc",
            connection_file=f"{sockets}/kernel.json",
        )
        NotebookClient(
            notebook, km=kernel, timeout=MAX_CELL_SECONDS, resources={"metadata": {"path": str(folder)}}
        ).execute()
    return notebook


def test_run_uses_this_interpreter_and_captures_warnings(tmp_path, monkeypatch):
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    sources = ["import sys, warnings\nprint(sys.executable)", "warnings.warn('unexpected')"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
    nbformat.write(notebook, tmp_path / "probe.ipynb")
    found = run(tmp_path / "probe.ipynb", tmp_path)
    assert outputs(found)[0].text.strip() == sys.executable
    assert len(stderr_texts(found)) == 1 and "unexpected" in stderr_texts(found)[0]


@pytest.mark.parametrize("path", [slow_after_first(path) for path in PATHS])
def test_tutorial_runs_without_warnings(path, tmp_path, monkeypatch):
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))  # without the user's settings and start-up files
    found = run(path, tmp_path)  # raises errors of cells
    assert stderr_texts(found) == []
    figures = [sum("image/png" in output.get("data", {}) for output in cell.outputs) for cell in code_cells(found)]
    stored = [sum("image/png" in output.get("data", {}) for output in cell.outputs) for cell in code_cells(read(path))]
    assert figures == stored


def test_tutorials_are_numbered_without_gaps():
    assert [int(path.stem[:2]) for path in PATHS] == list(range(1, 15))


@for_every_tutorial
def test_tutorial_outputs_come_from_one_run(path):
    cells = code_cells(read(path))
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert stderr_texts(read(path)) == []
    assert all(output.output_type != "error" for output in outputs(read(path)))


@for_every_tutorial
def test_tutorial_has_figures_and_limited_size(path):
    assert sum("image/png" in output.get("data", {}) for output in outputs(read(path))) >= 3
    assert path.stat().st_size < MAX_NOTEBOOK_BYTES


@for_every_tutorial
def test_tutorial_ends_with_own_data_and_references(path):
    prose = [cell.source for cell in read(path).cells if cell.cell_type == "markdown"]
    headings = re.findall(r"^#{1,2} .+$", "\n".join(prose), flags=re.M)
    assert headings[0].startswith(f"# {int(path.stem[:2])}. ")
    assert headings[-2:] == FINAL_HEADINGS
    sources = prose[-1].split(FINAL_HEADINGS[-1])[1]
    assert re.search(r"\b(19|20)\d\d\b", sources)  # the year of a paper


@for_every_tutorial
def test_tutorial_contains_no_machine_paths(path):
    assert [text for text in visible_texts(read(path)) if MACHINE_PATH.search(text)] == []
