"""One planted mutation a row of the table of claims: its check must notice that the function it lists is broken.

MUTATIONS maps a claim's id to a function that takes the listed function and returns a broken one, which takes its
place in the module while the check runs. So a row whose check does not call its function fails, and one without an
entry here.
"""

import dataclasses
import importlib

import numpy as np
import pytest

from theory import claims, linear_output, projection_width
from theory.shortcut_hessians import Spectrum
from theory.stationarity import Escape, Stationarity
from theory.table_1 import Count


def changed(change):
    """The mutation that puts change(result) in the place of what the function returns."""
    return lambda function: lambda *a, **k: change(function(*a, **k))


def scaled(factor):
    """The mutation that multiplies what the function returns."""
    return changed(lambda result: factor * result)


def forgetful(memorize):
    """The mutation that gives the first point a wrong label."""

    def broken(x, labels, num_classes, *a, **k):
        labels = np.where(np.arange(len(labels)) == 0, (labels + 1) % num_classes, labels)
        return memorize(x, labels, num_classes, *a, **k)

    return broken


def coupling(loss):
    """The mutation that adds a product of weights of two units to the loss."""
    return lambda weights, *a, **k: loss(weights, *a, **k) + weights[0].sum() * weights[-1].sum()


transposed = changed(lambda result: np.swapaxes(result, -1, -2))
turned = changed(lambda result: result[::-1, ::-1])
backwards = changed(lambda result: result[::-1])
vanishing = scaled(0)
larger = scaled(1.1)
of_wrong_shape = changed(lambda network: dataclasses.replace(network, head_U=network.head_U.T))
of_higher_order = changed(lambda found: Stationarity(found.order + 1, found.exact))
stretched = changed(lambda found: Spectrum(1.1 * found.eigenvalues, found.multiplicities))
overshooting = changed(lambda block: (block[0], 1.01 * block[1], block[2]))  # U, V, s
waking = changed(lambda block: (block[0], block[1], block[2] + 0.5))
miscounted = changed(lambda count: Count(count.convolutions, count.weights + 1))
slower = scaled(0.5)
steeper = changed(lambda rate: 1 - 1.01 * (1 - rate))
hasty = changed(lambda said: said._replace(rate=0.4 * said.rate))

