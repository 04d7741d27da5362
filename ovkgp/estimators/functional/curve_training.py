"""Training of the models of a `FunctionGPRegressor`: candidates, their weights by held-out curves, and hyperparameter draws."""

from __future__ import annotations

import inspect
import itertools
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from gpytorch.kernels import Kernel, ScaleKernel
from tqdm import tqdm

from ovkgp.checks import as_seed
from ovkgp.estimators.storage.values import storable_record
from ovkgp.exceptions import FitWarning, OptionError
from ovkgp.functional import Dictionary, DictionaryKernel
from ovkgp.inference import OperatorValuedGP, sample_hyperparameters
from ovkgp.inference.algebra.dense import participation_ratio
from ovkgp.inference.model.fit_report import FitReport
from ovkgp.inference.posteriors.curves import CurvePosterior
from ovkgp.inference.posteriors.mixture import read_raw_draws, thin_draws
from ovkgp.inference.posteriors.posterior import Posterior
from ovkgp.inference.posteriors.ragged_curves import RaggedCurvePosterior
from ovkgp.inference.stacking.candidates import default_candidates
from ovkgp.inference.stacking.curve_candidates import (
    MAX_CURVES,
    MAX_ENTRIES,
    MAX_KNOTS,
    MAX_POINTS,
    CurveCandidate,
    CurveData,
    default_curve_candidates,
    held_out_densities,
)
from ovkgp.inference.stacking.curve_components import ComponentPosterior, ComponentState, fill_gaps, fit_components
from ovkgp.inference.stacking.curve_mixture import CurveMixture
from ovkgp.inference.stacking.scaled_curves import ScaleCurve, ScaledCurves, fit_scale_curve
from ovkgp.inference.stacking.shared_kernel import SharedPosterior, SharedState, fit_shared
from ovkgp.inference.stacking.stack import MIN_WEIGHT, CandidateScore, stacking_weights
from ovkgp.inference.strategies.selection import MAX_DENSE_ENTRIES
from ovkgp.inference.training.initialization import load_raw_state, raw_state
from ovkgp.inference.training.kernel_parameters import Units, kernel_parameters

OUTPUT_BASES = ("kernel", "pca", "shared")
KERNEL_OPTIONS = ("kernel", "task_kernel", "noise", "deviations", "hyperparameters")
"""Options of `FunctionGPRegressor` that only the kernel model has."""
RESTRICTING_OPTIONS = ("kernel", "task_kernel", "noise", "hyperparameters")  # with which "auto" is the kernel model
MAX_KERNEL_POINTS = 1000  # values per curve beyond which "auto" has no kernel of the domain, if curves are complete
MAX_FILLED_FRACTION = 0.05  # missing values up to which they are filled in for training, and for "pca" and "shared"
MAX_FILLED_FRACTION_MANY_POINTS = 0.3  # the same for more than `MAX_KERNEL_POINTS` values per curve
MAX_FILLED_FRACTION_OF_CURVE = 0.5  # missing values of one curve, likewise
MIN_DEVIATION_POINTS = 3  # grid points below which deviations cannot be distinguished from noise
MIN_COMPONENT_CURVES = 10  # curves below which "auto" has no principal components
MIN_CURVE_SIZE = 1e-10  # standardized values below which all curves are equal
MIN_SUPPORT = 0.25  # held-out curves that a candidate must account for
MAX_MISSING_ENTRIES = 2000  # missing entries up to which many curves are conditioned on by their complete grid
VARIANCE_ROLES = ("variance", "slope_variance", "mixture_weight")  # of parameters that set the variance of a kernel
NUM_DRAWS = 200  # draws that are made before they are thinned

for kind in (CurveCandidate, CurveData, ComponentState, ScaleCurve, SharedState):
    storable_record(kind)


@storable_record
@dataclass(frozen=True)
class KernelPart:
    """A candidate and its raw parameters; a mixture has one for each hyperparameter draw."""

    candidate: CurveCandidate
    state: dict


@dataclass
class FittedCurves:
    """Mixture of trained models, with what is needed to compute it again, and the model with the largest weight."""

    mixture: CurveMixture
    weights: np.ndarray
    parts: list
    scores: dict[str, CandidateScore]
    gp: OperatorValuedGP | None
    posterior: Posterior | None
    report: FitReport
    draws: object = None


@dataclass
class Candidate:
    """A trained candidate: its name, held-out log densities (n, g·q) or None, and a function that makes its parts and draws."""

    name: str
    log_density: np.ndarray | None
    report: FitReport
    make_parts: Callable
    is_kernel: bool = False


