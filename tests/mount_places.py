"""Paths in a container, for whoever judges mounts: the API server's policy and the agent."""

OURS = (
    "/etc/fractile",
    "/etc/fractile/limits",
    "/etc/fractile/shared/region",
    "/etc/ld.so.preload",
    "/etc/vcuda",
    "/etc/vcuda/vcuda.config",
    "/usr/local/lib/fractile",
    "/usr/local/lib/fractile/libfractile.so",
    "/usr/local/lib",
    "/usr/local",
    "/usr",
    "/etc",
    "/",
)
OTHER_SPELLINGS = (
    "etc/fractile",
    "//etc//fractile//",
    "/./etc/./ld.so.preload",
    "/etc/",
    ".",
    "//",
    "/data/../etc/fractile",
    "/..",
    "../etc",
)
ELSEWHERE = (
    "/data",
    "/etc/fractile-other",
    "/etc/ld.so.cache",
    "/usr/local/lib64",
    "/usr/local/library",
    "/...",
    "/a..b",
)
