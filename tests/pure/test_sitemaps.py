"""Sitemaps as files: what they name, in every form, and how those that were made to do harm are refused."""

from __future__ import annotations

import gzip
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from timeoutq import BadSitemap, BadUrl, InvalidInput
from timeoutq.urls import Limits, sitemap, sitemaps
from timeoutq.urls.sitemaps import DEEPEST, LONGEST_NAME, LONGEST_PIECE, LONGEST_TEXT, MOST_NAMES, Entry, read

NS = 'xmlns="http://www.sitemaps.org/schemas/sitemap/0.9"'
HEAD = '<?xml version="1.0" encoding="UTF-8"?>\n'


def urlset(*urls: str) -> str:
    return f"{HEAD}<urlset {NS}>\n" + "\n".join(f"<url><loc>{url}</loc></url>" for url in urls) + "\n</urlset>"


def index(*urls: str) -> str:
    return f"<sitemapindex {NS}>" + "".join(f"<sitemap><loc>{url}</loc></sitemap>" for url in urls) + "</sitemapindex>"


def entries(data: bytes | str, step: int = 10_000) -> list[Entry]:
    data = data.encode() if isinstance(data, str) else data
    return list(read(data[at : at + step] for at in range(0, len(data), step)))


def urls(data: bytes | str, step: int = 10_000) -> list[str]:
    return [entry.url for entry in entries(data, step)]


FULL = f"""{HEAD}<urlset {NS} xmlns:image="http://www.google.com/schemas/sitemap-image/1.1"
 xmlns:xhtml="http://www.w3.org/1999/xhtml">
 <!-- a comment -->
 <url>
  <loc>
   http://h.example/a?b&amp;c=&#233;
  </loc>
  <lastmod>2026-11-01</lastmod><changefreq>daily</changefreq><priority>0.8</priority>
  <image:image><image:loc>http://h.example/image.png</image:loc></image:image>
  <xhtml:link rel="alternate" href="http://h.example/fr"/>
 </url>
 <url><loc><![CDATA[http://h.example/b?x&y]]></loc><priority>7</priority><lastmod/></url>
 <url><image:image><image:loc>http://h.example/other.png</image:loc></image:image><lastmod>2026</lastmod></url>
</urlset>"""


@pytest.mark.parametrize("step", [1, 7, 100_000])
def test_an_xml_sitemap_names_pages_and_what_it_says_of_them(step: int) -> None:
    assert entries(FULL, step) == [
        Entry("http://h.example/a?b&c=é", 6, data={"lastmod": "2026-11-01", "changefreq": "daily", "priority": 0.8}),
        Entry("http://h.example/b?x&y", 13),
        Entry("", 14, data={"lastmod": "2026"}),
    ]


@pytest.mark.parametrize("step", [1, 100_000])
@pytest.mark.parametrize(
    "data",
    [
        urlset("http://h.example/é").encode(),
        ("\ufeff" + urlset("http://h.example/é")).encode(),
        ("\n \n" + urlset("http://h.example/é")).encode(),
        urlset("http://h.example/é").replace("UTF-8", "UTF-16").encode("utf-16"),
        urlset("http://h.example/é").replace("UTF-8", "ISO-8859-1").encode("latin-1"),
        urlset("http://h.example/é").replace("UTF-8", "windows-1252").encode("cp1252"),
        b"<urlset><url><loc>http://h.example/\xc3\xa9</loc></url></urlset>",
        b'<s:urlset xmlns:s="x"><s:url><s:loc>http://h.example/\xc3\xa9</s:loc></s:url></s:urlset>',
        b"<!DOCTYPE urlset><urlset><url><loc>http://h.example/&#233;</loc></url></urlset>",
        "http://h.example/é".encode(),
        "\ufeff\r\n# all pages\r\n\r\n  http://h.example/é \r\n".encode(),
    ],
)
def test_one_page_in_every_form(data: bytes, step: int) -> None:
    assert urls(data, step) == ["http://h.example/é"]


