"""Answers HTTP clients with the progress of recovery while the broker starts."""

from http import HTTPStatus

import msgspec

from alpacamq.api.http.limits import RETRY_AFTER_SECONDS
from alpacamq.api.http.messages import PROBLEM_JSON, Request, Response
from alpacamq.broker.health import failing
from alpacamq.broker.partition.loading import RecoveryProgress

from .errors import LINE_END, Recovering, problem_of
from .handlers.health import Health

_encode = msgspec.json.Encoder().encode
_LATER = (("Retry-After", str(RETRY_AFTER_SECONDS)),)


class RecoveryApp:
    """An App of the HTTP listener during recovery."""

    def __init__(self, progress: RecoveryProgress) -> None:
        self._progress = progress

    def __call__(self, request: Request) -> Response:
        if request.path == "/livez" and request.method in ("GET", "HEAD"):
            return Response(HTTPStatus.OK, _encode(Health(status="ok")) + LINE_END)
        detail = f"the broker is recovering: {self._progress}"
        told = msgspec.structs.asdict(problem_of(Recovering(detail)))
        refused = "refused: recovering"
        body = {
            **told,
            "reads": refused,
            "writes": refused,
            "checks": {"recovery": failing(detail)},
        }
        return Response(HTTPStatus.SERVICE_UNAVAILABLE, _encode(body) + LINE_END, PROBLEM_JSON, _LATER)
