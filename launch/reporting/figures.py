"""The figures and numbers of both papers: the runs that show them, statements, results, and what is missing."""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

from identity_matters.experiments.figures import by_depth
from identity_matters.presets import TRAIN_PRESETS
from identity_matters.runs.config_json import flat
from identity_matters.runs.directory import as_json
from identity_matters.runs.tables import final_rows
from launch.reporting.runs import NOT_RECORDED, Picture, Run, percent
from shortcut_study.aggregation import column, is_number, select
from shortcut_study.figures.all_figures import FIGURES
from shortcut_study.figures.drawing import SMOKE
from shortcut_study.figures.finding import ANSWERS, NO_ANSWER

# Top-1 test errors of Hardt & Ma, Table 2, by data set, and the preset that would reproduce them.
TABLE_2 = {"cifar10": (0.0638, "cifar10"), "cifar100": (0.2464, "cifar100"), "imagenet2012": (0.3529, "imagenet_wide")}
# Settings in which a run may differ from the preset and still be the paper's run; its length is checked separately. The
# paper says "standard data augmentation": its code crops by 2 pixels, He et al. by 4.
FREE = (
    "data_dir", "npz", "download", "image_shape", "num_classes", "seed", "train_steps", "eval_every",
    "checkpoint_every", "steps_per_execution", "jit_compile", "strategy", "mixed_precision", "crop_padding",
)  # fmt: skip
TRAIN = "python -m launch.train --preset={} --data_dir=data --run_dir=runs/{}"
NORMS = (
    "python -m launch.ablations --experiment=norms --num_seeds=1 --dataset=cifar10 --data_dir=data --run_dir=runs/norms"
)
STUDY = "python -m launch.shortcut_study --figure={} --dataset=mnist --data_dir=data --run_dir=runs/figure_{}"


class Statement(NamedTuple):
    """A statement of the paper, the result here, the numbers behind it, and the number of runs."""

    says: str
    result: str
    numbers: str
    num_runs: str


class PaperFigure(NamedTuple):
    """A figure of a paper as a run draws it."""

    title: str  # the paper and the number
    shown: str  # what it shows
    run: Run
    picture: Picture
    note: str  # a caveat, or empty
    time: str  # how long it took
    num_runs: str  # n
    statements: list[Statement]


class Missing(NamedTuple):
    """A result that no run of the report shows, the reason, and the command that computes it."""

    what: str
    paper: str
    why: str
    command: str


def paper_figures(runs: list[Run]) -> list[PaperFigure]:
    """Returns the figures of both papers that the runs show, in the papers' order."""
    trained = [_figure_1(run) for run in runs if run.kind == "train" and run.pictures]
    studied = [figure for run in runs if run.kind == "shortcut_study" for figure in _of_study(run)]
    studied += [_figure_2(run) for run in _norms(runs) if run.contents["status"] == "done"]
    return trained + sorted(studied, key=lambda figure: int(figure.title.rpartition(" ")[2]))


def _norms(runs: list[Run]) -> list[Run]:
    """Returns the runs of --experiment=norms that hold norms."""
    return [run for run in runs if run.kind == "ablations" and "kernel_norms" in run.pictures]


def _figure_1(run: Run) -> PaperFigure:
    last, dataset = run.rows[-1], run.dataset
    says = f"no number, because the paper does not train on {dataset}"
    if not dataset:
        says = "no number, because these are the user's own data"
    elif dataset in TABLE_2:
        says = f"{percent(TABLE_2[dataset][0])} top-1 test error (Table 2, the full run)"
        says += f"; this run differs in {', '.join(changed)}" if (changed := _changed(run, dataset)) else ""
    result = f"{percent(last['test_top1_error'])} top-1 {run.error} after {last['step']:,} steps"
    statement = Statement(says, result, f"training error {percent(last['train_top1_error'])}", "1")
    shown = f"Top-1 error during training on {run.data}"
    return PaperFigure("Hardt & Ma, Figure 1", shown, run, run.pictures["convergence"], "", run.time, "1", [statement])


def _changed(run: Run, dataset: str) -> list[str]:
    """Returns the settings in which a training run differs from the paper's run on a data set of Table 2."""
    usual = flat(as_json(TRAIN_PRESETS[TABLE_2[dataset][1]]))
    return [name for name, value in usual.items() if name not in FREE and run.settings.get(name, value) != value]


