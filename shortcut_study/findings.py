"""What Li et al. say they see in each figure, as checks on our rows: holds or does not hold, with the numbers.

The constants below turn the paper's words into numbers; they were fixed before the runs in
docs/shortcut_study.md.
"""

from typing import NamedTuple

import numpy as np

from shortcut_study.analysis import LABELS, ROUNDING, along_loss, best_rates, depths, kinds, of_kind, over_seeds, select
from theory.figures import column

CONSTANT = 1.1  # "constant": largest over smallest mean below this
SAME = 3.0  # "roughly the same": ratio below this
NEAR_OPTIMAL = 0.01  # "close to optimal": excess loss below this share of the lowest loss of a linear map
_XAVIER, _ORTHOGONAL, _ONE, _TWO, _THREE = LABELS
_NOTHING_SHARED = "the runs have no losses in common"


class Finding(NamedTuple):
    """A statement of the paper, whether our rows show it (None: they cannot tell), and the numbers."""

    figure: str
    claim: str
    holds: bool | None
    numbers: str


def norms_findings(rows) -> list[Finding]:
    """Figure 3, §4.1: the deeper a residual network, the smaller its average Frobenius norm."""
    findings = []
    for activations in ("linear", "relu_mid"):
        found = select(rows, experiment="norms", activations=activations)
        last = [row for row in found if row["epoch"] == max(r["epoch"] for r in found) and row["status"] == "done"]
        end = over_seeds(last, "depth", "norm", log=False)
        numbers = f"{_series(end.x, end.mean)}{_power(end.x, np.log10(end.mean))}"
        claim = f"{activations}: the deeper, the smaller the norm when training ends"
        findings.append(Finding("3", claim, _falls(end.mean), numbers))
        loss = "excess_loss" if activations == "linear" else "loss"
        bands = [along_loss(select(found, depth=depth), loss, "norm", log=False) for depth in depths(found)]
        low = max((band.x[0] for band in bands if len(band.x)), default=0.0)
        high = min((band.x[-1] for band in bands if len(band.x)), default=0.0)
        claim = f"{activations}: the same at equal losses during training"
        if len(bands) < 2 or low >= high:
            findings.append(Finding("3", claim, None, _NOTHING_SHARED))
            continue
        grid = np.linspace(low, high, 20)[1:-1]  # at the first loss all networks are at their small random start
        values = np.array([np.interp(grid, band.x, band.mean) for band in bands if len(band.x)])
        share = float((np.diff(values, axis=0) < 0).all(0).mean())
        numbers = f"at {share:.0%} of the losses from {10**high:.2g} to {10**low:.2g}"
        findings.append(Finding("3", claim, share == 1, numbers))
    return findings


def initial_condition_number_findings(rows) -> list[Finding]:
    """Figure 5, §5.1: constant for 2-shortcuts, growing for Xavier and orthogonal, slower for orthogonal."""
    initial = select(rows, experiment="initial_spectrum")
    bands = {kind: over_seeds(of_kind(initial, kind), "depth", "condition_number") for kind in kinds(initial)}
    two = 10 ** bands[_TWO].mean
    at_zero = column(select(rows, experiment="spectrum_at_zero", shortcut_depth=2), "condition_number")
    constant = bool(two.max() / two.min() < CONSTANT) if len(two) > 1 else None
    numbers = f"{_series(bands[_TWO].x, two)}; Theorem 1 at zero: {at_zero[0]:.4g}"
    findings = [Finding("5", "2-shortcut networks have constant condition numbers", constant, numbers)]
    for kind in (_XAVIER, _ORTHOGONAL):
        of_this = of_kind(initial, kind)
        infinite = [
            depth
            for depth in depths(of_this)
            if all(r["condition_number"] == np.inf for r in select(of_this, depth=depth))
        ]
        numbers = _series(bands[kind].x, 10 ** bands[kind].mean)
        numbers += f"; beyond float64 at depth {', '.join(map(str, infinite))}" if infinite else ""
        claim = f"{LABELS[kind]}: the condition number grows with depth"
        findings.append(Finding("5", claim, _grows(bands[kind].mean), numbers))
    slopes = {kind: _slope(bands[kind].x, bands[kind].mean) for kind in (_ORTHOGONAL, _XAVIER, _ONE)}
    numbers = ", ".join(f"{LABELS[kind]}{_power(bands[kind].x, bands[kind].mean)}" for kind in slopes)
    known = np.isfinite([slopes[_ORTHOGONAL], slopes[_XAVIER]]).all()
    slower = bool(slopes[_ORTHOGONAL] < slopes[_XAVIER]) if known else None
    findings.append(
        Finding("5", "it grows more slowly for orthogonal than for Xavier", slower, f"where finite: {numbers}")
    )
    return findings


