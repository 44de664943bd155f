"""URLs in one form: the spellings that browsers take for one URL, those that servers do, and what is refused."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from timeoutq import BadUrl
from timeoutq.urls import domain, host, normalise
from timeoutq.urls.normal import _NORMAL, _formed, _read
from timeoutq.words import arguments

LONG = "x" * 63
SPELLINGS: dict[str, list[str]] = {
    "http://h.example/": [
        "http://h.example/", "HTTP://H.EXAMPLE", "http://h.example:80/", "http://h.example:080", "http://h.example:/",
        "http://h.example./", "http:h.example", "http:/h.example", "http:///h.example", "http:\\\\h.example\\",
        "http:////h.example/", "  http://h.example/ \r\n", "\x00http://h.example/\x1f", "ht\ntp://h.ex\tample\r/",
        "http://h.example/#top", "http://h.example#", "http://h.example/?", "http://h.example?#?", "http://h.example/?&&",
        "http://me@h.example/", "http://me:secret@h.example/", "http://a@b@h.example/", "http://:@h.example",
        "http://%68.ex%61mple/", "http://ｈ.example/", "http://h。example/", "http://h．ｅxample｡/", "http://h\u00ad.example/",
        "http://h.example/.", "http://h.example/..", "http://h.example/a/..", "http://h.example/./a/../",
        "http://h.example/%2e", "http://h.example/a/%2E%2e", "http://h.example/a/.%2e/", "http://h.example/../../",
        "http://h.example/" + "a/../" * 13_103 + "#end",  # 65,536 characters: no URL may be longer
    ],
    "https://h.example/": ["https://h.example:443/", "HtTpS:h.example", "https://h.example:0443"],
    "https://h.example:80/": ["https://h.example:80", "https://h.example:00080/"],
    "http://h.example:443/a": ["http://h.example:443/a"],
    "http://xn--bcher-kva.example/": [
        "http://bücher.example/", "http://BÜCHER.example/", "http://xn--bcher-kva.example", "http://XN--BCHER-KVA.example",
        "http://b%C3%BCcher.example/", "http://bu\u0308cher.example/", "http://bücher。example/",
    ],
    "http://xn--strae-oqa.example/": ["http://straße.example/", "http://STRAẞE.example/"],
    "http://xn--n3h.example/": ["http://☃.example/", "http://%E2%98%83.example"],
    "http://xn--0zwm56d.xn--fiqs8s/": ["http://测试.中国/", "http://测试。中国"],
    "http://some_host.example/": ["http://some_host.example/", "http://Some_Host.Example"],
    "http://127.0.0.1/": [
        "http://127.0.0.1", "http://127.0.0.1./", "http://0x7f.0.0.1/", "http://0x7F000001/", "http://2130706433/",
        "http://017700000001/", "http://127.1/", "http://127.0.1", "http://0177.0x0.0.1/", "http://127.0.0.0x1/",
        "http://１２７.0.0.1/", "http://127%2E0.0.1/", "http://0x7f.1",
    ],
    "http://0.0.0.0/": ["http://0/", "http://0x/", "http://00.0x0.0/"],
    "http://255.255.255.255:8080/": ["http://4294967295:8080", "http://0xffffffff:8080/", "http://255.0xffffff:8080"],
    "http://[2001:db8::1]/": ["http://[2001:DB8:0::1]:80/", "http://[2001:db8:0:0:0:0:0:1]", "http://[2001:0db8::0001]/"],
    "http://[::ffff:102:304]/": ["http://[::ffff:1.2.3.4]", "http://[0:0:0:0:0:FFFF:0102:0304]/"],
    "http://[::]:8080/": ["http://[0::0]:8080", "http://me@[::]:8080/"],
    "http://h.example/a/c": [
        "http://h.example/a/./b/../c", "http://h.example/a/b/%2e%2e/c", "http://h.example/x/../a/c", "http://h.example\\a\\c",
        "http://h.example/%61/c", "http://h.example/a/c#x", "http://h.example/a/./././c", "http://h.example/../a/c",
    ],
    "http://h.example/a/": ["http://h.example/a/.", "http://h.example/a/b/..", "http://h.example/a/%2E"],
    "http://h.example/a//b/": ["http://h.example/a//b/", "http://h.example/a//c/../b/."],
    "http://h.example/...": ["http://h.example/...", "http://h.example/%2e.%2E"],
    "http://h.example/~x-._/": ["http://h.example/%7ex%2D%2e%5f/", "http://h.example/%7Ex-._/"],
    "http://h.example/a%2Fb": ["http://h.example/a%2fb", "http://h.example/%61%2Fb"],
    "http://h.example/%C3%A9": ["http://h.example/é", "http://h.example/%c3%a9", "http://h.example/%C3%a9"],
    "http://h.example/%E9": ["http://h.example/%e9"],
    "http://h.example/a%20b": ["http://h.example/a b", "http://h.example/a%20b"],
    "http://h.example/a+b": ["http://h.example/a+b"],
    "http://h.example/100%25": ["http://h.example/100%", "http://h.example/100%25"],
    "http://h.example/%25zz": ["http://h.example/%zz", "http://h.example/%25zz"],
    "http://h.example/%22%3C%3E%5E%60%7B%7C%7D": ['http://h.example/"<>^`{|}', "http://h.example/%22%3c%3e%5e%60%7b%7c%7d"],
    "http://h.example/;p=1,2:3@x!$&'()*": ["http://h.example/;p=1,2:3@x!$&'()*"],
    "http://h.example/?x=1": ["http://h.example?x=1", "http://h.example/?x=1#a?b", "http://h.example/?&x=1&", "http://h.example?%78=1"],
    "http://h.example/?a=1&b=2": ["http://h.example/?b=2&a=1", "http://h.example/?a=1&&b=2"],
    "http://h.example/?a=2&a=1&b": ["http://h.example/?a=2&a=1&b", "http://h.example/?b&a=2&a=1"],
    "http://h.example/?a": ["http://h.example/?a"],
    "http://h.example/?a=": ["http://h.example/?a="],
    "http://h.example/?q=x+y": ["http://h.example/?q=x+y", "http://h.example/?q=x%20y", "http://h.example/?q=x y"],
    "http://h.example/?q=a+": ["http://h.example/?q=a #top", "http://h.example/?q=a%20#top", "http://h.example/?q=a+"],
    "http://h.example/?q=a%01": ["http://h.example/?q=a\x01#top", "http://h.example/?q=a%01"],
    "http://h.example/a%20": ["http://h.example/a #top", "http://h.example/a ?"],
    "http://h.example/?q=a%2Bb%26c": ["http://h.example/?q=a%2bb%26c"],
    "http://h.example/?u=http://x/?y": ["http://h.example/?u=http://x/?y"],
    "http://h.example/?u=a%5Cb/../c": ["http://h.example/?u=a\\b/../c"],
    "http://h.example/?q=%C3%A9%27": ["http://h.example/?q=é'"],
    "http://h.example/?%25": ["http://h.example/?%"],
    f"http://{LONG}.example/": [f"http://{LONG}.example/"],
    f"http://h.example/{'a' * 1007}": [f"http://h.example/./{'a' * 1007}"],
}  # fmt: skip

REFUSED: dict[str, str] = {
    "": "it is empty",
    " \t\n": "it is empty",
    "#top": "it has no scheme and no host: write the whole URL, with https:// or http:// and the host",
    "h.example/a": "it has no scheme: write https://h.example/a",
    "h.example:8080/a": "it has no scheme: write https://h.example:8080/a",
    "//h.example/a": "it has no scheme: write https://h.example/a",
    "../a.html": "it has no scheme and no host: write the whole URL, ",
    "not a url": "it has no scheme, and a blank inside: write one URL, beginning with https:// or http://",
    "h.example/ i.example/": "it has no scheme: write https://h.example/ i.example/",
    "mailto:me@h.example": "its scheme is mailto, not http or https",
    "JavaScript:alert(1)": "its scheme is javascript,",
    "java\nscript:alert(1)": "its scheme is javascript,",
    "data:text/html,x": "its scheme is data,",
    "ftp://h.example/": "its scheme is ftp,",
    "file:///etc/passwd": "its scheme is file,",
    "1http://h.example/": "it has no scheme",
    "http://": "it names no host",
    "https:///": "it names no host",
    "http://me@/": "it names no host",
    "http://./": "it has an empty label",
    "http://h..example/": "an empty label",
    "http://h.example../": "an empty label",
    "http://h example/": "its host holds ' '",
    "http://a%2fb/": "its host holds '/'",
    "http://a<b/": "its host holds '<'",
    "http://a%zz/": "its host holds '%'",
    "http://(h)/": "its host holds '('",
    "http://%FF/": "escapes that are not UTF-8",
    "http://\ufdd0.example/": "its host cannot exist",
    "http://a\u200d.example/": "its host cannot exist",
    "http://xn--a.example/": "xn--a is no punycode",
    "http://xn--bücher.example/": "its host cannot exist",
    "http://xn--bcher-2pa.example/": "xn--bcher-2pa is no punycode",
    f"http://{LONG}x.example/": "a label of 64 characters; the limit of DNS is 63",
    "http://" + ".".join(["x" * 50] * 6) + "/": "its host has 305 characters; the limit of DNS is 253",
    "http://256.1.1.1/": "ends in a number and is no IPv4 address",
    "http://1.2.3.4.5/": "is no IPv4 address",
    "http://4294967296/": "is no IPv4 address",
    "http://08.1/": "is no IPv4 address",
    "http://a.1/": "is no IPv4 address",
    "http://[::1/": "begins as an IPv6 address and does not end as one",
    "http://[::1%25eth0]/": "is no IPv6 address",
    "http://[::g]/": "is no IPv6 address",
    "http://::1/": "it names no host",
    "http://h.example:65536/": "its port 65536 is beyond 65535",
    "http://h.example:x/": "its port 'x' is no number",
    "http://h.example:８0/": "is no number",
    "http://h.example:80:90/": "its port '80:90' is no number",
    "http://h.example/" + "a" * (1025 - 17): "it has 1,025 bytes; the limit of an id is 1,024",
    "http://h.example/" + "a/../" * 13_104: "it has 65,537 characters",
    "http://h.example/\udcff": "it holds bytes that are not UTF-8",
}  # fmt: skip


def test_all_spellings_of_a_url_have_one_form() -> None:
    for form, spellings in SPELLINGS.items():
        assert {spelling: normalise(spelling) for spelling in spellings} == dict.fromkeys(spellings, form)
        assert normalise(form) == form


def test_what_is_no_url_of_a_page_is_refused_with_its_reason() -> None:
    for page, reason in REFUSED.items():
        with pytest.raises(BadUrl) as caught:
            normalise(page)
        assert reason.replace("it has an empty", "its host has an empty") in caught.value.reason, page
        assert caught.value.reason in str(caught.value)
        assert caught.value.url == page
        assert len(str(caught.value)) < 400


BASE = "http://h.example:8080/a/b;p?q=1#x"


@pytest.mark.parametrize(
    ("link", "found"),
    [
        # RFC 3986, 5.4, as far as http goes
        ("g", "http://h.example:8080/a/g"), ("./g", "http://h.example:8080/a/g"), ("g/", "http://h.example:8080/a/g/"),
        ("/g", "http://h.example:8080/g"), ("//g", "http://g/"), ("?y", "http://h.example:8080/a/b;p?y"),
        ("g?y", "http://h.example:8080/a/g?y"), ("#s", "http://h.example:8080/a/b;p?q=1"), (";x", "http://h.example:8080/a/;x"),
        ("", "http://h.example:8080/a/b;p?q=1"), (".", "http://h.example:8080/a/"), ("..", "http://h.example:8080/"),
        ("../g", "http://h.example:8080/g"), ("../../../g", "http://h.example:8080/g"), ("g;x=1/../y", "http://h.example:8080/a/y"),
        ("g?y/../x", "http://h.example:8080/a/g?y/../x"), ("g#s/../x", "http://h.example:8080/a/g"),
        # beyond it, as browsers do
        ("http:g", "http://h.example:8080/a/g"), ("http:/g", "http://h.example:8080/g"), ("http:", "http://h.example:8080/a/b;p?q=1"),
        ("http:?y", "http://h.example:8080/a/b;p?y"), ("http://g", "http://g/"), ("HTTP:g", "http://h.example:8080/a/g"),
        ("https:g", "https://g/"), ("https:/g", "https://g/"), ("\\g", "http://h.example:8080/g"), ("\\\\g\\x", "http://g/x"),
        ("///g/x", "http://g/x"), ("?", "http://h.example:8080/a/b;p"), (" g\n", "http://h.example:8080/a/g"),
        ("a:b", None), ("javascript:void(0)", None), ("mailto:x", None), ("//", None), ("//:80", None),
        ("http://", None), ("./a:b", "http://h.example:8080/a/a:b"),
    ],
)  # fmt: skip
def test_a_link_is_joined_to_the_page_that_holds_it(link: str, found: str | None) -> None:
    if found is None:
        with pytest.raises(BadUrl):
            normalise(link, BASE)
    else:
        assert normalise(link, BASE) == found


PIECES = [
    *"abcXYZ019.-_~/\\?#@:&=%+;,[](){}<>|^`'\" \t\n\x00é ß。ｈ日☃\u200d\udcff",
    "%2e",
    "%41",
    "%C3",
    "xn--",
    "/../",
]
ODD = st.lists(st.sampled_from(PIECES), max_size=30).map("".join)


@given(
    scheme=st.sampled_from(["http://", "https://", "", "//", "http:", "HTTP:/"]),
    rest=ODD,
    base=st.sampled_from([None, BASE]),
)
@example(scheme="http://", rest="h.example/%2e%2e", base=None)
def test_the_form_of_a_form_is_itself(scheme: str, rest: str, base: str | None) -> None:
    try:
        form = normalise(scheme + rest, base)
    except BadUrl:
        return
    assert normalise(form) == form
    assert normalise(form, "https://other.example/x") == form
    assert form.isascii()
    assert form.isprintable()
    assert " " not in form
    assert len(form) <= arguments.MAX_ID
    assert host(form).encode() == arguments.host(form) == arguments.host(host(form)), "the queue names another host"


SEGMENT = st.text("aZ09._~!$()*+,;=:@&-", max_size=6)
PLAIN = st.builds(
    lambda labels, path, query: f"http://{'.'.join(labels)}.example/{'/'.join(path)}{query}",
    st.lists(st.text("az09-_", min_size=1, max_size=5), min_size=1, max_size=3),
    st.lists(SEGMENT, max_size=4),
    st.builds("?{}={}".format, st.text("aZ9._~-", min_size=1, max_size=4), st.text("aZ9._~-&", max_size=4))
    | st.just(""),
)


@given(PLAIN)
@example("http://a.b/?a")
@example("http://a.bc/?a=")
@example("http://a.bc/a.b/.c/..d/...")
@example("http://a.bc//")
@example("http://a.bc/..")
@example("http://xn--a.bc/")
@example("http://a.xn--a/")
def test_the_quick_way_gives_what_the_long_way_gives(page: str) -> None:
    assert not _NORMAL.fullmatch(page) or _formed(_read(page, None)) == page


def test_hostile_urls_take_no_time() -> None:
    """A pattern that tries many ways would take minutes for one of these."""
    start = time.process_time()
    for piece in [
        "a.",
        "a-",
        "a" * 60 + ".",
        "/.",
        "/..",
        "%",
        "&",
        "=",
        "@",
        ":",
        "0x.",
        "é",
        "\u0300",
        "[",
        "//",
        "xn--a.",
    ]:
        for rest in ("", "/", "!", "/ "):
            for first in ("http://", "http://h.example/", "http://h.example/?"):
                with suppress(BadUrl):
                    normalise((first + piece * 15_000)[:60_000] + rest)
    assert time.process_time() - start < 20


# ---- hosts and domains


@pytest.mark.parametrize(
    ("page", "on", "belongs"),
    [
        ("https://www.Example.CO.UK:8443/x", "www.example.co.uk:8443", "example.co.uk"),
        ("http://example.com/", "example.com", "example.com"),
        ("http://a.b.c.example.com:80/", "a.b.c.example.com", "example.com"),
        ("http://me.github.io/x", "me.github.io", "me.github.io"),
        ("http://x.me.github.io/x", "x.me.github.io", "me.github.io"),
        ("http://co.uk/", "co.uk", "co.uk"),
        ("http://localhost:8000/", "localhost:8000", "localhost"),
        ("http://a.city.kawasaki.jp/", "a.city.kawasaki.jp", "city.kawasaki.jp"),
        ("http://a.b.other.kawasaki.jp/", "a.b.other.kawasaki.jp", "b.other.kawasaki.jp"),
        ("http://www.食狮.公司.cn/", "www.xn--85x722f.xn--55qx5d.cn", "xn--85x722f.xn--55qx5d.cn"),
        ("http://a.b.no-such-suffix/", "a.b.no-such-suffix", "b.no-such-suffix"),
        ("http://0x7f.1:81/", "127.0.0.1:81", "127.0.0.1"),
        ("http://[0:0::1]:81/", "[::1]:81", "[::1]"),
        ("https://[2001:DB8::1]/", "[2001:db8::1]", "[2001:db8::1]"),
    ],
)
def test_a_url_has_a_host_and_a_registrable_domain(page: str, on: str, belongs: str) -> None:
    assert (host(page), domain(page)) == (on, belongs)
    assert arguments.host(belongs) == belongs.encode(), "a group of this name would be another"


def test_without_the_extra_the_missing_package_is_named() -> None:
    a_domain = "from timeoutq.urls import domain; domain('http://a.example/')"
    a_sitemap = "from timeoutq.urls import sitemap; list(sitemap('http://127.0.0.1:1/'))"
    uses = {"w3lib": "import timeoutq.urls", "idna": "import timeoutq.urls"}
    for missing, used in {**uses, "publicsuffixlist": a_domain, "httpx": a_sitemap}.items():
        code = f"import sys; sys.modules[{missing!r}] = None\n{used}"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert f"with the package {missing}" in done.stderr or f"the package {missing}, which" in done.stderr, (
            done.stderr
        )
        assert "MissingExtra" in done.stderr
        assert "pip install 'timeoutq[crawl]'" in done.stderr
