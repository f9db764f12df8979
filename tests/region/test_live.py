"""Pages that change while others read them."""

import os
import subprocess
import threading
from pathlib import Path

import msgspec
import pytest

from fractile.errors import WireError
from fractile.region import live, page
from fractile.region.layout import LIMITS
from tests.region.examples import LIMITS as EXAMPLE
from tests.region.native import compiled

# All numbers of both cards, and the name, say the same number: a reader that sees two has seen a mixture.
READER = r"""
#include "region.h"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

int main(int argc, char **argv)
{
    if (argc != 3) return 2;
    int fd = open(argv[1], O_RDONLY);
    struct fr_limits *p = mmap(NULL, sizeof *p, PROT_READ, MAP_SHARED, fd, 0);
    unsigned long last = strtoul(argv[2], NULL, 10), seen = 0, changes = 0, mixed = 0;
    while (seen != last) {
        struct fr_limits_card cards[2];
        char name[256];
        uint32_t before = atomic_load_explicit(&p->sequence, memory_order_acquire);
        memcpy(cards, p->cards, sizeof cards);
        memcpy(name, p->pod_name, sizeof name);
        atomic_thread_fence(memory_order_acquire);
        if (before & 1 || atomic_load_explicit(&p->sequence, memory_order_relaxed) != before) continue;
        unsigned long now = strtoul(name + 1, NULL, 10);
        for (int i = 0; i < 2; i++)
            mixed += cards[i].memory != now || cards[i].context != now || cards[i].weight != now;
        changes += now != seen;
        seen = now;
    }
    printf("%lu %lu\n", changes, mixed);
    return 0;
}
"""


def numbered(number: int) -> page.ContainerLimits:
    cards = tuple(msgspec.structs.replace(c, memory=number, context=number, weight=number) for c in EXAMPLE.cards)
    return msgspec.structs.replace(EXAMPLE, pod=f"p{number}", cards=cards)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "limits"
    made.write_bytes(page.encode(numbered(0)))
    return made


def test_a_change_keeps_the_file_and_moves_the_sequence_to_the_next_even_number(file: Path) -> None:
    before = file.stat().st_ino
    live.update(file, EXAMPLE)
    assert live.read(file) == EXAMPLE
    assert file.stat().st_ino == before
    assert LIMITS.get(file.read_bytes(), 0, "sequence") == 2
    live.update(file, numbered(1))
    assert LIMITS.get(file.read_bytes(), 0, "sequence") == 4


def test_a_change_leaves_the_word_of_the_arbiter_alone(file: Path) -> None:
    file.write_bytes(page.encode(numbered(0), arbiter=4711))
    live.update(file, EXAMPLE)
    assert LIMITS.get(file.read_bytes(), 0, "arbiter") == 4711
    assert live.read(file) == EXAMPLE


@pytest.mark.parametrize(("left", "then"), [(7, 8), (2**32 - 2, 0), (2**32 - 1, 0)])
def test_what_a_dead_writer_left_odd_becomes_even_with_the_next_change(file: Path, left: int, then: int) -> None:
    data = bytearray(page.encode(numbered(0), sequence=left))
    LIMITS.put(data, 0, "card_count", 60)
    file.write_bytes(data)
    live.update(file, EXAMPLE)
    assert live.read(file) == EXAMPLE
    assert LIMITS.get(file.read_bytes(), 0, "sequence") == then


def test_a_page_that_stays_half_changed_is_refused_after_a_while(file: Path) -> None:
    file.write_bytes(page.encode(EXAMPLE, sequence=1))
    with pytest.raises(WireError, match="half written"):
        live.read(file)


def test_a_reader_that_comes_in_the_middle_of_a_change_waits_for_its_end(file: Path) -> None:
    file.write_bytes(page.encode(numbered(0), sequence=1))
    end = threading.Timer(0.05, live.update, (file, EXAMPLE))
    end.start()
    try:
        assert live.read(file) == EXAMPLE
    finally:
        end.join()


def test_nothing_is_written_when_the_new_page_makes_no_sense(file: Path) -> None:
    with pytest.raises(WireError):
        live.update(file, msgspec.structs.replace(EXAMPLE, pod="a b"))
    assert file.read_bytes() == page.encode(numbered(0))


def test_a_reader_in_c_never_sees_a_mixture_of_two_pages(file: Path, tmp_path: Path) -> None:
    last = 600
    with subprocess.Popen(
        [compiled(READER, tmp_path), str(file), str(last)], stdout=subprocess.PIPE, text=True
    ) as reader:
        for number in range(1, last + 1):
            live.update(file, numbered(number))
        out, _ = reader.communicate(timeout=60)
    changes, mixed = map(int, out.split())
    assert mixed == 0
    assert changes > 20, "the reader has seen too little to prove anything"


def test_a_reader_in_python_never_sees_a_mixture_of_two_pages(file: Path) -> None:
    done = threading.Event()

    def write() -> None:
        for number in range(1, 200):
            live.update(file, numbered(number))
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        while not done.is_set():
            seen = live.read(file)
            assert seen == numbered(int(seen.pod[1:]))
    finally:
        writer.join()
    assert not [name for name in os.listdir(file.parent) if name != "limits"]
