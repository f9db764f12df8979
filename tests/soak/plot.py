# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# The types that come with matplotlib leave keywords open.
"""Memory, descriptors, tasks and entries of each program over time, as SVG. Equal samples give equal bytes."""

import io
from collections.abc import Callable, Sequence

import matplotlib as mpl
from matplotlib.figure import Figure

from fractile.sim.report.plot_style import COLOURS, STYLE
from tests.soak.samples import Sample

_PANELS: tuple[tuple[str, Callable[[Sample], float | None]], ...] = (
    ("resident memory, MiB", lambda s: s.rss / 1024),
    ("open descriptors", lambda s: s.descriptors),
    ("tasks of the event loop", lambda s: s.tasks),
    ("pods in the ledger, directories of the agents", lambda s: s.entries),
)


def draw(samples: Sequence[Sample], *, warm_up: float) -> bytes:
    """``warm_up`` in seconds: the part that is not judged is grey."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(8, 9))
        axes = figure.subplots(len(_PANELS), 1, sharex=True)
        programs = sorted({s.program for s in samples if not s.program.endswith("kubelet")})
        for axis, (title, value) in zip(axes, _PANELS, strict=True):
            for program, colour in zip(programs, COLOURS * 3, strict=False):
                points = [(s.seconds / 60, v) for s in samples if s.program == program and (v := value(s)) is not None]
                if points:
                    axis.plot(*zip(*points, strict=True), color=colour, linewidth=1, label=program)
            axis.axvspan(0, warm_up / 60, color="#f0f0f0", zorder=0)
            axis.set_title(title, loc="left")
            axis.set_ylim(bottom=0)
        figure.legend(*axes[0].get_legend_handles_labels(), ncols=3, loc="outside lower center", fontsize=8)
        axes[-1].set_xlabel("minutes of churn")
        buffer = io.BytesIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
        return buffer.getvalue()
