"""The go.mod with which an old kube-scheduler is built."""

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
