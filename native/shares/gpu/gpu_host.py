"""Runs one case on the machine's card: a directory with slices, the arbiter or none, the tenants, and the board. By the
board the tenants begin at the same instant and report what they had done when the window ended. Everything runs in real
time."""

from __future__ import annotations

import json
import mmap
import os
import shutil
import signal
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from host import CARDS, Books, CaseFailed, Tenant

HERE = Path(__file__).resolve().parent
MIB = 1 << 20
PATIENCE = 90.0  # s until all tenants have their contexts
READY, GO, START, SEATS, SEAT, MOST = 0, 4, 8, 24, 16, 64  # board.h


class NoCard(Exception):
    """There is no card to measure on; the text says what was found."""


@dataclass
class Host:
    """The machine, with its card or (simulated) with a card of simgpu in real time."""

    build: Path
    simulated: bool
    root: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="gpu-shares-")))
    running: list[subprocess.Popen[bytes]] = field(default_factory=list[subprocess.Popen[bytes]])
    environment: dict[str, str] = field(default_factory=lambda: dict(os.environ))
    card: dict[str, str] = field(default_factory=dict[str, str])
    amounts: dict[tuple[str, str, str], str] = field(default_factory=dict[tuple[str, str, str], str])

    def __post_init__(self) -> None:
        for name in ("LD_PRELOAD", "FRACTILE_DIR"):
            self.environment.pop(name, None)
        if self.simulated:
            (self.root / "cards.json").write_text(json.dumps(CARDS))
            libraries = str(self.build / "simgpu")
            # No contents: a fill should take the card's time, not this machine's time while the card is held.
            simulated = {"SIMGPU_DIR": str(self.root), "SIMGPU_CONTENTS_MIB": "0"}
            self.environment |= simulated | {"LD_LIBRARY_PATH": libraries}
            self.environment.pop("SIMGPU_CLOCK", None)

    def find_card(self) -> None:
        done = subprocess.run(
            [self.build / "stress/gpu-probe", "card"], env=self.environment, capture_output=True, text=True, timeout=60
        )
        if done.returncode:
            words = (done.stdout + done.stderr).strip().splitlines() or [f"status {done.returncode}"]
            raise NoCard(words[-1].removeprefix(f"{done.args[0]}: "))
        self.card = dict(line.split(" ", 1) for line in done.stdout.splitlines())
        self.environment["CUDA_VISIBLE_DEVICES"] = self.card["uuid"]

    # ---- processes ----

    def start(self, command: list[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
        with (self.root / "err").open("ab") as err:
            p = subprocess.Popen(command, env=environment, stdout=err, stderr=err, stdin=subprocess.DEVNULL)
        self.running.append(p)
        return p

    def end_processes(self) -> None:
        for p in self.running:
            if p.poll() is None:
                p.send_signal(signal.SIGKILL)
        for p in self.running:
            p.wait()
        self.running.clear()

    def close(self) -> None:
        self.end_processes()
        shutil.rmtree(self.root, ignore_errors=True)

    def _await(self, what: str, done: Callable[[], bool], seconds: float) -> None:
        until = time.monotonic() + seconds
        while not done():
            dead = [p.returncode for p in self.running if p.poll()]
            if dead or time.monotonic() > until:
                words = (self.root / "err").read_text(errors="replace").strip()[-400:].replace("\n", " | ")
                raise CaseFailed(f"{what}: {f'a process ended with {dead[0]}' if dead else 'took too long'}; {words}")
            time.sleep(0.002)

    # ---- a case ----

    def amount(self, kind: str, us: str, blocks: str) -> str:
        """The amount of work for a kernel of this length on this card; tried once, with the card otherwise idle."""
        key = (kind, us, blocks)
        if key not in self.amounts:
            command = [str(self.build / "shares/gpu-tenant"), "amount", str(HERE), kind, us, blocks]
            done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=120)
            if done.returncode:
                raise CaseFailed(f"{kind} of {us} us: {done.stderr.strip()}")
            self.amounts[key] = done.stdout.strip()
        return self.amounts[key]

    def words(self, work: str) -> list[str]:
        return [self._kernels(w) if w.startswith("kernels=") else w for w in work.split()]

    def _kernels(self, word: str) -> str:
        kernels = word.removeprefix("kernels=").split(",")
        return "kernels=" + ",".join(f"{k}:{self.amount(*k.split(':'))}" for k in kernels)

    def run(self, tenants: list[Tenant], window: int, *, limited: bool) -> Books:
        """window: ms. limited: with library and arbiter."""
        commands = [self.words(t.work) for t in tenants]
        place = Path(tempfile.mkdtemp(dir=self.root))
        (self.root / "err").write_bytes(b"")
        try:
            slices = [self._slice(place / "slices" / f"t{i}", t) for i, t in enumerate(tenants)] if limited else []
            if limited:
                self._start_arbiter(place, slices)
            board = self._start_tenants(place, tenants, commands, limited)
            return self._window(board, [t.processes for t in tenants], window)
        finally:
            self.end_processes()
            shutil.rmtree(place, ignore_errors=True)

    def _slice(self, directory: Path, t: Tenant) -> Path:
        directory.parent.mkdir(exist_ok=True)
        memory = min(8192 * MIB, int(self.card["free"]) // 5)
        terms = f"{self.card['uuid']}={memory},cores={t.cores},cores-limit={t.limit}"
        if self.simulated:
            terms += ",context=256MiB"
        command = [str(self.build / "slice/fractile-slice"), "create", str(directory), "--card", terms]
        subprocess.run([*command, "--slots", "64", "--objects", "64"], check=True, stdout=subprocess.DEVNULL)
        return directory

    def _start_arbiter(self, place: Path, slices: list[Path]) -> None:
        arbiter = str(self.build / "arbiter/fractile-arbiter")
        self.start([arbiter, "--parent", str(os.getpid()), "--slices", str(place / "slices")], self.environment)
        self._await("arbiter", lambda: all((s / "arbiter.sock").exists() for s in slices), 10)

    def _start_tenants(self, place: Path, tenants: list[Tenant], words: list[list[str]], limited: bool) -> mmap.mmap:
        path, seats = place / "board", 0
        path.write_bytes(bytes(SEATS + SEAT * MOST))
        with path.open("r+b") as f:
            board = mmap.mmap(f.fileno(), 0)
        for i, t in enumerate(tenants):
            environment = dict(self.environment)
            if limited:
                library = str(self.build / "interposer/libfractile.so")
                environment |= {"LD_PRELOAD": library, "FRACTILE_DIR": str(place / "slices" / f"t{i}")}
            for _ in range(t.processes):
                program = str(self.build / "shares/gpu-tenant")
                self.start([program, str(path), str(seats), str(HERE), *words[i]], environment)
                seats += 1
        self._await("getting ready", lambda: struct.unpack_from("<I", board, READY)[0] == seats, PATIENCE)
        return board

    def _window(self, board: mmap.mmap, processes: list[int], window: int) -> Books:
        begin = time.monotonic_ns() + 20_000_000
        struct.pack_into("<QQ", board, START, begin, begin + window * 1_000_000)
        struct.pack_into("<I", board, GO, 1)
        time.sleep(window / 1000)
        seats = range(sum(processes))
        self._await("the end", lambda: all(_seat(board, s)[1] for s in seats), 10)
        done: list[list[int]] = []
        at = 0
        for count in processes:  # scaled as if all had counted exactly at the end
            counts = [_seat(board, at + k) for k in range(count)]
            done.append([0, round(sum(d * window * 1e6 / (ended - begin) for d, ended in counts))])
            at += count
        return Books([0, window], [[0, 0]] * len(processes), done)


def _seat(board: mmap.mmap, index: int) -> tuple[int, int]:
    """Kernels done, and when they were counted."""
    done, ended = struct.unpack_from("<QQ", board, SEATS + SEAT * index)
    return int(done), int(ended)


def end_on_signals(host: Host) -> None:
    """Leaves no process and no file behind."""

    def end(number: int, _frame: FrameType | None) -> None:
        host.close()
        os._exit(128 + number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, end)
