"""The quotas of namespaces in a ConfigMap, in gpu-admission's form (docs/operate/quota.md):

    data:
      gpu_quota: '{"team-a": {"pool": ["public"], "quota": {"M40": 2, "P100": 3.5}}}'

People write it by hand, so every error names the place and the remedy. One error refuses the whole, since half of a
quota would be a different quota.
"""

import json
from collections import Counter
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, NoReturn, cast

from fractile.errors import WireError
from fractile.model.quota import NamespaceQuota, QuotaLimit

KEY = "gpu_quota"
DEFAULT_SOURCE = "fractile-system/fractile-quota"  # namespace and name of the ConfigMap
KEPT = "fractile-system/fractile-quota-kept"  # where the control plane keeps the quotas in force, in the same form
_MOST_CHARACTERS = 2**20  # as a ConfigMap
_MOST_NAMES = 10_000
_MOST_CARDS = 1_000_000
_LONGEST = 253
_SHOWN = 40  # characters shown of an invalid name


def decode(data: Mapping[str, str], source: str) -> dict[str, NamespaceQuota]:
    """Decode the quotas by namespace; ``data`` is the ConfigMap's, ``source`` its name. WireError for invalid ones."""
    try:
        return _quotas(_text(data))
    except _Wrong as e:
        raise WireError(f"{source}: {e}") from None


def encode(quotas: Mapping[str, NamespaceQuota]) -> dict[str, str]:
    """The ``data`` of a ConfigMap."""
    found: dict[str, dict[str, Any]] = {}
    for namespace, quota in quotas.items():
        entry = found.setdefault(namespace, {})
        if quota.pools is not None:
            entry["pool"] = list(quota.pools)
        if quota.limits is not None:
            entry["quota"] = {limit.name: _number(limit.percent) for limit in quota.limits}
    return {KEY: json.dumps(found)}


class _Wrong(Exception):
    """An error in the text."""


def _text(data: Mapping[str, str]) -> str:
    for key in data:
        if key != KEY:
            raise _Wrong(
                f"{key[:_SHOWN]!r} is not a known key; the quotas belong under {KEY}, and no other key is allowed"
            )
    if KEY not in data:
        raise _Wrong(f"it has no key {KEY}; to limit no namespace, write {{}} there or delete the ConfigMap")
    if len(data[KEY]) > _MOST_CHARACTERS:
        raise _Wrong(f"{KEY} is larger than 1 MiB; remove everything that is not a quota")
    return data[KEY]


def _quotas(text: str) -> dict[str, NamespaceQuota]:
    try:
        root = json.loads(text, object_pairs_hook=_object, parse_float=_decimal, parse_constant=_constant)
    except json.JSONDecodeError as e:
        raise _Wrong(f"{KEY} is not valid JSON: line {e.lineno}, column {e.colno}: {e.msg}") from None
    except RecursionError:
        raise _Wrong(f"{KEY} is nested too deep; see docs/operate/quota.md for its form") from None
    except ValueError:  # an integer of thousands of digits
        raise _Wrong(f"{KEY} has a number that is far too long") from None
    found: dict[str, NamespaceQuota] = {}
    for namespace, value in _fields(root, f"{KEY} must be an object of namespaces").items():
        # Kubernetes' own names are lower case; people copy "A" from the description.
        name = namespace.lower()
        if name in found:
            raise _Wrong(
                f"namespace {_shown(namespace)} appears twice (upper and lower case do not matter); remove one"
            )
        found[name] = _quota(namespace, value)
    return found


def _quota(namespace: str, value: object) -> NamespaceQuota:
    where = f"namespace {_shown(namespace)}"
    if not namespace:
        raise _Wrong("a namespace has no name")
    fields = _fields(value, f"{where} must have an object with pool and quota")
    for name in fields:
        if name not in ("pool", "quota"):
            raise _Wrong(f"{where} has an unknown field {_shown(name)}; the fields are pool and quota")
    return NamespaceQuota(
        pools=_pools(where, fields["pool"]) if "pool" in fields else None,
        limits=_limits(where, fields["quota"]) if "quota" in fields else None,
    )


def _pools(where: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise _Wrong(f'pool of {where} must be a list of names, such as ["public"]')
    pools = cast(list[object], value)
    if not pools:
        raise _Wrong(
            f"pool of {where} is empty, so it could use no node; name a pool, or remove the field to allow all"
        )
    names = [pool for pool in pools if isinstance(pool, str) and pool]
    if len(names) < len(pools):
        raise _Wrong(f"pool of {where} has an entry that is not a name")
    for name in names:
        _readable(name)
    return tuple(dict.fromkeys(names))


def _limits(where: str, value: object) -> tuple[QuotaLimit, ...]:
    fields = _fields(value, f"quota of {where} must be an object of models and numbers of cards")
    seen: set[str] = set()
    for name in fields:
        if not any(c.isalnum() for c in name) and name != "*":
            raise _Wrong(f"quota of {where} names a model {_shown(name)}; write a part of its name, such as M40, or *")
        if name.casefold() in seen:
            raise _Wrong(
                f"model {_shown(name)} of {where} appears twice (upper and lower case do not matter); remove one"
            )
        seen.add(name.casefold())
    return tuple(QuotaLimit(name, _percent(f"{_shown(name)} of {where}", cards)) for name, cards in fields.items())


def _percent(what: str, value: object) -> int:
    """Cards -> percent of a card."""
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        raise _Wrong(f"{what} must be a number of cards")
    if not 0 <= value <= _MOST_CARDS:
        raise _Wrong(f"{what} must be a number of cards from 0 to {_MOST_CARDS}")
    if value * 100 % 1:
        raise _Wrong(f"{what} has more than two digits after the point; cards are counted in hundredths")
    return int(value * 100)


def _fields(value: object, otherwise: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _Wrong(otherwise)
    found = cast(dict[str, Any], value)
    if len(found) > _MOST_NAMES:
        raise _Wrong(f"there are more than {_MOST_NAMES} names in one object")
    for name in found:
        _readable(name)
    return found


def _readable(name: str) -> None:
    """Raise _Wrong for a name that is not fit for events and metrics."""
    if len(name) > _LONGEST or not name.isprintable():
        raise _Wrong(
            f"{_shown(name)} is not a valid name: it is longer than {_LONGEST} characters, or has characters that "
            "cannot be shown"
        )


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(name for name, times in Counter(name for name, _ in pairs).items() if times > 1)
        raise _Wrong(f"{_shown(twice)} appears twice in one object; remove one")
    return found


def _decimal(text: str) -> Decimal:
    if len(text) > _SHOWN or "e" in text.lower():  # 1e999999 would have a million digits
        raise _Wrong(f"{text[:_SHOWN]} is not a number of cards; write for instance 2 or 1.5")
    return Decimal(text)


def _constant(text: str) -> NoReturn:
    raise _Wrong(f"{text} is not a number of cards")


def _number(percent: int) -> int | float:
    return percent // 100 if percent % 100 == 0 else percent / 100


def _shown(name: str) -> str:
    return ascii(name[:_SHOWN])
