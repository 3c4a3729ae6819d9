"""Draw the README's picture: condition numbers against depth, and what trained residual blocks add.

    python -m website.story

writes docs/figures/story.png in a second, from docs/runs. On the left is Figure 5 of Li et al., from a run of
launch.shortcut_study; on the right ‖branch‖/‖stream‖ of every block of the paper's network, at the start and trained,
from runs of launch.near_identity.
"""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from identity_matters.near_identity_figure import SMALLEST_RATIO
from identity_matters.runs.figures import save_figures
from identity_matters.runs.tables import read_rows
from shortcut_study.aggregation import select
from shortcut_study.architectures import ONE, ORTHOGONAL, TWO, XAVIER
from shortcut_study.figures import drawing, figure_5
from theory.arrays import column

STUDY = "docs/runs/study_mnist"
# Runs of launch.near_identity, by their names in the legend.
BLOCKS = {
    "at the start": "docs/runs/near_identity_start",
    "trained with SGD": "docs/runs/near_identity_paper",
    "trained with Muon": "docs/runs/near_identity_paper_muon",
}
_BELOW = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.18)}


def main() -> None:
    """Draws the picture and prints its path."""
    study = read_rows(f"{STUDY}/results.csv")
    blocks = {name: read_rows(f"{run_dir}/results.csv") for name, run_dir in BLOCKS.items()}
    print("\n".join(save_figures(lambda: {"story": story_figure(study, blocks)}, "docs/figures")))


def story_figure(study: list[dict], blocks: dict[str, list[dict]]) -> Figure:
    """Returns condition numbers against depth (left) and ‖branch‖/‖stream‖ block by block (right).

    Args:
      study: Rows of results.csv of launch.shortcut_study, with Figure 5's.
      blocks: Rows of results.csv of launch.near_identity, by the network's name.
    """
    figure = Figure(figsize=(8, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    _draw_condition_numbers(left, study)
    _draw_blocks(right, blocks)
    return figure


def _draw_condition_numbers(axes: Axes, study: list[dict]) -> None:
    """Draws the geometric means of Figure 5, each line with its name at its end."""
    rows = select(study, experiment="initial_spectrum")
    names = {XAVIER: "no shortcuts, Xavier", ORTHOGONAL: "no shortcuts, orthogonal", ONE: "1-shortcuts"}
    for arch, name in {**names, TWO: "2-shortcuts"}.items():
        figure_5.draw_architecture(axes, rows, arch, name)
    axes.set(yscale="log", ylabel=drawing.CONDITION_NUMBER)
    axes.set_title("condition of the Hessian at the start (Li et al.)")
    drawing.depth_axis(axes, rows)
    drawing.legend(axes, **_BELOW, ncols=2)


def _draw_blocks(axes: Axes, blocks: dict[str, list[dict]]) -> None:
    """Draws the median over images of ‖branch‖/‖stream‖, with quartiles, and a line between the stages.

    Ratios below SMALLEST_RATIO, of blocks that add nothing, are drawn at SMALLEST_RATIO.
    """
    for k, (name, rows) in enumerate(blocks.items()):
        index = range(1, len(rows) + 1)
        colour = ("C7", "C4", "C5", "C6")[k % 4]
        low, ratio, high = (np.maximum(column(rows, f"ratio{end}"), SMALLEST_RATIO) for end in ("_low", "", "_high"))
        axes.plot(index, ratio, "o-", ms=4, color=colour, label=name)
        axes.fill_between(index, low, high, color=colour, alpha=0.2, lw=0)
    axes.fill_between([], [], [], color="0.4", alpha=0.2, lw=0, label="quartiles over images")
    rows = next(iter(blocks.values()))
    stages = [row["block"].split("_")[0] for row in rows]
    for i in range(1, len(stages)):
        if stages[i] != stages[i - 1]:
            axes.axvline(i + 0.5, color="0.4", lw=0.8, ls=":")
    axes.axhline(1, color="k", lw=0.8)
    above = {"textcoords": "offset points", "ha": "center", "size": "small"}
    axes.annotate("as large as its input", (len(rows) / 2, 1), (0, 3), **above)
    axes.set(xlabel="residual block (dotted: new stage)", ylabel="‖branch‖ / ‖input‖", yscale="log")
    axes.set_title("size of each branch (Hardt & Ma)")
    axes.legend(**_BELOW, ncols=2)


if __name__ == "__main__":
    main()
