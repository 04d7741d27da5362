"""``ovkgp fit``: a model from a recipe and a table."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from ovkgp.cli.arguments import Data, Debug, Outputs, Quiet, Separator, SkipBadRows, Task, names
from ovkgp.cli.errors import INTERRUPTED, one_sentence


def fit_command(
    context: typer.Context,
    recipe: Annotated[
        str, typer.Argument(metavar="RECIPE", help="One of `ovkgp models`, or your own TOML file.", show_default=False)
    ],
    data: Data,
    inputs: Annotated[str, typer.Option(metavar="a,b", help="The columns to learn from.", show_default=False)],
    out: Annotated[str, typer.Option("--out", "-o", metavar="MODEL", help="Where the model goes.", show_default=False)],
    outputs: Outputs = None,
    task: Task = None,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Change an option of the recipe; repeatable.", show_default=False
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Of all random numbers, 0 or more; else the recipe's.", show_default=False)
    ] = None,
    separator: Separator = ",",
    skip_bad_rows: SkipBadRows = False,
    stream: Annotated[
        bool | None,
        typer.Option(
            "--stream/--no-stream",
            help="Read the table in chunks, in memory that does not grow with it; recipes on random features can. Without "
            "either, files over 256 MB are, where the recipe can.",
            show_default=False,
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with a fit that was interrupted, from the file MODEL.training.")
    ] = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Fit a model to a table and write it to a file.

    Rows are samples. An empty cell of an output is a missing output; an input may not be missing. Ctrl-C keeps the best
    model so far, and --resume goes on from there. Started by torchrun, each process reads its share of the rows.

    Examples:

    \b
    ovkgp fit vector_field drifters.csv --inputs east,north --outputs u,v --out currents.ovkgp
    ovkgp fit multitask long.csv --inputs x,y --task metal --outputs ppm --out soil.ovkgp --set rank=3
    ovkgp fit quantiles engel.csv --inputs income --outputs food --out engel.ovkgp
    ovkgp fit level_sets sensors.parquet --inputs a,b,c --out usual.ovkgp
    torchrun --nproc_per_node=2 -m ovkgp fit large_scale table.csv --inputs a,b --outputs u,v --out big.ovkgp
    """
    with one_sentence(context, debug):
        from ovkgp.cli.arguments import check_seed, output_file, settings
        from ovkgp.recipes import load_recipe

        chosen = load_recipe(recipe).with_options(**settings(changes or ()))
        path = output_file(out, sources=[data])
        if seed is not None:
            check_seed(seed)
        from ovkgp.cli.fit_job import CheckpointFiles, FitJob, show
        from ovkgp.cli.tables import TableFile

        verbose = int(not quiet and sys.stderr.isatty())
        columns = names(inputs), names(outputs), task
        table = TableFile(Path(data).expanduser(), *columns, not skip_bad_rows, separator, verbose)
        fitted = FitJob(chosen, table, path, seed, stream, resume, verbose).run()
        how = ["--task", task, "--outputs", outputs] if task else []
        how += ["--separator", separator] if separator != "," else []
        try:
            show(fitted, path, shlex.join([data, *how]), quiet)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(CheckpointFiles(path).kept(is_written=True)) from None
        if fitted.interrupted:
            _say_interrupted(out, fitted.checkpoint)
            raise typer.Exit(INTERRUPTED)


def _say_interrupted(out: str, checkpoint: Path | None) -> None:
    more = "it had no checkpoint to resume from"
    if checkpoint is not None:
        more = f"the same command with --resume goes on from '{checkpoint}'"
    typer.echo(f"Interrupted; the best model so far is in {shlex.quote(out)}, and {more}.", err=True)
