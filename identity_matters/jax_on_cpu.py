"""Keeps JAX from computing mixed precision wrong on CPUs.

XLA hands parts of a program to a library, YNNPACK, as one "fusion" each. In those of jaxlib 0.11 and 0.12 the sum over

    relu(relu(x k) k)    in bfloat16, x and k [64, 64]

is NaN, and so are the logits of a network with two residual blocks, on CPUs with and without amx_bf16; uncompiled, in
float32 and without these fusions all is right. jaxlib 0.10.2 has another such fault (jax issue 39103). So the fusions
are turned off before JAX starts; where it is too late for that, the program above decides.
"""

import functools
import importlib.metadata
import os
import re

import keras
import numpy as np

from identity_matters.errors import UserError

_OPTION = "xla_cpu_experimental_ynn_fusion_type"
# XLA ends the process that gives it an option it does not know: no version is guessed at.
_FIRST, _END = (0, 10, 2), (0, 13)


def turn_fusions_off() -> None:
    """Disables YNNPACK fusions in XLA, by XLA_FLAGS, in a process that has not used JAX yet.

    Does nothing under another backend, under a jaxlib that is not known to have them, and where XLA_FLAGS names them.
    """
    if keras.backend.backend() != "jax":
        return
    version = tuple(map(int, re.findall(r"\d+", importlib.metadata.version("jaxlib"))[:3]))
    flags = os.environ.get("XLA_FLAGS", "")
    if _FIRST <= version < _END and _OPTION not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} --{_OPTION}=".strip()


@functools.cache
def require_sound_bfloat16() -> None:
    """Raises UserError where JAX's compiler for this CPU gets two ReLUs between bfloat16 products wrong."""
    if keras.backend.backend() != "jax" or not _computes_on_cpu():
        return
    rng = np.random.default_rng(0)
    x, kernel = rng.standard_normal((2, 64, 64), np.float32) / 8
    computed, expected = _two_layers(x, kernel), np.maximum(np.maximum(x @ kernel, 0) @ kernel, 0).sum(1)
    if not np.abs(computed - expected).max() <= 0.1 * expected.max():  # NaN is not; rounding is below 0.01
        raise UserError(
            f"mixed_precision: jaxlib {importlib.metadata.version('jaxlib')} computes bfloat16 wrong on this CPU; put "
            f"XLA_FLAGS=--{_OPTION}= into the environment, or import identity_matters before anything uses JAX, or "
            "leave mixed_precision out"
        )


def _computes_on_cpu() -> bool:
    import jax

    return jax.default_backend() == "cpu"


def _two_layers(x: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    """Returns the sums over relu(relu(x k) k), multiplied in bfloat16 and compiled."""
    import jax

    @jax.jit
    def compiled(x: jax.Array, kernel: jax.Array) -> jax.Array:
        x, kernel = x.astype("bfloat16"), kernel.astype("bfloat16")
        return jax.nn.relu(jax.nn.relu(x @ kernel) @ kernel).astype("float32").sum(1)

    return np.asarray(compiled(x, kernel))
