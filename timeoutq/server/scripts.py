"""The library of functions that a server loads: the files of `lua/`, joined in reading order.

`lua/*.lua` are rooms, which the verbs share; `lua/verbs/*.lua` are the verbs, each a function that clients call.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

PROTOCOL = 5
"""It grows when arguments, replies or their meanings change. Libraries of two numbers live side by side on a server."""

REVISION = 6
"""It grows with every change of the text within a protocol: a newer revision replaces an older one."""

NAME = f"timeoutq{PROTOCOL}"

_ROOMS = """
open sections events wake leases calls settings kinds failures priority lasting batches results by_id by_print ready
hostname hosts rerun cancel find tasks schedules
"""

ROOMS = tuple(_ROOMS.split())
"""The rooms in reading order; the verbs follow."""


@cache
def verbs() -> tuple[str, ...]:
    """Give the names of all verbs, sorted."""
    found = (files("timeoutq") / "lua" / "verbs").iterdir()
    return tuple(sorted(file.name.removesuffix(".lua") for file in found if file.name.endswith(".lua")))


def source(name: str) -> str:
    """Give the text of a room, or of `verbs/NAME`."""
    return (files("timeoutq") / "lua" / f"{name}.lua").read_text("utf-8")


@cache
def library(name: str = NAME, more: str = "") -> str:
    """Give the library, as FUNCTION LOAD takes it; under another name, and with more verbs, for measurements."""
    head = f"#!lua name={name}\nlocal NAME, REVISION, DIGEST = '{name}', {REVISION}, '{digest()}'"
    return "\n".join((head, _body(), more))


@cache
def digest() -> str:
    """Give the SHA-256 of the text."""
    return hashlib.sha256(_body().encode()).hexdigest()


@cache
def _body() -> str:
    names = ", ".join(f"'{name}'" for names in SIZES.values() for name in names.split() if name != "awaited")
    texts = [source(one) for one in [*ROOMS, *(f"verbs/{verb}" for verb in verbs())]]
    return "\n".join([f"local NAMES = {{{names}}} -- what a purge removes at once", *texts])


_READING = "stats inspect why drained describe describe_hosts hosts states schedules batches"

READING = frozenset(_READING.split())
"""The verbs that only read, so a user who may only read can call them."""


def function(verb: str) -> str:
    """Give the name of the function that carries out a verb."""
    return f"{NAME}_{verb}"


class About(NamedTuple):
    """Which library a server has."""

    revision: int
    digest: str

    @property
    def is_older(self) -> bool:
        """Whether it is older than ours, which then replaces it."""
        return self.revision < REVISION

    @property
    def is_another(self) -> bool:
        """Whether it is another text of the same revision: nobody knows which of them is right."""
        return self.revision == REVISION and self.digest != digest()


def about(reply: Any) -> About:
    """Read what the function `about` replies."""
    revision, sha256 = reply
    return About(int(revision), sha256.decode())


SIZES = {
    "SCARD": "todos in_progress done failed waiting",
    "ZCARD": "scheduled leases done_at calls workers hosts places trace_at leftovers ticks done_until kind_of",
    "HLEN": "owners payload attempts crashes errors runtime stats worker_info "
    "traces trace_uses trace_texts releases durations0 durations1 durations slots resting policies groups "
    "host_failures priorities rerun seen awaited schedules ticked functions batches batch_of cancels progress kinds",
    "LLEN": "bell error_log history minutes hours ended",
    "XLEN": "alarm events",
}
"""Which command tells the size of each key, in constant time, and is refused where the key is of a foreign type."""
