"""What pages of other sites may ask of the broker, which is nothing that matters.

Browsers let any page send requests to any address it knows, also to one on the local network or on the
machine itself. They say on whose behalf, so those requests can be told from the console's and from
those of programs, which say nothing of the kind.
"""

from alpacamq.api.http.messages import Request

from .errors import CrossOrigin
from .route import AnyRoute

_FOREIGN = frozenset({"cross-site", "same-site"})


def check_origin(request: Request, route: AnyRoute) -> None:
    """Refuse what a page of another site sends. A link may be followed where that changes nothing."""
    headers = request.headers
    if (origin := headers.get("origin")) is not None and not _is_here(origin, request.host):
        raise CrossOrigin(f"a page of {origin} may not use this broker")
    # Not every request has an origin: pictures and links have none.
    if headers.get("sec-fetch-site") in _FOREIGN and not _is_followed_link(request, route):
        raise CrossOrigin("a page of another site may not use this broker")


def _is_here(origin: str, host: str) -> bool:
    return origin.partition("://")[2].lower() == host.lower()


def _is_followed_link(request: Request, route: AnyRoute) -> bool:
    headers = request.headers
    return (
        request.method == "GET"
        and not route.has_effects
        and headers.get("sec-fetch-mode") == "navigate"
        and headers.get("sec-fetch-dest") == "document"
    )
