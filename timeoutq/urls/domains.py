"""The host of a URL, and its registrable domain: names for the groups of a polite queue. Pure.

`timeoutq put --group-by` calls this module. The public suffix list is that of the installed package publicsuffixlist,
so no network is used, and another version of the package may know other suffixes.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from timeoutq.errors import MissingExtra
from timeoutq.urls.normal import normalise

if TYPE_CHECKING:
    from publicsuffixlist import PublicSuffixList


def host(url: str) -> str:
    """Give the host of a URL as a polite queue names it: `a.example`, `a.example:8080`, `[::1]`.

    It is in lower case and ASCII, with the port unless that is the usual one. Raises `BadUrl` as `normalise` does.
    """
    return normalise(url).split("/", 3)[2]


def domain(url: str) -> str:
    """Give the registrable domain of a URL: `example.co.uk` for `https://www.example.co.uk:8443/`.

    It is what one owner has registered by the public suffix list, the suffixes of companies included: `me.github.io`
    is a domain, like `example.com`. It has no port. An IP address, a public suffix itself and a name without dots are
    given as they are. Raises `BadUrl` as `normalise` does, and `MissingExtra` without the package publicsuffixlist.
    """
    return _domain(host(url))


@lru_cache(maxsize=4096)
def _domain(host: str) -> str:
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    name = host.partition(":")[0]
    if name[-1].isdigit() and name.replace(".", "").isdigit():
        return name
    return _list().privatesuffix(name) or name


@lru_cache(maxsize=1)
def _list() -> PublicSuffixList:
    try:
        from publicsuffixlist import PublicSuffixList
    except ImportError as error:
        raise MissingExtra(
            "domains need the package publicsuffixlist, which is missing: pip install 'timeoutq[crawl]'"
        ) from error
    return PublicSuffixList()
