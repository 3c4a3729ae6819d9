"""Figure 10 of Li et al.: Figure 9 with ReLUs at mid, and which learning rates give a loss that is a stable number.

Not in the paper: at the highest rates that do not diverge a change of a start in its last digits changes the final loss
by a fifth. So each network starts a second time, from weights perturbed by a share of 1e-12, at its highest learning
rate that did not diverge, then at the next lower one, until both final losses agree.
"""

import numpy as np
from matplotlib.figure import Figure

from shortcut_study.config import StudyConfig, learning_rates
from shortcut_study.dataset import StudyData
from shortcut_study.dynamics import descend
from shortcut_study.figures.figure_9 import draw_rates, lower_findings
from shortcut_study.figures.finding import CONSTANT, Finding, label, series
from shortcut_study.jobs import Job, Progress, job_key
from shortcut_study.kinds import KINDS, RELU_MID, TWO, Kind
from shortcut_study.network import ShortcutNetwork
from shortcut_study.rows import INSENSITIVE, best_rates, insensitive_rates, kinds_in, num_seeds, rows_of_kind, select

EXPERIMENTS = (("learning_rates", RELU_MID),)
PERTURBATION = 1e-12  # of each weight, relative


def jobs(config: StudyConfig, data: StudyData) -> list[Job]:
    """Returns a job for every network and seed, all rates as one descent: a small job loses less when interrupted."""
    rates = learning_rates(config.relu_rates_per_decade)
    return [
        _sweep(config, data, kind, depth, rates, seed)
        for depth in config.relu_depths
        for kind in KINDS[RELU_MID]
        if kind.takes(depth, RELU_MID)
        for seed in config.seeds(config.relu_runs)
    ]


def _sweep(config: StudyConfig, data: StudyData, kind: Kind, depth: int, rates: np.ndarray, seed: int) -> Job:
    def compute(progress: Progress) -> list[dict]:
        network = kind.network(data.x.shape[1], depth, RELU_MID)
        start, num_epochs = network.initialize(kind.initialisation, seed), config.num_epochs
        part = 1 / (len(rates) * (num_epochs + 1))  # an epoch of a run, of which diverged ones cost nothing
        starts = np.stack([start] * len(rates))
        found = descend(network, starts, data.x, data.y, rates, num_epochs,
                        on_epoch=lambda: progress(part * (len(rates) - 1)))  # fmt: skip
        final, diverged = found.losses[-1], found.diverged_at >= 0
        perturbed = _perturbed_losses(network, start, seed, config, data, np.where(diverged, np.nan, final), rates)
        return [
            {"seed": seed, "learning_rate": rate, "epoch": num_epochs, "loss": final[i],
             "excess_loss": found.excess_losses[-1, i], "norm": found.norms[-1, i],
             "perturbed_loss": perturbed.get(rate, ""), "status": "diverged" if diverged[i] else "done"}
            for i, rate in enumerate(rates)
        ]  # fmt: skip

    return Job(job_key("learning_rates", kind, RELU_MID, depth, seed), compute)


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
    noise = np.random.default_rng([seed, 1]).standard_normal(start.shape)
    perturbed = (start * (1 + PERTURBATION * noise))[None]
    found = {}
    for rate, loss in sorted(zip(rates, losses), reverse=True):
        if np.isfinite(loss):
            found[rate] = descend(network, perturbed, data.x, data.y, [rate], config.num_epochs).losses[-1, 0]
            if abs(found[rate] - loss) < INSENSITIVE * loss:
                break
    return found


def draw(rows: list[dict]) -> Figure:
    """Returns lowest final losses and their learning rates, and the highest rates that give stable numbers."""
    return draw_rates(rows, RELU_MID)


def findings(rows: list[dict]) -> list[Finding]:
    """Returns §5.3: with ReLUs plain networks fail to find low losses as they get deeper, 2-shortcut ones do not."""
    found = select(rows, experiment="learning_rates", activations=RELU_MID)
    best = {kind: best_rates(rows_of_kind(found, kind), "loss") for kind in kinds_in(found)}
    count, judged = num_seeds(found), []
    for kind in best:
        losses = [b.mean for b in best[kind].values()]
        safe = insensitive_rates(rows_of_kind(found, kind))
        numbers = series(best[kind], losses)
        numbers += f"; rates that rounding does not change, up to: {series(safe, list(safe.values()))}" if safe else ""
        holds = bool((losses[-1] <= CONSTANT * min(losses)) == (kind == TWO)) if len(losses) > 1 else None
        claim = "ends as low as any, or lower" if kind == TWO else "ends higher than a shallower one"
        judged.append(Finding("10", f"{label(kind)}: the deepest network {claim}", holds, numbers, count))
    return judged + lower_findings("10", best, count)
