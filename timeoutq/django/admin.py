"""The queues in the admin: counts, states, retry, forget, why."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote_from_bytes, unquote_to_bytes

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.tasks import task_backends
from django.template.response import TemplateResponse
from django.urls import path

from timeoutq.django.backend import Backend
from timeoutq.django.models import Queue
from timeoutq.verbs.why import advised
from timeoutq.watch.records import ADVICE
from timeoutq.words.errors import TimeoutqError
from timeoutq.words.model import State, raw
from timeoutq.words.text import safe

MOST = 100  # tasks of a page


@admin.register(Queue)
class QueueAdmin(admin.ModelAdmin):
    """One page: all queues, or the tasks of one queue in one state."""

    def get_urls(self) -> list[Any]:
        """Give the one page."""
        view = self.admin_site.admin_view(self.changelist_view)
        return [path("", view, name="timeoutq_queue_changelist")]

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Nobody adds a queue here."""
        return False

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """Show queues or tasks; a POST retries or forgets those that were chosen."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        queues = {f"{one.alias}:{name}": (one, name) for one in _backends() for name in sorted(one.queues)}
        chosen, state = request.GET.get("queue"), request.GET.get("state", "failed")
        context: dict[str, Any] = {**self.admin_site.each_context(request), "title": "Queues", "states": list(State)}
        if chosen is None:
            context["queues"] = [(name, *_counts(*one)) for name, one in queues.items()]
            return TemplateResponse(request, "timeoutq/queues.html", context)
        if chosen not in queues or state not in context["states"]:
            raise Http404
        may_change = self.has_change_permission(request)
        if request.method == "POST" and not may_change:
            raise PermissionDenied
        context |= {"title": f"{state} in {chosen}", "chosen": chosen, "state": state, "may_change": may_change}
        backend, name = queues[chosen]
        try:
            queue: Any = backend.app.queue(backend.queue_of(name))
            if request.method == "POST":
                _do(request, queue)
                return HttpResponseRedirect(request.get_full_path())
            context |= _tasks(request, queue, state)
        except TimeoutqError as error:
            messages.error(request, str(error))
        return TemplateResponse(request, "timeoutq/queues.html", context)


def _tasks(request: HttpRequest, queue: Any, state: str) -> dict[str, Any]:
    page = queue.list(state, request.GET.get("cursor"), MOST)
    rows = [(quote_from_bytes(raw(one.task), ""), safe(one.task), one) for one in page]
    found: dict[str, Any] = {"tasks": rows, "cursor": page.cursor}
    if task := request.GET.get("task"):
        id = unquote_to_bytes(task)
        why = advised(queue.why(id), {**ADVICE, "failed": "Retry brings it back"}, queue.name)
        found |= {"why": why, "task": safe(id), "info": queue.inspect(id)}
    return found


def _backends() -> list[Backend]:
    return [one for one in task_backends.all() if isinstance(one, Backend)]


def _counts(backend: Backend, name: str) -> tuple[list[tuple[str, int]], str]:
    try:
        stats = backend.app.queue(backend.queue_of(name)).stats()
    except TimeoutqError as error:
        return [], str(error)
    return [(state, getattr(stats, state)) for state in State], "paused" if stats.paused else ""


def _do(request: HttpRequest, queue: Any) -> None:
    ids = [unquote_to_bytes(one) for one in request.POST.getlist("task")]
    match request.POST.get("action"), ids:
        case "retry", [_, *_]:
            messages.success(request, f"Made ready again: {queue.retry_failed(*ids)}")
        case "forget", [_, *_]:
            messages.success(request, f"Forgotten: {len(ids) - queue.forget(*ids).counts().get('unknown', 0)}")
        case _:
            messages.warning(request, "Choose tasks, and what to do with them.")
