"""Figure 5 of Li et al.: condition number of the Hessian at initialisation against depth, linear networks."""

import numpy as np
from matplotlib.figure import Figure

from shortcut_study.config import StudyConfig
from shortcut_study.dataset import StudyData
from shortcut_study.figures import drawing
from shortcut_study.figures.finding import CONSTANT, Finding, grows, label, named, power, series, slope
from shortcut_study.hessian import Spectrum, hessian_from_moments, spectrum
from shortcut_study.inertia import spectrum_by_counting
from shortcut_study.jobs import Job, Progress, job_key
from shortcut_study.kinds import KINDS, LABELS, LINEAR, ONE, ORTHOGONAL, TWO, XAVIER, Kind
from shortcut_study.network import ShortcutNetwork
from shortcut_study.rows import Band, depths_in, kinds_in, num_seeds, over_seeds, rows_of_kind, select
from theory.figures import column
from theory.shortcut_hessians import spectrum_at_zero
from theory.shortcut_networks import moments

EXPERIMENTS = (("initial_spectrum", LINEAR), ("spectrum_at_zero", LINEAR))
LARGEST_MATRIX = 2400  # weights: beyond, LAPACK's eigenvalues take longer than counting


def jobs(config: StudyConfig, data: StudyData) -> list[Job]:
    """Returns a job for every network where it starts, and for what Theorem 1 predicts at zero weights."""
    return jobs_at_zero(config, data) + [
        _initial_spectrum(data, kind, depth, seed)
        for depth in config.depths
        for kind in KINDS[LINEAR]
        if kind.takes(depth, LINEAR)
        for seed in config.seeds(config.num_runs)
    ]


def _initial_spectrum(data: StudyData, kind: Kind, depth: int, seed: int) -> Job:
    def compute(_: Progress) -> list[dict]:
        network = kind.network(data.x.shape[1], depth, LINEAR)
        weights = network.initialize(kind.initialisation, seed)
        return [_linear_spectrum(network, weights, *moments(data.x, data.y)).columns()]

    return Job(job_key("initial_spectrum", kind, LINEAR, depth, seed), compute)


def jobs_at_zero(config: StudyConfig, data: StudyData) -> list[Job]:
    """Returns a job for what Theorem 1 predicts of linear 1- and 2-shortcut networks at zero weights, by depth."""
    return [_at_zero(data, kind, depth) for depth in config.depths for kind in (ONE, TWO) if kind.takes(depth, LINEAR)]


def _at_zero(data: StudyData, kind: Kind, depth: int) -> Job:
    def compute(_: Progress) -> list[dict]:
        if kind == ONE:
            network = ONE.network(data.x.shape[1], depth, LINEAR)
            return [_linear_spectrum(network, np.zeros(network.shape), *moments(data.x, data.y)).columns()]
        found = spectrum_at_zero(data.x, data.y, 1, 2)  # more units only repeat the eigenvalues
        return [spectrum(np.diag(np.repeat(found.eigenvalues, found.multiplicities))).columns()]

    return Job(job_key("spectrum_at_zero", kind._replace(initialisation="exact_zero"), LINEAR, depth), compute)


def _linear_spectrum(network: ShortcutNetwork, weights: np.ndarray, *pair: np.ndarray) -> Spectrum:
    """Returns the spectrum from the eigenvalues of the matrix, or by counting where that is faster."""
    if network.num_parameters <= LARGEST_MATRIX:
        return spectrum(hessian_from_moments(weights, *pair, shortcut=network.shortcut))
    return spectrum_by_counting(weights, *pair, shortcut=network.shortcut)


def draw(rows: list[dict]) -> Figure:
    """Returns means and standard deviations of log₁₀ of the condition numbers, and what Theorem 1 says at zero."""
    figure = Figure(figsize=(7.5, 5), dpi=110, layout="constrained")
    axes = figure.add_subplot()
    initial = select(rows, experiment="initial_spectrum")
    for kind in kinds_in(initial):
        of_this = rows_of_kind(initial, kind)
        band = over_seeds(of_this, "depth", "condition_number")
        drawing.draw_log_band(axes, band, drawing.COLOURS[kind], LABELS[kind], drawing.MARKERS[kind])
        infinite = sorted({row["depth"] for row in of_this if row["condition_number"] == np.inf})
        drawing.mark_infinite(axes, infinite, drawing.COLOURS[kind], "beyond float64, in some runs or all")
    for shortcut_depth, dashes in drawing.THEOREM.items():
        predicted = select(rows, experiment="spectrum_at_zero", shortcut_depth=shortcut_depth)
        if predicted:
            axes.plot(column(predicted, "depth"), column(predicted, "condition_number"), color="k", lw=1.5, ls=dashes,
                      zorder=5, label=f"Theorem 1 at zero, n = {shortcut_depth}")  # fmt: skip
    axes.set(title=f"Hessian at initialisation, linear networks, {drawing.runs_each(initial)}", yscale="log")
    axes.set(ylabel="condition number, |λ|_max / |λ|_(0.1)")
    drawing.depth_axis(axes, initial)
    drawing.legend(axes, fontsize=8)
    return drawing.with_grid(figure)


def findings(rows: list[dict]) -> list[Finding]:
    """Returns §5.1: constant for 2-shortcuts, growing for Xavier and orthogonal, slower for orthogonal.

    A depth at which a run's condition number is infinite counts as infinite.
    """
    initial = select(rows, experiment="initial_spectrum")
    bands = {kind: over_seeds(rows_of_kind(initial, kind), "depth", "condition_number") for kind in kinds_in(initial)}
    (two, numbers), count = _by_depth(rows_of_kind(initial, TWO), bands[TWO]), num_seeds(initial)
    at_zero = column(select(rows, experiment="spectrum_at_zero", shortcut_depth=2), "condition_number")
    constant = bool(two.max() < two.min() + np.log10(CONSTANT)) if len(two) > 1 else None
    numbers += f"; Theorem 1 at zero: {at_zero[0]:.4g}"
    found = [Finding("5", "2-shortcut networks have constant condition numbers", constant, numbers, count)]
    for kind in (XAVIER, ORTHOGONAL):
        means, numbers = _by_depth(rows_of_kind(initial, kind), bands[kind])
        claim = f"{label(kind)}: the condition number grows with depth"
        found.append(Finding("5", claim, grows(means), numbers, count))
    slopes = {kind: slope(bands[kind].x, bands[kind].mean) for kind in (ORTHOGONAL, XAVIER)}
    numbers = ", ".join(f"{label(kind)}{power(bands[kind].x, bands[kind].mean)}" for kind in slopes)
    slower = bool(slopes[ORTHOGONAL] < slopes[XAVIER]) if np.isfinite(list(slopes.values())).all() else None
    claim = "it grows more slowly for orthogonal than for Xavier"
    return found + [Finding("5", claim, slower, f"where finite: {numbers}", count)]


def _by_depth(rows: list[dict], band: Band) -> tuple[np.ndarray, str]:
    """The means of log₁₀ by depth, infinite where a run's condition number is, and the finite ones in words."""
    infinite = depths_in(select(rows, condition_number=np.inf))
    means = dict(zip(band.x, band.mean)) | dict.fromkeys(infinite, np.inf)
    numbers = series(band.x, 10**band.mean) + named("beyond float64 in some runs or all", infinite)
    return np.array([means[depth] for depth in sorted(means)]), numbers
