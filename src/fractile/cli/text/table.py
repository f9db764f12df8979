"""Tables as plain text: aligned columns, two spaces apart, nothing cut, so that grep and awk can read them.

A cell often holds text from a tenant or a node, so unprintable characters are replaced: a row stays one line, and the
terminal interprets nothing in it. JSON output has every text as it is.
"""

from collections.abc import Sequence

import msgspec

from fractile.model.words import printable

_GAP = "  "


class Column(msgspec.Struct, frozen=True):
    """A heading, and whether its cells are numbers, which are right-aligned."""

    heading: str
    number: bool = False


def plain(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> str:
    """The lines of the table, each ended by a newline; an empty cell is written as ``-`` so that fields can be counted.

    ``rows`` holds one cell for each column.
    """
    filled = [[printable(cell) or "-" for cell in row] for row in rows]
    widths = [max(len(c.heading), *(len(r[i]) for r in filled), 0) for i, c in enumerate(columns)]
    lines = [_line([c.heading for c in columns], columns, widths)]
    lines += [_line(row, columns, widths) for row in filled]
    return "".join(f"{line}\n" for line in lines)


def _line(cells: Sequence[str], columns: Sequence[Column], widths: Sequence[int]) -> str:
    padded = (
        cell.rjust(width) if column.number else cell.ljust(width)
        for cell, column, width in zip(cells, columns, widths, strict=True)
    )
    return _GAP.join(padded).rstrip()
