"""How many requests a second does the schema registry answer, and how long does it take to load?

Schemas by id, schemas that are registered already, and new ones, which are durable when they are
acknowledged, each with the requests of Confluent's clients, against Apicurio Registry, which keeps schemas in
memory. Then 100,000 versions: from the start of the process after a kill -9 until the last one is answered,
and the memory of the broker then.
"""

import json
import shutil
import time
from pathlib import Path

import psutil

from .apicurio import PATH, apicurio
from .dialogue import Dialogue, ask, http_request, together
from .jars import Unavailable
from .report import OURS, Floor, Report
from .servers import START_S, AlpacaMQ, Contender, Server
from .session import Session
from .usage import MIB, Meter, Usage

READERS = 8
WRITERS = 16
KNOWN = 200
VERSIONS_PER_SUBJECT = 10
FLOORS = {
    "lookups by id": Floor(at_least=10_000),
    "registered again": Floor(at_least=3_000),
    "registered": Floor(at_least=1_000),
}
LOADED = Floor(at_most=5.0)
MEMORY = Floor(at_most=300.0)


def run(session: Session, report: Report) -> None:
    contenders: list[Contender] = [AlpacaMQ()]
    try:
        contenders += [] if session.is_quick else [apicurio()]
    except Unavailable as error:
        report.skip("Apicurio Registry", str(error))
    for contender in contenders:
        try:
            with session.server(contender) as server:
                _requests(session, report, server)
        except Unavailable as error:
            report.skip(contender.name, str(error))
    _loading(session, report)


def schema(number: int) -> str:
    """Return a schema that is different from those of other numbers, and compatible with them."""
    fields = [
        {"name": "id", "type": "long"},
        {"name": f"field_{number}", "type": ["null", "string"], "default": None},
    ]
    return json.dumps({"type": "record", "name": "Parcel", "namespace": "post", "fields": fields})


def _requests(session: Session, report: Report, server: Server) -> None:
    path = "" if server.name == OURS else PATH
    address = server.addresses["registry"]
    ids: list[int] = []

    def prepare() -> Dialogue:
        for number in range(KNOWN):
            answer = yield from ask(_register(address, path, f"known-{number}", schema(number)))
            ids.append(json.loads(answer)["id"])

    together(address, [prepare()])
    lookups = session.scaled(40_000, 400)
    again = session.scaled(16_000, 400)
    new = session.scaled(8_000, 200)
    # Apicurio takes much longer.
    share = 1 if server.name == OURS else 10

    def by_id(_sample: int, worker: int, count: int) -> Dialogue:
        for number in range(count):
            wanted = ids[(worker + number) % KNOWN]
            yield from ask(_get(address, f"{path}/schemas/ids/{wanted}"))

    def known(_sample: int, worker: int, count: int) -> Dialogue:
        for number in range(count):
            at = (worker + number) % KNOWN
            yield from ask(_register(address, path, f"known-{at}", schema(at)))

    def registered(sample: int, worker: int, count: int) -> Dialogue:
        for number in range(count):
            subject = f"new-{sample}-{worker}-{number // VERSIONS_PER_SUBJECT}"
            text = schema((sample * WRITERS + worker) * 1_000_000 + number)
            yield from ask(_register(address, path, subject, text))

    for case, make, total, clients in (
        ("lookups by id", by_id, lookups, READERS),
        ("registered again", known, again, READERS),
        ("registered", registered, new, WRITERS),
    ):
        rates: list[float] = []
        usages: list[Usage] = []
        count = max(total // share // clients, 1)
        for sample in range(session.repeats + 1):
            session.settle()
            with Meter(server.pid) as meter:
                began_at = time.monotonic()
                together(address, [make(sample, worker, count) for worker in range(clients)])
                seconds = time.monotonic() - began_at
            if sample:  # the first one warms up
                rates.append(count * clients / seconds)
                usages.append(meter.usage)
        report(
            case=f"{case}, {clients} connections",
            server=server.name,
            unit="requests/s",
            samples=rates,
            usages=usages,
            floor=FLOORS[case] if server.name == OURS and not session.is_quick else None,
        )


def _loading(session: Session, report: Report) -> None:
    versions = session.scaled(100_000, 400)
    directory = session.new_directory()
    try:
        server = AlpacaMQ().start(directory)
        try:
            _fill(server.addresses["registry"], versions)
        finally:
            server.kill()
        starts = [_start(session, directory, versions) for _ in range(session.repeats)]
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    case = f"{versions:,} versions loaded"
    in_full = not session.is_quick
    report(
        case=case,
        server=OURS,
        unit="s",
        samples=[seconds for seconds, _ in starts],
        floor=LOADED if in_full else None,
    )
    report(
        case=f"{versions:,} versions in memory",
        server=OURS,
        unit="MiB",
        samples=[memory for _, memory in starts],
        floor=MEMORY if in_full else None,
    )


def _fill(address: str, versions: int) -> None:
    def writer(worker: int) -> Dialogue:
        for number in range(worker, versions, WRITERS):
            subject = f"subject-{number // VERSIONS_PER_SUBJECT}"
            yield from ask(_register(address, "", subject, schema(number)))

    together(address, [writer(each) for each in range(WRITERS)])


def _start(session: Session, directory: Path, versions: int) -> tuple[float, float]:
    """Return the seconds until the registry answers for its last schema, and the memory of the broker."""
    session.settle()
    began_at = time.monotonic()
    server = AlpacaMQ().start(directory)
    try:
        address = server.addresses["registry"]

        def last() -> Dialogue:
            while time.monotonic() - began_at < START_S:
                try:
                    yield from ask(_get(address, f"/schemas/ids/{versions}"))
                except RuntimeError:
                    continue  # it is not loaded yet
                return
            raise RuntimeError("the registry was not loaded")

        together(address, [last()])
        return time.monotonic() - began_at, psutil.Process(server.pid).memory_info().rss / MIB
    finally:
        server.kill()


def _head(address: str, method: str, path: str) -> bytes:
    kind = "application/vnd.schemaregistry.v1+json"
    lines = (f"{method} {path} HTTP/1.1", f"Host: {address}", f"Accept: {kind}", f"Content-Type: {kind}")
    return "\r\n".join(lines).encode()


def _get(address: str, path: str) -> bytes:
    return http_request(_head(address, "GET", path))


def _register(address: str, path: str, subject: str, text: str) -> bytes:
    body = json.dumps({"schema": text}).encode()
    return http_request(_head(address, "POST", f"{path}/subjects/{subject}/versions"), body)
