"""Figure 9 of Li et al.: lowest final loss over the learning rates, and the rate that gave it; linear networks.

Figure 10 is the same with ReLUs.
"""

import numpy as np
from matplotlib.figure import Figure

from identity_matters.runs.job_table import Job, Progress
from shortcut_study.aggregation import (
    BestRate,
    best_rates,
    insensitive_rates,
    kinds_in,
    num_seeds,
    rows_of_kind,
    select,
)
from shortcut_study.architectures import KINDS, LABELS, LINEAR, ONE, ORTHOGONAL, TWO, XAVIER, Kind
from shortcut_study.config import StudyConfig, learning_rates
from shortcut_study.dataset import StudyData
from shortcut_study.dynamics import descend
from shortcut_study.figures import drawing, figure_5
from shortcut_study.figures.finding import (
    CHANCE,
    DEEP,
    NEAR_OPTIMAL,
    SAME,
    Finding,
    all_of,
    in_both,
    label,
    log_ratios,
    named,
    p_value,
    paired,
    series,
)
from shortcut_study.jobs import job_key, progress_stepper, study_job
from theory.arrays import column

EXPERIMENTS = (("learning_rates", LINEAR), ("spectrum_at_zero", LINEAR))


def jobs(config: StudyConfig, data: StudyData) -> list[Job]:
    """Returns a job for every linear network, all rates and seeds as one descent, and Theorem 1's values at zero."""
    rates, seeds = learning_rates(config.rates_per_decade), list(config.seeds(config.sweep_runs))
    return figure_5.jobs_at_zero(config, data) + [
        _sweep(config, data, kind, depth, rates, seeds)
        for depth in config.depths
        for kind in KINDS[LINEAR]
        if kind.takes(depth, LINEAR)
    ]


