# SPDX-License-Identifier: Apache-2.0
"""Exceptions that were caught and logged while a test ran: programming errors that did not reach the test.

Expected situations have their own errors (``LedgerError`` ...) and may be logged: a full disk, a lost region. Anything
else logged with a traceback is a programming error, ``OSError`` as well as ``TypeError``: code that talks to a disk or
a socket must translate its errors.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class LoggedErrors(logging.Handler):
    """Collects the programming errors that a process logs."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and (error := record.exc_info[1]) is not None and not is_situation(error):
            text = f"{record.name}: {self.format(record)}"
            if not _is_from_a_closed_loop(text):
                self.found.append(text)


def is_situation(error: BaseException) -> bool:
    """Whether the error is one of Meridian's own, which describe expected situations."""
    return type(error).__module__.startswith("meridian")


def _is_from_a_closed_loop(text: str) -> bool:
    """gRPC has one poller for all event loops of a process. It may still call the closed loop of an earlier test, and
    then logs in whichever loop is running."""
    return "PollerCompletionQueue._handle_events" in text and "RuntimeError: Event loop is closed" in text


@contextmanager
def no_errors_but(expected: Iterable[str]) -> Iterator[None]:
    """:raises AssertionError: a programming error was logged that contains none of the expected texts."""
    logged, awaited = LoggedErrors(), list(expected)
    logging.getLogger().addHandler(logged)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(logged)
    surprises = [one for one in logged.found if not any(text in one for text in awaited)]
    assert not surprises, "programming errors were logged:\n" + "\n".join(surprises)
