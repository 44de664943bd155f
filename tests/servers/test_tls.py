"""TLS to a real server: a private CA, client certificates, Sentinel too; and what is said when it fails."""

from __future__ import annotations

import select
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.rig.certificates import Certificates, tls_server
from tests.rig.faces import Blocking
from tests.rig.replication import SERVICE, Sentinel
from tests.rig.servers import redis_server
from tests.rig.waiting import wait_until
from timeoutq import AccessDenied, InvalidInput, NotRedis, Queue, TimeoutqError, Unavailable
from timeoutq.server.connections import Connection
from timeoutq.server.server import Endpoint, Server
from timeoutq.server.sockets import at_once

FACES: list[Any] = [Queue, Blocking]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """A private CA."""
    return Certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def plain_and_tls(certificates: Certificates) -> Iterator[tuple[int, int]]:
    """The ports of a server, plain and TLS, that wants no certificates of clients."""
    with tls_server(certificates, "localhost", "127.0.0.1") as (server, port):
        assert server.port is not None
        yield server.port, port


@pytest.fixture(scope="module")
def strict(certificates: Certificates) -> Iterator[int]:
    """The TLS port of a server that wants certificates of clients."""
    with tls_server(certificates, "127.0.0.1", clients=True) as (_, port):
        yield port


def refusal(kind: Any, url: str, error: type[TimeoutqError], *, at_once: bool = True) -> str:
    """Give what is said when a put fails so; hopeless as it is, nobody waits for the deadline.

    A server of TLS 1.3 refuses a client only after the client's handshake, and closes the connection on the words that
    the client has sent meanwhile: the reset mostly overtakes the refusal, and the client asks again until it has read
    one. So this is not `at_once`: how often it asks is chance.
    """
    began = time.monotonic()
    with kind("q", url, deadline=10) as queue, pytest.raises(TimeoutqError) as caught:
        queue.put("a")
    if error is AccessDenied and "Does it want a client certificate" in str(caught.value):
        error = Unavailable  # the server of TLS 1.3 may have hung up before its refusal was read
    assert type(caught.value) is error
    if at_once and error is not Unavailable:
        assert time.monotonic() - began < 2.5
    return str(caught.value)


@pytest.mark.parametrize("scheme", ["rediss", "valkeys"])
@pytest.mark.parametrize("kind", FACES)
def test_a_private_ca_is_named_in_the_url(
    kind: Any, scheme: str, plain_and_tls: tuple[int, int], certificates: Certificates
) -> None:
    url = f"{scheme}://127.0.0.1:{plain_and_tls[1]}/0?ssl_ca_certs={certificates.ca}"
    with kind("q", url) as queue:
        queue.put("a")
        assert queue.ack(queue.claim()[0]) == "ok"
        queue.purge()


