"""Room for large requests, shared by all connections."""

from alpacamq.api.kafka.in_flight import InFlight


def test_requests_wait_for_room_in_the_order_they_came() -> None:
    room = InFlight(100)
    resumed: list[str] = []
    assert room.take("a", 80, lambda: resumed.append("a"))
    assert not room.take("b", 50, lambda: resumed.append("b"))
    # Small enough for what is left, but those before it go first.
    assert not room.take("c", 10, lambda: resumed.append("c"))
    room.give(80)
    assert resumed == ["b", "c"]


def test_a_connection_that_is_gone_no_longer_waits() -> None:
    room = InFlight(100)
    resumed: list[str] = []
    assert room.take("a", 100, lambda: None)
    assert not room.take("b", 100, lambda: resumed.append("b"))
    assert not room.take("c", 100, lambda: resumed.append("c"))
    room.leave("b")
    room.give(100)
    assert resumed == ["c"]
