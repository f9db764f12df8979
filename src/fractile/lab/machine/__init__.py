"""What a local cluster needs of its machine: programs, packages, mounts, networks, control groups, images."""
