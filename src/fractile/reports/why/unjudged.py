"""Reasons of kube-scheduler to refuse a pod that Fractile does not check. Pure.

They are taken from kube-scheduler's last message: resources other than Fractile's, CPU, memory and pod slots; host
ports; volumes; and affinity and topology spread, which depend on other pods.
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
    """kube-scheduler's reasons of that kind, in its own words; "" for none. ``ours``: include Fractile's resources,
    whose device ids kube-scheduler counts."""
    said = last_said(read).split("preemption:")[0]
    insufficient = (
        m for m in _INSUFFICIENT.finditer(said) if m["name"] not in _JUDGED and (ours or owner(m["name"]) is None)
    )
    found = sorted((*insufficient, *_OTHERS.finditer(said)), key=lambda m: m.start())
    return ", ".join(dict.fromkeys(m[0] for m in found))
