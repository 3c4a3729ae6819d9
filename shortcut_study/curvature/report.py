"""The spectrum of a Hessian in words and numbers, and nothing that it does not resolve."""

import itertools

import numpy as np

from shortcut_study.curvature import quadrature as lanczos_quadrature
from shortcut_study.curvature.quadrature import Quadrature, Summary
from shortcut_study.hessian import summarize

RESOLVED_FACTOR = 2.0  # between the ends of the range of the 10th percentile
RESOLVED_SHARE = 0.1  # between the ends of the range of the share of negative eigenvalues


def report(quadrature: Quadrature, count: int, dim: int) -> str:
    """Returns the extreme eigenvalues with error bounds, condition number, index and mean, as lines.

    A condition number whose 10th percentile is known to no better than a factor of 2, and an index known to no better
    than 10 points, are not printed: their range is, and whether a larger order or more vectors would resolve them. At
    order = dim there is no range: the Ritz values are all eigenvalues, and the three numbers are theirs, without
    weights.

    Args:
      quadrature: Quadrature.
      count: int. How many eigenvalues at either end, at most; each Ritz value stands at one of them.
      dim: int. Number of eigenvalues.
    """
    order = quadrature.nodes.shape[1]
    counts = {True: min(count, (order + 1) // 2), False: min(count, order // 2)}
    ends = [zip(*lanczos_quadrature.extreme_eigenvalues(quadrature, counts[end], end)) for end in counts]
    cells = [[f"{value:12.5g}  {bound:11.2g}" for value, bound in end] for end in ends]
    lines = [f"{'largest':>12}  error bound  {'smallest':>12}  error bound"]
    lines += ["  ".join(row).rstrip() for row in itertools.zip_longest(*cells, fillvalue="")]
    if order == dim:
        return "\n".join([*lines, "", *_of_all(quadrature)])
    mean, error = lanczos_quadrature.trace_mean(quadrature, lambda values: values)
    # As it is, and without the error of sampling, which more vectors make smaller and a larger order does not.
    summaries = lanczos_quadrature.summary(quadrature, dim), lanczos_quadrature.summary(quadrature)
    lines += ["", _condition_number(*summaries, quadrature.rounding), _index(*summaries)]
    lines.append(f"mean eigenvalue: {mean:.4g}" + (f" ± {error:.1g}" if len(quadrature.nodes) > 1 else ""))
    return "\n".join(lines)


def _of_all(quadrature: Quadrature) -> list[str]:
    """Condition number, index and mean of Ritz values that are all eigenvalues, but for rounding."""
    dim = quadrature.nodes.shape[1]
    eigenvalues, _ = lanczos_quadrature.extreme_eigenvalues(quadrature, dim, largest=False)
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


def _condition_number(summary: Summary, of_order: Summary, rounding: float) -> str:
    low, high = summary.p10_range
    largest = f"largest |eigenvalue| {summary.max_abs:.4g}"
    if high <= rounding:
        return _ratio(summary.max_abs, high, rounding)
    if not _is_factor(low, high):
        advice = "num_vectors" if _is_factor(*of_order.p10_range) else "order"
        known = f"{largest} over 10th percentile in {low:.2g} – {high:.2g}"
        return f"condition number: not resolved, {known}; raise --{advice}"
    return f"{_ratio(summary.max_abs, summary.p10_abs, rounding)} (in {low:.2g} – {high:.2g})"


def _is_factor(low: float, high: float) -> bool:
    return high <= RESOLVED_FACTOR * low


def _index(summary: Summary, of_order: Summary) -> str:
    low, high = summary.index_range
    if high - low > RESOLVED_SHARE:
        advice = "order" if np.ptp(of_order.index_range) > RESOLVED_SHARE else "num_vectors"
        return f"index: not resolved, {low:.2%} – {high:.2%} of the eigenvalues are negative; raise --{advice}"
    return f"index: {summary.index:.2%} of the eigenvalues are negative (in {low:.2%} – {high:.2%})"
