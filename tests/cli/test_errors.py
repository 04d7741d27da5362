"""Tests of `ovkgp.cli.errors`."""

import errno
import os
import signal
import threading
import warnings

import pytest
import typer
from typer.testing import CliRunner

from ovkgp.cli.errors import (
    ENVIRONMENT,
    InterruptCounter,
    is_first_rank,
    is_launched,
    print_note,
    report_errors,
    use_cli_options,
)
from ovkgp.exceptions import DistributedError, InputError
from ovkgp.inference.statistics import distributed


def run(work, *arguments):
    """Run a program with one command, which calls `work`."""
    app = typer.Typer(pretty_exceptions_enable=False)

    @app.callback()
    def options(debug: bool = False):
        pass

    @app.command()
    def work_command(context: typer.Context, debug: bool = False):
        with report_errors(context, debug):
            work()

    return CliRunner().invoke(app, [*arguments])


def raising(error):
    def work():
        raise error

    return work


@pytest.mark.parametrize(
    ("error", "code", "line"),
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
            "Error: ZeroDivisionError: division by zero (unexpected; run with --debug for the traceback).\n",
        ),
        (AssertionError(), 1, "Error: AssertionError (unexpected; run with --debug for the traceback).\n"),
    ],
)
def test_error_prints_one_line_and_sets_code(error, code, line):
    result = run(raising(error), "work-command")
    assert (result.exit_code, result.stderr, result.stdout) == (code, line, "")


@pytest.mark.parametrize("arguments", [["--debug", "work-command"], ["work-command", "--debug"]])
@pytest.mark.parametrize("error", [InputError("the table is empty."), ZeroDivisionError("division by zero")])
def test_debug_shows_traceback_and_keeps_code(arguments, error):
    result = run(raising(error), *arguments)
    assert result.exit_code == run(raising(error), "work-command").exit_code
    assert "Traceback (most recent call last)" in result.stderr and "in work" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("Error: ")


def test_exit_keeps_its_code():
    assert run(raising(typer.Exit(7)), "work-command").exit_code == 7


def test_closed_pipe_prints_no_error():
    result = run(raising(BrokenPipeError(errno.EPIPE, "Broken pipe")), "work-command")
    assert "Error" not in result.output


def test_error_prints_cli_advice():
    error = InputError("line 7 is bad.", advice='Pass on_bad_rows="warn".', cli_advice="Pass --skip-bad-rows.")
    assert str(error) == 'line 7 is bad. Pass on_bad_rows="warn".'
    assert run(raising(error), "work-command").stderr == "Error: line 7 is bad. Pass --skip-bad-rows.\n"


def test_error_prints_options_in_cli_notation():
    message = 'Streams need a feature map. Use approximation="orff".'
    assert use_cli_options(message) == "Streams need a feature map. Use --set approximation=orff."
    result = run(raising(InputError(message, advice='Or use kernel="lmc".')), "work-command")
    assert result.stderr.endswith("Use --set approximation=orff. Or use --set kernel=lmc.\n")


def test_warnings_are_printed_once_as_notes():
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


def test_other_ranks_print_only_their_own_errors(second_rank):
    def work():
        print_note("something.")
        warnings.warn("something else.", stacklevel=1)
        raise DistributedError("rank 0 failed")

    assert run(work, "work-command").output == ""
    assert run(raising(KeyboardInterrupt()), "work-command").output == ""
    assert run(raising(InputError("line 7 is bad.")), "work-command").output == "Error: line 7 is bad.\n"


def test_interrupt_counter_counts_caught_signals():
    interrupts, before = InterruptCounter(), signal.getsignal(signal.SIGINT)
    with interrupts.listen():
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        assert interrupts.count == 1
    assert signal.getsignal(signal.SIGINT) is before


def test_interrupt_counter_ignores_other_threads():
    interrupts, done = InterruptCounter(), []

    def work():
        with interrupts.listen():
            done.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [True] and interrupts.count == 0


def test_environment_equals_that_of_process_group():
    assert ENVIRONMENT == distributed.ENVIRONMENT


@pytest.mark.parametrize(
    ("rank", "size", "launched", "first"), [("0", "2", True, True), ("1", "2", True, False), ("0", "1", False, True)]
)
def test_rank_predicates_follow_environment(monkeypatch, rank, size, launched, first):
    for name, value in zip(ENVIRONMENT, (rank, size, "localhost", "1"), strict=True):
        monkeypatch.setenv(name, value)
    assert (is_launched(), is_first_rank()) == (launched, first)
    monkeypatch.delenv("MASTER_PORT")
    assert (is_launched(), is_first_rank()) == (False, True)
