"""The style of all pictures: readable at half their size, the same colours in the same order."""

from __future__ import annotations

import matplotlib

COLOURS = (
    "#1f5fbf", "#d1495b", "#e09f3e", "#3c8d5a", "#7a5195", "#2a9d8f", "#8d6346", "#777777",
    "#b5179e", "#3a0ca3", "#6a994e", "#bc6c25",
)  # fmt: skip


def use_style() -> None:
    """Makes the pictures drawn from now on look alike. No window is opened for them."""
    matplotlib.use("Agg")
    matplotlib.rcParams.update(
        {
            "font.size": 12,
            "axes.titlesize": 12,
            "axes.labelsize": 12,
            "legend.fontsize": 10,
            "legend.frameon": False,
            "lines.linewidth": 2,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "grid.alpha": 0.3,
            "savefig.dpi": 150,
            "svg.fonttype": "none",  # text stays text
        }
    )
