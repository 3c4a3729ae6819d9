"""The second variation of a linear network's loss as a problem of optimal control in the depth; see inertia.py.

    equations                               code
    x_r, u_r                                variation of the map up to unit r [d²]; of the unit's weights [n·d²]
    F_r, G_r, S_r, Q_r                      Stage
    V_{R+1}                                 Sxx ⊗ I [d², d²]

Not in the paper. With B_r the map up to unit r, Λ_r = (what comes after unit r)ᵀ (W Sxx − Syx) and the
variations vectorised by columns,

    ½ δᵀHδ = ½ xᵀ (Sxx ⊗ I) x + Σ_r (u_rᵀ S_r x_r + ½ u_rᵀ Q_r u_r),    x_{r+1} = F_r x_r + G_r u_r,    x_1 = 0,

with x = x_{R+1} in the first term.
"""

from typing import NamedTuple

import numpy as np

from theory.shortcut.hessians import commutation_matrix


class Stage(NamedTuple):
    """A unit, or several in one, of N weight matrices.

    Attributes:
      unit: U [d, d], F = I ⊗ U.
      right, left: [N, d, d], G = [right_k ⊗ left_k].
      S: [N·d², d²].
      Q: [N·d², N·d²].
    """

    unit: np.ndarray
    right: np.ndarray
    left: np.ndarray
    S: np.ndarray
    Q: np.ndarray


def stages_of_units(
    weights: np.ndarray, input_moment: np.ndarray, cross_moment: np.ndarray, shortcut: bool
) -> tuple[list[Stage], np.ndarray]:
    """Returns the stages of all units, and V after the last.

    Args:
      weights: [num_units, shortcut_depth, d, d].
      input_moment, cross_moment: [d, d].
      shortcut: Whether units add their input.
    """
    num_units, shortcut_depth, d, _ = weights.shape
    eye = np.eye(d)
    inside_before, inside_after = [], []  # products of a unit's layers before and after each, of all units
    for layer in range(shortcut_depth):
        inside_before.append(_product(weights[:, :layer]))
        inside_after.append(_product(weights[:, layer + 1 :]))
    units = _product(weights) + (eye if shortcut else 0)
    before, after = [eye], [eye]
    for r in range(num_units):
        before.append(units[r] @ before[-1])
        after.append(after[-1] @ units[-1 - r])
    error = before[-1] @ input_moment - cross_moment
    stages = []
    for r in range(num_units):
        costate = after[num_units - 1 - r].T @ error
        firsts, lasts = [b[r] for b in inside_before], [a[r] for a in inside_after]
        between = {(j, i): _product(weights[r : r + 1, i + 1 : j])[0] for j in range(shortcut_depth) for i in range(j)}
        stages.append(_stage(units[r], before[r], costate, firsts, lasts, between))
    return stages, np.kron(input_moment, eye)


def _stage(
    unit: np.ndarray, before: np.ndarray, costate: np.ndarray, firsts: list, lasts: list, between: dict
) -> Stage:
    """A unit's stage from products of its layers: before each, after each, between two."""
    d, n = len(unit), len(firsts)
    swap = commutation_matrix(d)
    Q = np.zeros((n, d * d, n, d * d))
    for (j, i), product in between.items():
        Q[j, :, i] = np.kron(product, lasts[j].T @ costate @ (firsts[i] @ before).T) @ swap
        Q[i, :, j] = Q[j, :, i].T
    return Stage(
        unit=unit,
        right=np.stack([(first @ before).T for first in firsts]),
        left=np.stack(lasts),
        S=np.vstack([np.kron(first, last.T @ costate) @ swap for first, last in zip(firsts, lasts)]),
        Q=Q.reshape(n * d * d, n * d * d),
    )


def _product(layers: np.ndarray) -> np.ndarray:
    """The last times … times the first layer of [units, layers, d, d]: [units, d, d]."""
    product = np.broadcast_to(np.eye(layers.shape[-1]), (len(layers), *layers.shape[2:]))
    for layer in range(layers.shape[1]):
        product = layers[:, layer] @ product
    return product


def times_controls(stage: Stage, matrix: np.ndarray) -> np.ndarray:
    """Returns GᵀM [N·d², …] for a matrix M [d², …]: (Rᵀ ⊗ Lᵀ)M by two products of d⁵ operations, not d⁶."""
    d = len(stage.unit)
    blocks = matrix.reshape(d, d, -1)
    found = np.empty((len(stage.right), d, d, blocks.shape[-1]))
    for k, (right, left) in enumerate(zip(stage.right, stage.left)):
        found[k] = (right.T @ (left.T @ blocks).reshape(d, -1)).reshape(d, d, -1)
    return found.reshape(len(stage.right) * d * d, -1)


def times_unit(stage: Stage, matrix: np.ndarray) -> np.ndarray:
    """Returns MF = M(I ⊗ U) [k, d²] for a matrix M [k, d²]."""
    d = len(stage.unit)
    return (matrix.reshape(-1, d) @ stage.unit).reshape(-1, d * d)


def in_twos(stages: list[Stage]) -> list[Stage]:
    """Returns stages of two units each, and of one where their number is odd, for the same Hessian."""
    pairs = [_merged(*stages[i : i + 2]) for i in range(0, len(stages) - 1, 2)]
    return pairs + stages[2 * len(pairs) :]


def _merged(first: Stage, second: Stage) -> Stage:
    """Two stages as one: its controls are those of both, and its x is that of the first."""
    coupling = times_controls(first, second.S.T).T  # S₂G₁
    return Stage(
        unit=second.unit @ first.unit,
        right=np.concatenate([first.right, second.right]),
        left=np.concatenate([second.unit @ first.left, second.left]),
        S=np.vstack([first.S, times_unit(first, second.S)]),
        Q=np.block([[first.Q, coupling.T], [coupling, second.Q]]),
    )
