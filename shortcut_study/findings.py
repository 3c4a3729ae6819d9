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
        found = [r for r in select(rows, experiment="norms", activations=activations) if r["status"] == "done"]
        last = [row for row in found if row["epoch"] == max(r["epoch"] for r in found)]
        end = over_seeds(last, "depth", "norm", log=False)
        slope = np.polyfit(np.log(end.x), np.log(end.mean), 1)[0] if len(end.x) > 1 else np.nan
        numbers = f"{_series(end.x, end.mean)}; ∝ depth^{slope:.2f}"
        findings.append(
            Finding(
                "3", f"{activations}: the deeper, the smaller the norm when training ends", _falls(end.mean), numbers
            )
        )
        loss = "excess_loss" if activations == "linear" else "loss"
        bands = [along_loss(select(found, depth=depth), loss, "norm", log=False) for depth in depths(found)]
        low, high = max(band.x[0] for band in bands), min(band.x[-1] for band in bands)
        grid = np.linspace(low, high, 20)[1:-1]  # at the first loss all networks are at their small random start
        values = np.array([np.interp(grid, band.x, band.mean) for band in bands])
        share = np.mean([_falls(of_loss) for of_loss in values.T])
        numbers = f"at {share:.0%} of the losses from {10**high:.2g} to {10**low:.2g}"
        findings.append(
            Finding("3", f"{activations}: the same at equal losses during training", bool(share == 1), numbers)
        )
    return findings


def initial_condition_number_findings(rows) -> list[Finding]:
    """Figure 5, §5.1: constant for 2-shortcuts, growing for Xavier and orthogonal, slower for orthogonal."""
    initial = select(rows, experiment="initial_spectrum")
    bands = {kind: over_seeds(of_kind(initial, kind), "depth", "condition_number") for kind in kinds(initial)}
    two = 10 ** bands[_TWO].mean
    at_zero = column(select(rows, experiment="spectrum_at_zero", shortcut_depth=2), "condition_number")
    findings = [
        Finding("5", "2-shortcut networks have constant condition numbers", bool(two.max() / two.min() < CONSTANT),
                f"{_series(bands[_TWO].x, two)}; Theorem 1 at zero: {at_zero[0]:.4g}"),
    ]  # fmt: skip
    for kind in (_XAVIER, _ORTHOGONAL):
        of_this = of_kind(initial, kind)
        infinite = [
            depth
            for depth in depths(of_this)
            if all(r["condition_number"] == np.inf for r in select(of_this, depth=depth))
        ]
        numbers = _series(bands[kind].x, 10 ** bands[kind].mean)
        numbers += f"; beyond float64 at depth {', '.join(map(str, infinite))}" if infinite else ""
        findings.append(
            Finding("5", f"{LABELS[kind]}: the condition number grows with depth", _grows(bands[kind].mean), numbers)
        )
    slopes = [np.polyfit(np.log10(bands[kind].x), bands[kind].mean, 1)[0] for kind in (_ORTHOGONAL, _XAVIER, _ONE)]
    numbers = "powers of depth, fitted: orthogonal {:.2f}, Xavier {:.2f} (where finite); 1-shortcut {:.2f}".format(
        *slopes
    )
    findings.append(
        Finding("5", "it grows more slowly for orthogonal than for Xavier", bool(slopes[0] < slopes[1]), numbers)
    )
    return findings


def spectra_findings(rows, activations: str) -> list[Finding]:
    """Figures 6 and 7, §5.2: the condition number of 2-shortcut networks is always smaller, and ends alike."""
    figure, loss = ("6", "excess_loss") if activations == "linear" else ("7", "loss")
    found = select(rows, experiment="spectrum_at_losses", activations=activations)
    findings = []
    for kind in (_ORTHOGONAL, _XAVIER):
        grid, two, other = _common(found, kind, loss, "condition_number")
        if not len(grid):
            numbers = "the runs have no losses in common"
            findings.append(
                Finding(figure, f"smaller condition numbers for 2-shortcut than for {LABELS[kind]}", None, numbers)
            )
            continue
        share, ratio = float((two < other).mean()), 10 ** (other - two)
        numbers = f"smaller at {share:.0%} of the losses from {10 ** grid[-1]:.2g} to {10 ** grid[0]:.2g}; "
        numbers += f"the other over 2-shortcut: {ratio[-1]:.3g} at the highest loss, {ratio[0]:.3g} at the lowest"
        claim = f"the condition number of 2-shortcut is always smaller than of {LABELS[kind]}"
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
        share = float((two < other).mean()) if len(grid) else np.nan
        numbers = f"smaller at {share:.0%} of the common losses; means {two.mean():.1%} and {other.mean():.1%}"
        findings.append(
            Finding("8", f"the index of 2-shortcut is always smaller than of {LABELS[kind]}", share == 1, numbers)
        )
    run = [row for row in select(rows, experiment="single_run") if row["status"] == "done"]
    epochs, index, gradient = (column(run, name) for name in ("epoch", "index", "gradient_norm"))
    loss = column(run, "excess_loss")
    half = int(np.argmax(loss <= loss[0] / 2))
    fall, by_half = index[0] - index.min(), index[0] - index[: half + 1].min()
    numbers = f"{index[0]:.1%} at the start, {index[half]:.1%} when half of the excess loss is left, {index.min():.1%} at the least"
    findings.append(
        Finding("8", "the index drops dramatically at the beginning", bool(fall > 0 and by_half > fall / 2), numbers)
    )
    largest = int(gradient.argmax())
    first = int(np.argmax(index <= index[0] - 0.1 * fall))
    last = int(np.argmax(index <= index[0] - 0.9 * fall))
    numbers = f"largest gradient at epoch {epochs[largest]:.0f}; 10 % of the fall by epoch {epochs[first]:.0f}, 90 % by {epochs[last]:.0f}"
    findings.append(Finding("8", "the gradient is largest while the index drops", first <= largest <= last, numbers))
    return findings


