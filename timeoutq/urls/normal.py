"""URLs in one form: one page has one id, in whatever spelling a link names the page. Pure.

`sitemaps.py`, `timeoutq put --urls` and the demo's crawler call this module, and so may handlers. URLs are read as
browsers read them (the URL standard of WHATWG), and then brought into one form where spellings of one URL differ.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import NoReturn
from urllib.parse import unquote_to_bytes

from timeoutq.words.arguments import MAX_ID, shown
from timeoutq.words.errors import BadUrl, InvalidInput, MissingExtra

try:
    import idna
    from w3lib.url import safe_url_string
except ImportError as error:
    raise MissingExtra(
        f"URLs are read with the package {error.name}, which is missing: pip install 'timeoutq[crawl]'"
    ) from error

LONGEST_URL = 64 * 1024  # what is read of a URL at most, characters: no work is done on what is longer

MAX_LABEL = 63
MAX_NAME = 253

_PORTS = {"http": "80", "https": "443"}
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_ENDS = "".join(map(chr, range(33)))  # what is cut off at both ends of a URL: control characters and the blank
_INSIDE = str.maketrans("", "", "\t\n\r")  # what is left out inside a URL: tabs and line ends
_LABEL = re.compile(rf"[a-z0-9_-]{{1,{MAX_LABEL}}}")
_ESCAPE = re.compile(r"%([0-9A-Fa-f]{2})?")
_UNRESERVED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_NUMBER = re.compile(r"0x[0-9a-f]*|[0-9]+")  # A number in a host's name, in hex, octal or decimal

_NORMAL = re.compile(
    r"https?://(?![^/]*xn--)(?=[^/]{4,253}/)(?:[a-z0-9_-]{1,63}\.)+[a-z]{2,63}"
    r"(?:/(?!\.\.?(?:[/?]|\Z))[A-Za-z0-9._~!$()*+,;=:@&-]*)+(?:\?[A-Za-z0-9._~-]+(?:=[A-Za-z0-9._~-]*)?)?"
)
"""Most URLs, which are in their one form already; whatever matches is given back as it is."""


@dataclass(frozen=True, slots=True)
class _Parts:
    """A URL of http or https, taken apart; `authority` may hold a user, `path` and `query` are as they were given."""

    scheme: str
    authority: str
    path: str
    query: str


def normalise(url: str, base: str | None = None) -> str:
    """Give the one form of a URL on http or https.

    A relative URL is joined to `base`, the URL of the page that holds the link. What the URL standard reads as one URL
    gets one form: blanks at the ends, tabs and line ends inside, `\\` for `/`, `.` and `..` in the path, the host in
    any case, in Unicode or with escapes, an IPv4 address in hex or octal, an IPv6 address written at length, the usual
    port. So does what names one page nearly everywhere: escapes of letters, escapes in lower case, the order of
    different query arguments (equal ones keep their order), `+` and `%20` in the query, empty query arguments, a dot
    at the end of the host. The user's name, the password and the fragment are dropped. `normalise` does not change what
    it has given.

    Raises `BadUrl`, whose `reason` says what is wrong: another scheme, no scheme and no `base`, a host or a port that
    cannot exist, more than 1,024 bytes in the end. Raises `InvalidInput` for what is no `str`.
    """
    if not isinstance(url, str):
        raise InvalidInput(f"a URL is str, not {type(url).__name__}: {shown(url)}")
    if len(url) <= MAX_ID and _NORMAL.fullmatch(url):
        return str.__str__(url)  # a plain str, also of a subclass
    try:
        return _formed(_read(url, None if base is None else _base(base)))
    except _Refused as refused:
        raise BadUrl(f"{shown(url)} is no URL of a page: {refused}", url=url, reason=str(refused)) from None


def as_written(url: str, base: str | None = None) -> str:
    """Give the address under which a URL is asked for: its user and password, path and query as they are written.

    `base` is an address that this function gave; a URL of its site has its user and password. Call this function with
    what `normalise` takes.
    """
    beside = None if base is None else _read(base, None)
    parts = _read(url, beside)
    site = _site(parts)
    user, at, _ = parts.authority.rpartition("@")
    if not at and beside is not None and (beside.scheme, _site(beside)) == (parts.scheme, site):
        user, at, _ = beside.authority.rpartition("@")
    quoted = safe_url_string(f"{parts.scheme}://{site}{parts.path or '/'}?{parts.query}&")
    path, _, query = quoted.removesuffix("&").partition("?")
    address = f"{path}?{query}" if query else path
    return address.replace("://", f"://{user}{at}", 1)


class _Refused(Exception):
    """Why a URL has no form."""


def _refuse(reason: str) -> NoReturn:
    raise _Refused(reason)


@lru_cache(maxsize=64)
def _base(base: str) -> _Parts:
    try:
        return _read(normalise(base), None)
    except BadUrl as bad:
        _refuse(f"the base {shown(base)} is no URL of a page: {bad.reason}")


def _read(url: str, base: _Parts | None) -> _Parts:
    """Take a URL apart as browsers do, and join it to its base."""
    if len(url) > LONGEST_URL:
        _refuse(f"it has {len(url):,} characters")
    try:
        url.encode()
    except UnicodeEncodeError:
        _refuse("it holds bytes that are not UTF-8")
    text = url.strip(_ENDS).translate(_INSIDE)
    found = _SCHEME.match(text)
    scheme = found[1].lower() if found else ""
    if scheme and scheme not in _PORTS:
        if "." in scheme or scheme == "localhost":  # it is a host, and the colon stands before its port
            _refuse(f"it has no scheme: write https://{text:.60} or http://…")
        _refuse(f"its scheme is {scheme:.20}, not http or https")
    rest, _, _ = text[found.end() if found else 0 :].partition("#")
    target, mark, query = rest.partition("?")
    target = target.replace("\\", "/")
    if not scheme and base is None:
        _refuse(_without_scheme(text, target))
    if target.startswith("//") or base is None or scheme not in ("", base.scheme):
        authority, slash, path = target.lstrip("/").partition("/")
        return _Parts(scheme or (base.scheme if base else ""), authority, slash + path, query)
    if target.startswith("/"):
        path = target
    elif target:
        path = base.path.rpartition("/")[0] + "/" + target
    else:
        path, query = base.path, query if mark else base.query
    return _Parts(base.scheme, base.authority, path, query)


def _without_scheme(text: str, target: str) -> str:
    """Say what is wrong with a URL that has no scheme, and how it is written if that can be told."""
    if not text:
        return "it is empty"
    with_host = target.removeprefix("//")
    if with_host[:1] in ("", "/", "."):
        return "it has no scheme and no host: write the whole URL, with https:// or http:// and the host"
    if any(character.isspace() for character in with_host.partition("/")[0]):
        return "it has no scheme, and a blank inside: write one URL, beginning with https:// or http://"
    return f"it has no scheme: write https://{text.lstrip('/'):.60} or http://…"


def _formed(parts: _Parts) -> str:
    """Give the one form of a URL that was taken apart."""
    site = f"{parts.scheme}://{_site(parts)}"
    # what may not stand in a URL becomes escapes of its UTF-8; the & keeps a blank at the end, which stood before a #
    quoted = safe_url_string(f"{site}{parts.path or '/'}?{parts.query}&")
    path, _, query = quoted[len(site) :].partition("?")
    form = site + _without_dots(_ESCAPE.sub(_escape, path))
    arguments = [_ESCAPE.sub(_escape, one).replace("%20", "+") for one in query.split("&") if one]
    if arguments:
        arguments.sort(key=lambda one: one.partition("=")[0])
        form = f"{form}?{'&'.join(arguments)}"
    if len(form) > MAX_ID:
        _refuse(f"it has {len(form):,} bytes; the limit of an id is {MAX_ID:,}")
    return form


def _escape(found: re.Match[str]) -> str:
    if found[1] is None:
        return "%25"  # a percent sign that escapes nothing
    character = chr(int(found[1], 16))
    return character if character in _UNRESERVED else found[0].upper()


def _without_dots(path: str) -> str:
    """Resolve `.` and `..` in a path that begins with a slash."""
    kept: list[str] = []
    *folders, last = path[1:].split("/")
    for segment in folders:
        if segment == "..":
            del kept[-1:]
        elif segment != ".":
            kept.append(segment)
    if last == "..":
        del kept[-1:]
    kept.append("" if last in (".", "..") else last)
    return "/" + "/".join(kept)


# ---- the host


def _site(parts: _Parts) -> str:
    """Give the host in its one form, with the port unless it is the usual one of the scheme."""
    given = parts.authority.rpartition("@")[2]
    if given.startswith("["):
        host, bracket, port = given.partition("]")
        if not bracket or port[:1] not in ("", ":"):
            _refuse("its host begins as an IPv6 address and does not end as one")
        name, port = _ipv6(host[1:]), port[1:]
    else:
        host, _, port = given.partition(":")
        name = _host(host)
    if not port:
        return name
    if not (port.isascii() and port.isdigit()):
        _refuse(f"its port {port!r:.20} is no number")
    port = port.lstrip("0") or "0"
    if len(port) > 5 or int(port) > 65_535:
        _refuse(f"its port {port:.20} is beyond 65535")
    return name if port == _PORTS[parts.scheme] else f"{name}:{port}"


@lru_cache(maxsize=4096)
def _host(given: str) -> str:
    if not given:
        _refuse("it names no host")
    if len(given) > 3 * 4 * MAX_NAME:  # the longest name that can exist, each byte of it an escape
        _refuse(f"its host has {len(given):,} characters")
    try:
        name = unquote_to_bytes(given).decode()
    except UnicodeDecodeError:
        _refuse("its host has escapes that are not UTF-8")
    if name.isascii():
        name = name.lower()
    else:
        try:
            # as browsers do: full-width letters and dots, capitals, what is drawn as nothing
            name = idna.uts46_remap(name, std3_rules=False, transitional=False)
        except idna.IDNAError as error:
            _refuse(f"its host cannot exist: {error}")
    name = ".".join(map(_label, name.removesuffix(".").split(".")))
    if len(name) > MAX_NAME:
        _refuse(f"its host has {len(name):,} characters; the limit of DNS is {MAX_NAME}")
    return _ipv4(name) or name


def _label(label: str) -> str:
    """Give a label of a host's name in ASCII."""
    if not label.isascii():
        label = _punycode(label)
    elif label.startswith("xn--") and not _is_punycode(label):
        _refuse(f"its host cannot exist: {label:.70} is no punycode of a name")
    if not label:
        _refuse("its host has an empty label: a dot at the front, or two in a row")
    if len(label) > MAX_LABEL:
        _refuse(f"its host has a label of {len(label):,} characters; the limit of DNS is {MAX_LABEL}")
    if not _LABEL.fullmatch(label):
        odd = next(character for character in label if not _LABEL.fullmatch(character))
        _refuse(f"its host holds {odd!r}")
    return label


