"""The spectrum of a Hessian in words, in rows of CSV files, and in pictures that are drawn from these rows alone."""

import itertools

import numpy as np
from matplotlib.figure import Figure

from shortcut_study.curvature.lanczos import Ritz, summarize
from shortcut_study.curvature.quadrature import Density, Quadrature, Summary, extreme_eigenvalues, summary, trace_mean

RESOLVED_FACTOR = 2.0  # between the ends of the range of the 10th percentile
RESOLVED_SHARE = 0.1  # between the ends of the range of the share of negative eigenvalues
NUM_MARKED = 3  # eigenvalues at either end


def report(quadrature: Quadrature, count: int, dim: int) -> str:
    """Returns the extreme eigenvalues with error bounds, condition number, index and mean, as lines.

    A condition number whose 10th percentile is known to no better than a factor of 2, and an index known to no better
    than 10 points, are not printed: their range is, and whether a larger order or more vectors would resolve them. At
    order = dim there is no range: the Ritz values are all eigenvalues, and the three numbers are theirs, without
    weights.

    Args:
      count: int. How many eigenvalues at either end, at most; each Ritz value stands at one of them.
      dim: int. Number of eigenvalues.
    """
    order = quadrature.nodes.shape[1]
    counts = {True: min(count, (order + 1) // 2), False: min(count, order // 2)}
    ends = [zip(*extreme_eigenvalues(quadrature, counts[end], end)) for end in counts]
    cells = [[f"{value:12.5g}  {bound:11.2g}" for value, bound in end] for end in ends]
    lines = [f"{'largest':>12}  error bound  {'smallest':>12}  error bound"]
    lines += ["  ".join(row).rstrip() for row in itertools.zip_longest(*cells, fillvalue="")]
    if order == dim:
        return "\n".join([*lines, "", *_all_eigenvalues(quadrature)])
    mean, error = trace_mean(quadrature, lambda values: values)
    # As it is, and without the error of sampling, which more vectors make smaller and a larger order does not.
    summaries = summary(quadrature, dim), summary(quadrature)
    lines += ["", _condition_number(*summaries, quadrature.rounding), _index(*summaries)]
    lines.append(f"mean eigenvalue: {mean:.4g}" + (f" ± {error:.1g}" if len(quadrature.nodes) > 1 else ""))
    return "\n".join(lines)


def _all_eigenvalues(quadrature: Quadrature) -> list[str]:
    """Condition number, index and mean of Ritz values that are all eigenvalues, but for rounding."""
    dim = quadrature.nodes.shape[1]
    eigenvalues, _ = extreme_eigenvalues(quadrature, dim, largest=False)
    rounding = quadrature.rounding
    found = summarize(eigenvalues, rounding)
    low, high = found.index_range
    return [
        _ratio(found.max_abs, found.p10_abs, rounding),
        f"index: {low:.2%} of the eigenvalues are negative, {high - low:.2%} are 0 within rounding",
        f"mean eigenvalue: {eigenvalues.mean():.4g}",
    ]


def _ratio(max_abs: float, p10_abs: float, rounding: float) -> str:
    largest = f"largest |eigenvalue| {max_abs:.4g}"
    if p10_abs <= rounding:
        return f"condition number: infinite within rounding, {largest} over 10th percentile of at most {rounding:.1g}"
    return f"condition number: {max_abs / p10_abs:.4g}, {largest} over 10th percentile {p10_abs:.2g}"


def _condition_number(found: Summary, without_sampling: Summary, rounding: float) -> str:
    low, high = found.p10_range
    largest = f"largest |eigenvalue| {found.max_abs:.4g}"
    if high <= rounding:
        return _ratio(found.max_abs, high, rounding)
    if not _is_factor(low, high):
        advice = "num_vectors" if _is_factor(*without_sampling.p10_range) else "order"
        known = f"{largest} over 10th percentile in {low:.2g} – {high:.2g}"
        return f"condition number: not resolved, {known}; raise --{advice}"
    return f"{_ratio(found.max_abs, found.p10_abs, rounding)} (in {low:.2g} – {high:.2g})"


def _is_factor(low: float, high: float) -> bool:
    return high <= RESOLVED_FACTOR * low


def _index(found: Summary, without_sampling: Summary) -> str:
    low, high = found.index_range
    if high - low > RESOLVED_SHARE:
        advice = "order" if np.ptp(without_sampling.index_range) > RESOLVED_SHARE else "num_vectors"
        return f"index: not resolved, {low:.2%} – {high:.2%} of the eigenvalues are negative; raise --{advice}"
    return f"index: {found.index:.2%} of the eigenvalues are negative (in {low:.2%} – {high:.2%})"


def ritz_rows(vector: int, ritz: Ritz) -> list[dict]:
    """Returns one row a Ritz value of a starting vector: vector, eigenvalue, weight, error_bound, rounding."""
    names = ("eigenvalue", "weight", "error_bound")
    columns = zip(ritz.values.tolist(), ritz.weights.tolist(), ritz.error_bounds.tolist())
    return [{"vector": vector} | dict(zip(names, row)) | {"rounding": ritz.rounding} for row in columns]


def density_rows(density: Density) -> list[dict]:
    """Returns one row a point of the grid: eigenvalue, density, standard_error."""
    return [
        {"eigenvalue": float(value), "density": float(height), "standard_error": float(error)}
        for value, height, error in zip(*density)
    ]


def quadrature_from_rows(rows: list[dict]) -> Quadrature:
    """Returns what `ritz_rows` of all starting vectors says."""
    columns = [
        np.array([float(row[name]) for row in rows]).reshape(len({row["vector"] for row in rows}), -1)
        for name in ("eigenvalue", "weight", "error_bound")
    ]
    return Quadrature(*columns, rounding=max(float(row["rounding"]) for row in rows))


def spectrum_figure(rows: list[dict], density: list[dict], title: str = "") -> Figure:
    """Draws the density of the eigenvalues on a logarithmic axis; triangles mark the extreme ones, with error bounds.

    Args:
      rows, density: as from `ritz_rows` and `density_rows`, or read from their CSV files.
    """
    grid, heights, errors = (
        np.array([float(row[name]) for row in density]) for name in ("eigenvalue", "density", "standard_error")
    )
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    axes.plot(grid, heights, color="C0", label="density")
    axes.fill_between(grid, heights - errors, heights + errors, color="C0", alpha=0.3)
    quadrature, lowest = quadrature_from_rows(rows), heights.max()
    for largest, name, colour in ((True, "largest", "C3"), (False, "smallest", "C2")):
        values, bounds = extreme_eigenvalues(quadrature, NUM_MARKED, largest)
        at = np.interp(values, grid, heights)
        axes.errorbar(values, at, xerr=bounds, fmt="v", ms=6, capsize=3, color=colour, label=f"{name}: {values[0]:.4g}")
        lowest = min(lowest, at.min())
    axes.axvline(0, color="0.6", linewidth=1, linestyle=":")
    axes.set(xlabel=r"eigenvalue $\lambda$ of the Hessian", ylabel="density", yscale="log")
    axes.set_title(title, parse_math=False)
    axes.set_ylim(0.1 * lowest, 3 * heights.max())
    axes.legend()
    return figure


def parts_table(rows: list[dict]) -> str:
    """Returns rows as from `part_row` as an aligned table."""
    width = max(len(row["part"]) for row in rows)
    heads = ("weights", 9), ("largest", 11), ("± at most", 9), ("smallest", 11), ("trace", 10), ("±", 7)
    lines = [f"{'part':{width}}" + "".join(f"  {name:>{length}}" for name, length in heads)]
    lines += [
        f"{row['part']:{width}}  {int(row['num_weights']):>9,}  {row['largest']:11.4g}  "
        f"{row['largest_error_bound']:9.1g}  {row['smallest']:11.4g}  {row['trace']:10.4g}  "
        + (f"{row['trace_standard_error']:7.1g}" if np.isfinite(row["trace_standard_error"]) else f"{'–':>7}")
        for row in rows
    ]
    return "\n".join(lines)


def parts_figure(rows: list[dict]) -> Figure:
    """Draws the extreme eigenvalues and the trace of rows as from `part_row`, with their errors, in their order."""
    names, at = [row["part"].replace("_", " ") for row in rows], np.arange(len(rows))
    column = {name: np.array([float(row[name]) for row in rows]) for name in rows[0] if name != "part"}
    figure = Figure(figsize=(8, max(2.5, 1 + 0.22 * len(rows))), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for end, colour in (("largest", "C3"), ("smallest", "C2")):
        left.errorbar(
            column[end], at, xerr=column[f"{end}_error_bound"], fmt="o", ms=4, capsize=2, color=colour, label=end
        )
    left.axvline(0, color="0.6", linewidth=1, linestyle=":")
    left.set(yticks=at, yticklabels=names, xlabel="eigenvalue of the part's block of the Hessian")
    left.invert_yaxis()
    left.legend()
    error = np.nan_to_num(column["trace_standard_error"])
    right.errorbar(column["trace"], at, xerr=error, fmt="s", ms=4, capsize=2, color="C0")
    right.set(xlabel="trace of the block")
    for axes in (left, right):
        axes.tick_params(axis="y", labelsize="x-small")
        axes.locator_params(axis="x", nbins=6)
    return figure
