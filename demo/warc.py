"""Archives what was fetched as WARC 1.1 (ISO 28500): for each visit, one response record and its request.

Each process writes files of its own. When `write` returns, the records are on the disk, so a page is acked only after
it is in the archive. While a file is written, its name ends in `.open`, and the file is locked; when the file is large
enough, or the process ends, it loses this ending. A process that was killed leaves a file that ends in `.open`, perhaps
with a torn record at its end: the next process that opens the archive cuts the torn record off (`mend`). All this holds
for kill -9. A power cut may lose a file that was begun or finished moments before: the folder itself is not synced.

After an error of the disk, every further `write` raises `ArchiveError`: the caller stops claiming. `fetcher.py` calls
`write`.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import re
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from importlib import import_module
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

from demo.exchange import Exchange, Header, is_readable
from demo.settings import Settings
from demo.trail import Capture
from timeoutq.urls.bodies import PIECE, Broken, Layer

OPEN = ".open"
"""The ending of a file that is not finished."""

CURES = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space, or raise the quota",
    errno.EACCES: "mend its rights",
    errno.EPERM: "mend its rights",
    errno.EROFS: "mount its disk for writing, or name another folder",
    errno.EIO: "mend its disk, or name another folder",
}
"""What a person can do about an error of the disk."""

_REVISIT = "http://netpreserve.org/warc/1.1/revisit/"


class ArchiveError(Exception):
    """The archive cannot be written; the message names the place, the cause and the cure."""


def prepare(folder: str | Path, free: int) -> None:
    """Make the folder of an archive, and see that it can be written and has `free` bytes left.

    Raises `ArchiveError`; also when the package warcio is missing.
    """
    if find_spec("warcio") is None:
        raise ArchiveError("an archive needs the package warcio: pip install 'timeoutq[demo]'")
    path = Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
        if not os.access(path, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        disk = os.statvfs(path)
    except OSError as error:
        raise _cannot(path, error) from error
    left = disk.f_bavail * disk.f_frsize
    if left < free:
        raise ArchiveError(
            f"the disk of the WARC folder {path} has {left:,} bytes left, and one page may need {free:,}: free some "
            "space, name another folder, or lower --max-bytes"
        )


class Archive:
    """The files of one process in the folder of an archive."""

    def __init__(self, folder: str | Path, agent: str, *, largest: int = Settings.warc_bytes, free: int = 0) -> None:
        """Open the archive, and mend what processes that were killed have left; raises `ArchiveError`."""
        prepare(folder, free)
        self._folder = Path(folder).absolute()
        self._agent = agent
        self._largest = largest
        self._writer_of: Callable[..., Any] = import_module("warcio.warcwriter").WARCWriter  # it says nothing of types
        self._head_of: Callable[..., Any] = import_module("warcio.statusandheaders").StatusAndHeaders
        self._serial = 0
        self._visits = 0
        """In the file that is open."""
        self._size = 0
        self.trouble: ArchiveError | None = None
        """What every further write is answered with."""
        # one thread, so that records follow each other, and the event loop does not wait for the disk
        self._thread = ThreadPoolExecutor(1, "warc")
        self._file: int | None = None
        self._path = self._folder
        mend(self._folder)
        try:
            self._begin()
        except OSError as error:
            raise _cannot(self._folder, error) from error

    async def write(self, exchange: Exchange, before: Capture | None = None) -> Capture:
        """Write the records of one visit to the disk; give the capture that the next record of this URL may refer to.

        `before` is the last capture of this URL in the archive: a 304, or a page that is equal to it, becomes a revisit
        record. Raises `ArchiveError` if the disk cannot be written: then nothing of the visit is in the archive, and
        every later call raises the same error.
        """
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._write, exchange, before)

    def close(self) -> None:
        """Finish the file; one without a visit is removed."""
        self._thread.shutdown(wait=True)
        with suppress(OSError):  # what was written is on the disk, and the next one to open the archive mends the rest
            self._finish()

    # ---- in the thread

    def _write(self, exchange: Exchange, before: Capture | None) -> Capture:
        if self.trouble is not None:
            raise self.trouble
        records, capture = self._records(exchange, before or Capture())
        try:
            if self._visits and self._size + len(records) > self._largest:
                self._finish()
                self._begin()
            self._append(records)
            self._visits += 1
        except OSError as error:
            self.trouble = _cannot(self._path, error)
            raise self.trouble from error
        return capture

    def _append(self, data: bytes) -> None:
        """Write all of it, or nothing: what is half written when an error comes is cut off again."""
        assert self._file is not None
        try:
            with memoryview(data) as view:
                done = 0
                while done < len(view):
                    done += os.write(self._file, view[done:])
            getattr(os, "fdatasync", os.fsync)(self._file)
        except OSError:
            with suppress(OSError):
                os.ftruncate(self._file, self._size)
            raise
        self._size += len(data)

    def _begin(self) -> None:
        """Begin a file: it has its lock before it has the name by which others look for files that were left."""
        name = f"crawl-{datetime.now(UTC):%Y%m%d%H%M%S%f}-{self._serial:05}-{_machine()}-{os.getpid()}.warc.gz"
        self._serial += 1
        self._path, self._size, self._visits = self._folder / f"{name}{OPEN}", 0, 0
        new = self._folder / f".{name}.new"
        self._file = os.open(new, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._append(self._warcinfo(name))
            new.rename(self._path)
        except OSError:
            self._let_go()
            with suppress(OSError):
                new.unlink()
            raise

    def _finish(self) -> None:
        if self._file is not None:
            try:
                if self._visits:
                    self._path.rename(self._path.with_suffix(""))
                else:
                    self._path.unlink()
            finally:
                self._let_go()

    def _let_go(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            os.close(file)  # and with it goes the lock

    # ---- records

    def _warcinfo(self, name: str) -> bytes:
        kept = BytesIO()
        writer = self._writer_of(kept, gzip=True, warc_version="1.1")
        about = {
            "software": self._agent,
            "format": "WARC File Format 1.1",
            "conformsTo": "https://iipc.github.io/warc-specifications/specifications/warc-format/warc-1.1/",
            "hostname": socket.gethostname(),
            "http-header-user-agent": self._agent,
        }
        writer.write_record(writer.create_warcinfo_record(name, about))
        return kept.getvalue()

    def _records(self, exchange: Exchange, before: Capture) -> tuple[bytes, Capture]:
        kept = BytesIO()
        writer = self._writer_of(kept, gzip=True, warc_version="1.1")
        date, digest = _date(exchange.began), _digest(writer, exchange.body)
        profile = _profile(exchange, before, digest)
        kind, body = ("revisit", b"") if profile else ("response", exchange.body)
        about = {"WARC-Date": date}
        if exchange.address:
            about["WARC-IP-Address"] = exchange.address
        about |= _about_revisit(exchange, before, profile) if profile else _about_response(exchange)
        head = self._head_of(
            f"{exchange.status} {_ascii(exchange.reason)}".strip(), _written(exchange.answered),
            protocol=_ascii(exchange.version),
        )  # fmt: skip
        answer = writer.create_warc_record(
            exchange.url, kind, BytesIO(body), len(body), warc_headers_dict=about, http_headers=head
        )
        line = self._head_of(f"GET {_ascii(exchange.target)} HTTP/1.1", _written(exchange.asked), is_http_request=True)
        request = writer.create_warc_record(exchange.url, "request", http_headers=line)
        writer.write_request_response_pair(request, answer)
        if profile:
            return kept.getvalue(), before
        is_page = exchange.is_whole and 200 <= exchange.status < 300
        return kept.getvalue(), Capture(date, digest) if is_page else Capture()


def _about_revisit(exchange: Exchange, before: Capture, profile: str) -> dict[str, str]:
    return {
        "WARC-Profile": _REVISIT + profile,
        "WARC-Refers-To-Target-URI": exchange.url,
        "WARC-Refers-To-Date": before.date,
        "WARC-Payload-Digest": before.digest,
    }


def _about_response(exchange: Exchange) -> dict[str, str]:
    return {} if exchange.is_whole else {"WARC-Truncated": exchange.cut or "unspecified"}


def _profile(exchange: Exchange, before: Capture, digest: str) -> str:
    if not before.date or not before.digest:
        return ""
    if exchange.status == 304:
        return "server-not-modified"
    same = exchange.is_whole and 200 <= exchange.status < 300 and digest == before.digest
    return "identical-payload-digest" if same else ""


def _written(headers: list[Header]) -> list[tuple[str, str]]:
    """Give headers as they are written down: the body is kept as it was within the chunks in which it came."""
    found: list[tuple[str, str]] = []
    for name, value in headers:
        word, said = name.decode("latin-1"), value.decode("latin-1")
        lower = word.lower()
        # a reader would look for chunks that are not there, or stop at what it cannot unpack
        if lower == "transfer-encoding" or (lower == "content-encoding" and not is_readable(said)):
            word = f"X-Archive-Orig-{word}"
        found.append((word, said))
    return found


def _digest(writer: Any, body: bytes | bytearray) -> str:
    digester = writer._create_digester()  # the one that the writer itself uses
    digester.update(body)
    return str(digester)


def _ascii(value: bytes) -> str:
    return value.decode("ascii", "replace").replace("\ufffd", "?")


def _date(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _machine() -> str:
    return re.sub(r"[^A-Za-z0-9.]", "_", socket.gethostname())[:64]


def _cannot(place: Path, error: OSError) -> ArchiveError:
    said = error.strerror or str(error)
    cure = CURES.get(error.errno or 0, "name another folder")
    return ArchiveError(f"the WARC archive at {place} cannot be written: {said}; {cure}, then go on")


# ---- what a process that was killed has left

_OWN = re.compile(r"crawl-\d+-\d{5,}-[A-Za-z0-9._]*-\d+\.warc\.gz" + re.escape(OPEN))
"""What the files of an archive are called that are not finished; other files in its folder are somebody else's."""


