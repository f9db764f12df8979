"""The style of plots: plain, reproducible to the byte, and with colours that colour-blind readers can tell apart."""

from typing import Any

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")  # Okabe and Ito (2008)
STYLE: dict[Any, object] = {
    "svg.hashsalt": "fractile",
    "svg.fonttype": "none",
    "path.simplify_threshold": 0.5,
    "font.size": 9,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
}
