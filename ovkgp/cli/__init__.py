"""The command line: ``ovkgp`` and ``python -m ovkgp``.

Only typer is imported here; a command imports what it needs when it runs, so that
``ovkgp --help`` answers at once and loads no torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from ovkgp import __version__
from ovkgp.exceptions import OvkgpError

app = typer.Typer(
    name="ovkgp",
    help="Gaussian processes with operator-valued kernels.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ovkgp {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Gaussian processes with operator-valued kernels."""


@app.command("demo")
def demo_command(
    out: Annotated[str, typer.Option(metavar="FOLDER", help="Where the picture goes; it is made if need be.")] = "demo",
    seed: Annotated[int, typer.Option(help="The seed of all random numbers, 0 or more.")] = 0,
) -> None:
    """Draw a curl-free and a divergence-free field, and tabulate how fast random features converge."""
    with _one_sentence():
        from ovkgp.cli.inputs import check_seed, output_folder

        check_seed(seed)
        with output_folder(out) as folder:
            from ovkgp.cli.demo import run

            run(folder, seed)


@contextmanager
def _one_sentence() -> Iterator[None]:
    """Turn an error raised on purpose into one sentence and exit code 2, and Ctrl-C into one and 130."""
    try:
        yield
    except OvkgpError as error:
        typer.echo(f"Error: {error}", err=True)
        raise typer.Exit(2) from None
    except KeyboardInterrupt as stop:
        typer.echo(f"Interrupted; {str(stop) or 'nothing was written'}.", err=True)
        raise typer.Exit(130) from None


def main() -> None:
    """The entry point of the command ``ovkgp``."""
    app(prog_name="ovkgp")
