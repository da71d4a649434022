"""What the SQS door is told by the configuration."""

import msgspec


class SqsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Who the door says it is, and whose signatures it accepts."""

    region: str = "us-east-1"
    account_id: str = "000000000000"
    # Both empty: signatures are not checked.
    access_key_id: str = ""
    secret_access_key: str = ""
