"""How near to the identity the residual blocks of a network are, measured on images.

    rows = list(near_identity.measure(network, images, labels))

A block maps x to s(x) + b(x). The stream s(x) is x itself, or x pooled and padded where the shape changes; the branch
b(x) is C₂ReLU(C₁x) in Hardt & Ma. Their Theorem 2.1 gives linear networks of ℓ layers branches of norm O(1/ℓ). Here
‖b(x)‖/‖s(x)‖ is measured on images, beside ‖C₁‖·‖C₂‖, which bounds ‖b(x)‖/‖x‖ for all x; the share of the hidden values
that ReLU leaves above 0; and the error of the network without the block.
"""

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import threadpoolctl
from keras import layers, ops

from identity_matters.convolution_norm import conv_norm
from identity_matters.convolutions import forward_flops
from identity_matters.errors import UserError, note
from identity_matters.fields import require
from identity_matters.optimization import in_top_k
from identity_matters.runs.tables import read_rows, write_metrics

BATCH_SIZE = 100
Batches = list[np.ndarray]
# Layers without weights that bring no two inputs further apart. Pooling can, as its windows may overlap.
_AT_MOST_1 = (layers.ReLU, layers.Activation, layers.ZeroPadding2D, layers.Dropout)
_ACTIVATIONS = keras.activations.linear, keras.activations.relu, keras.activations.tanh, keras.activations.sigmoid


class Block(NamedTuple):
    """A residual block of a network, from the output of the block before; the first begins with the stem.

    Attributes:
      name: str, such as stage2_block1.
      path: The layers and operations of the branch, in their order.
      branch: keras.Model from the input [n, h, w, c] to a list: b(x) [n, h', w', c'], then what each ReLU in it gives.
      stream: keras.Model from the input to s(x) [n, h', w', c'], or None if that is x.
      whole: keras.Model from the input to s(x) + b(x).
      rest: keras.Model from s(x) + b(x) to logits, through all later blocks.
    """

    name: str
    path: tuple[keras.Layer, ...]
    branch: keras.Model
    stream: keras.Model | None
    whole: keras.Model
    rest: keras.Model

    @property
    def keeps_shape(self) -> bool:
        """Returns whether the block's output has the shape of its input."""
        return self.branch.input_shape == self.branch.output_shape[0]

    def __call__(self, x: np.ndarray) -> list[np.ndarray]:
        """Returns s(x), b(x) and the outputs of each ReLU inside the branch, in inference mode."""
        # Keras gives one output as it is, and not in a list.
        branch = [ops.convert_to_numpy(part) for part in keras.tree.flatten(self.branch(x, training=False))]
        return [self.without(x), *branch]

    def without(self, x: np.ndarray) -> np.ndarray:
        """Returns s(x), what is left of the block without its branch."""
        return x if self.stream is None else ops.convert_to_numpy(self.stream(x, training=False))


def split(network: keras.Model) -> list[Block]:
    """Returns the residual blocks of a network, which share its weights.

    The network's logits are those of the last block's `rest` after all blocks.

    Raises:
      UserError: it is not a chain of blocks that end in an Add layer of stream and branch, of which the branch has more
        layers with weights, whichever comes first.
    """
    start = network.inputs[0]
    blocks = []
    for add in network.layers:
        if not isinstance(add, layers.Add):
            continue
        stream, branch, inside = _stream_and_branch(add, start)
        _operations(network.outputs[0], add.output)  # what comes after it
        path = [layer for layer in network.operations if layer in inside]
        hidden = [layer.output for layer in path if _is_relu(layer)]
        own_stream = None if stream is start else keras.Model(start, stream)
        models = keras.Model(start, add.output), keras.Model(add.output, network.outputs[0])
        name = add.name.removesuffix("_add")
        blocks.append(Block(name, tuple(path), keras.Model(start, [branch, *hidden]), own_stream, *models))
        start = add.output
    require(len(blocks) > 0, f"the network {network.name!r} has no residual blocks")
    return blocks


def _stream_and_branch(add: keras.Layer, start: keras.KerasTensor) -> tuple[keras.KerasTensor, keras.KerasTensor, set]:
    """Returns what an Add layer adds, and the operations that lead only to the branch."""
    if len(add.input) != 2:
        raise UserError(
            f"the layer {add.name} adds {len(add.input)} tensors; a residual block adds two, stream and branch"
        )
    first, second = (_operations(tensor, start) for tensor in add.input)
    sides = zip(add.input, (first - second, second - first))
    num_weighted = lambda side: sum(bool(getattr(layer, "weights", ())) for layer in side[1])  # noqa: E731
    stream, branch = sorted(sides, key=num_weighted)
    if num_weighted(stream) == num_weighted(branch):
        raise UserError(
            f"the layer {add.name} adds two tensors of as many layers with weights: which is the stream, and which the "
            "branch?"
        )
    return stream[0], *branch


