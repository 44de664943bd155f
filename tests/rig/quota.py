"""Holds processes to a part of a core, by the CPU quota of a cgroup: a machine of two cores can be three small ones."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Self

from tests.rig.waiting import wait_until

PERIOD_US = 10_000
"""How often a process gets its part."""


class NoQuota(Exception):
    """This machine lets us hold no process to a part of a core; the message says what is missing."""


def _mounts() -> dict[str, Path]:
    """Say where cgroups are: "cpu" is the controller of version 1, "cgroup2" the tree of version 2."""
    found: dict[str, Path] = {}
    with suppress(OSError):
        for line in Path("/proc/mounts").read_text("utf-8").splitlines():
            _, place, kind, options, *_ = line.split()
            if kind == "cgroup2":
                found["cgroup2"] = Path(place)
            elif kind == "cgroup" and "cpu" in options.split(","):
                found["cpu"] = Path(place)
    return found


def _parent() -> tuple[Path, bool]:
    """Give the folder in which a cgroup can be made, and whether it is of version 2."""
    mounts = _mounts()
    if os.geteuid() != 0:
        raise NoQuota("only root may make cgroups: run this as root")
    if "cpu" in mounts:
        return mounts["cpu"], False
    if "cgroup2" not in mounts:
        raise NoQuota("this machine has no cgroups: neither the controller cpu of version 1 nor version 2 is mounted")
    top = mounts["cgroup2"]
    if "cpu" not in (top / "cgroup.controllers").read_text().split():
        raise NoQuota(f"{top} has no controller cpu: {top / 'cgroup.controllers'} does not name it")
    try:
        (top / "cgroup.subtree_control").write_text("+cpu")
    except OSError as error:
        raise NoQuota(
            f"the controller cpu cannot be switched on in {top / 'cgroup.subtree_control'}: {error}"
        ) from None
    return top, True


class Quota:
    """A part of a core for the processes that are held; `with Quota(20) as quota: quota.hold(pid)`."""

    def __init__(self, percent: float) -> None:
        """Make the cgroup. Raises `NoQuota` where this does not work."""
        parent, second = _parent()
        self.folder = parent / f"timeoutq-{secrets.token_hex(6)}"
        limit = round(PERIOD_US * percent / 100)
        words = {"cpu.max": f"{limit} {PERIOD_US}"}
        if not second:
            words = {"cpu.cfs_period_us": str(PERIOD_US), "cpu.cfs_quota_us": str(limit)}
        try:
            self.folder.mkdir()
        except OSError as error:
            raise NoQuota(f"no cgroup can be made in {parent}: {error}") from None
        try:
            for name, value in words.items():
                (self.folder / name).write_text(value)
        except OSError as error:
            self.folder.rmdir()
            raise NoQuota(f"the kernel refuses a CPU quota, {self.folder / next(iter(words))}: {error}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def hold(self, pid: int) -> None:
        """Hold a process, with all its threads, to the quota; together with what else is held by this quota."""
        (self.folder / "cgroup.procs").write_text(str(pid))

    def close(self) -> None:
        """Let go of what is held and lives still, and remove the cgroup."""
        for pid in (self.folder / "cgroup.procs").read_text().split():
            with suppress(OSError):  # it has ended meanwhile
                (self.folder.parent / "cgroup.procs").write_text(pid)
        wait_until(self._is_gone)

    def _is_gone(self) -> bool:
        with suppress(OSError):  # a process that ends is in its cgroup until it is buried
            self.folder.rmdir()
        return not self.folder.exists()


def spent(pid: int) -> float:
    """Say how much CPU time a process has had, with all its threads, seconds."""
    words = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(") ")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
