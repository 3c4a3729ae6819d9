"""Figure 5 of Li et al.: condition number of the Hessian at initialisation against depth, linear networks."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from identity_matters.runs.job_table import Job, Progress
from shortcut_study.aggregation import (
    Band,
    architectures_in,
    column,
    depths_in,
    num_seeds,
    over_seeds,
    rows_of_architecture,
    select,
)
from shortcut_study.architectures import ARCHITECTURES, LABELS, LINEAR, ONE, ORTHOGONAL, TWO, XAVIER, Architecture
from shortcut_study.config import StudyConfig
from shortcut_study.dataset import StudyData
from shortcut_study.figures import drawing
from shortcut_study.figures.finding import CONSTANT, Finding, depth_note, grows, power, series, slope
from shortcut_study.hessian import hessian, hessian_from_moments, spectrum
from shortcut_study.inertia import SMALLEST, spectrum_by_counting
from shortcut_study.jobs import job_key, study_job
from shortcut_study.network import ShortcutNetwork
from theory.shortcut.networks import moments
from theory.shortcut_hessians import spectrum_at_zero

EXPERIMENTS = (("initial_spectrum", LINEAR), ("spectrum_at_zero", LINEAR))
CAPTION = "Condition number of the Hessian where training starts, by depth; linear networks"
SIZE = ("depths", "num_runs")
READS = (*SIZE, "hessian")
SHORTCUT_DEPTHS = (2, 3)
MOST_LISTED = 1000  # eigenvalues of a network that eigenvalues.csv holds
LARGEST_MATRIX = 2400  # weights: beyond, LAPACK's eigenvalues take longer than counting
LARGEST_RESOLVED = 5000  # weights up to which LAPACK is used if counting resolves nothing: 0.2 GB, and seconds
_BEYOND = "beyond float64"
_UNRESOLVED = f"above {1 / SMALLEST:.0e} and not resolved"


def jobs(config: StudyConfig, data: StudyData) -> list[Job]:
    """Returns a job for every network at its initial weights, and for Theorem 1's prediction at zero weights."""
    return jobs_at_zero(config, data) + [
        _initial_spectrum(config, data, arch, depth, seed)
        for depth in config.depths
        for arch in ARCHITECTURES[LINEAR]
        if arch.has_depth(depth, LINEAR)
        for seed in config.seeds(config.num_runs)
    ]


def _initial_spectrum(config: StudyConfig, data: StudyData, arch: Architecture, depth: int, seed: int) -> Job:
    def compute(_: Progress) -> list[dict]:
        network = arch.network(data.x.shape[1], depth, LINEAR)
        weights = network.initialize(arch.initialisation, seed)
        return [_spectrum(network, weights, data, config.hessian)]

    return study_job(job_key("initial_spectrum", arch, LINEAR, depth, seed), compute)


def eigenvalue_rows(config: StudyConfig, data: StudyData) -> list[dict]:
    """Returns the eigenvalues of each network of one depth, that of the first seed, where it starts: a row each.

    The depth is the largest whose Hessian has at most MOST_LISTED eigenvalues.
    """
    width = data.x.shape[1]
    depths = [depth for depth in config.depths if depth * width**2 <= MOST_LISTED]
    rows = []
    for arch in ARCHITECTURES[LINEAR]:
        taken = [depth for depth in depths if arch.has_depth(depth, LINEAR)]
        if not taken:
            continue
        depth = max(taken)
        network = arch.network(width, depth, LINEAR)
        weights = network.initialize(arch.initialisation, config.seeds(1)[0])
        matrix = hessian(network, weights, data.x, data.y, config.hessian)
        key = job_key("eigenvalues", arch, LINEAR, depth)
        rows += [key | {"eigenvalue": value} for value in np.linalg.eigvalsh(matrix)]
    return rows


