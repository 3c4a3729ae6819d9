"""Rows of a shortcut study made by hand, on which everything holds that the paper says, and changes of them."""

import numpy as np

from shortcut_study.architectures import ONE, ORTHOGONAL, THREE, TWO, XAVIER
from shortcut_study.figures.all_figures import FIGURES
from shortcut_study.figures.figure_4 import IDENTITY
from shortcut_study.jobs import COLUMNS

PAPER = ("3", "4", "5", "6", "7", "8", "9", "10", "11")  # figures
EPOCHS, LAST = range(41), 40
LEVELS = np.geomspace(3, 1e-3, 12)
RATES = (0.01, 0.1, 1.0)
LEAST = 0.3  # loss of the best linear map


def row(experiment, kind, depth, seed="", activations="linear", **values):
    known = {"experiment": experiment, "shortcut_depth": kind[0], "initialisation": kind[1], "depth": depth}
    row = dict.fromkeys(COLUMNS, "") | known | {"seed": seed, "activations": activations, "seconds": 1.5} | values
    assert set(row) == set(COLUMNS)
    return row


def judged(figure, rows):
    """The findings of a figure on the rows, by claim."""
    return {finding.claim: finding for finding in FIGURES[figure].findings(rows)}


def paper_rows(depths=(2, 6, 12), seeds=(0, 1)):
    """Rows of all experiments on which everything holds that the paper says."""
    rows = []
    for activations in ("linear", "relu_mid"):
        for depth, seed, epoch in ((d, s, e) for d in depths for s in seeds for e in EPOCHS):
            excess = 10 ** (0.5 - epoch / 10)
            norm = 0.01 + (1 + 0.01 * seed) * epoch / LAST / np.sqrt(depth)
            values = {"epoch": epoch, "loss": excess + LEAST, "excess_loss": excess, "norm": norm, "status": "done"}
            rows.append(row("norms", TWO, depth, seed, activations, **values))
        for kind, seed in ((k, s) for k in (XAVIER, ORTHOGONAL, TWO) for s in seeds):
            rows.append(row("spectrum_at_losses", kind, 4, seed, activations, status="done"))
            for i, level in enumerate(LEVELS):
                rows.append(row("spectrum_at_losses", kind, 4, seed, activations, **at_level(kind, seed, i, level)))
    for depth in depths:
        condition_numbers = {XAVIER: depth**3.0, ORTHOGONAL: 2.0 * depth, ONE: 2.0 * depth, TWO: 5.0, THREE: 40.0}
        others = {"p10_abs": 1.0, "index": 0.5}
        for kind, number in condition_numbers.items():
            for seed in seeds:
                values = {"condition_number": (1 + 0.01 * seed) * number, "max_abs": number} | others
                rows.append(row("initial_spectrum", kind, depth, seed, **values))
        for kind in (ONE, TWO):
            number = condition_numbers[kind]
            values = {"condition_number": number, "max_abs": number} | others
            rows.append(row("spectrum_at_zero", (kind[0], "exact_zero"), depth, **values))
        linear = {XAVIER: 1e-3 * depth, ORTHOGONAL: 1e-4, ONE: 1.2e-4, TWO: 1e-6, THREE: 1e-5}
        relu = {XAVIER: 0.33 + 0.05 * depth, ORTHOGONAL: 0.32 + 0.02 * depth, TWO: 0.31}
        for kind, excess in linear.items():
            rows += final_rows(kind, depth, seeds, "linear", excess)
        for kind, loss in relu.items():
            rows += final_rows(kind, depth, seeds, "relu_mid", loss - LEAST)
    pairs = {"equivalent_start": (ONE, IDENTITY), "equivalent_outputs": ((4, "orthogonal"), ORTHOGONAL)}
    for experiment, kinds in pairs.items():
        for kind, epoch in ((kind, epoch) for kind in kinds for epoch in EPOCHS):
            values = {"epoch": epoch, "loss": 10 ** (0.5 - epoch / 10) + LEAST, "status": "done"}
            rows.append(row(experiment, kind, 4, 0, **values))
    for i, j in np.ndindex(4, 4):
        block = {(2, 1): "A", (4, 3): "A", (1, 2): "A transposed", (3, 4): "A transposed"}.get((i + 1, j + 1), "zero")
        values = {"row_layer": i + 1, "column_layer": j + 1, "norm": 2.0 * (block != "zero"), "block": block}
        rows.append(row("blocks_at_zero", (2, "exact_zero"), 4, **values))
    for epoch in EPOCHS:
        gradient_norm = 0.01 + np.exp(-((epoch - 3) ** 2) / 4)
        values = {"epoch": epoch, "excess_loss": 3 * 10 ** (-epoch / 10), "gradient_norm": gradient_norm}
        index = np.clip(0.5 - 0.12 * (epoch - 1), 0.05, 0.5)
        rows.append(row("single_run", TWO, 4, 0, index=index, status="done", **values))
    return rows


