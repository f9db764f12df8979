"""Writes plots as SVG: points and steps in a frame with axes."""

from __future__ import annotations

from pathlib import Path

from cases import Case
from judge import Verdict

W, H, LEFT, BOTTOM, TOP = 720, 420, 60, 50, 40
OURS, THEIRS = "#1b6ca8", "#c8553d"


class Frame:
    """A plot from (0, 0) to (x, y), in the units of the data."""

    def __init__(self, title: str, xlabel: str, ylabel: str, x: float, y: float) -> None:
        self.x, self.y = x, y
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{W}" height="{H}" font-family="sans-serif"',
            ' font-size="12">',
            f'<rect width="{W}" height="{H}" fill="white"/>',
            f'<text x="{W / 2}" y="20" text-anchor="middle" font-size="14">{title}</text>',
            f'<text x="{W / 2}" y="{H - 8}" text-anchor="middle">{xlabel}</text>',
            f'<text x="14" y="{H / 2}" text-anchor="middle" transform="rotate(-90 14 {H / 2})">{ylabel}</text>',
        ]
        for i in range(6):
            px, py = self._at(x * i / 5, y * i / 5)
            self.parts.append(f'<line x1="{LEFT}" x2="{W - 20}" y1="{py:.1f}" y2="{py:.1f}" stroke="#ddd"/>')
            self.parts.append(f'<text x="{LEFT - 6}" y="{py + 4:.1f}" text-anchor="end">{y * i / 5:g}</text>')
            self.parts.append(f'<text x="{px:.1f}" y="{H - BOTTOM + 18}" text-anchor="middle">{x * i / 5:g}</text>')

    def _at(self, x: float, y: float) -> tuple[float, float]:
        px = LEFT + (W - 20 - LEFT) * min(x, self.x) / self.x
        return px, H - BOTTOM - (H - BOTTOM - TOP) * min(max(y, 0), self.y) / self.y

    def dots(self, points: list[tuple[float, float]], colour: str) -> None:
        for p in points:
            px, py = self._at(*p)
            self.parts.append(f'<circle cx="{px:.1f}" cy="{py:.1f}" r="2.5" fill="{colour}" fill-opacity="0.6"/>')

    def line(self, points: list[tuple[float, float]], colour: str) -> None:
        path = " ".join(f"{px:.1f},{py:.1f}" for px, py in (self._at(*p) for p in points))
        self.parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')

    def legend(self, entries: list[tuple[str, str]]) -> None:
        for i, (text, colour) in enumerate(entries):
            self.parts.append(f'<text x="{LEFT + 14}" y="{TOP + 16 + 16 * i}" fill="{colour}">{text}</text>')

    def write(self, path: Path) -> None:
        path.write_text("\n".join([*self.parts, "</svg>"]) + "\n")


def matrix(place: Path, results: list[tuple[Case, Verdict, Verdict | None]]) -> None:
    both = [
        ("leases", OURS, [v for _, v, _ in results]),
        ("token bucket with feedback", THEIRS, [b for _, _, b in results if b]),
    ]
    errors = Frame("Error of each case, sorted", "percent of the cases", "points", 100, 50)
    dots = Frame(
        "Share due and share had, per tenant", "due, percent of its own throughput alone", "had, percent", 100, 100
    )
    dots.line([(0, 0), (100, 100)], "#999")
    for _, colour, verdicts in both:
        ordered = sorted(v.error for v in verdicts)
        errors.line([(100 * (i + 1) / len(ordered), e) for i, e in enumerate(ordered)], colour)
    for (_, colour, _), which in zip(reversed(both), (2, 1), strict=True):
        pairs = [(c.targets, v.shares) for c, *vs in results if (v := vs[which - 1])]
        dots.dots(
            [(t * 100, s * 100) for targets, shares in pairs for t, s in zip(targets, shares, strict=False)], colour
        )
    for frame, name in ((errors, "shares-errors.svg"), (dots, "shares-due.svg")):
        frame.legend([(text, colour) for text, colour, verdicts in both if verdicts])
        frame.write(place / name)