def jobs_at_zero(config: StudyConfig, data: StudyData, architectures: Sequence[Architecture] = (ONE, TWO)) -> list[Job]:
    """Returns a job for what Theorem 1 predicts of linear 1- and 2-shortcut networks at zero weights, by depth.

    With config.hessian = "tape" it is measured there, by GradientTape.
    """
    return [
        _at_zero(config, data, arch, depth)
        for depth in config.depths
        for arch in architectures
        if arch.has_depth(depth, LINEAR)
    ]


def _at_zero(config: StudyConfig, data: StudyData, arch: Architecture, depth: int) -> Job:
    def compute(_: Progress) -> list[dict]:
        if arch == ONE or config.hessian == "tape":
            network = arch.network(data.x.shape[1], depth, LINEAR)
            return [_spectrum(network, np.zeros(network.shape), data, config.hessian)]
        one_unit = spectrum_at_zero(data.x, data.y, 1, 2)  # more units only repeat the eigenvalues
        return [spectrum(np.diag(np.repeat(one_unit.eigenvalues, one_unit.multiplicities))).columns()]

    return study_job(job_key("spectrum_at_zero", arch._replace(initialisation="exact_zero"), LINEAR, depth), compute)


def _spectrum(network: ShortcutNetwork, weights: np.ndarray, data: StudyData, method: str) -> dict[str, float | str]:
    """Returns the columns of the spectrum of a linear network, of the matrix by GradientTape if that is the method."""
    if method == "tape":
        return spectrum(hessian(network, weights, data.x, data.y, "tape")).columns()
    return _spectrum_from_moments(network, weights, *moments(data.x, data.y))


def _spectrum_from_moments(network: ShortcutNetwork, weights: np.ndarray, *pair: np.ndarray) -> dict[str, float | str]:
    """Returns the columns of the spectrum, from the eigenvalues of the matrix or by counting if that is faster.

    Eigenvalues count as 0 within rounding; counting cannot distinguish one below SMALLEST of the
    largest from 0. If the 10th percentile is such, LAPACK computes the eigenvalues, up to LARGEST_RESOLVED weights.
    Beyond, the condition number is above 1/SMALLEST: its column holds inf, and that of p10_abs 0. An uncertain index is
    omitted.
    """
    size = network.num_parameters
    if size > LARGEST_MATRIX:
        counted = spectrum_by_counting(weights, *pair, shortcut=network.shortcut)
        if counted.condition_number < np.inf or size > LARGEST_RESOLVED:
            low, high = counted.index_range
            return counted.columns() | ({"index": ""} if low < high else {})
    return spectrum(hessian_from_moments(weights, *pair, shortcut=network.shortcut)).columns()


def draw(rows: list[dict]) -> Figure:
    """Returns means and standard deviations of log₁₀ of the condition numbers, and what Theorem 1 says at zero."""
    figure = Figure(figsize=(7, 4.8), layout="constrained")
    axes = figure.add_subplot()
    initial = select(rows, experiment="initial_spectrum")
    for arch in architectures_in(initial):
        draw_architecture(axes, initial, arch, LABELS[arch], ", in some or all runs")
    for shortcut_depth, dashes in drawing.THEOREM.items():
        predicted = select(rows, experiment="spectrum_at_zero", shortcut_depth=shortcut_depth)
        if predicted:
            axes.plot(column(predicted, "depth"), column(predicted, "condition_number"), color="k", lw=1.5, ls=dashes,
                      zorder=5, label=f"Theorem 1 at zero, {shortcut_depth}-shortcut")  # fmt: skip
    axes.set(title=f"Hessian at initialisation, linear networks, {drawing.runs_each(initial)}", yscale="log")
    axes.set(ylabel=drawing.CONDITION_NUMBER)
    drawing.depth_axis(axes, initial)
    drawing.shared_legend(figure, ncols=3)
    return figure


