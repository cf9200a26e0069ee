from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class OriginStamp(_message.Message):
    __slots__ = ("region", "ledger", "entry", "prev_ledger", "prev_entry", "sent_prev_ledger", "sent_prev_entry", "checksum", "appended_metadata_bytes", "messages", "key_hash", "publish_time_ms", "flags", "stored_time_ms")
    REGION_FIELD_NUMBER: _ClassVar[int]
    LEDGER_FIELD_NUMBER: _ClassVar[int]
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    PREV_LEDGER_FIELD_NUMBER: _ClassVar[int]
    PREV_ENTRY_FIELD_NUMBER: _ClassVar[int]
    SENT_PREV_LEDGER_FIELD_NUMBER: _ClassVar[int]
    SENT_PREV_ENTRY_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    APPENDED_METADATA_BYTES_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    KEY_HASH_FIELD_NUMBER: _ClassVar[int]
    PUBLISH_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    FLAGS_FIELD_NUMBER: _ClassVar[int]
    STORED_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    region: str
    ledger: int
    entry: int
    prev_ledger: int
    prev_entry: int
    sent_prev_ledger: int
    sent_prev_entry: int
    checksum: int
    appended_metadata_bytes: int
    messages: int
    key_hash: int
    publish_time_ms: int
    flags: int
    stored_time_ms: int
    def __init__(self, region: _Optional[str] = ..., ledger: _Optional[int] = ..., entry: _Optional[int] = ..., prev_ledger: _Optional[int] = ..., prev_entry: _Optional[int] = ..., sent_prev_ledger: _Optional[int] = ..., sent_prev_entry: _Optional[int] = ..., checksum: _Optional[int] = ..., appended_metadata_bytes: _Optional[int] = ..., messages: _Optional[int] = ..., key_hash: _Optional[int] = ..., publish_time_ms: _Optional[int] = ..., flags: _Optional[int] = ..., stored_time_ms: _Optional[int] = ...) -> None: ...

class ReplicationSource(_message.Message):
    __slots__ = ("region", "incarnation")
    REGION_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    region: str
    incarnation: str
    def __init__(self, region: _Optional[str] = ..., incarnation: _Optional[str] = ...) -> None: ...

class ReplicationState(_message.Message):
    __slots__ = ("last_origin_ledger", "last_origin_entry", "incarnation")
    LAST_ORIGIN_LEDGER_FIELD_NUMBER: _ClassVar[int]
    LAST_ORIGIN_ENTRY_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    last_origin_ledger: int
    last_origin_entry: int
    incarnation: str
    def __init__(self, last_origin_ledger: _Optional[int] = ..., last_origin_entry: _Optional[int] = ..., incarnation: _Optional[str] = ...) -> None: ...

class ProgressHello(_message.Message):
    __slots__ = ("region", "protocol_version", "incarnation")
    REGION_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    region: str
    protocol_version: int
    incarnation: str
    def __init__(self, region: _Optional[str] = ..., protocol_version: _Optional[int] = ..., incarnation: _Optional[str] = ...) -> None: ...

class DeltaItem(_message.Message):
    __slots__ = ("topic", "subscription", "incarnation", "progress", "record", "origin_region", "passed_on")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_REGION_FIELD_NUMBER: _ClassVar[int]
    PASSED_ON_FIELD_NUMBER: _ClassVar[int]
    topic: str
    subscription: str
    incarnation: str
    progress: bytes
    record: bytes
    origin_region: str
    passed_on: bool
    def __init__(self, topic: _Optional[str] = ..., subscription: _Optional[str] = ..., incarnation: _Optional[str] = ..., progress: _Optional[bytes] = ..., record: _Optional[bytes] = ..., origin_region: _Optional[str] = ..., passed_on: bool = ...) -> None: ...

class Delta(_message.Message):
    __slots__ = ("link_sequence", "items")
    LINK_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    link_sequence: int
    items: _containers.RepeatedCompositeFieldContainer[DeltaItem]
    def __init__(self, link_sequence: _Optional[int] = ..., items: _Optional[_Iterable[_Union[DeltaItem, _Mapping[str, object]]]] = ...) -> None: ...