def spectra_findings(rows, activations: str) -> list[Finding]:
    """Figures 6 and 7, §5.2: the condition number of 2-shortcut networks is always smaller, and ends alike."""
    figure, loss = ("6", "excess_loss") if activations == "linear" else ("7", "loss")
    found = select(rows, experiment="spectrum_at_losses", activations=activations)
    findings = []
    for kind in (_ORTHOGONAL, _XAVIER):
        grid, two, other = _common(found, kind, loss, "condition_number")
        claim = f"the condition number of 2-shortcut is always smaller than of {LABELS[kind]}"
        if not len(grid):
            findings.append(Finding(figure, claim, None, _NOTHING_SHARED))
            continue
        share, ratio = float((two < other).mean()), 10 ** (other - two)
        numbers = f"smaller at {share:.0%} of the losses from {10 ** grid[-1]:.2g} to {10 ** grid[0]:.2g}; "
        numbers += f"the other over 2-shortcut: {ratio[-1]:.3g} at the highest loss, {ratio[0]:.3g} at the lowest"
        findings.append(Finding(figure, claim, share == 1, numbers))
        if kind == _ORTHOGONAL:
            claim = "2-shortcut and orthogonal evolve to roughly the same condition number"
            same = bool(1 / SAME < ratio[0] < SAME)
            findings.append(Finding(figure, claim, same, f"ratio {ratio[0]:.3g} at the lowest common loss"))
    return findings


def index_findings(rows) -> list[Finding]:
    """Figure 8, §5.2: the index of 2-shortcut networks is smaller, falls at the start, where the gradient is largest."""
    found = select(rows, experiment="spectrum_at_losses", activations="linear")
    findings = []
    for kind in (_ORTHOGONAL, _XAVIER):
        grid, two, other = _common(found, kind, "excess_loss", "index", log=False)
        claim = f"the index of 2-shortcut is always smaller than of {LABELS[kind]}"
        if not len(grid):
            findings.append(Finding("8", claim, None, _NOTHING_SHARED))
            continue
        share = float((two < other).mean())
        numbers = f"smaller at {share:.0%} of the common losses; means {two.mean():.1%} and {other.mean():.1%}"
        findings.append(Finding("8", claim, share == 1, numbers))
    run = [row for row in select(rows, experiment="single_run") if row["status"] == "done"]
    drop, largest_gradient = (
        "the index drops dramatically at the beginning",
        "the gradient is largest while the index drops",
    )
    if len(run) < 2:
        return findings + [Finding("8", claim, None, "the run diverged") for claim in (drop, largest_gradient)]
    epochs, index, gradient = (column(run, name) for name in ("epoch", "index", "gradient_norm"))
    loss = column(run, "excess_loss")
    half = int(np.argmax(loss <= loss[0] / 2))
    fall, by_half = index[0] - index.min(), index[0] - index[: half + 1].min()
    numbers = f"{index[0]:.1%} at the start, {index[half]:.1%} when half of the excess loss is left, "
    numbers += f"{index.min():.1%} at the least"
    findings.append(Finding("8", drop, bool(fall > 0 and by_half > fall / 2), numbers))
    largest = int(gradient.argmax())
    first = int(np.argmax(index <= index[0] - 0.1 * fall))
    last = int(np.argmax(index <= index[0] - 0.9 * fall))
    numbers = f"largest gradient at epoch {epochs[largest]:.0f}; 10 % of the fall by epoch {epochs[first]:.0f}, "
    numbers += f"90 % by {epochs[last]:.0f}"
    findings.append(Finding("8", largest_gradient, first <= largest <= last, numbers))
    return findings


