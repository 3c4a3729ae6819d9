"""Figure 6 of Li et al.: largest and 10th percentile of |eigenvalue|, and their ratio, along the loss; linear networks.

Figure 7 is the same with ReLUs, and Figure 8, left, shows another column of the same rows.
"""

import numpy as np
from matplotlib.figure import Figure

from identity_matters.runs.figure_style import PAGE
from identity_matters.runs.job_table import Job, Progress
from identity_matters.runs.tables import percent
from shortcut_study.aggregation import along_loss, architectures_in, depths_in, rows_of_architecture, select
from shortcut_study.architectures import LABELS, LINEAR, ORTHOGONAL, TWO, XAVIER, Architecture
from shortcut_study.config import StudyConfig
from shortcut_study.dataset import StudyData
from shortcut_study.dynamics import descend
from shortcut_study.figures import drawing, figure_5
from shortcut_study.figures.finding import (
    CHANCE,
    NOTHING_SHARED,
    SAME,
    Comparison,
    Finding,
    always_smaller,
    compare_along_loss,
    diverged_runs,
    p_value,
    paired,
)
from shortcut_study.hessian import hessian, spectrum
from shortcut_study.jobs import job_key, study_job

EXPERIMENTS = (("spectrum_at_losses", LINEAR), ("spectrum_at_zero", LINEAR))
CAPTION = "Largest and 10th percentile of |eigenvalue| along the loss; linear networks"
READS = (
    "depths", "depth", "num_runs", "xavier_learning_rate", "num_levels", "learning_rate", "descent_epochs", "hessian",
)  # fmt: skip
SIZE = ("depth", "num_runs", "descent_epochs")
SHORTCUT_DEPTHS = (2,)
PLAIN = (ORTHOGONAL, XAVIER)  # what 2-shortcut networks are compared with
_LEVELS = 10**0.5, 10**-3  # highest and lowest excess loss at which a Hessian is taken
_PANELS = {
    "max_abs": f"largest, {drawing.LARGEST}",
    "p10_abs": r"10th percentile, $|\lambda|_{0.1}$",
    "condition_number": "condition number, their ratio",
}
# Where a run's next loss is lower by more, nothing is known between: the first Hessian is where the run starts, and the
# highest of the losses at which others are taken may be far below.
_LARGEST_GAP = 3.0
_MARKS = {
    "p10_abs": (drawing.mark_zero, "0 within rounding"),
    "condition_number": (drawing.mark_infinite, "beyond float64"),
}


def jobs(config: StudyConfig, data: StudyData) -> list[Job]:
    """Returns a job for every descent of a linear network, and for what Theorem 1 predicts at zero weights."""
    at_zero = figure_5.jobs_at_zero(config, data, (TWO,))
    return at_zero + jobs_along_loss(config, data, LINEAR, config.num_runs, _LEVELS)


def jobs_along_loss(
    config: StudyConfig, data: StudyData, activations: str, num_runs: int, levels: tuple[float, float]
) -> list[Job]:
    """Returns a job for every descent: the spectrum at the start and when it first reaches each of several losses.

    The levels are the highest and the lowest loss (excess loss for linear networks), as the paper's (6) has it.
    """
    # The mean over d outputs is 2/d times the loss (6), so the levels are scaled likewise.
    unit = 2 / data.x.shape[1] if config.mean_over_outputs else 1.0
    # Every loss is below infinity, so the first Hessian is taken at the start.
    losses = np.append(np.inf, unit * np.geomspace(*levels, config.num_levels))
    return [
        _spectra(config, data, activations, arch, seed, losses)
        for arch in (XAVIER, ORTHOGONAL, TWO)
        for seed in config.seeds(num_runs)
    ]


