"""shortcut_study.aggregation on rows made by hand."""

import numpy as np
import pytest
from study_rows import LEAST, row

from shortcut_study import aggregation
from shortcut_study.aggregation import ROUNDING, along_loss, best_rates, insensitive_rates, over_seeds
from shortcut_study.architectures import TWO, XAVIER


def test_over_seeds_are_means_and_deviations_of_logarithms():
    values = [(6, 0, 10.0), (6, 1, 1000.0), (2, 0, 10.0), (2, 1, np.inf), (3, 0, np.inf), (4, 0, "")]
    rows = [row("initial_spectrum", TWO, depth, seed, condition_number=value) for depth, seed, value in values]
    band = over_seeds(rows, "depth", "condition_number")
    assert band.x.tolist() == [2, 6] and band.count.tolist() == [1, 2]  # the infinite and the empty are out
    np.testing.assert_allclose(band.mean, [1, 2])
    np.testing.assert_allclose(band.std, [0, np.sqrt(2)])
    np.testing.assert_allclose(over_seeds(rows, "depth", "condition_number", log=False).mean, [10, 505])


def test_over_seeds_counts_a_value_of_zero():
    rows = [row("spectrum_at_losses", TWO, 6, seed, index=index) for seed, index in enumerate([0.0, 0.5])]
    band = over_seeds(rows, "depth", "index", log=False)
    assert band.mean.tolist() == [0.25] and band.count.tolist() == [2]


def test_over_seeds_of_nothing_is_empty():
    rows = [row("initial_spectrum", XAVIER, 2, 0, condition_number=np.inf)]
    for nothing in ([], rows):
        assert all(len(part) == 0 for part in over_seeds(nothing, "depth", "condition_number"))


def runs(*of_seeds):
    return [row("norms", TWO, 2, seed, loss=loss, norm=norm) for seed, run in enumerate(of_seeds) for loss, norm in run]


def test_along_the_loss_no_line_is_drawn_past_a_value_that_is_not_finite():
    falling = runs([(1.0, 1.0), (0.1, 2.0), (0.01, np.inf), (1e-3, 4.0), (1e-4, 5.0)])
    band = along_loss(falling, "loss", "norm", log=False, num_points=41)
    assert not ((band.x > -2.95) & (band.x < -1.05)).any() and {-4, -3, -1, 0} <= set(np.round(band.x, 9))
    with_others = along_loss(runs(*[[(1.0, np.inf), (0.1, np.inf)]] * 2, [(1.0, 1.0), (0.1, 2.0)]), "loss", "norm")
    assert not len(with_others.x)  # one run of three


@pytest.mark.parametrize("middle, kept", [(1e-2, [-5, -2, -1, 0]), (1e-3, [-5, -4, -3, 0])])
def test_along_the_loss_a_wide_gap_is_omitted_but_its_ends_are_not(middle, kept):
    falling = runs([(loss, 1 - np.log10(loss)) for loss in (1.0, middle, 1e-5)])
    band = along_loss(falling, "loss", "norm", False, num_points=6, largest_gap=100)
    np.testing.assert_allclose(band.x, kept)
    np.testing.assert_allclose(band.mean, 1 - band.x)


def test_along_the_loss_is_linear_in_the_logarithm_of_the_loss():
    band = along_loss(runs([(1.0, 0.0), (0.01, 4.0)]), "loss", "norm", log=False, num_points=5)
    np.testing.assert_allclose(band.x, [-2, -1.5, -1, -0.5, 0])
    np.testing.assert_allclose(band.mean, [4, 3, 2, 1, 0], atol=1e-12)
    assert not band.std.any() and band.count.tolist() == [1] * 5
    band = along_loss(runs([(1.0, 10.0), (0.01, 1000.0)]), "loss", "norm", num_points=3)
    np.testing.assert_allclose(band.mean, [3, 2, 1])


