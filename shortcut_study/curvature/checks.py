"""Models, data and losses without a Hessian product are rejected in one line, before the product is compiled."""

import numbers
import re
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from identity_matters.errors import truncated_repr
from shortcut_study.curvature.copies import random_batch

Loss = keras.losses.Loss | Callable | str | None  # as a user gives it: see products.summed_loss
SAME = 1e-3  # of a variable's largest derivative: far below what a path that passes no gradient takes away
ROUNDINGS = 1000  # of the largest derivative of all: more than sums of such numbers make where they cancel


def check_model(model: keras.Model) -> None:
    """Checks what a model needs for products with its Hessian.

    Raises:
      ValueError: another backend, no built model, nothing to train, weights of several types or of half precision,
        several inputs or outputs, or a mask of the outputs.
    """
    if not isinstance(model, keras.Model) or not model.built:
        raise ValueError(f"need a built keras.Model, with an Input or called once, got {truncated_repr(model)}")
    if keras.backend.backend() != "tensorflow":
        raise ValueError(f"Hessian products need KERAS_BACKEND=tensorflow, got {keras.backend.backend()}")
    if not model.trainable_variables:
        raise ValueError("the model has no trainable weights; set trainable = True where layers are frozen")
    types = sorted({variable.dtype for variable in model.trainable_variables})
    if len(types) > 1:
        raise ValueError(
            f'the weights must be of one type, got {", ".join(types)}; take with_dtype(model, "{types[-1]}")'
        )
    if types[0] in ("float16", "bfloat16"):
        raise ValueError(f'the weights must be float32 or float64, got {types[0]}; take with_dtype(model, "float32")')
    if len(getattr(model, "inputs", None) or [0]) != 1 or len(getattr(model, "outputs", None) or [0]) != 1:
        raise ValueError(f"need a model of one input and one output, got {len(model.inputs)}, {len(model.outputs)}")
    if getattr(model, "outputs", None) and getattr(model.outputs[0], "_keras_mask", None) is not None:
        raise ValueError(
            "the model masks some of its outputs, which Keras leaves out of the loss; here all are included"
        )


def without_averages(model: keras.Model) -> list[str]:
    """Returns the names of the layers of batch normalisation whose averages are those they were made with, 0 and 1."""
    return [
        layer.name
        for layer in model._flatten_layers()
        if isinstance(layer, keras.layers.BatchNormalization)
        and not np.any(layer.moving_mean)
        and np.all(layer.moving_variance == 1)
    ]


def check_examples(
    images: np.ndarray, labels: np.ndarray, loss: Loss = None, batch_size: int = 1, model: keras.Model | None = None
) -> None:
    """Checks what a Hessian is asked of: a loss over examples, in batches, of a model if one is given.

    Raises:
      ValueError: no image, not one label per image, no whole batch_size, NaN; images that the model does not take;
        without a loss, labels that are not whole numbers [m] or [m, 1]; classes without an output of the model; whole
        numbers beyond int32.
    """
    if not isinstance(batch_size, numbers.Integral) or batch_size < 1:
        raise ValueError(f"batch_size must be a whole number of at least 1, got {batch_size!r}")
    image_shape, labels = tuple(np.shape(images)), np.asarray(labels)
    if not image_shape[:1] > (0,) or labels.shape[:1] != image_shape[:1]:
        raise ValueError(f"need one label per image, and at least one image, got shapes {image_shape}, {labels.shape}")
    if not loss and (labels.shape[1:] not in ((), (1,)) or labels.dtype.kind not in "iub"):
        raise ValueError(
            "the default loss takes one label per image, a whole number; compile the model, or pass loss=… (of one-hot "
            "rows and logits keras.losses.CategoricalCrossentropy(from_logits=True)), "
            f"got {labels.shape} of {labels.dtype}"
        )
    for name, array in (("the images", images), ("the labels", labels)):
        if not np.isfinite(array).all():
            raise ValueError(f"{name} hold NaN or infinite numbers; replace them, or leave these examples out")
    if labels.dtype.kind in "iu" and np.abs(labels.astype(np.float64)).max() > np.iinfo(np.int32).max:
        raise ValueError(f"labels that are whole numbers must be within int32, got {labels.min()}–{labels.max()}")
    if not getattr(model, "inputs", None):
        return  # no model, or one that `twice_differentiable` refuses
    taken, given = model.inputs[0].shape[1:], model.outputs[0].shape[1:]
    if not tf.TensorShape(taken).is_compatible_with(image_shape[1:]):
        raise ValueError(f"images must be [m, {', '.join(map(str, taken))}] as the model takes them, got {image_shape}")
    if not loss and (len(given) != 1 or given[0] == 1):
        raise ValueError(
            f"the default loss takes [m, classes], at least two classes, the model gives {(None, *given)}: pass loss"
        )
    counted = labels[labels != getattr(loss, "ignore_class", None)]
    if _takes_classes(loss) and given[-1] and counted.size and not 0 <= counted.min() <= counted.max() < given[-1]:
        found = f"got {counted.min()}–{counted.max()}"
        raise ValueError(f"labels must lie in 0–{given[-1] - 1}, the model's outputs, {found}")


