"""Checks the library's promises on a real card: `gpu_check.py PROBE LIBRARY [RESULTS]`.

The probe (gpu_probe.c) is a program that uses the driver API. It runs once without the library, for the card's own
figures, and then with it, in a container of one card whose two files are written here as the node agent writes them.
Without a card a message says so, and the check is skipped. GPU_CHECK_SIMULATED=1 runs it on simgpu and keeps no result.
"""

import datetime
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "region"))
from generate import Schema, read_schema  # noqa: E402

MIB = 1 << 20
PIECE = 16 * MIB  # size of the probe's allocations
OUT_OF_MEMORY = 2
SIMULATED = bool(os.environ.get("GPU_CHECK_SIMULATED"))
FIGURES = ("launch_ns", "alloc_free_ns", "async_alloc_free_ns", "get_info_ns")

Values = dict[str, str]


class Broken(Exception):
    """A promise was not kept; the text says which and how."""


class NoCard(Exception):
    """There is no card to check on."""


# ---- the container's two files ----


def pack(schema: Schema, page: bytearray, struct: str, at: int, **values: int | str) -> None:
    for field in schema.structs[struct].fields:
        value = values.get(field.name)
        if isinstance(value, int):
            page[at + field.offset : at + field.offset + field.size] = value.to_bytes(field.size, "little")
        elif value is not None:
            page[at + field.offset : at + field.offset + len(value)] = value.encode()


def write_container(directory: Path, uuid: str, quota: int, context: int) -> None:
    schema, generation, slots, objects = read_schema(), 0x6B0C, 64, 64
    constants, structs = schema.constants, schema.structs
    sizes = {name: struct.size for name, struct in structs.items()}
    limits = bytearray(sizes["limits"])
    head = {"magic": constants["limits_magic"], "version": schema.version, "size": len(limits), "card_count": 1}
    pack(schema, limits, "limits", 0, **head, region_generation=generation, end=constants["end_magic"])
    cards = next(field.offset for field in structs["limits"].fields if field.name == "cards")
    pack(schema, limits, "limits_card", cards, uuid=uuid, memory=quota, context=context)
    body = slots * (sizes["slot"] + sizes["account"]) + objects * sizes["object"]
    region = bytearray(sizes["region"] + sizes["region_card"] + body)
    head = {"magic": constants["region_magic"], "version": schema.version, "size": len(region), "card_count": 1}
    tables = {"slot_count": slots, "object_count": objects, "account_size": sizes["account"]}
    pack(schema, region, "region", 0, **head, **tables, header_size=sizes["region"], generation=generation)
    (directory / "shared").mkdir(parents=True)
    (directory / "limits").write_bytes(limits)
    (directory / "shared" / "region").write_bytes(region)


# ---- running the probe ----


class Probe:
    def __init__(self, program: str, library: str, work: Path) -> None:
        self.program, self.library, self.work = program, library, work
        self.environment = dict(os.environ)
        if SIMULATED:
            self.simulate()

    def simulate(self) -> None:
        host = self.work / "host"
        host.mkdir()
        uuid, bus = "GPU-00000000-0000-4000-8000-00000000600d", "00000000:07:00.0"
        card = {"uuid": uuid, "index": 0, "model": "Simulated card", "memoryMiB": 8192, "pciBusID": bus, "smCount": 108}
        (host / "cards.json").write_text(json.dumps([card]))
        libraries = Path(self.program).parent.parent / "simgpu"
        self.environment |= {"SIMGPU_DIR": str(host), "LD_LIBRARY_PATH": str(libraries)}

    def inside(self) -> dict[str, str]:
        return self.environment | {"LD_PRELOAD": self.library, "FRACTILE_DIR": str(self.work / "container")}

    def run(self, role: str, *, library: bool) -> Values:
        environment = self.inside() if library else self.environment
        done = subprocess.run([self.program, role], env=environment, capture_output=True, text=True, timeout=300)
        values = dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)
        values["text"] = done.stdout
        if done.returncode:
            raise Broken(f"{role}: {values.get('failed') or done.stderr.strip() or f'status {done.returncode}'}")
        return values

    def hold(self, mib: int) -> "subprocess.Popen[str]":
        command, pipe = [self.program, "hold", str(mib)], subprocess.PIPE
        holder = subprocess.Popen(command, env=self.inside(), stdin=pipe, stdout=pipe, text=True)
        assert holder.stdout
        if holder.stdout.readline() != "holding 1\n":
            raise Broken(f"hold: {mib} MiB were refused")
        return holder


