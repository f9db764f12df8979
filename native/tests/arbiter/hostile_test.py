"""The arbiter as a process, and clients of every kind: they make requests, die, lie, or never give the card back."""

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "interposer"))

import suite

OUT = Path(os.environ.get("OUT", "build")).resolve()
ARBITER, SLICE = OUT / "arbiter" / "fractile-arbiter", OUT / "slice" / "fractile-slice"
A, B = "GPU-00000000-0000-4000-8000-000000000001", "GPU-00000000-0000-4000-8000-000000000002"
WANT, DONE, GRANT, RECALL, SHARED, ENDING = 1, 2, 3, 4, 5, 6
MAY_END, BEHIND = 1, 2  # values of a GRANT's field `gang`
LAYOUT = "=IIIIQQQQ"


class Client:
    waits = 0  # 1: it understands BEGINS

    def __init__(self, directory: Path):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for again in range(200):
            try:
                self.socket.connect(str(directory / "arbiter.sock"))
                break
            except ConnectionRefusedError:  # the socket exists, but the arbiter does not listen yet
                assert again < 199
                time.sleep(0.01)

    def say(self, kind: int, card: int = 0, more: int = 0, lease: int = 0, gang: int = 0, length: int = 0) -> None:
        self.socket.send(struct.pack(LAYOUT, 1, kind, card, more, lease, gang, length, self.waits))

    def hear(self, patience: float = 2.0) -> tuple[int, int, int, int] | None:
        """(kind, card, lease, length in ns); None: nothing came."""
        self.socket.settimeout(patience)
        try:
            data = self.socket.recv(64)
        except TimeoutError:
            return None
        assert data, "the arbiter closed the connection"
        _, kind, card, _, lease, self.gang, length, _ = struct.unpack(LAYOUT, data)
        return kind, card, lease, length

    def granted(self, patience: float = 2.0, card: int = 0) -> int:
        """Requests a turn and waits for the lease; returns its number."""
        self.say(WANT, card)
        return self.wait_for(GRANT, patience)[2]

    def wait_for(self, kind: int, patience: float = 2.0) -> tuple[int, int, int, int]:
        until = time.monotonic() + patience
        while True:
            heard = self.hear(max(until - time.monotonic(), 0.001))
            assert heard, f"no message of kind {kind} in {patience} s"
            if heard[0] == kind:
                return heard

    def closed(self, patience: float = 3.0) -> bool:
        self.socket.settimeout(patience)
        try:
            while self.socket.recv(64):
                pass
        except TimeoutError:
            return False
        except OSError:
            pass
        return True


class Node:
    """An arbiter over a directory of slices."""

    def __init__(self, together: bool = False, files: int = 0, alone: str = "", **slices: str):
        self.alone = alone  # a command of the shell, in a user namespace of the arbiter's own before it starts
        self.files = files  # descriptors that the arbiter may have; 0: as many as this process
        self.options = [] if together else ["--exclusive"]
        self.place = tempfile.TemporaryDirectory()
        self.root = Path(self.place.name) / "slices"
        self.root.mkdir()
        for name, terms in slices.items():
            self.add(name, terms)
        self.start()

    def add(self, name: str, terms: str) -> Path:
        cards = [w for card in terms.split() for w in ("--card", card)]
        subprocess.run([SLICE, "create", self.root / name, *cards], check=True, stdout=subprocess.DEVNULL)
        return self.root / name

    def start(self) -> None:
        command = [ARBITER, "--slices", self.root, "--control", self.root / "../control", *self.options]
        if (
            self.alone
            and subprocess.run(["unshare", "--user", "--map-root-user", "true"], stderr=subprocess.DEVNULL).returncode
        ):
            raise suite.Skip("no user namespace can be made here")
        space = (
            ["unshare", "--user", "--map-root-user", "sh", "-c", self.alone + '; exec "$0" "$@"'] if self.alone else []
        )
        bound = ["prlimit", f"--nofile={self.files}:{self.files}"] if self.files else []
        self.process = subprocess.Popen([*space, *bound, *command], stderr=subprocess.DEVNULL)
        until = time.monotonic() + 5
        while time.monotonic() < until and not all((d / "arbiter.sock").exists() for d in self.root.iterdir()):
            time.sleep(0.01)

    def client(self, name: str) -> Client:
        return Client(self.root / name)

    def status(self) -> dict:
        command = [ARBITER, "status", "--json", "--control", self.root / "../control"]
        return json.loads(subprocess.run(command, check=True, capture_output=True, timeout=5).stdout)

    def events(self) -> list[str]:
        return [e["slice"] + ": " + e["kind"] for e in self.status()["events"]]

    def __enter__(self) -> "Node":
        return self

    def __exit__(self, *_: object) -> None:
        alive = self.process.poll() is None
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(5)
        self.place.cleanup()
        assert alive, "the arbiter did not stay up"


