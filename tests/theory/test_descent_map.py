"""The map of descent: targets, starts, the batch of step sizes, the promises."""

import numpy as np
import pytest

from theory import linear_residual
from theory.descent import from_zero, target_map, update_rules
from theory.descent.target_map import Job


def rows_for(job, **keywords):
    return {row["speed"]: row for row in target_map.run_job(job, **keywords)}


@pytest.mark.parametrize("d", [2, 6, 20])
def test_targets_have_the_signs_that_their_names_promise(d):
    R = {name: target_map.target_matrix(name, d, seed=1) for name in target_map.TARGETS}
    assert np.linalg.eigvalsh(R["positive definite"])[0] == pytest.approx(0.4)
    assert (np.linalg.eigvalsh(R["indefinite"]) < 0).sum() == 2 and np.linalg.det(R["indefinite"]) > 0
    assert np.abs(np.linalg.eigvalsh(R["singular"])).min() < 1e-12
    assert np.linalg.det(R["rotated"]) > 0 and not np.allclose(R["rotated"], R["rotated"].T)
    sizes = np.linalg.svd(R["rotated"], compute_uv=False)
    np.testing.assert_allclose(np.sort(sizes), np.geomspace(0.4, 2, d))


def test_random_starts_have_the_norms_that_they_promise():
    noise, small = (target_map.start_layers(name, 4, 50, seed=1) for name in target_map.STARTS[1:])
    np.testing.assert_allclose(np.linalg.norm(noise, 2, axis=(1, 2)), 0.2 / np.sqrt(4), rtol=0.1)
    np.testing.assert_allclose(small + np.eye(50), noise, atol=1e-15)


def test_from_zero_the_steps_are_those_of_the_recursion_and_below_the_promise():
    rows = rows_for(Job("positive definite", "zero", "descent", 4, 3))
    phi = np.linalg.eigvalsh(target_map.target_matrix("positive definite", 3, 0))
    row = rows[1 / 16]
    risks = from_zero.recursion_risks(phi, 4, row["learning_rate"], 500)
    assert row["status"] == "reached" and row["steps"] == np.argmax(risks <= 1e-3 * np.square(1 - phi).sum())
    promised = [row for row in rows.values() if row["promised_exact"] >= 0]
    assert promised and all(row["steps"] <= row["promised_exact"] for row in promised)
    assert rows[1.0]["status"] == "diverged" or rows[1.0]["excess"] > 1e-3
    assert max(row["learning_rate"] for row in promised) <= row["largest_rate"]


@pytest.mark.parametrize("method", update_rules.METHODS)
@pytest.mark.parametrize("start", ["identity plus noise", "small random"])
def test_a_row_has_what_one_network_passes_on_its_way(start, method):
    R, A = target_map.target_matrix("rotated", 3, 5), target_map.start_layers(start, 4, 3, 5)
    row = target_map.run_job(Job("rotated", start, method, 4, 3), seed=5, speeds=(1 / 4,), max_steps=20)[0]
    buffer, norms, singular = np.zeros_like(A), [], []
    for step in range(21):
        risk, W = linear_residual.risk(A, R, np.eye(3)), linear_residual.end_to_end(A)
        reached = risk <= 1e-3 * np.square(np.eye(3) - R).sum()
        if step % 10 == 0 or reached:
            norms.append(max(np.linalg.svd(layer)[1][0] for layer in A))
            singular.append(np.linalg.svd(W)[1][-1])
        if reached:
            break
        gradient = linear_residual.gradient(A, R, np.eye(3))
        buffer = 0.9 * buffer + gradient
        if method == "orthogonalised":
            u, _, vt = np.linalg.svd(gradient + 0.9 * buffer)
            A = A - u @ vt / 16
        else:
            A = A - (gradient if method == "descent" else buffer) / 16
    assert row["norm"] == pytest.approx(max(norms)) and row["least_singular"] == pytest.approx(min(singular))
    assert row["excess"] == pytest.approx(risk / np.square(np.eye(3) - R).sum()) and row["steps"] == step


@pytest.mark.parametrize("method", ["descent", "momentum"])
def test_an_indefinite_target_is_not_reached_from_zero(method):
    rows = rows_for(Job("indefinite", "zero", method, 8, 4), speeds=(1 / 8, 1 / 32), max_steps=200)
    phi = np.linalg.eigvalsh(target_map.target_matrix("indefinite", 4, 0))
    floor = from_zero.excess_floor(phi, 8, 0.1) / np.square(1 - phi).sum()
    assert all(row["status"] == "stalled" and row["excess"] >= floor * (1 - 1e-9) for row in rows.values())


def test_every_promise_is_kept():
    assert np.isnan(target_map._steps(1.0, 1e-3))  # a risk that does not shrink
    for job in (
        Job("positive definite", "identity plus noise", "descent", 4, 3),
        Job("singular", "zero", "descent", 2, 3),
    ):
        for row in target_map.run_job(job):
            for name in ("promised_2_3", "promised_margin"):
                assert not row[name] < row["steps"] - 1  # a stalled run's are all that it was given


def test_the_promise_of_2_3_is_for_the_fall_from_the_risk_at_the_start():
    R, A = target_map.target_matrix("positive definite", 3, 0), target_map.start_layers("identity plus noise", 4, 3, 0)
    fall = 1e-3 * np.square(np.eye(3) - R).sum() / linear_residual.risk(A, R, np.eye(3))
    rows = target_map.run_job(Job("positive definite", "identity plus noise", "descent", 4, 3))
    assert [row for row in rows if row["promised_2_3"] > 0] and np.isnan([row["largest_rate"] for row in rows]).all()
    for row in rows:
        if row["promised_2_3"] > 0:
            shrinks = linear_residual.convergence_rate_bound(np.eye(3), 4, row["norm"], row["learning_rate"])
            assert row["promised_2_3"] == pytest.approx(np.log(fall) / np.log(shrinks))
