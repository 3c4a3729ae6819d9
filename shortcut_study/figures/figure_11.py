"""Figure 11 of Li et al.: the blocks of the Hessian of a 2-shortcut linear network at zero weights (11).

The paper marks with one colour the blocks that are A and with another those that are Aᵀ; all others are 0. Here each
block of a computed Hessian, of the rows of one weight matrix and the columns of another, is compared with the block
below the diagonal in the first unit, with its transpose and with 0.
"""

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from identity_matters.runs.job_table import Job, Progress
from shortcut_study.aggregation import select
from shortcut_study.architectures import LINEAR, TWO
from shortcut_study.config import StudyConfig
from shortcut_study.dataset import StudyData
from shortcut_study.figures.finding import Finding
from shortcut_study.hessian import hessian
from shortcut_study.jobs import job_key, study_job

EXPERIMENTS = (("blocks_at_zero", LINEAR),)
CAPTION = "Blocks of the Hessian of a 2-shortcut linear network at zero weights"
READS = ("depth", "hessian")
SIZE = ("depth",)
A, TRANSPOSED, ZERO, OTHER = "A", "A transposed", "zero", "other"  # the values of the column `block`
_STYLES = {A: ("C1", "//"), TRANSPOSED: ("C0", "xx"), OTHER: ("C3", "")}  # colour and hatching
_LABELS = {A: "$A$", TRANSPOSED: "$A^T$", ZERO: "0", OTHER: "none of these"}


def jobs(config: StudyConfig, data: StudyData) -> list[Job]:
    """Returns one job, whose rows are the blocks: their norms, and what they are equal to within rounding."""

    def compute(_: Progress) -> list[dict]:
        network = TWO.network(data.x.shape[1], config.depth, LINEAR)
        matrix = hessian(network, np.zeros(network.shape), data.x, data.y, config.hessian)
        return blocks(matrix, network.depth)

    # "zero" is the paper's name for small random weights, but here they are exactly 0.
    at_zero = TWO._replace(initialisation="exact_zero")
    return [study_job(job_key("blocks_at_zero", at_zero, LINEAR, config.depth), compute)]


def blocks(matrix: np.ndarray, num_layers: int) -> list[dict]:
    """Returns a row for each block of a Hessian [P, P] of num_layers weight matrices: place, norm and expression.

    Equal is what differs in no entry by more than P · ε times the largest, the rounding of `hessian.spectrum`.
    """
    size = len(matrix) // num_layers
    parts = matrix.reshape(num_layers, size, num_layers, size).transpose(0, 2, 1, 3)
    rounding = len(matrix) * np.finfo(matrix.dtype).eps * np.abs(matrix).max()
    # Zero comes first, so that a block of zeros counts as 0 even if A is 0 too.
    references = {ZERO: np.zeros((size, size)), A: parts[1, 0], TRANSPOSED: parts[1, 0].T}
    rows = []
    for i, j in np.ndindex(num_layers, num_layers):
        equal = [name for name, part in references.items() if np.abs(parts[i, j] - part).max() <= rounding]
        place = {"row_layer": i + 1, "column_layer": j + 1}
        rows.append(place | {"norm": float(np.linalg.norm(parts[i, j])), "block": equal[0] if equal else OTHER})
    return rows


def draw(rows: list[dict]) -> Figure:
    """Returns the matrix of blocks; equal blocks share colour and hatching, and thick lines separate the units."""
    rows = select(rows, experiment="blocks_at_zero")
    num_layers = max(row["row_layer"] for row in rows)
    figure = Figure(figsize=(5.6, 5.2), layout="constrained")
    axes = figure.add_subplot(aspect="equal")
    for row in rows:
        if row["block"] in _STYLES:
            colour, hatch = _STYLES[row["block"]]
            corner = row["column_layer"] - 0.5, row["row_layer"] - 0.5
            # Matplotlib draws the hatching in the colour of the edge; lw=0 hides the edge itself.
            axes.add_patch(Rectangle(corner, 1, 1, fc=colour, ec="w", hatch=hatch, lw=0))
    for edge in range(num_layers + 1):
        style = {"color": "k" if edge % 2 == 0 else "0.8", "lw": 1.0 if edge % 2 == 0 else 0.5}
        axes.axhline(edge + 0.5, **style)
        axes.axvline(edge + 0.5, **style)
    # The ticks are at the centres of the blocks, and a grid there would cut through them.
    axes.grid(False)
    ends = 0.5, num_layers + 0.5
    ticks = range(1, num_layers + 1, 1 + (num_layers > 20))
    axes.set(xlim=ends, ylim=ends[::-1], xticks=ticks, yticks=ticks)
    axes.set(xlabel="columns: weight matrix", ylabel="rows: weight matrix")
    axes.set_title(f"Hessian at zero, 2-shortcut, linear, {num_layers // 2} units")
    figure.legend(handles=_handles(rows), loc="outside lower center", ncols=4)
    return figure


def _handles(rows: list[dict]) -> list[Patch]:
    """The entries of the legend: how many blocks are equal to what."""
    handles = []
    for name, label in _LABELS.items():
        count = len(select(rows, block=name))
        if count:
            colour, hatch = _STYLES.get(name, ("w", ""))
            # A white patch needs a grey edge to be visible.
            edge = "0.6" if name == ZERO else "w"
            handles.append(Patch(fc=colour, ec=edge, hatch=hatch, lw=0.5, label=f"{label}: {count} blocks"))
    return handles


def findings(rows: list[dict]) -> list[Finding]:
    """Returns appendix A on (11): which blocks are not 0, and that they are one matrix and its transpose."""
    rows = select(rows, experiment="blocks_at_zero")
    filled = [row for row in rows if row["block"] != ZERO]
    places = [(row, row["row_layer"], row["column_layer"]) for row in filled]
    inside = [row for row, i, j in places if i != j and (i - 1) // 2 == (j - 1) // 2]
    num_layers = max(row["row_layer"] for row in rows)
    numbers = f"{len(filled)} of {len(rows)} blocks are not 0, {len(inside)} of them there"
    claim = "only the off-diagonal subblocks in each diagonal block are non-zero"
    # A unit of two layers has two off-diagonal blocks, so there are as many in all as layers.
    only = Finding("11", claim, len(filled) == len(inside) == num_layers, numbers, 1)
    marked = {
        A: [row for row in inside if row["row_layer"] > row["column_layer"]],
        TRANSPOSED: [row for row in inside if row["row_layer"] < row["column_layer"]],
    }
    equal = {name: len(select(of_name, block=name)) for name, of_name in marked.items()}
    numbers = f"{equal[A]} of {len(marked[A])} below the diagonal are A, "
    numbers += f"{equal[TRANSPOSED]} of {len(marked[TRANSPOSED])} above it are its transpose"
    claim = "the blocks of one colour are the same, and those of the other their transposes"
    same = all(equal[name] == len(of_name) > 0 for name, of_name in marked.items())
    return [only, Finding("11", claim, same, numbers, 1)]
