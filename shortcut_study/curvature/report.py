"""The spectrum of a Hessian, and those of its parts, in words."""

import itertools

import numpy as np

from identity_matters.runs.tables import percent
from shortcut_study.conditioning import share_within, summarize, summary
from shortcut_study.curvature.quadrature import Quadrature, extreme_eigenvalues, mean_eigenvalue

NEAR_ZERO = 0.05  # of the largest |eigenvalue|
RESOLVED_FACTOR = 2.0  # between the ends of the range of the 10th percentile
RESOLVED_SHARE = 0.1  # between the ends of the range of the share of negative eigenvalues


def report(quadrature: Quadrature, count: int, dim: int) -> str:
    """Returns at most `count` extreme eigenvalues of `dim` with error bounds, the trace, and what else is resolved, as
    lines.

    The share of eigenvalues near 0 is between two bounds, with two standard errors of the sampling. The condition
    number is omitted if its 10th percentile is uncertain by more than a factor of 2, the index if it is uncertain by
    more than 10 points.
    """
    num_found = quadrature.nodes.shape[1] + len(quadrature.known)
    rounding = quadrature.rounding
    counts = {True: min(count, (num_found + 1) // 2), False: min(count, num_found // 2)}
    ends = [zip(*extreme_eigenvalues(quadrature, counts[end], end)) for end in counts]
    cells = [[f"{value:12.5g}  {bound:11.2g}" for value, bound in end] for end in ends]
    lines = [f"{'largest':>12}  error bound  {'smallest':>12}  error bound"]
    lines += ["  ".join(row).rstrip() for row in itertools.zip_longest(*cells, fillvalue="")]
    if num_found == dim:  # the Ritz values are all eigenvalues, up to rounding
        eigenvalues, _ = extreme_eigenvalues(quadrature, dim, largest=False)
        exact = summarize(eigenvalues, rounding)
        low, high = exact.index_range
        lines += [
            f"trace: {eigenvalues.sum():.4g} ± {dim * rounding:.1g}, of all {dim} eigenvalues",
            _ratio(exact.max_abs, exact.p10_abs, rounding),
            f"index: {percent(low)} of the eigenvalues are negative, {percent(high - low)} are 0 within rounding",
        ]
        return "\n".join(lines)
    mean, error = mean_eigenvalue(quadrature, dim)
    error_text = " ± {:.2g} (95 % interval)" if np.isfinite(error) else ", from one random vector"
    lines.append(f"trace: {mean * dim:.4g}{error_text.format(error * dim)}")
    estimate = summary(quadrature, dim)
    low, high = share_within(quadrature, NEAR_ZERO * estimate.max_abs, dim)
    share = f"{percent(low)} to {percent(high)}"
    lines.append(f"eigenvalues smaller in size than {percent(NEAR_ZERO, 0)} of the largest: {share}")
    low, high = estimate.p10_range or (0.0, np.inf)
    if high <= rounding:
        lines.append(_ratio(estimate.max_abs, high, rounding))
    elif high <= RESOLVED_FACTOR * low:
        lines.append(f"{_ratio(estimate.max_abs, estimate.p10_abs, rounding)} (in {low:.2g} – {high:.2g})")
    low, high = estimate.index_range
    if high - low <= RESOLVED_SHARE:
        lines.append(
            f"index: {percent(estimate.index)} of the eigenvalues are negative (in {percent(low)} – {percent(high)})"
        )
    return "\n".join(lines)


def _ratio(max_abs: float, p10_abs: float, rounding: float) -> str:
    largest = f"largest |eigenvalue| {max_abs:.4g}"
    if p10_abs <= rounding:
        return f"condition number: infinite within rounding, {largest} over 10th percentile of at most {rounding:.1g}"
    return f"condition number: {max_abs / p10_abs:.4g}, {largest} over 10th percentile {p10_abs:.2g}"


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
