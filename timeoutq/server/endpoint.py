"""One server to connect to: its host and port or its socket, TLS, and what signs on there.

`connection.py` makes endpoints from a URL or from a client that the caller gave; `road.py` connects to them.
"""

from __future__ import annotations

import inspect
import ssl
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from timeoutq.server.calls import Command
from timeoutq.words.errors import InvalidInput


class Endpoint:
    """One server; `settings` have the names and the meaning of those of a redis-py connection."""

    def __init__(self, settings: Mapping[str, Any], *, tls: bool) -> None:
        self._settings = settings
        self.path: str | None = settings.get("path")
        self.host = str(settings.get("host") or "localhost")
        self.port = int(settings.get("port") or 6379)
        self._tls = tls

    def __str__(self) -> str:
        return self.path or f"{self.host}:{self.port}"

    @cached_property
    def context(self) -> ssl.SSLContext | None:
        """What TLS checks and shows; None without TLS. Raises `InvalidInput` or `OSError` for files of no use."""
        if not self._tls:
            return None
        given = {name.removeprefix("ssl_"): value for name, value in self._settings.items() if value is not None}
        if any(value for name, value in given.items() if "ocsp" in name):
            raise InvalidInput("client= checks certificates by OCSP, which timeoutq does not: pass a URL")
        context = ssl.create_default_context(
            cafile=given.get("ca_certs"), capath=given.get("ca_path"), cadata=given.get("ca_data")
        )
        needs = given.get("cert_reqs", "required")
        named = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
        mode = named[needs] if isinstance(needs, str) else ssl.VerifyMode(needs)
        context.check_hostname = bool(given.get("check_hostname", True)) and mode != ssl.CERT_NONE
        context.verify_mode = mode
        if given.get("certfile"):
            context.load_cert_chain(given["certfile"], given.get("keyfile"), given.get("password"))
        if given.get("min_version"):
            context.minimum_version = given["min_version"]
        if given.get("ciphers"):
            context.set_ciphers(given["ciphers"])
        for flag in given.get("include_verify_flags") or ():
            context.verify_flags |= flag
        for flag in given.get("exclude_verify_flags") or ():
            context.verify_flags &= ~flag
        return context

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
        """Give what a new connection says first."""
        said: list[Command] = []
        if credentials:
            said.append(("AUTH", *credentials))
        if name := self._settings.get("client_name"):
            said.append(("CLIENT", "SETNAME", str(name)))
        if db := self._settings.get("db"):
            said.append(("SELECT", int(db)))
        return said
