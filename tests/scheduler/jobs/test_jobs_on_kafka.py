"""Jobs over a partition of Kafka, on the broker that librdkafka has for tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import plait as pl
import pytest
from job_cases import make_pipe, read_lines
from patience import WAIT_S

MESSAGES = 60


def write_messages(kafka: Any, topic: str) -> tuple[Any, str]:
    """Write messages; return the producer, which has the broker, and its address."""
    producer = kafka.Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "none"})
    for number in range(MESSAGES):
        producer.produce(topic, f"message {number}".encode(), partition=0)
    assert producer.flush(WAIT_S) == 0
    (broker,) = producer.list_topics(timeout=WAIT_S).brokers.values()
    return producer, f"{broker.host}:{broker.port}"


def read_partition(kafka: Any, address: str, topic: str, position: int) -> Iterator[str]:
    """Yield the messages from an offset to the present end."""
    consumer = kafka.Consumer({"bootstrap.servers": address, "group.id": "job"})
    partition = kafka.TopicPartition(topic, 0, position)
    try:
        end = consumer.get_watermark_offsets(partition, timeout=WAIT_S)[1]
        consumer.assign([partition])
        while position < end:
            message = consumer.poll(WAIT_S)
            assert message is not None
            assert message.error() is None
            assert message.offset() == position
            position += 1
            yield message.value().decode()
    finally:
        consumer.close()


def test_a_job_over_a_partition_goes_on_at_the_offset_of_its_commit(tmp_path: Path) -> None:
    kafka = pytest.importorskip("confluent_kafka")
    producer, address = write_messages(kafka, "texts")
    is_broken = True

    def read(position: int) -> Iterator[str]:
        for text in read_partition(kafka, address, "texts", position):
            if is_broken and text == "message 33":
                raise ConnectionError("the broker is away")
            yield text

    job = pl.Job(make_pipe(), read, "jsonl", tmp_path, part_items=20, commit_items=10)
    with pytest.raises(ConnectionError):
        job.run()
    assert job.status().position == 33
    is_broken = False
    assert job.run().position == MESSAGES
    producer.produce("texts", b"one more", partition=0)
    producer.flush(WAIT_S)
    assert job.run().position == MESSAGES + 1
    texts = [*(f"message {number}" for number in range(MESSAGES)), "one more"]
    assert [row["text"] for row in read_lines(job)] == texts
