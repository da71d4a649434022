"""A broker that starts after a power loss, according to its data directory."""

from confluent_kafka import Consumer, Producer, TopicPartition

from tests.conftest import NewBroker


def test_clients_are_accepted_once_committed_offsets_are_corrected(new_broker: NewBroker) -> None:
    broker = new_broker().start()
    producer = Producer({"bootstrap.servers": broker.address})
    producer.produce("orders", value="kept", partition=0)
    producer.flush()
    group = {"bootstrap.servers": broker.address, "group.id": "g", "enable.auto.commit": False}
    consumer = Consumer(group)
    consumer.commit(offsets=[TopicPartition("orders", 0, 7)], asynchronous=False)
    consumer.close()
    broker.kill()
    # The file of a broker that was running when the machine went down.
    (broker.data_dir / "running").write_text("the boot id of an earlier day\n")
    broker.start()
    assert "power_loss_settled" in broker.errors.text()
    consumer = Consumer({**group, "bootstrap.servers": broker.address})
    (committed,) = consumer.committed([TopicPartition("orders", 0)], timeout=30)
    consumer.close()
    assert committed.offset == 1
    broker.stop()
    assert not (broker.data_dir / "running").exists()