def linear_rates_findings(rows) -> list[Finding]:
    """Figure 9, §5.3: 2-shortcut networks stay near the optimum at every depth, and take higher learning rates."""
    found = select(rows, experiment="learning_rates", activations="linear")
    best = {kind: {b.depth: b for b in best_rates(of_kind(found, kind), "excess_loss")} for kind in kinds(found)}
    excess, losses = (np.array([float(row[name] or "nan") for row in found]) for name in ("excess_loss", "loss"))
    least, two = float(np.nanmax(losses - excess, initial=-np.inf)), best[_TWO]
    near = all(b.mean < NEAR_OPTIMAL * least for b in two.values()) if two else None
    numbers = f"{_series(two, [b.mean for b in two.values()])}; the lowest loss is {least:.4g}"
    findings = [Finding("9", "the final losses of 2-shortcut networks stay close to optimal", near, numbers)]
    for kind in kinds(found):
        if kind != _TWO:
            pairs = _pairs(best[kind], two)
            ratios = _series(pairs, [other.mean / ours.mean for other, ours in pairs.values()])
            lower = [ours.mean < other.mean or ours.mean == other.mean == ROUNDING for other, ours in pairs.values()]
            claim = f"2-shortcut ends lower than {LABELS[kind]} at every depth, or both at rounding"
            findings.append(Finding("9", claim, _all(lower), f"the other over 2-shortcut: {ratios}"))
    for kind in (_XAVIER, _ORTHOGONAL):
        pairs = _pairs(best[kind], two)
        rates = _series(pairs, [ours.rate / other.rate for other, ours in pairs.values()])
        claim = f"2-shortcut takes learning rates as high as {LABELS[kind]}, or higher"
        findings.append(
            Finding("9", claim, _all([ours.rate >= other.rate for other, ours in pairs.values()]), f"ratio: {rates}")
        )
    pairs = {depth: pair for depth, pair in _pairs(best[_ONE], best[_ORTHOGONAL]).items() if depth > 3}
    ratios = [one.mean / orthogonal.mean for one, orthogonal in pairs.values()]
    same = _all([1 / SAME < ratio < SAME for ratio in ratios])
    claim = "1-shortcut learns like orthogonal (depth > 3)"
    findings.append(Finding("9", claim, same, f"ratio of losses: {_series(pairs, ratios)}"))
    return findings


def relu_rates_findings(rows) -> list[Finding]:
    """Figure 10, §5.3: with ReLUs plain networks fail to find low losses as they get deeper, 2-shortcut ones do not."""
    found = select(rows, experiment="learning_rates", activations="relu_mid")
    best = {kind: {b.depth: b for b in best_rates(of_kind(found, kind), "loss")} for kind in kinds(found)}
    findings = []
    for kind in kinds(found):
        losses = [b.mean for b in best[kind].values()]
        numbers = _series(best[kind], losses)
        if kind == _TWO:
            claim = "2-shortcut: the deepest network ends as low as any, or lower"
            holds = losses[-1] <= CONSTANT * min(losses) if len(losses) > 1 else None
        else:
            pairs = _pairs(best[kind], best[_TWO])
            ratios = [other.mean / ours.mean for other, ours in pairs.values()]
            claim = f"2-shortcut ends lower than {LABELS[kind]} at every depth"
            told = f"the other over 2-shortcut: {_series(pairs, ratios)}"
            findings.append(Finding("10", claim, _all([ratio > 1 for ratio in ratios]), told))
            claim = f"{LABELS[kind]}: the deepest network ends higher than a shallower one"
            holds = losses[-1] > CONSTANT * min(losses) if len(losses) > 1 else None
        findings.append(Finding("10", claim, None if holds is None else bool(holds), numbers))
    return findings


