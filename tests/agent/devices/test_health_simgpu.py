"""Heat, worn memory and the driver's advice, injected into simgpu and seen by the whole agent through NVML."""

import asyncio
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fractile.kube import paths
from fractile.model.card import Card
from fractile.wire.fractile.extended_resource import HEALTHY, object_name
from tests.agent.simnode import Node, node
from tests.agent.world import GIB, MEM, card

CARDS = [card(n, 4 * GIB) for n in range(4)]
HOT, WORN, ADVISED, PENDING = CARDS


def status(on: Node, card: Card) -> dict[str, Any]:
    return on.world.server.get(paths.extended_resource(object_name(card.uuid))).get("status", {})


def hurt(on: Node, *words: str) -> None:
    ctl = on.host.native / "simgpu" / "simgpu-ctl"
    subprocess.run([ctl, *words], env=on.host.environment, check=True, timeout=30, capture_output=True)


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_each_card_is_taken_out_for_its_own_reason_and_comes_back_when_it_is_well(native: Path) -> None:
    async with node(native, "--cooling-minutes=0", cards=CARDS, model="NVIDIA A100") as on:
        await until(lambda: all(status(on, c).get("phase") in HEALTHY for c in CARDS))
        pod, _ = await on.container(1, "on-the-hot-one", card=HOT)
        hurt(on, "temperature", HOT.uuid, "96")
        hurt(on, "repair", WORN.uuid, "failed")
        hurt(on, "recovery", ADVISED.uuid, "reset")
        hurt(on, "repair", PENDING.uuid, "pending")
        sick = {HOT.uuid: "Overheated", WORN.uuid: "RepairFailed", ADVISED.uuid: "ResetRequired"}
        await until(lambda: {c.uuid: status(on, c).get("reason") for c in CARDS if c is not PENDING} == sick)
        assert status(on, PENDING)["phase"] in HEALTHY
        await until(lambda: on.world.kubelet.capacity()[MEM] == (16, 4))
        await until(lambda: on.events("CardUnhealthy") == [pod.metadata.name])
        for one in CARDS:
            hurt(on, "heal", one.uuid)
        await until(lambda: all(status(on, c)["phase"] in HEALTHY for c in CARDS))
        await on.world.kubelet.registered(MEM, 16)


async def test_a_programs_error_is_told_to_the_pod_of_the_process_that_the_kernel_names(
    native: Path, tmp_path: Path
) -> None:
    kernel_log = tmp_path / "kmsg"
    os.mkfifo(kernel_log)
    writing = os.open(kernel_log, os.O_RDWR)
    try:
        async with node(native, f"--kernel-log={kernel_log}", cards=CARDS) as on:
            _, first = await on.container(1, "first", card=HOT)
            await on.container(1, "second", card=HOT)
            pid = await on.host.tenant(64, token=first)
            place = HOT.pci_bus_id[4:-2]
            os.write(writing, f"4,1,1,-;NVRM: Xid (PCI:{place}): 31, pid={pid}, name=python\n".encode())
            hurt(on, "xid", HOT.uuid, "31")
            await until(lambda: bool(on.events("ProgramFailedOnCard")))
            await asyncio.sleep(0.5)
            assert on.events("ProgramFailedOnCard") == ["first"]
            hurt(on, "xid", HOT.uuid, "13")  # of which the kernel says nothing
            await until(lambda: sorted(on.events("ProgramFailedOnCard")) == ["first", "first", "second"])
    finally:
        os.close(writing)