def _sweep(config: StudyConfig, data: StudyData, kind: Kind, depth: int, rates: np.ndarray, seeds: list[int]) -> Job:
    def compute(progress: Progress) -> list[dict]:
        network = kind.network(data.x.shape[1], depth, LINEAR)
        starts = np.stack([network.initialize(kind.initialisation, seed) for seed in seeds for _ in rates])
        rate_of_run, num_epochs = np.tile(rates, len(seeds)), config.num_epochs
        on_epoch = progress_stepper(progress, num_epochs + 1)
        found = descend(network, starts, data.x, data.y, rate_of_run, num_epochs, on_epoch=on_epoch)
        return [
            {"seed": seeds[i // len(rates)], "learning_rate": rate, "epoch": num_epochs,
             "loss": found.losses[-1, i], "excess_loss": found.excess_losses[-1, i], "norm": found.norms[-1, i],
             "status": "done" if found.diverged_at[i] < 0 else "diverged"}
            for i, rate in enumerate(rate_of_run)
        ]  # fmt: skip

    return study_job(job_key("learning_rates", kind, LINEAR, depth, seeds[0] if len(seeds) == 1 else None), compute)


def draw(rows: list[dict]) -> Figure:
    """Returns lowest final losses and their learning rates, with the rates that Theorem 1 allows at zero."""
    figure = draw_rates(rows, LINEAR)
    for kind in (ONE, TWO):
        predicted = select(rows, experiment="spectrum_at_zero", shortcut_depth=kind.shortcut_depth)
        if predicted:
            figure.axes[1].plot(column(predicted, "depth"), 2 / column(predicted, "max_abs"), lw=1,
                                ls=drawing.THEOREM[kind.shortcut_depth], color=drawing.COLOURS[kind],
                                label=f"2/|λ|_max at zero, n = {kind.shortcut_depth}")  # fmt: skip
    drawing.legend(figure.axes[1], fontsize=8)
    return figure


def draw_rates(rows: list[dict], activations: str) -> Figure:
    """Returns lowest final losses with the standard deviation of their logarithms, and the rates that gave them.

    A rate is left out where the network learned nothing at any. A cross marks the highest rate at which the final loss
    does not hang on rounding; triangles at the top mark depths at which every rate diverged.
    """
    figure = Figure(figsize=(12, 4.6), dpi=110, layout="constrained")
    final, winner = figure.subplots(1, 2)
    found = select(rows, experiment="learning_rates", activations=activations)
    loss, text = drawing.LOSSES[activations]
    for kind in kinds_in(found):
        best = list(best_rates(rows_of_kind(found, kind), loss).values())
        lost, best = [b.depth for b in best if not b.losses], [b for b in best if b.losses]
        drawing.mark_infinite(final, lost, drawing.COLOURS[kind], f"{LABELS[kind]}: diverged at every rate")
        look = {"ms": 5, "mfc": "none", "color": drawing.COLOURS[kind], "label": LABELS[kind]}
        mean, spread = (np.array([getattr(b, name) for b in best]) for name in ("mean", "log_std"))
        bars = (mean - mean / 10**spread, mean * 10**spread - mean)
        final.errorbar([b.depth for b in best], mean, bars, fmt=drawing.MARKERS[kind], capsize=3, **look)
        learned = [b for b in best if b.learned]
        winner.plot([b.depth for b in learned], [b.rate for b in learned], drawing.MARKERS[kind], **look)
        safe = insensitive_rates(rows_of_kind(found, kind))
        if safe:
            winner.plot(list(safe), list(safe.values()), "+", ms=9, color=drawing.COLOURS[kind],
                        label=f"{LABELS[kind]}: highest that rounding does not change")  # fmt: skip
    epochs = found[0]["epoch"] if found else ""
    title = f"after {epochs} epochs, {drawing.TITLES[activations]}, {drawing.runs_each(found)}"
    final.set(title=title, ylabel=text)
    winner.set(title="learning rate that gave it", ylabel="learning rate")
    for axes in (final, winner):
        axes.set_yscale("log")
        drawing.depth_axis(axes, found)
        drawing.legend(axes, fontsize=8)
    if activations != LINEAR:
        drawing.plain_labels(final.yaxis, final.get_ylim())
    return drawing.with_grid(figure)


def findings(rows: list[dict]) -> list[Finding]:
    """Returns §5.3: 2-shortcut networks stay near the optimum, and deep ones take higher learning rates."""
    found = select(rows, experiment="learning_rates", activations=LINEAR)
    best = {kind: best_rates(rows_of_kind(found, kind), "excess_loss") for kind in kinds_in(found)}
    count = num_seeds(found)
    excess, losses = (np.array([float(row[name] or "nan") for row in found]) for name in ("excess_loss", "loss"))
    least = float(np.nanmax(losses - excess, initial=-np.inf))
    near = {kind: [depth for depth, b in best[kind].items() if b.mean < NEAR_OPTIMAL * least] for kind in best}
    two = best[TWO]
    numbers = f"{series(two, [b.mean for b in two.values()])}{diverged(best, TWO)}; the lowest loss is {least:.4g}"
    numbers += "; as close: "
    also = (f"{label(kind)} at depth {', '.join(map(str, near[kind]))}" for kind in near if kind != TWO and near[kind])
    numbers += "; ".join(also) or "no other"
    claim = "the final losses of 2-shortcut networks stay close to optimal"
    all_findings = [Finding("9", claim, near[TWO] == list(two), numbers, count)]
    all_findings += lower_findings("9", best, count)
    for kind in (XAVIER, ORTHOGONAL):
        pairs = {d: pair for d, pair in in_both(best[kind], two, DEEP).items() if pair[0].learned}
        rates = series(pairs, [ours.rate / other.rate for other, ours in pairs.values()])
        claim = f"deep 2-shortcut networks take higher learning rates than {label(kind)}"
        higher = all_of([ours.rate > other.rate for other, ours in pairs.values()])
        all_findings.append(Finding("9", claim, higher, f"ratio: {rates}{diverged(best, TWO, kind)}", count))
    return all_findings + [_like_orthogonal(best, NEAR_OPTIMAL * least, count)]


def lower_findings(figure: str, best: dict[Kind, dict[int, BestRate]], count: int) -> list[Finding]:
    """Returns whether deep 2-shortcut networks end lower than deep ones of every other kind, as the figure shows.

    Networks that diverge at every learning rate end higher than all others. Where means differ by what may be chance,
    by a paired t-test of log₁₀ of the final losses, nothing is told.
    """
    found = []
    for kind in best:
        if kind == TWO:
            continue
        pairs = in_both(best[kind], best[TWO])
        ratios = series(pairs, _ratios(pairs))
        deep = {depth: pair for depth, pair in pairs.items() if depth >= DEEP}
        lower = _all_lower(list(deep.values()))
        numbers = f"the other over 2-shortcut: {ratios}{diverged(best, TWO, kind)}"
        if deep:
            other, ours = deep[max(deep)]
            numbers += paired(log_ratios(ours, other))
        found.append(Finding(figure, f"deep 2-shortcut networks end lower than {label(kind)}", lower, numbers, count))
    return found


def _all_lower(pairs: list[tuple[BestRate, BestRate]]) -> bool | None:
    """Whether ours ends lower in all pairs (other, ours), ascending by depth, and at the last one not by chance."""
    if any(ours.mean >= other.mean and _is_told(other, ours) for other, ours in pairs):
        return False
    are_lower = bool(pairs) and all(ours.mean < other.mean for other, ours in pairs)
    return True if are_lower and _is_told(*pairs[-1]) else None


def _is_told(other: BestRate, ours: BestRate) -> bool:
    """Whether two networks of a depth differ by more than chance; one that always diverges differs from all others."""
    return not (other.losses and ours.losses) or p_value(log_ratios(ours, other)) < CHANCE


def _ratios(pairs: dict[int, tuple[BestRate, BestRate]]) -> list[float]:
    """First mean loss over second by depth, NaN where either kind diverged at every learning rate."""
    return [other.mean / ours.mean if other.losses and ours.losses else np.nan for other, ours in pairs.values()]


def diverged(best: dict[Kind, dict[int, BestRate]], *kinds: Kind) -> str:
    """Returns in words where networks of these kinds diverged at every learning rate; empty for nowhere."""
    lost = {kind: [depth for depth, b in best[kind].items() if not b.losses] for kind in kinds}
    return "".join(named(f"{label(kind)} diverged at every learning rate", depths) for kind, depths in lost.items())


def _like_orthogonal(best: dict[Kind, dict[int, BestRate]], near: float, count: int) -> Finding:
    """§5: "the training dynamics are similar". Losses below `near` are as good as equal: both have solved the task."""
    pairs = in_both(best[ONE], best[ORTHOGONAL])
    compared = [max(one.mean, near) / max(orthogonal.mean, near) for one, orthogonal in pairs.values()]
    same = all_of([1 / SAME < ratio < SAME for ratio in compared])
    numbers = f"ratio of losses: {series(pairs, _ratios(pairs))}{diverged(best, ONE, ORTHOGONAL)}; "
    numbers += "both are close to optimal at depth "
    solved = [f"{depth}" for depth, pair in pairs.items() if max(b.mean for b in pair) < near]
    return Finding("9", "1-shortcut learns like orthogonal", same, numbers + (", ".join(solved) or "none"), count)
