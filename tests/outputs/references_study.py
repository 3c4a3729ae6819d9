"""References for what the study, the theory and the curvature print, draw and write: NumPy and Matplotlib alone.

Nothing here is imported from the project: numbers are read as a reader sees them, from the text, the CSV file and the
axes, and computed again by the shortest way, however slow.
"""

import contextlib
import csv
import math
import pathlib
import re
from typing import NamedTuple

import numpy as np
import pytest
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgb
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text

# Text and tables

# A number that a reader takes for one: not the 2 of "2-shortcut", nor the 1 of "Theorem 1".
NUMBER = re.compile(r"(?<![\w.])(?<!Theorem )[-−]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?(?: ?%)?(?!\w*-shortcut)")


class Printed(NamedTuple):
    """A number in a text, and half a unit of its last digit: what a correct number may differ from it by."""

    value: float
    half_unit: float


def printed_numbers(text):
    numbers = []
    for token in NUMBER.findall(text):
        digits = token.replace(",", "").replace("−", "-").rstrip("% ")
        mantissa, _, exponent = digits.partition("e")
        scale = 0.01 if token.endswith("%") else 1.0
        unit = scale * 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))
        numbers.append(Printed(scale * float(digits), unit / 2))
    return numbers


def assert_numbers(text, *expected, slack=1.02):
    """Checks that a text has these numbers, in this order and no others, each rounded to the digits that are shown.

    A slack above 1 is for numbers that the project interpolates twice, and the reference once.
    """
    numbers = printed_numbers(text)
    assert len(numbers) == len(expected), f"{text!r} has {len(numbers)} numbers, expected {expected}"
    for number, value in zip(numbers, expected):
        assert abs(number.value - value) <= slack * number.half_unit + 1e-9 * abs(value), f"{value} in {text!r}"


def read_table(path):
    """The rows of a CSV file, with numbers as float and empty cells as ""."""

    def cell(text):
        try:
            return float(text)
        except ValueError:
            return text

    with open(path, newline="") as file:
        return [{name: cell(text) for name, text in row.items()} for row in csv.DictReader(file)]


def write_table(path, rows):
    with open(path, "w", newline="") as file:
        table = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        table.writeheader()
        table.writerows(rows)


def select(rows, **columns):
    return [row for row in rows if all(row[name] == value for name, value in columns.items())]


def column(rows, name):
    return np.array([float(row[name]) for row in rows])


def markdown_tables(text):
    """The tables of a text in Markdown, each a list of rows without its head."""
    blocks = re.findall(r"(?:^\|.*\|\n)+", text.replace("\\|", "¦"), re.M)
    return [[[cell.strip() for cell in line[1:-1].split("|")] for line in block.split("\n")[2:-1]] for block in blocks]


# Figures


@contextlib.contextmanager
def figures_saved():
    """Context manager: the figures that are saved within it, by the name of their file; the files stay empty."""
    figures = {}

    def save(figure, file, **_):
        for artist in figure.findobj(lambda artist: isinstance(artist, Line2D | Text)):
            artist.set_color(to_rgb(artist.get_color()))  # "C0" is another colour once the figure's style has ended
        figures[pathlib.Path(file).stem] = figure
        pathlib.Path(file).write_bytes(b"")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", save)
        yield figures


def labelled(axes):
    """The lines, bars and areas of a panel by their labels in the legend."""
    handles, labels = axes.get_legend_handles_labels()
    return dict(zip(labels, handles))


def colour_of(artist):
    """The colour of a line, of bars, or of the filled area between curves."""
    artist = artist[0] if isinstance(artist, ErrorbarContainer) else artist
    colour = artist.get_color() if hasattr(artist, "get_color") else artist.get_facecolor()
    return to_rgb(colour if isinstance(colour, str) else np.atleast_2d(colour)[0])


def assert_line(artist, x, y, rtol=1e-5):
    found_x, found_y = artist.get_xdata(), artist.get_ydata()
    np.testing.assert_allclose(np.asarray(found_x, float), np.asarray(x, float), rtol=rtol, atol=1e-12)
    np.testing.assert_allclose(np.asarray(found_y, float), np.asarray(y, float), rtol=rtol, atol=1e-12)


def assert_bars(container, x, y, low, high, horizontal=False, rtol=1e-5):
    """Checks error bars: their places x, values y, and lower and upper ends."""
    data, _, (segments,) = container
    along = 0 if horizontal else 1
    ends = np.array([segment[:, along] for segment in segments.get_segments()])
    pairs = (data.get_ydata(), data.get_xdata()) if horizontal else (data.get_xdata(), data.get_ydata())
    for found, expected in zip((*pairs, *ends.T), (x, y, low, high)):
        np.testing.assert_allclose(np.asarray(found, float), np.asarray(expected, float), rtol=rtol, atol=1e-12)


