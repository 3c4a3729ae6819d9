"""Hessian products on PyTorch, by torch.func, on one device; nothing is compiled.

Attention is computed as the matrix products that define it: the fused kernels have no second derivative.
"""

import contextlib
from collections.abc import Callable, Iterator

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from shortcut_study.curvature import backend
from shortcut_study.curvature.objective import unfit_examples


class Backend(backend.Backend):
    """Products of one model; the arguments are those of the base class."""

    grad = staticmethod(torch.func.grad)
    jvp = staticmethod(torch.func.jvp)
    vjp = staticmethod(torch.func.vjp)

    def translate_error(self, error: Exception) -> Exception | None:
        """The rule that turns what operations raise for examples that they do not take into a ValueError."""
        return unfit_examples(error) if isinstance(error, IndexError) else None  # labels out of range, on a CPU

    def compiled(self, function: Callable, has_vector: bool = False) -> Callable:
        """Returns the function: PyTorch computes as it goes."""
        return function

    @contextlib.contextmanager
    def context(self) -> Iterator[None]:
        """Context manager: no fused attention and, unless asked for, no TensorFloat-32."""
        before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
        if self.precision == "highest":
            torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
        try:
            with sdpa_kernel(SDPBackend.MATH), torch.no_grad():  # which torch.func's gradients do not heed
                yield
        finally:
            torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before
