"""How the deadline of a call is divided into attempts, and how slow a link may be."""

SLOWEST = 128 * 1024
"""Bytes per second of the slowest link that is not taken for broken: a call gets the time it needs on this link."""

ATTEMPT = 0.3
"""The part of the deadline that one attempt waits for its reply: after a silent one there is time for another."""

CONNECT = 0.2
"""The part of the deadline that connecting may take."""

WAIT = 0.5
"""Seconds for which one command waits on a connection of a class of the caller's own; then the next one waits."""

SLICE = 64 * 1024
"""Commands with more bytes are sent in pieces of this size, each of which may take the patience of an attempt plus
`LEAP`: until then, a link counts as slow, not as stuck."""

LEAP = 6 * SLICE / SLOWEST
"""Seconds that six pieces need on the slowest link: buffers on the way may hold six pieces and pass them on at once."""
