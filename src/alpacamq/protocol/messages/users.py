"""DescribeUserScramCredentials and AlterUserScramCredentials: users and their passwords (KIP-554)."""

from collections.abc import Sequence

from alpacamq.protocol.notation import Bytes, ErrorText, Int8, Int16, Int32, Message, String


class UserName(Message):
    name: String = ""


class DescribeUserScramCredentialsRequest(Message, flexible_from=0):
    users: Sequence[UserName] | None = None


class CredentialInfo(Message):
    mechanism: Int8 = 0
    iterations: Int32 = 0


class DescribeUserScramCredentialsResult(Message):
    user: String = ""
    error_code: Int16 = 0
    error_message: ErrorText | None = None
    credential_infos: Sequence[CredentialInfo] = []


class DescribeUserScramCredentialsResponse(Message, flexible_from=0):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: ErrorText | None = None
    results: Sequence[DescribeUserScramCredentialsResult] = []


class ScramCredentialDeletion(Message):
    name: String = ""
    mechanism: Int8 = 0


class ScramCredentialUpsertion(Message):
    name: String = ""
    mechanism: Int8 = 0
    iterations: Int32 = 0
    salt: Bytes = b""
    salted_password: Bytes = b""


class AlterUserScramCredentialsRequest(Message, flexible_from=0):
    deletions: Sequence[ScramCredentialDeletion] = []
    upsertions: Sequence[ScramCredentialUpsertion] = []


class AlterUserScramCredentialsResult(Message):
    user: String = ""
    error_code: Int16 = 0
    error_message: ErrorText | None = None


class AlterUserScramCredentialsResponse(Message, flexible_from=0):
    throttle_time_ms: Int32 = 0
    results: Sequence[AlterUserScramCredentialsResult] = []
