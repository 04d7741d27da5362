"""The command line as a whole: help, examples, exit codes, and runs in another process."""

import re
import shlex
import signal

import pytest
from cli_cases import MAX_SECONDS, invoke, start_process, succeed, write_table

from ovkgp import __version__
from ovkgp.recipes import list_recipes

COMMANDS = ("demo", "fit", "predict", "report", "models", "features")


def examples(command):
    """Return the example commands of a help, split into arguments."""
    return [
        shlex.split(line) for line in succeed(command, "--help").splitlines() if re.match(r"  (ovkgp|torchrun) ", line)
    ]


def test_help_lists_every_command():
    output = succeed("--help")
    assert all(f"  {command} " in output for command in COMMANDS)
    assert "..." not in output.partition("Commands:")[2]  # each description fits on one line


@pytest.mark.parametrize("command", COMMANDS)
def test_command_help_has_one_line_examples(command):
    found = examples(command)
    assert len(found) >= 2
    for words in found:
        assert command in words or words[1] == "fit"


@pytest.mark.parametrize("command", COMMANDS)
def test_help_examples_use_existing_options(command):
    output = {name: succeed(name, "--help") for name in COMMANDS}
    for words in examples(command):
        name = next(word for word in words if word in COMMANDS)
        after = words[words.index(name) :]
        for option in (word.partition("=")[0] for word in after if word.startswith("--")):
            assert option in output[name], (words, option)
        if name == "fit":
            assert after[1] in list_recipes() or after[1].endswith(".toml")


def test_version_option_prints_version():
    assert succeed("--version") == f"ovkgp {__version__}\n"


def test_cli_without_command_prints_help():
    assert "Usage: ovkgp" in invoke().output


def test_cli_rejects_unknown_command():
    result = invoke("fitt")
    assert result.exit_code == 2 and "Error: No such command 'fitt'." in result.output


@pytest.mark.parametrize("before", [True, False])
def test_debug_option_shows_traceback(before):
    arguments = ["predict", "no.ovkgp", "no.csv", "--out", "p.csv"]
    result = invoke(*(["--debug", *arguments] if before else [*arguments, "--debug"]))
    assert result.exit_code == 2 and "Traceback" in result.output
    assert result.output.splitlines()[-1].startswith("Error: ")


def test_cli_runs_in_separate_process(tmp_path):
    table = write_table(tmp_path)
    fit = ["fit", "multitask", table, "--inputs", "a,b", "--outputs", "u,v", "--out", tmp_path / "m", "--set", "rank=1"]
    with start_process(*fit) as process:
        out, errors = process.communicate(timeout=MAX_SECONDS)
    assert (process.returncode, errors) == (0, "") and "Model written to" in out
    with start_process("predict", tmp_path / "m", tmp_path / "no.csv", "--out", tmp_path / "p.csv") as process:
        out, errors = process.communicate(timeout=MAX_SECONDS)
    assert (process.returncode, out) == (2, "") and errors.startswith("Error: ")
    assert len(errors.splitlines()) == 1


def test_cli_ignores_closed_pipe(tmp_path):
    """`ovkgp models | head -0` prints no error."""
    with start_process("models") as process:
        process.stdout.close()
        errors = process.stderr.read()
        process.wait(timeout=MAX_SECONDS)
    assert "Traceback" not in errors and "Error" not in errors
    assert process.returncode in (0, 1, -signal.SIGPIPE)
