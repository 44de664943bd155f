"""The host of a URL, and its registrable domain: names for the groups of a polite queue. Pure.

`timeoutq put --group-by` calls this module. The public suffix list is that of the installed package publicsuffixlist,
so no network is used, and another version of the package may know other suffixes: `pinned.py` sees to this.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from timeoutq.urls.normal import normalise
from timeoutq.words.errors import MissingExtra

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
    return domain_by(_list(), url)


def domain_by(suffixes: PublicSuffixList, url: str) -> str:
    """Give the registrable domain of a URL by this public suffix list."""
    name = host(url)
    if name.startswith("["):
        return name.partition("]")[0] + "]"
    name = name.partition(":")[0]
    if name[-1].isdigit() and name.replace(".", "").isdigit():
        return name
    return _private(suffixes, name) or name


@lru_cache(maxsize=4096)
def _private(suffixes: PublicSuffixList, name: str) -> str | None:
    return suffixes.privatesuffix(name)


@lru_cache(maxsize=1)
def rules() -> bytes:
    """Give the public suffix list of the installed package: one rule a line. Raises `MissingExtra` without it."""
    try:
        import publicsuffixlist
    except ImportError as error:
        raise MissingExtra(
            "domains need the package publicsuffixlist, which is missing: pip install 'timeoutq[crawl]'"
        ) from error
    lines = map(bytes.strip, Path(publicsuffixlist.PSLFILE).read_bytes().splitlines())
    return b"\n".join(line for line in lines if line and not line.startswith(b"//"))


@lru_cache(maxsize=8)
def list_of(rules: bytes) -> PublicSuffixList:
    """Read a public suffix list."""
    from publicsuffixlist import PublicSuffixList

    return PublicSuffixList(rules)


def _list() -> PublicSuffixList:
    return list_of(rules())
