"""Programs that close descriptors, fork early or may not open the region, and extreme quotas: counted, or refused."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import suite
from card_program import CONTEXT, LIBRARY, OOM, PROGRAM, QUOTA, SIM, WORK, environment, expect_refusal, made, run
from container import Container, get

# ---- descriptors ----

CLOSE = "os.closerange(3, 1024); "


def test_a_program_that_closes_all_descriptors_is_counted_as_before() -> None:
    for place in range(4):
        container = made("closed")
        parts = ["init(); ", "context(); ", "p = alloc(); ", "q = alloc('second'); info(); "]
        parts.insert(place, CLOSE)
        answer = run(container.directory, "".join(parts) + CLOSE + "free(p); info(); finish()")
        assert answer.status == 0 and answer.said == "", (place, answer)
        expected = {"init": 0, "context": 0, "alloc": 0, "second": 0, "free": 704, "total": 1024, "freed": 0}
        assert answer.told == expected, (place, answer)


def test_a_program_that_closed_all_descriptors_is_not_taken_for_dead() -> None:
    container = made("alive")
    steps = "init(); context(); p = alloc(); os.closerange(3, 1024); finish(); sys.stdin.read()"
    command = [sys.executable, "-c", PROGRAM + steps]
    holder = subprocess.Popen(
        command, env=environment(container.directory), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout and holder.stdin and json.loads(holder.stdout.readline())["alloc"] == 0
    time.sleep(0.2)
    second = run(container.directory, "init(); context(); p = alloc(); q = alloc('much', 500 << 20); info(); finish()")
    assert (second.told["alloc"], second.told["much"], second.told["free"]) == (0, OOM, 1024 - 2 * (256 + 64)), second
    holder.kill()
    holder.communicate()
    time.sleep(0.1)
    assert run(container.directory, "init(); context(); info(); finish()").told["free"] == 1024 - 256


def test_a_program_without_a_free_descriptor_is_refused_and_served_when_there_is_one() -> None:
    container = made("none-left")
    steps = """
import resource
init()
resource.setrlimit(resource.RLIMIT_NOFILE, (600, 600))
kept = []
try:
    while True: kept.append(os.open("/dev/null", os.O_RDONLY))
