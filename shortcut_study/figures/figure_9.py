"""Figure 9 of Li et al.: lowest final loss over the learning rates, and the rate that gave it; linear networks.

Figure 10 is the same with ReLUs.
"""

import functools
import itertools

import numpy as np
from matplotlib.figure import Figure

from identity_matters.runs.figure_style import PAGE
from identity_matters.runs.job_table import Job, Progress
from shortcut_study.aggregation import (
    BestRate,
    architectures_in,
    best_rates,
    column,
    insensitive_rates,
    num_seeds,
    rows_of_architecture,
    select,
)
from shortcut_study.architectures import ARCHITECTURES, LABELS, LINEAR, ONE, ORTHOGONAL, TWO, XAVIER, Architecture
from shortcut_study.config import StudyConfig, learning_rates
from shortcut_study.dataset import StudyData
from shortcut_study.dynamics import Descent, descend
from shortcut_study.figures import drawing, figure_5
from shortcut_study.figures.finding import (
    CHANCE,
    DEEP,
    NEAR_OPTIMAL,
    SAME,
    Finding,
    all_of,
    depth_note,
    in_both,
    log_ratios,
    p_value,
    paired,
    series,
)
from shortcut_study.jobs import job_key, study_job

EXPERIMENTS = (("learning_rates", LINEAR), ("spectrum_at_zero", LINEAR))
CAPTION = "Lowest final loss over the learning rates, and the rate that gave it; linear networks"
READS = ("depths", "sweep_runs", "num_epochs", "rates_per_decade")
SIZE = ("depths", "sweep_runs", "num_epochs")
SHORTCUT_DEPTHS = (2, 3)
_STABLE = r"$2/|\lambda|_{\max}$ at zero"


def jobs(config: StudyConfig, data: StudyData) -> list[Job]:
    """Returns a job for every linear network, all rates and seeds as one descent, and Theorem 1's values at zero."""
    rates = learning_rates(config.rates_per_decade)
    seeds = list(config.seeds(config.sweep_runs))
    return figure_5.jobs_at_zero(config, data) + [
        _sweep(config, data, arch, depth, rates, seeds)
        for depth in config.depths
        for arch in ARCHITECTURES[LINEAR]
        if arch.has_depth(depth, LINEAR)
    ]


def _sweep(
    config: StudyConfig, data: StudyData, arch: Architecture, depth: int, rates: np.ndarray, seeds: list[int]
) -> Job:
    def compute(progress: Progress) -> list[dict]:
        network = arch.network(data.x.shape[1], depth, LINEAR)
        # Seeds outside, rates inside: the order of rate_of_run below and of rate_rows.
        starts = np.stack([network.initialize(arch.initialisation, seed) for seed in seeds for _ in rates])
        rate_of_run = np.tile(rates, len(seeds))
        num_epochs = config.num_epochs
        on_epoch = functools.partial(progress, 1 / (num_epochs + 1))
        descent = descend(network, starts, data.x, data.y, rate_of_run, num_epochs, on_epoch=on_epoch)
        return rate_rows(descent, seeds, rates)

    return study_job(job_key("learning_rates", arch, LINEAR, depth, seeds[0] if len(seeds) == 1 else None), compute)


def rate_rows(descent: Descent, seeds: list[int], rates: np.ndarray) -> list[dict]:
    """Returns a row for the end of each run of a descent, of all rates of the first seed, then of the next."""
    return [
        {"seed": seed, "learning_rate": rate, "epoch": len(descent.losses) - 1,
         "loss": descent.losses[-1, i], "excess_loss": descent.excess_losses[-1, i], "norm": descent.norms[-1, i],
         "status": "done" if descent.diverged_at[i] < 0 else "diverged"}
        for i, (seed, rate) in enumerate(itertools.product(seeds, rates))
    ]  # fmt: skip