def _spectra(
    config: StudyConfig, data: StudyData, activations: str, arch: Architecture, seed: int, levels: np.ndarray
) -> Job:
    rate, num_epochs = config.learning_rate, config.descent_epochs
    if arch == XAVIER and activations == LINEAR:
        rate = config.xavier_learning_rate or rate

    def compute(progress: Progress) -> list[dict]:
        network = arch.network(data.x.shape[1], config.depth, activations)
        start = network.initialize(arch.initialisation, seed)[None]
        part = 1 / (1 + len(levels))  # the descent, then each Hessian
        descent = descend(network, start, data.x, data.y, [rate], num_epochs, levels,
                        on_epoch=lambda: progress(part / (num_epochs + 1)))  # fmt: skip
        # A row without a Hessian, so that a run that diverged is counted even if it reached no level.
        rows = [{"learning_rate": rate, "status": "diverged" if descent.diverged_at[0] >= 0 else "done"}]
        losses = descent.excess_losses if activations == LINEAR else descent.losses
        for level, (weights,) in zip(levels, descent.snapshots):
            if np.isfinite(weights).all():  # NaN: the level was not reached
                epoch = int(np.argmax(losses[:, 0] <= level))
                reached = {
                    "epoch": epoch,
                    "loss": descent.losses[epoch, 0],
                    "excess_loss": descent.excess_losses[epoch, 0],
                }
                matrix = hessian(network, weights, data.x, data.y, config.hessian)
                rows.append(rows[0] | reached | spectrum(matrix).columns())
            progress(part)
        return rows

    return study_job(job_key("spectrum_at_losses", arch, activations, config.depth, seed), compute)


def draw(rows: list[dict]) -> Figure:
    """Draws the three quantities against the excess loss, with Theorem 1's values at the start."""
    figure = draw_spectra(rows, LINEAR)
    at_zero = select(rows, experiment="spectrum_at_zero", shortcut_depth=2)
    start = [row for row in select(rows, experiment="spectrum_at_losses", shortcut_depth=2) if row["epoch"] == 0]
    for axes, name in zip(figure.axes, _PANELS):
        if at_zero and start:
            axes.plot(start[0]["excess_loss"], at_zero[0][name], "k*", ms=9, label="Theorem 1 at zero for 2-shortcut")
    drawing.shared_legend(figure, ncols=3)
    return figure


def draw_spectra(rows: list[dict], activations: str) -> Figure:
    """Returns means over runs, interpolated between the losses at which Hessians were taken, which are points.

    No line crosses a gap of more than a factor of _LARGEST_GAP between a run's losses.

    A 10th percentile that is 0 within rounding is excluded from the mean and marked at the bottom edge; if more than
    half of the runs have one, no curve is drawn.
    """
    figure = Figure(figsize=(PAGE, 3.6), layout="constrained")
    spectra = select(rows, experiment="spectrum_at_losses", activations=activations)
    loss, text = drawing.LOSSES[activations]
    for axes, (name, title) in zip(figure.subplots(1, 3), _PANELS.items()):
        for arch in architectures_in(spectra):
            taken = [row for row in rows_of_architecture(spectra, arch) if row[name] != ""]
            lost = [row for row in taken if name in _MARKS and row["condition_number"] == np.inf]
            finite = [row for row in taken if 0 < row[name] < np.inf and row not in lost]
            drawn = [row if row in finite else row | {name: np.nan} for row in taken]
            band = along_loss(drawn, loss, name, largest_gap=_LARGEST_GAP)
            drawing.draw_band(axes, band, drawing.COLOURS[arch], LABELS[arch], log=True)
            axes.plot([row[loss] for row in finite], [row[name] for row in finite], ".", ms=4, alpha=0.5,
                      color=drawing.COLOURS[arch])  # fmt: skip
            if lost:
                mark, words = _MARKS[name]
                mark(axes, [row[loss] for row in lost], drawing.COLOURS[arch], f"{LABELS[arch]}: {words}")
        axes.set(title=title, yscale="log")
        axes.set_xlabel(text, fontsize="small")  # else three of them are wider than the page
        drawing.loss_axis(axes)
    depth = ", ".join(map(str, depths_in(spectra)))
    figure.suptitle(f"Hessians of depth {depth}, {drawing.TITLES[activations]}, {drawing.runs_each(spectra)}")
    return figure


def findings(rows: list[dict]) -> list[Finding]:
    """Returns §5.2: 2-shortcut condition numbers are always smaller, most at large losses; orthogonal ones end near."""
    statements = smaller_findings(rows, "6", LINEAR)
    at_losses = select(rows, experiment="spectrum_at_losses", activations=LINEAR)
    pairs = {arch: compare_along_loss(at_losses, arch, "excess_loss", "condition_number") for arch in PLAIN}
    especially = _especially_at_large_losses(pairs, diverged_runs(at_losses, TWO, *PLAIN))
    return statements + [especially, _ends_near(pairs[ORTHOGONAL], diverged_runs(at_losses, TWO, ORTHOGONAL))]


