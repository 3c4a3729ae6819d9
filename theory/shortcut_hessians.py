"""`theory.shortcut.hessians` under its public name."""

from theory.shortcut.hessians import *  # noqa: F403
