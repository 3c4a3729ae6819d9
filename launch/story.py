"""Draw both papers in one figure: condition numbers against depth, and what trained residual blocks add.

    python -m launch.story --run_dir=docs/figures

writes docs/figures/story.png in a second, without computing anything. On the left is Figure 5 of Li et al.,
from results.csv of a run of launch.shortcut_study; on the right ‖branch‖/‖stream‖ of every block of the
paper's network, at the start and trained, from runs of launch.near_identity.
"""

import dataclasses
import functools
import os
from typing import TYPE_CHECKING, Literal

from identity_matters.errors import UserError, explaining, table_error
from identity_matters.fields import check_fields, option, require, split_names
from identity_matters.runs.tables import read_rows
from launch import launcher

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BELOW = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.18)}


@dataclasses.dataclass(frozen=True)
class StoryConfig:
    """Which runs to draw, and what type of file to write.

    Attributes:
      study: Directory of a run of launch.shortcut_study with the data of Figure 5.
      blocks: Directories of runs of launch.near_identity, with commas between them.
      names: Name of each of these runs in the legend, with commas between them.
      format: Type of the file to write.
      style: Whether the figure is for the screen or for a paper.
    """

    study: str = option("docs/runs/study_mnist", path=True)
    blocks: str = option(
        "docs/runs/near_identity_start,docs/runs/near_identity_paper,docs/runs/near_identity_paper_muon", path=True
    )
    names: str = "at the start,trained with SGD,trained with Muon"
    format: Literal["png", "pdf", "svg"] = "png"
    style: Literal["screen", "paper"] = "screen"

    def __post_init__(self) -> None:
        check_fields(self)
        given = len(split_names(self.blocks)), len(set(split_names(self.names)))
        require(given[0] > 0, "blocks must name a directory")
        require(given[0] == given[1], f"names has {given[1]} names for {given[0]} directories of blocks: {self.names}")


def main(config: StoryConfig, run_dir: str) -> None:
    """Draws the figure and prints its path."""
    from identity_matters.runs.figures import save_figures

    study = _rows(config.study)
    blocks = dict(zip(split_names(config.names), map(_rows, split_names(config.blocks))))
    has_figure_5 = any(row.get("experiment") == "initial_spectrum" for row in study)
    require(has_figure_5, f"{config.study} does not hold the data of Figure 5")
    os.makedirs(run_dir, exist_ok=True)
    with explaining(table_error(f"{config.study} or {config.blocks}")):
        draw = functools.partial(story_figure, study, blocks)
        print("\n".join(save_figures(lambda: {"story": draw()}, run_dir, config.format, config.style)))


def _rows(run_dir: str) -> list[dict]:
    if rows := read_rows(os.path.join(run_dir, "results.csv")):
        return rows
    raise UserError(f"{run_dir} holds no results.csv of a run, or an empty one")


def story_figure(study: list[dict], blocks: dict[str, list[dict]]) -> "Figure":
    """Returns condition numbers against depth (left) and ‖branch‖/‖stream‖ block by block (right).

    Args:
      study: Rows of results.csv of launch.shortcut_study, with Figure 5's.
      blocks: Rows of results.csv of launch.near_identity, by the network's name.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    _draw_condition_numbers(left, study)
    _draw_blocks(right, blocks)
    return figure


def _draw_condition_numbers(axes: "Axes", study: list[dict]) -> None:
    """Draws the geometric means of Figure 5, each line with its name at its end."""
    from shortcut_study.aggregation import select
    from shortcut_study.architectures import ONE, ORTHOGONAL, TWO, XAVIER
    from shortcut_study.figures import drawing, figure_5

    rows = select(study, experiment="initial_spectrum")
    names = {XAVIER: "no shortcuts, Xavier", ORTHOGONAL: "no shortcuts, orthogonal", ONE: "1-shortcuts"}
    for arch, name in {**names, TWO: "2-shortcuts"}.items():
        figure_5.draw_architecture(axes, rows, arch, name)
    axes.set(yscale="log", ylabel=drawing.CONDITION_NUMBER)
    axes.set_title("condition of the Hessian at the start (Li et al.)")
    drawing.depth_axis(axes, rows)
    drawing.legend(axes, **_BELOW, ncols=2)


def _draw_blocks(axes: "Axes", blocks: dict[str, list[dict]]) -> None:
    """Draws the median over images of ‖branch‖/‖stream‖, with quartiles, and a line between the stages.

    Smaller ratios than SMALLEST_RATIO, of blocks that add nothing, are drawn there.
    """
    import numpy as np

    from identity_matters.near_identity_figure import SMALLEST_RATIO
    from theory.arrays import column

    for k, (name, rows) in enumerate(blocks.items()):
        at, colour = range(1, len(rows) + 1), ("C7", "C4", "C5", "C6")[k % 4]
        low, ratio, high = (np.maximum(column(rows, f"ratio{end}"), SMALLEST_RATIO) for end in ("_low", "", "_high"))
        axes.plot(at, ratio, "o-", ms=4, color=colour, label=name)
        axes.fill_between(at, low, high, color=colour, alpha=0.2, lw=0)
    axes.fill_between([], [], [], color="0.4", alpha=0.2, lw=0, label="quartiles over images")
    rows = next(iter(blocks.values()))
    stages = [row["block"].split("_")[0] for row in rows]
    for i in range(1, len(stages)):
        if stages[i] != stages[i - 1]:
            axes.axvline(i + 0.5, color="0.4", lw=0.8, ls=":")
    axes.axhline(1, color="k", lw=0.8)
    place = {"textcoords": "offset points", "ha": "center", "size": "small"}
    axes.annotate("as large as its input", (len(rows) / 2, 1), (0, 3), **place)
    axes.set(xlabel="residual block (dotted: new stage)", ylabel="‖branch‖ / ‖input‖", yscale="log")
    axes.set_title("size of each branch (Hardt & Ma)")
    axes.legend(**_BELOW, ncols=2)


cli = launcher.command(
    main, {"": StoryConfig()}, manual=__doc__, run_dir_text="The directory to which the figure is written. Required."
)

if __name__ == "__main__":
    cli()
