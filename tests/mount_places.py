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
_ORDINARY = (
    "/data",
    "/etc/fractile-other",
    "/etc/ld.so.cache",
    "/usr/local/lib64",
    "/usr/local/library",
    "/...",
    "/a..b",
)
# /proc/self/root and its like are "/"; runtimes follow them, as they do /dev/fd, a link to /proc/self/fd.
BY_LINKS_OF_THE_KERNEL = (
    "/proc",
    "/proc/",
    "proc",
    "/proc/self/root",
    "/proc/self/root/etc/ld.so.preload",
    "/proc/1/root/etc/ld.so.preload",
    "/proc/thread-self/root/usr/local/lib/fractile",
    "/proc/self/task/1/root/etc",
    "/proc/self/cwd/etc/fractile",
    "/proc/self/fd/7/etc",
    "//proc//self/root/data",
    "/./proc/./self/root/data",
    "./proc/self/root/data",
    "proc/self/root/data",
    "/proc/sys/kernel",
    "/proc/cpuinfo/x",
    "/proc/mounts",
    "/dev/fd",
    "/dev/fd/7/data",
    "//dev/.//fd/./7",
)
FILES_OF_PROC = tuple(  # where lxcfs shows a container its own numbers; nothing leads out of them
    f"/proc/{name}" for name in ("cpuinfo", "diskstats", "loadavg", "meminfo", "slabinfo", "stat", "swaps", "uptime")
)
ELSEWHERE = (
    *_ORDINARY,
    *FILES_OF_PROC,
    "//proc/./cpuinfo/",
    "/process",
    "/proc2/self/root",
    "/proc.d",
    "/data/proc/self/root",
    "/host/proc",
    "/dev",
    "/dev/shm",
    "/dev/fd0",
    "/dev/termination-log",
    # What images make links of (/lib, /var/run), and /sys, lead to no place of ours.
    "/lib64",
    "/usr/lib",
    "/usr/lib/x86_64-linux-gnu",
    "/run",
    "/var/run",
    "/sys/fs/cgroup",
)
# NVIDIA's container runtime cleans the path of a mount and takes for a card what follows this one, slash or none.
CARDS_BY_A_MOUNT = (
    "/var/run/nvidia-container-devices",
    "/var/run/nvidia-container-devices/all",
    "/var/run/nvidia-container-devices/cdi/nvidia.com/gpu/0",
    "/var/run/nvidia-container-devicesall",
    "/var/run/nvidia-container-devices-backup/all",
    "/run/nvidia-container-devices/all",
    "//var//run//nvidia-container-devices//all",
    "/./var/./run/./nvidia-container-devices/all",
    "var/run/nvidia-container-devices/all",
    "./var/run/nvidia-container-devices/all",
    "/data/../var/run/nvidia-container-devices/all",
    "/var/run/x/../nvidia-container-devices/all",
    "/var/run/nvidia-container-devices/x/../all",
)
NO_CARDS_BY_A_MOUNT = (
    "/data/nvidia-container-devices",
    "/data/nvidia-container-devices-backup",
    "/var/lib/nvidia-container-devices/all",
    "/data/var/run/nvidia-container-devices/all",
    "/var/run/my-nvidia-container-devices",
    "/var/run/nvidia/container-devices",
    "/srv/run/nvidia-container-devices",
    "/var/running/nvidia-container-devices",
    "/data/a..b/nvidia-container-devices",
)
