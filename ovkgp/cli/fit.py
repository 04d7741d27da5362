"""``ovkgp fit``: fit a recipe to a table and write the model to a file."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from ovkgp.cli.arguments import (
    Data,
    Debug,
    Grid,
    Outputs,
    Quiet,
    Separator,
    SkipBadRows,
    Task,
    argument,
    option,
    parse_names,
)
from ovkgp.cli.errors import EXIT_INTERRUPTED, report_errors


def fit_command(
    context: typer.Context,
    recipe: Annotated[str, argument("RECIPE", "A name from `ovkgp models`, or a TOML file.")],
    data: Data,
    inputs: Annotated[str, option("a,b", "The input columns, or a pattern such as 'x_*'.")],
    out: Annotated[str, option("MODEL", "The model file to write.", "--out", "-o")],
    outputs: Outputs = None,
    task: Task = None,
    grid: Grid = None,
    overrides: Annotated[
        list[str] | None, option("KEY=VALUE", "Override an option of the recipe; repeatable.", "--set")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Random seed (default: the recipe's).", show_default=False)] = None,
    separator: Separator = ",",
    skip_bad_rows: SkipBadRows = False,
    stream: Annotated[
        bool | None,
        typer.Option(
            "--stream/--no-stream",
            help="Read the table in chunks, in constant memory; only for recipes that can use random features. By default, files over 256 MB are streamed if the recipe supports it.",
            show_default=False,
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume an interrupted fit from the file MODEL.training.")
    ] = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Fit a model to a table and write it to a file.

    Each row is a sample. Outputs may be missing (empty cells), inputs may not. Ctrl-C keeps the best model so far, and
    --resume continues from it. Under torchrun, each process reads its own part of the rows.

    Examples:

    \b
    ovkgp fit vector_field drifters.csv --inputs east,north --outputs u,v --out currents.ovkgp
    ovkgp fit multitask long.csv --inputs x,y --task metal --outputs ppm --out soil.ovkgp --set rank=3
    ovkgp fit quantiles engel.csv --inputs income --outputs food --out engel.ovkgp
    ovkgp fit curves growth.csv --inputs age,dose --outputs 'day_*' --out growth.ovkgp
    ovkgp fit level_sets sensors.parquet --inputs a,b,c --out normal.ovkgp
    torchrun --nproc_per_node=2 -m ovkgp fit large_scale table.csv --inputs a,b --outputs u,v --out big.ovkgp
    """
    with report_errors(context, debug):
        from ovkgp.cli.arguments import check_output_file, check_seed, parse_overrides
        from ovkgp.recipes import load_recipe

        chosen = load_recipe(recipe).with_options(**parse_overrides(overrides or ()))
        path = check_output_file(out, sources=[data])
        if seed is not None:
            check_seed(seed)
        from ovkgp.cli.curve_grids import GRID_ROW
        from ovkgp.cli.fit_job import CheckpointFiles, FitJob, print_fit_summary
        from ovkgp.cli.tables import TableFile

        verbose = int(not quiet and sys.stderr.isatty())
        columns = parse_names(inputs), parse_names(outputs), task
        options = not skip_bad_rows, separator, verbose, grid == GRID_ROW
        table = TableFile(Path(data).expanduser(), *columns, *options).expand_patterns()
        result = FitJob(chosen, table, path, seed, stream, resume, verbose, grid).run()
        read_options = ["--task", task, "--outputs", outputs] if task else []
        read_options += ["--grid", grid] if grid == GRID_ROW else []
        read_options += ["--separator", separator] if separator != "," else []
        try:
            print_fit_summary(result, path, shlex.join([data, *read_options]), quiet)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(CheckpointFiles(path).describe(is_written=True)) from None
        if result.interrupted:
            more = "there is no checkpoint to resume from"
            if result.checkpoint is not None:
                more = f"the same command with --resume continues from '{result.checkpoint}'"
            typer.echo(f"Interrupted; the best model so far is in {shlex.quote(out)}, and {more}.", err=True)
            raise typer.Exit(EXIT_INTERRUPTED)
