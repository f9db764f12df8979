"""What happened in a round, line by line, in a file that is kept when something was wrong."""

import time
from pathlib import Path

from tests.chaos.judging.snapshot import Snapshot


class Journal:
    """One file for each round in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lines: list[str] = []

    def note(self, text: str) -> None:
        now = time.time()
        self._lines.append(f"{time.strftime('%H:%M:%S', time.gmtime(now))}.{int(now % 1 * 1000):03d} {text}")

    def write(self, name: str, seen: Snapshot | None) -> None:
        """Put the notes since the last file into this one, and what was seen at the end."""
        pods = [
            f"{p.name} uid={p.uid} node={p.spec.node_name} phase={p.status.phase} {p.placement}"
            for p in (seen.pods if seen else ())
        ]
        ledger = str(seen.ledger) if seen else "nothing could be read"
        (self.folder / name).write_text("\n".join([*self._lines, "", "at the end:", ledger, *pods]) + "\n")
        self._lines.clear()
