"""Tasks of the project."""

import asyncio
import os
import threading
import time
from pathlib import Path

from asgiref.sync import sync_to_async
from django.db import connection
from django.tasks import task

from tests.rig.market.models import Order

NOT_A_TASK = "a text"
GO_ON, LEFT = threading.Event(), threading.Event()


class OutOfStock(Exception):
    """An error that only this project has."""


@task
def add(a, b=1):
    return a + b


@task
async def aadd(a, b=1):
    return a + b


@task(takes_context=True)
def who(context, **more):
    return [context.attempt, context.task_result.id, more]


@task
def sold_out(words="none left"):
    raise OutOfStock(words)


@task
def leaves():
    raise SystemExit("at once")


@task
def gives(what):
    return {"set": {1}, "moment": time.gmtime}[what]


@task
def pay(id):
    Order.objects.filter(pk=id).update(paid=True)


@task
async def apay(id):
    await Order.objects.filter(pk=id).aupdate(paid=True)


@task
def backend_pid():
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return cursor.fetchone()[0]


@task
async def abackend_pid():
    return await sync_to_async(backend_pid.func)()


@task
def waits():
    GO_ON.wait(30)
    LEFT.set()


@task
async def awaits():
    await asyncio.sleep(30)


@task
def hold(folder):
    """Note the process and the time of this run, and let only the first one hang."""
    runs = Path(folder)
    number = len(list(runs.iterdir()))
    (runs / f"{number}").write_text(f"{os.getpid()} {time.time()}")
    if number == 0:
        time.sleep(60)
