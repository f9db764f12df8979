"""Which pods a kubelet has failed because the device plugin was away, by its own log.

The pod itself does not always say: when its container then ends with status 0, kubelet writes Succeeded, without a
reason. The API server's events may be lost with it.
"""

import re
import time
from collections.abc import Mapping
from pathlib import Path

_DENIED = re.compile(
    rb"^I(\d{4} \d\d:\d\d:\d\d)(\.\d+) .*"
    rb'"Pod admission denied" podUID="([^"]+)".*'
    rb"Allocate failed due to .*cannot allocate (?:unhealthy devices|unregistered device)",
    re.M,
)


class Denials:
    """Reads what came since the last look. ``logs``: of each node's kubelet."""

    def __init__(self, logs: Mapping[str, Path]) -> None:
        self._logs = logs
        self._read = dict.fromkeys(logs, 0)
        self._found: dict[str, float] = {}

    def look(self) -> Mapping[str, float]:
        """By UID when it was, in seconds since 1970; of all times."""
        for node, path in self._logs.items():
            for second, rest, uid in _DENIED.findall(self._news(node, path)):
                self._found[uid.decode()] = _since_1970(second.decode()) + float(rest)
        return dict(self._found)

    def _news(self, node: str, path: Path) -> bytes:
        """Whole lines only; the rest is read with the next look."""
        if not path.exists():
            return b""
        with path.open("rb") as log:
            log.seek(self._read[node])
            text = log.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._read[node] += len(whole)
        return whole


def _since_1970(text: str) -> float:
    """Of a time in the form of klog, which is local and has no year."""
    return time.mktime(time.strptime(f"{time.localtime().tm_year} {text}", "%Y %m%d %H:%M:%S"))
