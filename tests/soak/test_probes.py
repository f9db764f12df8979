"""What is read of a process and of a page of metrics."""

import mmap
import os
import subprocess
import sys
import time
from pathlib import Path

from fractile.debug.figures import figures
from fractile.ledger.ledger import Ledger
from fractile.metrics.control_plane import page
from fractile.watch.waiting_pods import WaitingPods
from tests.soak import probes

GROWS = """
import sys, threading
print(flush=True), sys.stdin.readline()
threading.Thread(target=threading.Event().wait, daemon=True).start()
held = [open("/dev/null") for _ in range(5)]
ballast = bytes(64 * 2**20).replace(b"\\0", b"\\1")
print(flush=True), sys.stdin.readline()
"""


def test_the_kernel_says_what_a_process_holds() -> None:
    """A process of its own: here, the memory of earlier tests may be given back meanwhile."""
    argv = [sys.executable, "-c", GROWS]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        before = probes.kernel(process.pid)
        process.stdin.write("\n")
        process.stdout.readline()
        after = probes.kernel(process.pid)
        process.stdin.write("\n")
    assert before is not None
    assert after is not None
    assert after.descriptors - before.descriptors == 5
    assert after.threads - before.threads == 1
    assert after.rss - before.rss > 60_000


def test_the_state_of_simulated_cards_is_left_out(tmp_path: Path) -> None:
    state = tmp_path / "simgpu" / "state"
    state.parent.mkdir()
    state.write_bytes(bytes(8 * 2**20))
    before = probes.kernel(os.getpid())
    with state.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        assert mapped.find(b"x") == -1  # every page was looked at
        assert probes.simulated_cards(Path("/proc/self/smaps").read_text()) == 8192
        after = probes.kernel(os.getpid())
    assert before is not None
    assert after is not None
    assert after.rss - before.rss < 4096


def test_a_process_that_is_gone_has_no_sample() -> None:
    assert probes.sample("gone", 2**22 + 1, "", seconds=1) is None


async def test_tasks_and_books_come_from_the_programs_own_page() -> None:
    shown = page(figures(Ledger(lambda: 0.0), WaitingPods(), ready=True, quota_problem="")).render(openmetrics=False)
    found = probes.sample("control-plane", os.getpid(), shown.decode(), seconds=2.04)
    assert found is not None
    assert (found.seconds, found.tasks, found.entries) == (2.0, 1, 0)


def test_a_child_is_found_by_its_name() -> None:
    child = os.posix_spawn("/bin/sleep", ["sleep", "30"], {})
    try:
        deadline = time.monotonic() + 20
        while (child, "sleep") not in list(probes.children(os.getpid())):  # its name comes with its program
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
