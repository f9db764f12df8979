"""Files of /proc as the kernel writes them: only a newline ends a line.

Tenants choose names in them: of a program, of a file that it maps, of a path in its pod at which a volume is mounted.
The kernel escapes newlines in names, but neither carriage returns nor the other characters at which Python ends lines
(form feed, U+2028), so a name could forge a line.
"""

from pathlib import Path


def read(path: Path) -> str:
    """OSError: it cannot be read."""
    return decode(path.read_bytes())


def decode(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def lines(text: str) -> list[str]:
    return text.removesuffix("\n").split("\n") if text else []
