"""Kubernetes quantities as whole numbers."""

import msgspec
import pytest

from fractile.errors import WireError
from fractile.wire.quantity import whole_number
from tests.wire.golden_files import golden


class Recorded(msgspec.Struct):
    whole: dict[str, int]
    refused: list[str]


RECORDED = msgspec.json.decode(golden("quantities.json"), type=Recorded)


@pytest.mark.parametrize(("text", "value"), RECORDED.whole.items(), ids=repr)
def test_a_whole_quantity_is_its_number(text: str, value: int) -> None:
    assert whole_number(text) == value


@pytest.mark.parametrize("text", RECORDED.refused, ids=repr)
def test_anything_else_is_refused_with_the_text_it_was(text: str) -> None:
    with pytest.raises(WireError) as refusal:
        whole_number(text)
    assert repr(text)[:20] in str(refusal.value)


@pytest.mark.parametrize(("value", "number"), [(0, 0), (7, 7), (4.0, 4), (1e3, 1000), (2**63 - 1, 2**63 - 1)], ids=repr)
def test_numbers_of_json_are_taken_as_they_are(value: object, number: int) -> None:
    assert whole_number(value) == number


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        False,
        [],
        ["4"],
        {},
        {"a": 1},
        -1,
        1.5,
        1e22,
        2**63,
        float("nan"),
        float("inf"),
        b"4",
        pytest.param(10**5000, id="5001 digits"),
        pytest.param({"a": 10**5000}, id="5001 digits in an object"),
    ],
    ids=repr,
)
def test_other_values_of_json_are_refused(value: object) -> None:
    with pytest.raises(WireError):
        whole_number(value)
