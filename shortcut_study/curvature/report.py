"""The spectrum of a Hessian in words, in rows of CSV files, and in figures drawn from these rows alone."""

import itertools

import numpy as np
from matplotlib.figure import Figure

from shortcut_study.curvature import quadrature as quad
from shortcut_study.curvature.estimators import confidence
from shortcut_study.curvature.lanczos import summarize
from shortcut_study.curvature.quadrature import Density, Quadrature, extreme_eigenvalues

NEAR_ZERO = 0.05  # of the largest |eigenvalue|
_COLUMNS = ("eigenvalue", "weight", "error_bound")
RESOLVED_FACTOR = 2.0  # between the ends of the range of the 10th percentile
RESOLVED_SHARE = 0.1  # between the ends of the range of the share of negative eigenvalues
NUM_MARKED = 3  # eigenvalues at either end
_ENDS = {"largest": ("C3", "v"), "smallest": ("C2", "D")}  # colours and markers


def report(quadrature: Quadrature, count: int, dim: int) -> str:
    """Returns at most `count` extreme eigenvalues of `dim` with error bounds, the trace, and what else is resolved, as
    lines.

    The share of eigenvalues near 0 is between two bounds, with two standard errors of the sampling. The condition
    number is left out where its 10th percentile is known to no better than a factor of 2, the index where it is to no
    better than 10 points.
    """
    num_found, rounding = quadrature.nodes.shape[1] + len(quadrature.known), quadrature.rounding
    counts = {True: min(count, (num_found + 1) // 2), False: min(count, num_found // 2)}
    ends = [zip(*extreme_eigenvalues(quadrature, counts[end], end)) for end in counts]
    cells = [[f"{value:12.5g}  {bound:11.2g}" for value, bound in end] for end in ends]
    lines = [f"{'largest':>12}  error bound  {'smallest':>12}  error bound"]
    lines += ["  ".join(row).rstrip() for row in itertools.zip_longest(*cells, fillvalue="")]
    if num_found == dim:  # Ritz values that are all eigenvalues, but for rounding
        eigenvalues, _ = extreme_eigenvalues(quadrature, dim, largest=False)
        found = summarize(eigenvalues, rounding)
        low, high = found.index_range
        lines += [
            f"trace: {eigenvalues.sum():.4g} ± {dim * rounding:.1g}, of all {dim} eigenvalues",
            _ratio(found.max_abs, found.p10_abs, rounding),
            f"index: {low:.2%} of the eigenvalues are negative, {high - low:.2%} are 0 within rounding",
        ]
        return "\n".join(lines)
    mean, error = quad.mean_eigenvalue(quadrature)
    error_text = " ± {:.2g} (95 % interval)" if np.isfinite(error) else ", from one random vector"
    lines.append(f"trace: {mean * dim:.4g}{error_text.format(error * dim)}")
    found = quad.summary(quadrature, dim)
    low, high = quad.share_within(quadrature, NEAR_ZERO * found.max_abs, dim)
    lines.append(f"eigenvalues smaller in size than {NEAR_ZERO:.0%} of the largest: {low:.2%} to {high:.2%}")
    low, high = found.p10_range or (0.0, np.inf)
    if high <= rounding:
        lines.append(_ratio(found.max_abs, high, rounding))
    elif high <= RESOLVED_FACTOR * low:
        lines.append(f"{_ratio(found.max_abs, found.p10_abs, rounding)} (in {low:.2g} – {high:.2g})")
    low, high = found.index_range
    if high - low <= RESOLVED_SHARE:
        lines.append(f"index: {found.index:.2%} of the eigenvalues are negative (in {low:.2%} – {high:.2%})")
    return "\n".join(lines)


def _ratio(max_abs: float, p10_abs: float, rounding: float) -> str:
    largest = f"largest |eigenvalue| {max_abs:.4g}"
    if p10_abs <= rounding:
        return f"condition number: infinite within rounding, {largest} over 10th percentile of at most {rounding:.1g}"
    return f"condition number: {max_abs / p10_abs:.4g}, {largest} over 10th percentile {p10_abs:.2g}"


def quadrature_rows(quadrature: Quadrature) -> list[dict]:
    """Returns a row for each known eigenvalue, vector −1, for each Ritz value of a vector, and for each probe."""
    nodes, weights, bounds, rounding, known, known_bounds, probes = quadrature
    columns = [[-1, known, np.full(len(known), quadrature.known_weight), known_bounds]]
    columns += [[vector, *row] for vector, row in enumerate(zip(nodes, weights, bounds))]
    columns += [[len(nodes) + i, [mean], [1.0], [np.nan]] for i, mean in enumerate(probes)]
    return [
        {"vector": vector} | dict(zip(_COLUMNS, map(float, row))) | {"rounding": rounding}
        for vector, *rows in columns
        for row in zip(*rows)
    ]


def density_rows(density: Density) -> list[dict]:
    """Returns one row a point of the grid: eigenvalue, density, standard_error."""
    return [dict(zip(("eigenvalue", "density", "standard_error"), map(float, row))) for row in zip(*density)]


def quadrature_from_rows(rows: list[dict]) -> Quadrature:
    """Returns the quadrature that `quadrature_rows` made rows of; a probe is a vector without an error bound."""
    numbers = np.array([[float(row[name]) for name in ("vector", *_COLUMNS)] for row in rows])
    vectors = [numbers[numbers[:, 0] == vector, 1:].T for vector in np.unique(numbers[:, 0]) if vector >= 0]
    known = numbers[numbers[:, 0] < 0, 1:].T
    whole = [vector for vector in vectors if not np.isnan(vector[2]).any()]
    probes = np.array([vector[0, 0] for vector in vectors[len(whole) :]])
    nodes = np.stack(whole, axis=1) if whole else np.zeros((3, 1, 0))
    # A table has seven digits, fewer than the share of one eigenvalue in millions needs: the known ones keep theirs.
    if nodes.size:
        nodes[1] *= (1 - known[1].sum()) / nodes[1].sum(axis=1, keepdims=True)
    return Quadrature(*nodes, max(float(row["rounding"]) for row in rows), known[0], known[2], probes)


def spectrum_figure(rows: list[dict], density: list[dict], title: str = "") -> Figure:
    """Draws rows of `quadrature_rows` and `density_rows`: the density, and extreme eigenvalues with errors."""
    grid, heights, errors = (
        np.array([float(row[name]) for row in density]) for name in ("eigenvalue", "density", "standard_error")
    )
    quadrature = quadrature_from_rows(rows)
    errors *= confidence(len(quadrature.nodes))
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    axes.fill_between(grid, heights - errors, heights + errors, color="C0", alpha=0.3, linewidth=0)
    axes.plot(grid, heights, color="C0", linewidth=1.2, label="density, and its 95 % range")
    lowest = heights.max()
    for name, (colour, marker) in _ENDS.items():
        values, bounds = extreme_eigenvalues(quadrature, NUM_MARKED, name == "largest")
        at = np.interp(values, grid, heights)
        count = f"{len(values)} {name}" if len(values) > 1 else name
        label = f"{count}, the outermost {values[0]:.4g} ± {bounds[0]:.1g}"
        axes.errorbar(values, at, xerr=bounds, fmt=marker, ms=6, capsize=3, color=colour, label=label)
        lowest = min(lowest, at.min())
    axes.axvline(0, color="0.5", linewidth=1, linestyle=":")
    axes.set(xlabel=r"eigenvalue $\lambda$ of the Hessian", ylabel="density of the eigenvalues", yscale="log")
    axes.set_title(title, parse_math=False)
    axes.set_ylim(0.1 * lowest, 3 * heights.max())
    axes.legend()
    return figure


def parts_table(rows: list[dict]) -> str:
    """Returns rows as `per_layer` makes them as an aligned table."""
    width = max(len(row["part"]) for row in rows)
    heads = ("weights", 9), ("largest", 11), ("± at most", 9), ("smallest", 11), ("trace", 10), ("± (95 %)", 8)
    lines = [f"{'part':{width}}" + "".join(f"  {name:>{length}}" for name, length in heads)]
    for row in rows:
        error = f"{row['trace_error']:.1g}" if np.isfinite(row["trace_error"]) else "–"
        ends = f"{row['largest']:11.4g}  {row['largest_error_bound']:9.1g}  {row['smallest']:11.4g}"
        part = f"{row['part']:{width}}  {int(row['num_weights']):>9,}"
        lines.append(f"{part}  {ends}  {row['trace']:10.4g}  {error:>8}")
    return "\n".join(lines)


def parts_figure(rows: list[dict]) -> Figure:
    """Draws the extreme eigenvalues and the trace of rows as `per_layer` makes them, with their errors."""
    names, at = [row["part"].replace("_", " ") for row in rows], np.arange(len(rows))
    column = {name: np.array([float(row[name]) for row in rows]) for name in rows[0] if name != "part"}
    figure = Figure(figsize=(8, max(2.5, 1 + 0.22 * len(rows))), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    style = {"ms": 4, "capsize": 2}
    for end, (colour, marker) in _ENDS.items():
        errors = column[f"{end}_error_bound"]
        left.errorbar(column[end], at, xerr=errors, fmt=marker, color=colour, label=end, **style)
    left.axvline(0, color="0.6", linewidth=1, linestyle=":")
    left.set(yticks=at, yticklabels=names, xlabel="eigenvalue of the part's block of the Hessian")
    left.invert_yaxis()
    left.legend()
    right.errorbar(column["trace"], at, xerr=np.nan_to_num(column["trace_error"]), fmt="s", color="C0", **style)
    right.set(xlabel="trace of the block, and its 95 % range")
    for axes in (left, right):
        axes.tick_params(axis="y", labelsize="x-small")
        axes.locator_params(axis="x", nbins=6)
    return figure
