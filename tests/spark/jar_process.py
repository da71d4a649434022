"""Reads tables with Spark and the jars of their formats, where neither alpacamq nor its packages are.

Arguments: a directory with jars, the warehouse of an Iceberg catalog, and the paths of two Delta tables.
Prints the rows as JSON, one line for each table. Then it writes to the first Delta table, and marks rows of
the second as deleted.
"""

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession

COLUMNS = ("id", "customer", "amount", "key", "value", "data")


def session(jars: Path, warehouse: str) -> SparkSession:
    iceberg = "spark.sql.catalog.default"
    settings = {
        "spark.jars": ",".join(map(str, jars.rglob("*.jar"))),
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        iceberg: "org.apache.iceberg.spark.SparkCatalog",
        f"{iceberg}.type": "jdbc",
        f"{iceberg}.uri": f"jdbc:sqlite:{warehouse}/catalog.db",
        f"{iceberg}.warehouse": warehouse,
    }
    builder = SparkSession.builder.master("local[1]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def main(jars: str, warehouse: str, written: str, marked: str) -> None:
    spark = session(Path(jars), warehouse)
    tables = [spark.table("default.shop.events"), spark.table("default.shop.latest")]
    tables += [spark.read.format("delta").load(place) for place in (written, marked)]
    for table in tables:
        names = [name for name in COLUMNS if name in table.columns]
        rows = table.select(*(table[name].cast("string") for name in names)).collect()
        print(json.dumps(sorted(list(row) for row in rows)))
    # As other engines do: merge files, add rows and change some.
    spark.sql(f"OPTIMIZE delta.`{written}`")
    added = spark.createDataFrame([("9", "eve", 9.0)], "id STRING, customer STRING, amount DOUBLE")
    added.write.format("delta").mode("append").save(written)
    spark.sql(f"UPDATE delta.`{written}` SET amount = amount + 1 WHERE id = '1'")  # noqa: S608 - our own path
    spark.sql(f"ALTER TABLE delta.`{marked}` SET TBLPROPERTIES ('delta.enableDeletionVectors' = true)")
    spark.sql(f"DELETE FROM delta.`{marked}` WHERE offset < 2")  # noqa: S608 - our own path


if __name__ == "__main__":
    main(*sys.argv[1:])
