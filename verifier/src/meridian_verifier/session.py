# SPDX-License-Identifier: Apache-2.0
"""The Spark session, as light as one driver with a handful of small jobs needs it, and the Java it stands on."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

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
"""


class JavaMissing(Exception):
    """No Java that Spark runs on. The message says what was found and what to install."""


def check_java() -> str:
    """The version of the Java that Spark will start.

    :raises JavaMissing: none, or one older than 17.
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


def start_session(master: str, scratch: Path) -> SparkSession:
    """Start (or find) the session; ``scratch`` takes Spark's temporary files and must outlive it.

    Workers run this very interpreter: Spark's own choice would be whichever ``python3`` is first on the PATH.
    """
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    logging = scratch / "log4j2.properties"
    logging.write_text(_QUIET, encoding="utf-8")
    # One short run: compiling a little costs less than compiling well.
    java = f"-Dlog4j2.configurationFile={logging.as_uri()} -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    builder = (
        SparkSession.Builder()
        .master(master)
        .appName("meridian-verify")
        .config("spark.driver.extraJavaOptions", java)
        .config("spark.driver.memory", "1g")
        .config("spark.local.dir", str(scratch))
        .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "8")
        # Groups are few and heavy: the adaptive planner would put them into one task because they are small in bytes.
        .config("spark.sql.adaptive.enabled", "false")
        # The data source takes filters; without this flag its queries are refused.
        .config("spark.sql.python.filterPushdown.enabled", "true")
    )
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        builder = builder.config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1")
    return builder.getOrCreate()
