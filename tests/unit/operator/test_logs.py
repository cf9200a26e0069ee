# SPDX-License-Identifier: Apache-2.0
"""The operator's log: kopf's lines about an object name the object."""

from __future__ import annotations

import logging
import sys
from typing import Any

import kopf
from kopf._core.actions.loggers import LocalObjectLogger
from meridian_operator.process.logs import Lines


class Kept(logging.Handler):
    """Keeps the log records."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


def test_kopfs_lines_about_an_object_name_it() -> None:
    meta = {"namespace": "team-a", "name": "orders", "uid": "1"}
    told: Any = {"apiVersion": "meridian.dev/v1alpha1", "kind": "GeoTopic", "metadata": meta}
    kept = Kept()
    logger = logging.getLogger("kopf.objects")
    logger.addHandler(kept)
    try:
        LocalObjectLogger(body=kopf.Body(told), settings=kopf.OperatorSettings()).error(
            "handler %r failed", "geo_topic"
        )
    finally:
        logger.removeHandler(kept)
    line = Lines().format(kept.records[0])
    assert line.endswith("ERROR kopf.objects: GeoTopic team-a/orders: handler 'geo_topic' failed")
    assert kept.records[0].getMessage() == "handler 'geo_topic' failed", "other handlers see the record unchanged"


def test_a_failure_is_shown_with_its_traceback() -> None:
    try:
        raise ValueError("odd")
    except ValueError:
        record = logging.LogRecord("a", logging.ERROR, "", 1, "100 % wrong", (), sys.exc_info())
    text = Lines().format(record)
    assert "ERROR a: 100 % wrong\nTraceback" in text and "ValueError: odd" in text
