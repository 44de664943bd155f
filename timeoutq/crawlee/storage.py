"""The storage client: opens request queues; datasets and key-value stores are those of another client."""

from __future__ import annotations

import re
from collections.abc import Hashable
from hashlib import sha256
from typing import Any, Self, Unpack

from crawlee.configuration import Configuration
from crawlee.storage_clients import FileSystemStorageClient, StorageClient
from crawlee.storage_clients._base import DatasetClient, KeyValueStoreClient

from timeoutq.client import AsyncQueue
from timeoutq.client.face import Settings
from timeoutq.crawlee.queue import TimeoutqRequestQueueClient
from timeoutq.words.model import raw

UNNAMED = "unnamed."  # how the names of queues begin that have none in crawlee, where no name has a dot


class TimeoutqStorageClient(StorageClient):
    """A storage client of crawlee, whose request queues several processes and machines share.

    `RequestQueue.open(name="news")` opens the queue `news`.
    """

    def __init__(
        self, url: str | None = None, *, storage: StorageClient | None = None, **settings: Unpack[Settings]
    ) -> None:
        """Prepare; a queue connects when it is opened.

        `url` is the server, as of `Queue`, and so are the other arguments, such as `timeout`, `politeness` or
        `max_crashes`. `storage` has the datasets and key-value stores: crawlee's `FileSystemStorageClient` if omitted.
        Raises `InvalidInput` for an argument that cannot be used.
        """
        AsyncQueue("checked", url, **settings)
        self._url, self._settings = url, settings
        self._storage = storage or FileSystemStorageClient()
        self._key = object()
        self._queues: list[TimeoutqRequestQueueClient] = []

    def get_storage_client_cache_key(self, configuration: Configuration) -> Hashable:
        """Tell the storages of this client from those of all others."""
        return self._key, self._storage.get_storage_client_cache_key(configuration)

    async def create_rq_client(
        self, *, id: str | None = None, name: str | None = None, alias: str | None = None,
        configuration: Configuration | None = None,
    ) -> TimeoutqRequestQueueClient:  # fmt: skip
        """Open a queue. One without a name is purged, if the configuration says so and no other process lives on it."""
        configuration = configuration or Configuration.get_global_configuration()
        chosen = id or name or _unnamed(alias)
        is_named = not chosen.startswith(UNNAMED)
        queue = AsyncQueue(chosen, self._url, **self._settings)
        client = TimeoutqRequestQueueClient(queue, chosen if is_named else None)
        self._queues.append(client)
        if not is_named:
            await client.join(configuration.purge_on_start)
        return client

    async def create_dataset_client(self, **chosen: Any) -> DatasetClient:
        """Open a dataset of the other storage client."""
        return await self._storage.create_dataset_client(**chosen)

    async def create_kvs_client(self, **chosen: Any) -> KeyValueStoreClient:
        """Open a key-value store of the other storage client."""
        return await self._storage.create_kvs_client(**chosen)

    async def close(self) -> None:
        """Give back the requests that this process holds, and close the connections; so does the end of a program."""
        for client in self._queues:
            await client.close()
        self._queues.clear()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _unnamed(alias: str | None) -> str:
    chosen = "default" if alias in (None, "__default__") else str(alias)
    fits = re.fullmatch(r"[A-Za-z0-9._-]{1,50}", chosen)
    return UNNAMED + (chosen if fits else sha256(raw(chosen)).hexdigest()[:32])