def fit_curves(options, data: CurveData, *, has_groups: bool) -> FittedCurves:
    """Train the candidates that the options of an estimator define, and mix them."""
    began, found = time.monotonic(), []
    if _are_equal(options, data):
        data = replace(data, Y=0 * data.Y)  # rounding errors have no scale
    complete = _fill_few_gaps(data)
    subset = complete.subset(MAX_CURVES, MAX_POINTS, MAX_ENTRIES)
    jobs = _list_jobs(options, complete, subset, has_groups, torch.isnan(data.Y))
    for job in tqdm(jobs, disable=not options.verbose, unit="model", desc="training"):
        found.append(job())
        if found[-1].report is not None and found[-1].report.interrupted:
            break
    has_kernels = any(isinstance(job.args[-1], CurveCandidate) for job in jobs)
    if has_kernels and found[0].log_density is not None:
        found += [job() for job in _list_variants(options, complete, subset, has_groups, found)]
    weights = _weigh(found)
    scale = options.scaling_.output_scale
    scores = {one.name: _score(one, weight, scale) for one, weight in zip(found, weights, strict=True)}
    unsupported = (1 + MIN_SUPPORT) / (len(subset.X) + len(found))  # weights contain one pseudo-count per candidate
    kept = weights >= min(max(MIN_WEIGHT, 0.05 * weights.max(), unsupported), weights.max())
    parts, part_weights, draws = [], [], None
    for one, weight in zip(itertools.compress(found, kept), weights[kept], strict=True):
        made, own_draws = one.make_parts()
        parts += made
        part_weights += [weight / len(made)] * len(made)
        draws = own_draws if own_draws is not None and weight == weights[kept].max() else draws
    if not any(isinstance(part, KernelPart) for part in parts):
        parts, part_weights = _add_derivative_parts(found, parts, part_weights)
    part_weights = np.array(part_weights) / np.sum(part_weights)
    fitted = restore_curves(parts, part_weights, data)
    report = replace(found[int(np.argmax(weights))].report, seconds=time.monotonic() - began, num_rows=len(data.X))
    fitted.scores, fitted.report, fitted.draws = scores, report, draws
    if report.converged is False and not report.interrupted:
        warnings.warn(
            f"Training of the model with the largest weight {report.messages[0]}; the best hyperparameters so far are kept. Compare `scores_` and held-out errors with a simpler kernel, deviations=False or fewer channels.",
            FitWarning,
            stacklevel=4,
        )
    if fitted.gp is not None:
        fitted.gp.fit_report_ = report
    return fitted


def _add_derivative_parts(found: list[Candidate], parts: list, weights: list) -> tuple[list, list]:
    """Add the best candidate with a kernel of the domain, if there is one, with weight 0: it predicts derivatives."""
    known = [one for one in found if one.is_kernel and one.log_density is not None]
    if not known:
        return parts, weights
    made, _ = max(known, key=lambda one: np.nanmean(one.log_density)).make_parts()
    return parts + made, weights + [0.0] * len(made)


def restore_curves(parts: list, weights: np.ndarray, data: CurveData) -> FittedCurves:
    """Condition models at given parameters on the curves."""
    components, best = [], None
    for part, weight in zip(parts, weights, strict=True):
        if isinstance(part, ComponentState | SharedState):
            kind = ComponentPosterior if isinstance(part, ComponentState) else SharedPosterior
            components.append(kind(part, data))
            continue
        gp = part.candidate.make_gp(data)
        load_raw_state(gp, part.state)
        posterior, component = condition_curves(gp, part.candidate.divide(data))
        scale = part.candidate.scale
        components.append(component if scale is None else ScaledCurves(component, scale))
        if best is None or weight > best[0]:
            best = weight, gp, posterior
    gp, posterior = (None, None) if best is None else best[1:]
    return FittedCurves(CurveMixture(components, weights), weights, parts, {}, gp, posterior, _no_training())


def list_kernel_options(options, *names: str) -> list[str]:
    """Return those of the names of options that do not have their default values."""
    defaults = {name: one.default for name, one in inspect.signature(type(options).__init__).parameters.items()}
    return [
        name
        for name in names
        if not (isinstance(getattr(options, name), str) and getattr(options, name) == defaults[name])
    ]


