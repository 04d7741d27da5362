"""Every tutorial runs from top to bottom in an empty folder without an error or a warning, and what is stored in it is such a run."""

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
LONGEST = 600
"""Seconds after which a cell is a failure, on however busy a machine."""
LARGEST = 600_000
"""Bytes of a notebook with its pictures."""
CLOSING = ["## Try this on your data", "## Where it comes from"]
MACHINE = re.compile(r"(?<![\w.])/(?:home|root|tmp|work|Users|usr|private|var)/|\b[A-Z]:\\|file://")
"""What a path of somebody's machine looks like."""

of_every_tutorial = pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)


def run_in_time(path):
    """The first two on every run, the others only with the slow tests."""
    marks = () if path.stem[:2] in ("01", "02") else (pytest.mark.slow,)
    return pytest.param(path, id=path.stem, marks=marks)


def read(path):
    return nbformat.read(path, as_version=4)


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def outputs(notebook):
    return [output for cell in code_cells(notebook) for output in cell.outputs]


def complaints(notebook):
    """What went to stderr: warnings, and bars of progress."""
    return [output.text for output in outputs(notebook) if output.output_type == "stream" and output.name == "stderr"]


def texts(notebook):
    """Everything in it that is read: text, code, and what was printed."""
    for cell in notebook.cells:
        yield cell.source
    for output in outputs(notebook):
        yield output.get("text", "")
        yield from (shown for kind, shown in output.get("data", {}).items() if kind.startswith("text/"))


def run(path, folder):
    """The notebook after a run by *this* interpreter, whichever kernels the machine has."""
    notebook = read(path)
    with TemporaryDirectory() as sockets:  # files, since two kernels may pick the same port; their names must be short
        kernel = AsyncKernelManager(
            kernel_name="python3",
            kernel_spec_manager=KernelSpecManager(kernel_dirs=[]),
            transport="ipc",
            connection_file=f"{sockets}/kernel.json",
        )
        NotebookClient(notebook, km=kernel, timeout=LONGEST, resources={"metadata": {"path": str(folder)}}).execute()
    return notebook


def test_the_kernel_is_this_interpreter_and_a_warning_is_noticed(tmp_path, monkeypatch):
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    sources = ["import sys, warnings\nprint(sys.executable)", "warnings.warn('look here')"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
    nbformat.write(notebook, tmp_path / "asks.ipynb")
    found = run(tmp_path / "asks.ipynb", tmp_path)
    assert outputs(found)[0].text.strip() == sys.executable
    assert len(complaints(found)) == 1 and "look here" in complaints(found)[0]


@pytest.mark.parametrize("path", [run_in_time(path) for path in PATHS])
def test_it_runs_without_a_warning(path, tmp_path, monkeypatch):
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))  # nobody's own settings and start-up files
    found = run(path, tmp_path)  # an error in a cell is raised here
    assert complaints(found) == []
    pictures = [sum("image/png" in output.get("data", {}) for output in cell.outputs) for cell in code_cells(found)]
    stored = [sum("image/png" in output.get("data", {}) for output in cell.outputs) for cell in code_cells(read(path))]
    assert pictures == stored


def test_tutorials_are_numbered_without_gaps():
    assert [int(path.stem[:2]) for path in PATHS] == list(range(1, 11))


@of_every_tutorial
def test_its_outputs_are_those_of_one_run_from_top_to_bottom(path):
    cells = code_cells(read(path))
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert complaints(read(path)) == []
    assert all(output.output_type != "error" for output in outputs(read(path)))


@of_every_tutorial
def test_it_has_pictures_and_is_not_heavy(path):
    assert sum("image/png" in output.get("data", {}) for output in outputs(read(path))) >= 3
    assert path.stat().st_size < LARGEST


@of_every_tutorial
def test_it_ends_with_the_readers_data_and_the_papers(path):
    prose = [cell.source for cell in read(path).cells if cell.cell_type == "markdown"]
    headings = re.findall(r"^#{1,2} .+$", "\n".join(prose), flags=re.M)
    assert headings[0].startswith(f"# {int(path.stem[:2])}. ")
    assert headings[-2:] == CLOSING
    sources = prose[-1].split(CLOSING[-1])[1]
    assert re.search(r"\b(19|20)\d\d\b", sources)  # the year of a paper


@of_every_tutorial
def test_it_speaks_of_no_machine(path):
    assert [text for text in texts(read(path)) if MACHINE.search(text)] == []
