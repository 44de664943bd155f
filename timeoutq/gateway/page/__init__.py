"""The page for browsers: look at queues and act on them, by links and forms, with a script that keeps the page fresh.

`timeoutq web` serves it, and a host application that mounts the gateway does.

The modules, in reading order: each imports only from those above it.

    spelling  How ids travel between the page and the server, and how ids, texts, times and sizes are written into HTML.
              Pure.
    walks     Acts on more tasks than one call takes, such as a retry of all failures of a kind: walks with progress, in
              pieces.
    hub       Looks at queues for everybody who watches them: one look a second and page, however many viewers there
              are.
    paint     From a snapshot of a queue to HTML: the parts of pages, and whole pages. Pure but for the templates that
              it reads.
    visits    One request of a browser: who asks, about which queue, with which ids; and the answer as a page.
    acts      The acts of the page: one function for each form. Each ends with a redirect, and a message on the page it
              leads to.
    views     The views of the page: one function for each.
    routes    The routes of the page, in the gateway's own form: path, the right that the caller must have, and the
              endpoint.
"""

from timeoutq.gateway.page.routes import make_app as make_app

__all__ = ["make_app"]
