"""What launch.shortcut_study makes of results.csv: figures, findings, TensorBoard."""

import glob
import os


def draw_figures(run_dir: str) -> list[str]:
    """figure_N.png of every figure whose data results.csv holds; returns their paths, none where it is no study's."""
    from identity_matters.runs.figures import save_figure

    drawn = []
    for name, figure in _figures(run_dir).items():
        drawn.append(os.path.join(run_dir, f"figure_{name}.png"))
        save_figure(figure, drawn[-1])
    return drawn


def _figures(run_dir: str) -> dict:
    """Name to Figure."""
    from shortcut_study.figures import FIGURES

    rows = _rows(run_dir)
    return {name: FIGURES[name](rows) for name in FIGURES if _has_data(rows, name)}


def _has_data(rows, figure: str) -> bool:
    from shortcut_study.figures import DATA

    present = {(row["experiment"], row["activations"]) for row in rows}
    return all(data in present for data in DATA[figure])


def _rows(run_dir: str) -> list[dict]:
    from identity_matters.runs.tables import read_rows

    rows = read_rows(os.path.join(run_dir, "results.csv"))
    return rows if rows and "experiment" in rows[0] else []


def write_findings(run_dir: str) -> str:
    """results.md: each claim of the paper on our rows, and what each figure took; returns its text."""
    from identity_matters.runs.directory import write_text
    from shortcut_study import findings

    rows = _rows(run_dir)
    found = [finding for name, check in findings.FINDINGS.items() if _has_data(rows, name) for finding in check(rows)]
    lines = [findings.report(found), "", "| experiment | activations | seconds |", "|---|---|---|"]
    lines += [
        f"| {experiment} | {activations} | {seconds:,.0f} |"
        for (experiment, activations), seconds in times(rows).items()
    ]
    text = "\n".join(lines) + "\n"
    write_text(os.path.join(run_dir, "results.md"), text)
    return text


def times(rows) -> dict[tuple[str, str], float]:
    """Seconds that each experiment took; the rows of a unit all hold those of the unit."""
    of_units = {tuple(row[name] for name in _UNIT): row["seconds"] for row in rows}
    totals = {}
    for (experiment, activations, *_), seconds in of_units.items():
        totals[experiment, activations] = totals.get((experiment, activations), 0.0) + seconds
    return totals


def write_tensorboard(run_dir: str) -> None:
    """The figures as images; a run of the HParams table for every network and learning rate, means over the seeds."""
    import tensorboardX

    from identity_matters.runs.figures import figure_to_array

    rows = _rows(run_dir)
    for path in glob.glob(os.path.join(glob.escape(run_dir), "**", "events.out.tfevents*"), recursive=True):
        os.remove(path)  # those of an earlier end of this run: TensorBoard would show both
    with tensorboardX.SummaryWriter(run_dir) as writer:
        for name, figure in _figures(run_dir).items():
            writer.add_image(f"figure_{name}", figure_to_array(figure), dataformats="HWC")
        groups = {}
        for row in rows:
            if row["experiment"] == "learning_rates":
                groups.setdefault(tuple(row[name] for name in _HPARAMS), []).append(row)
        for values, group in groups.items():
            hparams = dict(zip(_HPARAMS, values))
            name = "{activations}_{shortcut_depth}_{initialisation}_depth_{depth}_rate_{learning_rate:g}".format(
                **hparams
            )
            writer.add_hparams(hparams, _metrics(group), os.path.join("learning_rates", name), group[0]["epoch"])


def _metrics(rows: list[dict]) -> dict:
    """Means over the seeds of a learning rate; without the losses where one diverged."""
    import numpy as np

    diverged = [row["status"] == "diverged" for row in rows]
    names = () if any(diverged) else ("loss", "excess_loss")
    losses = {f"final/{name}": np.mean([row[name] for row in rows]) for name in names}
    return losses | {"final/share_diverged": np.mean(diverged)}


_HPARAMS = ("activations", "shortcut_depth", "initialisation", "depth", "learning_rate")
# With the seconds, what tells one unit of a sweep from another: a unit may have rows of several seeds and initialisations.
_UNIT = ("experiment", "activations", "shortcut_depth", "batch_norm", "depth", "seconds")
