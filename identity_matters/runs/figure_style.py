"""The style of all figures: Matplotlib settings for colours, fonts and resolution.

Figures name colours by their number, C0 to C7, sizes of text in words ("small"), and are laid out for a page of at most
PAGE inches. So nothing but these settings decides what they look like, and outside of `styled` (a notebook, say) they
have the look that the user has chosen.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import matplotlib
from cycler import cycler
from matplotlib.figure import Figure

# Okabe & Ito's colours, distinct with every common colour blindness: C0 blue, C1 orange, C2 green, C3 vermilion,
# C4 purple, C5 sky blue, C6 black, C7 grey; the first are in Matplotlib's order.
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#000000", "#666666")
PAGE = 8.0  # inches: the width of a figure that fills a page

_BOTH: dict[str, Any] = {
    "axes.prop_cycle": cycler(color=PALETTE),
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": "medium",
    "figure.titlesize": "medium",
    "grid.alpha": 0.3,
    "image.cmap": "viridis",
    "legend.fontsize": "small",
    "legend.framealpha": 0.85,
    "xtick.labelsize": "small",
    "ytick.labelsize": "small",
    "pdf.fonttype": 42,  # TrueType, which publishers ask for
    "svg.hashsalt": "identity-matters",
}
STYLES: dict[str, dict[str, Any]] = {
    "screen": _BOTH | {"font.size": 10.0, "savefig.dpi": 200},
    "paper": _BOTH
    | {
        # Times-like letters and formulas; what they lack comes from the second family.
        "font.family": ["STIXGeneral", "DejaVu Serif"],
        "mathtext.fontset": "stix",
        "font.size": 8.5,
        "lines.linewidth": 1.1,
        "lines.markersize": 4.0,
        "axes.linewidth": 0.6,
        "savefig.dpi": 300,
    },
}
_SCALES = {"screen": 1.0, "paper": 0.85}  # of a figure's sides: 6.8 inches are both columns of a paper


@contextlib.contextmanager
def styled(style: str = "screen") -> Iterator[None]:
    """Applies a style of STYLES to the figures that are drawn and saved in a with block; others keep the user's."""
    with matplotlib.rc_context(STYLES[style]):
        yield


def fit(figure: Figure, style: str) -> None:
    """Sets the size of a figure to that of a style."""
    figure.set_size_inches(*(_SCALES[style] * side for side in figure.get_size_inches()))
