"""How a program comes into a container with a quota, and whether the library holds it there: on a real kubelet."""

import base64
import json
import shutil
import subprocess
from collections.abc import Generator
from pathlib import Path

import pytest

from fractile.lab.cluster.local import KubectlFailed, LocalCluster
from fractile.lab.demos.workload import DemoWorkload
from tests.e2e.node.test_limits import MIB, probe, tenant

AT = "n1"
QUOTA = 1024
LOADER = "/tmp/ld-musl"
# Says whether the library is in the process, and what the loader says when it is told to bring the driver.
BRINGS_THE_DRIVER = r"""
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

int main(void) {
    char line[4096];
    int preloaded = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps)) preloaded |= strstr(line, "libfractile") != 0;
    int driver = dlopen("libcuda.so.1", RTLD_NOW) != 0;
    printf("{\"preloaded\":%d,\"driver\":%d,\"why\":\"%s\"}\n", preloaded, driver, driver ? "" : dlerror());
    return 0;
}
"""


@pytest.fixture
def work(cluster: LocalCluster) -> Generator[DemoWorkload]:
    cluster.up()
    if not cluster.state.native:
        pytest.skip("the library is not built here: it needs gcc and make")
    found = DemoWorkload(cluster.kubectl, "e2e-ways-in")
    found.create_namespace()
    found.delete()
    work_pods = [tenant("quota", QUOTA, at=AT)]
    found.apply(work_pods)
    found.wait_running("quota", seconds=90)
    yield found
    found.delete(wait=120)


def inside(cluster: LocalCluster, work: DemoWorkload, script: str) -> str:
    return cluster.kubectl("-n", work.namespace, "exec", "quota", "--", "sh", "-c", script)


def total(text: str) -> int:
    (line,) = [line for line in text.splitlines() if line.startswith("{")]
    return int(line.split('"total":')[1].split(",")[0].split("}")[0])


def test_a_session_by_exec_is_held_to_the_quota(cluster: LocalCluster, work: DemoWorkload) -> None:
    assert probe(work, cluster, "quota", "info")["total"] == QUOTA * MIB


@pytest.mark.parametrize(
    "way",
    [
        pytest.param("env -i SIMGPU_DIR=$SIMGPU_DIR /bin/probe info", id="with an empty environment"),
        pytest.param("cp /bin/probe /tmp/p && chmod 4755 /tmp/p && /tmp/p info", id="setuid, as root"),
        pytest.param(
            "cp /bin/probe /tmp/s && chmod 4755 /tmp/s && busybox su nobody -s /bin/sh -c '/tmp/s info'",
            id="setuid, as another user",
        ),
        pytest.param("setsid /bin/probe info", id="in another session, as of sshd"),
        pytest.param("busybox su nobody -s /bin/sh -c '/bin/probe info'", id="after a login as another user"),
        pytest.param("unset LD_PRELOAD; LD_PRELOAD= /bin/probe info", id="with LD_PRELOAD emptied"),
    ],
)
def test_a_program_is_held_to_the_quota(cluster: LocalCluster, work: DemoWorkload, way: str) -> None:
    assert total(inside(cluster, work, way)) == QUOTA * MIB


def test_a_static_program_gets_no_driver_from_the_loader(cluster: LocalCluster, work: DemoWorkload) -> None:
    """busybox is static: nothing is preloaded into it, and it has no loader that could bring it the driver."""
    with pytest.raises(KubectlFailed):
        inside(cluster, work, "grep -q libfractile /proc/self/maps")


def test_a_program_of_musl_gets_no_driver_and_no_library(
    cluster: LocalCluster, work: DemoWorkload, tmp_path: Path
) -> None:
    """Its loader does not read ld.so.preload, and the driver needs functions that only glibc has."""
    loader, program = built_with_musl(tmp_path)
    for path, name in ((loader, LOADER), (program, "/tmp/musl")):
        put(cluster, work, path, name)
    folders = "/usr/lib/x86_64-linux-gnu:/usr/lib64"
    said = json.loads(inside(cluster, work, f"LD_LIBRARY_PATH={folders} /tmp/musl"))
    assert (said["preloaded"], said["driver"]) == (0, 0)
    assert "/libcuda.so.1" in said["why"]  # it was found, and could not be loaded


def put(cluster: LocalCluster, work: DemoWorkload, path: Path, name: str) -> None:
    """A program of the test into the container."""
    argv = ("-n", work.namespace, "exec", "-i", "quota", "--", "sh", "-c", f"base64 -d > {name} && chmod +x {name}")
    cluster.kubectl(*argv, stdin=base64.b64encode(path.read_bytes()).decode())


def built_with_musl(folder: Path) -> tuple[Path, Path]:
    """Debian's musl as a loader, and a program for it; nothing is installed."""
    apt, cc = shutil.which("apt-get"), shutil.which("cc")
    if apt is None or cc is None:
        pytest.skip("needs apt-get, for musl's loader, and a C compiler")
    fetched = subprocess.run([apt, "-q", "download", "musl", "musl-dev"], cwd=folder, capture_output=True, text=True)
    if fetched.returncode != 0:
        pytest.skip(f"apt-get cannot download musl: {fetched.stderr.strip()[-200:]}")
    for package in folder.glob("*.deb"):
        subprocess.run(["dpkg-deb", "-x", str(package), str(folder)], check=True)
    (folder / "program.c").write_text(BRINGS_THE_DRIVER)
    objects, library = folder / "usr/lib/x86_64-linux-musl", folder / "lib/x86_64-linux-musl"
    argv = [cc, "-nostdinc", "-isystem", str(folder / "usr/include/x86_64-linux-musl"), "-nostdlib", "-no-pie"]
    argv += ["-fno-stack-protector", f"-Wl,--dynamic-linker={LOADER}", str(objects / "crt1.o"), str(objects / "crti.o")]
    argv += ["program.c", f"-L{library}", "-lc", str(objects / "crtn.o"), "-o", "program"]
    subprocess.run(argv, cwd=folder, check=True)
    return library / "libc.so", folder / "program"
