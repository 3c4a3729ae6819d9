"""The PyTorch side of the benchmarks: each function makes the callables of a harness.Peer, and nothing imports
TensorFlow.

Kernels come as our layers hold them, NumPy [k, k, in, out] by layer name, so that both sides compute one function.
"""

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from benchmarks.harness import rate, seconds
from identity_matters.config import ModelConfig, TrainConfig

EAGER, BFLOAT16 = "PyTorch's training step, images/s", "PyTorch's step in bfloat16, images/s"
COMPILED = "PyTorch's compiled step in bfloat16, images/s"
TUNED = "PyTorch's step compiled with max-autotune in bfloat16, images/s"
GRADIENT, PRODUCT, LANCZOS = "gradient, s", "Hessian product, s", "Lanczos, s"
EIGENVALUE, TRACE = "largest eigenvalue", "trace"


def training(run: TrainConfig, kernels: dict[str, np.ndarray]) -> dict[str, Callable]:
    """Returns "logits" and, by name, steps of the same network, functions of their number that return images/s.

    The images of a batch are prepared in advance: look-up, augmentation, standardisation and metrics are not timed.
    Steps in bfloat16 are under autocast. If nothing can be compiled, a note is printed and that step is skipped.
    """
    import torch
    from torch.nn import functional as F

    device = torch_device()
    tensors = torch_kernels(kernels, device)
    trained = [kernel.requires_grad_() for name, kernel in tensors.items() if name != "projection"]
    decay = run.model.weight_decay
    optimizer = torch.optim.SGD(trained, run.learning_rate, run.momentum, weight_decay=decay, fused=True)
    random = torch.Generator().manual_seed(run.seed)
    images = torch.randn(run.batch_size, *run.model.image_shape, generator=random).to(device).permute(0, 3, 1, 2)
    labels = torch.randint(run.model.num_classes, (run.batch_size,), generator=random).to(device)

    def train(forward: Callable, in_bfloat16: bool, steps: int) -> float:
        for _ in range(steps):
            optimizer.zero_grad()
            with torch.autocast(device.type, torch.bfloat16, enabled=in_bfloat16):
                loss = F.cross_entropy(forward(tensors, images, run.model), labels)
            loss.backward()
            if run.clip_norm:
                torch.nn.utils.clip_grad_norm_(trained, run.clip_norm)
            optimizer.step()
        return loss.item()  # read, so that all have been made

    steps = {EAGER: (torch_logits, False), BFLOAT16: (torch_logits, True)}
    for name, mode in ((COMPILED, "default"), (TUNED, "max-autotune-no-cudagraphs")):
        try:
            compiled = (torch.compile(torch_logits, mode=mode), True)
            train(*compiled, 1)
            steps[name] = compiled
        except Exception as error:  # a compiler is missing, say, of which every one has its own exception
            print(f"PyTorch's compiled step is left out: {error}\n", flush=True)

    def logits(kernels: dict[str, np.ndarray], images: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            x = torch.from_numpy(images).to(device).permute(0, 3, 1, 2)
            return torch_logits(torch_kernels(kernels, device), x, run.model).cpu().numpy()

    def timed(kind: tuple[Callable, bool]) -> Callable[[int], float]:
        return lambda steps: rate(lambda: train(*kind, steps), 1, steps * run.batch_size)

    return {name: timed(kind) for name, kind in steps.items()} | {"logits": logits}


def torch_device() -> Any:
    """Returns the GPU, if there is one, with the fastest algorithm looked for by trial; else the CPU."""
    import torch

    torch.backends.cudnn.benchmark = True
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def torch_kernels(kernels: dict[str, np.ndarray], device: Any = None) -> dict[str, Any]:
    """Returns copies as tensors: [out, in, k, k] in channels_last, the projection [out, in]."""
    import torch

    def tensor(kernel: np.ndarray) -> Any:
        moved = torch.tensor(np.moveaxis(kernel, (-1, -2), (0, 1)), device=device)
        return moved.to(memory_format=torch.channels_last) if moved.ndim == 4 else moved

    return {name: tensor(kernel) for name, kernel in kernels.items()}


def torch_logits(kernels: dict[str, Any], x: Any, config: ModelConfig) -> Any:
    """Returns the logits [n, classes] of all_conv_resnet with these kernels; x [n, channels, height, width]."""
    from torch.nn import functional as F

    x = F.conv2d(x, kernels["stem_conv"], padding="same")
    for stage, (width, blocks) in enumerate(zip(config.widths, config.blocks_per_stage), start=1):
        for block in range(1, blocks + 1):
            name = f"stage{stage}_block{block}"
            if stage > 1 and block == 1:
                # TensorFlow's "same" at stride 2 pads after the last pixel only.
                y = F.conv2d(F.pad(x, (0, 1, 0, 1)), kernels[f"{name}_conv1"], stride=2)
                x = F.avg_pool2d(x, 2)
            else:
                y = F.conv2d(x, kernels[f"{name}_conv1"], padding=1)
            y = F.conv2d(F.relu(y, inplace=True), kernels[f"{name}_conv2"], padding=1)
            new_channels = width - x.shape[1]
            if new_channels:
                x = F.pad(x, (0, 0, 0, 0, new_channels // 2, new_channels - new_channels // 2))
            x = x + y
    return F.linear(x.mean((2, 3)), kernels["projection"])


class Problem(NamedTuple):
    """A loss whose Hessian is measured: all_conv_resnet with these kernels on labelled images.

    On a GPU, convolutions are in TensorFloat-32, PyTorch's default, unless is_exact. `seed` is that of the vectors.
    """

    config: ModelConfig
    kernels: dict[str, np.ndarray]
    images: np.ndarray  # float32 [n, height, width, channels]
    labels: np.ndarray
    batch_size: int
    order: int  # steps of Lanczos
    seed: int
    is_exact: bool


def pyhessian(problem: Problem) -> dict[str, Callable]:
    """Returns PyHessian's functions: the seconds of each measurement, the product "apply", and the estimates.

    The estimates are functions of the number of products.
    """
    import torch
    from pyhessian import hessian
    from torch.nn import functional as F

    def eig(matrix: Any, eigenvectors: bool) -> tuple[Any, Any]:
        values, vectors = torch.linalg.eigh(matrix)  # symmetric
        return torch.stack([values, torch.zeros_like(values)], 1), vectors

    torch.eig = eig  # PyTorch has dropped it
    warnings.filterwarnings("ignore", "Using backward")  # of a leak that PyHessian avoids
    model, batches = _torch_problem(problem)
    peer = hessian(model, F.cross_entropy, dataloader=batches, cuda=batches[0][0].is_cuda)
    peer.params = list(model.parameters())
    vector = [torch.randn_like(parameter) for parameter in peer.params]

    def gradient() -> None:
        for images, labels in batches:
            model.zero_grad()
            F.cross_entropy(model(images), labels).backward()

    return {
        GRADIENT: lambda: seconds(_finished, gradient),
        PRODUCT: lambda: seconds(_finished, peer.dataloader_hv_product, vector),
        LANCZOS: lambda: seconds(_finished, lambda: peer.density(iter=problem.order, n_v=1)),
        "apply": _on_our_vectors(lambda parts: peer.dataloader_hv_product(parts)[1], peer.params),
        EIGENVALUE: lambda products: (peer.eigenvalues(maxIter=products, tol=0)[0][0], None),
        TRACE: lambda products: (float(np.mean(peer.trace(maxIter=products, tol=0))), None),
    }


def curvlinops(problem: Problem) -> dict[str, Callable]:
    """Returns curvlinops' functions, as `pyhessian` does, without a gradient.

    Its Lanczos does not reorthogonalise; its trace is by Hutch++.
    """
    import torch
    from curvlinops import HessianLinearOperator, hutchpp_trace
    from curvlinops.papyan2020traces.spectrum import fast_lanczos

    model, batches = _torch_problem(problem)
    parameters, loss = list(model.parameters()), torch.nn.CrossEntropyLoss()
    peer = HessianLinearOperator(model, loss, parameters, batches, check_deterministic=False)
    vector = torch.randn(peer.shape[1], device=parameters[0].device)

    def product(parts: list[Any]) -> list[Any]:
        flat = peer @ torch.cat([part.reshape(-1) for part in parts])
        return [part.reshape(p.shape) for part, p in zip(flat.split([p.numel() for p in parameters]), parameters)]

    return {
        PRODUCT: lambda: seconds(_finished, lambda: peer @ vector),
        LANCZOS: lambda: seconds(_finished, fast_lanczos, peer, problem.order),
        "apply": _on_our_vectors(product, parameters),
        EIGENVALUE: lambda products: (float(fast_lanczos(peer, products)[0].max()), None),
        TRACE: lambda products: (float(hutchpp_trace(peer, products)), None),
    }


def _on_our_vectors(product: Callable, parameters: list[Any]) -> Callable[[np.ndarray], np.ndarray]:
    """Returns a product of PyTorch's parts [out, in, k, k] as one of vectors over our kernels [k, k, in, out]."""
    import torch

    shapes = [(*p.shape[2:], p.shape[1], p.shape[0]) for p in parameters]
    ends = np.cumsum([p.numel() for p in parameters])

    def apply(vector: np.ndarray) -> np.ndarray:
        ours = [part.reshape(shape) for part, shape in zip(np.split(vector, ends[:-1]), shapes)]
        parts = [torch.tensor(np.moveaxis(part, (-1, -2), (0, 1)), device=parameters[0].device) for part in ours]
        return np.concatenate([np.moveaxis(part.cpu().numpy(), (0, 1), (-1, -2)).ravel() for part in product(parts)])

    return apply


def _finished(function: Callable, *arguments: Any) -> None:
    """Calls a function, and waits until a GPU has computed it."""
    import torch

    function(*arguments)
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _torch_problem(problem: Problem) -> tuple[Any, list]:
    """Returns the network and the batches, on a GPU if there is one."""
    import torch

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            tensors = torch_kernels(problem.kernels, device)
            self.projection = tensors.pop("projection")
            self.names = list(tensors)
            self.kernels = torch.nn.ParameterList(tensors.values())

        def forward(self, x: Any) -> Any:
            kernels = dict(zip(self.names, self.kernels)) | {"projection": self.projection}
            return torch_logits(kernels, x, problem.config)

    device = torch_device()
    torch.backends.cudnn.allow_tf32 = not problem.is_exact  # PyTorch's default: convolutions, and no other products
    torch.manual_seed(problem.seed)
    x = torch.from_numpy(problem.images).permute(0, 3, 1, 2).to(device)
    y = torch.from_numpy(problem.labels).to(device)
    return Network().to(device), list(zip(x.split(problem.batch_size), y.split(problem.batch_size)))


def dense_hessian(weights: np.ndarray, input_moment: np.ndarray, cross_moment: np.ndarray) -> dict[str, Callable]:
    """Returns torch.func.hessian of a linear 2-shortcut network's loss: "hessian" and the "seconds" of one call.

    Args:
      weights: [units, 2, d, d]; the parameters are ordered by unit, layer, column, row.
      input_moment: Sxx [d, d].
      cross_moment: Syx [d, d].
    """
    import torch

    shape, d = weights.shape, weights.shape[-1]
    Sxx, Syx, eye = torch.tensor(input_moment), torch.tensor(cross_moment), torch.eye(d, dtype=torch.float64)

    def loss(columns: Any) -> Any:
        W = eye
        for first, second in columns.reshape(shape).transpose(-1, -2):
            W = W + second @ first @ W
        return torch.sum(W @ Sxx * W) / 2 - torch.sum(W * Syx)

    columns = torch.tensor(np.swapaxes(weights, -1, -2).reshape(-1).copy())
    hessian = torch.func.hessian(loss)
    return {"hessian": lambda: hessian(columns).numpy(), "seconds": lambda: seconds(hessian, columns)}
