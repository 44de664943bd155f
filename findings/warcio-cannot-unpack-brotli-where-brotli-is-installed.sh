#!/usr/bin/env bash
# warcio 1.8.1, brotli 1.2.1.
#
# An archive holds a response with Content-Encoding: br. content_stream() of warcio gives the unpacked body; for brotli it
# needs the module brotli, and one would guess that the package of that name makes it work. The package does the opposite:
# warcio sets an attribute of its own on brotli's Decompressor, whose type takes none, so content_stream() raises
# AttributeError, and so do `warcio check` and `warcio extract --payload`, which call it. Without the package, the bytes
# are handed out as they are, packed and without an error. Whoever reads raw_stream, or no body, meets neither.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check warcio==1.8.1 brotli==1.2.1
cat >"$work/write.py" <<'PY'
import gzip
import io
import sys

import brotli
from warcio.statusandheaders import StatusAndHeaders
from warcio.warcwriter import WARCWriter

with open(sys.argv[1], "wb") as file:
    archive = WARCWriter(file)
    for encoding, body in {"gzip": gzip.compress(b"a page"), "br": brotli.compress(b"a page")}.items():
        lines = [("Content-Encoding", encoding), ("Content-Length", str(len(body)))]
        head = StatusAndHeaders("200 OK", lines, protocol="HTTP/1.1")
        url = f"http://site.example/{encoding}"
        archive.write_record(archive.create_warc_record(url, "response", payload=io.BytesIO(body), http_headers=head))
PY
cat >"$work/read.py" <<'PY'
import sys

from warcio.archiveiterator import ArchiveIterator


def read(record):
    try:
        body = record.content_stream().read()
    except AttributeError as error:
        return f"AttributeError: {error}"
    return "the page" if body == b"a page" else "bytes that are still packed"


with open(sys.argv[1], "rb") as file:
    seen = {record.http_headers.get_header("Content-Encoding"): read(record) for record in ArchiveIterator(file)}
for encoding, what in seen.items():
    print(f"  {encoding}: {what}")
assert seen["gzip"] == "the page"
assert seen["br"].startswith(sys.argv[2])
PY
"$work/venv/bin/python" "$work/write.py" "$work/two.warc.gz"
echo "with the package brotli:"
"$work/venv/bin/python" "$work/read.py" "$work/two.warc.gz" "AttributeError: 'brotli.Decompressor'"
"$work/venv/bin/pip" uninstall -q -y brotli
echo "without it:"
"$work/venv/bin/python" "$work/read.py" "$work/two.warc.gz" "bytes that are still packed"
# seen:
#   with the package brotli:
#     gzip: the page
#     br: AttributeError: 'brotli.Decompressor' object has no attribute 'unused_data'
#   without it:
#     gzip: the page
#     br: bytes that are still packed