def test_an_index_names_sitemaps() -> None:
    assert entries(index("http://h.example/1.xml", "2.xml")) == [
        Entry("http://h.example/1.xml", 1, is_sitemap=True),
        Entry("2.xml", 1, is_sitemap=True),
    ]


BOMB = '<!DOCTYPE urlset [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;">]>'
OUTSIDE = '<!DOCTYPE urlset [<!ENTITY a SYSTEM "file:///etc/passwd">]>'


@pytest.mark.parametrize("step", [100, 100_000])
@pytest.mark.parametrize(
    ("data", "said"),
    [
        ("", "it is empty"),
        ("\n" * 5000, "it begins with 512 blanks"),
        ("<!DOCTYPE html><html><body>Not <b>found</html>", "it is a page of HTML, not a sitemap"),
        ('<!-- 404 -->\n<!DOCTYPE HTML PUBLIC "-//W3C//DTD HTML">\n<html>', "it is a page of HTML, not a sitemap"),
        ("<!doctype html>\n<html>\n<br></html>", "it is a page of HTML, not a sitemap"),
        ("<html><body>Not <b>found</html>", "it is a page of HTML, not a sitemap: its root element is"),
        ('<rss version="2.0"></rss>', "it is a feed: its root element is <rss>, not <urlset> or <sitemapindex>"),
        (f"{BOMB}<urlset><url><loc>&b;</loc></url></urlset>", "line 1 declares the entity a, as XML bombs do"),
        (f"{OUTSIDE}<urlset><url><loc>&a;</loc></url></urlset>", "line 1 declares the entity a"),
        ("<urlset>\n<url></urlset>", "line 2 is not XML as it must be: mismatched tag"),
        ("<urlset>\n<urlset><url><loc>http://h/</loc></url></urlset></urlset>", "line 2 has <urlset> inside <urlset>"),
        ("<urlset>\n<sitemap><loc>http://h/</loc></sitemap></urlset>", "line 2 has <sitemap> inside <urlset>"),
        ("<s:urlset><s:url>\n<s:url/></s:url></s:urlset>", "line 2 has <url> inside <url>"),
        (f"<urlset><url>{'<loc>http://h/</loc>' * 1001}", "line 1: an entry has more than 1,000 times <loc>"),
        ("<urlset><url>", "line 1 is not XML as it must be: no element found"),
        (b"<urlset>\xff</urlset>", "is not XML as it must be: not well-formed (invalid token)"),
        ('<?xml version="1.0" encoding="klingon"?><urlset/>', "encoding"),
        (b"%PDF-1.7\0\0", "it is neither XML nor text in UTF-8"),
        ('{"urls": []}', "it is neither XML nor a list of URLs: its first line is '{\"urls\": []}'"),
        (b"http://h.example/\n" + b"x" * (LONGEST_PIECE + 100_001), f"line 2 has more than {LONGEST_PIECE:,} bytes"),
        ("<urlset><url>" + "<x>" * 100, f"line 1: elements nested more than {DEEPEST} deep"),
        ("<urlset>" + "".join(f"<a{i}/>" for i in range(1100)), f"line 1: more than {MOST_NAMES:,} different names"),
        (f"<urlset><url><loc>{'x' * (LONGEST_TEXT + 1)}</loc></url></urlset>", "<loc> holds more than 8,192"),
        (f"<urlset>\n<{'x' * LONGEST_NAME}>\n<y{'x' * LONGEST_NAME}/>", "has a name of 1,001 characters: yxxx"),
    ],
    ids=lambda value: ascii(value)[:60],
)  # fmt: skip
def test_what_is_no_sitemap_is_refused_by_name(data: bytes | str, said: str, step: int) -> None:
    with pytest.raises(BadSitemap) as caught:
        entries(data, max(step, len(data) // 100))
    assert said in str(caught.value)
    assert len(str(caught.value)) < 300


def pieces(begin: bytes, again: bytes, many: int) -> Iterator[bytes]:
    """Give so many pieces of a sitemap that has no end."""
    yield begin + b" " * 600
    for _ in range(many):
        yield again * (16_384 // len(again))


@pytest.mark.breaking
@pytest.mark.parametrize(
    ("begin", "again"),
    [
        (b"<urlset>", b"x"),
        (b"<urlset><url><loc>", b"x"),
        (b"<urlset>", b"<url><loc>http://h.example/</loc></url>"),
        (b"<urlset><url>", b"<a>x</a><lastmod>y</lastmod>"),
        (b"<urlset>", b"<!-- x --><?x y?>"),
        (b"http://h/", b"\nhttp://h/"),
    ],
)
def test_nothing_grows_with_the_length_of_a_sitemap(begin: bytes, again: bytes) -> None:
    held: list[int] = []

    def measured() -> Iterator[bytes]:
        for number, piece in enumerate(pieces(begin, again, 44)):
            yield piece
            if number in (4, 44):
                held.append(tracemalloc.get_traced_memory()[0])

    tracemalloc.start()
    try:
        with suppress(BadSitemap):  # it has no end
            for _ in read(measured()):
                pass
        assert held[1] - held[0] < 64 * 1024
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("begin", "again"),
    [
        (b"<urlset a='", b"x"),
        (b"<urlset><!--", b"x"),
        (b"<!DOCTYPE urlset [ <!ELEMENT x (", b"x"),
        (b"http://h/\n", b"#"),
    ],
)
def test_what_must_be_held_until_its_end_is_refused_when_it_is_long(begin: bytes, again: bytes) -> None:
    given: list[int] = []

    def noted() -> Iterator[bytes]:
        for piece in pieces(begin, again, 400):
            given.append(len(piece))
            yield piece

    with pytest.raises(BadSitemap, match=r"of more than|has more than"):
        list(read(noted()))
    assert LONGEST_PIECE / 2 < sum(given) < 3 * LONGEST_PIECE


# ---- files


Put = Callable[[str, bytes | str], str]


@pytest.fixture
def put(tmp_path: Path) -> Put:
    def write(name: str, data: bytes | str) -> str:
        path = tmp_path / name
        path.write_bytes(data.encode() if isinstance(data, str) else data)
        return str(path)

    return write


def test_a_file_gives_pages_in_their_one_form(put: Put) -> None:
    name = put("sitemap.xml", urlset("HTTP://H.example/b?y&amp;x", "http://h.example/%61"))
    assert [(page.url, page.where) for page in sitemap(name)] == [
        ("http://h.example/b?x&y", f"{name}, line 3"),
        ("http://h.example/a", f"{name}, line 4"),
    ]


@pytest.mark.parametrize("name", ["s.xml.gz", "s.xml"])
def test_a_packed_file_is_known_by_its_first_bytes(put: Put, name: str) -> None:
    data = urlset(*(f"http://h.example/{i}" for i in range(5000))).encode()
    two = gzip.compress(data[:50_000]) + gzip.compress(data[50_000:])
    assert len(list(sitemap(put(name, two)))) == 5000
    with pytest.raises(BadSitemap, match="the gzip ends too early"):
        list(sitemap(put(name, two[:-9])))
    with pytest.raises(BadSitemap, match="is not the gzip that it claims to be"):
        list(sitemap(put(name, two[:500] + b"xxxx" + two[500:])))


def test_a_bad_url_is_refused_with_its_place_and_the_rest_goes_on(put: Put) -> None:
    name = put("s.xml", urlset("http://h.example/", "mailto:x", "", "/relative", "http://h.example/a"))
    told: list[tuple[str, InvalidInput]] = []
    found = [page.url for page in sitemap(name, refused=lambda *what: told.append(what))]
    assert found == ["http://h.example/", "http://h.example/a"]
    assert [where for where, _ in told] == [f"{name}, line {line}" for line in (4, 5, 6)]
    reasons = [error.reason for _, error in told if isinstance(error, BadUrl)]
    assert reasons[:2] == ["its scheme is mailto, not http or https", "it is empty"]
    assert "it has no scheme" in reasons[2]
    with pytest.raises(BadUrl, match="mailto"):
        list(sitemap(name))


def test_limits_are_named_and_what_was_below_them_is_given(put: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    many = urlset(*(f"http://h.example/{i}" for i in range(20_000)))
    found = 0
    with pytest.raises(BadSitemap, match="there are more than 15,000 URLs"):
        for _ in sitemap(put("s.xml", many), limits=Limits(pages=15_000)):
            found += 1
    assert found == 15_000
    with pytest.raises(BadSitemap, match="it has more than 500,000 bytes, unpacked"):
        list(sitemap(put("s.xml", many), limits=Limits(unpacked=500_000)))
    with pytest.raises(BadSitemap, match="it has more than 500,000 bytes, unpacked"):
        list(sitemap(put("s.xml.gz", gzip.compress(many.encode())), limits=Limits(unpacked=500_000)))
    with pytest.raises(BadSitemap, match=r"it has more than 10,000 bytes$"):
        list(sitemap(put("s.xml.gz", gzip.compress(many.encode())), limits=Limits(sent=10_000)))
    now = 0.0

    def later() -> float:
        nonlocal now
        now += 1
        return now

    monkeypatch.setattr(sitemaps, "time", SimpleNamespace(monotonic=later))
    with pytest.raises(BadSitemap, match="it is not read to its end, 5 s after the first began"):
        list(sitemap(put("s.xml", many), limits=Limits(total_seconds=5)))


def test_a_gzip_bomb_is_left_early(put: Put) -> None:
    assert Limits().unpacked == 100 * sitemaps.MIB
    bomb = gzip.compress(b"<urlset>" + b" " * 20_000_000 + b"</urlset>", 1)
    tracemalloc.start()
    try:
        with pytest.raises(BadSitemap, match="it has more than 10,485,760 bytes, unpacked"):
            list(sitemap(put("s.xml.gz", bomb), limits=Limits(unpacked=10 * sitemaps.MIB)))
        assert tracemalloc.get_traced_memory()[1] < 3_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("/nowhere/s.xml", "sitemap '/nowhere/s.xml': it cannot be read: No such file or directory"),
        ("/", "it cannot be read: Is a directory"),
        ("ftp://h.example/s.xml", "give a URL on http or https, or a file"),
        ("a\0b", r"sitemap 'a\x00b': it cannot be read: no file can have this name"),
    ],
)
def test_a_source_that_cannot_be_used_is_named(source: str, said: str) -> None:
    with pytest.raises(BadSitemap) as caught:
        list(sitemap(source))
    assert said in str(caught.value)


async def test_a_url_inside_an_event_loop_is_refused_with_the_cure(put: Put) -> None:
    with pytest.raises(InvalidInput, match=r"await asyncio.to_thread\(list, sitemap\(source\)\)"):
        list(sitemap("http://127.0.0.1:1/"))
    assert len(list(sitemap(put("s.xml", urlset("http://h.example/"))))) == 1, "a file needs no loop"


def test_a_file_cannot_name_other_files(put: Put) -> None:
    other = put("other.xml", urlset("http://h.example/"))
    name = put("index.xml", index("other.xml", other, f"file://{other}"))
    told: list[str] = []
    assert not list(sitemap(name, refused=lambda _, error: told.append(str(error))))
    assert len(told) == 3


def test_each_address_of_an_entry_is_given() -> None:
    entry = "<loc>http://h.example/1</loc>\n<loc>http://h.example/2</loc><x:loc>http://h.example/x</x:loc>"
    assert entries(f"<urlset><url>{entry}<lastmod>2026</lastmod></url></urlset>") == [
        Entry("http://h.example/1", 1, data={"lastmod": "2026"}),
        Entry("http://h.example/2", 2, data={"lastmod": "2026"}),
    ]
    assert urls("<urlset><url><x:loc>http://h.example/1</x:loc></url></urlset>") == ["http://h.example/1"]
    assert [entry.line for entry in entries("<sitemapindex>\n<sitemap/></sitemapindex>")] == [2]
