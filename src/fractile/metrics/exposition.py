"""Prometheus' text format 0.0.4 and OpenMetrics 1.0 from one list of series. Pure.

Not built on prometheus_client: the figures are a snapshot that is rebuilt each second, which does not suit its registry
of live counters, and the agent stays small without it.
"""

from collections.abc import Iterator
from typing import Literal

import msgspec

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"

Kind = Literal["gauge", "counter", "info", "histogram"]
_SUFFIX: dict[Kind, str] = {"gauge": "", "counter": "_total", "info": "_info", "histogram": ""}
_UNITS = ("bytes", "seconds", "ratio")  # the last word of a name with that unit
_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
_Texts = dict[tuple[str, ...], dict[tuple[str, ...], str]]  # label texts by names, then by values
_HELP_ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n"})


class Family(msgspec.Struct, frozen=True):
    """A metric: ``name`` without the suffix of its kind (``_total``, ``_info``)."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...]

    @property
    def sample(self) -> str:
        """The name of its series; for a histogram, their prefix."""
        return self.name + _SUFFIX[self.kind]


class Distribution(msgspec.Struct, frozen=True):
    """``counts``: how many values were at most each of ``bounds``, then how many in all; ``total``: their sum."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float


class MetricsPage:
    """At most ``limit`` series; those beyond the limit are counted in ``dropped`` and not shown."""

    def __init__(self, *, limit: int) -> None:
        self._limit = limit
        self._families: dict[Family, dict[tuple[str, ...], float]] = {}
        self._distributions: dict[Family, Distribution] = {}
        self.size = 0
        self.dropped = 0

    def add(self, family: Family, value: float | None, *labels: str) -> None:
        """Add one series; a value of None adds none. A second value for the same labels is a bug: the last counts."""
        if value is None:
            return
        if len(labels) != len(family.labels):
            raise ValueError(f"{family.name} has {len(family.labels)} labels, not {len(labels)}")
        series = self._families.setdefault(family, {})
        if labels not in series and self.size >= self._limit:
            self.dropped += 1
            return
        self.size += labels not in series
        series[labels] = value

    def always(self, family: Family, value: float, *labels: str) -> None:
        """Add one of the few series that the limit never drops."""
        self._limit += 1
        self.add(family, value, *labels)

    def distribution(self, family: Family, value: Distribution) -> None:
        """Add a histogram without labels; the limit never drops it."""
        self._distributions[family] = value

    def render(self, *, openmetrics: bool) -> bytes:
        lines: list[str] = []
        texts: _Texts = {}
        for family, series in self._families.items():
            if series:
                lines += _head(family, openmetrics=openmetrics)
                lines += _samples(family, series, texts.setdefault(family.labels, {}))
        for family, value in self._distributions.items():
            lines += [*_head(family, openmetrics=openmetrics), *_buckets(family.sample, value)]
        return "".join(f"{line}\n" for line in [*lines, *(["# EOF"] if openmetrics else [])]).encode()


def _head(family: Family, *, openmetrics: bool) -> Iterator[str]:
    name = family.name if openmetrics else family.sample
    kind = "gauge" if family.kind == "info" and not openmetrics else family.kind
    yield f"# HELP {name} {family.help.translate(_HELP_ESCAPES)}"
    yield f"# TYPE {name} {kind}"
    unit = family.name.rpartition("_")[2]
    if openmetrics and unit in _UNITS and family.kind != "info":
        yield f"# UNIT {name} {unit}"


def _samples(family: Family, series: dict[tuple[str, ...], float], texts: dict[tuple[str, ...], str]) -> Iterator[str]:
    """``texts`` caches the label texts of these label names: a container has 14 series with each."""
    name = family.sample
    for values, number in series.items():
        text = texts.get(values)
        if text is None:
            text = texts[values] = _labels(family.labels, values)
        yield f"{name}{text} {_number(number)}"


def _buckets(name: str, value: Distribution) -> Iterator[str]:
    for bound, count in zip((*value.bounds, None), value.counts, strict=True):
        yield f'{name}_bucket{{le="{"+Inf" if bound is None else _number(float(bound))}"}} {count}'
    yield f"{name}_sum {_number(value.total)}"
    yield f"{name}_count {value.counts[-1]}"


def _labels(names: tuple[str, ...], values: tuple[str, ...]) -> str:
    pairs = (f'{name}="{value.translate(_ESCAPES)}"' for name, value in zip(names, values, strict=True))
    return f"{{{','.join(pairs)}}}" if names else ""


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else repr(float(value))


def wants_openmetrics(accept: str) -> bool:
    """Whether a client's Accept header names OpenMetrics, as that of every Prometheus since 2.5 does."""
    return any(part.split(";")[0].strip() == "application/openmetrics-text" for part in accept.lower().split(","))
