"""Tests of `ovkgp.cli.errors`."""

import errno
import os
import signal
import threading
import warnings

import pytest
import typer
from typer.testing import CliRunner

from ovkgp.cli.errors import ENVIRONMENT, Interrupts, is_first_rank, is_launched, note, one_sentence
from ovkgp.exceptions import DistributedError, InputError
from ovkgp.inference.statistics import distributed


def run(work, *arguments):
    """A program with one command, which does `work`."""
    app = typer.Typer(pretty_exceptions_enable=False)

    @app.callback()
    def options(debug: bool = False):
        pass

    @app.command()
    def work_command(context: typer.Context, debug: bool = False):
        with one_sentence(context, debug):
            work()

    return CliRunner().invoke(app, [*arguments])


def raising(error):
    def work():
        raise error

    return work


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (InputError("the table is empty."), 2, "Error: the table is empty.\n"),
        (FileNotFoundError("there is no file 'x'."), 2, "Error: there is no file 'x'.\n"),
        (PermissionError(13, "Permission denied", "x.csv"), 2, "Error: 'x.csv': permission denied.\n"),
        (OSError(28, "No space left on device"), 2, "Error: no space left on device.\n"),
        (KeyboardInterrupt(), 130, "Interrupted; nothing was written.\n"),
        (KeyboardInterrupt("half of it is in x"), 130, "Interrupted; half of it is in x.\n"),
        (
            ZeroDivisionError("division by zero\nand more"),
            1,
            "Error: ZeroDivisionError: division by zero (this was not foreseen: ovkgp --debug shows where).\n",
        ),
        (AssertionError(), 1, "Error: AssertionError (this was not foreseen: ovkgp --debug shows where).\n"),
    ],
)
def test_an_error_is_one_sentence_and_a_code(error, code, sentence):
    result = run(raising(error), "work-command")
    assert (result.exit_code, result.stderr, result.stdout) == (code, sentence, "")


@pytest.mark.parametrize("arguments", [["--debug", "work-command"], ["work-command", "--debug"]])
@pytest.mark.parametrize("error", [InputError("the table is empty."), ZeroDivisionError("division by zero")])
def test_debug_shows_the_traceback_and_keeps_the_code(arguments, error):
    result = run(raising(error), *arguments)
    assert result.exit_code == run(raising(error), "work-command").exit_code
    assert "Traceback (most recent call last)" in result.stderr and "in work" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("Error: ")


def test_an_exit_is_left_alone():
    assert run(raising(typer.Exit(7)), "work-command").exit_code == 7


def test_a_closed_pipe_is_no_error_to_talk_about():
    result = run(raising(BrokenPipeError(errno.EPIPE, "Broken pipe")), "work-command")
    assert "Error" not in result.output


def test_advice_is_in_the_words_of_the_shell():
    result = run(raising(InputError('Correct it, or leave such rows out with bad="warn".')), "work-command")
    assert result.stderr == "Error: Correct it, or leave such rows out with --skip-bad-rows.\n"


def test_warnings_are_notes_and_each_is_told_once():
    def work():
        for _ in range(3):
            warnings.warn("training stopped\n  after 3 iterations.", stacklevel=1)
        warnings.warn("another.", stacklevel=1)
        typer.echo("done")

    before = warnings.showwarning
    result = run(work, "work-command")
    assert result.stderr == "Note: Training stopped after 3 iterations.\nNote: Another.\n"
    assert result.stdout == "done\n"
    assert warnings.showwarning is before


@pytest.fixture
def second_rank(monkeypatch):
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)


def test_only_the_first_rank_speaks_but_of_its_own_errors(second_rank):
    def work():
        note("something.")
        warnings.warn("something else.", stacklevel=1)
        raise DistributedError("rank 0 failed")

    assert run(work, "work-command").output == ""
    assert run(raising(KeyboardInterrupt()), "work-command").output == ""
    assert run(raising(InputError("line 7 is bad.")), "work-command").output == "Error: line 7 is bad.\n"


def test_a_signal_that_was_swallowed_is_known():
    interrupts, before = Interrupts(), signal.getsignal(signal.SIGINT)
    with interrupts.listening():
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        assert interrupts.count == 1
    assert signal.getsignal(signal.SIGINT) is before


def test_other_threads_hear_nothing():
    interrupts, done = Interrupts(), []

    def work():
        with interrupts.listening():
            done.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [True] and interrupts.count == 0


def test_the_names_are_those_that_the_group_looks_for():
    assert ENVIRONMENT == distributed.ENVIRONMENT


@pytest.mark.parametrize(
    ("rank", "size", "launched", "first"), [("0", "2", True, True), ("1", "2", True, False), ("0", "1", False, True)]
)
def test_ranks(monkeypatch, rank, size, launched, first):
    for name, value in zip(ENVIRONMENT, (rank, size, "localhost", "1"), strict=True):
        monkeypatch.setenv(name, value)
    assert (is_launched(), is_first_rank()) == (launched, first)
    monkeypatch.delenv("MASTER_PORT")
    assert (is_launched(), is_first_rank()) == (False, True)