MUTATIONS = {
    "hm.claim_2.3": scaled(0.5),
    "hm.lemma_2.4": transposed,
    "hm.eq_2.5": transposed,
    "hm.eq_2.3": vanishing,
    "hm.convergence": slower,
    "hm.theorem_2.2": vanishing,
    "hm.standard_parametrization": changed(lambda gradient: gradient + 1),
    "hm.gradients_vanish": vanishing,
    "hm.no_critical_points": vanishing,
    "hm.theorem_2.1": backwards,
    "hm.theorem_2.1_psd": scaled(1.01),
    "hm.negative_determinant": scaled(-1),
    "hm.odd_dimension": backwards,
    "hm.rescaling": changed(lambda found: (2 * found[0], 2 * found[1])),
    "hm.claim_A.1": changed(lambda found: (found[0].T, found[1])),
    "hm.claim_C.1": changed(lambda found: (found[0].T, found[1])),
    "hm.claim_C.2": vanishing,
    "hm.lemma_3.3": overshooting,
    "hm.lemma_B.1": overshooting,
    "hm.eq_B.1": waking,
    "hm.lemma_B.2": overshooting,
    "hm.theorem_3.2": forgetful,
    "hm.theorem_3.2_width": changed(lambda width: width // 2),
    "hm.projection_scale": scaled(2),
    "hm.distortion": larger,
    "hm.surrogates": scaled(2),
    "hm.last_layer": of_wrong_shape,
    "hm.table_1": miscounted,
    "hm.parameters": miscounted,
    "hm.section_5": changed(lambda point: point | {"risk": 0.0}),
    "li.definition_1": larger,
    "li.definition_4": of_higher_order,
    "li.theorem_1_hypotheses": scaled(1.01),
    "li.theorem_1.1": larger,
    "li.theorem_1_relu": of_higher_order,
    "li.theorem_1.2": changed(lambda found: Escape(found.direction[:, ::-1], found.curvature)),
    "li.theorem_1.3": turned,
    "li.one_shortcut_growth": larger,
    "li.eq_7": transposed,
    "li.eq_10": scaled(1.01),
    "li.depth": scaled(1.01),
    "li.variance": larger,
    "li.eq_12": larger,
    "li.eq_14": transposed,
    "li.one_unit": scaled(1.01),
    "li.eq_15": scaled(1.01),
    "li.eq_16": scaled(1.01),
    "li.eq_18": stretched,
    "li.eq_22": stretched,
    "li.eq_25": turned,
    "li.eq_28": turned,
    "li.lemma_1": coupling,
    "li.lemma_2": turned,
    "review.theorem_1": changed(lambda residual: residual + 1),
    "review.theorem_2": backwards,
    "review.eq_6": changed(lambda found: None),
    "review.convergence": slower,
    "review.last_layer": of_wrong_shape,
    "review.theorem_3": forgetful,
    "blog.theorem_1": vanishing,
    "blog.theorem_2": forgetful,
    "blog.note_4": backwards,
    "blog.convergence": slower,
    "ours.polar": backwards,
    "ours.norm_lower_bound": vanishing,
    "ours.polar_ratio": scaled(0.1),
    "ours.one_shortcut_growth": vanishing,
    "ours.pair_law": larger,
    "bhl.recursion": scaled(1.01),
    "bhl.positive_definite": scaled(0.6),
    "bhl.negative_eigenvalue": scaled(1.01),
    "bhl.asymmetric": transposed,
    "zlg.theorem_3.1": hasty,
    "ours.widened_gradient_bound": larger,
    "ours.monotone_descent": slower,
    "ours.singular_target": scaled(0.9),
    "ours.straight_line": larger,
    "ach.theorem_1": larger,
    "ach.claim_1": larger,
    "acgh.margin": scaled(1.2),
    "ours.margin_bound": larger,
    "ours.imbalance_drift": scaled(2),
    "ours.drift_bound": scaled(0.9),
    "ours.saddle_order": scaled(5),
    "ours.saddle_time": scaled(1.4),
    "sh.local_minima": scaled(0.99),
    "kb.chain": scaled(1.01),
    "ours.ball_risk": scaled(0.9),
    "ours.reordering_risk": scaled(0.005),
}
always_exact = changed(lambda found: found._replace(exact=True))
# The opposite error, where a check might see one side alone, and errors in what else the function returns.
OTHER_SIDE = {
    "hm.eq_2.3": larger,
    "hm.convergence": (scaled(0.9), steeper),
    "review.convergence": steeper,
    "blog.convergence": steeper,
    "hm.claim_C.2": larger,
    "hm.theorem_3.2_width": scaled(2),
    "ours.norm_lower_bound": larger,
    "li.definition_4": always_exact,
    "li.theorem_1_relu": always_exact,
    "li.theorem_1.2": (
        changed(lambda found: Escape(found.direction, 100 * found.curvature)),
        changed(lambda found: Escape(found.direction, -found.curvature)),
    ),
    "ours.one_shortcut_growth": larger,
    "ours.polar": scaled(1.01),
    "ours.monotone_descent": larger,
    "ours.straight_line": scaled(0.9),
    "zlg.theorem_3.1": (
        changed(lambda said: said._replace(allowed=1e6 * said.allowed, applies=True)),
        changed(lambda said: said._replace(applies=True)),
        changed(lambda said: said._replace(rate=1.0)),
    ),
    "ours.widened_gradient_bound": vanishing,
    "ours.singular_target": scaled(1.01),
    "acgh.margin": (vanishing, scaled(-5)),
    "ours.drift_bound": scaled(1.01),
    "ours.saddle_order": (vanishing, scaled(0.7), larger),
    "ours.saddle_time": (scaled(0.7), scaled(1.01)),
    "sh.local_minima": (scaled(1.01), scaled(-1)),
    "bhl.positive_definite": scaled(0.9),
    "kb.chain": scaled(0.99),
    "ours.reordering_risk": (scaled(1.01), lambda function: linear_output.ball_risk_bound),
}
FEW = ("hm.eq_2.5", "hm.eq_2.3", "hm.theorem_2.1", "hm.lemma_B.2", "hm.theorem_3.2", "li.theorem_1.3", "li.eq_14")


def check_when_broken(monkeypatch, claim_id, mutation):
    """The check of a claim while the function that it lists is broken."""
    module, name = claims.CLAIMS[claim_id].function.split(".")
    module = importlib.import_module(f"theory.{module}")
    monkeypatch.setattr(module, name, mutation(getattr(module, name)))
    return claims.check(claim_id, seed=3, trials=20)


def test_every_row_has_a_mutation():
    assert set(MUTATIONS) == set(claims.CLAIMS)


@pytest.mark.parametrize(
    "claim", [claim if claim in FEW else pytest.param(claim, marks=pytest.mark.slow) for claim in MUTATIONS]
)
def test_a_check_fails_when_the_function_it_lists_is_broken(monkeypatch, claim):
    check = check_when_broken(monkeypatch, claim, MUTATIONS[claim])
    assert not check.holds and check.verdict == "CHECK FAILED"


@pytest.mark.slow
@pytest.mark.parametrize("claim", OTHER_SIDE)
def test_a_check_fails_when_a_number_is_off_to_the_other_side(monkeypatch, claim):
    mutations = OTHER_SIDE[claim] if isinstance(OTHER_SIDE[claim], tuple) else (OTHER_SIDE[claim],)
    for mutation in mutations:
        with monkeypatch.context() as patch:
            assert not check_when_broken(patch, claim, mutation).holds


def test_the_check_of_the_width_fails_where_the_papers_width_keeps_all_distances(monkeypatch):
    monkeypatch.setattr(projection_width, "draw_projection", lambda rng, width, dim: np.eye(dim))
    check = claims.check("hm.theorem_3.2_width", seed=3, trials=20)
    assert not check.holds and check.counterexample == "k = 10 ln n/ρ² keeps distances to 1 ± ρ/3"