def _punycode(label: str) -> str:
    try:
        return idna.alabel(label).decode("ascii")
    except idna.InvalidCodepoint:
        # emoji and other symbols: there are such names, and browsers take them (UTS 46), though IDNA 2008 does not
        return "xn--" + label.encode("punycode").decode("ascii")
    except idna.IDNAError as error:
        _refuse(f"its host cannot exist: {error}")


def _is_punycode(label: str) -> bool:
    try:
        name = label[4:].encode("ascii").decode("punycode")
        mapped = idna.uts46_remap(name, std3_rules=False, transitional=False)
        return not name.isascii() and mapped == name and name.encode("punycode").decode("ascii") == label[4:]
    except (UnicodeError, idna.IDNAError, ValueError, OverflowError):
        return False


def _ipv4(name: str) -> str | None:
    """Give an IPv4 address, whose numbers may be hex or octal, and the last of which may stand for several.

    None for what does not end in a number; such a name is a name.
    """
    words = name.split(".")
    if not _NUMBER.fullmatch(words[-1]):
        return None
    numbers = [_number(word) for word in words]
    *first, last = (number if number is not None else -1 for number in numbers)
    if len(words) > 4 or not all(0 <= number <= 255 for number in first) or not 0 <= last < 256 ** (4 - len(first)):
        _refuse(f"its host {name:.60} ends in a number and is no IPv4 address")
    return str(ipaddress.IPv4Address(last + sum(number << (24 - 8 * i) for i, number in enumerate(first))))


def _number(word: str) -> int | None:
    if not _NUMBER.fullmatch(word) or len(word) > MAX_LABEL:
        return None
    if word.startswith("0x"):
        return int(word[2:] or "0", 16)
    if not word.startswith("0"):
        return int(word)
    return None if set(word) & {"8", "9"} else int(word, 8)


def _ipv6(given: str) -> str:
    try:
        # a zone (%eth0) is of this machine only, so no page of others has one
        address = None if "%" in given else ipaddress.IPv6Address(given)
    except ValueError:
        address = None
    if address is None:
        _refuse(f"its host [{given:.60}] is no IPv6 address")
    if address.ipv4_mapped is not None:  # versions of Python write these in different ways
        return f"[::ffff:{int(address) >> 16 & 0xFFFF:x}:{int(address) & 0xFFFF:x}]"
    return f"[{address.compressed}]"