def draw(rows: list[dict]) -> Figure:
    """Returns lowest final losses and their learning rates, with the rates that Theorem 1 allows at zero."""
    figure = draw_rates(rows, LINEAR)
    for arch in (ONE, TWO):
        predicted = select(rows, experiment="spectrum_at_zero", shortcut_depth=arch.shortcut_depth)
        if predicted:
            figure.axes[1].plot(column(predicted, "depth"), 2 / column(predicted, "max_abs"), lw=1,
                                ls=drawing.THEOREM[arch.shortcut_depth], color=drawing.COLOURS[arch],
                                label=f"{_STABLE} for {LABELS[arch]}")  # fmt: skip
    drawing.shared_legend(figure, ncols=2)
    return figure


def draw_rates(rows: list[dict], activations: str) -> Figure:
    """Returns lowest final losses with the standard deviation of their logarithms, and the rates that gave them.

    The best rate is omitted if the network learned nothing at any. A cross marks the highest rate at which the final
    loss does not depend on rounding; triangles at the top mark depths at which every rate diverged.
    """
    figure = Figure(figsize=(PAGE, 4), layout="constrained")
    final, winner = figure.subplots(1, 2)
    swept = select(rows, experiment="learning_rates", activations=activations)
    loss, text = drawing.LOSSES[activations]
    has_safe = False
    for arch in architectures_in(swept):
        best = list(best_rates(rows_of_architecture(swept, arch), loss).values())
        lost, best = [b.depth for b in best if not b.losses], [b for b in best if b.losses]
        drawing.mark_infinite(final, lost, drawing.COLOURS[arch], f"{LABELS[arch]}: diverged at every rate")
        look = {"ms": 5, "mfc": "none", "color": drawing.COLOURS[arch], "label": LABELS[arch]}
        mean, spread = (np.array([getattr(b, name) for b in best]) for name in ("mean", "log_std"))
        bars = (mean - mean / 10**spread, mean * 10**spread - mean)
        final.errorbar([b.depth for b in best], mean, bars, fmt=drawing.MARKERS[arch], capsize=3, **look)
        learned = [b for b in best if b.learned]
        winner.plot([b.depth for b in learned], [b.rate for b in learned], drawing.MARKERS[arch], **look)
        safe = insensitive_rates(rows_of_architecture(swept, arch))
        if safe:
            winner.plot(list(safe), list(safe.values()), "+", ms=9, color=drawing.COLOURS[arch])
            has_safe = True
    if has_safe:
        winner.plot([], [], "+", ms=9, color="0.4", label="highest rate that rounding does not change")
    epochs = swept[0]["epoch"] if swept else ""
    title = f"after {epochs} epochs, {drawing.TITLES[activations]}, {drawing.runs_each(swept)}"
    final.set(title=title, ylabel=text)
    winner.set(title="learning rate that gave it", ylabel="learning rate")
    for axes in (final, winner):
        axes.set_yscale("log")
        drawing.depth_axis(axes, swept)
    if activations != LINEAR:
        drawing.plain_labels(final.yaxis, final.get_ylim())
    return figure


def findings(rows: list[dict]) -> list[Finding]:
    """Returns §5.3: 2-shortcut networks stay near the optimum, and deep ones take higher learning rates."""
    swept = select(rows, experiment="learning_rates", activations=LINEAR)
    best = {arch: best_rates(rows_of_architecture(swept, arch), "excess_loss") for arch in architectures_in(swept)}
    count = num_seeds(swept)
    excess, losses = (np.array([float(row[name] or "nan") for row in swept]) for name in ("excess_loss", "loss"))
    # Every row has the same difference, up to rounding, except that diverged runs have NaN.
    least = float(np.nanmax(losses - excess, initial=-np.inf))
    near = {arch: [depth for depth, b in best[arch].items() if b.mean < NEAR_OPTIMAL * least] for arch in best}
    two = best[TWO]
    numbers = f"{series(two, [b.mean for b in two.values()])}{diverged(best, TWO)}; the lowest loss is {least:.4g}"
    numbers += "; as close: "
    also = (f"{LABELS[arch]} at depth {', '.join(map(str, near[arch]))}" for arch in near if arch != TWO and near[arch])
    numbers += "; ".join(also) or "no other"
    claim = "the final losses of 2-shortcut networks stay close to optimal"
    all_findings = [Finding("9", claim, near[TWO] == list(two), numbers, count)]
    all_findings += lower_findings("9", best, count)
    for arch in (XAVIER, ORTHOGONAL):
        pairs = {d: pair for d, pair in in_both(best[arch], two, DEEP).items() if pair[0].learned}
        rates = series(pairs, [best_two.rate / other.rate for other, best_two in pairs.values()])
        claim = f"deep 2-shortcut networks take higher learning rates than {LABELS[arch]}"
        higher = all_of([best_two.rate > other.rate for other, best_two in pairs.values()])
        all_findings.append(Finding("9", claim, higher, f"ratio: {rates}{diverged(best, TWO, arch)}", count))
    return all_findings + [_like_orthogonal(best, NEAR_OPTIMAL * least, count)]


