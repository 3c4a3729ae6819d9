"""ReLU residual networks without biases: empirical and population risk, gradient, exact Hessian (Hardt & Ma §5).

    paper            code
    x, y             x, y [n, m, d]: n independent trials with m inputs each
    U_i, V_iᵀ        w[:, i, 0], w[:, i, 1] [n, width, d]: unit j of block i has rows u, v and adds v ReLU(u·h)
    ŷ                forward(w, x)
    f                risk: (1/m) Σ‖y − ŷ‖² as in Hardt & Ma, no ½; piecewise polynomial in w
    |||A|||          spectral_norm(balance(w)): units rescaled to ‖u‖ = ‖v‖, which changes no output

All functions work on n networks at once.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

_NODES, _NODE_WEIGHTS = np.polynomial.legendre.leggauss(12)


class Unit(NamedTuple):
    """An activation: σ, σ′ and the largest |σ′|."""

    function: Callable[[np.ndarray], np.ndarray]
    derivative: Callable[[np.ndarray], np.ndarray]
    steepest: float


def relu(z: np.ndarray) -> np.ndarray:
    """Returns ReLU(z); for complex z by the sign of the real part, as complex-step derivatives need."""
    return np.where(z.real > 0, z, 0)


def relu_is_on(z: np.ndarray) -> np.ndarray:
    """Returns ReLU′(z) as bool, False at 0."""
    return z.real > 0


RELU = Unit(relu, relu_is_on, 1.0)


def forward(w: np.ndarray, x: np.ndarray, unit: Unit = RELU) -> np.ndarray:
    """Returns ŷ [n, m, d] of networks w [n, ℓ, 2, width, d] on inputs x [n, m, d]."""
    return hidden_states(w, x, unit)[-1][0]


def hidden_states(w: np.ndarray, x: np.ndarray, unit: Unit = RELU) -> list[tuple]:
    """Returns (h, U h, σ′(U h)) of each block, for ReLU whether its units are on, then (ŷ,)."""
    states = []
    for u, v in zip(w[:, :, 0].swapaxes(0, 1), w[:, :, 1].swapaxes(0, 1)):
        z = x @ u.swapaxes(1, 2)
        states.append((x, z, unit.derivative(z)))
        x = x + unit.function(z) @ v
    return [*states, (x,)]


def risk_and_gradient(w: np.ndarray, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns f [n] and ∂f/∂w, of w's shape, by backpropagation; ReLU'(0) = 0; complex w: pattern of the real part."""
    return backpropagate(w, x, y)[:2]


def backpropagate(
    w: np.ndarray, x: np.ndarray, y: np.ndarray, unit: Unit = RELU
) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """Returns f [n], ∂f/∂w, and ∂f/∂h [n, m, d] of the value h of each block, first block first."""
    *states, (prediction,) = hidden_states(w, x, unit)
    error = prediction - y
    by_values = []
    delta = 2 / x.shape[1] * error
    gradient = np.empty(w.shape, np.result_type(w, float))
    for i, (h, z, slope) in reversed(list(enumerate(states))):
        by_values.insert(0, delta)
        back = (delta @ w[:, i, 1].swapaxes(1, 2)) * slope
        gradient[:, i, 1] = unit.function(z).swapaxes(1, 2) @ delta
        gradient[:, i, 0] = back.swapaxes(1, 2) @ h
        delta = delta + back @ w[:, i, 0]
    return (error**2).mean(1).sum(1), gradient, by_values


