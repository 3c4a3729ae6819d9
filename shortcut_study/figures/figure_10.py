"""Figure 10 of Li et al.: Figure 9 with ReLUs at mid, and at which learning rates rounding does not change the loss.

Not in the paper: at the highest rates that do not diverge a change of a start in its last digits changes the final loss
by a fifth. So each network starts a second time, from weights perturbed by a share of 1e-12, at its highest learning
rate that did not diverge, then at the next lower one, until both final losses agree.
"""

from collections.abc import Callable

import numpy as np
from matplotlib.figure import Figure

from identity_matters.runs.job_table import Job, Progress
from shortcut_study.aggregation import (
    INSENSITIVE,
    architectures_in,
    best_rates,
    insensitive_rates,
    num_seeds,
    rows_of_architecture,
    select,
)
from shortcut_study.architectures import ARCHITECTURES, LABELS, RELU_MID, TWO, Architecture
from shortcut_study.config import StudyConfig, learning_rates
from shortcut_study.dataset import StudyData
from shortcut_study.dynamics import Descent, descend
from shortcut_study.figures import drawing
from shortcut_study.figures.figure_9 import diverged, draw_rates, lower_findings, rate_rows
from shortcut_study.figures.finding import CONSTANT, Finding, depth_note, series
from shortcut_study.jobs import job_key, study_job
from shortcut_study.network import ShortcutNetwork

EXPERIMENTS = (("learning_rates", RELU_MID),)
CAPTION = "Lowest final loss over the learning rates, and the rate that gave it; networks with ReLUs"
READS = ("relu_depths", "relu_runs", "relu_examples", "num_epochs", "relu_rates_per_decade")
SIZE = ("relu_depths", "relu_runs", "num_epochs")
PERTURBATION = 1e-12  # of each weight, relative
PROBE = 0.1  # share of the epochs: see descend_pruned
SAME_PATH = 0.01  # share of the loss
HIGHEST_PRUNED = 0.1  # up to here the higher rate reached the lower one's final loss in 30 of 30 pairs


def jobs(config: StudyConfig, data: StudyData) -> list[Job]:
    """Returns a job for every network and seed, all rates as one descent: a small job loses less when interrupted."""
    rates = learning_rates(config.relu_rates_per_decade)
    data = data.first(config.relu_examples)
    return [
        _sweep(config, data, arch, depth, rates, seed)
        for depth in config.relu_depths
        for arch in ARCHITECTURES[RELU_MID]
        if arch.has_depth(depth, RELU_MID)
        for seed in config.seeds(config.relu_runs)
    ]


def _sweep(config: StudyConfig, data: StudyData, arch: Architecture, depth: int, rates: np.ndarray, seed: int) -> Job:
    def compute(progress: Progress) -> list[dict]:
        network = arch.network(data.x.shape[1], depth, RELU_MID)
        start = network.initialize(arch.initialisation, seed)
        num_epochs = config.num_epochs
        part = 1 / ((len(rates) + 1) * (num_epochs + 1))  # an epoch of a run; perturbed and bounded runs come besides
        on_epoch = lambda: progress(part * len(rates))  # noqa: E731
        descent, bounded_by = descend_pruned(network, start, data, rates, num_epochs, on_epoch)
        perturbed = _perturbed_losses(network, start, seed, config, data, descent.losses[-1], rates)
        rows = [row | {"perturbed_loss": perturbed.get(rate, "")}
                for row, rate in zip(rate_rows(descent, [seed], rates), rates)]  # fmt: skip
        empty = dict.fromkeys(("loss", "excess_loss", "norm"), "")
        return [
            row | empty | {"status": f"bounded by {bounded_by[i]:g}"} if i in bounded_by else row
            for i, row in enumerate(rows)
        ]

    return study_job(job_key("learning_rates", arch, RELU_MID, depth, seed), compute)