except OSError: pass
context()
say("without", told["context"])
for fd in kept: os.close(fd)
time.sleep(0.3)
context(); p = alloc(); finish()
"""
    answer = run(container.directory, steps)
    assert (answer.told["without"], answer.told["context"], answer.told["alloc"]) == (OOM, 0, 0), answer
    assert "no descriptor is left" in answer.said, answer


# ---- forks ----

FORKS = r"""
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
int cuInit(unsigned);
int cuCtxCreate_v2(void **, unsigned, int);
int cuMemAlloc_v2(unsigned long long *, size_t);
static int use(void)
{
    void *context;
    unsigned long long p;
    int r = cuInit(0);
    if (!r) r = cuCtxCreate_v2(&context, 0, 0);
    return r ? r : cuMemAlloc_v2(&p, 64 << 20);
}
static int child_said = -1, before;
__attribute__((constructor)) static void early(void)
{
    int status = -1;
    if (getenv("DO_NOT_FORK")) return;
    if (getenv("USE_BEFORE")) before = use();
    pid_t child = fork();
    if (child == 0) _exit(use());
    waitpid(child, &status, 0);
    child_said = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + status;
}
int main(void)
{
    int after = use();
    printf("{\"before\": %d, \"child\": %d, \"after\": %d}\n", before, child_said, after);
    return 0;
}
"""


def forks() -> str:
    source, program = WORK / "forks.c", WORK / "forks-program"
    source.write_text(FORKS)
    subprocess.run(["cc", "-o", str(program), str(source), f"-L{SIM}", "-lcuda"], check=True, env={"PATH": os.defpath})
    return str(program)


def test_a_program_that_forks_in_a_constructor_is_counted_in_both() -> None:
    program = forks()
    for more in ({}, {"USE_BEFORE": "1"}):
        container = made("forks")
        result = subprocess.run(
            [program], env=environment(container.directory, **more), capture_output=True, text=True, timeout=30
        )
        assert result.returncode == 0 and result.stderr == "", result
        told = json.loads(result.stdout)
        assert told["after"] == 0 and told["before"] == 0, told
        # The driver may refuse to work in the child of a process that has used it already.
        assert told["child"] == 0 or (more and told["child"] < 1000), told
        time.sleep(0.1)
        assert run(container.directory, "init(); context(); info(); finish()").told["free"] == 1024 - 256


def test_a_region_that_this_user_may_not_open_is_told() -> None:
    other = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
    if shutil.which("setpriv") is None or subprocess.run([*other, "true"], capture_output=True).returncode:
        raise suite.Skip("no other user here")
    program, container = forks(), made("forbidden")
    container.region.chmod(0o600)
    libraries, host = WORK / "reachable", WORK / "host"  # another user may have no access to the build
    for directory in (libraries, host):
        directory.mkdir()
    WORK.chmod(0o755)
    host.chmod(0o777)
    shutil.copy(Path(os.environ["SIMGPU_DIR"]) / "cards.json", host)
    for library in (LIBRARY, SIM / "libcuda.so.1"):
        shutil.copy(library, libraries)
    command = [*other, "env", f"LD_PRELOAD={libraries / LIBRARY.name}", f"LD_LIBRARY_PATH={libraries}", program]
    more = {"FRACTILE_DIR": str(container.directory), "SIMGPU_DIR": str(host), "DO_NOT_FORK": "1"}
    result = subprocess.run(command, env=dict(os.environ, **more), capture_output=True, text=True, timeout=30)
    assert result.returncode == 0 and json.loads(result.stdout)["after"] == OOM, result
    assert "region may not be opened by this user" in result.stderr and result.stderr.count("\n") == 1, result


# ---- limits that are valid but unusual ----


def with_memory(name: str, memory: int, context: int = CONTEXT) -> Container:
    container = made(name)
    container.write(container.limits, "limits_card", container.limits_card(0), memory=memory, context=context)
    return container


def test_a_quota_of_zero_refuses_everything_quietly() -> None:
    answer = run(with_memory("zero", 0).directory)
    assert answer.status == 0 and answer.told["context"] == OOM and answer.told["alloc"] in (OOM, 201), answer
    answer = run(with_memory("zero", 0, context=0).directory)
    assert answer.status == 0 and answer.told["context"] == OOM, answer


def test_a_quota_below_a_context_refuses_the_context() -> None:
    answer = run(with_memory("small", CONTEXT - 512).directory)
    assert answer.status == 0 and answer.told["context"] == OOM, answer
    answer = run(with_memory("just", CONTEXT).directory, "init(); context(); p = alloc(); info(); finish()")
    assert (answer.told["context"], answer.told["alloc"], answer.told["free"]) == (0, OOM, 0), answer


def test_a_quota_above_the_card_is_the_card() -> None:
    container = with_memory("large", 1 << 40)
    answer = run(container.directory, "init(); context(); p = alloc('most', 3840 << 20); q = alloc(); info(); finish()")
    assert (answer.told["total"], answer.told["most"], answer.told["alloc"], answer.told["free"]) == (
        4096,
        0,
        OOM,
        0,
    ), answer


def test_a_container_without_a_card_or_with_one_that_is_not_here_gets_nothing() -> None:
    for cards in ({}, {"GPU-00000000-0000-4000-8000-00000000dead": QUOTA}):
        directory = WORK / "foreign"
        shutil.rmtree(directory, ignore_errors=True)
        answer = run(Container(directory, cards).directory)
        assert answer.status == 0, answer
        assert answer.told["init"] != 0 or answer.told["context"] != 0, answer


def test_a_card_whose_time_no_arbiter_shares_out_is_used_and_warned_of() -> None:
    container = made("no-arbiter")
    container.write(container.limits, "limits_card", container.limits_card(0), cores=50)
    steps = "init(); context(); p = alloc(); say('set', cuda.cuMemsetD8_v2(p, 0, ctypes.c_size_t(64 << 20))); finish()"
    answer = run(container.directory, steps)
    assert answer.status == 0 and answer.told["set"] == 0, answer
    assert answer.said.startswith(f"fractile: warning: no arbiter answers at {container.directory}/"), answer


def test_more_processes_than_places_are_refused_and_told() -> None:
    container = made("places", slots=1)
    steps = "init(); context(); finish(); sys.stdin.read()"
    command = [sys.executable, "-c", PROGRAM + steps]
    holder = subprocess.Popen(
        command, env=environment(container.directory), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout and json.loads(holder.stdout.readline())["context"] == 0
    expect_refusal(container.directory, "places")
    holder.kill()
    holder.communicate()
    assert run(container.directory).told["context"] == 0
    assert get(container.region.read_bytes(), "slot", "state", container.slot(0)) in (0, 2)


if __name__ == "__main__":
    sys.exit(suite.run(globals()))
