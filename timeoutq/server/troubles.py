"""What errors of the network, of TLS and of the server mean: whether to ask again, and what to tell the caller.

No message holds a password.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Iterator

import redis
from redis import exceptions
from redis.exceptions import InvalidResponse, RedisError, ResponseError

from timeoutq.server.address import DEFAULT_URL
from timeoutq.words import errors
from timeoutq.words.errors import AccessDenied, InvalidInput, NotRedis, ServerError, TimeoutqError, Unavailable


class NoPort(InvalidResponse):
    """The map of a cluster names a node without the port for clients."""


NETWORK_ERRORS = (redis.ConnectionError, redis.TimeoutError, OSError, asyncio.TimeoutError, InvalidResponse)
"""The connection broke, or no answer came: the command may have run or not."""

LINK_ERRORS = (*NETWORK_ERRORS, RedisError)
"""Errors of the network, and refusals of the server: for waits that are simply repeated later."""

SCHEMA = 3
"""The layout of the keys that this timeoutq knows, as the library notes it in `meta` (`lua/open.lua`)."""

_AWAY = (exceptions.BusyLoadingError, exceptions.ReadOnlyError, exceptions.ClusterDownError, exceptions.TryAgainError)
_AWAY_WORDS = (
    "LOADING", "BUSY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "NOREPLICAS", "MISCONF", "LATE", "NOGOODSLAVE",
    "READONLY",
)  # fmt: skip
_NO_ACCESS = (exceptions.AuthenticationError, exceptions.AuthorizationError, exceptions.NoPermissionError)
_NO_ACCESS_WORDS = ("NOAUTH", "WRONGPASS", "NOPERM", "ACL failure in script", "The user executing the script can't")


def is_library_missing(error: object) -> bool:
    """Say whether the server does not know the function: it never got the library, lost it, or has an older one."""
    return isinstance(error, ResponseError) and "Function not found" in str(error)


def is_full(error: object) -> bool:
    """Say whether the server has no memory for what it was to write: it wrote nothing."""
    return type(error).__name__ == "OutOfMemoryError" or "OOM" in str(error)[:80]


def is_transient(error: object) -> bool:
    """Say whether the server refused to run a command now, but may run it soon: it did not run."""
    return isinstance(error, _AWAY) or (isinstance(error, ResponseError) and str(error).startswith(_AWAY_WORDS))


def is_hopeless(error: BaseException) -> bool:
    """Say whether an error of the network will come again: a wrong password or certificate, or a foreign server."""
    if isinstance(error, (*_NO_ACCESS, InvalidResponse)) or is_denied(error) or is_no_cluster(error):
        return True
    return is_no_sentinel(error) or _distrust(error, "", "") is not None


def is_denied(error: object) -> bool:
    """Say whether a server in protected mode has refused the client; such a server says so, and hangs up."""
    return isinstance(error, ResponseError) and str(error).startswith("DENIED")


def is_no_cluster(error: object) -> bool:
    """Say whether a server that was asked for the map of its cluster is in no cluster."""
    return isinstance(error, ResponseError) and "cluster support disabled" in str(error)


def is_no_sentinel(error: BaseException) -> bool:
    """Say whether a server that was asked for the primary is no sentinel."""
    return any(_NO_SENTINEL.search(str(one)) for one in _chain(error))


_NO_SENTINEL = re.compile("unknown command .?sentinel", re.IGNORECASE)


def explain(error: BaseException, url: str, secrets: Iterable[str] = (), deadline: float = 0.0) -> TimeoutqError:
    """Translate an error of redis-py, of the network or of the server into one of `errors.py`."""
    if isinstance(error, TimeoutqError):
        return error
    said = str(error) or type(error).__name__
    for secret in secrets:
        said = said.replace(secret, "***")
    if isinstance(error, NoPort):
        return ServerError(f"{url}: {said[:300]}")
    if isinstance(error, InvalidResponse) or "Protocol Error" in said:
        # a TLS server answers a plain client with an alert; the first byte of an alert is 0x15
        cure = "it seems to speak TLS: write rediss://" if r'"\x15"' in said else "check host and port"
        return NotRedis(f"what answers at {url} is not Redis: {said[:200]}; {cure}")
    if isinstance(error, exceptions.MovedError | exceptions.AskError):
        return InvalidInput(
            f"{url} is a node of a cluster, and another node has the keys of this queue: write redis+cluster:// (or "
            "rediss+cluster:// with TLS) in the place of what stands before the host"
        )
    if is_no_cluster(error):
        return InvalidInput(f"{url} is a single server, not a cluster: write redis:// (or rediss:// with TLS)")
    if is_no_sentinel(error):
        return InvalidInput(
            f"what answers at {url} is no sentinel: name the sentinels, which mostly listen on port 26379; or redis://"
        )
    if is_denied(error):
        return AccessDenied(
            f"{url} is in protected mode and takes local clients only: give it a password (requirepass, or an ACL "
            "user) and put that into the URL"
        )
    # a large command that came before the password is "unauthenticated"
    if isinstance(error, _NO_ACCESS) or said.startswith(_NO_ACCESS_WORDS) or "unauthenticated" in said:
        return AccessDenied(f"{url} refuses access: {said[:300]}; {_right(said)}")
    if isinstance(error, exceptions.ReadOnlyError) or said.startswith("READONLY"):
        return errors.ReadOnly(f"{url} is a read-only replica: connect to the primary")
    if is_full(error) or "maxmemory" in said:
        return errors.ServerFull(
            f"{url} is out of memory and takes no new tasks: raise maxmemory, or let workers drain it (claims, and "
            f"acks that put nothing, still work); it said: {said[:200]}"
        )
    if said.startswith("MISCONF"):
        return errors.ServerFull(
            f"{url} cannot write to its disk and takes nothing: free space there; it said: {said[:200]}"
        )
    if said.startswith("SCHEMA") and said.rpartition(" ")[2].startswith("s"):
        return InvalidInput(IS_SHARDED)
    if said.startswith("SCHEMA"):
        older = said.rpartition(" ")[2] < str(SCHEMA)
        cure = "export it with the timeoutq that made it, and import it with this one" if older else "upgrade timeoutq"
        return errors.SchemaMismatch(f"{said.removeprefix('SCHEMA ')}, and this timeoutq knows schema {SCHEMA}: {cure}")
    if is_transient(error):
        return Unavailable(f"{url} did not take the command for {deadline:g} s: {said[:200]}")
    if is_library_missing(error):
        return Unavailable(
            f"{url} does not have the library of timeoutq, and {deadline:g} s were over before it was loaded: try again"
        )
    if said.startswith(("PRIORITY ", "COMPACT ", "BATCH ")):
        return InvalidInput(said.partition(" ")[2])
    if said.startswith("PULL "):
        return InvalidInput(f"pull {said.removeprefix('PULL ')}")
    if said.startswith("WRONGTYPE"):
        return ServerError(f"a key of the queue at {url} is of a foreign type: {said[:200]}; what else uses its names?")
    if isinstance(error, NETWORK_ERRORS):
        return _distrust(error, url, said) or _silence(error, url, said)
    if isinstance(error, RedisError):
        return ServerError(f"{url} answered with an error: {said[:300]}{_older(said)}")
    return ServerError(f"unexpected {type(error).__name__} while talking to {url}: {said[:300]}")


def _older(said: str) -> str:
    none = re.search(r"unknown command .?(?:FCALL|FUNCTION)", said, re.IGNORECASE)
    return "; it has no functions: use Redis 7.0 or later, or Valkey 7.2 or later" if none else ""


_LACKS = re.compile(r"(?:[Uu]ser (\S+)|[Tt]his user) has no permissions to run the '([^']+)' command")
"""Matches the refusal of a command that the user may not run; Redis before 7 does not name the user."""


def _right(said: str) -> str:
    lacks = _LACKS.search(said)
    if lacks is None:
        return "check user, password and ACL"
    more = "; or timeoutq library --load, which is enough once" if lacks[2].lower() == "function|load" else ""
    return f"let an operator run: ACL SETUSER {lacks[1] or 'USER'} +{lacks[2]}{more}"


IS_SHARDED = (
    "the queue is sharded: open it with timeoutq.open_queue(name), or as ShardedQueue or AsyncShardedQueue; a plain "
    "client would put its tasks where nobody looks for them"
)
"""The error of a plain client, which would use the keys of the queue's name, and not those of its shards."""