def condition_curves(gp: OperatorValuedGP, data: CurveData) -> tuple[Posterior | None, CurvePosterior]:
    """Condition a model on curves: a posterior on the grid, None for many values with many gaps, and one at any points."""
    num_missing = int(torch.isnan(data.Y).sum())
    if num_missing > MAX_MISSING_ENTRIES and data.Y.numel() - num_missing > MAX_DENSE_ENTRIES:
        return None, RaggedCurvePosterior(gp.requires_grad_(False), data.X, data.Y)
    posterior = gp.condition(data.X, data.Y)
    return posterior, CurvePosterior(posterior, posterior.conditioning.model.noise)


def _are_equal(options, data: CurveData) -> bool:
    if options.hyperparameters == "fixed":  # curves are not centered
        return False
    sizes = torch.nan_to_num(data.Y).abs().unflatten(1, (-1, data.num_channels))
    return not (sizes > MIN_CURVE_SIZE * torch.from_numpy(options.scaling_.output_std)).any()


def has_kernel_object(options) -> bool:
    """Whether an option is a kernel object, whose values are in original units."""
    return isinstance(options.kernel, Kernel) or isinstance(options.task_kernel, Kernel)


def _fill_few_gaps(data: CurveData) -> CurveData:
    """Fill in missing values if they are few: hyperparameters and weights are then those of complete curves."""
    missing = torch.isnan(data.Y)
    largest = MAX_FILLED_FRACTION if data.Y.shape[1] <= MAX_KERNEL_POINTS else MAX_FILLED_FRACTION_MANY_POINTS
    are_few = 0 < missing.double().mean() <= largest and missing.double().mean(1).max() <= MAX_FILLED_FRACTION_OF_CURVE
    if not are_few or len(data.X) < MIN_COMPONENT_CURVES:
        return data
    return replace(data, Y=torch.from_numpy(fill_gaps(data.Y.numpy())))


def _list_jobs(options, data: CurveData, subset: CurveData, has_groups: bool, missing: torch.Tensor) -> list:
    """Return functions that train each candidate; `missing` are entries of the data that were imputed."""
    basis, is_large = options.output_basis, data.Y.shape[1] > MAX_KERNEL_POINTS
    if has_groups and options.hyperparameters == "fixed":
        raise OptionError('groups is not supported with hyperparameters="fixed". Use hyperparameters="evidence".')
    if has_groups and basis in ("pca", "shared"):
        raise OptionError(f'groups is not supported with output_basis="{basis}". Use output_basis="kernel".')
    if isinstance(basis, str) and _are_equal(options, data):
        basis = "kernel"  # equal curves have no principal components, and no scale that points could share
    can_have_basis = data.is_complete and len(data.X) >= MIN_COMPONENT_CURVES and not has_groups
    is_auto = isinstance(basis, str) and basis == "auto" and can_have_basis and len(data.tasks) > 1
    is_auto = is_auto and not list_kernel_options(options, *RESTRICTING_OPTIONS)
    kernels = (
        [] if basis in ("pca", "shared") or (is_auto and is_large) else _kernel_candidates(options, data, has_groups)
    )
    jobs = [partial(_train_kernel, options, data, subset, one) for one in kernels]
    if basis == "pca" or is_auto:
        jobs.append(partial(_train_components, options, data, subset))
    if basis == "shared" or is_auto:
        shared = default_candidates() if basis == "shared" or is_large else default_candidates()[-1:]
        jobs += [partial(_train_shared, missing, data, subset, one) for one in shared]
    return jobs


def _kernel_candidates(
    options, data: CurveData, has_groups: bool, deviations: bool | None = None
) -> list[CurveCandidate]:
    if deviations is None:
        deviations = options.deviations is not False and len(data.tasks) >= MIN_DEVIATION_POINTS
    num_knots = min(MAX_KNOTS, len(data.tasks)) if options.noise == "varying" else 1
    name = options.task_kernel if isinstance(options.task_kernel, str) else "auto"
    found = default_curve_candidates(name, deviations, num_knots, has_groups)
    if not deviations:
        found = [replace(one, name=f"{one.name}, no deviations") for one in found]
    domain_kernel = options.task_kernel if isinstance(options.task_kernel, Kernel) else None
    if isinstance(options.output_basis, Dictionary):
        domain_kernel = _dictionary_kernel(options, data)
    if domain_kernel is not None:
        found = [
            replace(one, domain_kernel=domain_kernel, name=f"{one.name.partition(' ⊗')[0]} ⊗ given") for one in found
        ]
    if isinstance(options.kernel, Kernel):
        found = [replace(found[0], input_kernel=options.kernel, name=f"given ⊗ {found[0].task_base}")]
    elif options.kernel != "auto":
        name = f"linear + {options.kernel}, ARD ⊗ {found[0].task_base}"
        found = [replace(found[0], base=options.kernel, has_lengthscales=True, name=name)]
    if options.hyperparameters == "fixed":
        return [replace(found[0], fixed_noise=float(options.noise), has_deviations=False)]
    if has_kernel_object(options):
        found = [replace(_with_variance(one, data), output_scale=tuple(options.scaling_.output_std)) for one in found]
    return found