def descend_pruned(
    network: ShortcutNetwork,
    start: np.ndarray,
    data: StudyData,
    rates: np.ndarray,
    num_epochs: int,
    on_epoch: Callable | None = None,
) -> tuple[Descent, dict[int, float]]:
    """Returns the descent of one start at all rates, and which rates were given up because a higher one is as good.

    Small steps follow one path: t steps at rate a arrive at the same point as t·a/b steps at rate b. A rate of at most
    HIGHEST_PRUNED stops early if its losses in the first fraction PROBE of the epochs agree, to SAME_PATH, with those
    of the next higher rate at the same t·a. It is assumed to end no lower than the first higher rate that is followed,
    provided that the final loss of that rate is no higher than its loss at the point where the lower rate ends.
    Otherwise the lower rate runs after all. The paths agreed in 30 of 30 pairs of the paper's networks. At other scales
    of the inputs, curvature that appears later can make only the higher rate unstable; the lower one would then end
    lower.

    Args:
      start: [*network.shape].
      rates: [B], ascending.
      on_epoch: Called after each epoch.

    Returns:
      descent of B runs, of those given up NaN in the last epoch and the weights of the probe; index of such a rate ->
      the rate that bounds it.
    """
    first = max(1, int(PROBE * num_epochs))
    probe = descend(network, np.stack([start] * len(rates)), data.x, data.y, rates, first, on_epoch=on_epoch)
    follows = [
        i for i in range(len(rates) - 1) if rates[i + 1] <= HIGHEST_PRUNED and _same_path(probe.losses, rates, i)
    ]
    kept = [i for i in range(len(rates)) if i not in follows and probe.diverged_at[i] < 0]
    losses, excess, norms = (np.full((num_epochs + 1, len(rates)), np.nan) for _ in range(3))
    weights = probe.weights.copy()
    diverged_at = probe.diverged_at.copy()
    bounded_by = {}

    def follow(runs: list[int]) -> None:
        rest = descend(network, probe.weights[runs], data.x, data.y, rates[runs], num_epochs - first, on_epoch=on_epoch)
        for whole, early, late in zip((losses, excess, norms), probe[:3], rest[:3]):
            # Both have epoch `first`: the probe ends with it, and the rest starts from there.
            whole[:first, runs] = early[:first, runs]
            whole[first:, runs] = late
        weights[runs] = rest.weights
        diverged_at[runs] = np.where(rest.diverged_at >= 0, rest.diverged_at + first, -1)

    follow(kept)
    for i in follows:
        # There always is one, because the last rate is never in follows.
        above = min(j for j in range(i, len(rates)) if j not in follows)
        at_same_time = losses[int(num_epochs * rates[i] / rates[above]), above]
        # If the higher rate diverged, its last loss is NaN, the comparison false, and the lower rate runs.
        if losses[-1, above] <= at_same_time:
            bounded_by[i] = rates[above]
        else:
            follow([i])
    return Descent(losses, excess, norms, diverged_at, weights, probe.snapshots), bounded_by


def _same_path(losses: np.ndarray, rates: np.ndarray, i: int) -> bool:
    """Returns whether run i agrees with run i + 1 at the same product of rate and epochs."""
    epochs = np.arange(len(losses))
    expected = np.interp(epochs * rates[i] / rates[i + 1], epochs, losses[:, i + 1])
    return bool(np.abs(np.log(losses[:, i] / expected)).max() < SAME_PATH)


def _perturbed_losses(
    network: ShortcutNetwork,
    start: np.ndarray,
    seed: int,
    config: StudyConfig,
    data: StudyData,
    losses: np.ndarray,
    rates: np.ndarray,
) -> dict[float, float]:
    """Final losses of perturbed starts, from the highest rate that did not diverge to one that is insensitive."""
    # [seed, 1], not seed, because the start itself was drawn from the stream of seed.
    noise = np.random.default_rng([seed, 1]).standard_normal(start.shape)
    perturbed = (start * (1 + PERTURBATION * noise))[None]
    final = {}
    for rate, loss in sorted(zip(rates, losses), reverse=True):
        if np.isfinite(loss):
            final[rate] = descend(network, perturbed, data.x, data.y, [rate], config.num_epochs).losses[-1, 0]
            if abs(final[rate] - loss) < INSENSITIVE * loss:
                break
    return final


def draw(rows: list[dict]) -> Figure:
    """Returns lowest final losses and their learning rates, and the highest rates that give stable numbers."""
    figure = draw_rates(rows, RELU_MID)
    drawing.shared_legend(figure, ncols=2)
    return figure


def findings(rows: list[dict]) -> list[Finding]:
    """Returns §5.3: with ReLUs plain networks fail to find low losses as they get deeper, 2-shortcut ones do not."""
    swept = select(rows, experiment="learning_rates", activations=RELU_MID)
    best = {arch: best_rates(rows_of_architecture(swept, arch), "loss") for arch in architectures_in(swept)}
    count = num_seeds(swept)
    all_findings = []
    for arch in best:
        losses = [b.mean for b in best[arch].values()]
        safe = insensitive_rates(rows_of_architecture(swept, arch))
        numbers = series(best[arch], losses) + diverged(best, arch)
        numbers += depth_note(
            "a lower bound, as a run was given up,", [b.depth for b in best[arch].values() if b.is_bound]
        )
        numbers += f"; rates that rounding does not change, up to: {series(safe, list(safe.values()))}" if safe else ""
        is_decided = len(losses) > 1 and min(losses) < np.inf
        holds = (losses[-1] <= CONSTANT * min(losses)) == (arch == TWO) if is_decided else None
        claim = "ends as low as any, or lower" if arch == TWO else "ends higher than a shallower one"
        all_findings.append(Finding("10", f"{LABELS[arch]}: the deepest network {claim}", holds, numbers, count))
    return all_findings + lower_findings("10", best, count)
