"""Whatever it is given, a decoder returns or raises what it declares: no other exception, and in bounded time.

``FRACTILE_FUZZ=N`` tries N times as many inputs, and other ones every time; without it they are the same in every run.
"""

import contextlib
import importlib
import json
import os
import time
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from fractile.errors import WireError
from tests.fuzz import inputs, seeds
from tests.fuzz.decoders import AMOUNTS, NONE_OF_THEM, Decoder, decoders, uncallable

pytestmark = pytest.mark.slow

LONGER = int(os.environ.get("FRACTILE_FUZZ", "0"))
EXAMPLES = 40 * max(1, LONGER)
LONGEST = 10.0  # seconds for one input, traced by hypothesis; a decoder that needs more could be used to stop a program
ALL = decoders()
TEXTS = (str, bytes, str | bytes, msgspec.Raw, bytes | msgspec.Raw)


def given_to(decoder: Decoder, value: Any) -> Any:
    """A seed or an input in the form that the decoder takes; msgspec's error where the API could not have sent it."""
    form = decoder.form
    if form in TEXTS:
        text = value if isinstance(value, str | bytes) else json.dumps(value)
        data = text.encode("utf-8", "replace") if isinstance(text, str) else text
        if form is str:
            return data.decode("utf-8", "replace")
        return msgspec.Raw(data) if form is msgspec.Raw else data
    if isinstance(form, type) and issubclass(form, msgspec.Struct):
        return msgspec.json.decode(json.dumps(value), type=form)
    return value


def examples(decoder: Decoder) -> list[Any]:
    """What it takes without a word."""
    own = seeds.of(decoder.name)
    raw = [] if own else seeds.golden() if decoder.form in TEXTS else seeds.golden_objects()
    return [seed for seed in (*own, *raw) if _takes(decoder, seed)] or raw


def _takes(decoder: Decoder, seed: Any) -> bool:
    try:
        decoder.call(given_to(decoder, seed))
    except Exception:  # refused; or a fault, which the test proper finds
        return False
    return True


def strategy(decoder: Decoder) -> st.SearchStrategy[Any]:
    found = examples(decoder)
    as_text = [s.encode() if isinstance(s, str) else s if isinstance(s, bytes) else inputs.json_bytes(s) for s in found]
    if decoder.form is str:
        return inputs.text(as_text)
    if decoder.form in (bytes, msgspec.Raw, bytes | msgspec.Raw):
        return inputs.raw(as_text)
    if decoder.form == str | bytes:
        return inputs.raw(as_text) | inputs.text(as_text)
    if decoder.form == Mapping[str, str]:
        given = [(key, text) for seed in found for key, text in seed.items() if isinstance(text, str)]
        changed = [inputs.text([text.encode()]).map(lambda new, key=key: {key: new}) for key, text in given]
        return st.one_of(*changed, st.dictionaries(st.text(), st.text()))
    return inputs.mappings(found) if decoder.form == AMOUNTS else inputs.values(found)


@pytest.mark.parametrize("decoder", ALL, ids=lambda d: d.name)
def test_a_decoder_survives_whatever_it_is_given(decoder: Decoder) -> None:
    @settings(
        max_examples=EXAMPLES,
        derandomize=not LONGER,
        database=None,
        phases=(Phase.explicit, Phase.generate, *((Phase.shrink,) if LONGER else ())),
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
    )
    @given(strategy(decoder))
    def survives(value: Any) -> None:
        try:
            value = given_to(decoder, value)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            if isinstance(decoder.form, type) and issubclass(decoder.form, msgspec.Struct):
                return  # the watch's own decoder refuses it before (tests/kube)
            raise
        began = time.process_time()
        with contextlib.suppress(*decoder.declared):
            decoder.call(value)
        assert time.process_time() - began < LONGEST

    survives()


@pytest.mark.parametrize("decoder", [d for d in ALL if d.form in TEXTS], ids=lambda d: d.name)
@pytest.mark.parametrize("deep", inputs.DEEP, ids=["lists", "objects", "closed", "yaml", "itself"])
def test_a_decoder_survives_what_nests_without_end(decoder: Decoder, deep: bytes) -> None:
    began = time.process_time()
    with contextlib.suppress(*decoder.declared):
        decoder.call(given_to(decoder, deep))
    assert time.process_time() - began < LONGEST


@pytest.mark.parametrize("name", sorted(seeds.SEEDS))
def test_an_example_is_one_that_its_decoder_takes(name: str) -> None:
    (decoder,) = [d for d in ALL if d.name == name]
    assert all(_takes(decoder, seed) for seed in seeds.of(name))


def test_the_decoders_of_what_tenants_write_are_among_them() -> None:
    names = {d.name for d in ALL}
    assert {
        "wire.fractile.placement.decode",
        "wire.kubernetes.extender.decode_args",
        "wire.kubernetes.admission.decode",
        "wire.foreign.kubelet_checkpoint.decode",
        "wire.quantity.whole_number",
        "wire.files.quota_file.decode",
        "region.page.decode",
        "dialects.table.parse_pod",
    } <= names
    assert len(names) > 60


def test_every_decoder_can_be_called() -> None:
    assert not uncallable(), "add the arguments to _ARGUMENTS of tests/fuzz/decoders.py, or say in NONE_OF_THEM why not"


def test_nothing_is_left_out_that_is_not_there() -> None:
    for name in NONE_OF_THEM:
        module, _, function = name.rpartition(".")
        assert hasattr(importlib.import_module(f"fractile.{module}"), function), name


class _Sloppy:
    """A decoder that trusts its input."""

    @staticmethod
    def call(value: bytes) -> object:
        return json.loads(value)["version"]


def test_a_decoder_that_trusts_its_input_is_found_out() -> None:
    sloppy = Decoder("wire.fractile.placement.decode", _Sloppy.call, bytes, (WireError,))
    with pytest.raises(Exception) as caught:  # which one depends on the input
        test_a_decoder_survives_whatever_it_is_given(sloppy)
    assert not isinstance(caught.value, WireError)
