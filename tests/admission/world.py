"""What the tests of the webhook share: classes, a cluster, the API server's side of a patch, and a real socket."""

import asyncio
import socket
import ssl
from base64 import b64decode
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from copy import deepcopy
from typing import Any

import msgspec

from fractile.admission.app import Gate, Settings, WebhookApp, no_gate
from fractile.admission.capacity import ClusterCapacity
from fractile.admission.intake import IntakeLimits
from fractile.ledger.ledger import Ledger
from fractile.model.card import Card
from fractile.model.device_class import DeviceClass, Operator, PropertyRequirement
from fractile.model.refusal import Refusal
from fractile.model.request import PodRequest
from fractile.model.units import CardUUID, MiB, NodeName, Percent
from fractile.serving.webhook_server import WebhookLimits, serve
from fractile.wire.kubernetes.admission import Op
from tests.builders import Clock, card, cards
from tests.wire.golden_files import golden

Json = dict[str, Any]

K80 = DeviceClass("nvidia.tesla.k80")
PAIR = DeviceClass("pair", count=2)
PART = DeviceClass("part", memory=MiB(4096), cores=Percent(25))
HCA = DeviceClass("mellanox.hca", device_type="hca")
NIC = DeviceClass("nic", device_type="nic")
P4 = DeviceClass("p4", requirements=(PropertyRequirement("model", Operator.IN, ("Tesla-P4",)),))


class Known:
    """Classes by name."""

    def __init__(self, *classes: DeviceClass) -> None:
        self._classes = {c.name: c for c in classes}

    def find(self, name: str) -> DeviceClass | None:
        return self._classes.get(name)


CLASSES = Known(K80, PAIR, PART, HCA)


def unresolved(request: PodRequest) -> PodRequest | Refusal:
    return request


def ledger() -> Ledger:
    """A node with two cards of 16276 MiB and another device, and one with one card of 8000 MiB of another model."""
    made = Ledger(Clock())
    for one in (*cards("n1"), other_device("n1")):
        made.put_card(NodeName("n1"), one)
    made.put_card(NodeName("n2"), card("n2", memory=8000, model="Tesla-P4"))
    return made


def other_device(node: str) -> Card:
    return Card(CardUUID(f"nic-{node}"), 0, "ConnectX-7", MiB(0), type="nic", shares=1)


def webhook(
    *,
    known: bool = True,
    scheduler: str = "",
    settings: Settings | None = None,
    gate: Gate = no_gate,
    names_node: Callable[[str], bool] = lambda _: False,
) -> WebhookApp:
    return WebhookApp(
        classes=CLASSES,
        cluster=ClusterCapacity(ledger(), unresolved),
        known=lambda: known,
        scheduler_of=lambda _: scheduler,
        names_node=names_node,
        settings=settings,
        gate=gate,
    )


def review(obj: Any, **request: Any) -> bytes:
    """The recorded review of a new pod, with another object and whatever else is given."""
    body: Json = msgspec.json.decode(golden("admission-pod.json"))
    body["request"] |= {"object": msgspec.to_builtins(obj), **request}
    return msgspec.json.encode(body)


def answered(body: bytes) -> Json:
    response: Json = msgspec.json.decode(body)["response"]
    return response


def patch_of(response: Json) -> list[Op]:
    return msgspec.json.decode(b64decode(response.get("patch", "W10=")), type=list[Op])


def patched(obj: Any, ops: list[Op] | tuple[Op, ...]) -> Json:
    """RFC 6902 as the API server applies it: a parent that is missing, or a member to remove that is, is an error."""
    made: Any = deepcopy(msgspec.to_builtins(obj))
    for op in ops:
        *way, last = [step.replace("~1", "/").replace("~0", "~") for step in op.path.split("/")[1:]]
        at = made
        for step in way:
            at = at[int(step) if step.isdigit() else step]
        if op.op == "remove":
            del at[last]
        else:
            at[last] = msgspec.to_builtins(op.value)
    return made


@asynccontextmanager
async def opened(
    context: ssl.SSLContext, *, limits: WebhookLimits | None = None, bounds: IntakeLimits | None = None
) -> AsyncGenerator[int, None]:
    """Serve in the test's own event loop, with this TLS context; gives the port."""
    listening = socket.create_server(("127.0.0.1", 0))
    serving = asyncio.create_task(serve(webhook(), listening, context, limits=limits, bounds=bounds))
    await asyncio.sleep(0)
    try:
        yield listening.getsockname()[1]
    finally:
        serving.cancel()
        await asyncio.wait([serving], timeout=10)
        listening.close()