def hessian(w: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Returns ∂²f/∂w² [n, P, P] in the linear region that w lies in; parameters in the order of w.ravel().

    (2/m) JᵀJ with J = ∂ŷ/∂w, by forward mode, plus the curvature of block h + Vᵀ D U h, D its pattern, δ = ∂f/∂h after
    it: δᵀ d²(block) = 2 δᵀ dVᵀ D(dU h + U dh) + 2 δᵀ Vᵀ D dU dh.
    """
    (n, _, _, width, d) = w.shape
    m = x.shape[1]
    size = w[0].size
    *states, (prediction,) = hidden_states(w, x)
    dh = np.zeros((n, m, d, size))
    tangents = []
    half = width * d
    for i, (h, z, on) in enumerate(states):
        dz = w[:, None, i, 0] @ dh
        start = 2 * half * i
        for k in range(width):
            dz[:, :, k, start + k * d : start + (k + 1) * d] += h
        dz *= on[..., None]
        tangents.append((dh, dz))
        dh = dh + w[:, None, i, 1].swapaxes(2, 3) @ dz
        for c in range(d):
            dh[:, :, c, start + half + c : start + 2 * half : d] += z * on
    jacobian = dh.reshape(n, m * d, size)
    result = 2 / m * jacobian.swapaxes(1, 2) @ jacobian
    delta = 2 / m * (prediction - y)
    for i, (dh, dz) in reversed(list(enumerate(tangents))):
        back = (delta @ w[:, i, 1].swapaxes(1, 2)) * states[i][2]
        by_u = (back.swapaxes(1, 2) @ dh.reshape(n, m, -1)).reshape(n, half, size)
        by_v = (delta.swapaxes(1, 2) @ dz.reshape(n, m, -1)).reshape(n, d, width, size).swapaxes(1, 2)
        rows = slice(2 * half * i, 2 * half * (i + 1))
        bend = np.concatenate([by_u, by_v.reshape(n, half, size)], axis=1)
        result[:, rows] += bend
        result[:, :, rows] += bend.swapaxes(1, 2)
        delta = delta + back @ w[:, i, 0]
    return result


class Sample:
    """The empirical risk of n trials, x and y [n, m, d]. `index` says which trials the weights belong to."""

    def __init__(self, x: np.ndarray, y: np.ndarray) -> None:
        self.x = x
        self.y = y

    def risk_and_gradient(self, w: np.ndarray, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns f [n] and ∇f of w [n, ℓ, 2, width, d], of w's shape."""
        return risk_and_gradient(w, self.x[index], self.y[index])

    def hessian(self, w: np.ndarray, index: np.ndarray) -> np.ndarray:
        """Returns the Hessians [n, P, P] of f at w [n, ℓ, 2, width, d]."""
        chunk = max(1, 100_000 // (self.x[0].size * w[0].size))  # trials whose tangents stay in the cache
        parts = [slice(i, i + chunk) for i in range(0, len(w), chunk)]
        return np.concatenate([hessian(w[part], self.x[index[part]], self.y[index[part]]) for part in parts])


class Population:
    """The risk under x ~ N(0, I₂) itself, d = 2, for students of `teachers` [n, ℓ, 2, width, 2].

    Without biases a network is positively homogeneous, so f is twice the mean of ‖y − ŷ‖² over the circle; between
    two kinks both are linear, and Gauss–Legendre nodes between the kinks make the integral exact to rounding. Except at
    zero units f is smooth. Its Hessian is by central differences of the gradient: the formula for a fixed pattern would
    miss the motion of the kinks.
    """

    def __init__(self, teachers: np.ndarray) -> None:
        if teachers.shape[-1] != 2:
            raise ValueError(f"the population risk is exact for d = 2 only, not for d = {teachers.shape[-1]}")
        self.teachers = teachers
        self.teacher_kinks = [_kinks(teacher) for teacher in teachers]
        angle = np.linspace(0, 2 * np.pi, 721)[:-1]
        self.x = np.broadcast_to(np.stack([np.cos(angle), np.sin(angle)], 1), (len(teachers), 720, 2))

    def risk_and_gradient(self, w: np.ndarray, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns f [n] and ∇f of w [n, ℓ, 2, width, 2], of w's shape."""
        parts = []
        for one, i in zip(w, index):
            x = _gauss_legendre(np.concatenate([_kinks(one), self.teacher_kinks[i]]))[None]
            parts.append(risk_and_gradient(one[None], x, forward(self.teachers[i, None], x)))
        return tuple(np.concatenate(part) for part in zip(*parts))

    def hessian(self, w: np.ndarray, index: np.ndarray) -> np.ndarray:
        """Returns the Hessians [n, P, P] of f at w [n, ℓ, 2, width, 2]."""
        step = 1e-5
        columns = []
        for direction in np.eye(w[0].size).reshape(-1, *w.shape[1:]):
            up, down = (self.risk_and_gradient(w + sign * step * direction, index)[1] for sign in (1, -1))
            columns.append((up - down).reshape(len(w), -1) / (2 * step))
        return (np.stack(columns, 1) + np.stack(columns, 2)) / 2


def _kinks(w: np.ndarray) -> np.ndarray:
    """Returns the angles at which a unit of w [ℓ, 2, width, 2] switches: u·Lx = 0 in a cone in which h = Lx."""
    angles = np.array([0, 2 * np.pi])
    for i in range(len(w)):
        middle = (angles[1:] + angles[:-1]) / 2
        x = np.stack([np.cos(middle), np.sin(middle)], 1)[..., None]
        maps = np.broadcast_to(np.eye(2), (len(x), 2, 2))
        for u, v in w[:i]:
            z = u @ maps
            maps = maps + v.T @ np.where(z @ x > 0, z, 0)
        normal = w[i, 0] @ maps
        zero = np.arctan2(-normal[..., 0], normal[..., 1])
        zero = np.concatenate([zero, zero + np.pi], 1) % (2 * np.pi)
        angles = np.sort(np.append(angles, zero[(zero > angles[:-1, None]) & (zero < angles[1:, None])]))
    return angles


def _gauss_legendre(kinks: np.ndarray) -> np.ndarray:
    """Returns points x [m, 2], scaled by the roots of their weights: (1/m) Σ g(x) = E g for 2-homogeneous g."""
    kinks = np.sort(kinks)
    kinks = kinks[np.append(np.diff(kinks) > 1e-13, True)]
    half = np.diff(kinks)[:, None] / 2
    middle = (kinks[1:] + kinks[:-1])[:, None] / 2
    angle = (middle + half * _NODES).ravel()
    mass = (half * _NODE_WEIGHTS).ravel() / np.pi
    return np.stack([np.cos(angle), np.sin(angle)], 1) * np.sqrt(mass * len(mass))[:, None]


def spectral_norm(w: np.ndarray) -> np.ndarray:
    """Returns |||A||| [n]: the largest spectral norm of all U_i and V_i."""
    return np.linalg.norm(w, 2, axis=(-2, -1)).max((1, 2))


def balance(w: np.ndarray) -> np.ndarray:
    """Returns the same networks with ‖u‖ = ‖v‖ for every unit."""
    norms = np.linalg.norm(w, axis=-1, keepdims=True)
    return w * np.sqrt(norms.prod(2, keepdims=True)) / np.maximum(norms, 1e-300)


def free_directions(w: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Returns directions [count, P] along which the risk of one network w [ℓ, 2, width, d] is constant on x [m, d].

    For units a, b of one block that are active on the same inputs: du_a = u_b, dv_b = −v_a. With a = b, the rescaling.
    """
    directions = []
    for i, (_, _, on) in enumerate(hidden_states(w[None], x[None])[:-1]):
        same = (on[0][:, :, None] == on[0][:, None]).all(0)
        for a, b in np.argwhere(same):
            direction = np.zeros_like(w)
            direction[i, 0, a] = w[i, 0, b]
            direction[i, 1, b] -= w[i, 1, a]
            directions.append(direction.ravel())
    return np.array(directions)


def kink_margin(w: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Returns min |u·h| / (‖u‖‖h‖) over all units and inputs, [n]: how far w is from the edge of its linear region."""
    blocks = []
    for i, (h, z, _) in enumerate(hidden_states(w, x)[:-1]):
        size = np.linalg.norm(h, axis=-1)[..., None] * np.linalg.norm(w[:, i, 0], axis=-1)[:, None]
        blocks.append((np.abs(z) / np.maximum(size, 1e-300)).min((1, 2)))
    return np.min(blocks, axis=0)
