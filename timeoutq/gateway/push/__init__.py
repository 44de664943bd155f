"""Push: a worker that posts each task to a webhook, signed as Standard Webhooks says (extra `web`).

`timeoutq push` calls it.

The modules, in reading order: each imports only from those above it.

    addresses  Which addresses a receiver may have: those of the public internet, and private ones only where the user
               allows them.
    signing    Signs what is posted, as Standard Webhooks says (standardwebhooks.com): a receiver checks who sent it,
               and when.
    message    What is posted for a task: a JSON object, and the id of the message. Pure; `pushing.py` calls it.
    verdicts   What an answer of the receiver means for the task: a table of statuses, and what is kept as the error.
               Pure.
    endpoint   Whether the receiver takes tasks now: for how long it is blocked, and who tries it afterwards. No I/O, no
               clock.
    target     The URL of the receiver, read and checked before anything is sent. Pure; `timeoutq push` calls it.
    posting    Posts to the receiver, within limits that no receiver can stretch, and only to addresses that were
               judged.
    pushing    The handler that posts tasks: `Push` runs in a worker, one message for each lease.
"""

from timeoutq.gateway.push.posting import Poster
from timeoutq.gateway.push.pushing import PATIENCE, RETRIES, Push
from timeoutq.gateway.push.signing import read_secrets
from timeoutq.gateway.push.target import Target, check_name, read_target

__all__ = ["PATIENCE", "RETRIES", "Poster", "Push", "Target", "check_name", "read_secrets", "read_target"]