def is_sharded(error: object) -> bool:
    """Say whether a plain client was refused because the queue has shards."""
    return isinstance(error, InvalidInput) and str(error).endswith(IS_SHARDED)


LOOP_BLOCKED = "the event loop of this process was blocked"
"""How an error begins that is not the server's: nobody read the reply, because the loop did not turn."""

_CERTIFICATES = (
    ("has expired", "renew it"),
    ("not yet valid", "is the clock of this machine right?"),
    ("mismatch", "write the host as the certificate names it, or turn the check off with ?ssl_check_hostname=false"),
    (
        "CA cert does not include",
        "it was not made to be a CA: make the CA with basicConstraints and keyUsage keyCertSign",
    ),
    ("", "if you trust its CA, name that with ?ssl_ca_certs=/path/ca.pem in the URL, or by TIMEOUTQ_CA"),
)
"""Words of OpenSSL about a certificate that it does not trust, and the cure for each."""

_REFUSED = re.compile(
    "ALERT_(CERTIFICATE|BAD_CERTIFICATE|UNKNOWN_CA|HANDSHAKE_FAILURE|ACCESS_DENIED|UNSUPPORTED_CERT)"
    "|alert (certificate|bad certificate|unknown ca|handshake failure|access denied|unsupported cert)",
    re.IGNORECASE,
)


