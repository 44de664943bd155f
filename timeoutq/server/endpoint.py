"""One server to connect to: its host and port or its socket, TLS, and what signs on there."""

from __future__ import annotations

import copy
import inspect
import os
import ssl
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from timeoutq.server.calls import Command
from timeoutq.words.errors import InvalidInput


class Endpoint:
    """One server; `settings` have the names and the meaning of those of a redis-py connection."""

    def __init__(self, settings: Mapping[str, Any], *, tls: bool) -> None:
        """Prepare, and read the certificates. Raises `InvalidInput` for files and settings of TLS of no use."""
        self._settings = settings
        self.path: str | None = settings.get("path")
        self.host = str(settings.get("host") or "localhost")
        self.port = int(settings.get("port") or 6379)
        given = {name.removeprefix("ssl_"): value for name, value in settings.items() if value is not None}
        self.context = _context(given) if tls else None
        """What TLS checks and shows; None without TLS."""

    def at(self, host: str, port: int) -> Self:
        """Give another server, which is spoken to in the same way, with the same TLS context."""
        found = copy.copy(self)
        found.host, found.port = host, port
        return found

    def __str__(self) -> str:
        return self.path or f"{self.host}:{self.port}"

    def credentials(self) -> Sequence[str]:
        """Give the words of AUTH, as they are now."""
        provider = self._settings.get("credential_provider")
        if provider is not None:
            return tuple(map(str, provider.get_credentials()))
        user, password = self._settings.get("username"), self._settings.get("password")
        if user:
            return str(user), str(password or "")
        return (str(password),) if password else ()

    async def async_credentials(self) -> Sequence[str]:
        """Give the words of AUTH, as they are now."""
        provider = self._settings.get("credential_provider")
        if provider is None:
            return self.credentials()
        found = provider.get_credentials_async()
        return tuple(map(str, await found if inspect.isawaitable(found) else found))

    def greeting(self, credentials: Sequence[str]) -> list[Command]:
        """Give the first commands of a new connection."""
        said: list[Command] = []
        if credentials:
            said.append(("AUTH", *credentials))
        if name := self._settings.get("client_name"):
            said.append(("CLIENT", "SETNAME", str(name)))
        if db := self._settings.get("db"):
            said.append(("SELECT", int(db)))
        return said


def _context(given: Mapping[str, Any]) -> ssl.SSLContext:
    if any(value for name, value in given.items() if "ocsp" in name):
        raise InvalidInput("client= checks certificates by OCSP, which timeoutq does not: pass a URL")
    file, folder = given.get("ca_certs"), given.get("ca_path")
    if folder is not None and not Path(folder).is_dir():
        raise InvalidInput(f"the CA certificates in {folder!r} cannot be read: it is not a folder")
    try:
        context = ssl.create_default_context(cafile=file, capath=folder, cadata=given.get("ca_data"))
    except (OSError, ValueError) as error:
        raise InvalidInput(f"the CA certificates in {file!r} cannot be read: {_why_not(error, file)}") from None
    needs = given.get("cert_reqs", "required")
    named = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
    mode = named[needs] if isinstance(needs, str) else ssl.VerifyMode(needs)
    context.check_hostname = bool(given.get("check_hostname", True)) and mode != ssl.CERT_NONE
    context.verify_mode = mode
    cert, key = given.get("certfile"), given.get("keyfile")
    if cert:
        password = given.get("password")
        try:
            # without a password, nobody is asked for one on a terminal
            context.load_cert_chain(cert, key, (lambda: "") if password is None else password)
        except (OSError, ValueError) as error:
            names = repr(cert) if key is None else f"{cert!r} with the key {key!r}"
            raise InvalidInput(f"the client certificate {names} cannot be used: {_why_not(error, cert, key)}") from None
    if given.get("min_version"):
        context.minimum_version = given["min_version"]
    if given.get("ciphers"):
        try:
            context.set_ciphers(given["ciphers"])
        except ssl.SSLError:
            raise InvalidInput("ssl_ciphers names no cipher of this OpenSSL") from None
    for flag in given.get("include_verify_flags") or ():
        context.verify_flags |= flag
    for flag in given.get("exclude_verify_flags") or ():
        context.verify_flags &= ~flag
    return context


def _why_not(error: Exception, *files: str | None) -> str:
    missing = [name for name in files if name is not None and not os.access(name, os.R_OK)]
    if missing:
        return f"{missing[0]!r} is missing, or not for this user to read"
    said = str(error)
    if "KEY_VALUES_MISMATCH" in said:
        return "the key is that of another certificate"
    if "NO_CERTIFICATE_OR_CRL_FOUND" in said or "PEM lib" in said or "NO_START_LINE" in said:
        return (
            "it holds no certificate in PEM, or no key, or the key has a password (ssl_password) that is not this one"
        )
    return said
