"""The driver in a process of its own, which is asked line by line: ``readings``, ``events SECONDS``, ``renew``;
``read`` asks a meter in the driver's session.

pynvml loads the first libnvidia-ml.so.1 it finds, once for each process; so every test that needs one has its own.
"""

import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TypeVar

import msgspec

from fractile.model.health import CardEvent, HealthReading
from fractile.model.properties import shared
from fractile.nvml.meter import CardReading

T = TypeVar("T")


class Asker:
    """The other end."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process

    def readings(self) -> list[HealthReading]:
        return self._ask("readings", list[HealthReading])

    def events(self, seconds: float) -> list[CardEvent]:
        return self._ask(f"events {seconds}", list[CardEvent])

    def read(self) -> list[CardReading]:
        return self._ask("read", list[CardReading])

    def renew(self) -> None:
        self._ask("renew", type(None))

    def say(self, line: str) -> None:
        """Ask without waiting for the answer."""
        self._stream(self._process.stdin).write(f"{line}\n".encode())
        self._stream(self._process.stdin).flush()

    def answer(self, kind: type[T]) -> T:
        return msgspec.json.decode(
            self._stream(self._process.stdout).readline(), type=kind, dec_hook=lambda _, said: shared(said)
        )

    def _ask(self, line: str, kind: type[T]) -> T:
        self.say(line)
        return self.answer(kind)

    @staticmethod
    def _stream(stream: IO[bytes] | None) -> IO[bytes]:
        assert stream is not None
        return stream


@contextmanager
def asker(library: Path, **environ: str) -> Generator[Asker]:
    """A driver on this library."""
    process = subprocess.Popen(
        [sys.executable, __file__],
        env={"LD_LIBRARY_PATH": str(library), **environ},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        yield Asker(process)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(timeout=30) == 0
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()


def main() -> None:
    from fractile.nvml.driver import NvmlDriver
    from fractile.nvml.meter import NvmlMeter

    driver = NvmlDriver()
    meter = NvmlMeter(driver.session)
    for line in sys.stdin:
        word, *rest = line.split()
        answer = getattr(meter if word == "read" else driver, word)(*map(float, rest))
        sys.stdout.buffer.write(msgspec.json.encode(answer, enc_hook=dict) + b"\n")
        sys.stdout.buffer.flush()
    driver.close()


if __name__ == "__main__":
    main()