def _with_variance(candidate: CurveCandidate, data: CurveData) -> CurveCandidate:
    """Give a kernel object of the inputs an outputscale if no kernel of one channel has a variance, which would be 1."""
    if candidate.input_kernel is None or data.num_channels > 1:
        return candidate
    kernels = (
        [candidate.input_kernel]
        if candidate.domain_kernel is None
        else [candidate.input_kernel, candidate.domain_kernel]
    )
    parameters = itertools.chain(*(kernel_parameters(one, Units.standard(1)) for one in kernels))
    if any(one.role in VARIANCE_ROLES or one.name == "variances" for one in parameters):
        return candidate
    return replace(candidate, input_kernel=ScaleKernel(candidate.input_kernel))


def _dictionary_kernel(options, data: CurveData) -> Kernel:
    """Return the kernel of a dictionary at standardized points, with initial variances from the curves."""
    scaling, dictionary = options.scaling_, options.output_basis
    where = {"offset": scaling.point_offset, "scale": scaling.point_scale}
    if options.hyperparameters == "fixed":
        return DictionaryKernel(dictionary, np.eye(len(dictionary)), **where)
    kernel = DictionaryKernel(dictionary, **where)
    Phi = kernel.features(data.tasks).numpy()
    size = np.square(Phi).mean(0)
    return DictionaryKernel(dictionary, variances=1.0 / (len(size) * np.maximum(size, 1e-12)), **where)


def _train_kernel(options, data: CurveData, subset: CurveData, candidate: CurveCandidate) -> Candidate:
    gp = candidate.train(data)
    log_density = None
    if candidate.fixed_noise is None and len(subset.X) > 1:
        on_subset = candidate.make_gp(subset)
        load_raw_state(on_subset, raw_state(gp))
        log_density = held_out_densities(on_subset, candidate.divide(subset))[0]
        if candidate.scale is not None:
            log_density -= candidate.scale(subset.tasks).log().numpy()
    report = gp.fit_report_ or _no_training()
    return Candidate(candidate.name, log_density, report, partial(_kernel_parts, options, subset, candidate, gp), True)


def _kernel_parts(options, subset: CurveData, candidate: CurveCandidate, gp) -> tuple[list, object]:
    """Return the candidate at its mode, or at draws of its hyperparameters, and the draws."""
    method = options.hyperparameters
    state = raw_state(gp)
    if method in ("evidence", "fixed"):
        return [KernelPart(candidate, state)], None
    on_subset = candidate.make_gp(subset)
    load_raw_state(on_subset, state)
    settings = {"chains": 1, "tune": NUM_DRAWS} if method == "nuts" else {}
    draws = sample_hyperparameters(
        on_subset,
        subset.X,
        candidate.divide(subset).Y,
        method=method,
        draws=NUM_DRAWS,
        prior_draws=1,
        log_likelihood=False,
        posterior_predictive=False,
        random_state=as_seed(0 if options.random_state is None else options.random_state),
        **settings,
    )
    raw = thin_draws(read_raw_draws(draws), options.max_draws)
    count = len(next(iter(raw.values())))
    states = [{**state, **{name: torch.as_tensor(values[i]) for name, values in raw.items()}} for i in range(count)]
    return [KernelPart(candidate, one) for one in states], draws


def _train_components(options, data: CurveData, subset: CurveData) -> Candidate:
    found = fit_components(data if data.is_complete else _impute(options, data), options.num_components)
    log_density = _on_subset(found.log_density, data, subset)
    return Candidate("principal components", log_density, found.report, lambda: ([found.posterior.state], None))


