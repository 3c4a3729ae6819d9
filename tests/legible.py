"""What every figure of the project keeps to: it fits a page, its text is large enough, its formulas are formulas."""

import re

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from identity_matters.runs.figure_style import PAGE

SHOWN, LEAST = 830, 9  # pixels: the width at which a page shows a figure, and the size of its smallest text


def assert_legible(figure: Figure) -> None:
    """Asserts that a figure is at most a page wide, and no text small at that width, cut off or with an underscore."""
    width = figure.get_figwidth()
    assert width <= PAGE
    texts = [text for text in figure.findobj(Text) if text.get_text().strip()]
    small = [text.get_text() for text in texts if text.get_fontsize() / 72 * SHOWN / width < LEAST]
    assert not small, f"too small: {small}"
    bare = [re.sub(r"\$[^$]*\$", "", text.get_text()) for text in texts if text.get_parse_math()]
    assert not [text for text in bare if "_" in text or "^" in text]
    FigureCanvasAgg(figure).draw()
    boxes = {text.get_text(): text.get_window_extent() for text in texts if is_drawn(text)}
    cut = [text for text, box in boxes.items() if box.x0 < 0 or box.x1 > figure.bbox.x1]
    assert not cut, f"cut off: {cut}"


def is_drawn(text: Text) -> bool:
    """A label of a tick beyond its axis is not."""
    axes = text.axes
    ticks = [*axes.get_xticklabels("both"), *axes.get_yticklabels("both")] if axes else []
    return text.get_visible() and text not in ticks
