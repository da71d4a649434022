"""Whether a browser asks on behalf of a page of another site.

Browsers let any page send requests to any address it knows, also to one on the local network or on the
machine itself. They say on whose behalf, so those requests can be told from the console's and from
those of programs, which say nothing of the kind.
"""

from .messages import Request

# What browsers themselves say of a request; no page can.
_OWN = frozenset({"same-origin", "none"})
_FOREIGN = frozenset({"cross-site", "same-site"})


def foreign_page(request: Request) -> str | None:
    """Who asks, in words, if it is a page of another site."""
    headers = request.headers
    site = headers.get("sec-fetch-site")
    if site in _OWN:  # also behind a proxy, which knows us by another name than the browser does
        return None
    if (origin := headers.get("origin")) is not None and not _is_here(origin, request.host):
        return f"a page of {origin}"
    # Not every request has an origin: pictures and links have none.
    return "a page of another site" if site in _FOREIGN else None


def _is_here(origin: str, host: str) -> bool:
    return origin.partition("://")[2].lower() == host.lower()
