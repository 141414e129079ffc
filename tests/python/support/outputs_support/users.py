"""A user without rights, because root may do everything that tests must see refused."""

import os
import pwd


def unprivileged() -> pwd.struct_passwd:
    """Returns the user that Linux systems keep for processes without rights."""
    return pwd.getpwuid(65_534)


def give_up_root() -> None:
    """Makes this process, a forked child, run as that user if it runs as root."""
    if os.getuid() == 0:
        user = unprivileged()
        os.setgroups([])
        os.setgid(user.pw_gid)
        os.setuid(user.pw_uid)
