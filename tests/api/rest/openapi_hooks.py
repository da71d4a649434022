"""What schemathesis has to know of this API to test it; loaded by its own process, not by ours."""

from typing import Any

import schemathesis
from schemathesis.core import NOT_SET

KNOWN = "known"


@schemathesis.hook  # type: ignore[untyped-decorator]
def filter_case(_context: Any, case: Any) -> bool:
    """A body that may be left out is left out among the cases that should be refused, too: not those."""
    return case.body is not NOT_SET or not case.operation.body


@schemathesis.hook  # type: ignore[untyped-decorator]
def before_call(_context: Any, case: Any, _kwargs: Any) -> None:
    """Hardly wait for messages; mostly ask about a topic and a group that are there."""
    case.body = whole(case.body)
    if any(parameter.name == "wait_ms" for parameter in case.operation.query):
        waits = str(case.query.get("wait_ms", 1))  # a number, or its text
        if waits.isdecimal() and int(waits) <= 30_000:
            case.query["wait_ms"] = 1
    if case.meta is None or not case.meta.generation.mode.is_positive:
        return
    if case.operation.method == "delete":
        return  # what is known is to stay
    for names in (case.path_parameters, case.query, case.body):
        if isinstance(names, dict):
            for name in {"topic", "group"} & names.keys():
                names[name] = KNOWN


def whole(body: Any) -> Any:
    """JSON in which 1.0 is written as 1: to a schema they are the same, to us only one is a whole number."""
    if isinstance(body, float) and body.is_integer():
        return int(body)
    if isinstance(body, list):
        return [whole(each) for each in body]
    return {name: whole(each) for name, each in body.items()} if isinstance(body, dict) else body
