"""Reduce a request larger than usual piece by piece: whole nodes and pods are replaced by their names and UIDs.

A kube-scheduler with ``nodeCacheCapable: false`` sends 5,000 whole nodes, 46 MB. Decoding them in one go would stall
the event loop, and a hostile body would stall it for seconds and become gigabytes of objects. So values of at most
2 MiB are decoded one by one, and other tasks run every few milliseconds.

Text is decoded as Latin-1, in which every byte is a character: positions in the text are positions in the body.
"""

import asyncio
import json
import re
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any, cast

import msgspec

from fractile.errors import WireError
from fractile.wire.bounds import MOST_OBJECTS
from fractile.wire.kubernetes import extender as wire
from fractile.wire.kubernetes.extender import MOST_NODES, FilterResult, NodeList

MOST_PODS = 200_000  # that a request may name as victims
_PODS = 5_000  # of one node
_WINDOW = 2**18  # characters that are decoded at a time
_VALUE = 2**21  # bytes of one value: no object of Kubernetes is larger than 1.5 MiB
_TURN = 0.01  # seconds of work before other tasks run
_BLANKS = re.compile(r"[ \t\r\n]*")

_scan = json.JSONDecoder().raw_decode


class Small(msgspec.Struct, frozen=True):
    """``body``: the same request by names. ``nodes``: begin and end of each whole node in the large body."""

    body: bytes
    nodes: Mapping[str, tuple[int, int]]


async def made_small(body: bytearray, clock: Callable[[], float] = time.monotonic) -> Small:
    """Reduce a request. Raises WireError when it is not a request of kube-scheduler."""
    reader = _Reader(body, clock)
    pod, names = b"null", list[str]()
    nodes: dict[str, tuple[int, int]] = {}
    victims: dict[str, object] | None = None
    async for key in reader.keys():
        match key.lower():
            case "pod":
                begin, end, _ = await reader.value()
                pod = bytes(body[begin:end])
            case "nodenames":
                names += [_text(value) for _, _, value in [v async for v in reader.items()]]
            case "nodes":
                nodes |= await _whole_nodes(reader)
            case "nodenametovictims" | "nodenametometavictims":
                found = await _victims(reader)
                victims = {**(victims or {}), **found}
            case _:
                await reader.value()
    if victims is not None:
        rest = b'"NodeNameToMetaVictims":' + msgspec.json.encode(victims)
    else:
        rest = b'"NodeNames":' + msgspec.json.encode(names or list(nodes))
    return Small(b'{"Pod":%b,%b}' % (pod, rest), nodes)


def with_nodes(answer: bytes, small: Small, body: bytearray) -> bytes:
    """The answer of filter with whole nodes, if the request had them."""
    if not small.nodes:
        return answer
    result = msgspec.json.decode(answer, type=FilterResult)
    if result.node_names is None:
        return answer
    whole = (small.nodes.get(name) for name in result.node_names)
    items = [msgspec.Raw(bytes(body[place[0] : place[1]])) for place in whole if place is not None]
    return wire.encode(msgspec.structs.replace(result, node_names=None, nodes=NodeList(items)))


async def _whole_nodes(reader: "_Reader") -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    async for key in reader.keys():
        if key.lower() != "items":
            await reader.value()
            continue
        async for begin, end, value in reader.items():
            found[_text(_field(_field(value, "metadata"), "name"))] = begin, end
    return found


async def _victims(reader: "_Reader") -> dict[str, object]:
    found: dict[str, object] = {}
    count = 0
    async for node in reader.keys():
        _, _, value = await reader.value()
        pods = cast("list[object]", _field(value, "pods") or [])
        count += len(pods)
        if len(found) >= MOST_NODES or count > MOST_PODS or len(pods) > _PODS:
            raise WireError(f"the request names more than {MOST_NODES} nodes or {MOST_PODS} pods")
        found[node] = {
            "Pods": [{"UID": _uid(pod)} for pod in pods],
            "NumPDBViolations": _field(value, "numpdbviolations") or 0,
        }
    return found


def _uid(pod: object) -> str:
    return _text(_field(pod, "uid") or _field(_field(pod, "metadata"), "uid"))


def _field(value: object, name: str) -> Any:
    """A field of an object in any case, as Go reads it."""
    if value is None:
        return None
    if not isinstance(value, dict):
        raise WireError("the request holds something that is not an object")
    known = cast("dict[str, Any]", value)
    return known[name] if name in known else next((v for k, v in known.items() if k.lower() == name), None)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise WireError("the request holds a name that is not a string")
    return value


class _Reader:
    """A position in the body that moves from value to value."""

    def __init__(self, body: bytearray, clock: Callable[[], float]) -> None:
        self._body = body
        self._clock = clock
        self._turn = clock() + _TURN
        self._text = ""
        self._begin = 0  # position of the text in the body
        self._at = 0  # position in the text
        self._look(0, _WINDOW)

    async def keys(self) -> AsyncGenerator[str]:
        """The keys of an object, or none for null; the caller must read the value after each key."""
        async for _ in self._between("{", "}"):
            _, _, name = await self.value()
            self._take(":")
            yield _text(name)

    async def items(self) -> AsyncGenerator[tuple[int, int, Any]]:
        """The values of a list, or none for null, with their positions."""
        async for _ in self._between("[", "]"):
            yield await self.value()

    async def _between(self, opening: str, closing: str) -> AsyncGenerator[None]:
        if self._next() == "n":
            await self.value()
            return
        self._take(opening)
        if self._next() == closing:
            self._take(closing)
            return
        for _ in range(MOST_NODES):
            yield None
            if self._next() != ",":
                self._take(closing)
                return
            self._take(",")
        raise WireError(f"the request names more than {MOST_NODES} nodes")

    async def value(self) -> tuple[int, int, Any]:
        """The whole next value, and where it begins and ends in the body."""
        if self._clock() > self._turn:
            await asyncio.sleep(0)
            self._turn = self._clock() + _TURN
        self._next()
        found = self._scanned()
        if found is None:
            self._look(self._begin + self._at, _VALUE)
            found = self._scanned() if self._text.count("[") + self._text.count("{") < MOST_OBJECTS else None
        if found is None:
            raise WireError("the request is not JSON, or holds a value that is larger than 2 MiB")
        value, end = found
        begin, self._at = self._begin + self._at, end
        return begin, self._begin + end, value

    def _scanned(self) -> tuple[Any, int] | None:
        try:
            value, end = _scan(self._text, self._at)
        except (ValueError, RecursionError):
            return None
        whole = end < len(self._text) or self._begin + end >= len(self._body)
        return (value, end) if whole else None  # a number may continue after the window

    def _next(self) -> str:
        """The next character that is not blank."""
        for _ in range(2):
            found = _BLANKS.match(self._text, self._at)
            self._at = found.end() if found else self._at
            if self._at < len(self._text):
                return self._text[self._at]
            self._look(self._begin + self._at, _WINDOW)
        raise WireError("the request is not JSON: it ends too early, or is blank")

    def _take(self, wanted: str) -> None:
        if self._next() != wanted:
            raise WireError(f"the request is not JSON: {wanted!r} is missing at byte {self._begin + self._at}")
        self._at += 1

    def _look(self, begin: int, size: int) -> None:
        self._text = self._body[begin : begin + size].decode("latin-1")
        self._begin, self._at = begin, 0
