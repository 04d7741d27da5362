"""The command line: ``ovkgp`` and ``python -m ovkgp``.

Each command imports what it needs when it runs, so that ``ovkgp --help`` is fast and loads no torch.
"""

from __future__ import annotations

from typing import Annotated

import typer

from ovkgp import __version__
from ovkgp.cli.arguments import Debug
from ovkgp.cli.criticize import criticize_command
from ovkgp.cli.errors import InterruptCounter, report_errors
from ovkgp.cli.features import features_command
from ovkgp.cli.fit import fit_command
from ovkgp.cli.forecast import forecast_command
from ovkgp.cli.models import models_command
from ovkgp.cli.predict import predict_command
from ovkgp.cli.report import report_command

app = typer.Typer(
    name="ovkgp",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # keeps examples unwrapped and errors on one line
)


def main() -> None:
    """Run the command ``ovkgp``."""
    app(prog_name="ovkgp")


def _print_version(is_requested: bool) -> None:
    if is_requested:
        typer.echo(f"ovkgp {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
    debug: Debug = False,
) -> None:
    """Gaussian processes with operator-valued kernels: fit a model to a table, predict, and write a report.

    \b
    ovkgp demo                   # compare five models of an ocean current
    ovkgp models                 # list the recipes
    ovkgp fit vector_field drifters.csv --inputs east,north --outputs u,v --out currents.ovkgp
    ovkgp predict currents.ovkgp points.csv --out currents.csv
    ovkgp forecast sales.ovkgp --steps 12 --out forecast.csv
    ovkgp report currents.ovkgp --out currents.html
    ovkgp criticize currents.ovkgp new_drifters.csv
    """


@app.command("demo")
def demo_command(
    context: typer.Context,
    out: Annotated[
        str, typer.Option(metavar="FOLDER", help="Folder for the results; created if it does not exist.")
    ] = "demo",
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    debug: Debug = False,
) -> None:
    """Compare models of an ocean current with known ground truth.

    Examples:

    \b
    ovkgp demo
    ovkgp demo --out results --seed 1
    """
    with report_errors(context, debug):
        from ovkgp.cli.arguments import check_seed, output_folder

        check_seed(seed)
        interrupts = InterruptCounter()
        with output_folder(out) as folder, interrupts.listen():  # an import may ignore a KeyboardInterrupt
            from ovkgp.cli.demo import run

            run(folder, seed, interrupts)


app.command("fit")(fit_command)
app.command("predict")(predict_command)
app.command("forecast")(forecast_command)
app.command("report")(report_command)
app.command("criticize")(criticize_command)
app.command("models")(models_command)
app.command("features")(features_command)
