"""What launch.descent_map computes and draws: recursions for single eigenvalues, and tables that were made up.

The map and two other tables take minutes: they are made up, except for two cells. All else is computed.
"""

import itertools
import math
import re

import numpy as np
import pytest
from begun import begin
from launching import config_of
from outputs import references as ref
from outputs.conftest import finished
from outputs.words import DESCENT

TARGETS = ("positive definite", "rotated", "indefinite", "singular")
STARTS = ("zero", "identity plus noise", "small random")
METHODS = ("descent", "momentum", "orthogonalised")
DEPTHS, SPEEDS = (1, 2, 4, 8, 16, 32, 64), [2.0**-k for k in range(11)]
COMPUTED = [("positive definite", 4), ("singular", 2)]  # cells of plain descent from zero


def made_up_map(rng):
    cells = [*itertools.product(TARGETS, STARTS, METHODS, DEPTHS, (6,))]
    cells += itertools.product(TARGETS, STARTS[:1], METHODS, (16,), (20,))
    rows = []
    for target, start, method, depth, dimension in cells:
        if (start, method) == ("zero", "descent") and (target, depth) in COMPUTED:
            continue
        key = {"target": target, "start": start, "method": method, "num_layers": depth, "dimension": dimension}
        for speed in SPEEDS:
            values = {"speed": speed, "learning_rate": speed / depth, "steps": int(rng.integers(10, 500))}
            values["status"] = ("reached", "stalled", "diverged")[rng.integers(3)]
            known = dict(zip("excess norm least_singular".split(), rng.uniform(0.1, 0.9, 3)))
            promised = dict.fromkeys("promised_exact promised_2_3 promised_margin".split(), math.nan)
            rows.append(key | values | known | promised | {"largest_rate": 0.1 / depth})
    return rows


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """The tables and figures of a run, by name, and its output."""
    run_dir, rng = tmp_path_factory.mktemp("descent") / "map", np.random.default_rng(0)
    begin(run_dir, config_of("descent_map"), "descent_map")
    ref.write_table(run_dir / "results.csv", made_up_map(rng))
    rows = []
    for n, method, size in itertools.product((1, 2, 3), METHODS, (0.01, 0.1)):
        values = {name: 10 ** rng.uniform(0, 3) for name in DESCENT["saddle"]}
        rows.append({"shortcut_depth": n, "method": method, "learning_rate": 0.05, "size": size} | values)
    ref.write_table(run_dir / "saddle.csv", rows)
    rows = []
    for category, k in itertools.product(("bad_local_minimum", "saddle"), range(6)):
        values = {name: 10 ** rng.uniform(-2, 0) for name in ("linear", "risk", "with_output")}
        rows.append({"category": category, "num_layers": 1 + k % 2} | values)
    ref.write_table(run_dir / "linear_output.csv", rows)
    _, out, figures = mapped = finished("descent_map", run_dir)
    names = ("results", "eigenvalues", "rotations", "saddle", "rates", "linear_output", "excess_by_radius")
    return {name: mapped.rows(name) for name in names}, figures, out


def layers_from_zero(targets, depth, rate, num_steps):
    """λ of each layer before each step of descent on Σ|λ^ℓ − φ|², from λ = 1: eigenvalues move independently."""
    targets = np.asarray(targets)
    path = [np.ones(len(targets), targets.dtype)]
    with np.errstate(all="ignore"):
        for _ in range(num_steps):
            values = path[-1]
            path.append(values - rate * 2 * (values**depth - targets) * np.conj(values) ** (depth - 1))
    return np.array(path)


def test_cells_of_the_map_are_those_of_the_eigenvalues(drawn):
    eigenvalues = np.geomspace(0.4, 2, 6)  # docs: 0.4 … 2, of the singular target the least is 0
    for target, depth in COMPUTED:
        targets = eigenvalues * (np.arange(6) > 0) if target == "singular" else eigenvalues
        rows = ref.select(drawn[0]["results"], target=target, start="zero", method="descent", num_layers=float(depth))
        rows = ref.select(rows, dimension=6.0)
        assert [row["speed"] for row in rows] == SPEEDS
        for row in rows[2:]:  # where larger steps end depends on rounding
            assert row["learning_rate"] == pytest.approx(row["speed"] / depth)
            values = layers_from_zero(targets, depth, row["learning_rate"], 500)
            excess = ((values**depth - targets) ** 2).sum(1) / ((1 - targets) ** 2).sum()
            is_end = (excess <= 1e-3) | ~(excess < 1e4)
            end = int(is_end.argmax()) if is_end.any() else 500
            status = "stalled" if not is_end.any() else "reached" if excess[end] <= 1e-3 else "diverged"
            assert (row["status"], row["steps"]) == (status, end)
            assert status == "diverged" or row["excess"] == pytest.approx(excess[end], rel=1e-4)


