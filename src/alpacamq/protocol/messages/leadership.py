"""Partition leaders and broker addresses: structs shared by several responses."""

from alpacamq.protocol.notation import Int32, Message, String


class LeaderIdAndEpoch(Message):
    leader_id: Int32 = -1
    leader_epoch: Int32 = -1


class NodeEndpoint(Message):
    node_id: Int32
    host: String
    port: Int32
    rack: String | None = None
