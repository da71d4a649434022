"""Room for large requests, shared by all connections."""

from alpacamq.api.kafka.inbox import InFlight

REFUSED = 0


class Client:
    """An owner of memory, with the reservations it was granted later."""

    def __init__(self, room: InFlight) -> None:
        self._room = room
        self.resumed_with: list[int] = []

    def take(self, size: int, rest_bytes: int) -> int:
        return self._room.take(self, size, rest_bytes, self.resumed_with.append)


def test_room_is_taken_as_it_is_needed() -> None:
    room = InFlight(100)
    # Each has announced far more than there is room for, and takes it as it arrives.
    assert [Client(room).take(10, 1000) for _ in range(10)] == [10] * 10
    assert not room.is_short


def test_one_request_at_a_time_may_exceed_the_limit_and_gets_room_for_all_of_it() -> None:
    room = InFlight(100)
    a, b, c = Client(room), Client(room), Client(room)
    assert a.take(100, 200) == 100
    assert b.take(50, 70) == 70
    assert room.is_short
    assert c.take(50, 60) == REFUSED
    room.give(b, 70)
    assert c.resumed_with == [60]


def test_those_with_the_least_to_come_are_let_in_first() -> None:
    room = InFlight(100)
    full, beyond = Client(room), Client(room)
    assert full.take(100, 100) == 100
    assert beyond.take(10, 10) == 10
    large, small = Client(room), Client(room)
    assert large.take(60, 1000) == REFUSED
    assert small.take(60, 60) == REFUSED
    room.give(full, 100)
    assert small.resumed_with == [60]
    assert large.resumed_with == []
    room.give(beyond, 10)
    assert large.resumed_with == [1000], "it is the one that may exceed the limit now"


def test_requests_that_wait_for_each_other_come_to_an_end() -> None:
    room = InFlight(100)
    clients = [Client(room) for _ in range(20)]
    unfinished = {client: 50 - client.take(5, 50) for client in clients}
    waiting: set[Client] = set()
    while unfinished:
        for client, rest_bytes in list(unfinished.items()):
            rest_bytes -= sum(client.resumed_with)
            if client.resumed_with:
                waiting.discard(client)
                client.resumed_with.clear()
            if rest_bytes == 0:
                del unfinished[client]
                room.give(client, 50)
                continue
            if client not in waiting:
                taken = client.take(min(5, rest_bytes), rest_bytes)
                rest_bytes -= taken
                if not taken:
                    waiting.add(client)
            unfinished[client] = rest_bytes
    assert not room.is_short


def test_a_closed_connection_does_not_wait() -> None:
    room = InFlight(100)
    a, b, c, d = (Client(room) for _ in range(4))
    assert a.take(100, 100) == 100
    assert b.take(100, 100) == 100
    assert c.take(100, 100) == REFUSED
    assert d.take(100, 100) == REFUSED
    room.leave(c, 0)
    room.leave(b, 100)
    assert (c.resumed_with, d.resumed_with) == ([], [100])
