# SPDX-License-Identifier: Apache-2.0
"""What is remembered about the outbox while entries are sent, removed and rewritten."""

from __future__ import annotations

from meridian_broker.metadata.store import Change, Record
from meridian_broker.metadata.sync import outbox
from meridian_broker.metadata.sync.followed_outbox import FollowedOutbox
from meridian_broker.metadata.sync.outbox import OutboxEntry
from meridian_broker.metadata.sync.publishing import Owed, in_groups
from meridian_broker.positions.clock import Stamp

ONE, TWO = "/local/sync/outbox/a", "/local/sync/outbox/b"


def stored(version: int) -> Record:
    return Record(outbox.to_store(OutboxEntry(Stamp(version, 0, "us"), {"/a": None})), version)


def followed(**entries: int) -> FollowedOutbox:
    found = FollowedOutbox()
    found.read((f"/local/sync/outbox/{name}", stored(version)) for name, version in entries.items())
    return found


def all_sent(found: FollowedOutbox) -> list[Owed]:
    sent = [one for group in in_groups(found.unsent.items()) for one in group]
    found.were_sent(sent)
    return sent


def test_a_sent_entry_is_to_be_removed_and_not_sent_again() -> None:
    found = followed(a=1, b=2)
    sent = all_sent(found)
    assert not found.unsent
    assert list(found.sent.values()) == sent
    assert found.entry(ONE) == Record(outbox.SENT, 1)
    found.were_removed(sent[:1])
    assert list(found.sent) == [TWO]
    assert found.entry(ONE) is None
    found.hear([Change(TWO, None)])
    assert not found.sent


def test_a_write_added_while_an_entry_is_sent_makes_it_unsent() -> None:
    found = followed(a=1)
    sent = [one for group in in_groups(found.unsent.items()) for one in group]
    found.hear([Change(ONE, stored(2))])
    found.were_sent(sent)
    assert list(found.unsent) == [ONE]
    assert not found.sent
    assert found.entry(ONE) == stored(2)


def test_a_write_added_after_an_entry_was_sent_prevents_its_removal() -> None:
    found = followed(a=1)
    sent = all_sent(found)
    found.hear([Change(ONE, stored(2))])
    assert not found.sent
    found.were_removed(sent)
    assert found.unsent == {ONE: stored(2)}


def test_entries_read_again_are_sent_if_they_changed() -> None:
    found = followed(a=1, b=2)
    all_sent(found)
    found.read([(ONE, stored(1)), (TWO, stored(3))])
    assert list(found.sent) == [ONE]
    assert list(found.unsent) == [TWO]


def test_an_entry_sent_before_the_last_look_and_not_written_since_is_idle() -> None:
    found = followed(a=1, b=2)
    sent = all_sent(found)
    assert not found.idle()
    assert found.idle() == sent
    found.hear([Change(ONE, stored(3))])
    assert found.idle() == sent[1:]
    all_sent(found)
    assert found.idle() == sent[1:], "the other one was sent again just now"
    found.were_removed(sent[1:])
    assert found.idle() == list(found.sent.values())
