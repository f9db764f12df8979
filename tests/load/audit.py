"""The API server's own record of who wrote: how many API writes a bound pod costs.

Only writes of kube-scheduler and of Fractile's control plane are recorded, so that each row of the table pays for its
Bindings alike.
"""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import msgspec

from fractile.lab.cluster.controlplane import CONTROL_PLANE_GROUP

SCHEDULER_USER = "system:kube-scheduler"
CONTROL_PLANE_USER = CONTROL_PLANE_GROUP
_WRITES = ["create", "update", "patch", "delete", "deletecollection"]

POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived", "ResponseStarted"],
    "omitManagedFields": True,
    "rules": [
        {"level": "Metadata", "users": [SCHEDULER_USER, CONTROL_PLANE_USER], "verbs": _WRITES},
        {"level": "None"},
    ],
}


class _User(msgspec.Struct, frozen=True):
    username: str = ""


class _Object(msgspec.Struct, frozen=True):
    resource: str = ""
    subresource: str = ""


class _Event(msgspec.Struct, frozen=True, rename="camel"):
    verb: str = ""
    user: _User = _User()
    object_ref: _Object = _Object()


Writes = dict[str, dict[str, int]]  # user -> "create pods/binding" -> how many

_decoder = msgspec.json.Decoder(_Event)


def writes(lines: Iterable[bytes]) -> Writes:
    """Who wrote what, how often; whatever the answer was."""
    counted: Counter[tuple[str, str]] = Counter()
    for line in lines:
        event = _decoder.decode(line)
        what = "/".join(filter(None, (event.object_ref.resource, event.object_ref.subresource)))
        counted[event.user.username, f"{event.verb} {what}"] += 1
    found: Writes = {}
    for (user, what), count in counted.items():
        found.setdefault(user, {})[what] = count
    return found


class Tail:
    """What a log has got since the last look."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = path.stat().st_size if path.exists() else 0

    def lines(self) -> list[bytes]:
        """Whole lines only."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._at)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._at += len(whole)
        return whole.splitlines()
