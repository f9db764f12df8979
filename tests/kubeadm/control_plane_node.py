"""A control-plane node of kubeadm's without machines: its files, and kubelet played as far as kube-scheduler goes.

Kubelet looks whenever the clock is waited for: it ends the program whose manifest has changed, a look later starts
the new one, and starts it again when it has ended. What the program makes of its configuration is up to the test.
"""

import functools
from collections.abc import Callable
from pathlib import Path

from fractile.kubeadm.files import NodeRoot
from fractile.kubeadm.install import Wait
from fractile.wire.foreign import static_pod
from tests.wire.golden_files import golden


@functools.lru_cache(maxsize=16)
def _command(text: str) -> tuple[str, ...]:
    return static_pod.read(text).command


class Node:
    """``runs``: whether kube-scheduler, started with such a command line, keeps running."""

    def __init__(
        self, root: Path, minor: int = 36, *, runs: Callable[[tuple[str, ...]], bool] = lambda _: True
    ) -> None:
        self.place = NodeRoot(root)
        self.text = golden(f"kubeadm-kube-scheduler-1.{minor}.yaml").decode()
        self.runs = runs
        self.kubelet = True
        self.healthy = True
        self.time = 0.0
        self.starts = 0
        self._pid = 0
        self._command: tuple[str, ...] = ()
        self.place.manifest.parent.mkdir(parents=True)
        self.place.manifest.write_text(self.text)
        self.place.manifest.chmod(0o600)
        (root / "proc" / "1").mkdir(parents=True)
        (root / "proc" / "1" / "cmdline").write_bytes(b"init\0")
        self._look()

    def wait(self, limit: float) -> Wait:
        return Wait(limit, self, self._asked)

    def files(self) -> dict[str, bytes]:
        """All below /etc, but what the player plays."""
        etc = self.place.root / "etc"
        return {str(path.relative_to(etc)): path.read_bytes() for path in sorted(etc.rglob("*")) if path.is_file()}

    # the clock
    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds
        if self.kubelet:
            self._look()

    def _look(self) -> None:
        command = _command(self.place.manifest.read_text())
        if self._pid and (command != self._command or not self.runs(self._command)):
            (self._process / "cmdline").unlink()
            self._process.rmdir()
            self._pid = 0
        elif not self._pid:
            self.starts += 1
            self._pid, self._command = 100 + self.starts, command
            self._process.mkdir()
            (self._process / "cmdline").write_bytes(b"".join(word.encode() + b"\0" for word in command))

    @property
    def _process(self) -> Path:
        return self.place.root / "proc" / str(self._pid)

    def _asked(self, host: str, port: int) -> str:
        assert (host, port) == ("127.0.0.1", 10259)
        return "" if self.healthy and self._pid else "connection refused"
