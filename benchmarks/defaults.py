"""`GPRegressor()` without options compared with scikit-learn, GPyTorch and ridge, in one run and on one thread.

    python benchmarks/defaults.py [--data FOLDER] [--half A | B] [--tables NAME ...] [--sizes N ...] [--splits N]
                                  [--contenders NAME ...] [--missing FRACTION] [--out FILE.csv] [--before FILE.csv ...]
                                  [--prototype FILE.py] [--quick]
    python benchmarks/defaults.py --sines | --simulated | --speed [--contenders NAME ...] [--sets N] [--quick]

Tables: random subsets of 30, 60, 120 (two splits) and 250 rows (one split) of public tables in two fixed halves, or of simulated functions if no folder
is given (or in OVKGP_DATA). Scores per test entry in units of the standard deviation of the training outputs: mean log density, RMSE, coverage of 90 %
intervals; and CPU seconds of fit and prediction. With --out each result is appended to a file, whose rows are not computed again. --before adds the
results of other files, such as that of an earlier commit, whose rows of "ovkgp" are then called "before". --sines: sines of 1 to 40 periods compared with
the best mode of a grid; --simulated: coverage on data of the model's family; --speed: CPU seconds beside one factorization of that size.
--large: the same on real tables with all outputs; --small: CPU seconds beside peers; --emulator: 31 outputs of a simulator.
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
from claims import Claim, claim, heading, note, row, run_experiments
from defaults_checks import simulated, sines, speed
from defaults_peers import CONTENDERS, Contender, Predictions, prototype
from defaults_real import emulator, large, small
from defaults_tables import FIELDS, HALVES, SIZES, Split, Table, load_table, make_splits, simulated_tables

KEY = ["table", "n", "split", "missing", "contender"]
SCORES = ["log_density", "rmse", "coverage", "cpu_seconds"]
COLUMNS = [*KEY, "half", "d", "p", "entries", *SCORES, "error"]
OURS = "ovkgp"


def score(predictions: Predictions, split: Split) -> dict[str, float]:
    """Compute mean log density, RMSE and coverage over the test entries, in units of the standard deviation of the training outputs."""
    scale = np.nanstd(split.Y, 0)
    scale = np.where(scale > 0, scale, 1)
    Y = split.Y_test
    lower, upper = (end.reshape(Y.shape) for end in predictions.interval())
    density = predictions.log_density(Y).reshape(Y.shape) + np.log(scale)
    scores = {
        "log_density": density.mean(),
        "rmse": np.sqrt(np.mean(((predictions.mean.reshape(Y.shape) - Y) / scale) ** 2)),
        "coverage": np.mean((lower <= Y) & (upper >= Y)),
    }
    if not np.isfinite(list(scores.values())).all():
        raise FloatingPointError("a score is not finite")
    return {name: float(value) for name, value in scores.items()}


def measure(contender: Contender, split: Split) -> dict:
    """Fit, predict and score; a contender that fails has an error instead of scores."""
    start = time.process_time()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            predictions = contender(split.X, split.Y, split.X_test)
            seconds = time.process_time() - start
            return score(predictions, split) | {"cpu_seconds": seconds, "error": ""}
    except Exception as error:  # peers raise errors of many classes; each failure is counted
        text = f"{type(error).__name__}: {error}".splitlines()[0][:120]
        return dict.fromkeys(SCORES[:-1], np.nan) | {"cpu_seconds": time.process_time() - start, "error": text}


def warm_up(contenders: dict[str, Contender]) -> None:
    """Fit every contender once, so that imports and caches of a first call are not timed."""
    rng = np.random.default_rng(0)
    X, Y, X_test = (rng.standard_normal((10, 2)) for _ in range(3))
    for contender in contenders.values():
        measure(contender, Split(X, Y, X_test, Y))


def run_tables(
    tables: Iterable[Table],
    sizes: Sequence[int],
    contenders: dict[str, Contender],
    missing: float = 0.0,
    out: str | Path | None = None,
    num_splits: int = 2,
) -> pd.DataFrame:
    """Measure every contender on every split that the file `out` lacks, append to it, and return all requested rows."""
    done = read_results(out)
    known = {} if done is None else {tuple(values[:5]): values for values in done.itertuples(index=False, name=None)}
    results = []
    for table, n in product(tables, sizes):
        for number, split in make_splits(table, n, missing, num_splits):
            for name, contender in contenders.items():
                if name == "helmholtz" and table.name not in FIELDS:
                    continue
                key = (table.name, n, number, missing, name)
                if key not in known:
                    found = measure(contender, split) | {"half": table.half, "entries": split.Y_test.size}
                    found |= {"d": split.X.shape[1], "p": split.Y.shape[1], **dict(zip(KEY, key, strict=True))}
                    known[key] = tuple(found[column] for column in COLUMNS)
                    _append(out, known[key])
                results.append(known[key])
    return pd.DataFrame(results, columns=COLUMNS)


def read_results(path: str | Path | None) -> pd.DataFrame | None:
    """Read a file of results; None if there is none."""
    if path is None or not Path(path).is_file():
        return None
    frame = pd.read_csv(path, keep_default_na=False, na_values={name: [""] for name in SCORES})
    return frame[COLUMNS].drop_duplicates(KEY, keep="last")


def _append(path: str | Path | None, values: tuple) -> None:
    if path is not None:
        frame = pd.DataFrame([values], columns=COLUMNS)
        frame.to_csv(path, mode="a", header=not Path(path).is_file(), index=False)


def add_earlier_results(results: pd.DataFrame, path: str | Path) -> pd.DataFrame:
    """Add the rows of another file for the splits in `results`: its "ovkgp" as "before", and contenders that are not in `results`."""
    earlier = read_results(path)
    if earlier is None:
        raise FileNotFoundError(f"--before: there is no file {path}.")
    earlier = earlier.assign(contender=earlier["contender"].replace(OURS, "before"))
    earlier = earlier[~earlier["contender"].isin(results["contender"])]
    splits = results[KEY[:4]].drop_duplicates()
    return pd.concat([results, earlier.merge(splits, on=KEY[:4])], ignore_index=True)


def average(results: pd.DataFrame) -> pd.DataFrame:
    """Average over the splits of each table and contender; sizes have equal weights."""
    return results.groupby(["table", "contender", "n"])[SCORES].mean().groupby(level=["table", "contender"]).mean()


def differences(results: pd.DataFrame, contender: str, score: str = "log_density") -> pd.Series:
    """Return ours minus theirs by table, averaged over the splits on which both have a score; sizes have equal weights."""
    wide = results.pivot_table(score, ["table", "n", "split"], "contender")
    if OURS not in wide or contender not in wide:
        return pd.Series(dtype=float)
    paired = (wide[OURS] - wide[contender]).dropna()
    return paired.groupby(level=["table", "n"]).mean().groupby(level="table").mean()


def print_results(results: pd.DataFrame) -> list[Claim]:
    """Print the tables of scores and the means by half and size; return the claims."""
    names = list(dict.fromkeys(results["contender"]))
    claims = []
    for half, part in results.groupby("half"):
        groups = {f"n = {n}": group for n, group in part.groupby("n")} | {"all sizes": part}
        title = f"half {half}" if half in HALVES else half
        for print_group in (_print_densities, _print_means):
            for size, group in groups.items():
                print_group(group, names, f"{title}, {size}")
        claims += _claims(part, title)
    return claims


def _print_densities(part: pd.DataFrame, names: Sequence[str], title: str) -> None:
    heading(f"{title}: mean log density", "", *names)
    densities = average(part)["log_density"].unstack("contender").reindex(columns=names)
    for table, values in densities.iterrows():
        row(table, *values)


def _print_means(part: pd.DataFrame, names: Sequence[str], title: str) -> None:
    means = average(part)
    heading(
        f"{title}: means over {part['table'].nunique()} tables (ovkgp minus contender ± paired standard error)",
        "",
        "log density",
        "difference",
        "median difference",
        "ahead on tables",
        "RMSE",
        "coverage of 90 %",
        "|coverage - .9|",
        "CPU seconds",
        "failures",
    )
    for name in names:
        theirs = part[part["contender"] == name]
        if theirs.empty:
            continue
        found = means.xs(name, level="contender")
        ahead = differences(part, name)
        failures = f"{(theirs['error'] != '').sum()} of {len(theirs)}"
        row(
            name,
            found["log_density"].mean(),
            "" if name == OURS else _with_error(ahead),
            f"{ahead.median():+.3f}" if len(ahead) and name != OURS else "",
            "" if name == OURS else f"{(ahead > 0).sum()} of {len(ahead)}",
            found["rmse"].mean(),
            found["coverage"].mean(),
            (found["coverage"] - 0.9).abs().mean(),
            found["cpu_seconds"].mean(),
            failures,
        )


def _with_error(values: pd.Series) -> str:
    if len(values) < 2:
        return f"{values.mean():+.3f}" if len(values) else "-"
    return f"{values.mean():+.3f} ± {values.std(ddof=1) / np.sqrt(len(values)):.3f}"


def _claims(part: pd.DataFrame, title: str) -> list[Claim]:
    """Assess the aims for `GPRegressor()` on one half."""
    gains = {name: differences(part, name) for name in sorted(set(part["contender"]) - {OURS})}
    gains = {name: gain for name, gain in gains.items() if len(gain)}
    if not gains:
        return []
    print()
    num_failures = (part.loc[part["contender"] == OURS, "error"] != "").sum()
    found = [claim(f"{title}: no failure of {OURS} ({num_failures})", num_failures == 0)]
    peers = [name for name in gains if name not in ("before", "prototype", "helmholtz")]
    aims = {"before": 0.4, "prototype": -0.01, "helmholtz": -0.01}
    if peers:
        aims[min(peers, key=lambda name: gains[name].mean())] = 0.3
    for name, aim in aims.items():
        if name in gains:
            gain = gains[name].mean()
            label = f"the best peer, {name}," if name in peers else name
            found.append(
                claim(f"{title}: log density minus that of {label} at least {aim:g} ({gain:+.3f})", gain >= aim)
            )
    if rivals := [name for name in gains if name in ("before", "gpytorch", "gpytorch_prior")]:
        worst = pd.DataFrame({name: gains[name] for name in rivals}).min(axis=1)
        text = f"{title}: on no table worse than {' or '.join(rivals)} by more than .05"
        found.append(claim(f"{text} (worst: {worst.idxmin()}, {worst.min():+.3f})", worst.min() >= -0.05))
    coverage = average(part)["coverage"].xs(OURS, level="contender").mean()
    found.append(claim(f"{title}: coverage of 90 % intervals .88 to .92 ({coverage:.3f})", 0.88 <= coverage <= 0.92))
    logs = part.assign(rmse=np.log(part["rmse"]))
    ratios = {name: differences(logs, name, "rmse").mean() for name in gains if name not in ("prototype", "helmholtz")}
    if ratios:
        best = max(ratios, key=ratios.get)
        text = f"{title}: lowest RMSE on average (mean log ratio to {best} {ratios[best]:+.3f})"
        found.append(claim(text, ratios[best] <= 0))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default=os.environ.get("OVKGP_DATA"), help="the folder of multitarget/, emulator/, …")
    parser.add_argument("--half", choices=HALVES, help="one half of the tables (default: both)")
    parser.add_argument("--tables", nargs="+", metavar="NAME", help="tables or functions")
    parser.add_argument("--sizes", nargs="+", type=int, metavar="N", help="numbers of training rows")
    parser.add_argument("--splits", type=int, default=2, help="splits up to 120 training rows; half as many beyond")
    parser.add_argument("--contenders", nargs="+", metavar="NAME", help=f"of {', '.join(CONTENDERS)}, prototype")
    parser.add_argument("--missing", type=float, default=0.0, help="fraction of the training outputs to remove")
    parser.add_argument("--out", help="file of results; its rows are not computed again")
    parser.add_argument(
        "--before", nargs="+", default=[], metavar="FILE", help="results of other commits or contenders"
    )
    parser.add_argument("--prototype", help="Python file with a class Recipe to compare with")
    parser.add_argument("--quick", action="store_true", help="fewer sizes, splits and settings, for a first look")
    parser.add_argument("--sets", type=int, help="number of settings of --sines, of data sets per case of --simulated")
    sections = parser.add_mutually_exclusive_group()
    for name, text in (
        ("sines", "periodic data"),
        ("simulated", "coverage on simulated data"),
        ("speed", "CPU seconds"),
        ("large", "CPU seconds on real tables with all outputs"),
        ("small", "CPU seconds beside scikit-learn and GPyTorch"),
        ("emulator", "R² and coverage on the outputs of a simulator"),
    ):
        sections.add_argument(f"--{name}", action="store_true", help=text)
    options = parser.parse_args()
    run_experiments([select_experiment(parser, options)])


def select_experiment(
    parser: argparse.ArgumentParser, options: argparse.Namespace
) -> tuple[str, Callable[[], list[Claim]]]:
    """Return the requested section: its name and function."""
    for name, section in (("sines", sines), ("simulated", simulated), ("speed", speed)):
        if getattr(options, name):
            sizes = {"quick": options.quick, "names": options.contenders} | (
                {"num_sets": options.sets} if options.sets else {}
            )
            return name, partial(section, **sizes)
    for name, section in (("large", large), ("small", small), ("emulator", emulator)):
        if getattr(options, name):
            if options.data is None:
                parser.error(f"--{name}: give --data FOLDER or set OVKGP_DATA")
            return name, partial(section, Path(options.data), quick=options.quick, num_sets=options.sets)
    contenders = CONTENDERS | ({"prototype": prototype(options.prototype)} if options.prototype else {})
    names = options.contenders or [name for name in contenders if not (options.quick and name == "gpytorch_icm")]
    if unknown := set(names) - set(contenders):
        parser.error(f"--contenders: unknown {', '.join(sorted(unknown))}; known are {', '.join(contenders)}")
    return "tables", partial(_run, parser, options, {name: contenders[name] for name in names})


def _run(parser: argparse.ArgumentParser, options: argparse.Namespace, contenders: dict[str, Contender]) -> list[Claim]:
    if options.data is None:
        note("simulated functions; give --data FOLDER or set OVKGP_DATA for the tables")
        tables = {table.name: table for table in simulated_tables()}
    else:
        halves = [options.half] if options.half else list(HALVES)
        tables = {name: partial(load_table, options.data, name) for half in halves for name in HALVES[half]}
    names = options.tables or list(tables)
    if unknown := set(names) - set(tables):
        parser.error(f"--tables: unknown {', '.join(sorted(unknown))}; known are {', '.join(tables)}")
    warm_up(contenders)
    sizes = options.sizes or (SIZES if options.data and not options.quick else SIZES[:2])
    loaded = (table if isinstance(table := tables[name], Table) else table() for name in names)
    results = run_tables(
        loaded, sizes, contenders, options.missing, options.out, 1 if options.quick else options.splits
    )
    if results.empty:
        parser.error(f"--sizes: no table has {min(sizes)} training rows and 8 test rows")
    for path in options.before:
        results = add_earlier_results(results, path)
    return print_results(results)


if __name__ == "__main__":
    main()
