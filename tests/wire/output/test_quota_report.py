"""The format of ``fractile quota -o json``."""

from pathlib import Path

import pytest
import yaml

from fractile.errors import WireError
from fractile.wire.output.quota_report import (
    HeldReport,
    LimitReport,
    NamespaceReport,
    QuotaReport,
    ResourceQuotaReport,
    decode,
    encode,
    encode_yaml,
)

GOLDEN = Path(__file__).parents[1] / "golden" / "quota-report.json"

REPORT = QuotaReport(
    source="fractile-system/fractile-quota",
    state="read",
    namespaces=(
        NamespaceReport(
            namespace="team-a",
            named=True,
            pools=("public",),
            limited=True,
            limits=(LimitReport("M40", 200, 150), LimitReport("P100", 300, 0)),
            held=(HeldReport("", "Tesla M40", "public", 100), HeldReport("small", "Tesla M40", "public", 50)),
            resource_quotas=(ResourceQuotaReport("gpus", "requests.class.fractile.dev/small", hard="5", used="1"),),
        ),
        NamespaceReport(
            namespace="team-b",
            named=False,
            pools=(),
            limited=False,
            limits=(),
            held=(HeldReport("", "Tesla M40", "", 1),),
            resource_quotas=(),
        ),
    ),
    problems=("namespace team-a may hold P100, and no card is one",),
)


def test_the_golden_file_is_what_is_written_and_is_read_back() -> None:
    assert encode(REPORT) + "\n" == GOLDEN.read_text()
    assert decode(GOLDEN.read_text()) == REPORT


def test_yaml_says_the_same() -> None:
    assert yaml.safe_load(encode_yaml(REPORT)) == yaml.safe_load(GOLDEN.read_text())


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", GOLDEN.read_text().replace("v1alpha1", "v2"), GOLDEN.read_text().replace("QuotaReport", "Other")],
    ids=["empty", "list", "object", "version", "kind"],
)
def test_other_things_are_no_report(text: str) -> None:
    with pytest.raises(WireError):
        decode(text)
