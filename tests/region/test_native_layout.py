"""The C header and the Python module say the same, asked of a C compiler."""

import subprocess
from pathlib import Path

from fractile.region import layout, shared
from fractile.region.layout import StructLayout
from tests.region.examples import LIMITS as want
from tests.region.native import compiled
from tests.wire.golden_files import golden

STRUCTS = {name.lower(): value for name, value in vars(layout).items() if isinstance(value, StructLayout)}
CONSTANTS = {name: value for name, value in vars(layout).items() if isinstance(value, int) and name != "VERSION"}


def run(body: str, folder: Path, *args: str) -> list[str]:
    includes = "".join(f"#include <{name}.h>\n" for name in ("stdio", "stddef", "stdlib"))
    program = compiled(f'#include "region.h"\n{includes}int main(int argc, char **argv)\n{{{body}}}\n', folder)
    return subprocess.run([program, *args], capture_output=True, text=True, check=True, timeout=20).stdout.splitlines()


def test_every_struct_and_every_field_stands_at_the_same_place(tmp_path: Path) -> None:
    lines = ["(void)argc; (void)argv;"]
    expected: list[str] = []
    for name, struct in STRUCTS.items():
        lines.append(f'printf("{name} %zu\\n", sizeof(struct fr_{name}));')
        expected.append(f"{name} {struct.size}")
        for field, at in struct.fields.items():
            of = f"offsetof(struct fr_{name}, {field}), sizeof(((struct fr_{name} *)0)->{field})"
            lines.append(f'printf("{name}.{field} %zu %zu\\n", {of});')
            expected.append(f"{name}.{field} {at.offset} {at.size}")
    assert len(STRUCTS) == 7
    assert run("\n".join(lines), tmp_path) == expected


def test_every_constant_has_the_same_value(tmp_path: Path) -> None:
    values = {f"FR_{name}": value for name, value in CONSTANTS.items()} | {"FR_LAYOUT_VERSION": layout.VERSION}
    body = "(void)argc; (void)argv;" + "".join(f'printf("%llu\\n", (unsigned long long){name});' for name in values)
    assert run(body, tmp_path) == [str(value) for value in values.values()]


def test_c_reads_from_the_golden_page_what_python_reads(tmp_path: Path) -> None:
    (tmp_path / "limits").write_bytes(golden("limits-v2.bin"))
    card = "p->cards[i]"
    numbers = ("memory", "context", "unaccounted", "cores", "cores_limit", "weight", "flags")
    prints = "".join(f'printf("%llu\\n", (unsigned long long){card}.{name});' for name in numbers)
    body = f"""
    static struct fr_limits page, *p = &page;
    FILE *file = argc == 2 ? fopen(argv[1], "r") : NULL;
    if (!file || fread(p, 1, sizeof *p, file) != sizeof *p || p->magic != FR_LIMITS_MAGIC) return 1;
    if (p->end != FR_END_MAGIC || p->size != sizeof *p || p->version != FR_LAYOUT_VERSION) return 1;
    printf("%s\\n%s\\n%s\\n%s\\n", p->pod_uid, p->pod_namespace, p->pod_name, p->container);
    printf("%u %u %llu\\n", p->flags, p->priority, (unsigned long long)p->region_generation);
    for (unsigned i = 0; i < p->card_count; i++) {{ printf("%s\\n", {card}.uuid); {prints} }}
    return 0;"""
    expected = [want.pod_uid, want.namespace, want.pod, want.container]
    expected.append(f"{want.flags} {want.priority} {want.generation}")
    for c in want.cards:
        expected += [c.uuid, *(str(getattr(c, name)) for name in numbers)]
    assert run(body, tmp_path, str(tmp_path / "limits")) == expected


def test_c_finds_every_part_of_a_region_where_python_puts_it(tmp_path: Path) -> None:
    body = """
    size_t cards = (size_t)atoi(argv[argc - 1]), slot = sizeof(struct fr_slot) + cards * sizeof(struct fr_account);
    struct fr_region *r = NULL;
    struct fr_region_card *first = (struct fr_region_card *)(r + 1);
    char *slots = (char *)(first + cards);
    struct fr_object *objects = (struct fr_object *)(slots + FR_MAX_SLOTS * slot);
    printf("%zu %zu %zu ", (size_t)first, (size_t)slots, slot);
    printf("%zu %zu\\n", (size_t)objects, (size_t)(objects + FR_MAX_OBJECTS));
    return 0;"""
    for cards in (1, 3, 64):
        shape = shared.RegionShape(cards)
        slot = shape.slot_at(1) - shape.slot_at(0)
        places = shape.card_at(0), shape.slot_at(0), slot, shape.object_at(0), shape.size
        assert run(body, tmp_path, str(cards)) == [" ".join(map(str, places))]
