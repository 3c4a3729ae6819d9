"""The figures and numbers of both papers: which runs show them, what the paper says beside ours, what is missing."""

from collections.abc import Iterator
from typing import NamedTuple

from identity_matters.presets import TRAIN_PRESETS
from launch.reporting.captions import SHOWN
from launch.reporting.runs import NOT_RECORDED, Picture, Run, percent

# Top-1 test errors of Hardt & Ma, Table 2, by data set, and the preset that would reproduce them.
TABLE_2 = {"cifar10": (0.0638, "cifar10"), "cifar100": (0.2464, "cifar100"), "imagenet2012": (0.3529, "imagenet_wide")}
TRAIN = "python -m launch.train --preset={} --data_dir=data --run_dir=runs/{}"
TOY = "Toy size: it shows that the study runs and judges nothing."
STUDY = "python -m launch.shortcut_study --figure={} --dataset=mnist --data_dir=data --run_dir=runs/figure_{}"


class Statement(NamedTuple):
    """What the paper says, what comes out here, by which numbers, over how many runs."""

    says: str
    ours: str
    numbers: str
    num_runs: str


class PaperFigure(NamedTuple):
    """A figure of a paper as a run draws it.

    Attributes:
      title: The paper and the number.
      shown: What it shows.
      run: Whose it is.
      picture: The picture.
      note: What to know before believing it; empty if nothing.
      time: How long it took.
      num_runs: n.
      statements: The paper's beside ours.
    """

    title: str
    shown: str
    run: Run
    picture: Picture
    note: str
    time: str
    num_runs: str
    statements: list[Statement]


class Missing(NamedTuple):
    """What no run of the report shows, why, and the command that would."""

    what: str
    paper: str
    why: str
    command: str


def paper_figures(runs: list[Run]) -> list[PaperFigure]:
    """Returns the figures of both papers that the runs show, in the papers' order."""
    trained = [_figure_1(run) for run in runs if run.kind == "train" and run.pictures]
    studied = [figure for run in runs if run.kind == "shortcut_study" for figure in _of_study(run)]
    return trained + sorted(studied, key=lambda figure: int(figure.title.rpartition(" ")[2]))


def _figure_1(run: Run) -> PaperFigure:
    last, dataset = run.rows[-1], str(run.settings.get("dataset", ""))
    told = f"no number: the paper does not train on {dataset}"
    if run.settings.get("npz"):
        told = "no number: these data are the user's own"
    elif dataset in TABLE_2:
        told = f"{percent(TABLE_2[dataset][0])} top-1 test error (Table 2, the full run)"
    ours = f"{percent(last['test_top1_error'])} top-1 test error after {last['step']:,} steps"
    statement = Statement(told, ours, f"training error {percent(last['train_top1_error'])}", "1")
    shown = f"Top-1 error along training, on {dataset}"
    return PaperFigure("Hardt & Ma, Figure 1", shown, run, run.pictures["convergence"], "", run.time, "1", [statement])


def _of_study(run: Run) -> Iterator[PaperFigure]:
    words = {True: "holds", False: "does not hold", None: "cannot be told"}
    for name in [name for name in run.findings if name in SHOWN]:
        found = run.findings[name]
        statements = [
            Statement(f.claim, "not judged" if run.is_toy else words[f.holds], f.numbers, str(f.num_runs))
            for f in found
        ]
        counts = sorted({f.num_runs for f in found})
        num_runs = " – ".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
        title, note = f"Li et al., Figure {name}", TOY if run.is_toy else ""
        drawn, time = run.pictures[f"figure_{name}"], run.minutes.get(name, NOT_RECORDED)
        yield PaperFigure(title, SHOWN[name], run, drawn, note, time, num_runs, statements)


def missing(runs: list[Run], figures: list[PaperFigure]) -> list[Missing]:
    """Returns what the papers show and the runs do not, with the reason."""
    found = [*_missing_numbers(runs)]
    full = {figure.title for figure in figures if not figure.note}
    small = {figure.title for figure in figures if figure.note}
    for name, shown in SHOWN.items():
        title = f"Li et al., Figure {name}"
        if title not in full:
            why = "drawn above at toy size only" if title in small else "not among the runs of this report"
            found.append(Missing(f"{title}, at the paper's size", shown, why, STUDY.format(name, name)))
    why = (
        "ResNets of another code, trained for 200 epochs on GPUs; Figure 3 shows the same of the networks studied here"
    )
    found.append(Missing("Li et al., Figure 2", "Norms of ResNets of different depths during training", why, ""))
    return found


def _missing_numbers(runs: list[Run]) -> Iterator[Missing]:
    """Yields the rows of Table 2 for which no run has trained as long as the paper did."""
    trained = [run for run in runs if run.kind == "train" and run.rows and not run.settings.get("npz")]
    for dataset, (error, preset) in TABLE_2.items():
        steps = [run.rows[-1]["step"] for run in trained if run.settings.get("dataset") == dataset]
        needed = TRAIN_PRESETS[preset].train_steps
        why = "not among the runs of this report: a GPU for hours, or six days on 2 cores"
        if dataset == "imagenet2012":
            why = "not among the runs of this report: the paper took 6 machines of 8 GPUs"
        if steps:
            why = f"{max(steps):,} steps were run, of {needed:,}"
        if max(steps, default=0) < needed:
            told = f"{percent(error)} top-1 test error"
            yield Missing(f"Hardt & Ma, Table 2: {dataset}", told, why, TRAIN.format(preset, preset))
