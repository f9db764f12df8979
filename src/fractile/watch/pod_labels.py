"""The labels of pods, each set kept once for all pods that have it, and dropped with the last of them.

A tenant can give its pods any labels, up to the 1.5 MB that the API server stores, and change them at any time. So long
label sets are not kept; which PodDisruptionBudgets select such a pod is then unknown.
"""

from collections.abc import Mapping
from hashlib import blake2b

import msgspec

MOST = 2**14  # bytes of a pod's labels; 43 of the longest that Kubernetes takes
_EACH = 64  # the least bytes that each label costs in addition to its text
_UNKNOWN = b""  # the key of labels that are not kept


class Labels(msgspec.Struct, frozen=True, gc=False):
    """``key``: equal for equal labels. ``values``: None if they are too long to be kept."""

    key: bytes
    values: Mapping[str, str] | None


class LabelSets:
    """``take`` and ``give_back`` come in pairs."""

    def __init__(self) -> None:
        self._sets: dict[bytes, Labels] = {}
        self._users: dict[bytes, int] = {}

    def take(self, labels: Mapping[str, str]) -> Labels:
        if sum(_EACH + len(key) + len(value) for key, value in labels.items()) > MOST:
            return Labels(_UNKNOWN, None)
        key = blake2b(msgspec.msgpack.encode(sorted(labels.items())), digest_size=16).digest()
        self._users[key] = self._users.get(key, 0) + 1
        return self._sets.setdefault(key, Labels(key, labels))

    def give_back(self, labels: Labels) -> None:
        if labels.key == _UNKNOWN:
            return
        self._users[labels.key] -= 1
        if not self._users[labels.key]:
            del self._users[labels.key], self._sets[labels.key]

    def __len__(self) -> int:
        """Number of sets that are kept."""
        return len(self._sets)
