"""What was seen of a program at one moment, and the file in which it is kept. Pure."""

import csv
import io
from collections.abc import Iterable

import msgspec


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """``seconds`` since the churn began; memory in KiB. ``tasks`` of its event loop, None for programs without one.
    ``entries``: what it keeps books of: pods of a ledger, directories of an agent."""

    seconds: float
    program: str
    rss: int
    anonymous: int
    threads: int
    descriptors: int
    tasks: int | None = None
    entries: int | None = None


_FIELDS = Sample.__struct_fields__


def to_csv(samples: Iterable[Sample]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_FIELDS)
    for one in samples:
        writer.writerow(["" if value is None else value for value in msgspec.structs.astuple(one)])
    return text.getvalue()


def from_csv(text: str) -> list[Sample]:
    rows = csv.DictReader(io.StringIO(text))
    return [msgspec.convert({k: v or None for k, v in row.items()}, Sample, strict=False) for row in rows]