def two(first: str = "cores=50", second: str = "cores=50") -> Node:
    return Node(one=f"{A}=1GiB,{first}", two=f"{A}=1GiB,{second}")


def test_a_process_that_claims_many_contexts_pays_for_them_and_claims_beyond_the_bound_count_as_the_bound() -> None:
    with two() as node:
        one, other = node.client("one"), node.client("two")
        one.waits = 1 | 255 << 8  # counts as 64
        one.granted()
        other.granted(patience=2)
        before = {s["slice"]: s["heldNs"] for s in node.status()["cards"][0]["slices"]}
        time.sleep(1)
        after = {s["slice"]: s["heldNs"] for s in node.status()["cards"][0]["slices"]}
        had = {name: after[name] - before[name] for name in after}
        assert 55 < had["one"] / had["two"] < 75, had


def test_a_container_alone_gets_the_card_until_another_wants_it() -> None:
    with two() as node:
        one, other = node.client("one"), node.client("two")
        one.say(WANT)
        _, _, lease, length = one.wait_for(GRANT)
        assert length == 0
        other.say(WANT)
        assert one.wait_for(RECALL)[2] == lease
        one.say(DONE, more=1, lease=lease)
        _, _, second, length = other.wait_for(GRANT)
        assert 4e6 <= length <= 20e6, length
        other.say(DONE, lease=second)
        one.wait_for(GRANT)


def test_a_container_that_begins_before_the_turn_before_is_over_is_told_so() -> None:
    with two() as node:
        one, other = node.client("one"), node.client("two")
        lease = one.granted()
        other.say(WANT)
        one.wait_for(RECALL)
        one.say(DONE, more=1, lease=lease)
        lease = other.wait_for(GRANT)[2]
        assert other.gang == MAY_END
        other.say(ENDING, lease=lease)
        one.wait_for(GRANT)
        assert one.gang == MAY_END | BEHIND


def test_while_there_is_time_to_spare_two_have_the_card_together_and_one_that_stays_is_recalled() -> None:
    with Node(together=True, one=f"{A}=1GiB,cores=50", two=f"{A}=1GiB,cores=50") as node:
        one, other = node.client("one"), node.client("two")
        other.say(DONE, lease=other.granted())  # the first turn of each is exclusive
        first = one.granted()
        time.sleep(0.05)  # from now on it has had more
        one.say(DONE, lease=first)
        time.sleep(0.6)
        lease = one.granted()
        began = time.monotonic()
        other.granted(1.0)
        assert one.wait_for(SHARED)[2] == lease
        assert one.wait_for(RECALL)[2] == lease  # it has had more
        assert 0.1 < time.monotonic() - began < 1, time.monotonic() - began


def test_two_processes_of_a_container_share_its_lease() -> None:
    with two() as node:
        first, second = node.client("one"), node.client("one")
        lease = first.granted()
        assert second.granted() == lease
        other = node.client("two")
        other.say(WANT)
        first.wait_for(RECALL), second.wait_for(RECALL)
        first.say(DONE, lease=lease)
        assert other.hear(0.03) is None, "granted while a process of the other container holds on"
        second.say(DONE, lease=lease)
        other.wait_for(GRANT)


def test_a_killed_holder_loses_the_card_at_once_though_its_child_keeps_the_socket() -> None:
    with two() as node:
        code = f"""
import socket, struct, os, time
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.connect({str(node.root / "one/arbiter.sock")!r})
s.send(struct.pack({LAYOUT!r}, 1, 1, 0, 0, 0, 0, 0, 0)); s.recv(64)
child = os.fork()
if not child: time.sleep(20); os._exit(0)
print(child, flush=True); time.sleep(20)"""
        holder = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        assert holder.stdout
        child = int(holder.stdout.readline())
        holder.kill()
        holder.wait()
        try:
            began = time.monotonic()
            node.client("two").granted()
            assert time.monotonic() - began < 0.09, "later than a grace time"
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_container_that_never_gives_back_is_skipped_again_and_again_and_seen() -> None:
    with two() as node:
        hostile, other = node.client("one"), node.client("two")
        hostile.granted()
        for _ in range(20):
            lease = other.granted(1.0)
            other.say(DONE, lease=lease)
        assert "one: late" in node.events()


