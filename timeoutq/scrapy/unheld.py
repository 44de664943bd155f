"""What a project's settings ask for and the addon cannot hold: the spider says it when it begins, in one warning."""

from __future__ import annotations

from collections.abc import Iterator

from scrapy.pipelines.media import MediaPipeline
from scrapy.settings import BaseSettings
from scrapy.utils.misc import load_object


def of_settings(settings: BaseSettings, delay: float) -> Iterator[str]:
    """Give in words what settings cannot mean on a queue; `delay` (seconds) is that of a new queue."""
    if settings.getbool("AUTOTHROTTLE_ENABLED"):
        yield f"AUTOTHROTTLE_ENABLED is turned off, and the delay of a new queue stays at {delay:g} s"
    if settings.getint("CONCURRENT_REQUESTS_PER_IP"):
        yield "CONCURRENT_REQUESTS_PER_IP counts for each host, not for each address"
    if settings.get("DUPEFILTER_CLASS") != "scrapy.dupefilters.RFPDupeFilter":
        yield (
            "DUPEFILTER_CLASS has no effect: the queue knows which requests were made. For another sameness, set "
            "REQUEST_FINGERPRINTER_CLASS; for none, make requests with dont_filter=True"
        )


def of_pipelines(settings: BaseSettings) -> Iterator[str]:
    """Say that what a media pipeline fetches is no task, if there is one. Loads the pipelines."""
    for one, place in settings.getwithbase("ITEM_PIPELINES").items():
        kind = load_object(one)
        if place is not None and isinstance(kind, type) and issubclass(kind, MediaPipeline):
            yield "what media pipelines fetch is no task: each process spaces it by itself, by DOWNLOAD_DELAY"
            return
