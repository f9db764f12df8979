"""The file of sharing rules."""

import contextlib
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fractile.errors import WireError
from fractile.model.sharing import ClusterSharing, Partial, SharingRule
from fractile.wire.files.sharing_file import decode

FILE = """\
version: 1
default: {maxSlices: 4, fractions: [1/2, 1/4, 1]}
pools:
  training: {fractions: [1]}
  free: {maxSlices: 0, fractions: []}
models:
  Tesla T4: {maxSlices: 2}
"""
HALF, QUARTER, WHOLE = Fraction(1, 2), Fraction(1, 4), Fraction(1)


def test_the_rules_are_those_of_default_pools_and_models() -> None:
    assert decode(FILE, "f") == ClusterSharing(
        default=Partial(4, (QUARTER, HALF, WHOLE)),
        pools=(("training", Partial(None, (WHOLE,))), ("free", Partial(0, ()))),
        models=(("Tesla T4", Partial(2)),),
    )


@pytest.mark.parametrize(
    ("text", "sized"),
    [
        ("default: {maxSlices: 4, fractions: []}", False),
        ("default: {fractions: [1]}", True),
        ("pools: {a: {fractions: [1/2]}}", True),
        ("models: {a: {fractions: [1/2]}, b: {maxSlices: 1}}", True),
    ],
)
def test_whether_any_rule_is_about_sizes_is_known(text: str, sized: bool) -> None:
    assert decode(f"version: 1\n{text}\n", "f").sized is sized


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "version: 1\n", "version: 1\npools: {}\n"])
def test_a_file_without_rules_limits_nothing(text: str) -> None:
    assert decode(text, "f").rule("any", "any") == SharingRule()


@pytest.mark.parametrize(
    ("pool", "model", "rule"),
    [
        pytest.param("", "NVIDIA A10", SharingRule(4, (QUARTER, HALF, WHOLE)), id="the default"),
        pytest.param(
            "training", "NVIDIA A10", SharingRule(4, (WHOLE,)), id="what the pool says, and the default for the rest"
        ),
        pytest.param("free", "NVIDIA A10", SharingRule(), id="a pool that lifts the default"),
        pytest.param("unknown", "NVIDIA A10", SharingRule(4, (QUARTER, HALF, WHOLE)), id="a pool without rules"),
        pytest.param("free", "NVIDIA TESLA t4", SharingRule(2), id="the model before the pool"),
        pytest.param("training", "Tesla T4", SharingRule(2, (WHOLE,)), id="model, pool and default together"),
    ],
)
def test_the_nearest_rule_holds_field_by_field(pool: str, model: str, rule: SharingRule) -> None:
    assert decode(FILE, "f").rule(pool, model) == rule


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param("default: {}\n", "line 1: version is missing or wrong", id="no version"),
        pytest.param("version: 2\n", "line 1: version is missing or wrong", id="another version"),
        pytest.param("version: 1\ndefualt: {}\n", "line 2: 'defualt' is not a known field", id="a misspelt field"),
        pytest.param(
            "version: 1\ndefault:\n  maxslices: 1\n", "line 3: 'maxslices' is not a known field", id="a misspelt rule"
        ),
        pytest.param("version: 1\ndefault:\n  maxSlices: four\n", "line 3: maxSlices is 'four'", id="no number"),
        pytest.param("version: 1\ndefault:\n  maxSlices: -1\n", "line 3: maxSlices", id="a negative number"),
        pytest.param("version: 1\ndefault:\n  maxSlices: [4]\n", "line 3: maxSlices must be a single", id="a list"),
        pytest.param("version: 1\ndefault:\n  fractions: 1/2\n", "line 3: fractions must be a list", id="no list"),
        pytest.param("version: 1\ndefault:\n  fractions:\n  - 1/2\n  - 1/0\n", "line 5: '1/0' is no", id="by zero"),
        pytest.param("version: 1\ndefault:\n  fractions: [3/2]\n", "line 3: 3/2 is more than a card", id="too much"),
        pytest.param("version: 1\ndefault:\n  fractions: [0.5]\n", "line 3: '0.5' is not a fraction", id="a decimal"),
        pytest.param("version: 1\npools: [a]\n", "line 2: here must be fields", id="pools as a list"),
        pytest.param("version: 1\npools:\n  a: {}\n  a: {}\n", "line 4: 'a' appears twice", id="a pool twice"),
        pytest.param("version: 1\nmodels:\n  '': {}\n", "line 3: a name must not be empty", id="every model"),
        pytest.param("version: 1\ndefault: {\n", "line 3: ", id="no YAML"),
        pytest.param("\x00", "not YAML", id="no text"),
        pytest.param("[" * 5000, "", id="nested without end"),
        pytest.param("a" * (2**20 + 1), "larger than", id="too large"),
    ],
)
def test_an_error_names_the_file_the_line_and_the_remedy(text: str, said: str) -> None:
    with pytest.raises(WireError) as refused:
        decode(text, "rules.yaml")
    assert str(refused.value).startswith(f"rules.yaml: {said}") or said in str(refused.value)


@given(st.text(max_size=60))
def test_whatever_is_written_is_understood_or_refused_with_a_sentence(text: str) -> None:
    with contextlib.suppress(WireError):
        assert isinstance(decode("version: 1\n" + text, "f"), ClusterSharing)
