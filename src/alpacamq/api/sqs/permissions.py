"""AddPermission and RemovePermission: statements in the queue's policy, stored and returned.

The holder of the access key may do everything; policies grant and deny nothing.
"""

import re
from typing import Any

import msgspec

from .attributes import StoredAttributes, check
from .directory import QueueDirectory
from .errors import OVER_LIMIT, Fault, invalid_value, missing
from .queue_attributes import AttributeChange, QueueAttributes
from .requests import AddPermission, RemovePermission
from .results import NOTHING, Answer, Caller

MAX_ACTIONS = 7
MAX_STATEMENTS = 20
POLICY_VERSION = "2008-10-17"
# Actions that can be granted to other accounts.
ACTIONS = frozenset(
    {
        "*",
        "SendMessage",
        "ReceiveMessage",
        "DeleteMessage",
        "ChangeMessageVisibility",
        "GetQueueAttributes",
        "GetQueueUrl",
        "ListDeadLetterSourceQueues",
        "PurgeQueue",
    }
)

_LABEL = re.compile(r"[a-zA-Z0-9_-]{1,80}")
_ACCOUNT = re.compile(r"[0-9]{12}")

Policy = dict[str, Any]


class Permissions:
    """Changes the policies of queues."""

    def __init__(self, directory: QueueDirectory, attributes: QueueAttributes) -> None:
        self._directory = directory
        self._attributes = attributes

    async def add(self, request: AddPermission, _caller: Caller) -> Answer:
        queue = self._directory.by_url(request.queue_url)
        _check(request)
        arn = self._directory.arn(queue.name)

        def added(stored: StoredAttributes) -> AttributeChange:
            changed = {"Policy": _with_statement(_policy(stored), request, arn)}
            check(changed, is_fifo=queue.is_fifo)
            return AttributeChange(changed)

        await self._attributes.change(queue, added)
        return NOTHING

    async def remove(self, request: RemovePermission, _caller: Caller) -> Answer:
        def removed(stored: StoredAttributes) -> AttributeChange:
            return AttributeChange({"Policy": _without_statement(_policy(stored), request.label)})

        await self._attributes.change(self._directory.by_url(request.queue_url), removed)
        return NOTHING


def _with_statement(policy: Policy | None, request: AddPermission, arn: str) -> str:
    policy = policy or {"Version": POLICY_VERSION, "Id": f"{arn}/SQSDefaultPolicy", "Statement": []}
    statements = policy["Statement"]
    if any(statement.get("Sid") == request.label for statement in statements):
        raise invalid_value(request.label, "Label", "Already exists.")
    if len(statements) >= MAX_STATEMENTS:
        raise Fault(OVER_LIMIT, f"{MAX_STATEMENTS} is the maximum number of statements in a policy.")
    statements.append(
        {
            "Sid": request.label,
            "Effect": "Allow",
            "Principal": {"AWS": _one_or_all([f"arn:aws:iam::{each}:root" for each in request.account_ids])},
            "Action": _one_or_all([f"SQS:{action}" for action in request.actions]),
            "Resource": arn,
        }
    )
    return msgspec.json.encode(policy).decode()


def _without_statement(policy: Policy | None, label: str) -> str:
    policy = policy or {"Statement": []}
    statements = [each for each in policy["Statement"] if each.get("Sid") != label]
    if len(statements) == len(policy["Statement"]):
        raise invalid_value(label[:100], "Label", "can't find label.")
    return msgspec.json.encode(policy | {"Statement": statements}).decode() if statements else ""


def _check(request: AddPermission) -> None:
    if not _LABEL.fullmatch(request.label):
        raise invalid_value(
            request.label[:100], "Label", "Can only include alphanumeric characters, hyphens, or underscores."
        )
    if not request.account_ids:
        raise missing("AWSAccountIds")
    if not request.actions:
        raise missing("Actions")
    for account_id in request.account_ids:
        if not _ACCOUNT.fullmatch(account_id):
            raise invalid_value(account_id[:100], "PrincipalId", "Unable to verify.")
    for action in request.actions:
        if action not in ACTIONS:
            raise invalid_value(
                action[:100], "ActionName", "Only the queue owner is allowed to invoke this action."
            )
    if len(request.actions) > MAX_ACTIONS:
        raise Fault(
            OVER_LIMIT, f"{len(request.actions)} Actions were found, maximum allowed is {MAX_ACTIONS}."
        )


def _policy(stored: StoredAttributes) -> Policy | None:
    """Return the queue's policy, without parts of the wrong shape."""
    if not (text := stored.attributes.get("Policy", "")):
        return None
    policy: Policy = msgspec.json.decode(text)
    statements = policy.get("Statement", [])
    if isinstance(statements, dict):
        statements = [statements]
    if not isinstance(statements, list):
        statements = []
    return policy | {"Statement": [each for each in statements if isinstance(each, dict)]}


def _one_or_all(values: list[str]) -> str | list[str]:
    return values[0] if len(values) == 1 else values
