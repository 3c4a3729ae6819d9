"""Check of the conjecture in Hardt & Ma §5, read literally for blocks x + V ReLU(U x)."""

import numpy as np

from theory import relu_networks, relu_search
from theory.checks.evidence import Evidence, at_least, require


def section_5(rng: np.random.Generator, trials: int) -> Evidence:
    """Critical points with |||A||| ≤ τ that are no global minimum: zero, and a local minimum near the swapped teacher.

    The risk is that of x ~ N(0, I₂) itself, integrated exactly, and the teacher lies in the ball.
    """
    points = [relu_search.swapped_blocks(radius) for radius in (0.05, 0.1, 0.3, 0.5)]
    for point in points:
        require(point["category"] == "bad_local_minimum" and point["risk"] > 0, "the swapped blocks are no bad minimum")
    for _ in range(max(1, trials // 10)):
        teacher = relu_search.draw_weights(rng, 1, relu_search.Setting(), smallest=0.5)
        zero = relu_networks.Population(teacher).risk_and_gradient(0 * teacher, np.array([0]))
        require(zero[0][0] > 0 and not zero[1].any(), "zero is no bad critical point")
    evidence = at_least((point["curvature"], relu_search.CURVATURE_TOLERANCE) for point in points)
    last = points[-1]
    return evidence._replace(
        counterexample=f"τ = {last['radius']:g}, two blocks of one unit: a local minimum with |||A||| = "
        f"{last['spectral_norm']:.2f} τ, f = {last['risk']:.1e} f(0), least curvature {last['curvature']:.2f} of the "
        "largest; at zero ∇f = 0 too"
    )