def _is_relu(layer: Any) -> bool:
    return isinstance(layer, layers.ReLU) or getattr(layer, "activation", None) is keras.activations.relu


def _operations(tensor: keras.KerasTensor, start: keras.KerasTensor) -> set:
    """Returns the layers and operations that lead from start to a tensor of a functional model.

    Raises UserError if the tensor also depends on what comes before start.
    """
    operations = set()
    to_do = [tensor]
    while to_do:
        output = to_do.pop()
        operation, node, _ = output._keras_history
        if output is not start and operation not in operations:
            if isinstance(operation, layers.InputLayer):
                raise UserError(
                    f"the network is no chain of residual blocks: {operation.name} is also read beyond the next block"
                )
            operations.add(operation)
            to_do += operation._inbound_nodes[node].input_tensors
    return operations


def path_norms(block: Block) -> list[float]:
    """Returns the spectral norm of each linear map of a branch; their product bounds ‖b(x)‖/‖x‖.

    A convolution and the batch normalisation that follows it, in inference mode, are one map.
    """
    norms = []
    path = list(block.path)
    output = None
    while path:
        layer = path.pop(0)
        unknown = UserError(f"the branch of {block.name} has a layer {layer.name} whose norm is not known")
        is_chain = len(keras.tree.flatten(layer.input)) == 1 and (output is None or layer.input is output)
        activation = getattr(layer, "activation", keras.activations.linear)
        if not is_chain or activation not in _ACTIVATIONS:
            raise unknown
        output = layer.output
        if isinstance(layer, layers.BatchNormalization):
            norms.append(float(np.abs(_bn_scale(layer)).max()))
        elif isinstance(layer, layers.Conv2D):
            is_normalised = path and isinstance(path[0], layers.BatchNormalization) and path[0].input is output
            is_one_map = is_normalised and activation is keras.activations.linear
            norms.append(_norm(layer, _bn_scale(path[0]) if is_one_map else 1.0))
            if is_one_map:
                output = path.pop(0).output
        elif not isinstance(layer, _AT_MOST_1):
            raise unknown
    return norms


def _norm(layer: layers.Conv2D, scale: np.ndarray | float) -> float:
    """Returns the norm of a convolution whose output channels are multiplied by a scale."""
    shape = layer.input.shape[1:3]
    if None in shape:
        raise UserError(
            f"the layer {layer.name} takes images of any size, on which its norm depends; begin the network with "
            "keras.Input((height, width, channels))"
        )
    options = {"dilation": layer.dilation_rate, "padding": layer.padding, "groups": layer.groups}
    with threadpoolctl.threadpool_limits(1, "blas"):  # of many small products threads mostly wait for each other
        return conv_norm(ops.convert_to_numpy(layer.kernel), shape, layer.strides, scale, **options)


def _bn_scale(layer: keras.Layer) -> np.ndarray:
    gamma = ops.convert_to_numpy(layer.gamma) if layer.scale else 1.0
    return gamma / np.sqrt(ops.convert_to_numpy(layer.moving_variance) + layer.epsilon)


