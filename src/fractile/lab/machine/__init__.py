"""What a local cluster needs from its machine: programs, packages, mounts, networks, control groups, images."""