def draw_architecture(axes: Axes, initial: list[dict], arch: Architecture, label: str, of_infinite: str = "") -> None:
    """Draws the condition numbers of one architecture by depth, and triangles for those too large to be known.

    Args:
      initial: Rows of the experiment initial_spectrum.
      of_infinite: The end of the triangles' names in the legend.
    """
    rows_at_depths = rows_of_architecture(initial, arch)
    band = over_seeds(rows_at_depths, "depth", "condition_number")
    drawing.draw_log_band(axes, band, drawing.COLOURS[arch], label, drawing.MARKERS[arch])
    for words, depths in _infinite_depths(rows_at_depths).items():
        drawing.mark_infinite(
            axes, depths, drawing.COLOURS[arch], f"{words}{of_infinite}", is_filled=words == _UNRESOLVED
        )


def findings(rows: list[dict]) -> list[Finding]:
    """Returns §5.1: constant for 2-shortcuts, growing for Xavier and orthogonal, slower for orthogonal.

    A depth at which a run's condition number is infinite counts as infinite. Whether it grows from one infinite depth
    to the next is not known; the other depths decide.
    """
    initial = select(rows, experiment="initial_spectrum")
    bands = {
        arch: over_seeds(rows_of_architecture(initial, arch), "depth", "condition_number")
        for arch in architectures_in(initial)
    }
    two, _, numbers = _by_depth(rows_of_architecture(initial, TWO), bands[TWO])
    count = num_seeds(initial)
    at_zero = column(select(rows, experiment="spectrum_at_zero", shortcut_depth=2), "condition_number")
    constant = bool(two.max() < two.min() + np.log10(CONSTANT)) if len(two) > 1 else None
    numbers += f"; Theorem 1 at zero: {at_zero[0]:.4g}"
    statements = [Finding("5", "2-shortcut networks have constant condition numbers", constant, numbers, count)]
    for arch in (XAVIER, ORTHOGONAL):
        means, bounds, numbers = _by_depth(rows_of_architecture(initial, arch), bands[arch])
        claim = f"{LABELS[arch]}: the condition number grows with depth"
        statements.append(Finding("5", claim, grows(means, bounds), numbers, count))
    slopes = {arch: slope(bands[arch].x, bands[arch].mean) for arch in (ORTHOGONAL, XAVIER)}
    numbers = ", ".join(f"{LABELS[arch]}{power(bands[arch].x, bands[arch].mean)}" for arch in slopes)
    slower = bool(slopes[ORTHOGONAL] < slopes[XAVIER]) if np.isfinite(list(slopes.values())).all() else None
    claim = "it grows more slowly for orthogonal than for Xavier"
    return statements + [Finding("5", claim, slower, f"where finite: {numbers}", count)]


def _infinite_depths(rows: list[dict]) -> dict[str, list[int]]:
    """Returns the depths at which a run's condition number is infinite, by its lower bound in words."""
    infinite = select(rows, condition_number=np.inf)
    unresolved = select(infinite, p10_abs=0.0)
    rows_by_mark = {_BEYOND: [row for row in infinite if row not in unresolved], _UNRESOLVED: unresolved}
    return {words: depths_in(lost) for words, lost in rows_by_mark.items() if lost}


def _by_depth(rows: list[dict], band: Band) -> tuple[np.ndarray, np.ndarray, str]:
    """Returns the means of log₁₀ by depth, infinite if a run's value is, their lower bounds, and both in words."""
    infinite = _infinite_depths(rows)
    means = dict(zip(band.x, band.mean))
    bounds = dict(means)
    for depth in infinite.get(_UNRESOLVED, ()):
        # Of an unresolved value only the bound is known: it is above 1/SMALLEST.
        values = np.minimum(column(select(rows, depth=depth), "condition_number"), 1 / SMALLEST)
        bounds[depth] = np.log10(values).mean()
        means[depth] = np.inf
    for depth in infinite.get(_BEYOND, ()):
        bounds[depth] = means[depth] = np.inf
    numbers = series(band.x, 10**band.mean)
    numbers += "".join(depth_note(f"{words} in some or all runs", depths) for words, depths in infinite.items())
    depths = sorted(means)
    return np.array([means[depth] for depth in depths]), np.array([bounds[depth] for depth in depths]), numbers