def test_a_lease_is_given_back_only_by_its_holder() -> None:
    with two() as node:
        one, other = node.client("one"), node.client("two")
        lease = one.granted()
        other.say(DONE, lease=lease)
        other.say(WANT)
        one.wait_for(RECALL)
        assert other.hear(0.03) is None


def test_nonsense_ends_the_connection_that_sent_it_and_no_other() -> None:
    with two() as node:
        honest = node.client("two")
        lease = honest.granted()
        for wrong in (
            b"x",
            bytes(4096),
            struct.pack(LAYOUT, 1, WANT, 63, 0, 0, 0, 0, 0),
            struct.pack(LAYOUT, 9, WANT, 0, 0, 0, 0, 0, 0),
        ):
            bad = node.client("one")
            bad.socket.send(wrong)
            assert bad.closed(), wrong[:8]
        assert "one: nonsense" in node.events()
        honest.say(DONE, more=1, lease=lease)
        honest.wait_for(GRANT)


def test_a_flood_is_cut_off_and_neighbours_are_served_meanwhile() -> None:
    with two() as node:
        flood, other = node.client("one"), node.client("two")
        flood.socket.settimeout(5)
        message = struct.pack(LAYOUT, 1, WANT, 0, 1, 0, 0, 0, 0)
        sent = 0
        try:
            for sent in range(200000):
                flood.socket.send(message)
                if sent % 5000 == 4999:
                    other.say(DONE, lease=other.granted(1.0))
        except OSError:
            pass
        assert sent < 100000, "not cut off"
        assert "one: flood" in node.events()


def test_a_flood_over_many_connections_is_cut_off_too() -> None:
    with two() as node:
        flood, other = [node.client("one") for _ in range(200)], node.client("two")
        message = struct.pack(LAYOUT, 1, DONE, 0, 0, 0, 0, 0, 0)
        until, sent = time.monotonic() + 20, 0
        while "one: flood" not in node.events():
            assert time.monotonic() < until, sent
            for client in flood:
                try:
                    for _ in range(30):
                        client.socket.send(message, socket.MSG_DONTWAIT)
                        sent += 1
                except OSError:  # cut off, or its queue is full
                    pass
        other.granted()


def test_a_program_that_reports_much_time_outside_of_turns_is_charged_no_more_than_has_passed() -> None:
    with two() as node:
        liar, honest = node.client("one"), node.client("two")
        began = time.monotonic()
        for _ in range(2000):
            liar.say(DONE, length=60 * 10**9)
        honest.granted()
        liar.say(WANT)
        debts = {s["slice"]: s["debtNs"] for card in node.status()["cards"] for s in card["slices"]}
        assert 30e9 < debts["one"] < 61e9 + (time.monotonic() - began) * 1e9, debts


def test_thousands_of_connections_of_one_container_leave_room_for_the_others() -> None:
    with two() as node:
        many = [node.client("one") for _ in range(900)]
        more = subprocess.Popen(
            [
                sys.executable,
                "-c",
                "import socket, sys\nkeep = []\n"
                "for i in range(900):\n s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
                " s.connect(sys.argv[1]); keep.append(s)\n"  # a full queue refuses connections that do not wait
                "sys.stdin.read()\n",  # connections that are gone before the arbiter handles them take no place
                str(node.root / "one/arbiter.sock"),
            ],
            stdin=subprocess.PIPE,
        )
        until = time.monotonic() + 30
        while "one: refused" not in node.events():
            assert time.monotonic() < until and more.poll() is None, "nobody was refused"
            time.sleep(0.05)
        node.client("two").granted()
        more.communicate(timeout=30)
        assert more.returncode == 0
        del many


