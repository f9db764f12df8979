"""Asks a listener for /healthz every few milliseconds, as a process of its own, and prints the longest wait at its end:
``python -m tests.perf.beat PORT`` until its standard input is closed."""

import select
import socket
import ssl
import sys
import time

EVERY = 0.005  # seconds
_REQUEST = b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n"


def main(port: int) -> None:
    trust = ssl.create_default_context()
    trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE
    longest = 0.0
    connection: ssl.SSLSocket | None = None
    while not select.select([sys.stdin], [], [], EVERY)[0]:
        try:
            if connection is None:
                connection = trust.wrap_socket(socket.create_connection(("127.0.0.1", port), 10))
            began = time.monotonic()
            connection.sendall(_REQUEST)
            if not connection.recv(4096):
                connection = None  # a stranger's connection may be dropped
                continue
            longest = max(longest, time.monotonic() - began)
        except OSError:
            connection = None
    print(longest)


main(int(sys.argv[1]))