def at_level(kind, seed, i, level):
    done = i / (len(LEVELS) - 1)
    ratio = 1 if kind == TWO else {XAVIER: 100, ORTHOGONAL: 2}[kind] * 3 ** (1 - done)
    condition_number = 10 ** (0.7 + done) * ratio * (1 + 0.01 * seed)
    index = {XAVIER: 0.1, ORTHOGONAL: 0.05, TWO: 0.0}[kind] + 0.5 * (1 - done) ** 8
    sizes = {"condition_number": condition_number, "max_abs": condition_number, "p10_abs": 1.0}
    return {"epoch": 7 * i, "loss": level + LEAST, "excess_loss": level, "index": index, "status": "done"} | sizes


def final_rows(kind, depth, seeds, activations, excess):
    """The rate 0.1 is best for 2-shortcut networks and 0.01 for others; at 1.0 the last seed diverges."""
    rows = []
    for seed, rate in ((s, r) for s in seeds for r in RATES):
        values = {"learning_rate": rate, "epoch": 60, "norm": 0.5}
        if rate == 1.0 and seed == seeds[-1]:
            values |= {"status": "diverged", "loss": np.nan, "excess_loss": np.nan, "norm": np.nan}
        else:
            reached = excess * (1 + 5 * abs(np.log10(rate / (0.1 if kind == TWO else 0.01))))
            values |= {"status": "done", "loss": LEAST + reached, "excess_loss": reached}
        rows.append(row("learning_rates", kind, depth, seed, activations, **values))
    return rows


def change(rows, experiment, change, kind=None, **columns):
    """Copies of the rows, with change(row) in place of those of an experiment, a kind and values of other columns."""
    columns |= {"experiment": experiment} | ({"shortcut_depth": kind[0], "initialisation": kind[1]} if kind else {})
    return [r | change(r) if all(r[name] == value for name, value in columns.items()) else r for r in rows]


def of_figure(rows, figure):
    present = FIGURES[figure].EXPERIMENTS
    return [r for r in rows if (r["experiment"], r["activations"]) in present]


def scale(name, factor):
    return lambda r: {name: r[name] * factor} if r[name] != "" else {}


def excess_scaled(factor):
    return lambda r: {"excess_loss": r["excess_loss"] * factor, "loss": LEAST + r["excess_loss"] * factor}


def at(place, wanted, otherwise):
    """A change of only the rows with that epoch (or depth)."""
    return lambda r: otherwise(r) if r[place] == wanted else {}


def diverging(rows):
    """The descents of Figures 3, 6 and 8 diverge early; of Figures 9 and 10 all rates of Xavier's deepest network."""
    lost = {"loss": np.nan, "excess_loss": np.nan, "norm": np.nan, "status": "diverged"}
    rows = change(rows, "norms", lambda r: lost if r["epoch"] >= 10 else {}, depth=12)
    rows = [
        r
        for r in rows
        if r["experiment"] != "spectrum_at_losses" or r["seed"] == 0 or r["epoch"] == 0 or r["shortcut_depth"] == 2
    ]
    rows = [r for r in rows if r["experiment"] != "single_run" or r["epoch"] < 15]
    rows.append(row("single_run", TWO, 4, 0, epoch=15, learning_rate=0.1, status="diverged"))
    return change(rows, "learning_rates", lambda r: lost, kind=XAVIER, depth=12)


def all_diverging(rows):
    """Only their initial weights have a loss."""
    lost = {"loss": np.nan, "excess_loss": np.nan, "norm": np.nan, "status": "diverged"}
    rows = change(rows, "norms", lambda r: lost if r["epoch"] > 0 else {})
    rows = [r for r in rows if r["experiment"] not in ("spectrum_at_losses", "single_run") or r["epoch"] in ("", 0)]
    rows.append(row("single_run", TWO, 4, 0, epoch=1, learning_rate=0.1, status="diverged"))
    return change(rows, "learning_rates", lambda r: lost)


def infinite(kind, depths):
    lost = {"condition_number": np.inf, "p10_abs": 1e-18}
    return lambda rows: change(
        change(rows, "initial_spectrum", lambda r: lost if r["depth"] in depths else {}, kind=kind),
        "spectrum_at_losses", lambda r: lost if r["epoch"] != "" and r["epoch"] > 40 else {}, kind=kind,
    )  # fmt: skip


ROWS = {
    "as the paper has them": lambda: paper_rows(),
    "of one seed": lambda: paper_rows(seeds=(3,)),
    "of one depth": lambda: paper_rows(depths=(6,)),
    "with infinite condition numbers": lambda: infinite(XAVIER, (12,))(paper_rows()),
    "with no finite condition number of a kind": lambda: infinite(XAVIER, (2, 6, 12))(paper_rows()),
    "with runs that diverged": lambda: diverging(paper_rows()),
    "of runs that all diverged": lambda: all_diverging(paper_rows()),
}
