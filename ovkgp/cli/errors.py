"""Errors, warnings and Ctrl-C on the command line: one line on stderr each, and an exit code that a script can read.

    2    the arguments or the files are invalid; nothing was changed
    130  Ctrl-C; the message names what was kept
    1    an unexpected error: a bug, or a machine without memory

Only ``--debug`` shows tracebacks. Among the processes of torchrun only rank 0 prints, except that each process prints its own
errors: the launcher ends the others as soon as one has ended.
"""

from __future__ import annotations

import os
import re
import signal
import threading
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from ovkgp.exceptions import DistributedError, OvkgpError

EXIT_BAD_INPUT, EXIT_UNEXPECTED, EXIT_INTERRUPTED = 2, 1, 130
ENVIRONMENT = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Environment variables that torchrun sets for each of its processes."""


@contextmanager
def report_errors(context: typer.Context, debug: bool = False) -> Iterator[None]:
    """Print any error inside as one line on stderr and exit with its code; `debug` or ``ovkgp --debug`` adds the traceback."""
    debug = debug or bool(context.find_root().params.get("debug"))
    try:
        with print_warnings_as_notes():
            yield
    except (typer.Exit, BrokenPipeError):  # typer handles a closed pipe
        raise
    except KeyboardInterrupt as stop:
        _exit(stop, f"Interrupted; {str(stop) or 'nothing was written'}.", EXIT_INTERRUPTED, debug)
    except OvkgpError as error:
        _exit(error, f"Error: {use_cli_options(error.cli_message or str(error))}", EXIT_BAD_INPUT, debug)
    except OSError as error:
        _exit(error, f"Error: {describe_os_error(error)}", EXIT_BAD_INPUT, debug)
    except Exception as error:
        text = traceback.format_exception_only(error)[0].splitlines()[0]
        _exit(error, f"Error: {text} (unexpected; run with --debug for the traceback).", EXIT_UNEXPECTED, debug)


def _exit(error: BaseException, message: str, code: int, debug: bool) -> None:
    if debug:
        typer.echo("".join(traceback.format_exception(error)), err=True, nl=False)
    if is_first_rank() or not isinstance(error, DistributedError | KeyboardInterrupt):
        typer.echo(message, err=True)
    raise typer.Exit(code) from None


def use_cli_options(message: str) -> str:
    """Replace options in Python's notation by those of the command line: ``rank="x"`` becomes ``--set rank=x``."""
    return re.sub(r'\b([a-z_]+)="(\w+)"', r"--set \1=\2", message)


def describe_os_error(error: OSError) -> str:
    """Describe an operating system error by its file and reason, without its number."""
    if error.strerror is None:
        return str(error) or repr(error)
    about = f"'{error.filename}': " if error.filename else ""
    return f"{about}{error.strerror.lower()}."


@contextmanager
def print_warnings_as_notes() -> Iterator[None]:
    """Print each distinct Python warning once, as a line "Note: …" on stderr."""
    printed = set()

    def show(message, category, filename, lineno, file=None, line=None):
        text = use_cli_options(" ".join(str(message).split()))
        if text not in printed and is_first_rank():
            printed.add(text)
            print_note(text)

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


def print_note(text: str) -> None:
    """Print "Note: …" on stderr, on the first rank only."""
    if is_first_rank():
        typer.echo(f"Note: {text[:1].upper()}{text[1:]}", err=True)


def is_launched() -> bool:
    """Whether torchrun started this process as one of several."""
    return all(name in os.environ for name in ENVIRONMENT) and os.environ["WORLD_SIZE"] != "1"


def is_first_rank() -> bool:
    """Whether this process prints and writes for all: rank 0, or a single process."""
    return not is_launched() or os.environ["RANK"] == "0"


class InterruptCounter:
    """Number of times that Ctrl-C was pressed within `listen`, including those that an estimator caught."""

    def __init__(self):
        self.count = 0

    @contextmanager
    def listen(self) -> Iterator[None]:
        """Count SIGINT, which still raises `KeyboardInterrupt`."""
        if threading.current_thread() is not threading.main_thread():  # only the main thread receives signals
            yield
            return

        def handle(number, frame):
            self.count += 1
            raise KeyboardInterrupt

        before = signal.signal(signal.SIGINT, handle)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)
