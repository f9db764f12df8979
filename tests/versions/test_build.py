"""The go.mod with which an old kube-scheduler is built."""

from pathlib import Path

import pytest

from fractile.errors import SetupError
from tests.versions import build
from tests.versions.build import module_file

UPSTREAM = """module k8s.io/kubernetes

go 1.15

require (
\tk8s.io/api v0.0.0
\tgithub.com/modern-go/reflect2 v1.0.1
)

replace (
\tgithub.com/a/b => github.com/a/b v1.2.3
\tgithub.com/c/d v1.0.0 => github.com/e/f v0.9.0
\tgithub.com/modern-go/reflect2 => github.com/modern-go/reflect2 v1.0.1
\tk8s.io/api => ./staging/src/k8s.io/api
)

replace k8s.io/single => ./staging/src/k8s.io/single
"""


def test_staging_modules_are_those_of_the_release_and_the_rest_is_pinned_as_upstream_pins_it() -> None:
    lines = [line.strip() for line in module_file("v1.20.15", UPSTREAM).splitlines()]

    assert {"go 1.15", "require k8s.io/kubernetes v1.20.15"} <= set(lines)
    assert "k8s.io/api => k8s.io/api v0.20.15" in lines
    assert "k8s.io/single => k8s.io/single v0.20.15" in lines
    assert "github.com/a/b => github.com/a/b v1.2.3" in lines
    assert "github.com/c/d => github.com/e/f v0.9.0" in lines


def test_what_newer_compilers_do_not_take_is_replaced_by_what_they_take() -> None:
    text = module_file("v1.20.15", UPSTREAM)

    assert "github.com/modern-go/reflect2 => github.com/modern-go/reflect2 v1.0.2" in text
    assert "reflect2 v1.0.1" not in text


GO = """#!/bin/sh
if [ "$1" = mod ]; then echo '{"GoMod": "'"$UPSTREAM"'"}'; exit 0; fi
[ -z "$FAIL" ] || { echo "no such module" >&2; exit 1; }
grep -q "require k8s.io/kubernetes v1.20.15" go.mod || exit 1
echo "$GOFLAGS" >>"$UPSTREAM.calls"
while [ "$1" != -o ]; do shift; done
echo program >"$2"; chmod +x "$2"
"""


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    go = tmp_path / "bin" / "go"
    go.parent.mkdir()
    go.write_text(GO)
    go.chmod(0o755)
    (tmp_path / "upstream.mod").write_text(UPSTREAM)
    path = f"{go.parent}:/usr/bin:/bin"
    return {"PATH": path, "XDG_CACHE_HOME": str(tmp_path / "cache"), "UPSTREAM": str(tmp_path / "upstream.mod")}


def test_a_program_is_built_once_and_what_a_killed_build_left_is_taken_away(env: dict[str, str]) -> None:
    assert build.find("1.20", env) is None
    first = build.build("1.20", env)
    (first.parent / ".build-left").mkdir()

    assert build.build("1.20", env) == first == build.find("1.20", env)

    assert sorted(file.name for file in first.parent.iterdir()) == [".lock", "kube-scheduler"]
    assert Path(f"{env['UPSTREAM']}.calls").read_text() == "-p=1\n"


def test_a_build_that_fails_says_gos_last_words_and_leaves_no_program(env: dict[str, str]) -> None:
    with pytest.raises(SetupError, match="no such module"):
        build.build("1.20", {**env, "FAIL": "1"})

    assert build.find("1.20", env) is None
