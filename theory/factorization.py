"""`theory.linear.factorization` under its public name."""

from theory.linear.factorization import *  # noqa: F403
