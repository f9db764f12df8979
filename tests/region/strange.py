"""What may lie in the place of a file of ours."""

import os
from pathlib import Path


def folder(path: Path) -> None:
    path.mkdir()


def full(path: Path) -> None:
    path.mkdir()
    (path / "note").write_text("somebody's")


def link(path: Path) -> None:
    target = path.with_name("target")
    target.write_text("somebody's")
    path.symlink_to(target)


def pipe(path: Path) -> None:
    os.mkfifo(path)


def empty(path: Path) -> None:
    path.touch()


def garbage(path: Path) -> None:
    path.write_bytes(b"\xff" * 4096)
