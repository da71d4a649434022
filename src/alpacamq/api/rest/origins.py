"""What pages of other sites may ask of the broker, which is nothing that matters."""

from alpacamq.api.http.messages import Request
from alpacamq.api.http.origins import foreign_page

from .errors import CrossOrigin
from .route import AnyRoute


def check_origin(request: Request, route: AnyRoute) -> None:
    """Refuse what a page of another site sends. A link may be followed where that changes nothing."""
    page = foreign_page(request)
    if page is not None and not _is_followed_link(request, route):
        raise CrossOrigin(f"{page} may not use this broker")


def _is_followed_link(request: Request, route: AnyRoute) -> bool:
    headers = request.headers
    return (
        request.method == "GET"
        and not route.has_effects
        and "origin" not in headers
        and headers.get("sec-fetch-mode") == "navigate"
        and headers.get("sec-fetch-dest") == "document"
    )