def _train_shared(missing: torch.Tensor, data: CurveData, subset: CurveData, candidate) -> Candidate:
    if not data.is_complete:
        raise OptionError(
            'output_basis="shared" needs complete curves, or few missing values. Use output_basis="kernel" or "pca".'
        )
    found = fit_shared(data, candidate, missing)
    log_density = _on_subset(found.log_density, data, subset)
    return Candidate(
        f"{candidate.name}, shared by all points", log_density, found.report, lambda: ([found.state], None)
    )


def _on_subset(log_density: np.ndarray, data: CurveData, subset: CurveData) -> np.ndarray | None:
    """Return log densities (n, g·q) of all curves at the curves and points of the subset of the kernel candidates."""
    if not data.is_complete:
        return None
    rows = torch.from_numpy(np.sort(np.random.default_rng(0).permutation(len(data.X))[:MAX_CURVES]))
    points = (data.tasks.unsqueeze(1) == subset.tasks).all(-1).int().argmax(0)
    values = torch.from_numpy(log_density).unflatten(1, (-1, data.num_channels))
    return values[rows][:, points].flatten(1).numpy()


def _impute(options, data: CurveData) -> CurveData:
    """Fill in missing values by their expectation under a kernel model of the curves."""
    candidate = _kernel_candidates(options, data, False)[0]
    gp = candidate.train(data)
    part = KernelPart(candidate, raw_state(gp))
    model = candidate.make_gp(data)
    load_raw_state(model, part.state)
    _, curves = condition_curves(model, data)
    with torch.no_grad():
        fitted = curves.moments(data.X, data.tasks, "none")[0] + curves.deviation_means(data.Y)
    return replace(data, Y=torch.where(torch.isnan(data.Y), fitted, data.Y))


def _list_variants(options, data, subset, has_groups, found: list[Candidate]) -> list:
    """Return the jobs of the best kernel candidate without deviations, and with a variance that changes along the domain."""
    names, variants = [one.name for one in found], []
    known = [one for one in _kernel_candidates(options, data, has_groups) if one.name in names]
    best = max(known, key=lambda one: np.nanmean(found[names.index(one.name)].log_density))
    if options.deviations == "auto" and best.has_deviations:
        variants.append(replace(best, has_deviations=False, name=f"{best.name}, no deviations"))
    # a dictionary spans the curves, which it would not do times a curve of standard deviations
    if not isinstance(options.output_basis, Dictionary) and (scale := fit_scale_curve(data)) is not None:
        scale = scale if best.output_scale is None else scale.relative_to(best.output_scale)
        variants.append(replace(best, scale=scale, name=f"{best.name}, varying variance"))
    return [partial(_train_kernel, options, data, subset, one) for one in variants]


def _weigh(found: list[Candidate]) -> np.ndarray:
    """Return stacking weights from the densities of held-out curves; values along a curve are not independent."""
    known = [one for one in found if one.log_density is not None]
    if len(found) == 1 or not known:
        return np.full(len(found), 1 / len(found))
    densities = np.stack([one.log_density for one in known], -1)  # (n, g·q, K)
    per_curve = np.nanmean(densities, 1)
    weights = np.zeros(len(found))
    own = stacking_weights(per_curve * effective_points(densities))
    for index, one in enumerate(found):
        weights[index] = own[known.index(one)] if one in known else 0.0
    return weights


def effective_points(densities: np.ndarray) -> float:
    """Return the effective number of independent values along a curve, from log densities (n, p, K) of held-out curves.

    For deviations z of the log densities along the grid it is (Σ_j var z_j)² / Σ_jk cov(z_j, z_k)², between 1 and p.
    """
    z = densities[..., int(np.nanmean(densities, (0, 1)).argmax())]
    z = np.where(np.isnan(z), np.nanmean(z), z)
    return participation_ratio(z - z.mean(0))


def _score(one: Candidate, weight: float, scale: np.ndarray) -> CandidateScore:
    """Return the mean log density of held-out values, in the units of channels with scales (q,), with its weight."""
    if one.log_density is None:
        return CandidateScore(float(weight), float("nan"), float("nan"))
    log_scale = np.tile(np.log(scale), one.log_density.shape[1] // len(scale))
    per_curve = np.nanmean(one.log_density - log_scale, 1)
    error = per_curve.std(ddof=1) / np.sqrt(len(per_curve)) if len(per_curve) > 1 else float("nan")
    return CandidateScore(float(weight), float(per_curve.mean()), float(error))


def _no_training() -> FitReport:
    return FitReport(
        objective=float("nan"),
        converged=True,
        messages=("not trained",),
        iterations=0,
        evaluations=0,
        gradient_norm=0.0,
    )
