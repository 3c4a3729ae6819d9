"""The spectrum of a Hessian in words and numbers, and nothing that it does not resolve."""

from shortcut_study import quadrature as lanczos_quadrature
from shortcut_study.quadrature import Quadrature, Summary

RESOLVED_FACTOR = 2.0  # between the ends of the range of the 10th percentile
RESOLVED_SHARE = 0.1  # between the ends of the range of the share of negative eigenvalues


def report(quadrature: Quadrature, count: int) -> str:
    """Returns the extreme eigenvalues with error bounds, condition number, index and mean, as lines.

    A condition number whose 10th percentile is known to no better than a factor of 2, and an index known to no better
    than 10 points, are not printed: their range is, and that a larger order would resolve them.

    Args:
      quadrature: Quadrature.
      count: int. How many eigenvalues at either end.
    """
    ends = [zip(*lanczos_quadrature.extreme_eigenvalues(quadrature, count, largest)) for largest in (True, False)]
    lines = [f"{'largest':>12}  error bound  {'smallest':>12}  error bound"]
    lines += [f"{a:12.5g}  {b:11.2g}  {c:12.5g}  {d:11.2g}" for (a, b), (c, d) in zip(*ends)]
    mean, error = lanczos_quadrature.trace_mean(quadrature, lambda values: values)
    summary = lanczos_quadrature.summary(quadrature)
    lines += ["", _condition_number(summary), _index(summary)]
    lines.append(f"mean eigenvalue: {mean:.4g}" + (f" ± {error:.1g}" if len(quadrature.nodes) > 1 else ""))
    return "\n".join(lines)


def _condition_number(summary: Summary) -> str:
    low, high = summary.p10_range
    largest = f"largest |eigenvalue| {summary.max_abs:.4g}"
    if not high <= RESOLVED_FACTOR * low:
        return (
            f"condition number: not resolved, {largest} over 10th percentile in {low:.2g} – {high:.2g}; raise --order"
        )
    number = f"condition number: {summary.condition_number:.4g}, {largest}"
    return f"{number} over 10th percentile {summary.p10_abs:.2g} (in {low:.2g} – {high:.2g})"


def _index(summary: Summary) -> str:
    low, high = summary.index_range
    if high - low > RESOLVED_SHARE:
        return f"index: not resolved, {low:.2%} – {high:.2%} of the eigenvalues are negative; raise --order"
    return f"index: {summary.index:.2%} of the eigenvalues are negative (in {low:.2%} – {high:.2%})"
