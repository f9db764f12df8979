"""Kubelet's checkpoint; the golden file has the form that kubelet 1.36.3 writes."""

import gc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fractile.errors import WireError
from fractile.model.units import ContainerName, PodUID
from fractile.wire.foreign import kubelet_checkpoint
from fractile.wire.foreign.kubelet_checkpoint import Recorded

GOLDEN = (Path(__file__).parents[1] / "golden" / "kubelet-checkpoint-1.36.json").read_bytes()
TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
ENTRY = st.builds(
    Recorded, TEXT.map(PodUID), TEXT.map(ContainerName), TEXT, st.frozensets(TEXT, max_size=5), st.binary(max_size=20)
)


def test_entries_are_read_with_ids_of_all_numa_nodes_and_our_answer() -> None:
    first, second = kubelet_checkpoint.decode(GOLDEN)
    assert (first.uid, first.container, first.resource) == (
        "8c0f3d52-5a3e-4a7a-9d1b-0a4a2f6a1b11",
        "main",
        "aliyun.com/gpu-mem",
    )
    assert first.ids == {"GPU-a::0", "GPU-a::1"}
    assert first.answer == b"\n\x06\n\x01a\x12\x01b"
    assert second.ids == {"GPU-a::0", "GPU-b::0"}
    assert second.answer == b""


def test_registered_devices_are_read_on_demand() -> None:
    assert kubelet_checkpoint.registered(GOLDEN) == {"aliyun.com/gpu-mem": ["GPU-a::0", "GPU-a::1"]}


@given(st.lists(ENTRY, max_size=4), st.dictionaries(TEXT, st.lists(TEXT, max_size=3), max_size=3))
def test_decoding_is_the_inverse_of_encoding(entries: list[Recorded], registered: dict[str, list[str]]) -> None:
    text = kubelet_checkpoint.encode(entries, registered)
    assert kubelet_checkpoint.decode(text) == tuple(entries)
    assert kubelet_checkpoint.registered(text) == registered


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[]", b'{"Data":5}', b'{"Data":{"PodDeviceEntries":{}}}', b"\xff", b"[" * 9999]
)
def test_another_form_is_an_error_with_a_sentence(text: bytes) -> None:
    for read in (kubelet_checkpoint.decode, kubelet_checkpoint.registered):
        with pytest.raises(WireError, match="checkpoint"):
            read(text)


def test_an_empty_record_has_no_entries() -> None:
    empty = b'{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":1}'
    assert kubelet_checkpoint.decode(empty) == ()


def entry(pod: str, ids: int = 2) -> Recorded:
    held = frozenset(f"GPU-a::{i}" for i in range(ids))
    return Recorded(PodUID(pod), ContainerName("main"), "aliyun.com/gpu-mem", held, b"")


def test_what_stays_in_the_file_is_not_decoded_again_and_what_is_gone_is_not_kept() -> None:
    first = kubelet_checkpoint.decode(kubelet_checkpoint.encode([entry("a"), entry("b"), entry("large", 5000)], {}))
    second = kubelet_checkpoint.decode(kubelet_checkpoint.encode([entry("b"), entry("c")], {}))
    assert second[0] is first[1]
    for number in range(600):
        kubelet_checkpoint.decode(kubelet_checkpoint.encode([entry(f"pod-{number}")], {}))
    kept = [o for o in gc.get_objects() if isinstance(o, Recorded) and o.uid.startswith("pod-")]
    assert len(kept) == 1