def test_containers_that_hold_all_connections_and_descriptors_keep_out_no_other_one_nor_a_new_one() -> None:
    terms = f"{A}=1GiB,cores=20"
    with Node(files=200, one=terms, two=terms, three=terms) as node:
        many = [node.client(name) for name in ("one", "two") for _ in range(120)]
        time.sleep(0.3)  # until the arbiter has handled all of them
        other = node.client("three")
        other.say(DONE, lease=other.granted())
        new = node.add("four", terms)
        until = time.monotonic() + 2
        while not (new / "arbiter.sock").exists() and time.monotonic() < until:
            time.sleep(0.01)
        node.client("four").granted()
        assert not other.closed(0.1)
        assert {"one: refused", "two: refused"} <= set(node.events())
        assert len(os.listdir(f"/proc/{node.process.pid}/fd")) < 150
        del many


def test_each_of_hundreds_of_containers_has_its_socket() -> None:
    with two() as node:
        page = (node.root / "one/limits").read_bytes()
        for i in range(400):
            made = node.root / f".made{i}"
            made.mkdir()
            (made / "limits").write_bytes(page)
            made.rename(node.root / f"s{i:03}")
        until = time.monotonic() + 20
        while not (node.root / "s399/arbiter.sock").exists() and time.monotonic() < until:
            time.sleep(0.01)
        node.client("s399").granted()


def test_where_no_inotify_is_to_be_had_it_looks_once_a_second_and_goes_over_to_inotify_when_there_is_one() -> None:
    with Node(alone="echo 0 > /proc/sys/user/max_inotify_instances", one=f"{A}=1GiB,cores=10") as node:
        node.client("one").granted()
        new = node.add("two", f"{A}=1GiB,cores=10")
        appears(new, 2.5)
        Client(new).granted()
        more = "echo 9 > /proc/sys/user/max_inotify_instances"
        subprocess.run(
            ["nsenter", "--user", "--preserve-credentials", "-t", str(node.process.pid), "sh", "-c", more], check=True
        )
        time.sleep(1.5)
        for name in ("three", "four", "five"):
            appears(node.add(name, f"{A}=1GiB,cores=10"), 0.3)


def appears(slice_: Path, patience: float) -> None:
    until = time.monotonic() + patience
    while not (slice_ / "arbiter.sock").is_socket():
        assert time.monotonic() < until, f"no socket in {slice_.name} after {patience} s"
        time.sleep(0.01)


def test_a_new_limit_ends_a_lease_within_100_ms() -> None:
    with two() as node:
        one = node.client("one")
        one.granted()
        assert one.hear(0.1) is None
        subprocess.run([SLICE, "set", node.root / "one", "--card", f"{A}=,cores=10,cores-limit=10"], check=True)
        began = time.monotonic()
        one.wait_for(RECALL)
        assert time.monotonic() - began < 0.1


def removed(socket_: Path) -> None:
    socket_.unlink()


def renamed(socket_: Path) -> None:
    socket_.rename(socket_.with_name("elsewhere"))


def a_folder(socket_: Path) -> None:
    socket_.unlink()
    socket_.mkdir()


def a_full_folder(socket_: Path) -> None:
    a_folder(socket_)
    (socket_ / "note").touch()


def test_a_socket_that_goes_is_made_again_and_connections_stay() -> None:
    with two() as node:
        first = node.client("one")
        first.granted()
        for harm in (removed, renamed, a_folder, a_full_folder):
            harm(node.root / "one" / "arbiter.sock")
            appears(node.root / "one", 2)
            node.client("one").granted()
        assert not first.closed(0.1)


def test_a_socket_that_goes_is_there_again_also_without_inotify() -> None:
    with Node(alone="echo 0 > /proc/sys/user/max_inotify_instances", one=f"{A}=1GiB,cores=10") as node:
        removed(node.root / "one" / "arbiter.sock")
        appears(node.root / "one", 2.5)
        node.client("one").granted()


def test_a_container_is_served_from_when_it_appears_until_it_goes() -> None:
    with two() as node:
        new = node.add("three", f"{A}=1GiB,cores=10")
        until = time.monotonic() + 2
        while not (new / "arbiter.sock").exists() and time.monotonic() < until:
            time.sleep(0.01)
        client = Client(new)
        client.granted()
        subprocess.run(["rm", "-r", new], check=True)
        node.client("one").granted(0.5)