class Check:
    """The promises, one per method; each returns the figures for the result."""

    def __init__(self, probe: Probe, quota: int, context: int) -> None:
        self.probe, self.quota, self.context = probe, quota, context

    def every_lookup_ends_at_the_library(self) -> Values:
        found = {k: v for k, v in self.probe.run("resolve", library=True).items() if ":" in k}
        strange = [name for name, file in found.items() if Path(file).name != "libfractile.so"]
        if strange or len(found) < 12:
            raise Broken(f"of {len(found)} lookups {len(strange)} end elsewhere: {' '.join(strange)}")
        return {"lookups": str(len(found))}

    def the_card_is_as_large_as_the_quota(self) -> Values:
        seen = self.probe.run("memory", library=True)
        for name in ("total", "device_total", "nvml_total"):
            if int(seen[name]) != self.quota:
                raise Broken(f"{name} is {seen[name]}, the quota is {self.quota}")
        if int(seen["free"]) > self.quota - self.context:
            raise Broken(f"{seen['free']} bytes free of {self.quota} beside a context of {self.context}")
        return {name: seen[name] for name in ("free", "total", "nvml_total", "nvml_free")}

    def fills_up(self, role: str) -> Values:
        """Allocations are refused with the right error, never above the quota, and not before the quota is full."""
        seen = self.probe.run(role, library=True)
        got = int(seen["got"])
        if int(seen["answer"]) != OUT_OF_MEMORY:
            raise Broken(f"{role}: the answer beyond the quota is {seen['answer']}")
        if not self.quota - self.context - 4 * PIECE < got <= self.quota - self.context:
            raise Broken(f"{role}: {got} bytes were given of {self.quota} beside a context of {self.context}")
        return {"got": seen["got"]}

    def plain_memory_ends_at_the_quota(self) -> Values:
        return self.fills_up("linear")

    def pools_end_at_the_quota_and_loops_do_not(self) -> Values:
        return self.fills_up("pools")

    def handles_end_at_the_quota(self) -> Values:
        return self.fills_up("handles")

    def graphs_run_within_the_quota_only(self) -> Values:
        seen = self.probe.run("graphs", library=True)
        if int(seen["answer"]) != OUT_OF_MEMORY:
            raise Broken(f"a graph larger than the quota is answered {seen['answer']}")
        return {}

    def a_second_process_sees_what_the_first_left(self) -> Values:
        holder = self.probe.hold(self.quota // 2 // MIB)
        try:
            seen = self.probe.run("left", library=True)
        finally:
            holder.communicate("x")
        most = self.quota - self.quota // 2 - 2 * self.context
        if int(seen["free"]) > most or not most - 4 * PIECE < int(seen["got"]) <= most:
            raise Broken(f"{seen['free']} bytes shown and {seen['got']} given where {most} were left")
        return {"free": seen["free"], "got": seen["got"]}

    def what_a_killed_process_held_is_back_at_once(self) -> Values:
        holder = self.probe.hold(self.quota // 2 // MIB)
        holder.send_signal(signal.SIGKILL)
        holder.communicate()
        began = time.monotonic()
        self.fills_up("linear")
        return {"seconds_with_a_new_process": f"{time.monotonic() - began:.3f}"}

    def calls_cost_little_more(self) -> Values:
        """Both medians, and their difference. The bound is wide: this is only a check; `make bench` measures."""
        plain, ours = self.probe.run("times", library=False), self.probe.run("times", library=True)
        figures = {f"{name}_{who}": run[name] for name in FIGURES for who, run in (("plain", plain), ("library", ours))}
        if float(ours["launch_ns"]) - float(plain["launch_ns"]) > 500:
            raise Broken(f"a launch takes {ours['launch_ns']} ns with the library, {plain['launch_ns']} ns without")
        return figures

    def all(self) -> list[Callable[[], Values]]:
        return [
            self.every_lookup_ends_at_the_library,
            self.the_card_is_as_large_as_the_quota,
            self.plain_memory_ends_at_the_quota,
            self.pools_end_at_the_quota_and_loops_do_not,
            self.handles_end_at_the_quota,
            self.graphs_run_within_the_quota_only,
            self.a_second_process_sees_what_the_first_left,
            self.what_a_killed_process_held_is_back_at_once,
            self.calls_cost_little_more,
        ]


def perform(check: Callable[[], Values]) -> dict[str, object]:
    began, error, figures = time.monotonic(), "", Values()
    try:
        figures = check()
    except (Broken, subprocess.TimeoutExpired, OSError) as why:
        error = str(why)
        print(f"     {error}")
    print(f"{'FAIL' if error else 'ok  '} {check.__name__}", flush=True)
    seconds = round(time.monotonic() - began, 3)
    return {"check": check.__name__, "passed": not error, "error": error, "seconds": seconds, "figures": figures}


def find_card(probe: Probe) -> Values:
    try:
        return probe.run("card", library=False)
    except Broken as why:
        raise NoCard(str(why)) from None


def keep(results: Path, card: Values, checks: list[dict[str, object]], quota: int) -> None:
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    parts = (card["name"], card["driver"], today)
    name = "-".join("".join(c if c.isalnum() or c == "." else "_" for c in part) for part in parts)
    facts = {key: card[key] for key in ("name", "driver", "total", "context")}
    results.mkdir(parents=True, exist_ok=True)
    path = results / f"gpu-check-{name}.json"
    path.write_text(json.dumps({"card": facts, "quota": quota, "date": today, "checks": checks}, indent=1) + "\n")
    print(f"written: {path.name}")


def main(arguments: list[str]) -> int:
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as work:
        probe = Probe(arguments[0], arguments[1], Path(work))
        try:
            card = find_card(probe)
        except NoCard:
            print("There is no NVIDIA driver with a card on this machine: nothing can be checked here.")
            print("0 passed, 1 skipped")
            return 0
        context, quota = int(card["context"]), min(4096 * MIB, int(card["free"]) // 2 // MIB * MIB)
        write_container(Path(work) / "container", card["uuid"], quota, context)
        print(
            f"{card['name']}, driver {card['driver']}: quota {quota // MIB} MiB, a context costs {context // MIB} MiB"
        )
        probe.environment["CUDA_VISIBLE_DEVICES"] = card["uuid"]
        checks = [perform(check) for check in Check(probe, quota, context).all()]
    if len(arguments) > 2 and not SIMULATED:
        keep(Path(arguments[2]), card, checks, quota)
    failed = sum(not c["passed"] for c in checks)
    print(f"{len(checks) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
