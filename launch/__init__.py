"""Launchers: `python -m launch.train` and its siblings."""