@pytest.mark.parametrize("kind", FACES)
def test_a_private_ca_is_named_in_the_environment(
    kind: Any, plain_and_tls: tuple[int, int], certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIMEOUTQ_CA", str(certificates.ca))
    with kind("q", f"rediss://localhost:{plain_and_tls[1]}/0") as queue:
        assert queue.put("a").added == 1
        queue.purge()


def test_what_tls_sends_after_its_handshake_is_not_taken_for_a_reply_that_nobody_read(
    plain_and_tls: tuple[int, int], certificates: Certificates
) -> None:
    server = Server(f"rediss://127.0.0.1:{plain_and_tls[1]}/0?ssl_ca_certs={certificates.ca}", None, 5.0)
    road = Connection.open(next_place(server), 5.0, 5.0)
    wait_until(lambda: select.select([road._plug], [], [], 0)[0])  # the session tickets of TLS 1.3
    assert not road.is_stale()
    assert road.exchange([("PING",)], 5.0) == [b"PONG"]
    road.abort()


def test_the_files_of_tls_are_read_once_for_all_connections_and_all_nodes(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    real = ssl.SSLContext.load_cert_chain

    def load(context: ssl.SSLContext, file: str, *words: Any) -> None:
        read.append(file)
        real(context, file, *words)

    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", load)
    cert, key = certificates.issue("client", "client.example")
    options = f"ssl_ca_certs={certificates.ca}&ssl_certfile={cert}&ssl_keyfile={key}"
    server = Server(f"rediss+cluster://a:1,b:2?{options}", None, 5.0)
    places = [next_place(one) for one in (server, server.node("a", 1), server.node("b", 2), server.within(1.0))]
    assert len({id(place.context) for place in places}) == 1
    assert [str(place) for place in places] == ["a:1", "a:1", "b:2", "a:1"]
    assert read == [str(cert)]


def next_place(server: Server) -> Endpoint:
    """Give where a link to this server connects to."""

    async def nobody(*_: object) -> None:
        raise AssertionError("it asks somebody first")

    return at_once(server.find(nobody))


@pytest.mark.parametrize("kind", FACES)
def test_a_client_certificate_is_named_in_the_url(kind: Any, strict: int, certificates: Certificates) -> None:
    cert, key = certificates.issue("client", "client.example")
    url = f"rediss://127.0.0.1:{strict}/0?ssl_ca_certs={certificates.ca}&ssl_certfile={cert}&ssl_keyfile={key}"
    with kind("q", url) as queue:
        assert queue.put("a").added == 1
        assert len(queue.claim(wait=0.1)) == 1
        queue.purge()


@pytest.mark.parametrize("kind", FACES)
def test_a_client_certificate_and_its_key_may_be_in_one_file(
    kind: Any, strict: int, certificates: Certificates, tmp_path: Path
) -> None:
    both = tmp_path / "client.pem"
    both.write_bytes(b"".join(path.read_bytes() for path in certificates.issue("client", "client.example")))
    with kind("q", f"rediss://127.0.0.1:{strict}/0?ssl_ca_certs={certificates.ca}&ssl_certfile={both}") as queue:
        assert queue.put("a").added == 1
        queue.purge()


@pytest.mark.parametrize("kind", FACES)
def test_a_client_certificate_is_named_in_the_environment(
    kind: Any, strict: int, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    cert, key = certificates.issue("client", "client.example")
    for name, path in (("CA", certificates.ca), ("CERT", cert), ("KEY", key)):
        monkeypatch.setenv(f"TIMEOUTQ_{name}", str(path))
    with kind("q", f"rediss://127.0.0.1:{strict}/0?ssl_min_version=1.3") as queue:
        assert queue.put("a").added == 1
        queue.purge()


@pytest.mark.parametrize("kind", FACES)
def test_a_server_that_speaks_only_an_older_tls_than_the_url_wants_is_refused(
    kind: Any, certificates: Certificates
) -> None:
    # a server of its own: with each setting it reads its certificate anew, which servers of other tests write, too
    with tls_server(certificates, "127.0.0.1") as (server, port):
        with redis.Redis(port=server.port or 0) as raw:
            raw.config_set("tls-protocols", "TLSv1.2")
        url = f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={certificates.ca}&ssl_min_version="
        with kind("q", f"{url}1.2") as queue:
            assert queue.put("a").added == 1
        with kind("q", f"{url}1.3", deadline=1) as queue, pytest.raises(TimeoutqError):
            queue.put("a")


@pytest.mark.parametrize("kind", FACES)
def test_a_redis_py_client_over_tls_is_followed(
    kind: Any, plain_and_tls: tuple[int, int], certificates: Certificates
) -> None:
    with redis.Redis(port=plain_and_tls[1], ssl=True, ssl_ca_certs=str(certificates.ca)) as client:
        with kind("q", client=client) as queue:
            assert queue.url.startswith("rediss://")
            assert queue.put("a").added == 1
            queue.purge()


# ---- Sentinel


@contextmanager
def watched(certificates: Certificates, folder: Path) -> Iterator[str]:
    """Run a server and a sentinel that watches it, all over TLS with certificates on both sides; give the host."""
    settings = certificates.settings("127.0.0.1", clients=True)
    with tls_server(certificates, "127.0.0.1", clients=True) as (_, port), socket.socket() as spare:
        spare.bind(("127.0.0.1", 0))
        own: int = spare.getsockname()[1]
        spare.close()
        lines = [f"{name} {value if not isinstance(value, bool) else 'yes'}" for name, value in settings.items()]
        lines = [line for line in lines if not line.startswith("tls-port")]
        lines += [f"tls-port {own}", "port 0", "bind 127.0.0.1", "tls-replication yes", f"dir {folder}"]
        lines += [f"sentinel monitor {SERVICE} 127.0.0.1 {port} 1"]
        path = folder / "sentinel.conf"
        path.write_text("\n".join(lines) + "\n")
        sentinel = Sentinel(redis_server(), path, own)
        try:
            yield f"127.0.0.1:{own}"
        finally:
            sentinel.kill()


def test_sentinels_and_the_server_behind_them_are_spoken_to_over_tls(
    certificates: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cert, key = certificates.issue("client", "client.example")
    with watched(certificates, tmp_path) as host:
        bare = f"rediss+sentinel://{host}/{SERVICE}/0"
        named = f"{bare}?ssl_ca_certs={certificates.ca}&ssl_certfile={cert}&ssl_keyfile={key}"

        def put(kind: Any, url: str, task: str) -> bool:
            with kind("q", url) as queue:
                return bool(queue.put(task).added == 1)

        assert put(Queue, named, "a")
        assert put(Blocking, named, "b")
        assert "is not trusted" in refusal(Queue, bare, AccessDenied)
        assert "is not trusted" in refusal(Blocking, bare, AccessDenied)
        for name, path in (("CA", certificates.ca), ("CERT", cert), ("KEY", key)):
            monkeypatch.setenv(f"TIMEOUTQ_{name}", str(path))
        assert put(Queue, bare, "c")
        assert put(Blocking, bare, "d")
        kind: Any = redis.Sentinel
        client = kind(
            [tuple(host.split(":"))],
            sentinel_kwargs={
                "ssl": True, "ssl_ca_certs": str(certificates.ca), "ssl_certfile": str(cert), "ssl_keyfile": str(key),
            },
            ssl=True, ssl_ca_certs=str(certificates.ca), ssl_certfile=str(cert), ssl_keyfile=str(key),
        ).master_for(SERVICE)  # fmt: skip
        with Queue("q", client=client) as queue:
            assert queue.stats().todos == 4
            assert queue.url.startswith("rediss+sentinel://")
        client.close()


# ---- what is said when it fails


@pytest.mark.parametrize("kind", FACES)
def test_a_certificate_of_an_unknown_ca_is_said_with_the_cure(kind: Any, plain_and_tls: tuple[int, int]) -> None:
    said = refusal(kind, f"rediss://127.0.0.1:{plain_and_tls[1]}/0", AccessDenied)
    assert f"the certificate that rediss://127.0.0.1:{plain_and_tls[1]}/0 shows is not trusted: " in said
    assert "?ssl_ca_certs=/path/ca.pem" in said
    assert "TIMEOUTQ_CA" in said
    assert "is the server up" not in said


@pytest.mark.parametrize("kind", FACES)
def test_a_certificate_for_another_host_is_said_with_the_cure(kind: Any, certificates: Certificates) -> None:
    with tls_server(certificates, "queue.example") as (_, port):
        url = f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={certificates.ca}"
        said = refusal(kind, url, AccessDenied)
        assert "is not trusted: IP address mismatch, certificate is not valid for '127.0.0.1'" in said
        assert "ssl_check_hostname=false" in said
        with kind("q", f"{url}&ssl_check_hostname=false") as queue:
            assert queue.put("a").added == 1
        with kind("q", f"rediss://127.0.0.1:{port}/0?ssl_cert_reqs=none") as queue:
            assert queue.put("b").added == 1


@pytest.mark.parametrize("kind", FACES)
def test_an_expired_certificate_is_said_with_the_cure(kind: Any, certificates: Certificates) -> None:
    past = datetime.now(UTC) - timedelta(days=3)
    with tls_server(certificates, "127.0.0.1", not_before=past, not_after=past + timedelta(days=1)) as (_, port):
        said = refusal(kind, f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={certificates.ca}", AccessDenied)
    assert "is not trusted: certificate has expired; renew it" in said


@pytest.mark.parametrize("version", ["1.2", "1.3"])
@pytest.mark.parametrize("kind", FACES)
def test_a_missing_client_certificate_is_said_with_the_cure(
    kind: Any, version: str, certificates: Certificates
) -> None:
    with tls_server(certificates, "127.0.0.1", clients=True) as (server, port):
        with redis.Redis(port=server.port or 0) as raw:
            raw.config_set("tls-protocols", f"TLSv{version}")
        url = f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={certificates.ca}"
        said = refusal(kind, url, AccessDenied, at_once=version == "1.2")
    if version == "1.2":
        assert "does not take this client's certificate, or misses one" in said
    assert "TIMEOUTQ_CERT and TIMEOUTQ_KEY" in said


@pytest.mark.parametrize("kind", FACES)
def test_plain_words_to_a_tls_port_are_told_to_use_rediss(kind: Any, plain_and_tls: tuple[int, int]) -> None:
    with kind("q", f"redis://127.0.0.1:{plain_and_tls[1]}/0", deadline=1) as queue:
        with pytest.raises((Unavailable, NotRedis), match="rediss://") as caught:
            queue.put("a")
    assert "is the server up" not in str(caught.value)


@pytest.mark.parametrize("kind", FACES)
def test_tls_to_a_plain_port_is_told_to_use_redis(
    kind: Any, plain_and_tls: tuple[int, int], certificates: Certificates
) -> None:
    url = f"rediss://127.0.0.1:{plain_and_tls[0]}/0?ssl_ca_certs={certificates.ca}"
    with kind("q", url, deadline=1) as queue:
        with pytest.raises((Unavailable, NotRedis), match="speak TLS"):
            queue.put("a")


# ---- a server in protected mode


@contextmanager
def protected() -> Iterator[int]:
    """Listen on loopback, and do as a server in protected mode does with clients from elsewhere."""
    said = b"-DENIED Redis is running in protected mode because protected mode is enabled and no password is set\r\n"
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.05)
        stop = threading.Event()

        def serve() -> None:
            while not stop.is_set():
                try:
                    link, _ = server.accept()
                except TimeoutError:
                    continue
                link.sendall(said)
                link.shutdown(socket.SHUT_WR)
                link.close()

        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1]
        stop.set()
        thread.join()


@pytest.mark.parametrize("kind", FACES)
def test_a_server_in_protected_mode_is_said_with_the_cure(kind: Any) -> None:
    with protected() as port:
        said = refusal(kind, f"redis://127.0.0.1:{port}/0", AccessDenied)
        assert "is in protected mode and takes local clients only: give it a password" in said
        said = refusal(kind, f"redis://:c4n4ry@127.0.0.1:{port}/0", AccessDenied)
    assert "protected mode" in said
    assert "c4n4ry" not in said


# ---- certificates that cannot be used


def test_certificates_that_cannot_be_read_are_named(
    certificates: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cert, key = certificates.issue("client", "client.example")
    _, other = certificates.issue("other", "other.example")
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("not a certificate")
    cases = {
        f"ssl_ca_certs={tmp_path}/none.pem": "none.pem' is missing",
        f"ssl_ca_certs={garbage}": "it holds no certificate in PEM",
        f"ssl_ca_path={garbage}": "is not a folder",
        f"ssl_certfile={cert}&ssl_keyfile={tmp_path}/none.key": "none.key' is missing",
        f"ssl_certfile={cert}&ssl_keyfile={other}": "the key is that of another certificate",
        f"ssl_certfile={garbage}": "it holds no certificate in PEM",
        f"ssl_keyfile={key}": "ssl_keyfile needs its certificate",
        "ssl_ciphers=none": "names no cipher",
    }
    for options, message in cases.items():
        with pytest.raises(InvalidInput) as caught:
            Queue("q", f"rediss://h/0?{options}")
        assert message in str(caught.value), options
    monkeypatch.setenv("TIMEOUTQ_CA", str(tmp_path / "gone.pem"))
    with pytest.raises(InvalidInput, match=r"gone\.pem' is missing"):
        Queue("q", "rediss://h/0")
    Queue("q", "redis://h/0")  # which uses none


def test_a_key_with_a_password_is_read_with_it_and_nobody_is_asked(certificates: Certificates, tmp_path: Path) -> None:
    import subprocess

    cert, key = certificates.issue("client", "client.example")
    locked = tmp_path / "locked.key"
    subprocess.run(["openssl", "pkey", "-in", key, "-aes256", "-passout", "pass:c4n4ry", "-out", locked], check=True)
    url = f"rediss://h/0?ssl_certfile={cert}&ssl_keyfile={locked}"
    for wrong in (url, f"{url}&ssl_password=wrong"):
        with pytest.raises(InvalidInput, match="ssl_password") as caught:
            Queue("q", wrong)
        assert "c4n4ry" not in str(caught.value)
    for host in ("h", ":the-server's@h"):
        queue = Queue("q", f"{url.replace('h/', f'{host}/')}&ssl_password=c4n4ry")
        assert "c4n4ry" not in f"{queue!r} {queue.url} {queue.server_at!r}"


def test_only_the_ciphers_that_the_url_names_are_offered() -> None:
    cipher = "ECDHE-RSA-AES256-GCM-SHA384"
    context = Server(f"rediss://127.0.0.1:1/0?ssl_ciphers={cipher}", None, 5.0)._endpoint.context
    assert context is not None
    # those of TLS 1.3 are always offered
    assert [one["name"] for one in context.get_ciphers() if one["protocol"] != "TLSv1.3"] == [cipher]
