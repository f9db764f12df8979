"""The ConfigMap of quotas."""

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fractile.errors import WireError
from fractile.model.quota import NamespaceQuota, QuotaLimit
from fractile.wire.files.quota_file import KEY, decode, encode
from tests.wire.golden_files import golden

EXAMPLE = """{"A": {"pool": ["public"], "quota": {"M40": 2, "P100": 3}},
 "B": {"pool": ["wx"],     "quota": {"M40": 8, "P100": 2}}}"""


def read(text: str) -> dict[str, NamespaceQuota]:
    return decode({KEY: text}, "quotas")


def test_the_example_of_gpu_admission_is_read_as_it_stands_and_namespaces_are_lower_case() -> None:
    assert read(EXAMPLE) == {
        "a": NamespaceQuota(("public",), (QuotaLimit("M40", 200), QuotaLimit("P100", 300))),
        "b": NamespaceQuota(("wx",), (QuotaLimit("M40", 800), QuotaLimit("P100", 200))),
    }


def test_the_golden_file_says_what_it_always_said() -> None:
    assert read(golden("gpu-quota.json").decode()) == {
        "team-a": NamespaceQuota(("public", "burst"), (QuotaLimit("M40", 200), QuotaLimit("A100-SXM4-80GB", 50))),
        "team-b": NamespaceQuota(None, (QuotaLimit("*", 1000), QuotaLimit("H100", 0))),
        "team-c": NamespaceQuota(("wx",), None),
        "team-d": NamespaceQuota(None, None),
        "team-e": NamespaceQuota(None, ()),
    }


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "is not valid JSON: line 1, column 1"),
        ("{", "is not valid JSON: line 1, column 2"),
        ('{"a": {"quota": {"M40": 2,}}}', "is not valid JSON: line 1"),
        ("[]", "gpu_quota must be an object of namespaces"),
        ("null", "gpu_quota must be an object of namespaces"),
        ('{"": {}}', "a namespace has no name"),
        ('{"a": 3}', "namespace 'a' must have an object with pool and quota"),
        ('{"a": {"pools": []}}', "namespace 'a' has an unknown field 'pools'; the fields are pool and quota"),
        ('{"a": {"pool": "public"}}', "pool of namespace 'a' must be a list"),
        ('{"a": {"pool": []}}', "pool of namespace 'a' is empty"),
        ('{"a": {"pool": ["x", ""]}}', "has an entry that is not a name"),
        ('{"a": {"pool": [1]}}', "has an entry that is not a name"),
        ('{"a": {"quota": [2]}}', "quota of namespace 'a' must be an object"),
        ('{"a": {"quota": {"M40": -1}}}', "'M40' of namespace 'a' must be a number of cards from 0 to 1000000"),
        ('{"a": {"quota": {"M40": "2"}}}', "'M40' of namespace 'a' must be a number of cards"),
        ('{"a": {"quota": {"M40": true}}}', "must be a number of cards"),
        ('{"a": {"quota": {"M40": null}}}', "must be a number of cards"),
        ('{"a": {"quota": {"M40": 1000001}}}', "from 0 to 1000000"),
        ('{"a": {"quota": {"M40": 0.125}}}', "more than two digits after the point"),
        ('{"a": {"quota": {"M40": 1e999999999}}}', "1e999999999 is not a number of cards"),
        ('{"a": {"quota": {"M40": NaN}}}', "NaN is not a number of cards"),
        ('{"a": {"quota": {"M40": -Infinity}}}', "-Infinity is not a number of cards"),
        ('{"a": {"quota": {"M40": 1%s}}}' % ("0" * 5000), "a number that is far too long"),
        ('{"a": {"quota": {"": 1}}}', "names a model ''"),
        ('{"a": {"quota": {"--": 1}}}', "names a model '--'"),
        (
            '{"a": {"quota": {"M40": 1, "m40": 2}}}',
            "model 'm40' of namespace 'a' appears twice (upper and lower case do not matter)",
        ),
        ('{"a": {}, "a": {}}', "'a' appears twice in one object"),
        ('{"a": {}, "A": {}}', "namespace 'A' appears twice (upper and lower"),
        ('{"a": {"quota": {"M40": 1, "M40": 2}}}', "'M40' appears twice in one object"),
        (r'{"a": {"pool": ["\ud800"]}}', "is not a valid name"),
        (r'{"a\n": {}}', "is not a valid name"),
        ('{"%s": {}}' % ("x" * 254), "is not a valid name"),
        ("[" * 100_000, "nested too deep"),
        ('"%s"' % ("x" * 2**20), "larger than 1 MiB"),
        (json.dumps({f"n{i}": {} for i in range(10_001)}), "more than 10000 names"),
    ],
)
def test_what_makes_no_sense_is_refused_as_a_whole_with_place_and_remedy(text: str, told: str) -> None:
    with pytest.raises(WireError) as raised:
        read(text)
    assert str(raised.value).startswith("quotas: ")
    assert told in str(raised.value)
    assert len(str(raised.value)) < 300


@pytest.mark.parametrize(
    ("data", "told"),
    [
        pytest.param({}, "it has no key gpu_quota", id="empty"),
        pytest.param({"quota.json": "{}"}, "'quota.json' is not a known key", id="another"),
        pytest.param({KEY: "{}", "other": "{}"}, "'other' is not a known key", id="two"),
    ],
)
def test_the_quotas_stand_under_one_key_and_nothing_beside_it(data: dict[str, str], told: str) -> None:
    with pytest.raises(WireError, match=told):
        decode(data, "quotas")


names = st.from_regex(r"[a-z0-9]{1,8}", fullmatch=True)
quotas = st.builds(
    NamespaceQuota,
    pools=st.none() | st.lists(names, min_size=1, unique=True).map(tuple),
    limits=st.none()
    | st.dictionaries(names | st.just("*"), st.integers(0, 10**8)).map(
        lambda limits: tuple(QuotaLimit(name, percent) for name, percent in limits.items())
    ),
)


@given(st.dictionaries(names, quotas))
def test_what_is_written_is_read_as_it_was(found: dict[str, NamespaceQuota]) -> None:
    assert decode(encode(found), "quotas") == found


@given(st.text() | st.recursive(st.none() | st.floats() | st.text() | st.integers(), st.lists).map(json.dumps))
def test_any_text_is_either_read_or_refused(text: str) -> None:
    with contextlib.suppress(WireError):
        read(text)
