"""Which addresses belong to a crawl: those of the site, as far as the patterns of --include and --exclude say. Pure.

A pattern is matched against the whole address in its one form: `*` stands for any text, `?` for one character, `[ab]`
for one of these. `https://example.com/news/*` is one, `*.pdf` another. `crawl.py` and `seeds.py` ask.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from fnmatch import translate

from demo.links import same_site


@dataclass(frozen=True)
class Scope:
    """What is followed: links to the same site, of them those that an include names, but none that an exclude names."""

    site: str
    """How wide the site is: one of `settings.SITES`."""
    include: tuple[str, ...] = ()
    """Patterns; without any, all addresses are included."""
    exclude: tuple[str, ...] = ()
    _included: re.Pattern[str] | None = field(init=False, repr=False)
    _excluded: re.Pattern[str] | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_included", _any_of(self.include))
        object.__setattr__(self, "_excluded", _any_of(self.exclude))

    def allows(self, url: str) -> bool:
        """Say whether the patterns let an address in, wherever it was found."""
        if self._excluded is not None and self._excluded.match(url):
            return False
        return self._included is None or self._included.match(url) is not None

    def has(self, url: str, found_on: str) -> bool:
        """Say whether an address that a page names belongs to the crawl."""
        return same_site(url, found_on, self.site) and self.allows(url)

    def belonging(self, urls: Iterable[str], found_on: str) -> list[str]:
        """Give those of the addresses that belong to the crawl."""
        return [url for url in urls if self.has(url, found_on)]

    def left_out(self, urls: Iterable[str], found_on: str) -> list[str]:
        """Give those of the addresses that are of the same site and do not belong to the crawl: by the patterns."""
        return [url for url in urls if same_site(url, found_on, self.site) and not self.allows(url)]


def _any_of(patterns: tuple[str, ...]) -> re.Pattern[str] | None:
    # `translate` makes patterns that never go back over what `*` has matched: no address makes them slow
    return re.compile("|".join(translate(pattern) for pattern in patterns)) if patterns else None