def _especially_at_large_losses(pairs: dict[Architecture, Comparison | None], lost: str) -> Finding:
    """Whether the ratio to each plain architecture is greater at a seed's highest shared loss than at its lowest."""
    claim = "2-shortcut condition numbers are smaller especially when the loss is large"
    answers, numbers = [], []
    for arch, compared in pairs.items():
        growth = compared.ends[:, 1] - compared.ends[:, 0] if compared else np.empty(0)
        differs = p_value(growth) < CHANCE
        answers.append(bool(growth.mean() > 0) if differs else None)
        ratio = f"{10 ** growth.mean():.3g}{paired(growth)}" if len(growth) else NOTHING_SHARED
        numbers.append(f"ratio to {LABELS[arch]}, at a seed's highest loss over that at its lowest: {ratio}")
    if False in answers:
        holds = False
    else:
        holds = None if None in answers else True
    return Finding("6", claim, holds, "; ".join(numbers) + lost, min(c.num_runs if c else 0 for c in pairs.values()))


def _ends_near(compared: Comparison | None, lost: str) -> Finding:
    """Whether the condition numbers of the seeds that reach the lowest common loss in both kinds are the same there."""
    claim = "2-shortcut and orthogonal evolve to roughly the same condition number"
    lowest = compared.curves[:, 0] if compared else np.empty(0)  # the grid ascends
    logs = lowest[np.isfinite(lowest)]
    if not len(logs):
        return Finding("6", claim, None, NOTHING_SHARED + lost, 0)
    distance = abs(logs.mean())
    limit = np.log10(SAME)
    # The sign makes the mean positive, whichever network has the larger numbers.
    beyond = p_value(np.sign(logs.mean()) * logs - limit)
    low, ratio, high = 10 ** np.array([logs.min(), logs.mean(), logs.max()])
    numbers = f"ratio {ratio:.3g} ({low:.2g} – {high:.3g}) at {10 ** compared.grid[0]:.3g}, the lowest common loss"
    numbers += f"; p = {beyond:.2g} that it is {SAME:g}{lost}"
    if distance < limit:
        holds = True
    else:
        holds = False if beyond < CHANCE else None
    return Finding("6", claim, holds, numbers, len(logs))


def smaller_findings(
    rows: list[dict], figure: str, activations: str, name: str = "condition_number", log: bool = True
) -> list[Finding]:
    """Returns whether a quantity of 2-shortcut networks is always smaller than that of plain ones.

    With log its logarithms are compared and ratios given, otherwise its values and their means, as shares.
    """
    loss, _ = drawing.LOSSES[activations]
    at_losses = select(rows, experiment="spectrum_at_losses", activations=activations)
    statements = []
    for arch in PLAIN:
        compared = compare_along_loss(at_losses, arch, loss, name, log)
        claim = f"the {name.replace('_', ' ')} of 2-shortcut is always smaller than that of {LABELS[arch]}"
        lost = diverged_runs(at_losses, TWO, arch)
        if compared is None:
            statements.append(Finding(figure, claim, None, NOTHING_SHARED + lost, 0))
            continue
        holds, where_not = always_smaller(compared)
        share = float((compared.two < compared.other).mean())
        numbers = f"smaller at {percent(share, 0)} of the {_ratios(compared) if log else _means(compared)}"
        numbers += f"{paired(compared.differences)}{where_not}{lost}"
        statements.append(Finding(figure, claim, holds, numbers, compared.num_runs))
    return statements


def _ratios(compared: Comparison) -> str:
    low, *_, high = 10**compared.grid
    lowest, *_, highest = 10 ** (compared.other - compared.two)
    ratios = f"the other over 2-shortcut: {highest:.3g} at the highest loss, {lowest:.3g} at the lowest"
    return f"losses from {high:.2g} to {low:.2g}; {ratios}"


def _means(compared: Comparison) -> str:
    return f"common losses; means {percent(compared.two.mean(), 1)} and {percent(compared.other.mean(), 1)}"