class DeltaAck(_message.Message):
    __slots__ = ("link_sequence", "refused")
    class Refused(_message.Message):
        __slots__ = ("topic", "subscription", "reason")
        TOPIC_FIELD_NUMBER: _ClassVar[int]
        SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
        REASON_FIELD_NUMBER: _ClassVar[int]
        topic: str
        subscription: str
        reason: str
        def __init__(self, topic: _Optional[str] = ..., subscription: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...
    LINK_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    link_sequence: int
    refused: _containers.RepeatedCompositeFieldContainer[DeltaAck.Refused]
    def __init__(self, link_sequence: _Optional[int] = ..., refused: _Optional[_Iterable[_Union[DeltaAck.Refused, _Mapping[str, object]]]] = ...) -> None: ...

class SubscriptionDigest(_message.Message):
    __slots__ = ("subscription", "pairs", "high_waters")
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    PAIRS_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERS_FIELD_NUMBER: _ClassVar[int]
    subscription: str
    pairs: bytes
    high_waters: _containers.RepeatedCompositeFieldContainer[HighWater]
    def __init__(self, subscription: _Optional[str] = ..., pairs: _Optional[bytes] = ..., high_waters: _Optional[_Iterable[_Union[HighWater, _Mapping[str, object]]]] = ...) -> None: ...

class HighWater(_message.Message):
    __slots__ = ("region", "ledger", "entry")
    REGION_FIELD_NUMBER: _ClassVar[int]
    LEDGER_FIELD_NUMBER: _ClassVar[int]
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    region: str
    ledger: int
    entry: int
    def __init__(self, region: _Optional[str] = ..., ledger: _Optional[int] = ..., entry: _Optional[int] = ...) -> None: ...

class Digest(_message.Message):
    __slots__ = ("request_id", "topic", "incarnation", "cut_sent", "cut_applied", "subscriptions")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    CUT_SENT_FIELD_NUMBER: _ClassVar[int]
    CUT_APPLIED_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTIONS_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    topic: str
    incarnation: str
    cut_sent: int
    cut_applied: int
    subscriptions: _containers.RepeatedCompositeFieldContainer[SubscriptionDigest]
    def __init__(self, request_id: _Optional[int] = ..., topic: _Optional[str] = ..., incarnation: _Optional[str] = ..., cut_sent: _Optional[int] = ..., cut_applied: _Optional[int] = ..., subscriptions: _Optional[_Iterable[_Union[SubscriptionDigest, _Mapping[str, object]]]] = ...) -> None: ...

class Fetch(_message.Message):
    __slots__ = ("request_id", "topic", "subscription", "keys")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    topic: str
    subscription: str
    keys: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, request_id: _Optional[int] = ..., topic: _Optional[str] = ..., subscription: _Optional[str] = ..., keys: _Optional[_Iterable[bytes]] = ...) -> None: ...

class State(_message.Message):
    __slots__ = ("request_id", "topic", "subscription", "found", "progress", "record")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    FOUND_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    topic: str
    subscription: str
    found: bool
    progress: bytes
    record: bytes
    def __init__(self, request_id: _Optional[int] = ..., topic: _Optional[str] = ..., subscription: _Optional[str] = ..., found: bool = ..., progress: _Optional[bytes] = ..., record: _Optional[bytes] = ...) -> None: ...

class Barrier(_message.Message):
    __slots__ = ("request_id", "topic", "subscription")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    topic: str
    subscription: str
    def __init__(self, request_id: _Optional[int] = ..., topic: _Optional[str] = ..., subscription: _Optional[str] = ...) -> None: ...

class BarrierDone(_message.Message):
    __slots__ = ("request_id", "found", "progress", "record", "error")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    FOUND_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    found: bool
    progress: bytes
    record: bytes
    error: str
    def __init__(self, request_id: _Optional[int] = ..., found: bool = ..., progress: _Optional[bytes] = ..., record: _Optional[bytes] = ..., error: _Optional[str] = ...) -> None: ...
