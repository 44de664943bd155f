"""A CA, certificates of servers and clients that it signs, and a server that takes TLS only."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import trustme

from tests.rig.servers import redis_server
from timeoutq.server.embedded import EmbeddedServer


class Certificates:
    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.authority = trustme.CA()
        self.ca = folder / "ca.pem"
        self.authority.cert_pem.write_to_path(self.ca)

    def issue(self, name: str, *hosts: str, **settings: Any) -> tuple[Path, Path]:
        issued = self.authority.issue_cert(*hosts, **settings)
        cert, key = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        cert.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        issued.private_key_pem.write_to_path(key)
        return cert, key

    def settings(self, *hosts: str, clients: bool = False, port: int = 0, **issued: Any) -> dict[str, Any]:
        cert, key = self.issue("server", *hosts, **issued)
        return {
            "tls-port": port,
            "tls-cert-file": f'"{cert}"',
            "tls-key-file": f'"{key}"',
            "tls-ca-cert-file": f'"{self.ca}"',
            "tls-auth-clients": clients,
        }


@contextmanager
def tls_server(
    certificates: Certificates, *hosts: str, clients: bool = False, **issued: Any
) -> Iterator[tuple[EmbeddedServer, int]]:
    """Run a server with a plain port and one that takes TLS only; give the server and that port."""
    with socket.socket() as spare:
        spare.bind(("127.0.0.1", 0))
        port: int = spare.getsockname()[1]
    settings = certificates.settings(*hosts, clients=clients, port=port, **issued)
    with EmbeddedServer(binary=redis_server(), config=settings) as server:
        yield server, port