def linear_rates_findings(rows) -> list[Finding]:
    """Figure 9, §5.3: 2-shortcut networks stay near the optimum at every depth, and take higher learning rates."""
    found = select(rows, experiment="learning_rates", activations="linear")
    best = {kind: {b.depth: b for b in best_rates(of_kind(found, kind), "excess_loss")} for kind in kinds(found)}
    least = next(float(row["loss"]) - float(row["excess_loss"]) for row in found if row["status"] == "done")
    two = best[_TWO]
    near = all(b.mean < NEAR_OPTIMAL * least for b in two.values())
    numbers = f"{_series(two, [b.mean for b in two.values()])}; the lowest loss is {least:.4g}"
    findings = [Finding("9", "the final losses of 2-shortcut networks stay close to optimal", near, numbers)]
    for kind in kinds(found):
        if kind != _TWO:
            common = [depth for depth in best[kind] if depth in two]
            ratios = [best[kind][depth].mean / two[depth].mean for depth in common]
            claim = f"2-shortcut ends lower than {LABELS[kind]} at every depth, or both at rounding"
            holds = all(
                ratio > 1 or best[kind][depth].mean == two[depth].mean == ROUNDING
                for depth, ratio in zip(common, ratios)
            )
            findings.append(Finding("9", claim, holds, f"the other over 2-shortcut: {_series(common, ratios)}"))
    for kind in (_XAVIER, _ORTHOGONAL):
        common = [depth for depth in best[kind] if depth in two]
        holds = all(two[depth].rate >= best[kind][depth].rate for depth in common)
        rates = _series(common, [two[depth].rate / best[kind][depth].rate for depth in common])
        findings.append(
            Finding(
                "9", f"2-shortcut takes learning rates as high as {LABELS[kind]}, or higher", holds, f"ratio: {rates}"
            )
        )
    common = [depth for depth in best[_ONE] if depth in best[_ORTHOGONAL] and depth > 3]
    ratios = [best[_ONE][depth].mean / best[_ORTHOGONAL][depth].mean for depth in common]
    same = all(1 / SAME < ratio < SAME for ratio in ratios)
    findings.append(
        Finding(
            "9", "1-shortcut learns like orthogonal (depth > 3)", same, f"ratio of losses: {_series(common, ratios)}"
        )
    )
    return findings


def relu_rates_findings(rows) -> list[Finding]:
    """Figure 10, §5.3: with ReLUs plain networks fail to find low losses as they get deeper, 2-shortcut ones do not."""
    found = select(rows, experiment="learning_rates", activations="relu_mid")
    findings, two = [], {}
    for kind in reversed(kinds(found)):
        best = best_rates(of_kind(found, kind), "loss")
        losses = {b.depth: b.mean for b in best}
        lowest = min(losses.values())
        numbers, last = _series(losses, losses.values()), list(losses.values())[-1]
        if kind == _TWO:
            two = losses
            claim, holds = "2-shortcut: the deepest network ends as low as any, or lower", last <= CONSTANT * lowest
        else:
            claim, holds = (
                f"{LABELS[kind]}: the deepest network ends higher than a shallower one",
                last > CONSTANT * lowest,
            )
            ratios = [losses[depth] / two[depth] for depth in losses if depth in two]
            lower = f"2-shortcut ends lower than {LABELS[kind]} at every depth"
            findings.append(
                Finding("10", lower, min(ratios) > 1, f"the other over 2-shortcut: {_series(losses, ratios)}")
            )
        findings.append(Finding("10", claim, bool(holds), numbers))
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


def _falls(values) -> bool:
    return bool((np.diff(values) < 0).all())


def _grows(values) -> bool:
    return bool((np.diff(values) > 0).all())


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