def convolutional_findings(rows) -> list[Finding]:
    """Not in the paper: whether its depth-invariance for 2-shortcuts carries over to convolutions with ReLUs."""
    found = select(rows, experiment="convolutional")
    findings = []
    for batch_norm, initialisation in sorted({(row["batch_norm"], row["initialisation"]) for row in found}):
        of_variant = select(found, batch_norm=batch_norm, initialisation=initialisation)
        bands = {n: over_seeds(select(of_variant, shortcut_depth=n), "depth", "condition_number") for n in (1, 2, 3)}
        means = {n: 10**band.mean for n, band in bands.items() if len(band.x)}
        numbers = "; ".join(f"n = {n}: {_series(bands[n].x, mean)}" for n, mean in means.items())
        holds = bool(means[2].max() / means[2].min() < CONSTANT) if len(means.get(2, ())) > 1 else None
        name = f"{initialisation} initialiser, {'with' if batch_norm else 'without'} batch normalisation"
        claim = f"(ours) {name}: constant condition numbers for shortcuts of 2 convolutions"
        findings.append(Finding("convolutional", claim, holds, numbers))
    return findings


def report(findings: list[Finding]) -> str:
    """A Markdown table."""
    words = {True: "holds", False: "does not hold", None: "cannot be told"}
    lines = ["| figure | the paper says | on our data | numbers |", "|---|---|---|---|"]
    lines += [
        f"| {f.figure} | {f.claim} | {words[f.holds]} | {f.numbers} |".replace("|λ|", "\\|λ\\|") for f in findings
    ]
    return "\n".join(lines)


def _common(rows, kind, loss: str, name: str, log: bool = True):
    """log₁₀ of the losses that 2-shortcut and the other kind both pass, and the two's means there."""
    finite = [row for row in rows if row[name] != np.inf]
    two, other = (along_loss(of_kind(finite, k), loss, name, log) for k in (_TWO, kind))
    if not len(two.x) or not len(other.x) or max(two.x[0], other.x[0]) >= min(two.x[-1], other.x[-1]):
        return np.empty((3, 0))
    grid = np.linspace(max(two.x[0], other.x[0]), min(two.x[-1], other.x[-1]), 40)
    return grid, np.interp(grid, two.x, two.mean), np.interp(grid, other.x, other.mean)


def _pairs(others: dict, ours: dict) -> dict:
    """What both have, by depth: (other, ours)."""
    return {depth: (others[depth], ours[depth]) for depth in others if depth in ours}


def _all(answers: list[bool]) -> bool | None:
    return bool(all(answers)) if answers else None


def _falls(values) -> bool | None:
    return _all(list(np.diff(values) < 0))


def _grows(values) -> bool | None:
    return _all(list(np.diff(values) > 0))


def _slope(depths, logarithms) -> float:
    """The power of depth, fitted to log₁₀ values; NaN for fewer than two."""
    return float(np.polyfit(np.log10(depths), logarithms, 1)[0]) if len(depths) > 1 else np.nan


def _power(depths, logarithms) -> str:
    return f" ∝ depth^{_slope(depths, logarithms):.2f}" if len(depths) > 1 else ""


def _series(depths, values) -> str:
    return ", ".join(f"{value:.3g} (depth {depth:.0f})" for depth, value in zip(depths, values))


FINDINGS = {
    "3": norms_findings,
    "5": initial_condition_number_findings,
    "6": lambda rows: spectra_findings(rows, "linear"),
    "7": lambda rows: spectra_findings(rows, "relu_mid"),
    "8": index_findings,
    "9": linear_rates_findings,
    "10": relu_rates_findings,
    "convolutional": convolutional_findings,
}
