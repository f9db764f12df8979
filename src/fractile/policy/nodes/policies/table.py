"""All node policies by name. A new policy is one file and one line here."""

import re

from fractile.policy.nodes.blend import MOST, blend
from fractile.policy.nodes.devices import CHOICES
from fractile.policy.nodes.kubernetes import Rounding, least_allocated, most_allocated
from fractile.policy.nodes.policies import (
    bestfit,
    dot_product,
    fgd_paper,
    fgd_plus,
    first_fit,
    gpu_clustering,
    gpu_packing,
    random_fit,
)
from fractile.policy.nodes.policies.allocation import policy, ratio
from fractile.policy.nodes.policy import Policy, with_device

POLICIES: dict[str, Policy] = {
    "fgd-plus": fgd_plus.POLICY,
    "fgd-paper": fgd_paper.POLICY,
    "bestfit": bestfit.POLICY,
    "gpu-packing": gpu_packing.POLICY,
    "gpu-clustering": gpu_clustering.POLICY,
    "dot-product": dot_product.POLICY,
    "random": random_fit.POLICY,
    "first-fit": first_fit.POLICY,
    "most-allocated": policy(most_allocated, Rounding.NEW),
    "most-allocated-1.20": policy(most_allocated, Rounding.OLD),
    "least-allocated": policy(least_allocated, Rounding.NEW),
    "least-allocated-1.20": policy(least_allocated, Rounding.OLD),
    "requested-to-capacity-ratio": policy(ratio, Rounding.NEW),
    "requested-to-capacity-ratio-1.20": policy(ratio, Rounding.OLD),
}
DEFAULT = "fgd-plus"

_TERM = re.compile(r"(?:([0-9]{1,4})\*)?([a-z0-9.-]+)(?:@([a-z]+))?", re.ASCII)


def find(text: str) -> Policy | None:
    """Find a policy by name, with another choice of the device (``bestfit@widest``), or a weighted sum of several
    (``fgd-plus+2*bestfit``). None when there is no such policy."""
    terms = [_term(part.strip()) for part in text.split("+")]
    known = [term for term in terms if term is not None]
    if len(known) < len(terms):
        return None
    if len(known) == 1:
        return known[0][1]
    return blend(known) if all(policy.unit for _, policy in known) else None


def _term(text: str) -> tuple[int, Policy] | None:
    match = _TERM.fullmatch(text)
    if match is None or match[2] not in POLICIES or not 1 <= int(match[1] or 1) <= MOST:
        return None
    found = POLICIES[match[2]]
    if match[3]:
        if match[3] not in CHOICES:
            return None
        found = with_device(found, CHOICES[match[3]])
    return int(match[1] or 1), found
