"""Arguments of the commands: shared declarations, checks of values and output paths, and ``--set key=value``."""

from __future__ import annotations

import csv
import math
import os
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from ovkgp.exceptions import OptionError
from ovkgp.files import check_writable

MAX_SEED = 2**32 - 1  # the largest that NumPy and scikit-learn accept


def option(metavar: str | None, help: str, *names: str, min: float | None = None) -> Any:
    """Declare an option without a displayed default."""
    return typer.Option(*names, metavar=metavar, help=help, min=min, show_default=False)


def argument(metavar: str, help: str) -> Any:
    """Declare a positional argument without a displayed default."""
    return typer.Argument(metavar=metavar, help=help, show_default=False)


Data = Annotated[str, argument("DATA", "A CSV, TSV or Parquet file with a header.")]
Model = Annotated[str, argument("MODEL", "A model file written by `ovkgp fit`.")]
ModelInputs = Annotated[str | None, option("a,b", "The input columns, if the model was fitted without names.")]
Outputs = Annotated[
    str | None, option("u,v", "The output columns, or a pattern such as 'y_*'; an empty cell is a missing output.")
]
GRID_HELP = (
    "For curves: the points of the output columns, as first:last:number, comma-separated numbers, a file of numbers, or `row` "
    "if the first row of DATA holds them (default: the numbers in the names of the columns)."
)
Grid = Annotated[str | None, option("GRID", GRID_HELP)]
Separator = Annotated[str, typer.Option(metavar="CHAR", help="Field separator of a text table (a tab in .tsv files).")]
SkipBadRows = Annotated[
    bool, typer.Option("--skip-bad-rows", help="Skip and count unreadable rows instead of stopping at the first.")
]
TASK_HELP = "For a long table (one observation per row): the column that names the output whose value is in --outputs."
Task = Annotated[str | None, option("COLUMN", TASK_HELP)]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors and notes only.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


def check_seed(seed: int) -> int:
    """Check that `seed` lies between 0 and 2³² − 1, and return it."""
    if not 0 <= seed <= MAX_SEED:
        raise OptionError(f"--seed must lie between 0 and {MAX_SEED}, got {seed}.")
    return seed


def parse_names(text: str | None) -> tuple[str, ...] | None:
    """Parse comma-separated column names; a name that contains a comma is in double quotes."""
    if text is None:
        return None
    return tuple(name.strip() for name in next(csv.reader([text], skipinitialspace=True), [""]))


def parse_numbers(text: str, option: str, low: float = -math.inf, high: float = math.inf) -> tuple[float, ...]:
    """Parse comma-separated distinct numbers strictly between `low` and `high`."""
    try:
        found = tuple(float(part) for part in text.split(","))
    except ValueError:
        found = ()
    if not found or not all(low < value < high for value in found):
        raise OptionError(f"{option} must be comma-separated numbers{_describe_range(low, high)}, got {text!r}.")
    if len(set(found)) < len(found):
        raise OptionError(f"{option} must not repeat a number, got {text!r}.")
    return found


def parse_number(text: str, option: str, low: float = -math.inf, high: float = math.inf) -> float:
    """Parse one number strictly between `low` and `high`."""
    try:
        (found,) = parse_numbers(text, option, low, high)
    except ValueError:  # an OptionError, or more than one number
        raise OptionError(f"{option} must be one number{_describe_range(low, high)}, got {text!r}.") from None
    return found


def _describe_range(low: float, high: float) -> str:
    return f" between {low:g} and {high:g}" if math.isfinite(high) else ""


def parse_overrides(texts: Iterable[str]) -> dict[str, Any]:
    """Parse options of a recipe from texts ``key=value``: the value is TOML if it can be parsed, else a string."""
    document = ""
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip() or not value.strip():
            raise OptionError(f"--set must be key=value, such as --set rank=3, got {text!r}.")
        line = _format_override(key.strip(), value.strip())
        try:
            tomllib.loads(document + line)
        except tomllib.TOMLDecodeError:
            raise OptionError(f"--set sets {key.strip()} twice, the second time as {text!r}. Set it once.") from None
        document += line
    return tomllib.loads(document)


def _format_override(key: str, value: str) -> str:
    """Return a line of TOML that sets the key."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    for line in (f"{key} = {value}\n", f'{key} = "{escaped}"\n'):
        with suppress(tomllib.TOMLDecodeError):
            tomllib.loads(line)
            return line
    raise OptionError(f"--set must name an option before the sign =, got {key!r}.")


def check_output_file(
    name: str, suffixes: tuple[str, ...] = (), sources: Iterable[str] = (), option: str = "--out"
) -> Path:
    """Check that the file `name` of `option` can be written without replacing one of `sources`, and return its path."""
    if not name.strip():
        raise OptionError(f"{option} must name a file, got an empty name.")
    path = Path(name).expanduser()
    if path.is_dir():
        raise OptionError(f"{option} must be a file, but '{path}' is a folder. Name a file in it.")
    if suffixes and path.suffix.lower() not in suffixes:
        raise OptionError(f"{option} must end in {', '.join(suffixes[:-1])} or {suffixes[-1]}, got '{path}'.")
    if path.exists() and any(
        other.exists() and path.samefile(other) for other in (Path(source).expanduser() for source in sources)
    ):
        raise OptionError(f"{option} would replace the input file '{path}'. Use another name.")
    if not path.parent.is_dir():
        raise OptionError(f"The folder '{path.parent}' of {option} does not exist. Create it first.")
    with report_unwritable(path.parent, option):
        check_writable(path)
    if path.exists() and not os.access(path, os.W_OK):
        raise OptionError(f"Cannot replace '{path}' (permission denied). Use another name.")
    return path


@contextmanager
def output_folder(name: str) -> Iterator[Path]:
    """Create the folder `name` if needed and check that it is writable; remove new, empty folders if the work inside fails."""
    if not name.strip():
        raise OptionError(
            "--out must name a folder, got an empty name. Use --out demo, or --out . for the current folder."
        )
    path = Path(name).expanduser()
    created = [folder for folder in (path, *path.parents) if not folder.exists()]
    try:
        if path.exists() and not path.is_dir():
            raise OptionError(f"--out must be a folder, but '{path}' is a file. Use another name.")
        with report_unwritable(path):
            path.mkdir(parents=True, exist_ok=True)
            check_writable(path / "file")
        yield path
    except BaseException:
        for folder in created:
            with suppress(OSError):  # it does not exist or is not empty
                folder.rmdir()
        raise


@contextmanager
def report_unwritable(folder: Path, option: str = "--out") -> Iterator[None]:
    """Convert an error of the system inside to one about the folder of an option."""
    try:
        yield
    except OSError as error:
        reason = ((error.__cause__ or error).strerror or str(error)).lower()
        raise OptionError(
            f"Cannot write into the folder '{folder}' ({reason}). Use another folder for {option}."
        ) from error