def test_run_along_the_loss_counts_up_to_its_last_loss_and_half_of_the_runs_suffice():
    long, short = [(1.0, 1.0), (1e-4, 5.0)], [(1.0, 3.0), (1e-2, 3.0)]
    band = along_loss(runs(long, short), "loss", "norm", log=False, num_points=5)
    assert band.x.tolist() == [-4, -3, -2, -1, 0] and band.count.tolist() == [1, 1, 2, 2, 2]
    np.testing.assert_allclose(band.mean, [5, 4, 3, 2.5, 2])
    np.testing.assert_allclose(band.std, [0, 0, 0, 0.5 * np.sqrt(2), np.sqrt(2)], atol=1e-12)
    band = along_loss(runs(long, short, short), "loss", "norm", log=False, num_points=5)
    np.testing.assert_allclose(band.x, [-2, -1, 0])  # one of three is not


def test_along_the_loss_takes_rows_in_any_order_and_leaves_out_those_without_values():
    rows = runs([(1.0, 1.0), (0.1, 2.0), (0.01, 3.0)])
    expected = along_loss(rows, "loss", "norm")
    others = [row("norms", TWO, 2, 0, loss="", norm=9.0), row("norms", TWO, 2, 0, loss=0.5, norm="")]
    np.testing.assert_array_equal(along_loss(others + rows[::-1], "loss", "norm"), expected)
    assert all(len(part) == 0 for part in along_loss(rows[:1], "loss", "norm"))  # one point is no line
    assert all(len(part) == 0 for part in along_loss([], "loss", "norm"))


def test_along_the_loss_omits_values_after_a_divergence():
    rows = runs([(1.0, 1.0), (0.1, 2.0)])
    diverged = [row("norms", TWO, 2, seed, loss=np.nan, norm=np.nan, status="diverged") for seed in (0, 1)]
    np.testing.assert_array_equal(along_loss(rows + diverged, "loss", "norm"), along_loss(rows, "loss", "norm"))


def test_along_the_loss_the_deviation_of_three_runs_is_that_of_a_sample():
    band = along_loss(runs(*[[(1.0, value), (0.1, value)] for value in (1.0, 2.0, 6.0)]), "loss", "norm", log=False)
    np.testing.assert_allclose(band.std, np.std([1, 2, 6], ddof=1))


def final(depth, rate, *losses):
    rows = []
    for seed, loss in enumerate(losses):
        values = {"learning_rate": rate, "loss": LEAST + loss, "excess_loss": loss}
        rows.append(
            row("learning_rates", TWO, depth, seed, status="done" if np.isfinite(loss) else "diverged", **values)
        )
    return rows


def test_the_best_rate_has_the_lowest_mean_and_no_seed_that_diverges():
    rows = [*final(4, 0.1, 2.0, 4.0), *final(4, 1.0, 0.5, np.nan), *final(4, 0.01, 3.0, 3.5), *final(2, 0.1, 1.0, 1.0)]
    best = best_rates(rows, "excess_loss")
    assert list(best) == [2, 4] and best[2][:4] == (2, 0.1, 1.0, 0.0) and best[2].losses == {0: 1.0, 1: 1.0}
    assert best[4][:3] == (4, 0.1, 3.0)
    assert best[4].log_std == pytest.approx(np.log10(2) / np.sqrt(2))
    lost = best_rates(rows + final(3, 0.1, np.nan, 1.0), "excess_loss")[3]
    assert np.isnan(lost.rate) and lost[2:] == (np.inf, 0.0, {}, False, False)
    assert best_rates(final(2, 0.1, 7.0), "excess_loss")[2].log_std == 0
    assert best_rates([], "excess_loss") == {}


def test_a_network_whose_final_loss_is_the_same_at_every_rate_learned_nothing():
    rows = [row for rate in (0.01, 0.1, 1.0) for row in final(4, rate, 0.2 + rate / 1000, 0.2)]
    assert not best_rates(rows, "excess_loss")[4].learned
    assert best_rates(rows + final(4, 10.0, 0.1, 0.1), "excess_loss")[4].learned
    assert best_rates(rows + final(4, 10.0, 0.197, 0.197), "excess_loss")[4].learned  # 1.5 % less


def test_a_network_learns_if_the_excess_differs_however_little_the_loss_does():
    rows = [row for rate, loss in ((0.01, 1e-4), (0.1, 1e-5), (1.0, 1e-6)) for row in final(4, rate, loss, loss)]
    best = best_rates(rows, "excess_loss")[4]
    assert best.learned and best.rate == 1.0
    assert not best_rates(rows, "loss")[4].learned


