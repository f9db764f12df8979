"""Exact records of what is left of a cluster: CPU, memory and pod places of nodes; memory and compute time of every
card.

Policies see the same cluster through ``view``, which has one number for a card: the smaller of the two shares that are
left. So a policy proposes and these records decide. The rules for a card are the ledger's: whole cards are unshared,
and if a pod holds memory without a part of the time, one percent of the time is left unpromised.
"""

from collections.abc import Sequence

import msgspec
import numpy as np

from fractile.policy.nodes.view import KINDS, NO_DEVICE, WHOLE_GPU, Flags, Ints, View
from fractile.sim.kinds import Kinds
from fractile.sim.snapshot.cluster_snapshot import Demand, DemandPart, Machine, Taken

KEPT = 10  # thousandths of the time kept for holders without promised time


class PodHold(msgspec.Struct, frozen=True):
    """A pod's place, and what it holds there."""

    row: int
    cpu: int
    memory: int
    taken: tuple[Taken, ...] = ()


class Lack(msgspec.Struct, frozen=True):
    """Masks of nodes [N], one for each cause: whether it keeps a demand away, alone or with other causes."""

    taint: Flags
    label: Flags
    no_gpu: Flags  # fewer cards than requested
    model: Flags  # enough cards, but not of the models or cards that the pod names
    size: Flags  # enough such cards, but too small even when empty
    gpu: Flags  # large enough, but too few have enough left
    cpu: Flags
    memory: Flags
    places: Flags

    def any(self) -> Flags:
        """Nodes that cannot take it now."""
        return np.any([getattr(self, name) for name in LACKS], axis=0)


LACKS = ("taint", "label", "no_gpu", "model", "size", "gpu", "cpu", "memory", "places")


