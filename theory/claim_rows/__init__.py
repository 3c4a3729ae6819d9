"""The rows of the table of claims, a room a source; claims.py puts them together."""

from theory.claim_rows import (
    balancedness,
    descent,
    hardt_ma_linear,
    hardt_ma_networks,
    li,
    li_appendix,
    linear_output,
    ours,
    review,
    saddle_escape,
)

ROWS = [
    *hardt_ma_linear.ROWS,
    *hardt_ma_networks.ROWS,
    *li.ROWS,
    *li_appendix.ROWS,
    *review.ROWS,
    *ours.ROWS,
    *descent.ROWS,
    *saddle_escape.ROWS,
    *balancedness.ROWS,
    *linear_output.ROWS,
]
