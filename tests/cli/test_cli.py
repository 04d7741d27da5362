"""The command line as a whole: help with examples that can be run, exit codes, and a process of its own."""

import re
import shlex
import signal

import pytest
from cli_cases import LONGEST, invoke, shell, succeed, write_waves

from ovkgp import __version__
from ovkgp.recipes import list_recipes

COMMANDS = ("demo", "fit", "predict", "report", "models", "features")


def examples(command):
    """The commands that a help shows, as words."""
    return [
        shlex.split(line) for line in succeed(command, "--help").splitlines() if re.match(r"  (ovkgp|torchrun) ", line)
    ]


def test_help_names_every_command():
    said = succeed("--help")
    assert all(f"  {command} " in said for command in COMMANDS)
    assert "..." not in said.partition("Commands:")[2]  # each says what it does in one line


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command_has_examples_on_one_line_each(command):
    found = examples(command)
    assert len(found) >= 2
    for words in found:
        assert command in words or words[1] == "fit"


@pytest.mark.parametrize("command", COMMANDS)
def test_options_of_examples_exist(command):
    said = {name: succeed(name, "--help") for name in COMMANDS}
    for words in examples(command):
        name = next(word for word in words if word in COMMANDS)
        after = words[words.index(name) :]
        for option in (word.partition("=")[0] for word in after if word.startswith("--")):
            assert option in said[name], (words, option)
        if name == "fit":
            assert after[1] in list_recipes() or after[1].endswith(".toml")


def test_version():
    assert succeed("--version") == f"ovkgp {__version__}\n"


def test_without_a_command_there_is_help():
    assert "Usage: ovkgp" in invoke().output


def test_an_unknown_command():
    result = invoke("fitt")
    assert result.exit_code == 2 and "Error: No such command 'fitt'." in result.output


@pytest.mark.parametrize("before", [True, False])
def test_debug_shows_the_traceback(before):
    arguments = ["predict", "no.ovkgp", "no.csv", "--out", "p.csv"]
    result = invoke(*(["--debug", *arguments] if before else [*arguments, "--debug"]))
    assert result.exit_code == 2 and "Traceback" in result.output
    assert result.output.splitlines()[-1].startswith("Error: there is no file")


def test_a_process_of_its_own(tmp_path):
    table = write_waves(tmp_path)
    fit = ["fit", "multitask", table, "--inputs", "a,b", "--outputs", "u,v", "--out", tmp_path / "m", "--set", "rank=1"]
    with shell(*fit) as process:
        out, errors = process.communicate(timeout=LONGEST)
    assert (process.returncode, errors) == (0, "") and "Model written to" in out
    with shell("predict", tmp_path / "m", tmp_path / "no.csv", "--out", tmp_path / "p.csv") as process:
        out, errors = process.communicate(timeout=LONGEST)
    assert (process.returncode, out) == (2, "") and errors.startswith("Error: there is no file")
    assert len(errors.splitlines()) == 1


def test_nobody_listens(tmp_path):
    """`ovkgp models | head -0`: no complaint."""
    with shell("models") as process:
        process.stdout.close()
        errors = process.stderr.read()
        process.wait(timeout=LONGEST)
    assert "Traceback" not in errors and "Error" not in errors
    assert process.returncode in (0, 1, -signal.SIGPIPE)
