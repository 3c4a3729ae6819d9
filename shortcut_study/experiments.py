"""The data of the figures of Li et al., one function an experiment: the units of a sweep (see sweep.py).

    paper                                   experiment
    Figure 3                                norms
    Figure 5                                initial_spectrum, and the theory's values at zero: spectrum_at_zero
    Figures 6 and 8, left                   spectrum_at_losses, linear
    Figure 7                                spectrum_at_losses, ReLU at mid
    Figure 8, right                         single_run
    Figures 9 and 10                        learning_rates, linear and ReLU at mid

Networks: 1-, 2- and 3-shortcut from the paper's zero (Xavier × 0.01), and plain ones, here of
shortcut_depth 0, from Xavier or orthogonal weights. Activations are linear or relu_mid; plain
networks have their ReLUs where a 2-shortcut network has them (appendix B).
"""

from typing import NamedTuple

import numpy as np

from shortcut_study.dynamics import descend, loss_and_gradient
from shortcut_study.hessian import Spectrum, hessian, hessian_from_moments, spectrum
from shortcut_study.inertia import spectrum_by_counting
from shortcut_study.network import ShortcutNetwork
from shortcut_study.sweep import Unit
from theory.shortcut_hessians import spectrum_at_zero
from theory.shortcut_networks import minimum_loss, moments

NUM_EPOCHS_IN_TABLE = 120
LARGEST_MATRIX = 4800  # weights: beyond, LAPACK's eigenvalues take longer than counting


class Kind(NamedTuple):
    """shortcut_depth (0: a plain network) and initialisation."""

    shortcut_depth: int
    initialisation: str

    def takes(self, depth: int, activations: str) -> bool:
        """Whether there is such a network of so many weight matrices."""
        return depth % self.unit_depth(activations) == 0

    def unit_depth(self, activations: str) -> int:
        return self.shortcut_depth or (1 if activations == "linear" else 2)

    def network(self, width: int, depth: int, activations: str) -> ShortcutNetwork:
        mid = "linear" if activations == "linear" else "relu"
        return ShortcutNetwork.of_depth(width, depth, self.unit_depth(activations), mid, self.shortcut_depth > 0)


XAVIER, ORTHOGONAL = Kind(0, "xavier"), Kind(0, "orthogonal")
ONE, TWO, THREE = (Kind(n, "zero") for n in (1, 2, 3))
KINDS = {
    "linear": (XAVIER, ORTHOGONAL, ONE, TWO, THREE),
    # With ReLUs at mid only these have the same number of them (Li et al. §5.3).
    "relu_mid": (XAVIER, ORTHOGONAL, TWO),
}


def norms(x, y, activations: str, depths, seeds, learning_rate: float, num_epochs: int) -> list[Unit]:
    """Average Frobenius norm of the weights along the descent of 2-shortcut networks (Figure 3)."""

    def unit(depth, seed):
        def compute(progress):
            network = TWO.network(x.shape[1], depth, activations)
            start = network.initialize(TWO.initialisation, seed)[None]
            found = descend(
                network, start, x, y, [learning_rate], num_epochs, on_epoch=_share(progress, num_epochs + 1)
            )
            return [
                {"learning_rate": learning_rate, "epoch": epoch, "loss": found.losses[epoch, 0],
                 "excess_loss": found.excess_losses[epoch, 0], "norm": found.norms[epoch, 0],
                 "status": "diverged" if 0 <= found.diverged_at[0] <= epoch else "done"}
                for epoch in _epochs(num_epochs)
            ]  # fmt: skip

        cost = _descent_seconds(x, activations, depth, 1, num_epochs)
        return Unit(_key("norms", TWO, activations, depth, seed), cost, compute)

    return [unit(depth, seed) for depth in depths if TWO.takes(depth, activations) for seed in seeds]


