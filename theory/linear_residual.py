"""`theory.linear.landscape` under its public name."""

from theory.linear.landscape import *  # noqa: F403
