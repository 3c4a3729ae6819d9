"""The minima of `search` against linear predictors, as found and with a trained linear output W (not in the papers).

Its students x + Σ V_i ReLU(U_i h) have no output W, so Shamir's theorem (linear_output.py) does not cover
them. Here an output W = I is added to each local minimum found, and all weights descend to a local minimum again. With
one block the theorem holds as it stands. With more, only the last block's V is linear: the theorem then compares with
predictors of (h, f), h the input of the last block, not with predictors of x.
"""

import numpy as np
from scipy import optimize

from theory.relu import linear_output, networks, search

CRITICAL = 1e-5  # of the gradient in (W, V) over f(0): below it a point counts as critical in them


def last_block(w: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns (h, f): input and ReLU features of the last block of a network w [ℓ, 2, width, d], for x [m, d]."""
    h, z, on = networks.hidden_states(w[None], x[None])[-2]
    return h[0], np.where(on, z, 0)[0]


def descend(w: np.ndarray, W: np.ndarray, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """Returns the end (w, W) of BFGS on all weights from w and the output W [d, d], and ‖∂/∂(W, V_ℓ)‖/f(0) there.

    w is [ℓ, 2, width, d], x and y are [m, d].
    """
    scale = np.square(x - y).sum() / len(x)

    def value_and_gradient(flat: np.ndarray) -> tuple[float, np.ndarray]:
        w_now, W_now = flat[: w.size].reshape(w.shape), flat[w.size :].reshape(W.shape)
        hidden = networks.forward(w_now[None], x[None])[0]
        error = hidden @ W_now.T - y
        fake = (hidden - error @ W_now)[None]  # the targets that make the backward pass start with error·W
        slope = networks.risk_and_gradient(w_now[None], x[None], fake)[1]
        gradient = np.append(slope, 2 / len(x) * error.T @ hidden)
        return np.square(error).sum() / len(x) / scale, gradient / scale

    start = np.append(w, W)
    found = optimize.minimize(
        value_and_gradient, start, jac=True, method="BFGS", options={"gtol": 1e-9, "maxiter": 3_000}
    )
    w, W = found.x[: w.size].reshape(w.shape), found.x[w.size :].reshape(W.shape)
    h, features = last_block(w, x)
    slopes = linear_output.gradient(W, w[-1, 1].T, h, features, y)
    return w, W, float(np.sqrt(sum(np.square(slope).sum() for slope in slopes)) / scale)


def compare(setting: search.Setting, trials: int, seed: int) -> list[dict]:
    """Returns a row per local or global minimum found with W = I: its risk, linear predictors' risks, the risk with W.

    Risks are shares of f(0), the risk of the identity. Columns: category, of `search.classify`; risk, of the minimum;
    linear, of the best linear predictor on x; with_output, after descent of W and all weights; last_block, of the best
    predictor linear in (h, f) there, which by the theorem is with_output; critical, whether (W, V) are critical.
    """
    rng = np.random.default_rng([seed, setting.num_layers, setting.width])
    teachers = search.draw_weights(rng, trials, setting, 0.5)
    starts = search.draw_weights(rng, trials, setting)
    x = rng.standard_normal((trials, setting.samples, setting.d))
    y = networks.forward(teachers, x)
    problem = networks.Sample(x, y)
    ends = search.find_critical_points(problem, starts, "risk")
    categories = search.classify(problem, ends, setting.radius)["category"]
    rows = []
    for k in np.flatnonzero(np.isin(categories, ("bad_local_minimum", "global_minimum"))):
        scale = np.square(x[k] - y[k]).sum() / len(x[k])
        w, W, slope = descend(ends[k], np.eye(setting.d), x[k], y[k])
        h, features = last_block(w, x[k])
        row = setting._asdict() | {"category": str(categories[k])}
        row["risk"] = linear_output.risk(np.eye(setting.d), ends[k][-1, 1].T, *last_block(ends[k], x[k]), y[k]) / scale
        row["linear"] = linear_output.best_linear_risk(x[k], y[k]) / scale
        row["with_output"] = linear_output.risk(W, w[-1, 1].T, h, features, y[k]) / scale
        row["last_block"] = linear_output.local_minimum_risk(h, features, y[k]) / scale
        row["critical"] = int(slope < CRITICAL)
        rows.append(row)
    return rows
