"""A QuotaReport as plain text: limits first, then what is held, then Kubernetes' own quotas, then what is wrong."""

from collections.abc import Iterator

from fractile.cli.text.table import Column, plain
from fractile.policy.quota import in_cards
from fractile.wire.output.quota_report import NamespaceReport, QuotaReport

_LIMITS = (
    Column("NAMESPACE"),
    Column("MODEL"),
    Column("HELD", number=True),
    Column("LIMIT", number=True),
    Column("POOLS"),
)
_HELD = (
    Column("NAMESPACE"),
    Column("CLASS"),
    Column("MODEL"),
    Column("POOL"),
    Column("CARDS", number=True),
)
_RESOURCES = (
    Column("NAMESPACE"),
    Column("RESOURCEQUOTA"),
    Column("RESOURCE"),
    Column("USED", number=True),
    Column("HARD", number=True),
)
_STATES = {
    "read": "quotas of {source}",
    "absent": "there is no ConfigMap {source}: no namespace is limited",
    "malformed": "ConfigMap {source} is invalid and was not applied",
    "unreadable": "ConfigMap {source} could not be read",
}


def table(report: QuotaReport) -> str:
    """The state of the source, all tables that have rows, then the problems."""
    parts = [_STATES[report.state].format(source=report.source) + "\n"]
    for columns, rows in (
        (_LIMITS, [row for n in report.namespaces for row in _limits(n)]),
        (_HELD, [row for n in report.namespaces for row in _held(n)]),
        (_RESOURCES, [row for n in report.namespaces for row in _resources(n)]),
    ):
        if rows:
            parts.append(plain(columns, rows))
    if report.problems:
        parts.append("".join(f"problem: {problem}\n" for problem in report.problems))
    return "\n".join(parts)


def _limits(namespace: NamespaceReport) -> Iterator[list[str]]:
    if not namespace.named:
        return
    pools = ", ".join(namespace.pools) or "every"
    if not namespace.limited:
        yield [namespace.namespace, "every", in_cards(sum(h.held_percent for h in namespace.held)), "", pools]
    elif not namespace.limits:
        yield [namespace.namespace, "none", "0", "0", pools]
    for limit in namespace.limits:
        model = "every" if limit.model == "*" else limit.model
        yield [namespace.namespace, model, in_cards(limit.held_percent), in_cards(limit.limit_percent), pools]


def _held(namespace: NamespaceReport) -> Iterator[list[str]]:
    for held in namespace.held:
        yield [namespace.namespace, held.device_class, held.model, held.pool, in_cards(held.held_percent)]


def _resources(namespace: NamespaceReport) -> Iterator[list[str]]:
    for found in namespace.resource_quotas:
        yield [namespace.namespace, found.name, found.resource, found.used, found.hard]
