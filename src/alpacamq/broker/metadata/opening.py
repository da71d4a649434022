"""Opens the metadata log of a data directory: as it is, new, of version 0.1, or with a rebuilt identity."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import msgspec

from alpacamq.broker.partition.replicas import directory_name
from alpacamq.cluster.image import ClusterImage, adopt
from alpacamq.cluster.partition_state import PartitionId
from alpacamq.consensus.messages import Entry, EntryKind, HardState, encode_voters, first_entry
from alpacamq.log.data_directory import DataDirectory, LastStop
from alpacamq.log.epochs import read_epochs
from alpacamq.log.index_files import IndexCache
from alpacamq.log.sealed_file import Unreadable
from alpacamq.log.storage import FileHandles, Storage
from alpacamq.model.errors import DamagedLog, InvalidVoters, StorageFailed
from alpacamq.model.ids import BrokerId, TopicPartition
from alpacamq.model.ports import Clock, Disk
from alpacamq.model.voters import Voter, Voters
from alpacamq.telemetry.logs import get_logger

from .store import EMPTY, IDENTITY, TOPIC_ID, MetadataStore, Recovered, voters_of

log = get_logger(__name__)

# Terms that voters which are lost may have begun without this node.
_TERM_GAP = 1000
_OPEN_FILES = 64
_INDEX_BYTES = 1 << 20


def open_store(
    directory: DataDirectory, storage: Storage, node_id: BrokerId, *, is_alone: bool
) -> tuple[MetadataStore, Recovered]:
    """Return the metadata log of a directory, and what it holds. Blocking.

    `is_alone`: the node is configured without other nodes.
    """
    log_directory = directory.partitions / directory_name(IDENTITY, TOPIC_ID)
    try:
        store = MetadataStore(log_directory, directory.metadata, storage)
        recovered = store.recover()
        founders = _founders(directory, node_id, is_alone=is_alone)
        if recovered is None and founders:
            recovered = _found(store, founders)
        elif recovered is None:
            recovered = EMPTY  # a node that joins later gets the log from the others
        elif recovered.is_legacy:
            own = (Voter(node_id, directory.directory_id),)
            recovered = _adopt(store, recovered, directory, storage, node_id, founders or own)
        if is_alone and not directory.identity.voters:
            _restore_directory_id(directory, node_id, voters_of(recovered))
    except (DamagedLog, StorageFailed) as error:
        raise StorageFailed(
            f"cannot read the list of topics: {error}; for ways to repair it, run "
            f"`alpacamq repair --data-dir {directory.path}`"
        ) from error
    return store, recovered


def make_sole_voter(
    path: Path, disk: Disk, clock: Clock, node_id: BrokerId, *, is_restoring: bool = False
) -> Voters:
    """Make a stopped node the only voter of its cluster, and return the voters so far. Blocking.

    For a cluster that has lost a majority of its voters for good. What only the lost ones had is lost: the
    last changes of the metadata, and with them which replicas are in sync. The log continues at a term that
    the lost voters cannot have reached, and what this node has stored counts as committed.
    With `is_restoring` the directory is being made of a backup.
    """
    opened = _stored_metadata(path, disk, clock, node_id, is_restoring=is_restoring)
    with opened as (directory, store, recovered):
        former = voters_of(recovered)
        if not former:
            raise InvalidVoters(f"{path} has no metadata of a cluster")
        last = recovered.entries[-1] if recovered.entries else recovered.snapshot
        term = max(recovered.hard_state.term, last.term) + _TERM_GAP
        own = (Voter(node_id, directory.directory_id),)
        entry = Entry(last.index + 1, term, EntryKind.VOTERS, encode_voters(own))
        store.write(HardState(term), None, [entry])
        return former


def stored_voters(path: Path, disk: Disk, clock: Clock, node_id: BrokerId) -> Voters:
    """Return the voters that a stopped node knows. Blocking."""
    with _stored_metadata(path, disk, clock, node_id) as (_, _, recovered):
        return voters_of(recovered)


@contextmanager
def _stored_metadata(
    path: Path, disk: Disk, clock: Clock, node_id: BrokerId, *, is_restoring: bool = False
) -> Iterator[tuple[DataDirectory, MetadataStore, Recovered]]:
    """Yield the data directory of a stopped node, its metadata log, and what it holds."""
    directory = DataDirectory(path, disk, node_id)
    directory.open(founds_cluster=False, is_restoring=is_restoring)
    try:
        storage = Storage(
            disk=disk,
            clock=clock,
            handles=FileHandles(disk, _OPEN_FILES),
            indexes=IndexCache(_INDEX_BYTES),
            checkpoint_bytes=_INDEX_BYTES,
            has_every_write=directory.last_stop is not LastStop.POWER_LOST,
        )
        store, recovered = open_store(directory, storage, node_id, is_alone=False)
        try:
            yield directory, store, recovered
        finally:
            store.close()
    finally:
        # The traces of a crash stay for the next start of the broker.
        if directory.last_stop is LastStop.CLEAN:
            directory.stopped()
        directory.close()


def _founders(directory: DataDirectory, node_id: BrokerId, *, is_alone: bool) -> Voters:
    """Return the voters that founded the cluster; none on a node that joins it later."""
    stored = directory.identity.voters
    return stored if stored or not is_alone else (Voter(node_id, directory.directory_id),)


def _found(store: MetadataStore, founders: Voters) -> Recovered:
    """Begin the metadata of a new cluster with the voters that founded it."""
    store.write(None, None, [first_entry(founders)])
    recovered = store.recover()
    assert recovered is not None, "the first entry was written"
    return recovered


def _adopt(
    store: MetadataStore,
    stored: Recovered,
    directory: DataDirectory,
    storage: Storage,
    node_id: BrokerId,
    founders: Voters,
) -> Recovered:
    """Begin the metadata of a cluster of this node with the topics that version 0.1 left."""
    image = ClusterImage()
    image.apply(stored.changes)
    adopted = adopt(image, node_id, partial(_stored_epoch, image, directory, storage))
    changes = [*stored.changes, *adopted]
    snapshot = msgspec.structs.replace(stored.snapshot, voters=founders)
    try:
        store.write_snapshot(snapshot, changes)
    except StorageFailed as error:
        # A full disk must not prevent a start; the next one adopts them again.
        log.warning("metadata_not_writable", reason=str(error))
    return stored._replace(snapshot=snapshot, changes=changes)


def _stored_epoch(
    image: ClusterImage, directory: DataDirectory, storage: Storage, partition: PartitionId
) -> int:
    """Return an epoch that is not below any with which version 0.1 led a partition."""
    topic = image.topic_by_id(partition.topic_id)
    assert topic is not None, "the partition of a topic in the image"
    name = directory_name(TopicPartition(topic.name, partition.partition), topic.id)
    try:
        latest = read_epochs(storage.disk, directory.partitions / name).latest
    except Unreadable:
        latest = 0
    return max(latest, image.start_number)


def _restore_directory_id(directory: DataDirectory, node_id: BrokerId, voters: Voters) -> None:
    """Give a directory its id back if its identity was rebuilt: the metadata log in it names it."""
    if len(voters) == 1 and voters[0].id == node_id and voters[0].directory != directory.directory_id:
        directory.restore_id(voters[0].directory)