class PlannerStock:
    """The records, with which ``view`` changes. Unhealthy cards have nothing left."""

    def __init__(self, machines: Sequence[Machine], kinds: Kinds) -> None:
        self.machines = tuple(machines)
        self.kinds = kinds
        self.rows = {m.name: row for row, m in enumerate(machines)}
        width = max([1, *(len(m.cards) for m in machines)])
        shape = (len(machines), width)
        self.cpu_left, self.memory_left, self.slots_left = (
            np.array([getattr(m, name) for m in machines], np.int64) for name in ("cpu", "memory", "slots")
        )
        self.present = np.zeros(shape, np.bool_)
        self.card_memory = np.zeros(shape, np.int64)
        self._fill_cards()
        self.card_left = np.where(self._healthy, self.card_memory, 0)
        self.time_left = np.where(self._healthy, WHOLE_GPU, 0).astype(np.int64)
        self.users = np.where(self._healthy, 0, 1).astype(np.int64)
        self._timeless = np.zeros(shape, np.int64)  # holders that were promised no time
        self.view = self._empty_view()
        for row, machine in enumerate(self.machines):
            self._change_cards(row, machine.withheld, 1)

    def _fill_cards(self) -> None:
        self._healthy = np.zeros(self.present.shape, np.bool_)
        for row, machine in enumerate(self.machines):
            for device, card in enumerate(machine.cards):
                self.present[row, device] = True
                self.card_memory[row, device] = card.memory
                self._healthy[row, device] = card.healthy

    def _empty_view(self) -> View:
        left = np.where(self.present, np.where(self._healthy, WHOLE_GPU, 0), -1).astype(np.int64)
        return View(
            number=np.arange(len(self.machines), dtype=np.int64),
            cpu=self.cpu_left.copy(),
            cpu_left=self.cpu_left,
            memory=self.memory_left.copy(),
            memory_left=self.memory_left,
            gpus=self.present.sum(axis=1).astype(np.int64),
            gpu_left=left,
            model=self.kinds.of_row,
            kinds=np.zeros((len(self.machines), KINDS), np.int64),
            slots_left=self.slots_left,
            models=self.kinds.names,
        )

    # ── what fits ────────────────────────────────────────────────────────────────────────────────────────────────────

    def lack(self, demand: Demand) -> Lack:
        """Why each node cannot take the demand."""
        part = demand.part
        taint, label = self.kinds.barred(demand.where)
        none = np.zeros(len(self.machines), np.bool_)
        no_gpu, model, size, gpu = (none, none, none, none) if part is None else self._lack_gpus(part)
        return Lack(
            taint=taint,
            label=label,
            no_gpu=no_gpu,
            model=model,
            size=size,
            gpu=gpu,
            cpu=self.cpu_left < demand.cpu,
            memory=self.memory_left < demand.memory,
            places=self.slots_left <= 0,
        )

    def feasible(self, demand: Demand) -> Flags:
        """Mask of nodes that can take the demand now. [N]"""
        taint, label = self.kinds.barred(demand.where)
        ok = (self.cpu_left >= demand.cpu) & (self.memory_left >= demand.memory) & (self.slots_left > 0)
        ok &= ~(taint | label)
        if demand.part is not None and ok.any():
            ok &= self.fitting(demand.part).sum(axis=1) >= demand.gpus
        return ok

    def fits(self, demand: Demand, row: int) -> Flags:
        """The cards of one node that have room; all false where the node itself has none."""
        taint, label = self.kinds.barred(demand.where)
        if (
            self.cpu_left[row] < demand.cpu
            or self.memory_left[row] < demand.memory
            or self.slots_left[row] <= 0
            or taint[row]
            or label[row]
        ):
            return np.zeros(self.present.shape[1], np.bool_)
        if demand.part is None:
            return np.ones(self.present.shape[1], np.bool_)
        return self.fitting(demand.part, slice(row, row + 1))[0]

    def _lack_gpus(self, part: DemandPart) -> tuple[Flags, Flags, Flags, Flags]:
        enough = self.present.sum(axis=1) >= part.count
        named = self.kinds.admitted(part)
        model = (named & self.present).sum(axis=1) >= part.count
        large = (
            named & self.present if part.exclusive else named & self.present & (self._memory(part) <= self.card_memory)
        )
        size = large.sum(axis=1) >= part.count
        fits = self.fitting(part).sum(axis=1) >= part.count
        return ~enough, enough & ~model, model & ~size, size & ~fits

    def fitting(self, part: DemandPart, rows: slice = slice(None)) -> Flags:
        """Mask of cards with room for the part, regardless of what else the nodes lack. [N, D]"""
        ok = self.kinds.admitted(part)[rows] & self.present[rows]
        if part.exclusive:
            return ok & (self.users[rows] == 0)
        ok &= self._memory(part, rows) <= self.card_left[rows]
        if not part.compute:
            return ok & (self.time_left[rows] >= KEPT)
        return ok & (part.compute <= self.time_open(rows))

    def _memory(self, part: DemandPart, rows: slice = slice(None)) -> Ints:
        return part.memory + self.card_memory[rows] * part.share // 1000

    def time_open(self, rows: slice = slice(None)) -> Ints:
        """Thousandths of each card's time that can still be promised. [N, D]"""
        return self.time_left[rows] - np.where(self._timeless[rows] > 0, KEPT, 0)

    def memory_share(self) -> Ints:
        """Thousandths of each card's memory that are left; all of them if its size is unknown. [N, D]"""
        known = np.maximum(self.card_memory, 1)
        return np.where(self.card_memory > 0, self.card_left * WHOLE_GPU // known, WHOLE_GPU)

    def loosest(self, part: DemandPart, row: int) -> tuple[int, ...]:
        """Cards for a pod that already runs there: those with room, the fullest first, then the least used of the
        others; its conditions no longer count. Fewer than requested only if the node has fewer."""
        present = np.flatnonzero(self.present[row])
        room = self.fitting(msgspec.structs.replace(part, selectors=(), models=()), slice(row, row + 1))[0, present]
        left = self.view.gpu_left[row, present]
        key = left * np.where(room, 1, -1) - 2 * WHOLE_GPU * room  # cards with room before cards without
        return tuple(int(d) for d in present[np.argsort(key, kind="stable")][: part.count])

    # ── what changes ─────────────────────────────────────────────────────────────────────────────────────────────────

    def choose(self, demand: Demand, row: int, device: int = NO_DEVICE) -> tuple[int, ...] | None:
        """Cards of that node: the policy's ``device`` if it has room, else the fullest; None if the demand does not
        fit."""
        room = self.fits(demand, row)
        if demand.part is None:
            return () if room.any() else None
        if demand.gpus == 1 and device != NO_DEVICE and room[device]:
            return (device,)
        found = np.flatnonzero(room)
        if len(found) < demand.gpus:
            return None
        left = self.view.gpu_left[row, found]
        return tuple(int(d) for d in found[np.argsort(left, kind="stable")][: demand.gpus])

    def take(self, demand: Demand, row: int, devices: Sequence[int]) -> PodHold:
        """Record that the pod takes these devices."""
        part = demand.part
        taken = () if part is None else tuple(self._of_card(part, row, d) for d in devices)
        return self.hold(PodHold(row, demand.cpu, demand.memory, taken))

    def _of_card(self, part: DemandPart, row: int, device: int) -> Taken:
        if part.exclusive:
            return Taken(device, int(self.card_memory[row, device]), WHOLE_GPU, exclusive=True)
        return Taken(device, part.memory_on(int(self.card_memory[row, device])), part.compute)

    def hold(self, held: PodHold) -> PodHold:
        """Record a known hold, even if it exceeds what there is: then nothing is left."""
        self._change(held, 1)
        return held

    def release(self, held: PodHold) -> None:
        """Record that the hold ended."""
        self._change(held, -1)

    def _change(self, held: PodHold, sign: int) -> None:
        row = held.row
        self.cpu_left[row] -= sign * held.cpu
        self.memory_left[row] -= sign * held.memory
        self.slots_left[row] -= sign
        self._change_cards(row, held.taken, sign)
        if held.taken:
            self.view.kinds[row, _kind(held.taken)] += sign

    def _change_cards(self, row: int, taken: Sequence[Taken], sign: int) -> None:
        for t in taken:
            self.card_left[row, t.device] -= sign * t.memory
            self.time_left[row, t.device] -= sign * t.compute
            self.users[row, t.device] += sign
            self._timeless[row, t.device] += sign * (t.compute == 0)
            self.view.gpu_left[row, t.device] = self._shown(row, t.device)

    def _shown(self, row: int, device: int) -> int:
        """Thousandths of a card that are left, as policies see it: a card in use never counts as whole."""
        memory, left = int(self.card_memory[row, device]), int(self.card_left[row, device])
        by_memory = left * WHOLE_GPU // memory if memory else WHOLE_GPU
        shown = max(0, min(by_memory, int(self.time_left[row, device])))
        return min(shown, WHOLE_GPU - 1) if self.users[row, device] else shown


def _kind(taken: Sequence[Taken]) -> int:
    return min(len(taken), KINDS - 1) if taken[0].exclusive else 0