def lower_findings(figure: str, best: dict[Architecture, dict[int, BestRate]], count: int) -> list[Finding]:
    """Returns whether deep 2-shortcut networks end lower than deep ones of every other architecture.

    Networks that diverge at every learning rate end higher than all others. The answer is None if the difference of the
    means may be chance, by a paired t-test of log₁₀ of the final losses.
    """
    statements = []
    for arch in best:
        if arch == TWO:
            continue
        pairs = in_both(best[arch], best[TWO])
        ratios = series(pairs, _ratios(pairs))
        deep = {depth: pair for depth, pair in pairs.items() if depth >= DEEP}
        lower = _all_lower(list(deep.values()))
        numbers = f"the other over 2-shortcut: {ratios}{diverged(best, TWO, arch)}"
        if deep:
            other, two = deep[max(deep)]
            numbers += paired(log_ratios(two, other))
        statements.append(
            Finding(figure, f"deep 2-shortcut networks end lower than {LABELS[arch]}", lower, numbers, count)
        )
    return statements


def _all_lower(pairs: list[tuple[BestRate, BestRate]]) -> bool | None:
    """Returns whether the second of all pairs, ascending by depth, ends lower, in the last pair significantly."""
    if any(second.mean >= first.mean and _is_significant(first, second) for first, second in pairs):
        return False
    are_lower = bool(pairs) and all(second.mean < first.mean for first, second in pairs)
    return True if are_lower and _is_significant(*pairs[-1]) else None


def _is_significant(first: BestRate, second: BestRate) -> bool:
    """Returns whether two networks of a depth differ significantly; one that always diverges differs from any other."""
    return not (first.losses and second.losses) or p_value(log_ratios(second, first)) < CHANCE


def _ratios(pairs: dict[int, tuple[BestRate, BestRate]]) -> list[float]:
    """Returns first mean loss over second by depth, NaN if either architecture diverged at every learning rate."""
    return [first.mean / second.mean if first.losses and second.losses else np.nan for first, second in pairs.values()]


def diverged(best: dict[Architecture, dict[int, BestRate]], *architectures: Architecture) -> str:
    """Returns in words the depths at which these architectures diverged at every learning rate; empty if none."""
    lost = {arch: [depth for depth, b in best[arch].items() if not b.losses] for arch in architectures}
    return "".join(
        depth_note(f"{LABELS[arch]} diverged at every learning rate", depths) for arch, depths in lost.items()
    )


def _like_orthogonal(best: dict[Architecture, dict[int, BestRate]], near: float, count: int) -> Finding:
    """§5: "the training dynamics are similar". Losses below `near` count as equal: both have solved the task."""
    pairs = in_both(best[ONE], best[ORTHOGONAL])
    compared = [max(one.mean, near) / max(orthogonal.mean, near) for one, orthogonal in pairs.values()]
    same = all_of([1 / SAME < ratio < SAME for ratio in compared])
    numbers = f"ratio of losses: {series(pairs, _ratios(pairs))}{diverged(best, ONE, ORTHOGONAL)}; "
    numbers += "both are close to optimal at depth "
    solved = [f"{depth}" for depth, pair in pairs.items() if max(b.mean for b in pair) < near]
    return Finding("9", "1-shortcut learns like orthogonal", same, numbers + (", ".join(solved) or "none"), count)
