"""``fractile quota -o json|yaml``: what each namespace may hold and holds, version fractile.dev/v1alpha1.

Every field is always present. Cards are counted in percent of one card, so sums are exact. docs/operate/quota.md
explains each field; the golden file is tests/wire/golden/quota-report.json.
"""

from typing import Literal

import msgspec

from fractile.errors import WireError
from fractile.wire.fractile.extended_resource import API_VERSION

KIND = "QuotaReport"

State = Literal["read", "absent", "malformed", "unreadable"]


class _Struct(msgspec.Struct, frozen=True, rename="camel"):
    pass


class LimitReport(_Struct, frozen=True):
    """One limit of the ConfigMap. ``model`` as written there; ``*``: cards of every model."""

    model: str
    limit_percent: int
    held_percent: int


class HeldReport(_Struct, frozen=True):
    """What a namespace holds of one model in one pool through one class. Texts are empty where there is no model, pool
    or class."""

    device_class: str
    model: str
    pool: str
    held_percent: int


class ResourceQuotaReport(_Struct, frozen=True):
    """One resource of a Kubernetes ResourceQuota, in Kubernetes' own words."""

    name: str
    resource: str
    hard: str
    used: str


class NamespaceReport(_Struct, frozen=True):
    """One namespace. ``limited``: the ConfigMap limits its models; ``pools`` is empty if it may use every node."""

    namespace: str
    named: bool
    pools: tuple[str, ...]
    limited: bool
    limits: tuple[LimitReport, ...]
    held: tuple[HeldReport, ...]
    resource_quotas: tuple[ResourceQuotaReport, ...]


class QuotaReport(_Struct, frozen=True, kw_only=True):
    """The whole report; namespaces sorted by name."""

    api_version: str = API_VERSION
    kind: str = KIND
    source: str  # namespace/name of the ConfigMap
    state: State
    namespaces: tuple[NamespaceReport, ...]
    problems: tuple[str, ...]


_decoder = msgspec.json.Decoder(QuotaReport)


def encode(report: QuotaReport) -> str:
    """The JSON text, indented, without a final newline."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2).decode()


def encode_yaml(report: QuotaReport) -> str:
    """The same content as YAML."""
    import yaml  # imported late: only -o yaml needs it

    return yaml.safe_dump(msgspec.to_builtins(report), sort_keys=False, allow_unicode=True)


def decode(text: str | bytes) -> QuotaReport:
    """Decode the report; WireError on anything but this version."""
    try:
        found = _decoder.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as e:
        raise WireError(f"this is not a report of fractile quota: {e}") from None
    if (found.api_version, found.kind) != (API_VERSION, KIND):
        raise WireError(f"this is {found.kind} {found.api_version}; expected {KIND} {API_VERSION}")
    return found
