"""Servers of catalogs of Iceberg tables, on loopback: each yields the table `[catalog]` for a pipeline.

PostgreSQL is that of the machine. Hive's metastore runs from the jars of PySpark, AWS Glue is that of
moto, and the REST catalog is Iceberg's reference implementation with jars from Maven.
"""

import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import pyspark
import pytest
from benchmarks.jars import CACHE, Unavailable, resolve
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
from py4j.protocol import Py4JError

from alpacamq_spark.session import find_java
from tests.ports import lasting_address
from tests.waiting import eventually

# Drivers of SQLAlchemy for PostgreSQL, by the module that each needs.
DRIVERS = ("psycopg2", "psycopg", "pg8000")
# Later ones are published without the tests that have the server's part of the protocol.
ICEBERG = "1.10.0"
SPARK_JARS = Path(pyspark.__file__).parent / "jars"
STOP_S = 60.0
HIVE_SITE = """
<configuration>
  <property><name>javax.jdo.option.ConnectionURL</name><value>jdbc:derby:memory:metastore;create=true</value></property>
  <property><name>datanucleus.schema.autoCreateAll</name><value>true</value></property>
  <property><name>datanucleus.connectionPoolingType</name><value>none</value></property>
  <property><name>hive.metastore.schema.verification</name><value>false</value></property>
  <property><name>hive.async.log.enabled</name><value>false</value></property>
  <property><name>hive.metastore.warehouse.dir</name><value>file://{warehouse}</value></property>
</configuration>
"""


@contextmanager
def postgresql(directory: Path) -> Iterator[str]:
    driver = next((each for each in DRIVERS if find_spec(each)), None)
    if driver is None:
        pytest.skip(f"needs a driver for PostgreSQL: {', '.join(DRIVERS)}")
    if shutil.which("initdb") is None or shutil.which("pg_ctl") is None:
        pytest.skip("needs PostgreSQL's initdb and pg_ctl")
    user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
    # Not below pytest's own directories, which only their owner may enter: the server refuses to run as root.
    with TemporaryDirectory(prefix="postgresql-") as scratch:
        if user:
            shutil.chown(scratch, "postgres")
        port = _free_port()
        options = f"-p {port} -k {scratch} -c listen_addresses=127.0.0.1"
        data = f"{scratch}/data"
        pg_ctl = [*user, "pg_ctl", "-D", data, "-w", "-l", f"{scratch}/log"]
        initialise = [*user, "initdb", "-D", data, "-A", "trust", "-U", "lake"]
        subprocess.run(initialise, check=True, capture_output=True, cwd=scratch)
        start = [*pg_ctl, "-o", options, "start"]
        subprocess.run(start, check=True, stdout=subprocess.DEVNULL, cwd=scratch)
        try:
            uri = f"postgresql+{driver}://lake:secret@127.0.0.1:{port}/postgres"
            yield f'type = "sql"\nuri = "{uri}"\nwarehouse = "{directory}/lake"\n'
        finally:
            stop = [*pg_ctl, "-m", "immediate", "stop"]
            subprocess.run(stop, check=True, capture_output=True, cwd=scratch)


@contextmanager
def glue(directory: Path) -> Iterator[str]:
    port = _free_port()
    with (directory / "glue.log").open("wb") as log:
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
        server = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        eventually(lambda: _is_open(port))
        yield (
            f'type = "glue"\nwarehouse = "{directory}/lake"\n[catalog.settings]\n'
            f'"glue.endpoint" = "http://127.0.0.1:{port}"\n"glue.region" = "eu-west-1"\n'
            '"glue.access-key-id" = "none"\n"glue.secret-access-key" = "none"\n'
        )
    finally:
        server.terminate()
        server.wait(STOP_S)


@contextmanager
def hive(directory: Path) -> Iterator[str]:
    settings = directory / "hive"
    settings.mkdir()
    (settings / "hive-site.xml").write_text(HIVE_SITE.format(warehouse=f"{directory}/lake"))
    port = _free_port()
    with _java(directory, str(settings)) as gateway:
        java = gateway.jvm
        metastore = java.org.apache.hadoop.hive.metastore
        # The tables for locks, which are made by hand elsewhere.
        metastore.txn.TxnDbUtil.prepDb(java.org.apache.hadoop.hive.conf.HiveConf())
        arguments = gateway.new_array(java.String, 2)
        arguments[0], arguments[1] = "-p", str(port)

        ended: list[Exception] = []

        def serve() -> None:
            try:
                metastore.HiveMetaStore.main(arguments)
            except (Py4JError, OSError) as error:  # also when the test ends the process
                ended.append(error)

        threading.Thread(target=serve, daemon=True).start()
        eventually(lambda: _is_open(port) or ended)
        if ended:
            raise ended[0]
        # PySpark's jars are those of Hive 2, which has no type for a time with a time zone.
        yield (
            f'type = "hive"\nuri = "thrift://127.0.0.1:{port}"\n'
            '[catalog.settings]\n"hive.hive2-compatible" = "true"\n'
        )


@contextmanager
def rest(directory: Path) -> Iterator[str]:
    jars = CACHE / f"iceberg-rest-{ICEBERG}"
    try:
        if not jars.exists():
            resolve(jars, "org.apache.iceberg", "iceberg-core", ICEBERG, classifiers=("tests",))
    except Unavailable as reason:
        pytest.skip(str(reason))
    port = _free_port()
    with _java(directory, f"{jars}/*") as gateway:
        java = gateway.jvm
        catalog = java.org.apache.iceberg.hadoop.HadoopCatalog()
        catalog.setConf(java.org.apache.hadoop.conf.Configuration())
        catalog.initialize("lake", {"warehouse": f"file://{directory}/lake"})
        iceberg, jetty = java.org.apache.iceberg.rest, java.org.sparkproject.jetty
        handler = jetty.ee10.servlet.ServletContextHandler()
        servlet = iceberg.RESTCatalogServlet(iceberg.RESTCatalogAdapter(catalog))
        handler.addServlet(jetty.ee10.servlet.ServletHolder(servlet), "/*")
        server = jetty.server.Server(java.java.net.InetSocketAddress("127.0.0.1", port))
        server.setHandler(handler)
        server.start()
        yield f'type = "rest"\nuri = "http://127.0.0.1:{port}"\n'


@contextmanager
def _java(directory: Path, first: str) -> Iterator[JavaGateway]:
    """Start a Java process with the classes of PySpark, behind those of `first`."""
    [jar] = SPARK_JARS.glob("py4j*.jar")
    with (directory / "java.log").open("w") as log:
        port, process = launch_gateway(
            jarpath=str(jar),
            classpath=f"{first}:{SPARK_JARS}/*",
            java_path=str(find_java().home / "bin" / "java"),
            die_on_exit=True,
            redirect_stdout=log,
            redirect_stderr=log,
            return_proc=True,
            cwd=str(directory),  # Derby writes its log there
        )
        gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auto_convert=True))
        try:
            yield gateway
        finally:
            process.terminate()
            process.wait(STOP_S)


def _free_port() -> int:
    return int(lasting_address().rpartition(":")[2])


def _is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
