"""The page for browsers: look at queues and act on them, by links and forms, with a script that keeps the page fresh.

`timeoutq web` serves it, and a host application that mounts the gateway does. `routes.py` has its table of routes.

spelling.py   how ids travel, and how text of a task is written into HTML
hub.py        one look a second and queue for everybody who watches
walks.py      acts on more tasks than one call takes, with progress
listing.py    which queues the server has
paint.py      from what was seen to HTML, by the templates
visits.py     one request, and the answer as a page
views.py      what is shown
acts.py       what is done
"""

from timeoutq.page.routes import make_app as make_app

__all__ = ["make_app"]
