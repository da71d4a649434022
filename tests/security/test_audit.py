"""Combining audit events that repeat."""

from alpacamq.security.audit import MAX_DIFFERENT, AuditEvent, AuditKind, Repeats


def event(principal: str = "User:alice") -> AuditEvent:
    return AuditEvent(
        time="t0", node=1, kind=AuditKind.AUTHORIZATION, principal=principal, address="::1", allowed=False
    )


def test_repeated_events_are_counted_until_the_window_ends() -> None:
    repeats = Repeats()
    assert not repeats.count("a")
    repeats.add("a", event())
    assert [repeats.count("a") for _ in range(3)] == [True] * 3
    assert [(each.time, each.count) for each in repeats.end_window("t1")] == [("t1", 3)]
    assert not repeats.count("a")


def test_an_event_that_happened_once_is_not_repeated() -> None:
    repeats = Repeats()
    repeats.add("a", event())
    assert list(repeats.end_window("t1")) == []


def test_a_window_is_bounded() -> None:
    repeats = Repeats()
    for number in range(MAX_DIFFERENT):
        assert not repeats.is_full
        repeats.add(number, event())
    assert repeats.is_full
    list(repeats.end_window("t1"))
    assert not repeats.is_full
