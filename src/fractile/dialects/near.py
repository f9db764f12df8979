"""Suggest the resource that a misspelt name probably meant: a name that is not served and looks like one of ours."""

from collections.abc import Iterator
from difflib import SequenceMatcher
from functools import lru_cache

from fractile.dialects.table import DIALECTS, RESOURCES, owner
from fractile.model.words import quoted
from fractile.wire.fractile.resource_class import RESOURCE_PREFIX
from fractile.wire.kubernetes.objects import Pod

_CLOSE = 0.75  # least ratio (difflib) of names; "gpu.shared" and "mig-1g.5gb" are below it for all ours
_CLOSE_DOMAIN = 0.8
_OTHERS = frozenset({"nvidia.com/pgpu", "nvidia.com/vgpu"})  # of virtual machines and other plugins
_LONGEST = 100  # characters of a name that is compared
_MOST = 16  # names of a pod that are compared
_ANNOTATIONS = frozenset(key for dialect in DIALECTS for key in dialect.wishes)


def misspelt(pod: Pod) -> Iterator[str]:
    """One sentence for each resource of the pod that is not Fractile's but is spelled almost like one."""
    for container, resource in _foreign(pod):
        wrong = _wrong(resource)
        if wrong:
            yield f"container {container[:63]} asks for {quoted(resource)}: {wrong}"


def _wrong(resource: str) -> str:
    if resource in _ANNOTATIONS:
        return "that is an annotation of the pod, not a resource"
    meant = nearest(resource)
    return f"Fractile has no such resource; did you mean {meant}?" if meant else ""


@lru_cache(maxsize=256)
def nearest(resource: str) -> str:
    """The resource of ours that the name resembles; "" when it resembles none."""
    domain, sign, name = resource.casefold().partition("/")
    if not sign or resource in _OTHERS or len(resource) > _LONGEST:
        return ""
    prefix = RESOURCE_PREFIX.removesuffix("/")
    if _ratio(domain, prefix) >= _CLOSE_DOMAIN and _ratio(domain, prefix) > _ratio(domain, "fractile.dev"):
        return f"{prefix}/{resource.partition('/')[2]}"
    found = ((_likeness(domain, name, known), known) for known in sorted(RESOURCES))
    likeness, known = max(found)
    return known if likeness else ""


def _likeness(domain: str, name: str, known: str) -> float:
    own_domain, _, own_name = known.partition("/")
    near = _ratio(domain, own_domain), _ratio(name, own_name)
    return sum(near) if near[0] >= _CLOSE_DOMAIN and near[1] >= _CLOSE else 0.0


def _ratio(a: str, b: str) -> float:
    return SequenceMatcher(None, a, b, autojunk=False).ratio()


def _foreign(pod: Pod) -> Iterator[tuple[str, str]]:
    """Resources with a domain that no dialect owns, each with its container; at most _MOST."""
    seen: set[str] = set()
    for container in (*(pod.spec.init_containers or ()), *(pod.spec.containers or ())):
        named = container.resources
        for resource in (*((named and named.limits) or ()), *((named and named.requests) or ())):
            if "/" not in resource or resource in seen or owner(resource) is not None:
                continue
            if len(seen) >= _MOST:
                return
            seen.add(resource)
            yield container.name, resource