def initial_spectra(x, y, depths, seeds, kinds=KINDS["linear"]) -> list[Unit]:
    """Summary of the spectrum of the Hessian where linear networks start (Figure 5)."""
    pair = moments(x, y)

    def unit(kind, depth, seed):
        def compute(_):
            network = kind.network(x.shape[1], depth, "linear")
            return [_linear_spectrum(network, network.initialize(kind.initialisation, seed), pair)._asdict()]

        return Unit(_key("initial_spectrum", kind, "linear", depth, seed), _counting_seconds(x, depth), compute)

    return [unit(kind, d, seed) for d in depths for kind in kinds if kind.takes(d, "linear") for seed in seeds]


def spectra_at_zero(x, y, depths) -> list[Unit]:
    """What Theorem 1 predicts of linear 1- and 2-shortcut networks at zero weights."""

    def unit(kind, depth):
        def compute(_):
            if kind == ONE:
                network = ONE.network(x.shape[1], depth, "linear")
                return [_linear_spectrum(network, np.zeros(network.shape), moments(x, y))._asdict()]
            found = spectrum_at_zero(x, y, 1, 2)  # more units only repeat the eigenvalues
            return [_summary(np.diag(np.repeat(found.eigenvalues, found.multiplicities)))]

        cost = _counting_seconds(x, depth if kind == ONE else 2)
        return Unit(
            _key("spectrum_at_zero", kind._replace(initialisation="exact_zero"), "linear", depth), cost, compute
        )

    return [unit(kind, depth) for depth in depths for kind in (ONE, TWO) if kind.takes(depth, "linear")]


def spectra_at_losses(
    x,
    y,
    activations: str,
    depth: int,
    seeds,
    learning_rate: float,
    num_epochs: int,
    levels,
    kinds=(XAVIER, ORTHOGONAL, TWO),
) -> list[Unit]:
    """Summary of the spectrum when a descent first reaches each of the levels of loss (Figures 6, 7, and 8, left).

    Args:
      levels: Excess losses over the best linear map, for linear networks; losses for others.
    """

    def unit(kind, seed):
        def compute(progress):
            network = kind.network(x.shape[1], depth, activations)
            start = network.initialize(kind.initialisation, seed)[None]
            descent = descent_cost / cost
            on_epoch = _share(lambda share: progress(share * descent), num_epochs + 1)
            found = descend(network, start, x, y, [learning_rate], num_epochs, levels, on_epoch)
            rows = [{"learning_rate": learning_rate, "status": "diverged" if found.diverged_at[0] >= 0 else "done"}]
            losses = found.excess_losses if activations == "linear" else found.losses
            for level, (weights,) in zip(levels, found.snapshots):
                if np.isfinite(weights).all():
                    epoch = int(np.argmax(losses[:, 0] <= level))
                    of_epoch = {
                        "epoch": epoch,
                        "loss": found.losses[epoch, 0],
                        "excess_loss": found.excess_losses[epoch, 0],
                    }
                    rows.append(rows[0] | of_epoch | _summary(hessian(network, weights, x, y)))
                progress((1 - descent) / len(levels))
            return rows

        descent_cost = _descent_seconds(x, activations, depth, 1, num_epochs)
        cost = descent_cost + len(levels) * _hessian_seconds(x, activations, depth)
        return Unit(_key("spectrum_at_losses", kind, activations, depth, seed), cost, compute)

    return [unit(kind, seed) for kind in kinds for seed in seeds]


def single_run(x, y, depth: int, seed: int, learning_rate: float, num_epochs: int) -> list[Unit]:
    """Gradient norm and index along one descent of a linear 2-shortcut network (Figure 8, right)."""
    recorded = _epochs(num_epochs)

    def compute(progress):
        network = TWO.network(x.shape[1], depth, "linear")
        weights, least = network.initialize(TWO.initialisation, seed), minimum_loss(x, y)
        excess_loss_and_gradient = loss_and_gradient(network, x, y)
        rows = []
        for epoch in range(num_epochs + 1):
            (excess,), (step,) = excess_loss_and_gradient(weights[None])
            if not np.isfinite(excess):
                rows.append({"learning_rate": learning_rate, "epoch": epoch, "status": "diverged"})
                break
            if epoch in recorded:
                rows.append(
                    {"learning_rate": learning_rate, "epoch": epoch, "loss": excess + least, "excess_loss": excess,
                     "gradient_norm": float(np.linalg.norm(step)), "status": "done"}
                    | _summary(hessian(network, weights, x, y))
                )  # fmt: skip
                progress(1 / len(recorded))
            weights = weights - learning_rate * step
        return rows

    cost = len(recorded) * _hessian_seconds(x, "linear", depth) + _descent_seconds(x, "linear", depth, 1, num_epochs)
    return [Unit(_key("single_run", TWO, "linear", depth, seed), cost, compute)]


