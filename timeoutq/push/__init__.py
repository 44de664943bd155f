"""Push: a worker that posts each task to a webhook, signed as Standard Webhooks says (extra `web`).

    target      the URL of the receiver, read and checked
    addresses   which addresses a receiver may have
    signing     secrets, and the three headers of a message
    message     the body of a message, and its id
    verdicts    what an answer means for the task
    endpoint    for how long a busy receiver is left alone
    posting     posts within limits, and only to addresses that were judged
    pushing     the handler

`timeoutq push` calls it.
"""

from timeoutq.push.posting import Poster
from timeoutq.push.pushing import PATIENCE, RETRIES, Push
from timeoutq.push.signing import read_secrets
from timeoutq.push.target import Target, check_name, read_target

__all__ = ["PATIENCE", "RETRIES", "Poster", "Push", "Target", "check_name", "read_secrets", "read_target"]
