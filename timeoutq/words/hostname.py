"""The name of the host of a URL, as a polite queue has it: lower case, IDNA. `arguments.host` checks what callers pass.

`lua/hostname.lua` does the same for a host of plain ASCII; any other host the client sends with the task.
"""

from __future__ import annotations

import re

MAX_HOST = 255
MAX_LABEL = 63
MAX_LABELS = 8
MAX_FOREIGN = 96  # the most bytes beyond ASCII in a name

_PLAIN = re.compile(rb"https?://([a-z0-9.-]*[a-z0-9-])[/?#]")
"""URLs that hold their host as a polite queue names it."""
_SCHEME = re.compile(rb"([A-Za-z][A-Za-z0-9+.-]*)://")
_BLANKS = bytes(range(33))
"""Those who fetch a URL cut these bytes at its ends, and take tabs and line ends out of it (WHATWG's URL standard)."""
_LETTERS = (*range(192, 385), *range(416, 422), 431, *range(902, 975), *range(1024, 1328), *range(7680, 7936))
_SMALL = {point: small for point in _LETTERS if len(small := chr(point).lower()) == 1}
"""The small letters of Latin, Greek and Cyrillic; in every version of Python the same, for shards go by hosts."""


def named(data: bytes) -> bytes:
    """Give the host of a URL; of what is no URL, the name of a host or a group. Empty if it names none."""
    bare = data.strip(_BLANKS).translate(None, b"\t\n\r")
    scheme = _SCHEME.match(bare)
    if scheme:
        data = re.split(rb"[/?#\\]", bare[scheme.end() :], maxsplit=1)[0].rpartition(b"@")[2]
    data = data.lower()
    if len(data) > MAX_HOST:
        return data
    data = data.replace("\u3002".encode(), b".")
    if scheme:
        before, colon, port = data.rpartition(b":")
        if colon and port in (b"", {b"http": b"80", b"https": b"443"}.get(scheme[1].lower(), b"")):
            data = before
    data = re.sub(rb"\.+(?=:|\Z)", b"", data)
    if data.isascii():
        return data
    labels = re.split(rb"([.:])", data)
    foreign = sum(byte > 127 for byte in data)
    if foreign > MAX_FOREIGN or sum(not label.isascii() for label in labels) > MAX_LABELS:
        return data
    return b"".join(map(_label, labels))


def _label(label: bytes) -> bytes:
    if label.isascii():
        return label
    try:
        text = label.decode()
    except UnicodeDecodeError:
        return label  # bytes that are not UTF-8 have no other form
    # a letter at a time, and not by str.lower(): the form of a sigma must not depend on where it stands
    return b"xn--" + text.translate(_SMALL).encode("punycode") if len(text) <= MAX_LABEL else label


def host_of(task: bytes) -> bytes | None:
    """Give the host of a URL; None for an id that is no URL, or names no host."""
    plain = _PLAIN.match(task)
    if plain:
        return plain[1]
    return (named(task) or None) if _SCHEME.match(task.strip(_BLANKS).translate(None, b"\t\n\r")) else None


def foreign_host(task: bytes) -> bytes | None:
    """Give the host that a client sends with an id, because the server cannot tell it; None for any other id."""
    return None if task.isascii() or _PLAIN.match(task) else host_of(task)
