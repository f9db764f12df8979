"""/debug/state as it was written down, and what is no such thing."""

import msgspec
import pytest

from fractile.errors import WireError
from fractile.wire.output import debug_state as d
from tests.wire.golden_files import golden

PLACEMENT = msgspec.Raw(
    b'{"version":1,"node":"n1","containers":{"main":{"role":"app","slices":[{"card":"GPU-a","memoryMiB":1000}]}}}'
)
PROCESS = d.ProcessState(
    version="1.2.3",
    pid=7,
    uptime=61.5,
    threads=3,
    descriptors=20,
    resident_bytes=70_000_000,
    tasks={"Reflector.run": 4, "WakeUp.run": 1},
)
CARD = d.CardStateReport(
    uuid="GPU-a",
    index=0,
    model="Tesla V100",
    memory=16276,
    free_memory=15276,
    free_cores=100,
    free_slots=9,
    slices=1,
    idle=False,
)
CONTROL_PLANE = d.ControlPlaneState(
    time=1795256289.5,
    process=PROCESS,
    lead=d.LeadState(
        lease="fractile-system/fractile-control-plane",
        identity="a_1",
        leading=True,
        ready=True,
        left=9.5,
        term="a_1/4",
    ),
    feeds=(d.FeedState(path="/api/v1/pods", synced=True, objects=2, version="812", age=0.25),),
    ledger=d.LedgerState(
        generation=12,
        nodes=(d.NodeStateReport(node="n1", cards=(CARD,)),),
        holds=(d.HoldState(uid="u1", namespace="team-a", state="bound", age=31.0, doubted=False, placement=PLACEMENT),),
        conflicts=(d.ConflictState(uid="u2", placement=PLACEMENT),),
        inconsistent=(),
    ),
    waiting=(
        d.WaitingState(
            uid="u3",
            namespace="team-a",
            name="late",
            created="2026-11-21T10:00:00Z",
            priority=100,
            nominated="n1",
            gated=False,
            refusal="",
        ),
    ),
    nominations=(d.NominationState(node="n1", pods=("u3",)),),
    victims_for=1,
    expected=1,
    quota_namespaces=("team-a",),
    options={"node-policy": "binpack"},
)
AGENT = d.AgentState(
    time=1795256289.5,
    node="n1",
    process=PROCESS,
    feeds=(d.FeedState(path="/api/v1/pods", synced=False, objects=0, version="", age=None),),
    library="d8877c84b1ef",
    plugins=(d.PluginState(resource="aliyun.com/gpu-mem", registered=True, ids=16276, healthy=16276),),
    devices=(d.DeviceState(uuid="GPU-a", index=0, model="Tesla V100", memory=16276, healthy=False, reason="CardLost"),),
    directories=(
        d.DirectoryState(
            token="t1", pod_uid="u1", namespace="team-a", pod="p", container="main", flags=0, cards={"GPU-a": 2**30}
        ),
    ),
    pods=1,
)


@pytest.mark.parametrize(
    ("name", "state"),
    [("debug-control-plane.json", CONTROL_PLANE), ("debug-agent.json", AGENT)],
    ids=["plane", "agent"],
)
def test_the_form_is_the_one_that_was_written_down(name: str, state: d.DebugState) -> None:
    assert d.encode(state) == golden(name).rstrip(b"\n")
    assert plain(d.decode(golden(name))) == plain(state)


def plain(state: d.DebugState) -> object:
    """Placements compared as what they say."""
    return msgspec.json.decode(msgspec.json.encode(state))


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"schema": "fractile.dev/debug/v2"}', '{"schema": "fractile.dev/debug/v1"}', "\xff"]
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(WireError):
        d.decode(text)
