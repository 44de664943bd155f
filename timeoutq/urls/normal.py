"""URLs in one form: one page has one id, in whatever spelling a link names the page. Pure.

URLs are read as browsers read them (the URL standard of WHATWG), and then brought into one form where spellings of one
URL differ.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from functools import lru_cache
from urllib.parse import SplitResult, unquote_to_bytes

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
_NUMBER = re.compile(r"0x[0-9a-f]*|[0-9]+")  # a number in a host's name, in hex, octal or decimal
_BARE_HEX = re.compile(r"(?<![^.])0x(?![^.])")  # which browsers read as 0, and inet_aton does not

_NORMAL = re.compile(
    r"https?://(?![^/]*xn--)(?=[^/]{4,253}/)(?:[a-z0-9_-]{1,63}\.)+[a-z]{2,63}"
    r"(?:/(?!\.\.?(?:[/?]|\Z))[A-Za-z0-9._~!$()*+,;=:@&-]*)+(?:\?[A-Za-z0-9._~-]+(?:=[A-Za-z0-9._~-]*)?)?"
)
"""Most URLs, which are in their one form already; whatever matches is given back as it is."""


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
    """Give the address under which a URL that `normalise` takes is asked for: user, path and query as they are written.

    `base` is an address that this function gave; a URL of its site has its user and password.
    """
    beside = None if base is None else _read(base, None)
    parts = _read(url, beside)
    site = _site(parts)
    user, at, _ = parts.netloc.rpartition("@")
    if not at and beside is not None and (beside.scheme, _site(beside)) == (parts.scheme, site):
        user, at, _ = beside.netloc.rpartition("@")
    path, query = _quoted(site, parts)
    return f"{parts.scheme}://{user}{at}{site}{path}" + (f"?{query}" if query else "")


class _Refused(Exception):
    """Why a URL has no form."""


@lru_cache(maxsize=64)
def _base(base: str) -> SplitResult:
    try:
        return _read(normalise(base), None)
    except BadUrl as bad:
        raise _Refused(f"the base {shown(base)} is no URL of a page: {bad.reason}") from None


def _read(url: str, base: SplitResult | None) -> SplitResult:
    """Take a URL apart as browsers do, and join it to its base; path and query stay as they were given."""
    if len(url) > LONGEST_URL:
        raise _Refused(f"it has {len(url):,} characters")
    try:
        url.encode()
    except UnicodeEncodeError:
        raise _Refused("it holds bytes that are not UTF-8") from None
    text = url.strip(_ENDS).translate(_INSIDE)
    found = _SCHEME.match(text)
    scheme = found[1].lower() if found else ""
    if scheme and scheme not in _PORTS:
        if "." in scheme or scheme == "localhost":  # it is a host, and the colon stands before its port
            raise _Refused(f"it has no scheme: write https://{text:.60} or http://…")
        raise _Refused(f"its scheme is {scheme:.20}, not http or https")
    rest, _, _ = text[found.end() if found else 0 :].partition("#")
    target, mark, query = rest.partition("?")
    target = target.replace("\\", "/")
    if not scheme and base is None:
        raise _Refused(_without_scheme(text, target))
    if target.startswith("//") or base is None or scheme not in ("", base.scheme):
        authority, slash, path = target.lstrip("/").partition("/")
        return SplitResult(scheme or (base.scheme if base else ""), authority, slash + path, query, "")
    if not target:
        return base if not mark else base._replace(query=query)
    folder = "" if target.startswith("/") else base.path.rpartition("/")[0] + "/"
    return base._replace(path=folder + target, query=query)


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


def _quoted(site: str, parts: SplitResult) -> tuple[str, str]:
    """Give the path and the query with escapes for what may not stand in a URL."""
    # the & keeps a blank at the end of the query, which stood before a #
    quoted = safe_url_string(f"{parts.scheme}://{site}{parts.path or '/'}?{parts.query}&")
    path, _, query = quoted.removeprefix(f"{parts.scheme}://{site}").removesuffix("&").partition("?")
    return path, query


def _formed(parts: SplitResult) -> str:
    """Give the one form of a URL that was taken apart."""
    site = _site(parts)
    path, query = _quoted(site, parts)
    form = f"{parts.scheme}://{site}" + _without_dots(_ESCAPE.sub(_escape, path))
    arguments = [_ESCAPE.sub(_escape, one).replace("%20", "+") for one in query.split("&") if one]
    if arguments:
        arguments.sort(key=lambda one: one.partition("=")[0])
        form = f"{form}?{'&'.join(arguments)}"
    if len(form) > MAX_ID:
        raise _Refused(f"it has {len(form):,} bytes; the limit of an id is {MAX_ID:,}")
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
    if last in (".", ".."):
        folders, last = [*folders, last], ""
    for segment in folders:
        if segment == "..":
            del kept[-1:]
        elif segment != ".":
            kept.append(segment)
    return "/" + "/".join([*kept, last])


# ---- the host


def _site(parts: SplitResult) -> str:
    """Give the host in its one form, with the port unless it is the usual one of the scheme."""
    given = parts.netloc.rpartition("@")[2]
    if given.startswith("["):
        host, bracket, port = given.partition("]")
        if not bracket or port[:1] not in ("", ":"):
            raise _Refused("its host begins as an IPv6 address and does not end as one")
        name, port = _ipv6(host[1:]), port[1:]
    else:
        host, _, port = given.partition(":")
        name = _host(host)
    if not port:
        return name
    if not (port.isascii() and port.isdigit()):
        raise _Refused(f"its port {port!r:.20} is no number")
    port = port.lstrip("0") or "0"
    if len(port) > 5 or int(port) > 65_535:
        raise _Refused(f"its port {port:.20} is beyond 65535")
    return name if port == _PORTS[parts.scheme] else f"{name}:{port}"


@lru_cache(maxsize=4096)
def _host(given: str) -> str:
    if not given:
        raise _Refused("it names no host")
    if len(given) > 3 * 4 * MAX_NAME:  # the longest name that can exist, each byte of it an escape
        raise _Refused(f"its host has {len(given):,} characters")
    try:
        name = unquote_to_bytes(given).decode()
    except UnicodeDecodeError:
        raise _Refused("its host has escapes that are not UTF-8") from None
    try:
        # as browsers do: full-width letters and dots, capitals, what is drawn as nothing
        plain = name.lower() if name.isascii() else idna.uts46_remap(name, std3_rules=False, transitional=False)
        name = ".".join(map(_label, plain.removesuffix(".").split(".")))
    except idna.IDNAError as error:
        raise _Refused(f"its host cannot exist: {error}") from None
    if len(name) > MAX_NAME:
        raise _Refused(f"its host has {len(name):,} characters; the limit of DNS is {MAX_NAME}")
    return _ipv4(name) or name


def _label(label: str) -> str:
    """Give a label of a host's name in ASCII."""
    if not label.isascii():
        try:
            label = idna.alabel(label).decode("ascii")
        except idna.InvalidCodepoint:
            # emoji and other symbols: there are such names, and browsers take them (UTS 46), though IDNA 2008 does not
            label = "xn--" + label.encode("punycode").decode("ascii")
    elif label.startswith("xn--") and not _is_punycode(label):
        raise _Refused(f"its host cannot exist: {label:.70} is no punycode of a name")
    if not label:
        raise _Refused("its host has an empty label: a dot at the front, or two in a row")
    if len(label) > MAX_LABEL:
        raise _Refused(f"its host has a label of {len(label):,} characters; the limit of DNS is {MAX_LABEL}")
    if not _LABEL.fullmatch(label):
        odd = next(character for character in label if not _LABEL.fullmatch(character))
        raise _Refused(f"its host holds {odd!r}")
    return label


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
    if not _NUMBER.fullmatch(name.rpartition(".")[2]):
        return None
    try:
        return socket.inet_ntoa(socket.inet_aton(_BARE_HEX.sub("0", name)))
    except OSError:
        raise _Refused(f"its host {name:.60} ends in a number and is no IPv4 address") from None


def _ipv6(given: str) -> str:
    try:
        # a zone (%eth0) is of this machine only, so no page of others has one
        address = None if "%" in given else ipaddress.IPv6Address(given)
    except ValueError:
        address = None
    if address is None:
        raise _Refused(f"its host [{given:.60}] is no IPv6 address")
    if address.ipv4_mapped is not None:  # versions of Python write these in different ways
        return f"[::ffff:{int(address) >> 16 & 0xFFFF:x}:{int(address) & 0xFFFF:x}]"
    return f"[{address.compressed}]"
