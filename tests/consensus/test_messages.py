"""Raft's messages and voters survive encoding."""

from uuid import UUID

import msgspec
import pytest

from alpacamq.consensus.messages import (
    AppendAccepted,
    AppendRejected,
    AppendRequest,
    CampaignNow,
    Entry,
    EntryKind,
    Hello,
    Message,
    PreVoteRequest,
    PreVoteResponse,
    VoteRequest,
    VoteResponse,
    decode_voters,
    encode_voters,
)
from alpacamq.model.ids import BrokerId
from alpacamq.model.voters import Voter

ONE, TWO = BrokerId(1), BrokerId(2)
HOME, AWAY = UUID(int=1), UUID(int=2)

MESSAGES: list[Message] = [
    PreVoteRequest(term=3, sender=ONE, to=TWO, directory=HOME, to_directory=AWAY, last_index=9, last_term=2),
    PreVoteResponse(term=3, sender=TWO, to=ONE, campaign_term=4, granted=True),
    VoteRequest(term=4, sender=ONE, to=TWO, to_directory=AWAY, last_index=9, last_term=2, is_transfer=True),
    VoteResponse(term=4, sender=TWO, to=ONE, granted=False),
    AppendRequest(
        term=4,
        sender=ONE,
        to=TWO,
        prev_index=9,
        prev_term=2,
        commit=8,
        entries=(Entry(10, 4, EntryKind.EMPTY, b""), Entry(11, 4, EntryKind.DATA, b"\x00\xff")),
    ),
    AppendAccepted(term=4, sender=TWO, to=ONE, directory=AWAY, match_index=11),
    AppendRejected(term=4, sender=TWO, to=ONE, directory=AWAY, prev_index=9, hint_index=7, hint_term=1),
    Hello(term=0, sender=TWO, to=ONE, directory=AWAY),
    CampaignNow(term=4, sender=ONE, to=TWO),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_is_decoded_as_it_was_encoded(message: Message) -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=Message) == message


def test_voters_are_decoded_as_they_were_encoded() -> None:
    voters = (Voter(ONE, HOME), Voter(TWO, AWAY))
    assert decode_voters(encode_voters(voters)) == voters