def test_the_lines_of_the_map_name_the_fastest_step_size_of_each_cell(drawn):
    rows, lines = drawn[0]["results"], drawn[2].splitlines()
    names, num_stalled = ("target", "start", "method", "num_layers", "dimension"), 0
    for key in dict.fromkeys(tuple(row[name] for name in names) for row in rows):
        cell = ref.select(rows, **dict(zip(names, key)))
        reached = ref.select(cell, status="reached")
        (line,) = [line for line in lines if line.startswith("{}, {}, {}, ℓ = {:g}, d = {:g}: ".format(*key))]
        numbers = [min(ref.column(cell, "excess"))]
        if reached:
            best = min(reached, key=lambda row: row["steps"])
            numbers = [best["steps"], best["speed"], len(reached), 11]
        ref.assert_numbers(re.sub(r"/ℓ|of f\(0\)", "", line.split(": ")[1]), *numbers)
        num_stalled += not reached
    assert num_stalled


def test_the_maps_have_the_steps_of_every_cell_and_the_largest_rate(drawn):
    for method, name in zip(METHODS, ("map", "map_momentum", "map_orthogonalised")):
        panels = iter(drawn[1][name].axes)
        labels = [text.get_text() for text in drawn[1][name].axes[0].get_yticklabels()]
        assert labels == [f"1/{2**k}" for k in range(0, 11, 2)]
        for target, start in itertools.product(TARGETS, STARTS):
            axes = next(panels)
            known = {"target": target, "start": start, "method": method, "dimension": 6.0}
            rows = ref.select(drawn[0]["results"], **known)
            steps, black = (mesh.get_array().reshape(11, 7) for mesh in axes.collections[:2])
            for row in rows:
                cell = SPEEDS.index(row["speed"]), DEPTHS.index(int(row["num_layers"]))
                expected = max(row["steps"], 1) if row["status"] == "reached" else None
                assert (None if np.ma.getmaskarray(steps)[cell] else steps[cell]) == expected
                assert np.ma.getmaskarray(black)[cell] == (row["status"] != "diverged")
            rates = [ref.select(rows, num_layers=float(depth))[0]["largest_rate"] * depth for depth in DEPTHS]
            if axes.lines:
                ref.assert_line(axes.lines[0], range(7), -np.log2(rates))
            assert bool(axes.lines) == bool(np.isfinite(ref.column(rows, "largest_rate")).all())


def test_eigenvalues_are_those_of_their_recursion_in_table_and_figure(drawn):
    rows, (excess, norm) = drawn[0]["eigenvalues"], drawn[1]["eigenvalues"].axes
    targets = sorted({row["eigenvalue"] for row in rows})
    assert {row["num_layers"] for row in rows} == {8}
    values = layers_from_zero(targets, 8, rows[0]["learning_rate"], 3000)
    for k, target in enumerate(targets):
        chosen = ref.select(rows, eigenvalue=target)
        steps = ref.column(chosen, "step").astype(int)
        expected = (values[steps, k] ** 8 - target) ** 2
        np.testing.assert_allclose(ref.column(chosen, "excess"), expected, rtol=1e-4, atol=1e-12)
        np.testing.assert_allclose(ref.column(chosen, "norm"), np.abs(values[steps, k] - 1), rtol=1e-4, atol=1e-7)
        line = ref.labelled(excess)[DESCENT["target"].format(target)]
        ref.assert_line(line, steps, np.maximum(ref.column(chosen, "excess"), 1e-16))
        (other,) = [o for o in norm.lines if ref.colour_of(o) == ref.colour_of(line) and len(o.get_xdata()) > 2]
        ref.assert_line(other, steps, ref.column(chosen, "norm"))
    floors = [line.get_ydata()[0] for line in excess.lines if line.get_linestyle() == ":"]
    assert floors == pytest.approx([target**2 for target in targets if target < 0])
    gamma = max(abs(math.log(abs(target))) for target in targets if target)
    radius = 2 * math.sin(math.pi / 16) + math.exp(gamma / 8) - 1  # polar's bound for Theorem 2.1, ℓ = 8
    assert ref.labelled(norm)[DESCENT["radius"]].get_ydata() == pytest.approx([radius, radius])
    assert list(ref.labelled(norm)[DESCENT["end"]].get_ydata()) == [1, 1]


def test_rotations_are_those_of_their_recursion_in_table_and_figure(drawn):
    rows, (plane, distance) = drawn[0]["rotations"], drawn[1]["rotations"].axes
    for k, angle in enumerate((60, 120, 150, 170)):
        chosen = ref.select(rows, angle=float(angle))
        phi, steps = np.exp(1j * math.radians(angle)), ref.column(chosen, "step").astype(int)
        w = layers_from_zero([phi], 8, 0.01, 3000)[steps, 0] ** 8
        found = ref.column(chosen, "real") + 1j * ref.column(chosen, "imaginary")
        np.testing.assert_allclose(found, w, atol=1e-5)
        dots = [line for line in plane.lines if line.get_marker() == "."][k]
        ref.assert_line(dots, found.real, found.imag)
        ref.assert_line(distance.lines[k], steps, np.abs(found - phi), rtol=1e-4)


