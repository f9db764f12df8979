"""Generates the C sources that follow from the table of symbols; run by the Makefile.

    generate.py OUT                 OUT/{symbols.h, thunks.inc, lookup.inc, answers.inc, interposer.map}
    generate.py --check OUT FILE    FILE: `nm` of the library's objects. Prints the symbols that lack a hook

The table is interposer/table.txt. It has to name exactly the symbols that symbols/*.txt declare. Symbols are numbered
in byte order of their names, so a name is found by binary search, and a symbol's number is its index in all tables.
"""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
SYMBOLS = HERE.parent / "symbols"
CLASSES = ("pass", "account", "pace", "virtualise", "refuse")
DYNAMIC = ("dlmopen", "dlopen", "dlsym", "dlvsym")


def rows(path: Path) -> list[list[str]]:
    lines = (line.split("#")[0].split() for line in path.read_text().splitlines())
    return [words for words in lines if words]


def read_table() -> dict[str, str]:
    declared = {words[0] for name in ("cuda.txt", "nvml.txt") for words in rows(SYMBOLS / name)}
    table: dict[str, str] = {}
    for words in rows(HERE / "table.txt"):
        if len(words) != 2 or words[1] not in CLASSES:
            raise SystemExit(f"table.txt: {' '.join(words)}: a line is a symbol and one of {', '.join(CLASSES)}")
        if words[0] in table:
            raise SystemExit(f"table.txt: {words[0]} stands there twice")
        table[words[0]] = words[1]
    if missing := sorted(declared - set(table)):
        raise SystemExit(f"table.txt: not classified: {' '.join(missing)}")
    if unknown := sorted(set(table) - declared):
        raise SystemExit(f"table.txt: in no list of symbols: {' '.join(unknown)}")
    return dict(sorted(table.items()))


def symbols_h(table: dict[str, str]) -> str:
    cuda = sum(name.startswith("cu") for name in table)
    names = "".join(f"    FR_{name},\n" for name in table)
    return (
        "/* Generated from interposer/table.txt. The driver's symbols come first. */\n"
        f"#ifndef FRACTILE_SYMBOLS_H\n#define FRACTILE_SYMBOLS_H\n\nenum {{\n{names}    FR_SYMBOLS,\n"
        f"    FR_CUDA_SYMBOLS = {cuda},\n}};\n\n#endif\n"
    )


def thunks(table: dict[str, str]) -> str:
    return "".join(
        f"{'REFUSE' if group == 'refuse' else 'THUNK'}({name}, {i})\n" for i, (name, group) in enumerate(table.items())
    )


def lookup(table: dict[str, str]) -> str:
    """Names as one string and offsets into it: needs no relocation by the loader."""
    text, places, at = [], [], 0
    for name in table:
        places.append(at)
        text.append(f'    "{name}\\0"\n')
        at += len(name) + 1
    groups = ", ".join(f"FR_{group.upper()}" for group in table.values())
    return (
        f"static const char names[] =\n{''.join(text)};\n"
        f"static const uint16_t name_at[FR_SYMBOLS] = {{{', '.join(map(str, places))}}};\n"
        f"static const uint8_t class_of[FR_SYMBOLS] = {{{groups}}};\n"
    )


def answers(table: dict[str, str]) -> str:
    """The answers of cuGetProcAddress: name (every name is a symbol, too), first version, stream mode, symbol."""
    lines = []
    for name, version, thread, symbol in rows(SYMBOLS / "procaddress.txt"):
        if name not in table or symbol not in table:
            raise SystemExit(f"procaddress.txt: {name} or {symbol} is in no list of symbols")
        lines.append(f"{{FR_{name}, {version}, {thread}, FR_{symbol}}},\n")
    return "".join(lines)


def export_map(table: dict[str, str]) -> str:
    return "{ global:\n" + "".join(f"  {name};\n" for name in (*DYNAMIC, *table)) + "local: *; };\n"


def write(out: Path, name: str, text: str) -> None:
    out.mkdir(parents=True, exist_ok=True)
    path = out / name
    if not path.exists() or path.read_text() != text:  # an unchanged file rebuilds nothing
        path.write_text(text)


def check(table: dict[str, str], listing: Path) -> list[str]:
    """Symbols that need a hook and have only their thunk (`W`) among the objects."""
    ours = {words[-1] for words in rows(listing) if words[-2:-1] == ["T"]}
    needed = {"account", "virtualise"} | ({"pace"} if (HERE / "launch.c").exists() else set())
    return [name for name, group in table.items() if group in needed and name not in ours]


def main(arguments: list[str]) -> int:
    table = read_table()
    if arguments[:1] == ["--check"]:
        if lacking := check(table, Path(arguments[2])):
            raise SystemExit(f"table.txt: neither passed nor written: {' '.join(lacking)}")
        return 0
    out = Path(arguments[0])
    write(out, "symbols.h", symbols_h(table))
    write(out, "thunks.inc", thunks(table))
    write(out, "lookup.inc", lookup(table))
    write(out, "answers.inc", answers(table))
    write(out, "interposer.map", export_map(table))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
