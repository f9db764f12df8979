"""Runs one case: a simulated host of its own in a temporary directory, slices for its containers, the arbiter or not,
and the conductor, which prints simgpu's accounts. Everything runs under the virtual clock."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

CARD = "GPU-00000000-0000-4000-8000-000000000001"
CARDS = [
    {
        "uuid": CARD,
        "index": 0,
        "model": "NVIDIA A100-SXM4-40GB",
        "memoryMiB": 40960,
        "pciBusID": "00000000:07:00.0",
        "smCount": 108,
    }
]


@dataclass(frozen=True)
class Tenant:
    """A container of a case. cores and limit are percent of the card's time; 0 means none."""

    work: str
    cores: int = 0
    limit: int = 0
    arrive: int = 0  # ms
    depart: int | None = None  # ms; None: stays
    processes: int = 1


@dataclass(frozen=True)
class Books:
    """simgpu's accounts at each sample: ms since the start, and each tenant's GPU ns and started kernels since then."""

    at: list[int]
    gpu: list[list[int]]  # per tenant, per sample
    launches: list[list[int]]
    latencies: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    longest: dict[str, int] = field(default_factory=dict[str, int])  # us, of each tenant's iterations
    processor: dict[str, int] = field(default_factory=dict[str, int])  # ns, of each tenant and of the arbiter
    seconds: float = 0.0  # of real time

    def silent(self, tenants: Sequence[Tenant]) -> list[int]:
        """Those that should have worked, and launched nothing: a fault of the test, since no tenant gets nothing."""
        idle = ["loop=idle" in t.work for t in tenants]
        return [i for i in range(len(tenants)) if not idle[i] and self.gpu[i][-1] == 0 and self.launches[i][-1] == 0]

    def share(self, tenant: int, begin: int, end: int) -> float:
        """Part of the card's time from begin to end (ms, both sampled)."""
        i, j = self.at.index(begin), self.at.index(end)
        return (self.gpu[tenant][j] - self.gpu[tenant][i]) / ((end - begin) * 1e6)

    def work(self, tenant: int, begin: int, end: int, by_launches: bool) -> float:
        """Work done: in kernels if several run at once, else in time."""
        i, j = self.at.index(begin), self.at.index(end)
        book = self.launches if by_launches else self.gpu
        return float(book[tenant][j] - book[tenant][i])


class CaseFailed(Exception):
    """The conductor failed or took too long; the text is its last output."""


_busy: dict[Path, subprocess.Popen[bytes] | None] = {}


def numbers(text: str) -> list[int]:
    """The numbers of a list such as 0,3,5; an option's type."""
    found = text.split(",")
    if not all(n.strip().isdigit() for n in found):
        raise argparse.ArgumentTypeError(f"not a list of numbers, such as 0,3,5: '{text}'")
    return [int(n) for n in found]


def end_all(number: int, _frame: object) -> None:
    """Signal handler: leaves no process and no file behind."""
    for root, p in list(_busy.items()):
        if p is not None:
            p.send_signal(signal.SIGKILL)
        shutil.rmtree(root, ignore_errors=True)
    os._exit(128 + number)


def run(
    build: Path,
    tenants: list[Tenant],
    mode: str,
    window: int,
    sample: int,
    patience: float = 60.0,
    *,
    real: bool = False,
) -> Books:
    """mode: none (the driver alone), fractile, or bucket (the baseline). real: by the machine's clock, with the library
    and the arbiter as shipped."""
    shm = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    root = Path(tempfile.mkdtemp(prefix="shares-", dir=shm))
    began, _busy[root] = time.monotonic(), None
    try:
        (root / "cards.json").write_text(json.dumps(CARDS))
        text = _case(build, root, tenants, mode, window, sample, build if real else build / "virtual")
        out = _conduct(build, root, text, patience, real)
    finally:
        shutil.rmtree(root, ignore_errors=True)
        _busy.pop(root, None)
    return _parse(out, len(tenants), time.monotonic() - began)


def _case(build: Path, root: Path, tenants: list[Tenant], mode: str, window: int, sample: int, programs: Path) -> str:
    lines = [f"window {window}", f"sample {sample}"]
    preload = {
        "none": "-",
        "fractile": programs / "interposer/libfractile.so",
        "bucket": build / "shares/bucket.so",
    }[mode]
    for i, t in enumerate(tenants):
        (root / f"slices/t{i}").mkdir(parents=True)
        if mode == "fractile":
            _slice(build, root / f"slices/t{i}", t)
        if mode == "bucket":
            (root / f"slices/t{i}/bucket").write_text(
                f"{t.limit or t.cores} {0 if t.limit else 100 if t.cores else 0}\n"
            )
    if mode == "fractile":
        lines.append(f"arbiter {programs / 'arbiter/fractile-arbiter'} {root / 'slices'}")
    for i, t in enumerate(tenants):
        depart = window if t.depart is None else t.depart
        lines.append(f"tenant t{i} {root / f'slices/t{i}'} {preload} {t.arrive} {depart} {t.processes} {t.work}")
    return "\n".join(lines) + "\n"


def _slice(build: Path, directory: Path, t: Tenant) -> None:
    terms = f"{CARD}=8GiB,context=256MiB,cores={t.cores},cores-limit={t.limit}"
    command = [
        build / "slice/fractile-slice",
        "create",
        directory,
        "--slots",
        "64",
        "--objects",
        "64",
        "--card",
        terms,
    ]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def _conduct(build: Path, root: Path, case: str, patience: float, real: bool) -> str:
    environment = dict(os.environ, SIMGPU_DIR=str(root), LD_LIBRARY_PATH=str(build / "simgpu"))
    environment["SIMGPU_CLOCK"] = "real" if real else "virtual"
    if real:
        (root / "clock-bell.0").touch()  # tells the conductor that the arbiter is running
    environment["SIMGPU_CONTENTS_MIB"] = "0"  # only the card's time that a copy takes matters here, not its bytes
    with (root / "err").open("wb+") as err:
        command = [build / "shares/conductor", build / "shares/tenant"]
        p = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=err, env=environment)
        _busy[root] = p
        try:
            out, _ = p.communicate(case.encode(), timeout=patience)
        except subprocess.TimeoutExpired:
            p.send_signal(signal.SIGKILL)  # its children die with it
            p.communicate()
            raise CaseFailed(f"not done after {patience:.0f} s: {_last_words(err)}") from None
        if p.returncode != 0:
            raise CaseFailed(_last_words(err) or f"the conductor ended with {p.returncode}")
    return out.decode()


def _last_words(err: BinaryIO) -> str:
    err.seek(0)
    return err.read()[-600:].decode(errors="replace").strip().replace("\n", " | ")


def _parse(out: str, tenants: int, seconds: float) -> Books:
    at: list[int] = []
    gpu: list[list[int]] = [[] for _ in range(tenants)]
    launches: list[list[int]] = [[] for _ in range(tenants)]
    latencies: dict[int, list[int]] = {}
    meters: dict[str, dict[str, int]] = {"longest": {}, "processor": {}}
    for line in out.splitlines():
        words = line.split()
        if words[0] in meters:
            meters[words[0]][words[1]] = int(words[2])
        elif words[0] == "at":
            at.append(int(words[1]))
            for i in range(tenants):
                gpu[i].append(int(words[2 + 2 * i]))
                launches[i].append(int(words[3 + 2 * i]))
        elif words[0] == "latency":
            latencies[int(words[1][1:])] = [int(w) for w in words[2:]]
    return Books(at, gpu, launches, latencies, meters["longest"], meters["processor"], seconds)
