"""A Spark driver to be killed: one query from a topic to files and one to a topic, in a process of its own.

Prints a line for every batch that was completed. Ends when a query fails, or when all is read.
"""

import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from alpacamq_spark.session import spark_session

SETTINGS = {
    "spark.log.level": "OFF",
    "spark.driver.memory": "600m",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
PAUSE_S = 0.05


def start(
    spark: SparkSession, broker: str, topic: str, directory: Path, *, to_the_end: bool
) -> list[StreamingQuery]:
    """The two queries; `to_the_end` lets them stop there, else they run on and on."""
    reader = spark.readStream.format("alpacamq").option("kafka.bootstrap.servers", broker)
    reader = reader.option("subscribe", topic).option("startingOffsets", "earliest")
    # Small batches while they may be killed, so that many begin and end; what is left then in large ones.
    limit = 50_000 if to_the_end else 2000
    frame = reader.option("maxOffsetsPerTrigger", limit).option("groupId", f"of-{topic}").load()
    texts = frame.selectExpr("CAST(value AS STRING) value")
    to_files = texts.writeStream.format("parquet").option("path", str(directory / "files"))
    to_topic = texts.writeStream.format("alpacamq").option("kafka.bootstrap.servers", broker)
    to_topic = to_topic.option("topic", f"{topic}-sink")
    return [
        writer.option("checkpointLocation", str(directory / name))
        .trigger(**({"availableNow": True} if to_the_end else {"processingTime": "0 seconds"}))
        .start()
        for name, writer in (("files-checkpoint", to_files), ("topic-checkpoint", to_topic))
    ]


def main(broker: str, topic: str, directory: str, mode: str) -> None:
    spark = spark_session("killed", master="local[2]", settings=SETTINGS)
    queries = start(spark, broker, topic, Path(directory), to_the_end=mode == "to-the-end")
    print("started", flush=True)
    seen: dict[str, int] = {}
    while any(query.isActive for query in queries):
        for query in queries:
            progress = query.lastProgress
            if progress is not None and seen.get(query.id) != progress["batchId"]:
                seen[query.id] = progress["batchId"]
                print("batch", progress["batchId"], flush=True)
            if not query.isActive and (error := query.exception()) is not None:
                print("failed", str(error).replace("\n", " | ")[:4000], flush=True)
                sys.exit(1)
        time.sleep(PAUSE_S)
    print("ended", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
