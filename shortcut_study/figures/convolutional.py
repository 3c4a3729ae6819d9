"""Not in the paper (Li et al. §6): do condition numbers differ between shortcuts of 1, 2 and 3 convolutions?

With and without batch normalisation, at the initial weights of networks small enough to compute every eigenvalue.
"""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from identity_matters.config import ModelConfig
from identity_matters.errors import UserError
from identity_matters.runs.figure_style import PAGE
from identity_matters.runs.job_table import Job, Progress
from shortcut_study.aggregation import depths_in, num_seeds, over_seeds, select
from shortcut_study.config import StudyConfig
from shortcut_study.dataset import StudyData
from shortcut_study.figures.drawing import LARGEST, mark_infinite
from shortcut_study.figures.finding import CONSTANT, Finding, depth_note, series
from shortcut_study.jobs import study_job

EXPERIMENTS = (("convolutional", "relu"),)
CAPTION = "Convolutions, not in the paper: condition number and largest eigenvalue by depth"
READS = SIZE = ("conv_depths", "conv_runs")
NUM_IMAGES = 50
PIXELS = 4  # a side, after the stem of a network
WIDTH = 2  # channels
# Batch normalisation makes the scale of the kernels irrelevant to the function, and small kernels to the condition
# number.
INITIALIZATIONS = {0: ("small", "standard"), 1: ("small",)}
_COLOURS = {1: "C3", 2: "C0", 3: "C2"}  # by shortcut_depth
_STYLES = {"small": ("-", "o"), "standard": ("--", "s"), "zero": (":", "^")}  # by initialisation
_PANELS = {0: "without batch normalisation", 1: "with batch normalisation"}
_QUANTITIES = {"condition_number": "condition number", "max_abs": f"largest, {LARGEST}"}
_INITIALISERS = r"$k\times k\times c$ kernels: small $\sigma = 1/(k^2c)$, standard $\sigma = 1/(k\sqrt{c})$"
_LEGEND = "shortcut over … convolutions, initialiser"


def jobs(config: StudyConfig, data: StudyData) -> list[Job]:
    """Returns a job for every architecture; it has all seeds and initialisers, because they share the compiled
    functions.

    Raises:
      UserError: the images are not square, or no multiple of the pixels that the stem leaves.
    """
    height, width = data.images.shape[1:3]
    if height != width or height % PIXELS != 0:
        raise UserError(
            f"the convolutional networks take square images of a multiple of {PIXELS} pixels, got {height}x{width}"
        )
    seeds = config.seeds(config.conv_runs)
    return [
        _spectra(data, depth, n, batch_norm, seeds)
        for depth in config.conv_depths
        for n in (1, 2, 3)
        for batch_norm in (0, 1)
    ]


def _spectra(data: StudyData, depth: int, shortcut_depth: int, batch_norm: int, seeds: range) -> Job:
    def compute(progress: Progress) -> list[dict]:
        # TensorFlow, which a figure that is only drawn does not wait for.
        from identity_matters.model import all_conv_resnet, standardize
        from shortcut_study.convolutional import initial_spectra

        # A fixed seed, so that all architectures are measured on the same images.
        chosen = np.random.default_rng(0).permutation(len(data.images))[:NUM_IMAGES]
        images = np.asarray(standardize(data.images[chosen]))
        num_classes = data.y.shape[1]
        settings = [(initialisation, seed) for initialisation in INITIALIZATIONS[batch_norm] for seed in seeds]
        # A generator, so that the models are not all in memory at once.
        models = (
            all_conv_resnet(_model_config(images.shape[1:], num_classes, depth, shortcut_depth, batch_norm, kind), seed)
            for kind, seed in settings
        )
        rows = []
        for (initialisation, seed), spectra in zip(settings, initial_spectra(models, images, data.labels[chosen])):
            spectra.pop("num_weights")  # results.csv has no such column
            rows.append({"initialisation": initialisation, "seed": seed, "status": "done"} | spectra)
            progress(1 / len(settings))
        return rows

    key = {"experiment": "convolutional", "shortcut_depth": shortcut_depth, "activations": "relu"}
    return study_job(key | {"batch_norm": batch_norm, "depth": depth}, compute)


