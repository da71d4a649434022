"""What boto3 raises, as what was answered."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from botocore.exceptions import ClientError


@contextmanager
def refused(code: str, text: str = "", *, status: int = 400) -> Iterator[None]:
    """The block is answered with an error of this code, whose message holds this text."""
    with pytest.raises(ClientError) as caught:
        yield
    answer = caught.value.response
    assert answer["Error"]["Code"] == code, answer
    assert text in answer["Error"]["Message"], answer
    assert answer["ResponseMetadata"]["HTTPStatusCode"] == status