def learning_rates(x, y, activations: str, depths, rates, seeds, num_epochs: int) -> list[Unit]:
    """Final loss of every learning rate, all rates and seeds of a network as one descent (Figures 9 and 10)."""

    def unit(kind, depth, seeds):
        def compute(progress):
            network = kind.network(x.shape[1], depth, activations)
            starts = np.stack([network.initialize(kind.initialisation, seed) for seed in seeds for _ in rates])
            of_runs = np.tile(rates, len(seeds))
            found = descend(network, starts, x, y, of_runs, num_epochs, on_epoch=_share(progress, num_epochs + 1))
            return [
                {"seed": seeds[i // len(rates)], "learning_rate": of_runs[i], "epoch": num_epochs,
                 "loss": found.losses[-1, i], "excess_loss": found.excess_losses[-1, i], "norm": found.norms[-1, i],
                 "status": "done" if found.diverged_at[i] < 0 else "diverged"}
                for i in range(len(of_runs))
            ]  # fmt: skip

        cost = _descent_seconds(x, activations, depth, len(rates) * len(seeds), num_epochs)
        seed = seeds[0] if len(seeds) == 1 else None
        return Unit(_key("learning_rates", kind, activations, depth, seed), cost, compute)

    # Over the data a run among many takes as long as alone: smaller units lose less when interrupted.
    together = [list(seeds)] if activations == "linear" else [[seed] for seed in seeds]
    kinds = KINDS[activations]
    return [unit(k, d, group) for d in depths for k in kinds if k.takes(d, activations) for group in together]


def _key(experiment: str, kind: Kind, activations: str, depth: int, seed: int | None = None) -> dict:
    """Without a seed where one unit has rows of several."""
    key = {"experiment": experiment, **kind._asdict(), "activations": activations, "depth": depth}
    return key if seed is None else key | {"seed": seed}


def _linear_spectrum(network: ShortcutNetwork, weights, pair) -> Spectrum:
    """By the eigenvalues of the matrix, or by counting where that is faster."""
    if network.num_parameters <= LARGEST_MATRIX:
        return spectrum(hessian_from_moments(weights, *pair, shortcut=network.shortcut))
    return spectrum_by_counting(weights, *pair, shortcut=network.shortcut)


def _summary(matrix) -> dict:
    return spectrum(matrix)._asdict()


def _epochs(num_epochs: int) -> list[int]:
    """0 … num_epochs, all of the first, then ever fewer."""
    spaced = np.geomspace(1, num_epochs + 1, NUM_EPOCHS_IN_TABLE).astype(int) - 1
    return [int(epoch) for epoch in np.unique(spaced)]


def _share(progress, parts: int):
    return lambda: progress(1 / parts)


# Seconds on 2 cores of an Intel Xeon with AVX-512, for the progress bar.


def _descent_seconds(x, activations: str, depth: int, num_runs: int, num_epochs: int) -> float:
    width = x.shape[1]
    if activations == "linear":
        return num_epochs * depth * (4e-5 + 2.6e-9 * width**3 * num_runs)
    return num_epochs * num_runs * 6 * len(x) * width**2 * depth / 5e10


def _spectrum_seconds(x, depth: int) -> float:
    return 0.01 + 4.5e-11 * (depth * x.shape[1] ** 2) ** 3


def _counting_seconds(x, depth: int) -> float:
    return min(_spectrum_seconds(x, depth), 1.2e-7 * depth * x.shape[1] ** 6)


def _hessian_seconds(x, activations: str, depth: int) -> float:
    over_the_data = 0 if activations == "linear" else len(x) * (depth * x.shape[1] ** 2) ** 2 / 1.35e10
    return _spectrum_seconds(x, depth) + over_the_data
