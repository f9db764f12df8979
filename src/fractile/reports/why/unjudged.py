"""What kube-scheduler refuses a pod for and Fractile does not look at. Pure.

Its last sentence is believed about those: resources that are neither of Fractile nor CPU, memory or places for pods,
host ports, volumes, and where other pods are.
"""

import re

from fractile.dialects.table import owner
from fractile.reports.why.last_call import last_said
from fractile.reports.why.read import Read

_JUDGED = ("cpu", "memory", "pods")
_INSUFFICIENT = re.compile(r"(?:\d+ )?Insufficient (?P<name>[A-Za-z0-9](?:[\w./-]*\w)?)")
_OTHERS = re.compile(
    r"(?:\d+ )?(?:node\(s\) )?(?:"
    r"didn't have free ports for the requested pod ports"
    r"|(?:had|have) [^,.]*volume[^,.]*"
    r"|(?:pod has )?unbound immediate PersistentVolumeClaims?"
    r"|didn't match pod (?:affinity rules|anti-affinity rules|topology spread constraints)[^,.]*"
    r"|didn't satisfy existing pods anti-affinity rules"
    r")"
)


def refused_by_scheduler(read: Read, *, ours: bool = True) -> str:
    """Its reasons of that kind, in its own words; "" for none. ``ours``: resources of Fractile's too, of which it
    counts the device ids."""
    said = last_said(read).split("preemption:")[0]
    insufficient = (
        m for m in _INSUFFICIENT.finditer(said) if m["name"] not in _JUDGED and (ours or owner(m["name"]) is None)
    )
    found = sorted((*insufficient, *_OTHERS.finditer(said)), key=lambda m: m.start())
    return ", ".join(dict.fromkeys(m[0] for m in found))
