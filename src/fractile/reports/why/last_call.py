"""Whether kube-scheduler's last call of the extender succeeded at all. Pure.

Answers of the extender, refusals too, are sentences of Fractile. A failed call shows up in the words of Go's HTTP
client, or as the status of an answer whose body kube-scheduler does not read (pkg/scheduler/extender.go, send). Both
contain the URL, which distinguishes our extender from others.
"""

import re

from fractile.reports.why.read import Read

_FAILED = re.compile(r"\S/scheduler/(?:filter|prioritize|preempt|bind)(?:\"?: |, (?=code \d))(?P<how>.+)", re.DOTALL)
_CERTIFICATE = ("code 403", "EOF", "remote error: tls", "x509", "tls: ", "connection reset")


def closed(read: Read) -> str:
    """Why kube-scheduler cannot call the extender; "" where the extender has answered, or nothing is known."""
    found = _FAILED.search(last_said(read))
    if found is None:
        return ""
    how = found["how"].strip()
    return f"kube-scheduler cannot talk to the extender ({how}): {_advice(how)}"


def last_said(read: Read) -> str:
    """What kube-scheduler says about its last attempt, preferably in the pod's condition: events are updated late."""
    condition = read.pod.scheduled
    if condition is not None and condition.message:
        return condition.message
    told = [e for e in read.events if e.reason == "FailedScheduling"]
    return max(told, key=lambda e: e.last).message if told else ""


def _advice(how: str) -> str:
    if any(sign in how for sign in _CERTIFICATE):
        return "check that it has the current certificate and CA (docs/operate/install.md, section 3)"
    return "check that the control plane runs, and read its log"
