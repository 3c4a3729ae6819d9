"""Short, independent computations of what training commands print, draw and write: NumPy, SciPy and plain Keras.

Nothing here imports the project. A network is Hardt & Ma's Table 1 in Keras's own layers, from standardised images.
"""

import contextlib
import csv
import re

import keras
import matplotlib.figure
import numpy as np
import tensorflow as tf
from keras import layers


def read_table(path) -> dict[str, list]:
    """The columns of a CSV file by name, in their order; cells that are numbers as float."""
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    return {name: [number_or_text(row[name]) for row in rows] for name in rows[0]}


def number_or_text(cell: str):
    try:
        return float(cell)
    except ValueError:
        return cell


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
        history.append(means | errors)
        for i, (variable, gradient) in enumerate(zip(network.trainable_variables, gradients)):
            weights = variable.numpy() * (1 - rate * config["decoupled_weight_decay"])
            if config["optimizer"] == "muon":
                velocities[i] = config["momentum"] * velocities[i] + gradient
                step = orthogonalized(gradient + config["momentum"] * velocities[i], config["newton_schulz_steps"])
                variable.assign(weights - rate * step)
                continue
            velocities[i] = config["momentum"] * velocities[i] - rate * gradient
            step = velocities[i]
            if config["optimizer"] == "nesterov":
                step = config["momentum"] * velocities[i] - rate * gradient
            variable.assign(weights + step)
    return history


@contextlib.contextmanager
def captured_figures(monkeypatch, are_written=True):
    """The figures that are saved within the block, by the file's name without its extension."""
    figures, save = {}, matplotlib.figure.Figure.savefig

    def savefig(figure, file, *arguments, **options):
        figures[re.sub(r".*/|\.\w+$", "", str(file))] = figure
        if are_written:
            save(figure, file, *arguments, **options)
        else:
            open(file, "wb").close()

    with monkeypatch.context() as patch:
        patch.setattr(matplotlib.figure.Figure, "savefig", savefig)
        yield figures


def lines_by_label(axes) -> dict[str, object]:
    """The lines of axes by the words of the legend, which shows each line's own colour, style and marker."""
    shown = axes.get_legend() or axes.figure.legends[0]
    lines = {line.get_label(): line for line in axes.get_lines()}
    for text, handle in zip(shown.get_texts(), shown.legend_handles):
        line = lines.get(text.get_text())
        if line is not None and hasattr(handle, "get_linestyle"):
            assert (handle.get_color(), handle.get_linestyle()) == (line.get_color(), line.get_linestyle())
    return {text.get_text(): lines.get(text.get_text()) for text in shown.get_texts()}


def band(collection) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x, the lower and the upper end of a band as fill_between draws it."""
    vertices = collection.get_paths()[0].vertices
    x = np.unique(vertices[:, 0])
    ends = [vertices[vertices[:, 0] == place, 1] for place in x]
    return x, np.array([end.min() for end in ends]), np.array([end.max() for end in ends])