def assert_area(axes, colour, edges, rtol=1e-5):
    """Checks the filled area of a colour between two curves: edges has their heights, (low, high), by x."""
    chosen = [area for area in axes.collections if isinstance(area, PolyCollection) and colour_of(area) == colour]
    vertices = np.concatenate([path.vertices for area in chosen for path in area.get_paths()])
    for x, expected in edges.items():
        heights = vertices[np.isclose(vertices[:, 0], x, rtol=1e-9, atol=0), 1]
        found = [heights[np.abs(heights - height).argmin()] for height in expected]
        np.testing.assert_allclose(found, expected, rtol=rtol, atol=1e-9)


def drawn_names(axes):
    """Pairs of what a panel draws: its name in the legend, without the number of runs, and the line, bars or area."""
    return [(re.sub(r", n = \d.*", "", label), artist) for label, artist in labelled(axes).items()]


def assert_legend(legend, panels):
    """Checks that each entry of a legend has the colour of what a panel draws under its name."""
    drawn = dict(pair for axes in panels for pair in drawn_names(axes))
    texts = [re.sub(r", n = \d.*", "", text.get_text()) for text in legend.get_texts()]
    assert texts and set(texts) == set(drawn)
    for text, handle in zip(texts, legend.legend_handles):
        assert colour_of(handle) == colour_of(drawn[text]), text


# Statistics over runs