def _distrust(error: BaseException, url: str, said: str) -> TimeoutqError | None:
    # redis-py wraps the error of the TLS layer or, when it asks sentinels, only quotes that error
    whole = " ".join(str(one) for one in _chain(error))
    if "CERTIFICATE_VERIFY_FAILED" in whole or "certificate verify failed" in whole:
        reason = re.search(r"certificate verify failed: (.*?)(?: \(_ssl|\Z)", whole, re.DOTALL)
        told = reason[1] if reason else "it cannot be verified"
        cure = next(cure for sign, cure in _CERTIFICATES if sign in told)
        return AccessDenied(f"the certificate that {url} shows is not trusted: {told[:200].rstrip('.')}; {cure}")
    refused = _REFUSED.search(whole)
    if refused:
        return AccessDenied(
            f"{url} does not take this client's certificate, or misses one ({refused[0]}): name one that its CA "
            "signed, with ?ssl_certfile=/path/client.pem&ssl_keyfile=/path/client.key in the URL, or by TIMEOUTQ_CERT "
            "and TIMEOUTQ_KEY"
        )
    if "No master found" in whole and "AuthenticationError" in whole:
        return AccessDenied(
            f"the sentinels of {url} refuse access: check ?sentinel_password= and sentinel_username= in the URL, which "
            "are not those of the server"
        )
    if "WRONG_VERSION_NUMBER" in whole or "RECORD_LAYER_FAILURE" in whole:
        return NotRedis(f"what answers at {url} does not speak TLS: write redis:// there, or name its TLS port")
    return None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    met: set[int] = set()
    while error is not None and id(error) not in met:  # redis-py raises some errors as their own cause
        met.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _silence(error: BaseException, url: str, said: str) -> Unavailable:
    tls = url.partition(":")[0].startswith(("rediss", "valkeys"))
    if type(error).__name__ == "MasterNotFoundError":
        found, _, silent = said.partition(" : ")
        return Unavailable(
            f"the sentinels of {url} name no primary that is up: {found}{', and not all answer' * bool(silent)}; "
            f"check the service name, and that a majority of them runs{' and speaks TLS' * tls}"
        )
    said = said[:200].rstrip(".")
    if LOOP_BLOCKED in said:
        return Unavailable(f"no answer was read from {url}: {said}; does an `async def` make a blocking call?")
    hung_up = re.search("losed|reset by|Broken pipe|EOF occurred|EOF_", said) and "onnecting" not in said
    if re.search("getaddrinfo|[Nn]ame or service|name resolution|nodename", said):
        cure = "is the name of the host right"
    elif re.search("imeout (reading|writing)|no reply", said):
        cure = "it took the connection and is silent: is it stopped or busy"
    elif hung_up:
        cure = "it hung up: is it starting or stopping" + ", or is this a TLS port (then write rediss://)" * (not tls)
    else:
        cure = "is the server up"
    cure += ", and does it speak TLS there?" if tls else "?"
    if url == DEFAULT_URL and cure == "is the server up?":
        cure += " It is the default: --url or TIMEOUTQ_URL names another one"
    if tls and "hung up" in cure:
        # with TLS 1.3, a refusal may be lost when the server closes the connection behind it
        cure += " Does it want a client certificate (TIMEOUTQ_CERT and TIMEOUTQ_KEY)?"
    return Unavailable(f"no answer from {url}: {said}; {cure}")
