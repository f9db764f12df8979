"""Asks a listener for /healthz every few milliseconds, as a separate process:
``python -m tests.perf.measuring.beat PORT PID``.

When its standard input is closed it prints the longest wait, and the most processor time that the main thread of PID
used while one request waited: how long its event loop was away, other work on the machine left out.
"""

import select
import socket
import ssl
import sys
import time
from pathlib import Path

EVERY = 0.005  # seconds
_REQUEST = b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n"


def used(pid: int) -> float:
    """Seconds of the processor that the main thread of a process has had (kernel, sched-stats)."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9


def main(port: int, pid: int) -> None:
    trust = ssl.create_default_context()
    trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE
    longest = most = 0.0
    connection: ssl.SSLSocket | None = None
    while not select.select([sys.stdin], [], [], EVERY)[0]:
        try:
            if connection is None:
                connection = trust.wrap_socket(socket.create_connection(("127.0.0.1", port), 10))
            began, before = time.monotonic(), used(pid)
            connection.sendall(_REQUEST)
            answer = b""
            while not answer.endswith(b"\r\n\r\nok"):
                if not (piece := connection.recv(4096)):
                    raise ConnectionResetError  # a stranger's connection may be dropped
                answer += piece
            longest, most = max(longest, time.monotonic() - began), max(most, used(pid) - before)
        except OSError:
            connection = None
    print(longest, most)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
