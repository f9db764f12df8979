"""The file of devices, as it changes under a running agent."""

import json
from pathlib import Path
from typing import Any

import pytest

from fractile.agent.devices.publish_file import DeviceFile
from fractile.agent.node.catalog import Catalog, CurrentCatalog
from fractile.model.health import HEALTHY, HealthVerdict
from fractile.model.units import CardUUID, MemoryUnit
from fractile.wire.fractile.resource_class import DEVICE_SLOT
from tests.agent.world import CARDS, NODE
from tests.builders import Clock

DEVICE = CardUUID(f"hca.{NODE}")
CARD = CARDS[0].uuid
SICK = HealthVerdict(healthy=False, reason="Xid79")


class Scene:
    def __init__(self, folder: Path) -> None:
        self.file = folder / "devices.json"
        self.clock = Clock()
        self.held: set[CardUUID] | None = set()
        self.current_catalog = CurrentCatalog(Catalog.of(CARDS, MemoryUnit.MiB))
        self.follower = DeviceFile(
            self.file,
            self.current_catalog,
            node=NODE,
            others=lambda uuid: SICK if uuid == CARD else HEALTHY,
            holders=lambda: self.held,
            clock=self.clock,
        )

    def says(self, *devices: dict[str, Any]) -> None:
        listed = [{"id": "hca", "type": "infiniband", **d} for d in devices]
        self.file.write_text(json.dumps({"version": 1, "devices": listed}))
        self.follower.look()

    @property
    def offered(self) -> dict[str, bool]:
        return {o.uuid: o.device.healthy for o in self.current_catalog.catalog.others}


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_devices_come_and_go_as_the_file_says(scene: Scene) -> None:
    scene.says({})
    assert scene.offered == {DEVICE: True}
    assert dict(scene.current_catalog.catalog.devices(DEVICE_SLOT)) == {f"{DEVICE}::0": True}
    assert scene.current_catalog.catalog.cards == tuple(CARDS)
    scene.says({"shares": 3}, {"id": "other"})
    assert set(scene.offered) == {DEVICE, f"other.{NODE}"}
    assert len(list(scene.current_catalog.catalog.devices(DEVICE_SLOT))) == 4
    scene.says()
    assert scene.offered == {}


def test_a_file_that_is_not_there_or_makes_no_sense_leaves_things_as_they_are(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        scene.follower.look()
    assert sum("cannot be read" in r.getMessage() for r in caplog.records) == 1
    scene.says({})
    scene.file.write_text('{"version": 1, "devices": [{"id": ')
    for _ in range(3):
        scene.follower.look()
    assert scene.offered == {DEVICE: True}
    assert sum("neither YAML nor JSON" in r.getMessage() for r in caplog.records) == 1
    scene.file.unlink()
    scene.follower.look()
    assert scene.offered == {DEVICE: True}
    scene.says()
    assert scene.offered == {}


def test_a_file_that_did_not_change_is_not_taken_over_again(scene: Scene) -> None:
    scene.says({})
    before = scene.current_catalog.catalog
    scene.follower.look()
    scene.file.write_text(scene.file.read_text() + "\n")
    scene.follower.look()
    assert scene.current_catalog.catalog is before


def test_a_sick_device_says_why_and_since_when_and_comes_back(scene: Scene) -> None:
    scene.says({"healthy": False, "reason": "LinkDown", "message": "port 1 is down"})
    began = scene.clock.now
    assert scene.offered == {DEVICE: False}
    assert scene.follower.verdict(DEVICE) == HealthVerdict(False, "LinkDown", "port 1 is down", began)
    scene.clock.now += 60.0
    scene.says({"healthy": False, "reason": "LinkDown", "message": "both ports are down"})
    assert scene.follower.verdict(DEVICE).since == began
    scene.says({"healthy": False, "reason": "Overheated"})
    assert scene.follower.verdict(DEVICE).since == scene.clock.now
    scene.says({})
    assert scene.follower.verdict(DEVICE) == HEALTHY


def test_of_cards_somebody_else_knows(scene: Scene) -> None:
    scene.says({})
    assert scene.follower.verdict(CARD) == SICK


def test_properties_that_change_under_a_pod_change_the_device_and_keep_its_id(scene: Scene) -> None:
    scene.says({"properties": {"rate": "400Gb/s"}})
    (before,) = scene.current_catalog.catalog.others
    scene.says({"properties": {"rate": "200Gb/s"}})
    (after,) = scene.current_catalog.catalog.others
    assert (before.device.property("rate"), after.device.property("rate")) == ("400Gb/s", "200Gb/s")
    assert before.uuid == after.uuid


def test_a_device_that_the_file_no_longer_names_stays_sick_while_pods_hold_it(scene: Scene) -> None:
    scene.says({}, {"id": "other"})
    scene.held = {DEVICE}
    scene.says()
    assert scene.offered == {DEVICE: False}
    verdict = scene.follower.verdict(DEVICE)
    assert (verdict.healthy, verdict.reason) == (False, "Removed")
    scene.held = None
    scene.follower.look()
    assert scene.offered == {DEVICE: False}, "nobody knows who holds it"
    scene.held = set()
    scene.follower.look()
    assert scene.offered == {}


def test_a_device_that_is_named_again_is_well(scene: Scene) -> None:
    scene.says({})
    scene.held = {DEVICE}
    scene.says()
    scene.says({})
    assert scene.offered == {DEVICE: True}
    assert scene.follower.verdict(DEVICE) == HEALTHY


def test_more_device_ids_than_kubelet_takes_change_nothing(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    scene.says({})
    for _ in range(3):
        scene.says(*({"id": f"d{i}", "shares": 1000} for i in range(100)))
    assert scene.offered == {DEVICE: True}
    assert sum("devices unchanged" in r.getMessage() for r in caplog.records) == 1
