"""Errors, warnings and Ctrl-C on the command line: one sentence each, and an exit code that a script can read.

    2    what was typed or what the files hold is wrong; nothing was changed
    130  Ctrl-C; the sentence says what was kept
    1    an error that nobody foresaw: a bug, or a machine without memory

Tracebacks are for ``--debug``. Among the processes of torchrun only rank 0 speaks, but an error is told where it arose: the
launcher ends the others as soon as one has ended.
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


class Interrupts:
    """How often Ctrl-C was pressed while `listening`."""

    def __init__(self):
        self.count = 0

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Count SIGINT, which raises `KeyboardInterrupt` as ever."""
        if threading.current_thread() is not threading.main_thread():  # signals are for the main thread
            yield
            return

        def heard(number, frame):
            self.count += 1
            raise KeyboardInterrupt

        before = signal.signal(signal.SIGINT, heard)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)


ENVIRONMENT = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""What torchrun tells each of its processes."""


def is_launched() -> bool:
    """Whether torchrun started this process as one of several.

    Example:
        >>> is_launched()
        False
    """
    return all(name in os.environ for name in ENVIRONMENT) and os.environ["WORLD_SIZE"] != "1"


def is_first_rank() -> bool:
    """Whether this process speaks and writes for all: rank 0, or one that is alone."""
    return not is_launched() or os.environ["RANK"] == "0"


BAD_INPUT, UNEXPECTED, INTERRUPTED = 2, 1, 130

SHELL_WORDS = {
    'leave such rows out with bad="warn"': "leave such rows out with --skip-bad-rows",
    "is the separator right?": "is --separator right?",
    "Give another path, or delete the file to begin anew": "Leave --resume out to begin anew",
}
"""Advice that the library gives in Python, and what it is in the shell."""


@contextmanager
def one_sentence(context: typer.Context, debug: bool = False) -> Iterator[None]:
    """Answer whatever goes wrong inside with one sentence on stderr, and an exit code.

    Args:
        context: of the command, which knows whether ``ovkgp --debug`` was typed.
        debug: whether ``--debug`` was typed at the command.
    """
    debug = debug or bool(context.find_root().params.get("debug"))
    try:
        with notes():
            yield
    except (typer.Exit, BrokenPipeError):  # done; or nobody listens any more, which typer handles
        raise
    except KeyboardInterrupt as stop:
        _end(stop, f"Interrupted; {str(stop) or 'nothing was written'}.", INTERRUPTED, debug)
    except OvkgpError as error:
        _end(error, f"Error: {in_shell_words(str(error))}", BAD_INPUT, debug)
    except OSError as error:
        _end(error, f"Error: {system_words(error)}", BAD_INPUT, debug)
    except Exception as error:
        first = (str(error).splitlines() or [""])[0]
        words = f"Error: {type(error).__name__}: {first}".rstrip(": ")
        _end(error, f"{words} (this was not foreseen: ovkgp --debug shows where).", UNEXPECTED, debug)


def _end(error: BaseException, sentence: str, code: int, debug: bool) -> None:
    if debug:
        typer.echo("".join(traceback.format_exception(error)), err=True, nl=False)
    if is_first_rank() or not isinstance(error, DistributedError | KeyboardInterrupt):
        typer.echo(sentence, err=True)
    raise typer.Exit(code) from None


@contextmanager
def notes() -> Iterator[None]:
    """Python's warnings as lines "Note: …" on stderr, each once."""
    told = set()

    def show(message, category, filename, lineno, file=None, line=None):
        sentence = in_shell_words(" ".join(str(message).split()))
        if sentence not in told and is_first_rank():
            told.add(sentence)
            note(sentence)

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


def note(sentence: str) -> None:
    """Say something worth knowing on stderr."""
    if is_first_rank():
        typer.echo(f"Note: {sentence[:1].upper()}{sentence[1:]}", err=True)


def in_shell_words(sentence: str) -> str:
    """A message of the library with its advice in the words of the shell.

    Example:
        >>> in_shell_words('line 7: input \\'x\\' is missing. Correct it, or leave such rows out with bad="warn".')
        "line 7: input 'x' is missing. Correct it, or leave such rows out with --skip-bad-rows."
        >>> in_shell_words('a stream needs a feature map: use approximation="orff".')
        'a stream needs a feature map: use --set approximation=orff.'
    """
    for python, shell in SHELL_WORDS.items():
        sentence = sentence.replace(python, shell)
    return re.sub(r'\b([a-z_]+)="(\w+)"', r"--set \1=\2", sentence)


def system_words(error: OSError) -> str:
    """An error of the system as a sentence, with the file it is about and without its number.

    Example:
        >>> system_words(PermissionError(13, "Permission denied", "table.csv"))
        "'table.csv': permission denied."
    """
    if error.strerror is None:
        return str(error) or type(error).__name__
    about = f"'{error.filename}': " if error.filename else ""
    return f"{about}{error.strerror.lower()}."
