"""Tables filled from a topic, and a topic filled from a table."""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

spark = SparkSession.active()
broker = os.environ.get("ALPACACTL_BROKER", "127.0.0.1:9092")


@dp.table
def orders() -> DataFrame:
    """Every order of the topic, once."""
    records = (
        spark.readStream.format("alpacamq")
        .option("kafka.bootstrap.servers", broker)
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .load()
    )
    order = f.from_json(f.col("value").cast("string"), "id BIGINT, item STRING, amount DOUBLE")
    return records.select(order.alias("order"), "timestamp").select("order.*", "timestamp")


dp.create_sink(
    "large_orders",
    "alpacamq",
    {"kafka.bootstrap.servers": broker, "topic": "large-orders", "transactionalId": "shop-large-orders"},
)


@dp.append_flow(target="large_orders")
def large() -> DataFrame:
    """Orders above a limit, back to a topic as JSON."""
    chosen = spark.readStream.table("orders").where("amount > 3")
    return chosen.select(
        f.col("item").alias("key"), f.to_json(f.struct("id", "item", "amount")).alias("value")
    )