def descent_from_zero(R, depth, rate, num_steps):
    """Yields ‖W − R‖², σ_min(W) and max ‖N_i − I‖ of W = N_ℓ···N_1 before each step of descent from N_i = I."""
    layers = np.repeat(np.eye(len(R))[None], depth, axis=0)
    for _ in range(num_steps):
        before = [np.eye(len(R))]
        for layer in layers:
            before.append(layer @ before[-1])
        error, slopes = before.pop() - R, np.empty_like(layers)
        norm = np.linalg.norm(layers - np.eye(len(R)), 2, axis=(1, 2)).max()
        yield np.square(error).sum(), np.linalg.svd(error + R, compute_uv=False)[-1], norm
        back = 2 * error
        for i in reversed(range(depth)):
            slopes[i], back = back @ before[i].T, layers[i].T @ back
        layers = layers - rate * slopes


def test_rates_have_their_drift_bound_and_every_guarantee_is_drawn(drawn):
    rows, (*panels, drift) = drawn[0]["rates"], drawn[1]["rates"].axes
    cases = dict.fromkeys((row["target"], row["num_layers"]) for row in rows)
    for axes, (target, depth) in zip(panels, cases, strict=True):
        chosen = ref.select(rows, target=target, num_layers=depth)
        steps, excess = ref.column(chosen, "step"), ref.column(chosen, "excess")
        reach = 0.5 if target == "near I" else math.radians(100)
        growth = 1 + reach / depth
        smooth = 2 * depth * growth ** (2 * depth - 2) + 2 * (depth - 1) * growth ** (depth - 2) * math.sqrt(excess[0])
        bound = 2 / smooth * (excess[0] - excess)  # 2η(f(0) − f(T)), η = 1/L
        np.testing.assert_allclose(ref.column(chosen, "drift_bound"), bound, rtol=1e-4, atol=1e-8)
        noise = np.random.default_rng(0).standard_normal((5, 5))
        R = np.eye(5) + reach * noise / np.linalg.norm(noise) if target == "near I" else ref.turn(reach)
        risks, smallest, norms = np.transpose([*descent_from_zero(R, int(depth), 1 / smooth, len(steps))])
        np.testing.assert_allclose(excess, risks, rtol=1e-4, atol=1e-8)
        least = np.minimum.accumulate(smallest) ** (2 - 2 / depth)  # a step leaves 1 − 2ηℓσ^(2 − 2/ℓ) of f
        inside = np.maximum(1 - np.maximum.accumulate(norms), 0) ** (2 * depth - 2)  # (2.3), in the place of σ^…
        for name, shares in (("by_seen_margin", least), ("by_norm", inside)):
            promised = excess[0] * np.cumprod([1, *(1 - 2 * depth / smooth * shares[:-1])])
            np.testing.assert_allclose(ref.column(chosen, name), promised, rtol=1e-4)
        for name, label in DESCENT["rates"].items():
            values = ref.column(chosen, name)
            if np.isfinite(values).all():
                ref.assert_line(ref.labelled(axes)[label], steps, values)
            assert name == "excess" or not (values < excess * (1 - 1e-5) - 1e-12).any()
        if target == "near I":
            line = ref.labelled(drift)[DESCENT["drift"].format(int(depth))]
            ref.assert_line(line, steps / steps.max(), ref.column(chosen, "drift"))
            (dotted,) = [o for o in drift.lines if ref.colour_of(o) == ref.colour_of(line) and o is not line]
            ref.assert_line(dotted, steps / steps.max(), ref.column(chosen, "drift_bound"))
            assert dotted.get_label() == DESCENT["drift bound"]


def test_saddles_minima_and_excess_are_drawn_from_their_columns(drawn):
    tables, figures, _ = drawn
    for axes, method in zip(figures["saddle"].axes, METHODS, strict=True):
        assert axes.get_title().startswith(method) and "0.05" in axes.get_title()
        for n in (1, 2, 3):
            chosen = ref.select(tables["saddle"], method=method, shortcut_depth=float(n))
            colour = ref.colour_of(ref.labelled(axes)[DESCENT["saddle"]["predicted"].format(n)])
            lines = {line.get_label(): line for line in axes.lines if ref.colour_of(line) == colour}
            for name, label in DESCENT["saddle"].items():
                ref.assert_line(lines[label.format(n)], (0.01, 0.1), np.maximum(ref.column(chosen, name), 1))
    bad = ref.select(tables["linear_output"], category="bad_local_minimum")
    for axes, name in zip(figures["linear_output"].axes, ("risk", "with_output"), strict=True):
        for depth, line in zip((1.0, 2.0), axes.lines):
            chosen = ref.select(bad, num_layers=depth)
            ref.assert_line(line, ref.column(chosen, "linear"), ref.column(chosen, name))
    rows, (axes,) = tables["excess_by_radius"], figures["excess_by_radius"].axes
    for name, label in DESCENT["excess"].items():
        ref.assert_line(ref.labelled(axes)[label], ref.column(rows, "radius"), ref.column(rows, name))
    assert all(row["at_zero"] <= row["ball_bound"] and row["swapped"] <= row["swapped_bound"] for row in rows)
