"""The bytes that kubelet gets are those that protobuf's own code reads and writes."""

from hypothesis import given
from hypothesis import strategies as st

from fractile.agent.kubelet.api import deviceplugin_pb2 as dp
from fractile.model.units import CardUUID
from fractile.wire.foreign import device_list
from fractile.wire.fractile.device_ids import device_id

Cards = list[tuple[CardUUID, int, bool]]
UUIDS = st.text(st.characters(codec="utf-8", categories=("L", "N", "P")), min_size=1, max_size=300).map(CardUUID)


def by_protobuf(cards: Cards) -> dp.ListAndWatchResponse:
    answer = dp.ListAndWatchResponse()
    for uuid, count, healthy in cards:
        for k in range(count):
            answer.devices.add(ID=device_id(uuid, k), health="Healthy" if healthy else "Unhealthy")
    return answer


@given(st.lists(st.tuples(UUIDS, st.sampled_from([0, 1, 9, 10, 11, 100, 101, 1234]), st.booleans()), max_size=4))
def test_any_cards_are_written_byte_for_byte_as_by_protobuf(cards: Cards) -> None:
    assert device_list.encode(cards) == by_protobuf(cards).SerializeToString()


def test_as_many_ids_as_kubelet_takes_are_read_as_they_were_meant() -> None:
    cards = [(CardUUID(f"GPU-4f2b4d9e-0000-4000-8000-00000000000{i}"), 30_000, i == 0) for i in range(2)]
    read = dp.ListAndWatchResponse.FromString(device_list.encode(cards))
    assert read == by_protobuf(cards)
    assert len({d.ID for d in read.devices}) == 60_000


def test_no_cards_are_an_empty_message() -> None:
    assert device_list.encode([]) == b""