def mend(folder: str | Path) -> list[Path]:
    """Finish the files of processes that are dead; give the paths of the finished files. Raises `ArchiveError`.

    A torn record at the end of a file is cut off. Its page was not acked, so the page is visited again. Other files in
    the folder are left alone.
    """
    found: list[Path] = []
    try:
        for path in sorted(path for path in Path(folder).iterdir() if _OWN.fullmatch(path.name) and path.is_file()):
            with suppress(FileNotFoundError), path.open("r+b") as file:  # another process may be faster
                finished = _mended(path, file)
                found += [finished] if finished is not None else []
    except OSError as error:
        raise _cannot(Path(folder), error) from error
    return found


def _mended(path: Path, file: BinaryIO) -> Path | None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return None  # its process lives
    if path.stat().st_ino != os.fstat(file.fileno()).st_ino:
        return None
    end, records = end_of_whole_records(file)
    if records < 2:
        path.unlink()  # it says only what the archive is
        return None
    if end < os.fstat(file.fileno()).st_size:
        file.truncate(end)
        os.fsync(file.fileno())
    return path.rename(path.with_suffix(""))


def end_of_whole_records(file: BinaryIO) -> tuple[int, int]:
    """Give where the last whole record of a file ends, and how many whole records there are."""
    layer = Layer("gzip")  # each record is a member of its own
    with suppress(Broken):
        while data := file.read(PIECE):
            for _ in layer.feed(data):
                pass
    return layer.end, layer.members


def finished(folder: str | Path) -> tuple[int, int]:
    """Count the finished files of an archive, and their bytes."""
    sizes = [path.stat().st_size for path in Path(folder).glob("*.warc.gz")]
    return len(sizes), sum(sizes)
