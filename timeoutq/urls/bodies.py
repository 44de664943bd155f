"""Unpacks the bodies of answers piece by piece, so that no layer of Content-Encoding can exceed its limit.

A kilobyte of gzip can become a megabyte, one of brotli a gigabyte, and gzip within gzip a terabyte. `sitemaps.py` reads
through this module, and so do the demo's crawler and its archive. Without the package `brotli` (extra `crawl`), nobody
asks for brotli.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Any

LAYERS = 2  # how many encodings around a body are undone; one is usual
PIECE = 64 * 1024  # what one step of a layer gives at most, bytes
GZIP = b"\x1f\x8b\x08"  # what each member of a file of gzip begins with (RFC 1952, 2.3.1)

_KNOWN = ("gzip", "x-gzip", "deflate", "br")
_GZIP_WBITS = zlib.MAX_WBITS | 16  # what zlib calls a member of gzip, with its head and its end


def _has_brotli() -> bool:
    # before 1.2, one step of the package could give any number of bytes
    return find_spec("brotli") is not None and hasattr(import_module("brotli").Decompressor, "can_accept_more_data")


HAS_BROTLI = _has_brotli()

ACCEPTED = "gzip, deflate, br" if HAS_BROTLI else "gzip, deflate"
"""What a client asks for with Accept-Encoding: all that can be undone here."""


class Unreadable(Exception):
    """The body has an encoding that cannot be undone; the message names it."""


class TooLong(Exception):
    """The body, or a layer of it, is beyond its limit; the message says the limit."""


class Broken(Exception):
    """The body is not what its Content-Encoding says, or ends too early."""


class Layer:
    """One encoding, undone in pieces of at most `PIECE` bytes."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._rest: bytes = b""
        self._over = False
        self._fed = 0
        self.members = 0  # how many members of a file of gzip are whole so far
        self.end = 0  # where the last whole member ends, in the bytes that were fed
        # which form of deflate it is, the first two bytes tell
        self._unpacker = None if name == "deflate" else zlib.decompressobj(_GZIP_WBITS)

    @property
    def ended(self) -> bool:
        """Whether the packed data has come to its end: it was not cut."""
        return self._unpacker is not None and self._unpacker.eof

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Give what `data` unpacks to; bytes after the end of the packed data are left out.

        A file of gzip may have several members, one after the other; their contents follow each other.
        """
        self._fed += len(data)
        data, self._rest = self._rest + data, b""
        if self._unpacker is None:
            if len(data) < 2:
                self._rest = data
                return
            # some servers mean the bare stream by "deflate", without the two bytes that stand before it (RFC 1950, 2.2)
            is_bare = data[0] & 0x0F != 8 or (data[0] * 256 + data[1]) % 31
            self._unpacker = zlib.decompressobj(-zlib.MAX_WBITS if is_bare else zlib.MAX_WBITS)
        while True:
            if self._unpacker.eof:
                self._over = self._over or self._name == "deflate" or not data.startswith(GZIP[: len(data)])
                if self._over or len(data) < len(GZIP):
                    self._rest = b"" if self._over else data
                    return
                self._unpacker = zlib.decompressobj(_GZIP_WBITS)
            try:
                piece = self._unpacker.decompress(data, PIECE)
            except zlib.error as error:
                raise Broken(f"the body is not the {self._name} that it claims to be: {error}") from error
            data = self._unpacker.unconsumed_tail or self._unpacker.unused_data
            if self._unpacker.eof:
                self.members, self.end = self.members + 1, self._fed - len(data)
            if piece:
                yield piece
            if not data and len(piece) < PIECE:
                return


class Brotli:
    """The layer of brotli; the same calls as `Layer`."""

    def __init__(self) -> None:
        module: Any = import_module("brotli")  # it says nothing of types
        self._unpacker = module.Decompressor()
        self._error: type[Exception] = module.error

    @property
    def ended(self) -> bool:
        """Whether the packed data has come to its end: it was not cut."""
        return bool(self._unpacker.is_finished())

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Give what `data` unpacks to; unlike with gzip, no bytes may follow the end of the packed data."""
        if self.ended and data:
            raise Broken("the body goes on after the end of its brotli")
        while not self.ended:
            try:
                piece: bytes = self._unpacker.process(data, output_buffer_limit=PIECE)
            except self._error as error:
                raise Broken("the body is not the brotli that it claims to be") from error
            data = b""
            yield from (piece[at : at + PIECE] for at in range(0, len(piece), PIECE))
            # a short piece is the last that there is for now
            if len(piece) < PIECE and self._unpacker.can_accept_more_data():
                return


class Body:
    """A body on its way in, whose encodings are undone."""

    def __init__(self, encodings: str, most: int) -> None:
        """Expect what a Content-Encoding names, of at most `most` bytes in each layer.

        Raises `Unreadable` when it names more layers than `LAYERS`, or one that was not asked for.
        """
        names = [name for word in encodings.lower().split(",") if (name := word.strip()) not in ("", "identity")]
        if len(names) > LAYERS:
            raise Unreadable(f"packed {len(names)} times over, where {LAYERS} are unpacked")
        unknown = [name for name in names if name not in _KNOWN]
        if unknown:
            raise Unreadable(f"Content-Encoding {unknown[0]:.40} was not asked for and cannot be unpacked")
        if "br" in names and not HAS_BROTLI:
            raise Unreadable(
                "Content-Encoding br was not asked for, because the package brotli (1.2 or later) is missing: "
                "pip install 'timeoutq[crawl]'"
            )
        self._layers = [Brotli() if name == "br" else Layer(name) for name in reversed(names)]
        self._left = [most] * (len(names) + 1)
        self._most = most

    @property
    def ended(self) -> bool:
        """Whether each layer has come to its end: the body was not cut."""
        return all(layer.ended for layer in self._layers)

    def feed(self, data: bytes, depth: int = 0) -> Iterator[bytes]:
        """Give what the next bytes from the network, or those inside of `depth` layers, unpack to, piece by piece.

        Raises `TooLong` as soon as a layer has more than it may, and `Broken` for what cannot be unpacked.
        """
        self._left[depth] -= len(data)
        if self._left[depth] < 0:
            raise TooLong(f"more than {self._most:,} bytes")
        if depth == len(self._layers):
            yield data
            return
        for piece in self._layers[depth].feed(data):
            yield from self.feed(piece, depth + 1)
