"""``fractile limits`` as a person runs it."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from fractile.main.cli import main
from fractile.region import directory
from fractile.region.page import FLAG_LOST, FLAG_OFF
from fractile.wire.output import slice_use
from fractile.wire.output.slice_use import CardUse, HeldOnCard, ProcessUse, SliceUse
from tests.region.examples import FIRST, LIMITS, SECOND
from tests.region.writer import alive, take

Result = tuple[int, str, str]
Run = Callable[..., Result]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*args: object) -> Result:
        with pytest.raises(SystemExit) as end:
            main(["limits", *map(str, args)])
        captured = capsys.readouterr()
        return int(end.value.code or 0), captured.out, captured.err

    return run


@pytest.fixture
def token(tmp_path: Path) -> Path:
    directory.put(tmp_path, LIMITS)
    region = tmp_path / directory.REGION
    take(region, 0, 17, b"python", cards=2, card=0, units=2621440)
    take(region, 1, 18, b"sh", cards=2, card=0, units=1, contexts=0)
    return tmp_path


def test_a_table_says_who_may_use_what_and_who_uses_it(token: Path, run: Run) -> None:
    with alive(token / directory.REGION, 0, 1, 2):
        code, out, err = run(token)
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "default/trainer-0 main",
        "CARD                                      QUOTA MiB  USED MiB  PEAK MiB  CORES  REFUSED",
        f"{FIRST}       8138    1280.1    1280.1    30%        0",
        f"{SECOND}      16276         0         0   100%        0",
        f"0.1 MiB more of card {SECOND} are used around the library; they count toward the quota",
        "",
        "PID  COMMAND  CARD                                      USED MiB  CONTEXTS  GPU s",
        f" 17  python   {FIRST}      1280         1    0.0",
        f" 18  sh       {FIRST}       0.1         0    0.0",
        "  0  -        -                                                0         0    0.0",
    ]


def test_the_table_says_what_is_used_around_the_library(tmp_path: Path, run: Run) -> None:
    first, second = LIMITS.cards
    around = msgspec.structs.replace(second, unaccounted=17066622976)
    directory.put(tmp_path, msgspec.structs.replace(LIMITS, cards=(first, around)))
    take(tmp_path / directory.REGION, 0, 17, b"python", cards=2, card=0, units=2621440)
    code, out, _ = run(tmp_path)
    assert code == 0
    assert [line for line in out.splitlines() if "around" in line] == [
        f"16276 MiB more of card {SECOND} are used around the library; they count toward the quota"
    ]
    assert json.loads(run(tmp_path, "-o", "json")[1])["cards"][1]["unaccountedBytes"] == 17066622976


def test_json_has_every_number_in_bytes(token: Path, run: Run) -> None:
    with alive(token / directory.REGION, 0):
        code, out, _ = run(token, "-o", "json")
    assert code == 0
    used = 2621440 * 512
    assert slice_use.decode(out) == SliceUse(
        pod_uid=LIMITS.pod_uid,
        namespace="default",
        pod="trainer-0",
        container="main",
        enforced=True,
        cards=(
            CardUse(
                uuid=FIRST,
                memory_bytes=8138 * 2**20,
                context_bytes=256 * 2**20,
                unaccounted_bytes=0,
                cores=30,
                cores_limit=50,
                weight=30,
                used_bytes=used,
                peak_bytes=used + 1024,  # with the one that has ended
                refusals=0,
                shared_bytes=0,
            ),
            CardUse(
                uuid=SECOND,
                memory_bytes=16276 * 2**20,
                context_bytes=0,
                unaccounted_bytes=4096,
                cores=100,
                cores_limit=0,
                weight=100,
                used_bytes=0,
                peak_bytes=0,
                refusals=0,
                shared_bytes=0,
            ),
        ),
        processes=(
            ProcessUse(
                pid=17,
                command="python",
                cards=(HeldOnCard(uuid=FIRST, bytes=2621440 * 512, contexts=1, gpu_ns=5_000_000),),
            ),
        ),
    )
    assert json.loads(out)["version"] == 1


def test_every_field_of_the_json_is_documented(token: Path, run: Run) -> None:
    with alive(token / directory.REGION, 0):
        document = json.loads(run(token, "-o", "json")[1])
    fields = {*document, *document["cards"][0], *document["processes"][0], *document["processes"][0]["cards"][0]}
    text = (Path(__file__).parents[2] / "docs" / "reference" / "cli.md").read_text()
    assert [f for f in sorted(fields) if f"`{f}`" not in text] == []


def test_a_region_that_the_container_has_damaged_is_told_and_the_quota_still_shown(token: Path, run: Run) -> None:
    os.truncate(token / directory.REGION, 5000)
    code, out, _ = run(token)
    assert code == 0
    assert f"{FIRST}       8138         -         -    30%        -" in out
    assert "what is used is unknown: " in out
    assert out.endswith("shared/region cannot be used: it has the wrong size\n")
    problem = json.loads(run(token, "-o", "json")[1])
    assert problem["cards"][0]["usedBytes"] is None
    assert problem["problem"] in out


def test_an_empty_region_is_said_to_be_one_that_may_be_mounted_elsewhere(token: Path, run: Run) -> None:
    """As `fractile limits` finds it outside the mount namespace of the agent, which mounts the region over it."""
    os.truncate(token / directory.REGION, 0)
    code, out, _ = run(token)
    assert code == 0
    assert "shared/region cannot be used: it is empty here, unless the agent has mounted a file over it in its" in out
    assert out.endswith(f"to look there: nsenter -t PID-OF-AGENT -m fractile limits {token}\n")


def test_a_directory_that_the_running_container_does_not_see_is_told(token: Path, run: Run) -> None:
    directory.put(token, msgspec.structs.replace(LIMITS, flags=FLAG_LOST))
    code, out, _ = run(token)
    assert code == 0
    assert "the container's directory was removed from the node while it ran" in out
    assert json.loads(run(token, "-o", "json")[1])["cards"][0]["usedBytes"] is None


def test_a_folder_that_does_not_exist_is_told_so(tmp_path: Path, run: Run) -> None:
    code, _, err = run(tmp_path / "absent")
    assert (code, f"there is no such directory: {tmp_path / 'absent'}" in err) == (1, True)


def test_isolation_that_is_off_is_told(token: Path, run: Run) -> None:
    directory.put(token, msgspec.structs.replace(LIMITS, flags=FLAG_OFF))
    assert run(token)[1].splitlines()[0] == "default/trainer-0 main (isolation is off)"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        pytest.param(None, "holds no limits", id="nothing granted"),
        pytest.param(b"fractile-limits=1\n", "earlier release", id="the first release"),
        pytest.param(b"x" * 100, "not a limits page", id="something else"),
    ],
)
def test_a_folder_without_good_limits_is_an_error_in_a_sentence(
    tmp_path: Path, run: Run, content: bytes | None, reason: str
) -> None:
    if content is not None:
        (tmp_path / "limits").write_bytes(content)
    code, out, err = run(tmp_path)
    assert (code, out) == (1, "")
    assert reason in err
    assert len(err.splitlines()) == 1
