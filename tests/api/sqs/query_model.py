"""The description of SQS that boto3 had before it spoke JSON: the one it has, and the names that differ.

With it, unmodified boto3 writes form fields and reads XML as older SDKs do.
"""

import json
from pathlib import Path
from typing import Any

import botocore.loaders

NAMESPACE = "http://queue.amazonaws.com/doc/2012-11-05/"

LIST_ELEMENTS = {
    "AWSAccountIdList": "AWSAccountId",
    "ActionNameList": "ActionName",
    "AttributeNameList": "AttributeName",
    "BatchResultErrorEntryList": "BatchResultErrorEntry",
    "BinaryList": "BinaryListValue",
    "ChangeMessageVisibilityBatchRequestEntryList": "ChangeMessageVisibilityBatchRequestEntry",
    "ChangeMessageVisibilityBatchResultEntryList": "ChangeMessageVisibilityBatchResultEntry",
    "DeleteMessageBatchRequestEntryList": "DeleteMessageBatchRequestEntry",
    "DeleteMessageBatchResultEntryList": "DeleteMessageBatchResultEntry",
    "ListMessageMoveTasksResultEntryList": "ListMessageMoveTasksResultEntry",
    "MessageAttributeNameList": "MessageAttributeName",
    "MessageList": "Message",
    "MessageSystemAttributeList": "MessageSystemAttributeName",
    "QueueUrlList": "QueueUrl",
    "SendMessageBatchRequestEntryList": "SendMessageBatchRequestEntry",
    "SendMessageBatchResultEntryList": "SendMessageBatchResultEntry",
    "StringList": "StringListValue",
    "TagKeyList": "TagKey",
}
MAP_KEYS = {
    "MessageBodyAttributeMap": "Name",
    "MessageBodySystemAttributeMap": "Name",
    "MessageSystemAttributeMap": "Name",
    "QueueAttributeMap": "Name",
    "TagMap": "Key",
}
MEMBERS = {
    "Attributes": "Attribute",
    "MessageAttributes": "MessageAttribute",
    "MessageSystemAttributes": "MessageSystemAttribute",
    "Tags": "Tag",
    "tags": "Tag",
}
ERROR_CODES = {
    "QueueDoesNotExist": "AWS.SimpleQueueService.NonExistentQueue",
    "QueueNameExists": "QueueAlreadyExists",
    "EmptyBatchRequest": "AWS.SimpleQueueService.EmptyBatchRequest",
}


def write(directory: Path) -> Path:
    """Lay the description down where boto3's loader finds it; what to give that as a path."""
    loader = botocore.loaders.Loader()
    model = loader.load_service_model("sqs", "service-2", "2012-11-05")
    target = directory / "sqs" / "2012-11-05"
    target.mkdir(parents=True)
    (target / "service-2.json").write_text(json.dumps(_in_query(json.loads(json.dumps(model)))))
    return directory


def _in_query(model: dict[str, Any]) -> dict[str, Any]:
    metadata = model["metadata"]
    for name in ("awsQueryCompatible", "jsonVersion", "targetPrefix", "protocols"):
        metadata.pop(name, None)
    metadata |= {"protocol": "query", "xmlNamespace": NAMESPACE}
    for name, operation in model["operations"].items():
        if "output" in operation:
            operation["output"]["resultWrapper"] = f"{name}Result"
    for name, shape in model["shapes"].items():
        match shape["type"]:
            case "list":
                shape["member"]["locationName"] = LIST_ELEMENTS[name]
                shape["flattened"] = True
            case "map":
                shape["key"]["locationName"], shape["value"]["locationName"] = MAP_KEYS[name], "Value"
                shape["flattened"] = True
            case "structure":
                for member, place in shape.get("members", {}).items():
                    if member in MEMBERS:
                        place["locationName"] = MEMBERS[member]
        if name in ERROR_CODES:
            shape["error"] = {"code": ERROR_CODES[name], "httpStatusCode": 400, "senderFault": True}
    return model
