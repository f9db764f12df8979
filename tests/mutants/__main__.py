"""``make mutants``: change the ledger and its neighbours one expression at a time; their own tests must fail each time.

The exit status is 0 when at least 90 percent of each group's mutants are killed and every other one is listed with its
reason in ``survivors.toml``; 1 otherwise.
"""

import os
import resource
import sys
import time
from pathlib import Path

import click

from tests.mutants import survivors
from tests.mutants.modules import MODULES, Modules, heads
from tests.mutants.run import ROOT, Found, Unfinished, mutate

_NAMES = (*heads(), *(group.name for group in MODULES if "/" in group.name))


@click.command()
@click.option("--only", multiple=True, type=click.Choice(_NAMES), help="A group of modules; may be repeated.")
@click.option("--bar", type=float, default=90.0, show_default=True, help="Percent of the mutants to be killed.")
@click.option("--children", type=int, default=os.cpu_count() or 1, show_default=True, help="Mutants at the same time.")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), default=ROOT / "build" / "mutants")
def main(only: tuple[str, ...], bar: float, children: int, out: Path) -> None:
    """Hold the tests of the ledger and its neighbours against mutants of the code."""
    known = survivors.read()
    met: list[bool] = []
    for group in (g for g in MODULES if not only or {g.name, g.name.partition("/")[0]} & set(only)):
        _say(f"{group.name}: {', '.join(group.sources)} against {', '.join(group.tests)}")
        met.append(_judge(group, out / group.name, known, bar=bar, children=children))
    sys.exit(0 if all(met) else 1)


def _judge(group: Modules, folder: Path, known: dict[survivors.Change, str], *, bar: float, children: int) -> bool:
    began, before = time.monotonic(), _processor()
    try:
        found = mutate(group, folder, children=children)
    except Unfinished as error:
        _say(f"{group.name}: mutmut did not finish: {error}")
        return False
    listed = [one for one in found.left if one in known]
    missing = [one for one in found.left if one not in known]
    killed = found.killed(len(listed))
    _report(folder, missing)
    _say(
        f"{group.name}: mutants={found.total} killed={killed:.1f}% survived={len(missing)} listed={len(listed)} "
        f"{_counts(found)} seconds={time.monotonic() - began:.0f} processor={_processor() - before:.0f}"
    )
    if missing:
        _say(f"  survivors, as entries for survivors.toml: {folder / 'survivors.toml'}")
    return killed >= bar and not missing


def _processor() -> float:
    """Seconds of processor time of all that has run and ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _counts(found: Found) -> str:
    return " ".join(f"{meaning.replace(' ', '_')}={count}" for meaning, count in sorted(found.counts.items()))


def _report(folder: Path, missing: list[survivors.Change]) -> None:
    (folder / "survivors.toml").write_text("\n".join(survivors.entry(one) for one in missing))


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    main()
