"""Push: a worker that posts each task to a webhook, signed as Standard Webhooks says (extra `web`).

`timeoutq push` calls it.

The modules, in reading order: each imports only from those above it.

    target    Where push may send: the URL of the receiver, and which addresses a receiver may have. Pure but for
              `check_name`.
    message   The message for a task: a JSON object, its id, and the signature of Standard Webhooks
              (standardwebhooks.com).
    endpoint  The receiver, as its answers tell: what each answer means for the task, and for how long nothing is sent.
              No I/O.
    posting   Posts to the receiver, within limits that no receiver can stretch, and only to addresses that were judged.
    pushing   The handler that posts tasks: `Push` runs in a worker, one message for each lease.
"""

from timeoutq.words.errors import MissingExtra

try:
    import httpcore as httpcore
    import httpx as httpx
except ImportError as error:
    raise MissingExtra(
        f"timeoutq push needs the package {error.name}, which is missing: pip install 'timeoutq[web]'"
    ) from error

from timeoutq.gateway.push.message import read_secrets
from timeoutq.gateway.push.posting import Poster
from timeoutq.gateway.push.pushing import PATIENCE, RETRIES, Push
from timeoutq.gateway.push.target import Target, check_name, read_target

__all__ = ["PATIENCE", "RETRIES", "Poster", "Push", "Target", "check_name", "read_secrets", "read_target"]