def _takes_classes(loss: Loss) -> bool:
    """Returns whether a label of a loss is the number of an output."""
    name = loss if isinstance(loss, str) else getattr(loss, "name", getattr(loss, "__name__", ""))
    return not loss or "sparse_categorical" in name


def check_gradient(network: keras.Model, training: bool) -> None:
    """Checks on a few random numbers that a network has the same gradient in its variables and in tensors.

    A product takes the weights as tensors. A gradient function of a layer's own, as tf.recompute_grad makes, knows the
    variables that the layer uses, and silently gives none to tensors in their place.

    Raises:
      ValueError: the gradients in a variable differ by more than rounding.
    """
    images = random_batch(network.inputs[0], np.random.default_rng(0))
    variables = [variable.value for variable in network.trainable_variables]
    tensors, others = (list(map(tf.identity, of)) for of in (variables, network.non_trainable_variables))
    try:
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(tensors)
            with keras.StatelessScope():  # the averages of batch normalisation stay as they are
                outputs = network(images, training=training)
            outputs_by_tensors, _ = network.stateless_call(tensors, others, images, training=training)
            pair = [keras.tree.flatten(found)[0] for found in (outputs, outputs_by_tensors)]
            factors = tf.random.stateless_normal(tf.shape(pair[0]), (0, 0), dtype=pair[0].dtype)
            sums = [tf.reduce_sum(factors * found) for found in pair]
        pairs = zip(tape.gradient(sums[0], variables), tape.gradient(sums[1], tensors))
    except (ValueError, tf.errors.OpError):
        return  # a model that takes images of another size, or other numbers, than these
    # An output that is not connected with a tensor has no gradient at all, not one of zeros as behind a layer of zeros.
    arrays = [[None if g is None else tf.convert_to_tensor(g).numpy() for g in gradients] for gradients in pairs]
    largest = max((np.abs(expected).max() for expected, _ in arrays if expected is not None), default=0.0)
    rounding = ROUNDINGS * np.finfo(variables[0].dtype.as_numpy_dtype).eps * largest
    for variable, (expected, found) in zip(network.trainable_variables, arrays):
        if expected is None:
            continue
        if found is None or np.abs(expected - found).max() > SAME * np.abs(expected).max() + rounding:
            raise ValueError(
                f"a layer passes no gradient to the weights {variable.path}, or not all of it, where they are given as "
                "a tensor, as with tf.recompute_grad: use keras.RematScope, or leave the gradient to TensorFlow"
            )


def check_loss(total_loss: Callable, label_spec: tf.TensorSpec, outputs: keras.KerasTensor) -> None:
    """Raises ValueError where a loss as from `summed_loss` does not give one value an example."""
    for count in (2, 3):  # a loss [classes] would be one an example for as many examples as classes
        specs = [tf.TensorSpec((count, *x.shape[1:]), x.dtype) for x in (label_spec, outputs)]
        try:
            tf.function(total_loss, autograph=False).get_concrete_function(*specs)
        except ValueError as error:
            if "{{node" not in str(error):
                raise
            shapes = " and outputs ".join(f"[{', '.join(map(str, ('m', *spec.shape[1:])))}]" for spec in specs)
            raise ValueError(f"the loss does not take labels {shapes} together") from error


def check_losses(model: keras.Model, num_losses: int) -> None:
    """Checks that a model adds no losses but weight penalties to the one that it is trained with.

    Raises:
      ValueError: a layer has an activity_regularizer, or calls add_loss.
    """
    penalties = sum(variable.regularizer is not None for variable in model.trainable_variables)
    if num_losses > penalties:
        penalised = [layer.name for layer in model._flatten_layers() if getattr(layer, "activity_regularizer", None)]
        subject = f"the activity_regularizer of layer {penalised[0]}" if penalised else "add_loss in a layer"
        raise ValueError(f"{subject} adds to the loss a term that is not a mean over examples and has no Hessian here")


