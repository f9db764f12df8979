"""The files of gpu-manager's library, byte for byte: as recorded, and as a C compiler lays the struct out."""

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fractile.errors import WireError
from fractile.wire.foreign.vcuda import (
    CONFIG_SIZE,
    MAX_PIDS,
    VcudaConfig,
    decode_config,
    decode_pids,
    encode_config,
    encode_pids,
)
from tests.wire.golden_files import golden

CONFIG = VcudaConfig(
    pod_uid="0a1b2c3d-1111-4222-8333-444455556666",
    container="main",
    memory=7680 * 2**20,
    cores=50,
    limit=80,
    bus_id="0000:00:05.0",
    driver=(535, 104),
)
PIDS = (1, 4711, 4_194_304)
# Written from the description of the format alone: prints what it reads in a file.
READER = r"""
#include <stdint.h>
#include <stdio.h>
struct version { int major, minor; } __attribute__((packed, aligned(8)));
struct config {
    char uid[48]; int limit; char occupied[4044]; char container[FILENAME_MAX]; char bus[16];
    uint64_t memory; int cores, hard; struct version driver; int enable;
} __attribute__((packed, aligned(8)));
int main(int argc, char **argv)
{
    static struct config c[2];
    FILE *f = fopen(argv[argc - 1], "rb");
    size_t got = fread(c, 1, sizeof c, f);
    printf("%zu %zu %s %d %s %s %llu %d %d %d %d %d", sizeof c[0], got, c->uid, c->limit, c->container, c->bus,
           (unsigned long long)c->memory, c->cores, c->hard, c->driver.major, c->driver.minor, c->enable);
    return 0;
}
"""

texts = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=15)
configs = st.builds(
    VcudaConfig,
    pod_uid=texts,
    container=texts,
    bus_id=texts,
    memory=st.integers(0, 2**64 - 1),
    cores=st.integers(0, 2**31 - 1),
    limit=st.integers(0, 100),
    driver=st.tuples(st.integers(0, 9999), st.integers(0, 9999)),
    enabled=st.booleans(),
)


def test_both_files_are_written_and_read_as_recorded() -> None:
    assert encode_config(CONFIG) == golden("vcuda-config.bin")
    assert decode_config(golden("vcuda-config.bin")) == CONFIG
    assert encode_pids(PIDS) == golden("vcuda-pids.bin")
    assert decode_pids(golden("vcuda-pids.bin")) == PIDS


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
@pytest.mark.parametrize("hard", [True, False])
def test_a_c_program_finds_every_field_where_it_looks(tmp_path: Path, hard: bool) -> None:
    config = VcudaConfig(
        pod_uid="u", container="main", memory=2**40 + 3, cores=7, limit=0 if hard else 9, bus_id="b", driver=(5, 6)
    )
    (tmp_path / "reader.c").write_text(READER)
    (tmp_path / "vcuda.config").write_bytes(encode_config(config))
    subprocess.run(["cc", "-o", tmp_path / "reader", tmp_path / "reader.c"], check=True, timeout=60)
    read = subprocess.run([tmp_path / "reader", tmp_path / "vcuda.config"], check=True, capture_output=True, timeout=10)
    limit = "0" if hard else "9"
    assert read.stdout.decode() == f"8240 8240 u {limit} main b {2**40 + 3} 7 {int(hard)} 5 6 1"


@given(configs)
def test_what_is_written_is_read_back(config: VcudaConfig) -> None:
    assert decode_config(encode_config(config)) == config


@given(st.sets(st.integers(1, 2**22), max_size=50))
def test_pids_are_read_back_in_order(pids: set[int]) -> None:
    assert decode_pids(encode_pids(list(pids))) == tuple(sorted(pids))


def test_no_more_pids_than_the_library_has_room_for() -> None:
    assert decode_pids(encode_pids(range(1, 5000))) == tuple(range(1, MAX_PIDS + 1))


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(VcudaConfig(pod_uid="u" * 48, container="c", memory=1, cores=1), id="a uid without its NUL"),
        pytest.param(VcudaConfig(pod_uid="u", container="c\0d", memory=1, cores=1), id="a NUL in a name"),
        pytest.param(VcudaConfig(pod_uid="ü", container="c", memory=1, cores=1), id="not ASCII"),
        pytest.param(VcudaConfig(pod_uid="u", container="c", memory=2**64, cores=1), id="more than 64 bits"),
        pytest.param(VcudaConfig(pod_uid="u", container="c", memory=1, cores=2**31), id="more than 32 bits"),
    ],
)
def test_what_does_not_fit_is_refused(config: VcudaConfig) -> None:
    with pytest.raises(WireError):
        encode_config(config)


@given(st.binary(max_size=64) | st.binary(min_size=CONFIG_SIZE, max_size=CONFIG_SIZE))
def test_garbage_is_refused(data: bytes) -> None:
    with pytest.raises(WireError):
        decode_config(data)


@pytest.mark.parametrize("at", [60, 4090, 8238], ids=["in the gap", "at its end", "behind the last field"])
def test_something_where_nothing_belongs_is_refused(at: int) -> None:
    data = bytearray(encode_config(CONFIG))
    data[at] = 1
    with pytest.raises(WireError):
        decode_config(bytes(data))


def test_pids_that_end_within_a_number_are_refused() -> None:
    with pytest.raises(WireError):
        decode_pids(b"\1\0\0")


def test_no_pid_is_negative_or_beyond_32_bits() -> None:
    with pytest.raises(WireError):
        encode_pids([2**31])
