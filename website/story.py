"""Draw the README's picture: condition numbers of the Hessian against depth, and the spectrum of a trained network.

    python -m website.story

writes docs/figures/story.png in a second, from docs/runs. On the left is Figure 5 of Li et al., from a run of
launch.shortcut_study; on the right the Hessian spectrum of a trained network, from a run of launch.hessian_spectrum.
Each curve has its name beside it.
"""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from identity_matters.runs.figures import save_figures
from identity_matters.runs.tables import read_rows
from shortcut_study.aggregation import select
from shortcut_study.architectures import ORTHOGONAL, TWO, XAVIER
from shortcut_study.curvature.quadrature import extreme_eigenvalues
from shortcut_study.figures import drawing, figure_5
from shortcut_study.figures.spectrum import quadrature_from_rows
from theory.arrays import column

STUDY = "docs/runs/study_mnist"
SPECTRUM = "docs/runs/spectrum_fast_end"
# Names of the curves, each with the depth at which it stands, its offset from the curve in points, and its alignment.
CURVES = {
    XAVIER: ("no shortcuts, Xavier", 12, (10, -6), "left"),
    ORTHOGONAL: ("no shortcuts, orthogonal", 24, (0, 14), "center"),
    TWO: ("shortcuts over two layers", 24, (0, 7), "center"),
}


def main() -> None:
    """Draws the picture and prints its path."""
    study = read_rows(f"{STUDY}/results.csv")
    eigenvalues, density = (read_rows(f"{SPECTRUM}/{name}.csv") for name in ("results", "density"))
    print("\n".join(save_figures(lambda: {"story": story_figure(study, eigenvalues, density)}, "docs/figures")))


def story_figure(study: list[dict], eigenvalues: list[dict], density: list[dict]) -> Figure:
    """Returns condition numbers against depth (left) and the Hessian spectrum of a trained network (right).

    Args:
      study: Rows of results.csv of launch.shortcut_study, with Figure 5's.
      eigenvalues: Rows of results.csv of launch.hessian_spectrum.
      density: Rows of its density.csv.
    """
    figure = Figure(figsize=(8, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    _draw_condition_numbers(left, study)
    _draw_spectrum(right, eigenvalues, density)
    return figure


def _draw_condition_numbers(axes: Axes, study: list[dict]) -> None:
    """Draws the geometric means of Figure 5, each curve with its name beside it."""
    rows = select(study, experiment="initial_spectrum")
    for arch, (name, depth, offset, alignment) in CURVES.items():
        figure_5.draw_architecture(axes, rows, arch, name)
        depths, means = axes.containers[-1].lines[0].get_data()
        nearest = np.argmin(np.abs(np.asarray(depths) - depth))
        _name(axes, name, (depths[nearest], means[nearest]), offset, drawing.COLOURS[arch], alignment)
    if any(np.isinf(row["condition_number"]) for row in rows):  # Xavier's triangles at the upper edge
        axes.text(0.87, 0.92, "too large\nto compute", transform=axes.transAxes, ha="center", va="top", size="small",
                  color=drawing.COLOURS[XAVIER])  # fmt: skip
    axes.set(yscale="log", ylabel=drawing.CONDITION_NUMBER)
    axes.set_title("Hessian at initialisation")
    drawing.depth_axis(axes, rows)


def _draw_spectrum(axes: Axes, eigenvalues: list[dict], density: list[dict]) -> None:
    """Draws the density of the eigenvalues, with the largest one marked."""
    grid, heights = (column(density, name) for name in ("eigenvalue", "density"))
    (largest,), _ = extreme_eigenvalues(quadrature_from_rows(eigenvalues), 1)
    height = np.interp(largest, grid, heights)
    axes.plot(grid, heights, color="C0")
    axes.plot(largest, height, "v", color="C3")
    _name(axes, "nearly all eigenvalues\nare close to 0", (0, heights.max()), (14, -4), "C0", "left")
    _name(axes, f"the largest: {largest:.1f}", (largest, height), (6, 12), "C3", "right")
    axes.set(xlabel=r"eigenvalue $\lambda$ of the Hessian", ylabel="density of the eigenvalues", yscale="log")
    axes.set_title("Hessian after training")
    axes.set_ylim(0.1 * height, 3 * heights.max())


def _name(axes: Axes, text: str, point: tuple, offset: tuple[int, int], colour: str, alignment: str) -> None:
    """Writes the name of a curve beside one of its points, in its colour."""
    vertical = "top" if offset[1] < 0 else "bottom"
    axes.annotate(text, point, offset, textcoords="offset points", ha=alignment, va=vertical, color=colour)


if __name__ == "__main__":
    main()
