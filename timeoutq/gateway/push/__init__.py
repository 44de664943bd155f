"""Push: a worker that posts each task to a webhook, signed as Standard Webhooks says (extra `web`).

The modules, in reading order: each imports only from those above it.

    message  The message for a task: a JSON object, its id, and its signatures as Standard Webhooks says.
    posting  Posts to the receiver: only to addresses that were judged, and within limits that no receiver can stretch.
    pushing  The handler that posts tasks: `Push` runs in a worker, one message for each lease.
"""

from timeoutq.words.errors import MissingExtra

try:
    import httpcore as httpcore
    import httpx as httpx
    import msgspec as msgspec
    import standardwebhooks as standardwebhooks
except ImportError as error:
    raise MissingExtra(
        f"timeoutq push needs the package {error.name}, which is missing: pip install 'timeoutq[web]'"
    ) from error

from timeoutq.gateway.push.message import read_secrets
from timeoutq.gateway.push.posting import Poster, Target, check_name, read_target
from timeoutq.gateway.push.pushing import PATIENCE, RETRIES, Push

__all__ = ["PATIENCE", "RETRIES", "Poster", "Push", "Target", "check_name", "read_secrets", "read_target"]