class Measurement:
    """Measures the residual blocks of a network, `blocks`, one by one; in their order each output is computed once.

    Args:
      network: keras.Model.
      images: [n, h, w, c], standardised.
      labels: int [n].
      ablate: Whether to measure the errors; they take n blocks' outputs for each of n blocks.

    Raises:
      UserError: as `split`.
    """

    def __init__(self, network: keras.Model, images: np.ndarray, labels: np.ndarray, ablate: bool = True) -> None:
        self.blocks = split(network)
        self._images = images
        self._labels = labels
        self._ablate = ablate
        self._at = 0
        self._inputs = _batches(images)
        self._say = functools.cache(note)  # once for all blocks

    def row(self, number: int) -> dict[str, Any]:
        """Returns the row of the block of this number, from 0.

        Images whose stream is zero, as for blank ones, are left out of ratio and cosine; a note counts them.

        The columns: block; ratio, with its quartiles ratio_low and ratio_high, the median over images of ‖b(x)‖/‖s(x)‖;
        cosine, the median of that of the angle between b(x) and s(x); active, the share of hidden values above 0; dead,
        the share of hidden channels that are 0 on all images; norm_1, norm_2, … of the convolutions, and their product,
        lipschitz; error_without, the error without b(x); error_swapped, the error if the block and the next one change
        places (NaN if one changes the shape, or without ablate).

        Raises:
          UserError: as `path_norms`.
        """
        if number < self._at:
            self._at = 0
            self._inputs = _batches(self._images)
        for block in self.blocks[self._at : number]:
            self._inputs = _through(block, self._inputs, self._say)[0]
        block = self.blocks[number]
        inputs = self._inputs
        outputs, streams, row = _through(block, inputs, self._say)
        norms = path_norms(block)
        row |= {f"norm_{k}": norm for k, norm in enumerate(norms, 1)} | {"lipschitz": float(np.prod(norms))}
        row |= {"error_without": np.nan, "error_swapped": np.nan}
        if self._ablate:
            row["error_without"] = _error(streams, self._labels, [block.rest])
            for following in self.blocks[number + 1 :][:1]:  # none behind the last
                if block.keeps_shape and following.keeps_shape:
                    swapped = [following.whole, block.whole, following.rest]
                    row["error_swapped"] = _error(inputs, self._labels, swapped)
        self._at = number + 1
        self._inputs = outputs
        return {"block": block.name} | row


def measure(*arguments: Any, **options: Any) -> Iterator[dict[str, Any]]:
    """Yields the row of each residual block of a network; the arguments are those of `Measurement`."""
    measurement = Measurement(*arguments, **options)
    yield from map(measurement.row, range(len(measurement.blocks)))


def _batches(images: np.ndarray) -> Batches:
    return [images[i : i + BATCH_SIZE] for i in range(0, len(images), BATCH_SIZE)]


def _through(block: Block, batches: Batches, say: Callable[[str], None]) -> tuple[Batches, Batches, dict[str, float]]:
    """Returns the block's outputs, its streams, and the columns of a row that need no weights.

    A note counts the images whose stream is 0.
    """
    outputs = []
    streams = []
    measured = []
    for batch in batches:
        stream, branch, *hidden = block(batch)
        outputs.append(stream + branch)
        streams.append(stream)
        measured.append(_sizes(stream, branch) | _hidden(hidden))
    return outputs, streams, _summary(measured, say)


