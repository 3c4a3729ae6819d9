"""One planted mutation a row of theory/claim_rows/descent.py: its check must notice that the listed function is broken.

MUTATIONS maps a claim's id to a function that takes the listed function and returns a broken one.
"""


def scaled(factor):
    """The mutation that multiplies what the function returns."""
    return lambda function: lambda *a, **k: factor * function(*a, **k)


def rate_below(guarantee):
    """The mutation that promises a faster rate than is proved, by the factor 0.4."""

    def broken(*a, **k):
        said = guarantee(*a, **k)
        return said._replace(rate=0.4 * said.rate)

    return broken


def transposed(function):
    """The mutation that transposes the matrix that the function returns."""
    return lambda *a, **k: function(*a, **k).T


MUTATIONS = {
    "bhl.recursion": scaled(1.01),
    "bhl.positive_definite": scaled(0.9),
    "bhl.negative_eigenvalue": scaled(1.01),
    "bhl.asymmetric": transposed,
    "zlg.theorem_3.1": rate_below,
    "ours.monotone_descent": scaled(1.1),
    "ours.singular_target": scaled(0.9),
    "ours.straight_line": scaled(1.1),
    "ours.widened_gradient_bound": scaled(1.1),
}