def test_a_killed_arbiter_leaves_nothing_that_the_next_one_needs() -> None:
    with two() as node:
        one = node.client("one")
        one.granted()
        node.process.kill()
        node.process.wait()
        assert one.closed(0.5)
        for name in ("one", "two"):
            (node.root / name / "arbiter.sock").unlink()
        node.start()
        node.client("one").granted()


def play_two_gangs(pause: float) -> None:
    """Two containers of two processes, one per card. A container continues when both of its processes have had their
    lease. ``pause``: seconds between the moments when the two processes give their cards back."""
    terms = f"{A}=1GiB,cores=50 {B}=1GiB,cores=50"
    with Node(one=terms, two=terms) as node:
        clients = [(node.client(name), node.client(name)) for name in ("one", "two")]
        for order, (a, b) in zip(((0, 1), (1, 0)), clients, strict=True):
            pair = (a, b)
            for card in order:
                pair[card].say(WANT, card, gang=3)
        rounds = [0, 0]
        until = time.monotonic() + 30  # on a busy machine every program waits for a processor
        while min(rounds) < 5 and time.monotonic() < until:
            for i, (a, b) in enumerate(clients):
                got = a.hear(0.01)
                if not got or got[0] != GRANT:
                    continue
                lease = b.wait_for(GRANT, 10)[2]
                rounds[i] += 1
                a.say(DONE, 0, more=1, lease=got[2], gang=3)
                time.sleep(pause)
                b.say(DONE, 1, more=1, lease=lease, gang=3)
        assert min(rounds) >= 5, rounds


def test_two_gangs_on_two_cards_get_both_or_none() -> None:
    play_two_gangs(0)


def test_a_gang_that_gives_its_cards_back_one_after_the_other_is_not_left_without_the_second() -> None:
    """The first card may be granted again alone. Its process then keeps it until the other has a lease, and is late.
    The other process must still get a lease."""
    play_two_gangs(0.02)


def test_a_gang_that_is_claimed_and_never_asked_for_delays_no_container() -> None:
    terms = f"{A}=1GiB,cores=50 {B}=1GiB,cores=50"
    with Node(one=terms, two=terms) as node:
        hostile, other = node.client("one"), node.client("two")
        for _ in range(10):
            hostile.say(WANT, 0, gang=3)
            other.say(DONE, lease=other.granted(0.2))
            hostile.say(DONE, 0, lease=hostile.wait_for(GRANT)[2])


def test_a_limits_page_that_cannot_be_read_is_an_event_and_delays_no_container() -> None:
    with two() as node:
        one, page = node.client("one"), node.root / "one/limits"
        one.granted()
        (node.root / "garbage").mkdir()
        (node.root / "garbage/limits").write_bytes(b"no limits" * 4000)
        os.truncate(page, 0)
        other = node.client("two")
        other.say(WANT)
        one.wait_for(RECALL)
        until = time.monotonic() + 2
        told = {"garbage: limits", "one: limits"}
        while not told <= set(node.events()) and time.monotonic() < until:
            time.sleep(0.01)
        assert told <= set(node.events()), node.events()


def test_a_directory_that_waits_for_its_limits_is_no_event_and_gets_its_socket_when_they_come() -> None:
    with two() as node:
        made = node.root / ".made"
        subprocess.run([SLICE, "create", made, "--card", f"{A}=1GiB,cores=10"], check=True, stdout=subprocess.DEVNULL)
        (made / "limits").rename(node.root / ".limits")
        made.rename(node.root / "waits")
        for i in range(3):  # the agent writes beside the page until it grants access
            (node.root / "waits" / f"file-{i}").touch()
            time.sleep(0.1)
        assert not any("waits" in event for event in node.events()), node.events()
        (node.root / ".limits").rename(node.root / "waits/limits")
        until = time.monotonic() + 2
        while not (node.root / "waits/arbiter.sock").exists() and time.monotonic() < until:
            time.sleep(0.01)
        node.client("waits").granted()
        assert not any("waits" in event for event in node.events()), node.events()