def _figure_2(run: Run) -> PaperFigure:
    """Returns Figure 2 from a run of --experiment=norms, whose variants differ only in depth."""
    last = final_rows(run.rows)
    ended = [row for row in last if is_number(row.get("kernel_norm"))]  # it is empty where a run diverged
    by_variant = {name: column(select(ended, variant=name), "kernel_norm") for name in {row["variant"] for row in last}}
    norms = {
        family: [float(by_variant[name].mean()) if len(by_variant[name]) else None for name in names]
        for family, names in by_depth(row["variant"] for row in last).items()
    }
    pairs = [pair for means in norms.values() for pair in itertools.pairwise(means)]
    is_known = bool(pairs) and len(ended) == len(last)
    result = ANSWERS[all(after < before for before, after in pairs) if is_known else None]
    digits = {family: ["–" if mean is None else f"{mean:.3g}" for mean in means] for family, means in norms.items()}
    numbers = "; ".join(f"{family}: {', '.join(means)}" for family, means in digits.items())
    numbers += f"; {len(last) - len(ended)} of {len(last)} runs diverged" if len(ended) < len(last) else ""
    says = "the deeper a residual network is, the smaller its average Frobenius norm when training ends"
    num_runs = str(len({row["seed"] for row in ended}))
    statement = Statement(says, result, numbers, num_runs)
    epochs = max((row["epoch"] for row in ended), default=0)
    shown = f"Average Frobenius norm of the kernels during training on {run.data}, by depth"
    shown += f", in {epochs:.3g} epochs instead of the paper's 200" if epochs else ""
    drawn = run.pictures["kernel_norms"]
    return PaperFigure("Li et al., Figure 2", shown, run, drawn, "", run.time, num_runs, [statement])


def _of_study(run: Run) -> Iterator[PaperFigure]:
    for name in filter(str.isdigit, run.findings):  # the convolutional one is not in the paper
        findings = run.findings[name]
        statements = [
            Statement(f.claim, NO_ANSWER if name in run.smoke_size else ANSWERS[f.holds], f.numbers, str(f.num_runs))
            for f in findings
        ]
        counts = sorted({f.num_runs for f in findings})
        num_runs = " – ".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
        title, note = f"Li et al., Figure {name}", f"{SMOKE.capitalize()}." if name in run.smoke_size else ""
        drawn, time = run.pictures[f"figure_{name}"], run.minutes.get(name, NOT_RECORDED)
        yield PaperFigure(title, FIGURES[name].CAPTION, run, drawn, note, time, num_runs, statements)


def missing(runs: list[Run], figures: list[PaperFigure]) -> list[Missing]:
    """Returns the results of the papers that the runs do not show, with the reasons."""
    lines = [*_missing_numbers(runs)]
    complete = {name for run in runs for name in run.findings if name not in (*run.smoke_size, *run.smaller)}
    evaluated = {figure.title for figure in figures if not figure.note}
    drawn = {figure.title for figure in figures}
    for name in filter(str.isdigit, FIGURES):
        title = f"Li et al., Figure {name}"
        if name not in complete:
            why = "drawn above at toy size only" if title in drawn else "not among the runs of this report"
            why = "drawn above, with other depths, fewer runs or fewer epochs" if title in evaluated else why
            what, shown = f"{title}, at the paper's size", FIGURES[name].CAPTION
            lines.append(Missing(what, shown, why, STUDY.format(name, name)))
    if "Li et al., Figure 2" not in drawn:
        status = [f"its run is {run.contents['status']}, not done" for run in _norms(runs)]
        why = status[0] if status else "not among the runs of this report; it takes 50 minutes on 2 cores"
        lines.append(Missing("Li et al., Figure 2", "Norms of ResNets of different depths during training", why, NORMS))
    return lines


def _missing_numbers(runs: list[Run]) -> Iterator[Missing]:
    """Yields the rows of Table 2 for which no run has trained as long as the paper did."""
    trained = [run for run in runs if run.kind == "train" and run.rows]
    for dataset, (error, preset) in TABLE_2.items():
        unchanged = [run for run in trained if run.dataset == dataset and not _changed(run, dataset)]
        steps = [run.rows[-1]["step"] for run in unchanged]
        needed = TRAIN_PRESETS[preset].train_steps
        why = "not among the runs of this report; it takes minutes on a large GPU, five days on 2 cores"
        if dataset == "imagenet2012":
            why = "not among the runs of this report; the paper used 6 machines of 8 GPUs"
        if steps:
            why = f"{max(steps):,} steps were run, of {needed:,}"
        if max(steps, default=0) < needed:
            what = f"Hardt & Ma, Table 2: {dataset}"
            yield Missing(what, f"{percent(error)} top-1 test error", why, TRAIN.format(preset, preset))
