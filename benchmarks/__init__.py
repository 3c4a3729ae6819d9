"""Timings against peers; each module is a command that prints a table."""