def test_the_best_rate_is_the_highest_of_equals_and_of_the_lowest_mean_not_median():
    assert best_rates([*final(2, 0.1, 1.0, 2.0), *final(2, 1.0, 2.0, 1.0)], "excess_loss")[2].rate == 1.0
    best = best_rates([*final(2, 0.1, 1.0, 2.0, 30.0), *final(2, 1.0, 3.0, 4.0, 5.0)], "excess_loss")[2]
    assert (best.rate, best.mean) == (1.0, 4.0)


def given_up(depth, rate, bound):
    return row("learning_rates", TWO, depth, 1, learning_rate=rate, status=f"bounded by {bound:g}")


def test_rate_at_which_one_seed_was_stopped_survives_with_the_loss_that_bounds_it():
    bound = 10**-1.5  # "bounded by 0.0316228"
    rows = [*final(4, 0.01, 1.0), given_up(4, 0.01, bound), *final(4, bound, 5.0, 2.0), *final(4, 1.0, 4.0, 4.0)]
    best = best_rates(rows, "excess_loss")[4]
    assert (best.rate, best.mean, best.losses, best.is_bound) == (0.01, 1.5, {0: 1.0, 1: 2.0}, True)
    lost = [*final(4, 0.01, 1.0), given_up(4, 0.01, bound), *final(4, bound, np.nan, 2.0)]
    assert best_rates(lost, "excess_loss")[4].rate == 0.01  # the bound diverged for seed 0 alone
    assert np.isnan(best_rates([*final(4, 0.01, np.nan), *lost[1:]], "excess_loss")[4].rate)
    assert not best_rates(rows + final(4, 0.1, 0.5, 0.5), "excess_loss")[4].is_bound


def test_what_a_bound_stands_for_does_not_count_as_the_same_loss_at_another_rate():
    rows = [*final(4, 0.1, 1.0, 1.0), *(given_up(4, rate, 0.1) for rate in (0.01, 0.03))]
    rows += [row | {"seed": 0} for row in rows[2:]]
    assert best_rates(rows, "excess_loss")[4].learned


def test_losses_below_rounding_are_taken_as_rounding():
    best = best_rates([*final(2, 0.1, 1e-30, -1e-33), *final(2, 1.0, 1.0, 1.0)], "excess_loss")[2]
    assert (best.rate, best.mean) == (0.1, ROUNDING)


def test_up_to_the_highest_insensitive_rate_no_seed_hangs_on_rounding():
    def perturbed(rate, *changes):
        return [row | {"perturbed_loss": row["loss"] * (1 + change) if change != "" else ""}
                for row, change in zip(final(4, rate, *[0.5] * len(changes)), changes)]  # fmt: skip

    # Seed 0 is stable at 1.0 and was not run again below it, seed 1 at 0.1.
    rows = [*perturbed(0.01, "", ""), *perturbed(0.1, "", 1e-3), *perturbed(1.0, 1e-9, 0.2), *final(4, 10.0, np.nan)]
    assert insensitive_rates(rows) == {4: 0.1}
    assert insensitive_rates(perturbed(0.1, 1e-9, 0.2)) == {}


def test_depths_come_once_and_runs_that_diverged_are_no_seeds():
    rows = [
        {"depth": 4, "seed": 1, "status": "done"},
        {"depth": 2, "seed": 2},
        {"depth": 4, "seed": 1, "status": "diverged"},
    ]
    assert aggregation.depths_in(rows) == [2, 4] and aggregation.num_seeds(rows) == 2
    assert aggregation.num_seeds(rows[2:]) == 0 and aggregation.done_rows(rows[::2]) == rows[:1]


@pytest.mark.parametrize("change, insensitive", [(0.009, True), (-0.009, True), (0.011, False), (-0.011, False)])
def test_a_loss_is_insensitive_if_it_changes_by_less_than_a_hundredth_either_way(change, insensitive):
    assert aggregation._is_insensitive({"loss": 2.0, "perturbed_loss": 2 * (1 + change)}) is insensitive


def test_a_loss_of_1e_17_is_more_than_rounding():
    assert best_rates(final(2, 0.1, 1e-17, 3e-17), "excess_loss")[2].mean == pytest.approx(2e-17, rel=1e-9, abs=0)