def test_a_page_in_the_middle_of_a_change_for_ever_still_gets_its_container_the_card() -> None:
    with two() as node:
        half = node.root / ".half"
        subprocess.run([SLICE, "create", half, "--card", f"{A}=1GiB,cores=10"], check=True, stdout=subprocess.DEVNULL)
        with (half / "limits").open("r+b") as page:
            page.seek(16)  # the sequence
            page.write(struct.pack("<I", 7))
        half.rename(node.root / "half")
        until = time.monotonic() + 2
        while not (node.root / "half/arbiter.sock").exists() and time.monotonic() < until:
            time.sleep(0.01)
        half_written = node.client("half")
        half_written.granted(0.5)
        until = time.monotonic() + 3
        while "half: limits" not in node.events() and time.monotonic() < until:
            time.sleep(0.1)
        assert "half: limits" in node.events()


def test_status_is_a_table_and_says_what_is_wrong_when_no_arbiter_answers() -> None:
    with two() as node:
        one = node.client("one")
        one.granted()
        link = node.root / "../arbiter.sock"
        link.symlink_to("control")
        table = subprocess.run([ARBITER, "status", node.root], capture_output=True, text=True, timeout=5)
        rows = [r.split() for r in table.stdout.splitlines()]
        assert [A] in rows and any(r[:2] == ["one", "holds"] for r in rows), table.stdout
        lost = subprocess.run([ARBITER, "status", "/proc/self"], capture_output=True, text=True, timeout=5)
        assert lost.returncode == 1 and "no arbiter answers" in lost.stderr
        assert subprocess.run([ARBITER, "--help"], capture_output=True, text=True, timeout=5).stdout.startswith("usage")


def test_a_slice_that_another_arbiter_serves_is_refused_by_name_and_one_that_a_dead_one_served_is_not() -> None:
    with two() as node:
        client = node.client("one")
        lease = client.granted()
        second = subprocess.run([ARBITER, node.root / "one"], capture_output=True, text=True, timeout=5)
        assert second.returncode == 1 and f"another arbiter serves {node.root}/one;" in second.stderr, second
        client.say(DONE, lease=lease)
        client.granted()
    with tempfile.TemporaryDirectory() as place:
        subprocess.run([SLICE, "create", place, "--card", f"{A}=1GiB,cores=50"], check=True)
        for _ in range(2):
            process = subprocess.Popen([ARBITER, place], stderr=subprocess.DEVNULL)
            try:
                until = time.monotonic() + 5
                while time.monotonic() < until and not (Path(place) / "arbiter.sock").exists():
                    time.sleep(0.01)
                time.sleep(0.1)
                assert process.poll() is None
                Client(Path(place)).granted()
            finally:
                process.kill()
                process.wait(5)


def test_an_idle_arbiter_wakes_up_for_nothing() -> None:
    with two() as node:
        client = node.client("one")
        client.say(DONE, lease=client.granted())
        path = Path(f"/proc/{node.process.pid}/status")
        time.sleep(0.2)

        def switches() -> int:
            return int(next(w for w in path.read_text().splitlines() if w.startswith("voluntary_ctxt")).split()[1])

        before = switches()
        time.sleep(1)
        assert switches() - before <= 2


def test_its_memory_does_not_grow_with_how_often_it_is_asked() -> None:
    if any(init in ARBITER.read_bytes() for init in (b"__asan_init", b"__tsan_init")):
        raise suite.Skip("a sanitizer's malloc keeps what is freed")
    with two() as node:
        away = node.root.parent / "away"
        away.mkdir()
        for i in range(80):
            subprocess.run(["cp", "-r", node.root / "one", away / f"s{i:02}"], check=True)
        everybody, random, grown = sorted(d.name for d in away.iterdir()), Random(1), []
        for _ in range(6):
            for _ in range(40):
                shown = random.sample(everybody, random.randint(30, 80))
                for name in everybody:
                    place, other = (node.root, away) if name in shown else (away, node.root)
                    if (other / name).exists():
                        (other / name).rename(place / name)
                asked(node)
            slices = sum(1 for _ in node.root.iterdir())
            grown.append(anonymous(node.process.pid) - 4 * slices)  # a link for each (alive.c)
        assert grown[-1] - grown[2] <= 40, f"KiB, every 40 times: {grown}"


def asked(node: Node) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as control:
        control.settimeout(5)
        control.connect(str(node.root / "../control"))
        while control.recv(1 << 16):
            pass


def anonymous(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(w for w in lines if w.startswith("RssAnon")).split()[1])


if __name__ == "__main__":
    sys.exit(suite.run(globals()))
