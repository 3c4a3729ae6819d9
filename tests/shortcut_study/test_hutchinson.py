"""shortcut_study.curvature.hutchinson: when it ends."""

import numpy as np

from shortcut_study.curvature.hutchinson import hutchinson


def test_without_a_tolerance_vectors_that_agree_by_chance_do_not_end_it():
    matrix = np.array([[2.0, 1.0], [1.0, 3.0]])
    found = [hutchinson(lambda v: matrix @ v, dim=2, num_vectors=400, seed=seed) for seed in (25, 39, 76)]
    assert [of_seed.num_vectors for of_seed in found] == [400] * 3
    assert all(of_seed.trace_error > 0 for of_seed in found)
