"""Why inotify does not watch a place, in words that name what to raise: the kernel's own name files or the disk."""

import errno


def reason(error: OSError) -> str:
    if error.errno == errno.EMFILE:  # inotify_init(2) answers so in both cases
        return (
            "no inotify instance is free for this user (raise fs.inotify.max_user_instances by sysctl), "
            "or no file descriptor for this process"
        )
    if error.errno == errno.ENOSPC:
        return "no inotify watch is free for this user (raise fs.inotify.max_user_watches by sysctl)"
    return str(error)
