"""Networks in files, which may come from others, are looked at before Keras or TensorFlow load or run them.

A .keras file names the classes that it is made of. A SavedModel is a program: it can hold operations that read and
write files, reach the network or call Python.
"""

import json
import os
import re
import zipfile
from collections.abc import Iterable, Iterator
from typing import Any

import keras
import numpy as np

from identity_matters.errors import UserError, first_line
from identity_matters.keras_settings import require_usual_keras
from identity_matters.runs.files import MAX_TEXT_BYTES, open_file, require_regular

# Keras's safe mode refuses Lambda and TFSMLayer where a file has them as layers, not wherever a callable may stand.
_KERAS_CLASSES = {
    "Add", "AveragePooling2D", "BatchNormalization", "Concatenate", "Conv2D", "Dense", "DTypePolicy", "Dropout",
    "Functional", "GlobalAveragePooling2D", "InputLayer", "L2", "Ones", "Pad", "RandomNormal", "ReLU",
    "VarianceScaling", "ZeroPadding2D", "Zeros", "__keras_tensor__",
}  # fmt: skip
# Of the operations that keep a state or act on something, those that act on the memory of the model alone.
_HARMLESS = {
    "Assert", "AssignAddVariableOp", "AssignVariableOp", "Case", "DisableCopyOnRead", "If", "NoOp", "Placeholder",
    "RandomStandardNormal", "RandomUniform", "ReadVariableOp", "StatefulPartitionedCall", "VarHandleOp",
    "VarIsInitializedOp", "While",
}  # fmt: skip
# TensorFlow does not mark as such all that read files, reach the network or run code from elsewhere.
_HARMFUL = re.compile(
    "File|Dataset|Iterator|Reader|Debug|PyFunc|ImmutableConst|VocabRemapping|TableImport|Send|Recv|Remote|Rpc|TPU|Xla"
    "|Proto|^Abort$"
)


def load_network(path: str) -> keras.Model:
    """Returns the network of a .keras file, without what compiled it.

    Raises:
      UserError: it is no such file, is damaged, or holds a class that no network of ours has, or weights that are not
        finite.
    """
    require_usual_keras()
    try:
        with open_file(path) as file, zipfile.ZipFile(file) as archive:
            if archive.getinfo("config.json").file_size > MAX_TEXT_BYTES:
                raise UserError("its config.json is too large")
            foreign = set(_class_names(json.loads(archive.read("config.json")))) - _KERAS_CLASSES
        if foreign:
            raise UserError(f"it holds {min(foreign)!r}, which no network of this project has")
        network = keras.models.load_model(path, compile=False, safe_mode=True)
        if [len(tensor.shape) for tensor in (*network.inputs, *network.outputs)] != [4, 2]:
            raise UserError("it does not take images to a number for each class")
    except Exception as error:  # Keras raises anything at all on a damaged file
        raise UserError(f"cannot load {path}: {first_line(error)}") from error
    if not all(np.isfinite(weights).all() for weights in network.get_weights()):
        raise UserError(f"{path} holds an infinite or NaN weight")
    return network


def _class_names(value: Any) -> Iterator[str]:
    """Yields the names of all classes in a serialised Keras object."""
    if isinstance(value, dict) and "class_name" in value:
        yield str(value["class_name"])
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _class_names(part)


def check_saved_model(path: str) -> None:
    """Looks at the files and the graphs of a SavedModel.

    Raises:
      UserError: a file of it is no regular one, it cannot be read, or an operation that could run acts on more than the
        memory of the model.
    """
    from tensorflow.python.saved_model import loader_impl

    if not any(os.path.lexists(os.path.join(path, f"saved_model.{kind}")) for kind in ("pb", "pbtxt")):
        raise UserError(f"{path} is not a SavedModel of this project: there is no saved_model.pb")
    for folder, _, names in os.walk(path):
        for name in names:
            require_regular(os.path.join(folder, name))
    try:
        model = loader_impl.parse_saved_model(path)
    except Exception as error:  # TensorFlow raises anything at all on a damaged file
        raise UserError(f"{path} is not a SavedModel of this project: {first_line(error)}") from error
    harmful = sorted({op for graph in model.meta_graphs for op in _runnable_ops(graph) if _is_harmful(op)})
    if harmful:
        raise UserError(
            f"{path} holds operations that can reach files, the network or code ({', '.join(harmful)[:200]}); it is "
            f"evaluated with --trust_saved_model (trust_saved_model=True) alone"
        )


def _is_harmful(op: str) -> bool:
    from tensorflow.python.framework import op_def_registry

    definition = op_def_registry.get(op)
    return definition is None or op not in _HARMLESS and bool(definition.is_stateful or _HARMFUL.search(op))


def _runnable_ops(graph: Any) -> Iterator[str]:
    """Yields the operations of a MetaGraphDef, but for those of functions that save and restore its weights.

    Only functions that what is loaded can call, or that the optimiser can put in the place of such, are run.
    """
    functions = {function.signature.name: function for function in graph.graph_def.library.function}
    if not graph.HasField("object_graph_def"):  # of TensorFlow 1: the graph itself is run
        yield from (node.op for node in graph.graph_def.node)
        waiting = set(functions)
    else:
        nodes = graph.object_graph_def.nodes
        waiting = set(graph.object_graph_def.concrete_functions)
        waiting |= {name for node in nodes for name in node.function.concrete_functions}
        waiting |= {node.bare_concrete_function.concrete_function_name for node in nodes}
        waiting |= {name for name, function in functions.items() if "api_implements" in function.attr}
    seen = set()
    while waiting:
        name = waiting.pop()
        seen.add(name)
        for node in functions[name].node_def if name in functions else ():
            yield node.op
            waiting |= {node.op, *_named_functions(node.attr.values())} & functions.keys() - seen


def _named_functions(attributes: Iterable) -> Iterator[str]:
    """Yields the names of the functions that the attributes of an operation name."""
    for attribute in attributes:
        for function in (attribute.func, *attribute.list.func):
            yield function.name
            yield from _named_functions(function.attr.values())
