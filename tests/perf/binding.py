"""bind against the fake API server: how many writes one costs, and how long it takes."""

from time import perf_counter

import msgspec

from fractile.wire.kubernetes.extender import BindingArgs, BindingResult
from tests.builders import container
from tests.main.plane import Plane, plane
from tests.perf.measuring.report import Row

PODS = 500


async def measure() -> list[Row]:
    async with plane(tuple(f"n{i}" for i in range(PODS))) as p:
        taken: list[float] = []
        for i in range(PODS):
            body = _submit(p, i)
            started = perf_counter()
            answer = await p.extender.bind(body)
            taken.append(perf_counter() - started)
            assert msgspec.json.decode(answer, type=BindingResult).error == ""
        requests = len(p.server.requests)
        taken.sort()
        return [
            Row("bind: API requests for each", requests / PODS, "", 1.0, "one POST of Binding, no read"),
            Row("bind: median", taken[PODS // 2] * 1e3, "ms", None, "with the fake server's own work, in one process"),
            Row("bind: p99", taken[PODS * 99 // 100] * 1e3, "ms"),
        ]


def _submit(p: Plane, i: int) -> bytes:
    meta = p.submit(f"p{i}", container(memory=8138)).metadata
    return msgspec.json.encode(BindingArgs(meta.name, meta.namespace, meta.uid, f"n{i}"))