class BlockCallback(keras.callbacks.Callback):
    """Records during training the rows of `Measurement` for each block, without norms and errors.

    >>> callback = BlockCallback(images[:500], "blocks.csv")  # doctest: +SKIP
    >>> train(config, "runs/first", callbacks=callback)  # doctest: +SKIP

    Args:
      images: [n, h, w, c], standardised.
      path: A CSV file, written anew after each epoch (of `identity_matters.training.train`: after each evaluation), a
        row a block: epoch, counted from 0 before the first; block, ratio and the other columns. A run that continues
        from a later epoch keeps the rows before it.
    """

    def __init__(self, images: np.ndarray, path: str | os.PathLike) -> None:
        super().__init__()
        self._images = images
        self._path = os.fspath(path)
        self.rows: list[dict[str, Any]] = []

    def on_train_begin(self, logs: dict | None = None) -> None:
        """Splits the network into its blocks; raises UserError as `split`."""
        self._blocks = split(self.model)
        self._say = functools.cache(note)
        self.rows = []  # a callback may be used again, for a continued run or for another network

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        """Measures the network before the first update, or takes over the rows of an interrupted run."""
        if not self.rows and epoch:
            self.rows = [row for row in read_rows(self._path) if row["epoch"] <= epoch]
        if not self.rows:
            self._measure(epoch)

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Measures the network and writes the table."""
        self._measure(epoch + 1)

    def _measure(self, epoch: int) -> None:
        batches = _batches(self._images)
        for block in self._blocks:
            batches, _, row = _through(block, batches, self._say)
            self.rows.append({"epoch": epoch, "block": block.name} | row)
        write_metrics(self._path, self.rows)


def errors_without(
    network: keras.Model,
    images: np.ndarray,
    labels: np.ndarray,
    names: Sequence[str],
    progress: Callable[[float], Any] = lambda share: None,
) -> list[float]:
    """Returns the top-1 errors of a network without the first 0, 1, 2, …, all of the blocks of these names.

    Args:
      images, labels: As those of `Measurement`.
      progress: Is called with the share of the work that was done since the last call.
    """
    blocks = split(network)
    positions = {block.name: i for i, block in enumerate(blocks)}
    num_wrong = np.zeros(1 + len(names))
    batches = _batches(images)
    for batch, truth in zip(batches, _batches(labels)):
        streams = [batch]  # what each block takes, kept: what comes before a block does not change
        for count in range(len(num_wrong)):
            first = positions[names[count - 1]] if count else 0
            for i, block in enumerate(blocks[first:], first):
                is_left_out = block.name in names[:count]
                output = block.without(streams[i]) if is_left_out else block.whole(streams[i], training=False)
                streams[i + 1 : i + 2] = [output]
            num_wrong[count] += _num_wrong(truth, blocks[-1].rest(streams.pop(), training=False))
        progress(1 / len(batches))
    return list(num_wrong / len(labels))


def removed_rows(
    network: keras.Model, images: np.ndarray, labels: np.ndarray, names: Sequence[str], progress: Callable[[float], Any]
) -> list[dict[str, Any]]:
    """Returns a row for each number of blocks that are left out, 0, 1, 2, …, all of these names in their order.

    The columns: num_removed; last, the block that is left out after those of the row before; error; operations, the
    share of the branches' multiplications and additions that remain.

    Args:
      network, images, labels, names, progress: As those of `errors_without`.
    """
    costs = {block.name: _flops(block) for block in split(network)}
    left = 1 - np.cumsum([0, *(costs[name] for name in names)]) / sum(costs.values())
    errors = errors_without(network, images, labels, names, progress)
    columns = {"num_removed": range(len(left)), "last": ["", *names], "error": errors, "operations": left}
    return [dict(zip(columns, values)) for values in zip(*columns.values())]


def _flops(block: Block) -> float:
    """Returns the multiplications and additions per image of the convolutions of a branch."""
    return sum(forward_flops(layer) for layer in block.path if isinstance(layer, layers.Conv2D))


def _error(batches: Batches, labels: np.ndarray, models: Sequence[keras.Model]) -> float:
    """Returns the top-1 error of the logits that the last of a chain of models gives."""
    num_wrong = 0
    for x, truth in zip(batches, _batches(labels)):
        for model in models:
            x = model(x, training=False)
        num_wrong += _num_wrong(truth, x)
    return num_wrong / len(labels)


def _num_wrong(labels: np.ndarray, logits: np.ndarray) -> int:
    return len(labels) - int(ops.sum(in_top_k(labels, logits, 1)))


def _sizes(stream: np.ndarray, branch: np.ndarray) -> dict[str, np.ndarray]:
    """Returns of each image of a batch whether s is 0, ‖b‖/‖s‖, and the cosine of the angle between b and s."""
    streams, branches = stream.reshape(len(stream), -1), branch.reshape(len(branch), -1)
    sizes = np.linalg.norm(streams, axis=1)
    lengths = np.linalg.norm(branches, axis=1)
    is_zero = sizes == 0
    sizes = np.where(is_zero, np.nan, sizes)
    products = np.where(lengths == 0, 1, lengths) * sizes  # the cosine is 0 where the branch is 0
    cosines = np.einsum("ij,ij->i", streams, branches) / products
    return {"is_zero": is_zero, "ratios": lengths / sizes, "cosines": cosines}


def _hidden(hidden: list[np.ndarray]) -> dict[str, np.ndarray]:
    """Returns of each hidden channel of a branch the share of a batch's values above 0."""
    return {"active": np.concatenate([np.mean(values > 0, (0, 1, 2)) for values in hidden] or [[np.nan]])}


def _summary(batches: list[dict[str, np.ndarray]], say: Callable[[str], None]) -> dict[str, float]:
    """Returns the columns of a row that `_sizes` and `_hidden` of all batches give; says how many images are blank."""
    names = "is_zero", "ratios", "cosines"
    is_zero, *shares = (np.concatenate([batch[name] for batch in batches]) for name in names)
    num_zero = np.count_nonzero(is_zero)
    if num_zero:
        say(f"{num_zero} of {len(is_zero)} images, as blank ones, are 0 in the stream: ratio and cosine leave them out")
    ratios, cosines = (share if is_zero.all() else share[~is_zero] for share in shares)  # of none: NaN
    low, ratio, high = np.quantile(ratios, [0.25, 0.5, 0.75])
    cosine = np.median(cosines)
    active = np.average([batch["active"] for batch in batches], 0, [len(batch["ratios"]) for batch in batches])
    dead = np.mean(active == 0) if np.isfinite(active).all() else np.nan
    named = {"ratio": ratio, "ratio_low": low, "ratio_high": high, "cosine": cosine}
    named |= {"active": np.mean(active), "dead": dead}
    return {name: float(value) for name, value in named.items()}
