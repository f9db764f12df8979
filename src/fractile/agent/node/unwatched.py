"""Why inotify cannot watch a path, naming the limit to raise: the kernel's own messages name files or the disk."""

import errno


def reason(error: OSError) -> str:
    if error.errno == errno.EMFILE:  # inotify_init(2) returns it in both cases
        return (
            "no inotify instance is free for this user (raise fs.inotify.max_user_instances by sysctl), "
            "or no file descriptor for this process"
        )
    if error.errno == errno.ENOSPC:
        return "no inotify watch is free for this user (raise fs.inotify.max_user_watches by sysctl)"
    return str(error)
