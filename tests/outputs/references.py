"""Short, independent computations of what commands print, draw and write: NumPy, SciPy and plain Keras.

This module does not import the project: numbers are read as a reader sees them, from the text, the CSV file and the
axes, and computed again by the shortest way, however slow.
"""

import contextlib
import csv
import math
import pathlib
import re
from typing import NamedTuple

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
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
    """A number in a text, and half a unit of its last digit, the tolerance of a correct number."""

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


def read_columns(path):
    """The columns of a CSV file by name, in their order."""
    rows = read_table(path)
    return {name: [row[name] for row in rows] for name in rows[0]}


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
    for found, expected in zip(artist.get_data(), (x, y)):
        np.testing.assert_allclose(np.asarray(found, float), np.asarray(expected, float), rtol=rtol, atol=1e-12)


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
    """Pairs of a panel's series: the name in the legend, without the number of runs, and the line, bars or area."""
    return [(re.sub(r", n = \d.*", "", label), artist) for label, artist in labelled(axes).items()]


def assert_legend(legend, panels):
    """Checks that each entry of a legend has the colour of the panel's series of that name."""
    drawn = dict(pair for axes in panels for pair in drawn_names(axes))
    texts = [re.sub(r", n = \d.*", "", text.get_text()) for text in legend.get_texts()]
    assert texts and set(texts) == set(drawn)
    for text, handle in zip(texts, legend.legend_handles):
        assert colour_of(handle) == colour_of(drawn[text]), text
        if isinstance(handle, Line2D) and isinstance(drawn[text], Line2D):
            assert handle.get_linestyle() == drawn[text].get_linestyle(), text


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


# Networks of Hardt & Ma, and their training


def standardized(images) -> np.ndarray:
    """Mean 0 and deviation 1 over the pixels of each image; the deviation is at least 1/√(number of values)."""
    images = np.asarray(images, np.float64)
    flat = images.reshape(len(images), -1)
    floor = flat.shape[1] ** -0.5
    scaled = (flat - flat.mean(1, keepdims=True)) / np.maximum(flat.std(1, keepdims=True), floor)
    return scaled.reshape(images.shape).astype(np.float32)


def table_1(image_shape, stem, widths, blocks, classes, stem_pool=1) -> keras.Model:
    """Hardt & Ma, Table 1: x + C₂ReLU(C₁x), stride 2 between stages, global average, a last layer not trained."""
    images = keras.Input(image_shape)
    x = layers.Conv2D(stem, 3, padding="same", use_bias=False)(images)
    x = layers.AveragePooling2D(stem_pool)(x)
    for stage, (width, count) in enumerate(zip(widths, blocks)):
        for block in range(count):
            stride = 2 if stage > 0 and block == 0 else 1
            y = layers.Conv2D(width, 3, stride, padding="same", use_bias=False)(x)
            y = layers.Conv2D(width, 3, padding="same", use_bias=False)(layers.ReLU()(y))
            before = (width - x.shape[-1]) // 2
            after = width - x.shape[-1] - before
            x = layers.AveragePooling2D(stride)(x)
            x = keras.ops.pad(x, ((0, 0), (0, 0), (0, 0), (before, after)))
            x = layers.Add()([x, y])
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(images, layers.Dense(classes, use_bias=False, trainable=False)(x))


def kernels_of(network) -> list[np.ndarray]:
    return [weights for weights in network.get_weights() if weights.ndim == 4]


def error(logits, labels, highest=1) -> float:
    """The share of examples of whose label at least `highest` other classes score as high."""
    logits = np.asarray(logits)
    own = logits[np.arange(len(labels)), labels]
    return float(np.mean((logits >= own[:, None]).sum(1) > highest))


def cross_entropy(logits, labels) -> float:
    logits = np.asarray(logits, np.float64)
    shifted = logits - logits.max(1, keepdims=True)
    log_sums = np.log(np.exp(shifted).sum(1))
    return float(np.mean(log_sums - shifted[np.arange(len(labels)), labels]))


def learning_rate(config: dict, update: int) -> float:
    """The rate of update 0, 1, … by the fields of a run's config."""
    rate, steps, factor = config["learning_rate"], config["decay_steps"], config["decay_factor"]
    total = config["train_steps"]
    factors = {
        "piecewise": lambda: factor ** sum(update >= step for step in steps),
        "exponential": lambda: factor ** (update // steps[0]),
        "linear": lambda: 1 - update / total,
        "cosine": lambda: (1 + np.cos(np.pi * update / total)) / 2,
    }
    warmup = config["warmup_steps"]
    return rate * factors[config["schedule"]]() * (min(1, (update + 1) / warmup) if warmup else 1)


def orthogonalized(kernel: np.ndarray, num_steps: int) -> np.ndarray:
    """Muon (Jordan et al. 2024): p(s) = 3.4445s − 4.7750s³ + 2.0315s⁵, num_steps times, of the singular values."""
    matrix = kernel.reshape(-1, kernel.shape[-1])
    u, s, vt = np.linalg.svd(matrix / np.linalg.norm(matrix), full_matrices=False)
    for _ in range(num_steps):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    scale = max(1, matrix.shape[1] / matrix.shape[0]) ** 0.5
    return scale * (u * s @ vt).reshape(kernel.shape)


def train_by_hand(network, images, labels, config: dict, num_updates: int) -> list[dict]:
    """Trains a network on all images at once; returns the rate, and losses and errors before each update."""
    velocities = [np.zeros(variable.shape) for variable in network.trainable_variables]
    history = []
    for update in range(num_updates):
        with tf.GradientTape() as tape:
            logits = network(images)
            mean = tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True))
            squares = sum(tf.reduce_sum(kernel.value**2) for kernel in network.trainable_variables)
            loss = mean + config["model"]["weight_decay"] / 2 * squares
        gradients = [g.numpy().astype(float) for g in tape.gradient(loss, network.trainable_variables)]
        norm = np.sqrt(sum(np.sum(g**2) for g in gradients))
        if config["clip_norm"] and norm > config["clip_norm"]:
            gradients = [g * config["clip_norm"] / norm for g in gradients]
        rate = learning_rate(config, update)
        errors = {"top1": error(logits, labels), "top5": error(logits, labels, 5)}
        means = {"loss": float(loss), "cross_entropy": cross_entropy(logits, labels), "learning_rate": rate}
        history.append(means | errors | {"gradient_norm": norm})
        for i, (variable, gradient) in enumerate(zip(network.trainable_variables, gradients)):
            weights = variable.numpy() * (1 - rate * config["decoupled_weight_decay"])
            if config["optimizer"] == "muon":
                velocities[i] = config["momentum"] * velocities[i] + gradient
                step = orthogonalized(gradient + config["momentum"] * velocities[i], config["newton_schulz_steps"])
                variable.assign(weights - rate * step)
                continue
            if config["optimizer"] == "momentum":  # as tf.train.MomentumOptimizer
                velocities[i] = config["momentum"] * velocities[i] + gradient
                variable.assign(weights - rate * velocities[i])
                continue
            velocities[i] = config["momentum"] * velocities[i] - rate * gradient
            step = velocities[i]
            if config["optimizer"] == "nesterov":
                step = config["momentum"] * velocities[i] - rate * gradient
            variable.assign(weights + step)
    return history


def turn(angle):
    """The rotation of the plane by an angle."""
    return np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])


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