def spread(values):
    """The standard deviation over seeds, of n − 1 degrees of freedom; 0 for one seed."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def by_place(rows, x, y, log=True):
    """Mean and spread of column y (log₁₀ y) at each value of column x, over the finite ones: {x: (mean, spread)}."""
    places = {}
    for row in rows:
        if row[y] != "" and np.isfinite(row[y]):
            places.setdefault(row[x], []).append(math.log10(row[y]) if log else row[y])
    return {place: (float(np.mean(values)), spread(values)) for place, values in sorted(places.items())}


def spreads(band):
    """One standard deviation to either side of a mean of log₁₀, by place: {x: (low, high)}."""
    return {x: (10 ** (mean - deviation), 10 ** (mean + deviation)) for x, (mean, deviation) in band.items()}


def runs_along(rows, loss, y, log=True):
    """For each seed the log₁₀ losses, ascending, and y (log₁₀ y) there; NaN for an infinite y."""
    runs = {}
    for row in rows:
        if row[loss] != "" and np.isfinite(row[loss]) and row[y] != "":
            value = math.log10(row[y]) if log and row[y] > 0 else row[y]
            runs.setdefault(row["seed"], {}).setdefault(math.log10(row[loss]), value if np.isfinite(row[y]) else np.nan)
    return {seed: np.array(sorted(run.items())).T for seed, run in runs.items() if len(run) > 1}


def values_at(runs, places):
    """The values of each run at log₁₀ losses, linear between its own and NaN beyond: {seed: [p]}."""
    values = {}
    for seed, (losses, known) in runs.items():
        is_beyond = (places < losses[0] - 1e-9) | (places > losses[-1] + 1e-9)
        values[seed] = np.where(is_beyond, np.nan, np.interp(places, losses, known))
    return values


def assert_band(axes, label, rows, loss, y, log=True):
    """Checks the mean curve over the runs of some rows, its area of one standard deviation, and its number of runs."""
    runs = runs_along(rows, loss, y, log)
    (name,) = [text for text in labelled(axes) if re.sub(r", n = \d.*", "", text) == label]
    colour = colour_of(labelled(axes)[name])
    lines = [line for line in axes.lines if to_rgb(line.get_color()) == colour and line.get_linestyle() in ("-", ":")]
    points = np.concatenate([line.get_xydata() for line in lines])
    points = points[np.isfinite(points).all(1)]
    assert len(points) > 20
    values = np.array([*values_at(runs, np.log10(points[:, 0])).values()])
    inside = np.isfinite(values).all(0)  # at the very end of a run rounding decides which runs there are
    power = (lambda v: 10**v) if log else (lambda v: v)
    some = np.isfinite(values).any(0)
    np.testing.assert_allclose(points[some, 1], power(np.nanmean(values[:, some], 0)), rtol=1e-5, atol=1e-9)
    counts = np.isfinite(values).sum(0)
    assert_numbers(name.removeprefix(label).replace("n = ", ""), *sorted({counts[some].min(), counts.max()}))
    for line in lines:  # dotted where runs have dropped out
        x = line.get_xdata()[np.isfinite(line.get_xydata()).all(1)]
        count = np.isfinite([*values_at(runs, np.log10(x)).values()]).sum(0)
        assert ((count == counts.max()) == (line.get_linestyle() == "-"))[1:-1].all()
    places = zip(points[inside, 0][::10], values[:, inside].T[::10])
    assert_area(axes, colour, {x: power(v.mean() + spread(v) * np.array([-1, 1])) for x, v in places})


# Networks of Li et al., (5) and (6), with examples in rows


def gradient(weights, x, y, has_shortcut, is_relu=False):
    """∂L/∂W and L = 1/(2m) Σ‖y − ŷ‖², for weights [..., units, layers, d, d]; ReLUs between the layers of a unit."""
    num_units, num_layers = weights.shape[-4:-2]
    hidden, inputs = x, {}
    for unit in range(num_units):
        inside = hidden
        for layer in range(num_layers):
            if is_relu and layer:
                inside = inside * (inside.real > 0)
            inputs[unit, layer] = inside
            inside = inside @ weights[..., unit, layer, :, :].swapaxes(-1, -2)
        hidden = has_shortcut * hidden + inside
    error = hidden - y
    loss = (error**2).sum((-1, -2)) / (2 * len(x))
    back, slopes = error / len(x), np.empty_like(weights)
    for unit in reversed(range(num_units)):
        inside = back
        for layer in reversed(range(num_layers)):
            slopes[..., unit, layer, :, :] = inside.swapaxes(-1, -2) @ inputs[unit, layer]
            inside = inside @ weights[..., unit, layer, :, :]
            if is_relu and layer:
                inside = inside * (inputs[unit, layer].real > 0)
        back = has_shortcut * back + inside
    return slopes, loss


def hessian(weights, x, y, has_shortcut, is_relu=False):
    """The dense Hessian [P, P] by complex steps of the gradient, exact in float64."""
    size = weights.size
    if not is_relu:  # a linear network sees the data by their second moments alone, which these few examples have
        few = np.linalg.qr(np.hstack([x, y]), "r")
        x, y = np.hsplit(few * math.sqrt(len(few) / len(x)), 2)
    steps = 1e-30j * np.eye(size).reshape(size, *weights.shape)
    slopes, _ = gradient(weights + steps, x, y, has_shortcut, is_relu)
    return slopes.imag.reshape(size, size) / 1e-30


def eigenvalue_summary(eigenvalues):
    """Largest |λ|, its 10th percentile, their ratio (Li et al., appendix B), and the share of negative λ (§5.2)."""
    sizes = np.sort(np.abs(eigenvalues))
    place = 0.1 * (len(sizes) - 1)
    below = int(place)
    tenth = sizes[below] + (place - below) * (sizes[below + 1] - sizes[below])
    index = np.mean(eigenvalues < -1e-12 * sizes[-1])
    return {"max_abs": sizes[-1], "p10_abs": tenth, "condition_number": sizes[-1] / tenth, "index": index}


def descent(weights, x, y, rate, num_epochs, has_shortcut, is_relu=False):
    """Gradient descent: weights, loss, average Frobenius norm and gradient norm before each epoch and at the end."""
    path = []
    for _ in range(num_epochs + 1):
        slopes, loss = gradient(weights, x, y, has_shortcut, is_relu)
        norm = np.mean([np.linalg.norm(matrix) for matrix in weights.reshape(-1, *weights.shape[-2:])])
        path.append((weights, float(loss), norm, np.linalg.norm(slopes)))
        weights = weights - rate * slopes
    return path


def lowest_linear_loss(x, y):
    """The loss of the best linear map (Li et al., (16))."""
    best = np.linalg.lstsq(x, y, rcond=None)[0]
    return np.square(y - x @ best).sum() / (2 * len(x))


def whitened(images, labels, num_classes=10):
    """The leading principal components of images, scaled to variance 1, and one-hot labels (Li et al., appendix B)."""
    pixels = images.reshape(len(images), -1).astype(float)
    pixels = pixels - pixels.mean(0)
    _, values, axes = np.linalg.svd(pixels, full_matrices=False)
    axes = axes[:num_classes] * np.sign([axis[np.abs(axis).argmax()] for axis in axes[:num_classes]])[:, None]
    return pixels @ axes.T / (values[:num_classes] / math.sqrt(len(pixels))), np.eye(num_classes)[labels]