def check_twice_differentiable(
    function: tf.types.experimental.ConcreteFunction, weights: list[tf.Tensor], takes_logits: bool = True
) -> None:
    """Checks a traced gradient, in which a term of the Hessian could be missing silently.

    Args:
      function: Weights, other variables, images and labels -> the model's outputs, and the gradient of the loss, or the
        loss alone where a Hessian of the outputs does not count.
      weights: Values of its first arguments, flat; the other two are images and labels.
      takes_logits: bool. Whether the loss is that of logits.

    Raises:
      ValueError: the graph stops a gradient that counts, draws random numbers or loops, or the logits come out of a
        softmax.
    """
    _refuse(function.graph, _REFUSED)
    if name := _stop_that_counts(function, weights):
        raise ValueError(f"the model is not twice differentiable for TensorFlow: it stops the gradient at {name}")
    operation = function.outputs[0].op
    while operation.type in ("Identity", "Cast", "Reshape"):
        operation = operation.inputs[0].op
    if takes_logits and operation.type == "Softmax":
        raise ValueError(
            f"the model must give logits, but {operation.name} makes probabilities of them; take the layer "
            "before it, compile the model, or pass loss=…"
        )


def _stop_that_counts(function: tf.types.experimental.ConcreteFunction, weights: list[tf.Tensor]) -> str:
    """Returns the name of an operation that stops a gradient other than 0; empty where there is none.

    A logsumexp subtracts the largest number, whose gradient it stops, and adds it again: what it gives does not depend
    on that number. So each stopped tensor is given other values; where outputs and gradient stay as they are, there is
    nothing to differentiate. Stops inside functions that the graph calls cannot be tried so.
    """
    graph, random = function.graph, np.random.default_rng(0)
    inside = [node for library in graph.as_graph_def().library.function for node in library.node_def]
    for node in inside:
        if node.op == "StopGradient":
            return node.name
    stops = [operation for operation in graph.get_operations() if operation.type == "StopGradient"]
    if not stops:
        return ""
    examples = graph.inputs[len(weights) :][:2]
    try:
        values = [*weights, *(_random_values(x, random) for x in examples), *function.captured_inputs]
        fed = {x.name: np.asarray(value) for x, value in zip(graph.inputs, values, strict=True)}
        with tf.compat.v1.Session(graph=graph) as session:
            expected = session.run(function.outputs, fed)
            for stop in stops:
                value = session.run(stop.outputs[0], fed)
                fed_too = {stop.outputs[0].name: value + random.standard_normal(value.shape).astype(value.dtype)}
                for before, after in zip(expected, session.run(function.outputs, fed | fed_too)):
                    if np.abs(after - before).max(initial=0) > SAME * np.abs(before).max(initial=0):
                        return stop.name
    except (AttributeError, NotImplementedError, TypeError, ValueError, tf.errors.OpError):  # numbers it does not take
        return stops[0].name
    return ""


def _random_values(x: tf.Tensor, random: np.random.Generator) -> np.ndarray:
    """Returns random numbers, or classes 0 and 1, as a placeholder takes them, of two examples."""
    shape = [2 if size is None else size for size in x.shape]
    values = random.standard_normal(shape) if x.dtype.is_floating else random.integers(0, 2, shape)
    return values.astype(x.dtype.as_numpy_dtype)


def check_product(product: tf.types.experimental.PolymorphicFunction) -> None:
    """Traces a product with second derivatives, and checks that TensorFlow has all of them.

    Raises:
      ValueError: it has none of an operation, or takes them as 0.
    """
    _refuse(traced_function(product).graph, _CONSTANT)


def traced_function(
    function: tf.types.experimental.PolymorphicFunction, *specs: Any
) -> tf.types.experimental.ConcreteFunction:
    """Returns a function that takes derivatives, traced.

    Raises:
      ValueError: TensorFlow has none of an operation.
    """
    try:
        return function.get_concrete_function(*specs)
    except Exception as error:  # a LookupError, as AutoGraph's own error, whose class is not public
        lacking = re.search(r"gradient registry has no entry for: (\w+)", str(error))
        if lacking is None:
            raise
        reason = f"it knows no derivative of {lacking[1]}"
        raise ValueError(f"the model is not twice differentiable for TensorFlow: {reason}") from error


def _refuse(graph: tf.Graph, refused: dict[tuple[str, ...], str]) -> None:
    """Raises ValueError for an operation of the graph, or of the functions that it calls, with such a type."""
    functions = [node for function in graph.as_graph_def().library.function for node in function.node_def]
    found = [(operation.type, operation.name) for operation in graph.get_operations()]
    for kind, name in [*found, *((node.op, node.name) for node in functions)]:
        for words, reason in refused.items():
            if any(word in kind for word in words):
                raise ValueError(f"the model is not twice differentiable for TensorFlow: {reason} {name}")


_REFUSED = {
    ("Random", "Multinomial"): "in training it is another function at every call, by the random numbers of",
    ("While", "TensorList", "CudnnRNN"): "second derivatives of loops, such as recurrent layers have, are not known at",
}
# Gradients that TensorFlow holds to be constant.
_CONSTANT = {("ResizeBilinearGrad",): "it takes as constant the gradient of the resized image at"}
