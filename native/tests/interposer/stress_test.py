"""A small stress run: it finds no error with the library, and finds the overcommit without it. Then gpu-check."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

OUT = Path(os.environ.get("OUT", "build")).resolve()
LIBRARY = OUT / "interposer" / "libfractile.so"
VERDICT = (
    r"overcommit_bytes=(\d+) false_oom=(\d+) leaked_bytes=(\d+) hangs=(\d+) kills=(\d+) ops=(\d+) seed=\d+ policy=\S+"
)
SMALL = {"PROCS": "16", "OPS": "12000", "KILLS": "60", "SEED": "7", "POLICY": "0"}


def start(library: Path | None, **settings: str) -> "subprocess.Popen[str]":
    environment = os.environ | SMALL | settings | {"LD_LIBRARY_PATH": str(OUT / "simgpu")}
    command = [str(OUT / "stress" / "stress"), str(OUT / "stress" / "stress-worker"), str(library or "")]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run(library: Path | None, **settings: str) -> tuple[int, list[int], str]:
    process = start(library, **settings)
    out, log = process.communicate(timeout=100)
    match = re.fullmatch(VERDICT, out.splitlines()[-1])
    assert match, out
    return process.returncode, [int(n) for n in match.groups()], log


def finds_nothing(**settings: str) -> None:
    status, (over, false_oom, leaked, hangs, kills, ops), log = run(LIBRARY, **settings)
    assert (status, over, false_oom, leaked, hangs) == (0, 0, 0, 0, 0), log[-3000:]
    assert kills > 5 and ops >= int(SMALL["OPS"]), (kills, ops)


def with_the_library_nothing_is_found() -> None:
    finds_nothing()


def each_of_three_containers_on_a_card_keeps_to_its_own_quota() -> None:
    finds_nothing(PROCS="18", CONTAINERS="3", SEED="8")


def threads_that_launch_graphs_at_the_quota_leave_no_charge_behind() -> None:
    finds_nothing(KINDS="graph,large,churn,threads", PROCS="32", QUOTA="500", KILLS="30")


def without_the_library_the_judge_sees_the_overcommit() -> None:
    status, (over, _, _, hangs, _, _), log = run(None)
    assert status == 1 and over > 0 and hangs == 0, log[-3000:]


def nothing_stays_behind_when_the_supervisor_is_killed() -> None:
    process = start(LIBRARY, OPS="100000000")
    time.sleep(1)
    mine = f"STRESS_SUPERVISOR={process.pid}"
    process.send_signal(signal.SIGKILL)
    process.communicate()
    ends = time.monotonic() + 10
    while left(mine) and time.monotonic() < ends:
        time.sleep(0.05)
    assert not left(mine), left(mine)


def left(mine: str) -> list[str]:
    found: list[str] = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            variables = path.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if mine in variables:
            found.append(path.parent.name)
    return found


def the_checks_for_a_real_card_pass_on_a_simulated_one() -> None:
    program = Path(__file__).resolve().parents[2] / "stress" / "gpu_check.py"
    command = [sys.executable, str(program), str(OUT / "stress" / "gpu-probe"), str(LIBRARY)]
    done = subprocess.run(
        command, env=os.environ | {"GPU_CHECK_SIMULATED": "1"}, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0 and re.search(r"\d+ passed, 0 failed", done.stdout), done.stdout + done.stderr


TESTS = [
    with_the_library_nothing_is_found,
    each_of_three_containers_on_a_card_keeps_to_its_own_quota,
    threads_that_launch_graphs_at_the_quota_leave_no_charge_behind,
    without_the_library_the_judge_sees_the_overcommit,
    nothing_stays_behind_when_the_supervisor_is_killed,
    the_checks_for_a_real_card_pass_on_a_simulated_one,
]


def main() -> int:
    failed = 0
    for test in TESTS:
        try:
            test()
            print(f"ok   {test.__name__}", flush=True)
        except (AssertionError, subprocess.TimeoutExpired) as error:
            failed += 1
            print(f"FAIL {test.__name__}: {error}", flush=True)
    print(f"{len(TESTS) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
