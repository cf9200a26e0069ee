# SPDX-License-Identifier: Apache-2.0
"""The Spark session, as light as one driver with a few small jobs needs, and the Java that it needs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

JAVA_MINIMUM: Final = 17
_QUIET: Final = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = spark: %p %c{1}: %m%n
logger.python.name = org.apache.spark.api.python
logger.python.level = fatal
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
"""


_JAVA: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""One short run that hardly computes in Java: compiling a little costs less than compiling well (measured: half)."""
_STOP_SECONDS: Final = 30.0
_SETTINGS: Final = {
    "spark.driver.memory": "2g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "4",
    # Groups are few and heavy: the adaptive planner would put them all into one task because they are small in bytes.
    "spark.sql.adaptive.enabled": "false",
    # The data source supports filters; without this flag its queries are refused.
    "spark.sql.python.filterPushdown.enabled": "true",
    # Packed rows are megabytes each: a few fill a batch.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "64",
}


class SparkFailed(Exception):
    """The Spark session did not start. The message ends with Spark's last lines."""


class JavaMissing(Exception):
    """There is no Java that can run Spark. The message says what was found and what to install."""


def check_java() -> str:
    """The version of the Java that Spark will start.

    :raises JavaMissing: there is no Java, or it is older than 17.
    """
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    wish = f"Spark needs Java {JAVA_MINIMUM} or newer; on Debian and Ubuntu: apt-get install openjdk-17-jre-headless"
    if java is None:
        raise JavaMissing(f"no java on the PATH, and JAVA_HOME is not set. {wish}")
    try:
        told = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=True).stderr
    except (OSError, subprocess.SubprocessError) as error:
        raise JavaMissing(f"{java} does not run ({error}). {wish}") from error
    found = re.search(r'version "(?:1\.)?(\d+)([^"]*)"', told)
    if found is None or int(found[1]) < JAVA_MINIMUM:
        raise JavaMissing(f"{java} is version {found[1] if found else 'unknown'}. {wish}")
    return found[1] + found[2]


def start_session(master: str, scratch: Path, given: Mapping[str, str] | None = None) -> SparkSession:
    """Start a session. ``scratch`` holds Spark's temporary files and the log of its Java process, and must outlive it.
    ``given`` are settings that override our own.

    Workers run this very interpreter: Spark's own choice would be the first ``python3`` on the PATH.

    :raises SparkFailed: it does not start.
    """
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    logging = scratch / "log4j2.properties"
    logging.write_text(_QUIET, encoding="utf-8")
    settings = {
        **_SETTINGS,
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={logging.as_uri()} {_JAVA}",
        "spark.local.dir": str(scratch),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
    }
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        settings |= {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
    settings |= given or {}
    conf = SparkConf().setMaster(master).setAppName("meridian-verify").setAll(list(settings.items()))
    said = scratch / "spark.log"
    try:
        # Java and Spark print greetings on standard error: noise while all is well.
        with said.open("wb") as log, warnings.catch_warnings():
            # Spark warns about pandas' version while it loads a module that looks for pandas.
            warnings.simplefilter("ignore", FutureWarning)
            gateway = launch_gateway(conf, {"stderr": log})  # type: ignore[no-untyped-call]
            return SparkSession(SparkContext(conf=conf, gateway=gateway))
    except Exception as error:
        lines = said.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        # In a stack trace, the lines that name an exception show what happened, and the end shows where.
        named = [line.strip() for line in lines if "Exception" in line or "Caused by" in line][:5]
        raise SparkFailed(f"Spark does not start ({error}). {' | '.join([*named, *lines[-3:]])}") from error


def stop_session(session: SparkSession) -> None:
    """Stop a session and its Java process.

    Spark alone leaves the process running until this one ends, and a later session would be one of that process,
    beside a new one that nobody uses.
    """
    context = session.sparkContext
    gateway = context._gateway
    session.stop()
    if gateway is None or gateway.proc is None:  # the process is another's, as under spark-submit
        return
    SparkContext._gateway = SparkContext._jvm = None
    gateway.shutdown()
    java = gateway.proc
    java.stdin.close()  # it ends when this pipe does
    try:
        java.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        java.kill()
        java.wait()