def _model_config(
    image_shape: tuple, num_classes: int, depth: int, shortcut_depth: int, batch_norm: int, initialisation: str
) -> ModelConfig:
    """A stem that leaves PIXELS × PIXELS pixels of WIDTH channels, then one stage."""
    stride = image_shape[0] // PIXELS
    return ModelConfig(
        image_shape=image_shape,
        num_classes=num_classes,
        stem_width=WIDTH,
        stem_kernel_size=stride,
        stem_stride=stride,
        widths=(WIDTH,),
        blocks_per_stage=(depth // shortcut_depth,),
        convs_per_block=shortcut_depth,
        use_batch_norm=bool(batch_norm),
        residual_initializer=initialisation,
    )


def draw(rows: list[dict]) -> Figure:
    """Returns condition number (top) and largest |λ| (bottom) against depth, without and with batch normalisation.

    Lines and bands are means ± standard deviations of log₁₀ over the seeds. If a seed's condition number is infinite, a
    triangle at the top edge replaces the point. Rows with an empty or NaN number do not count.
    """
    rows = select(rows, experiment="convolutional")
    figure = Figure(figsize=(PAGE, 5.8), layout="constrained")
    grid = figure.subplots(2, 2, sharex=True, sharey="row")
    for place, (batch_norm, title) in enumerate(_PANELS.items()):
        panel = select(rows, batch_norm=batch_norm)
        for axes, (quantity, text) in zip(grid[:, place], _QUANTITIES.items()):
            axes.set(xscale="log", yscale="log", ylabel="" if place else text)
            for n, initialisation in sorted({(row["shortcut_depth"], row["initialisation"]) for row in panel}):
                curve = select(panel, shortcut_depth=n, initialisation=initialisation)
                _draw_curve(axes, curve, quantity, n, initialisation)
            axes.set_xticks(depths_in(rows), [str(depth) for depth in depths_in(rows)])
            axes.minorticks_off()
        grid[0, place].set_title(title)
        grid[1, place].set_xlabel("depth, convolutions after the stem")
    title = f"Hessian in the residual kernels at the initial weights, n = {num_seeds(rows)}"
    figure.suptitle(f"{title}\n{_INITIALISERS}")
    handles = {text: handle for axes in grid[0] for handle, text in zip(*axes.get_legend_handles_labels())}
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=3, title=_LEGEND)
    return figure


def _draw_curve(axes: Axes, rows: list[dict], quantity: str, shortcut_depth: int, initialisation: str) -> None:
    colour = _COLOURS.get(shortcut_depth, "C7")
    line, marker = _STYLES.get(initialisation, ("-.", "d"))
    infinite = depths_in([row for row in rows if row[quantity] == np.inf])
    mark_infinite(axes, infinite, colour)
    # A mean over the other seeds would be too low, so the depth has only the triangle.
    band = over_seeds([row for row in rows if row["depth"] not in infinite], "depth", quantity)
    text = f"over {shortcut_depth}, {initialisation}"
    axes.plot(band.x, 10**band.mean, line, marker=marker, ms=5, color=colour, label=text)
    low, high = 10 ** (band.mean - band.std), 10 ** (band.mean + band.std)
    axes.fill_between(band.x, low, high, color=colour, alpha=0.12, lw=0)


def findings(rows: list[dict]) -> list[Finding]:
    """Returns, not in the paper, whether its depth-invariance for 2-shortcuts carries over to convolutions."""
    measured = select(rows, experiment="convolutional")
    all_findings = []
    for batch_norm, initialisation in sorted({(row["batch_norm"], row["initialisation"]) for row in measured}):
        variant_rows = select(measured, batch_norm=batch_norm, initialisation=initialisation)
        bands = {n: over_seeds(select(variant_rows, shortcut_depth=n), "depth", "condition_number") for n in (1, 2, 3)}
        means = {n: 10**band.mean for n, band in bands.items() if len(band.x)}
        numbers = "; ".join(f"n = {n}: {series(bands[n].x, mean)}" for n, mean in means.items())
        holds = bool(means[2].max() / means[2].min() < CONSTANT) if len(means.get(2, ())) > 1 else None
        infinite = select(variant_rows, shortcut_depth=2, condition_number=np.inf)
        numbers += depth_note("n = 2 is beyond float64 in some or all runs", depths_in(infinite))
        # over_seeds skips infinite values, so the means alone could look constant.
        holds = False if infinite else holds
        name = f"{initialisation} initialiser, {'with' if batch_norm else 'without'} batch normalisation"
        claim = f"(not in the paper) {name}: constant condition numbers for shortcuts of 2 convolutions"
        all_findings.append(Finding("convolutional", claim, holds, numbers, num_seeds(variant_rows)))
    return all_findings
