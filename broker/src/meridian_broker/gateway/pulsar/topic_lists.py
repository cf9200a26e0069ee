# SPDX-License-Identifier: Apache-2.0
"""The topics of a namespace: listed once, or watched."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from meridian_broker.gateway.pulsar import permitted
from meridian_broker.gateway.pulsar.lookups import long_answer
from meridian_broker.gateway.pulsar.refusals import REFUSALS
from meridian_broker.topics.directory.listing import Selected, select
from meridian_broker.topics.directory.patterns import BadPattern, TopicPattern
from meridian_broker.topics.directory.watching import Watcher
from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar import encode, topic_name
from meridian_broker.wire.pulsar.errors import NotAllowedError

if TYPE_CHECKING:
    from meridian_broker.gateway.pulsar.connection import Connection

_T = pb.BaseCommand
_MODE = pb.CommandGetTopicsOfNamespace
BYTES_PER_NAME: Final = 3
"""Protobuf's tag and length, for names of less than 16 KiB."""


def topics_of_namespace(connection: Connection, command: Any) -> None:
    """GET_TOPICS_OF_NAMESPACE. ``filtered`` says whether the pattern was applied here, or is left to the client."""
    connection.run(_topics_of_namespace(connection, command.message))


async def _topics_of_namespace(connection: Connection, asked: pb.CommandGetTopicsOfNamespace) -> None:
    async with long_answer(connection):
        try:
            answer = await _selected(connection, asked)
        except REFUSALS as error:
            connection.fail(asked.request_id, error)
            return
        connection.write(encode.simple(_T.GET_TOPICS_OF_NAMESPACE_RESPONSE, answer))


async def _selected(
    connection: Connection, asked: pb.CommandGetTopicsOfNamespace
) -> pb.CommandGetTopicsOfNamespaceResponse:
    """:raises InvalidTopicNameError, MetadataError: the namespace does not exist or its topics cannot be read.
    :raises NotAllowedError: there are too many for one answer.
    :raises AuthorizationError: the client may not list them.
    """
    service = connection.broker.service
    topic_name.parse_namespace(asked.namespace)
    permitted.check_listing(connection, asked.namespace)
    names: list[str] = []
    if asked.mode != _MODE.PERSISTENT:
        names += await service.registry.non_persistent.names(asked.namespace)
    if asked.mode != _MODE.NON_PERSISTENT:
        names += await service.registry.names(asked.namespace)
    pattern = _pattern(connection, asked.topics_pattern) if asked.HasField("topics_pattern") else None
    selected = await select(names, pattern, service.parts.scheduler)
    answer = pb.CommandGetTopicsOfNamespaceResponse(
        request_id=asked.request_id, filtered=pattern is not None, topics_hash=selected.digest, changed=True
    )
    if asked.HasField("topics_hash") and asked.topics_hash == selected.digest:
        answer.changed = False
    else:
        _check_fits(connection, selected)
        answer.topics.extend(selected.names)
    return answer


def _check_fits(connection: Connection, selected: Selected) -> None:
    """A client that receives too large a frame closes the connection, with everything on it.

    :raises NotAllowedError: the names do not fit into one frame.
    """
    most = connection.broker.max_message_bytes
    size = selected.encoded_bytes + len(selected.names) * BYTES_PER_NAME
    if size > most:
        raise NotAllowedError(
            f"the names of {len(selected.names)} topics take {size} bytes, more than the {most} of an answer "
            f"(maxMessageSize): use a pattern of at most {connection.broker.pattern_length} characters that selects "
            "fewer, several namespaces, or list the topics over HTTP"
        )


def _pattern(connection: Connection, text: str) -> TopicPattern | None:
    """None: too long for this broker, or written for a backtracking engine."""
    if len(text) > connection.broker.pattern_length:
        return None
    try:
        return TopicPattern(text)
    except BadPattern:
        return None


def watch(connection: Connection, command: Any) -> None:
    """WATCH_TOPIC_LIST. For an id already in use: the current list, for the pattern given first."""
    asked: pb.CommandWatchTopicList = command.message
    if connection.watchers is None:
        connection.watchers = {}
    known = connection.watchers.get(asked.watcher_id)
    try:
        if known is None:
            topic_name.parse_namespace(asked.namespace)
            permitted.check_listing(connection, asked.namespace)
            pattern = _watched(connection, asked.topics_pattern)
            watchers = connection.broker.service.watchers
            known = watchers.add(connection, asked.watcher_id, asked.namespace, pattern)
            connection.watchers[asked.watcher_id] = known
    except REFUSALS as error:
        connection.fail(asked.request_id, error)
        return
    connection.run(_start(connection, asked, known))


def _watched(connection: Connection, text: str) -> TopicPattern:
    """:raises NotAllowedError: this broker does not evaluate it; clients then poll the list instead."""
    most = connection.broker.pattern_length
    if len(text) > most:
        raise NotAllowedError(f"the pattern has {len(text)} characters; the limit for watching topics is {most}")
    try:
        return TopicPattern(text)
    except BadPattern as error:
        raise NotAllowedError(str(error)) from None


async def _start(connection: Connection, asked: pb.CommandWatchTopicList, watcher: Watcher) -> None:
    watchers = connection.broker.service.watchers
    async with long_answer(connection):
        try:
            selected = await watchers.listed(watcher)
            is_known = asked.HasField("topics_hash") and asked.topics_hash == selected.digest
            if not is_known:
                _check_fits(connection, selected)
        except REFUSALS as error:
            _forget(connection, watcher)
            connection.fail(asked.request_id, error)
            return
        answer = pb.CommandWatchTopicListSuccess(
            request_id=asked.request_id, watcher_id=asked.watcher_id, topics_hash=selected.digest
        )
        if not is_known:
            answer.topic.extend(selected.names)
        connection.write(encode.simple(_T.WATCH_TOPIC_LIST_SUCCESS, answer))
    watchers.start(watcher)


def _forget(connection: Connection, watcher: Watcher) -> None:
    connection.broker.service.watchers.remove(watcher)
    if connection.watchers is not None and connection.watchers.get(watcher.watcher_id) is watcher:
        del connection.watchers[watcher.watcher_id]


def close_watcher(connection: Connection, command: Any) -> None:
    """WATCH_TOPIC_LIST_CLOSE succeeds also for an unknown id."""
    asked: pb.CommandWatchTopicListClose = command.message
    watcher = (connection.watchers or {}).get(asked.watcher_id)
    if watcher is not None:
        _forget(connection, watcher)
    connection.succeed(asked.request_id)
