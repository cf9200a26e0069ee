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
    __slots__ = ("region", "incarnation", "missing_ledger", "missing_entry", "created")
    REGION_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    MISSING_LEDGER_FIELD_NUMBER: _ClassVar[int]
    MISSING_ENTRY_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    region: str
    incarnation: str
    missing_ledger: int
    missing_entry: int
    created: str
    def __init__(self, region: _Optional[str] = ..., incarnation: _Optional[str] = ..., missing_ledger: _Optional[int] = ..., missing_entry: _Optional[int] = ..., created: _Optional[str] = ...) -> None: ...

class OriginEnd(_message.Message):
    __slots__ = ("region", "ledger", "entry")
    REGION_FIELD_NUMBER: _ClassVar[int]
    LEDGER_FIELD_NUMBER: _ClassVar[int]
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    region: str
    ledger: int
    entry: int
    def __init__(self, region: _Optional[str] = ..., ledger: _Optional[int] = ..., entry: _Optional[int] = ...) -> None: ...

class ReplicationState(_message.Message):
    __slots__ = ("last_origin_ledger", "last_origin_entry", "incarnation", "ends", "with_base")
    LAST_ORIGIN_LEDGER_FIELD_NUMBER: _ClassVar[int]
    LAST_ORIGIN_ENTRY_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ENDS_FIELD_NUMBER: _ClassVar[int]
    WITH_BASE_FIELD_NUMBER: _ClassVar[int]
    last_origin_ledger: int
    last_origin_entry: int
    incarnation: str
    ends: _containers.RepeatedCompositeFieldContainer[OriginEnd]
    with_base: bool
    def __init__(self, last_origin_ledger: _Optional[int] = ..., last_origin_entry: _Optional[int] = ..., incarnation: _Optional[str] = ..., ends: _Optional[_Iterable[_Union[OriginEnd, _Mapping[str, object]]]] = ..., with_base: bool = ...) -> None: ...

class EntriesWanted(_message.Message):
    __slots__ = ("request_id", "region", "topic", "incarnation", "origin", "after_ledger", "after_entry", "before_ledger", "before_entry")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    REGION_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    AFTER_LEDGER_FIELD_NUMBER: _ClassVar[int]
    AFTER_ENTRY_FIELD_NUMBER: _ClassVar[int]
    BEFORE_LEDGER_FIELD_NUMBER: _ClassVar[int]
    BEFORE_ENTRY_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    region: str
    topic: str
    incarnation: str
    origin: str
    after_ledger: int
    after_entry: int
    before_ledger: int
    before_entry: int
    def __init__(self, request_id: _Optional[int] = ..., region: _Optional[str] = ..., topic: _Optional[str] = ..., incarnation: _Optional[str] = ..., origin: _Optional[str] = ..., after_ledger: _Optional[int] = ..., after_entry: _Optional[int] = ..., before_ledger: _Optional[int] = ..., before_entry: _Optional[int] = ...) -> None: ...

class EntriesFound(_message.Message):
    __slots__ = ("request_id", "entries", "chained", "complete", "last_ledger", "last_entry", "origins", "feed", "outside")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    CHAINED_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    LAST_LEDGER_FIELD_NUMBER: _ClassVar[int]
    LAST_ENTRY_FIELD_NUMBER: _ClassVar[int]
    ORIGINS_FIELD_NUMBER: _ClassVar[int]
    FEED_FIELD_NUMBER: _ClassVar[int]
    OUTSIDE_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    entries: _containers.RepeatedScalarFieldContainer[bytes]
    chained: bool
    complete: bool
    last_ledger: int
    last_entry: int
    origins: _containers.RepeatedScalarFieldContainer[str]
    feed: Feed
    outside: bool
    def __init__(self, request_id: _Optional[int] = ..., entries: _Optional[_Iterable[bytes]] = ..., chained: bool = ..., complete: bool = ..., last_ledger: _Optional[int] = ..., last_entry: _Optional[int] = ..., origins: _Optional[_Iterable[str]] = ..., feed: _Optional[_Union[Feed, _Mapping[str, object]]] = ..., outside: bool = ...) -> None: ...

class Feed(_message.Message):
    __slots__ = ("confirmed_ledger", "confirmed_entry", "end_ledger", "end_entry", "behind", "held", "subscriptions")
    CONFIRMED_LEDGER_FIELD_NUMBER: _ClassVar[int]
    CONFIRMED_ENTRY_FIELD_NUMBER: _ClassVar[int]
    END_LEDGER_FIELD_NUMBER: _ClassVar[int]
    END_ENTRY_FIELD_NUMBER: _ClassVar[int]
    BEHIND_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTIONS_FIELD_NUMBER: _ClassVar[int]
    confirmed_ledger: int
    confirmed_entry: int
    end_ledger: int
    end_entry: int
    behind: int
    held: str
    subscriptions: int
    def __init__(self, confirmed_ledger: _Optional[int] = ..., confirmed_entry: _Optional[int] = ..., end_ledger: _Optional[int] = ..., end_entry: _Optional[int] = ..., behind: _Optional[int] = ..., held: _Optional[str] = ..., subscriptions: _Optional[int] = ...) -> None: ...

class ProgressHello(_message.Message):
    __slots__ = ("region", "protocol_version", "next_delta", "answer", "leases", "broker", "asks_owners")
    REGION_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    NEXT_DELTA_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    BROKER_FIELD_NUMBER: _ClassVar[int]
    ASKS_OWNERS_FIELD_NUMBER: _ClassVar[int]
    region: str
    protocol_version: int
    next_delta: int
    answer: bool
    leases: bool
    broker: str
    asks_owners: bool
    def __init__(self, region: _Optional[str] = ..., protocol_version: _Optional[int] = ..., next_delta: _Optional[int] = ..., answer: bool = ..., leases: bool = ..., broker: _Optional[str] = ..., asks_owners: bool = ...) -> None: ...

class Owners(_message.Message):
    __slots__ = ("brokers", "namespaces", "first", "last")
    class Broker(_message.Message):
        __slots__ = ("broker", "service_url", "service_url_tls")
        BROKER_FIELD_NUMBER: _ClassVar[int]
        SERVICE_URL_FIELD_NUMBER: _ClassVar[int]
        SERVICE_URL_TLS_FIELD_NUMBER: _ClassVar[int]
        broker: str
        service_url: str
        service_url_tls: str
        def __init__(self, broker: _Optional[str] = ..., service_url: _Optional[str] = ..., service_url_tls: _Optional[str] = ...) -> None: ...
    class Namespace(_message.Message):
        __slots__ = ("name", "borders", "owners")
        NAME_FIELD_NUMBER: _ClassVar[int]
        BORDERS_FIELD_NUMBER: _ClassVar[int]
        OWNERS_FIELD_NUMBER: _ClassVar[int]
        name: str
        borders: _containers.RepeatedScalarFieldContainer[int]
        owners: _containers.RepeatedScalarFieldContainer[int]
        def __init__(self, name: _Optional[str] = ..., borders: _Optional[_Iterable[int]] = ..., owners: _Optional[_Iterable[int]] = ...) -> None: ...
    BROKERS_FIELD_NUMBER: _ClassVar[int]
    NAMESPACES_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    brokers: _containers.RepeatedCompositeFieldContainer[Owners.Broker]
    namespaces: _containers.RepeatedCompositeFieldContainer[Owners.Namespace]
    first: bool
    last: bool
    def __init__(self, brokers: _Optional[_Iterable[_Union[Owners.Broker, _Mapping[str, object]]]] = ..., namespaces: _Optional[_Iterable[_Union[Owners.Namespace, _Mapping[str, object]]]] = ..., first: bool = ..., last: bool = ...) -> None: ...

class DeltaItem(_message.Message):
    __slots__ = ("topic", "subscription", "incarnation", "progress", "record", "unreached", "passed_on")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    UNREACHED_FIELD_NUMBER: _ClassVar[int]
    PASSED_ON_FIELD_NUMBER: _ClassVar[int]
    topic: str
    subscription: str
    incarnation: str
    progress: bytes
    record: bytes
    unreached: _containers.RepeatedScalarFieldContainer[str]
    passed_on: bool
    def __init__(self, topic: _Optional[str] = ..., subscription: _Optional[str] = ..., incarnation: _Optional[str] = ..., progress: _Optional[bytes] = ..., record: _Optional[bytes] = ..., unreached: _Optional[_Iterable[str]] = ..., passed_on: bool = ...) -> None: ...

class Delta(_message.Message):
    __slots__ = ("number", "items")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    number: int
    items: _containers.RepeatedCompositeFieldContainer[DeltaItem]
    def __init__(self, number: _Optional[int] = ..., items: _Optional[_Iterable[_Union[DeltaItem, _Mapping[str, object]]]] = ...) -> None: ...

class DeltaAck(_message.Message):
    __slots__ = ("number", "refusals")
    class Refusal(_message.Message):
        __slots__ = ("index", "code", "reason")
        INDEX_FIELD_NUMBER: _ClassVar[int]
        CODE_FIELD_NUMBER: _ClassVar[int]
        REASON_FIELD_NUMBER: _ClassVar[int]
        index: int
        code: str
        reason: str
        def __init__(self, index: _Optional[int] = ..., code: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    REFUSALS_FIELD_NUMBER: _ClassVar[int]
    number: int
    refusals: _containers.RepeatedCompositeFieldContainer[DeltaAck.Refusal]
    def __init__(self, number: _Optional[int] = ..., refusals: _Optional[_Iterable[_Union[DeltaAck.Refusal, _Mapping[str, object]]]] = ...) -> None: ...

class ProgressKey(_message.Message):
    __slots__ = ("epoch_time_ms", "epoch_counter", "epoch_region", "region", "ledger", "digest")
    EPOCH_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_COUNTER_FIELD_NUMBER: _ClassVar[int]
    EPOCH_REGION_FIELD_NUMBER: _ClassVar[int]
    REGION_FIELD_NUMBER: _ClassVar[int]
    LEDGER_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    epoch_time_ms: int
    epoch_counter: int
    epoch_region: str
    region: str
    ledger: int
    digest: int
    def __init__(self, epoch_time_ms: _Optional[int] = ..., epoch_counter: _Optional[int] = ..., epoch_region: _Optional[str] = ..., region: _Optional[str] = ..., ledger: _Optional[int] = ..., digest: _Optional[int] = ...) -> None: ...

class ProgressKeys(_message.Message):
    __slots__ = ("keys",)
    KEYS_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedCompositeFieldContainer[ProgressKey]
    def __init__(self, keys: _Optional[_Iterable[_Union[ProgressKey, _Mapping[str, object]]]] = ...) -> None: ...

class SubscriptionDigest(_message.Message):
    __slots__ = ("subscription", "digest", "record", "keys")
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    subscription: str
    digest: int
    record: int
    keys: ProgressKeys
    def __init__(self, subscription: _Optional[str] = ..., digest: _Optional[int] = ..., record: _Optional[int] = ..., keys: _Optional[_Union[ProgressKeys, _Mapping[str, object]]] = ...) -> None: ...

class TopicDigest(_message.Message):
    __slots__ = ("topic", "incarnation", "digest", "in_flux", "forced", "listed", "subscriptions")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    IN_FLUX_FIELD_NUMBER: _ClassVar[int]
    FORCED_FIELD_NUMBER: _ClassVar[int]
    LISTED_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTIONS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    incarnation: str
    digest: int
    in_flux: bool
    forced: bool
    listed: bool
    subscriptions: _containers.RepeatedCompositeFieldContainer[SubscriptionDigest]
    def __init__(self, topic: _Optional[str] = ..., incarnation: _Optional[str] = ..., digest: _Optional[int] = ..., in_flux: bool = ..., forced: bool = ..., listed: bool = ..., subscriptions: _Optional[_Iterable[_Union[SubscriptionDigest, _Mapping[str, object]]]] = ...) -> None: ...

class TopicsSummary(_message.Message):
    __slots__ = ("digest", "in_flux", "buckets_in_flux")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    IN_FLUX_FIELD_NUMBER: _ClassVar[int]
    BUCKETS_IN_FLUX_FIELD_NUMBER: _ClassVar[int]
    digest: int
    in_flux: bool
    buckets_in_flux: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, digest: _Optional[int] = ..., in_flux: bool = ..., buckets_in_flux: _Optional[_Iterable[int]] = ...) -> None: ...

class EndsSlice(_message.Message):
    __slots__ = ("origin", "bits", "first", "numbers")
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    BITS_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    NUMBERS_FIELD_NUMBER: _ClassVar[int]
    origin: str
    bits: int
    first: int
    numbers: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, origin: _Optional[str] = ..., bits: _Optional[int] = ..., first: _Optional[int] = ..., numbers: _Optional[_Iterable[int]] = ...) -> None: ...

class OriginEnds(_message.Message):
    __slots__ = ("origin", "topics")
    class TopicEnd(_message.Message):
        __slots__ = ("topic", "incarnation", "ledger", "entry")
        TOPIC_FIELD_NUMBER: _ClassVar[int]
        INCARNATION_FIELD_NUMBER: _ClassVar[int]
        LEDGER_FIELD_NUMBER: _ClassVar[int]
        ENTRY_FIELD_NUMBER: _ClassVar[int]
        topic: str
        incarnation: str
        ledger: int
        entry: int
        def __init__(self, topic: _Optional[str] = ..., incarnation: _Optional[str] = ..., ledger: _Optional[int] = ..., entry: _Optional[int] = ...) -> None: ...
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    origin: str
    topics: _containers.RepeatedCompositeFieldContainer[OriginEnds.TopicEnd]
    def __init__(self, origin: _Optional[str] = ..., topics: _Optional[_Iterable[_Union[OriginEnds.TopicEnd, _Mapping[str, object]]]] = ...) -> None: ...

class Digest(_message.Message):
    __slots__ = ("sent", "applied", "topics", "answer", "summary", "differing", "ends")
    SENT_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    DIFFERING_FIELD_NUMBER: _ClassVar[int]
    ENDS_FIELD_NUMBER: _ClassVar[int]
    sent: int
    applied: int
    topics: _containers.RepeatedCompositeFieldContainer[TopicDigest]
    answer: bool
    summary: TopicsSummary
    differing: _containers.RepeatedScalarFieldContainer[int]
    ends: EndsSlice
    def __init__(self, sent: _Optional[int] = ..., applied: _Optional[int] = ..., topics: _Optional[_Iterable[_Union[TopicDigest, _Mapping[str, object]]]] = ..., answer: bool = ..., summary: _Optional[_Union[TopicsSummary, _Mapping[str, object]]] = ..., differing: _Optional[_Iterable[int]] = ..., ends: _Optional[_Union[EndsSlice, _Mapping[str, object]]] = ...) -> None: ...

class Fetch(_message.Message):
    __slots__ = ("questions", "buckets", "parts", "buckets_in_flux")
    class Question(_message.Message):
        __slots__ = ("topic", "subscription", "state", "keys")
        TOPIC_FIELD_NUMBER: _ClassVar[int]
        SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
        STATE_FIELD_NUMBER: _ClassVar[int]
        KEYS_FIELD_NUMBER: _ClassVar[int]
        topic: str
        subscription: str
        state: bool
        keys: ProgressKeys
        def __init__(self, topic: _Optional[str] = ..., subscription: _Optional[str] = ..., state: bool = ..., keys: _Optional[_Union[ProgressKeys, _Mapping[str, object]]] = ...) -> None: ...
    class Parts(_message.Message):
        __slots__ = ("bucket", "numbers")
        BUCKET_FIELD_NUMBER: _ClassVar[int]
        NUMBERS_FIELD_NUMBER: _ClassVar[int]
        bucket: int
        numbers: _containers.RepeatedScalarFieldContainer[int]
        def __init__(self, bucket: _Optional[int] = ..., numbers: _Optional[_Iterable[int]] = ...) -> None: ...
    QUESTIONS_FIELD_NUMBER: _ClassVar[int]
    BUCKETS_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    BUCKETS_IN_FLUX_FIELD_NUMBER: _ClassVar[int]
    questions: _containers.RepeatedCompositeFieldContainer[Fetch.Question]
    buckets: _containers.RepeatedScalarFieldContainer[int]
    parts: _containers.RepeatedCompositeFieldContainer[Fetch.Parts]
    buckets_in_flux: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, questions: _Optional[_Iterable[_Union[Fetch.Question, _Mapping[str, object]]]] = ..., buckets: _Optional[_Iterable[int]] = ..., parts: _Optional[_Iterable[_Union[Fetch.Parts, _Mapping[str, object]]]] = ..., buckets_in_flux: _Optional[_Iterable[int]] = ...) -> None: ...

class State(_message.Message):
    __slots__ = ("items", "ends")
    class Item(_message.Message):
        __slots__ = ("topic", "subscription", "incarnation", "record", "progress")
        TOPIC_FIELD_NUMBER: _ClassVar[int]
        SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
        INCARNATION_FIELD_NUMBER: _ClassVar[int]
        RECORD_FIELD_NUMBER: _ClassVar[int]
        PROGRESS_FIELD_NUMBER: _ClassVar[int]
        topic: str
        subscription: str
        incarnation: str
        record: bytes
        progress: bytes
        def __init__(self, topic: _Optional[str] = ..., subscription: _Optional[str] = ..., incarnation: _Optional[str] = ..., record: _Optional[bytes] = ..., progress: _Optional[bytes] = ...) -> None: ...
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    ENDS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[State.Item]
    ends: OriginEnds
    def __init__(self, items: _Optional[_Iterable[_Union[State.Item, _Mapping[str, object]]]] = ..., ends: _Optional[_Union[OriginEnds, _Mapping[str, object]]] = ...) -> None: ...

class Barrier(_message.Message):
    __slots__ = ("number", "topic", "subscription", "incarnation", "keys", "wants_record")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    WANTS_RECORD_FIELD_NUMBER: _ClassVar[int]
    number: int
    topic: str
    subscription: str
    incarnation: str
    keys: ProgressKeys
    wants_record: bool
    def __init__(self, number: _Optional[int] = ..., topic: _Optional[str] = ..., subscription: _Optional[str] = ..., incarnation: _Optional[str] = ..., keys: _Optional[_Union[ProgressKeys, _Mapping[str, object]]] = ..., wants_record: bool = ...) -> None: ...

class BarrierDone(_message.Message):
    __slots__ = ("number", "progress", "record", "reason")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    number: int
    progress: bytes
    record: bytes
    reason: str
    def __init__(self, number: _Optional[int] = ..., progress: _Optional[bytes] = ..., record: _Optional[bytes] = ..., reason: _Optional[str] = ...) -> None: ...

class LeaseStream(_message.Message):
    __slots__ = ("topic", "subscription", "origin")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    topic: str
    subscription: str
    origin: str
    def __init__(self, topic: _Optional[str] = ..., subscription: _Optional[str] = ..., origin: _Optional[str] = ...) -> None: ...

class LeaseAsk(_message.Message):
    __slots__ = ("number", "holder", "duration_ms", "items", "preferred")
    class Item(_message.Message):
        __slots__ = ("stream", "term", "mark", "preferred")
        STREAM_FIELD_NUMBER: _ClassVar[int]
        TERM_FIELD_NUMBER: _ClassVar[int]
        MARK_FIELD_NUMBER: _ClassVar[int]
        PREFERRED_FIELD_NUMBER: _ClassVar[int]
        stream: LeaseStream
        term: int
        mark: int
        preferred: int
        def __init__(self, stream: _Optional[_Union[LeaseStream, _Mapping[str, object]]] = ..., term: _Optional[int] = ..., mark: _Optional[int] = ..., preferred: _Optional[int] = ...) -> None: ...
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    PREFERRED_FIELD_NUMBER: _ClassVar[int]
    number: int
    holder: str
    duration_ms: int
    items: _containers.RepeatedCompositeFieldContainer[LeaseAsk.Item]
    preferred: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, number: _Optional[int] = ..., holder: _Optional[str] = ..., duration_ms: _Optional[int] = ..., items: _Optional[_Iterable[_Union[LeaseAsk.Item, _Mapping[str, object]]]] = ..., preferred: _Optional[_Iterable[str]] = ...) -> None: ...

class LeaseAnswer(_message.Message):
    __slots__ = ("number", "items")
    class Item(_message.Message):
        __slots__ = ("stream", "term", "granted", "known_term", "left_ms", "holder", "reason")
        STREAM_FIELD_NUMBER: _ClassVar[int]
        TERM_FIELD_NUMBER: _ClassVar[int]
        GRANTED_FIELD_NUMBER: _ClassVar[int]
        KNOWN_TERM_FIELD_NUMBER: _ClassVar[int]
        LEFT_MS_FIELD_NUMBER: _ClassVar[int]
        HOLDER_FIELD_NUMBER: _ClassVar[int]
        REASON_FIELD_NUMBER: _ClassVar[int]
        stream: LeaseStream
        term: int
        granted: bool
        known_term: int
        left_ms: int
        holder: str
        reason: str
        def __init__(self, stream: _Optional[_Union[LeaseStream, _Mapping[str, object]]] = ..., term: _Optional[int] = ..., granted: bool = ..., known_term: _Optional[int] = ..., left_ms: _Optional[int] = ..., holder: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    number: int
    items: _containers.RepeatedCompositeFieldContainer[LeaseAnswer.Item]
    def __init__(self, number: _Optional[int] = ..., items: _Optional[_Iterable[_Union[LeaseAnswer.Item, _Mapping[str, object]]]] = ...) -> None: ...

class LeaseRelease(_message.Message):
    __slots__ = ("holder", "items")
    class Item(_message.Message):
        __slots__ = ("stream", "term")
        STREAM_FIELD_NUMBER: _ClassVar[int]
        TERM_FIELD_NUMBER: _ClassVar[int]
        stream: LeaseStream
        term: int
        def __init__(self, stream: _Optional[_Union[LeaseStream, _Mapping[str, object]]] = ..., term: _Optional[int] = ...) -> None: ...
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    holder: str
    items: _containers.RepeatedCompositeFieldContainer[LeaseRelease.Item]
    def __init__(self, holder: _Optional[str] = ..., items: _Optional[_Iterable[_Union[LeaseRelease.Item, _Mapping[str, object]]]] = ...) -> None: ...

class LeaseRenewal(_message.Message):
    __slots__ = ("number", "holder", "parts", "digests")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    number: int
    holder: str
    parts: _containers.RepeatedScalarFieldContainer[int]
    digests: bytes
    def __init__(self, number: _Optional[int] = ..., holder: _Optional[str] = ..., parts: _Optional[_Iterable[int]] = ..., digests: _Optional[bytes] = ...) -> None: ...

class LeaseRenewed(_message.Message):
    __slots__ = ("number", "differing")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    DIFFERING_FIELD_NUMBER: _ClassVar[int]
    number: int
    differing: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, number: _Optional[int] = ..., differing: _Optional[_Iterable[int]] = ...) -> None: ...

class Voters(_message.Message):
    __slots__ = ("items",)
    class List(_message.Message):
        __slots__ = ("said", "names")
        SAID_FIELD_NUMBER: _ClassVar[int]
        NAMES_FIELD_NUMBER: _ClassVar[int]
        said: str
        names: _containers.RepeatedScalarFieldContainer[str]
        def __init__(self, said: _Optional[str] = ..., names: _Optional[_Iterable[str]] = ...) -> None: ...
    class Item(_message.Message):
        __slots__ = ("topic", "subscription", "lists", "committed", "wanted", "is_clean")
        TOPIC_FIELD_NUMBER: _ClassVar[int]
        SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
        LISTS_FIELD_NUMBER: _ClassVar[int]
        COMMITTED_FIELD_NUMBER: _ClassVar[int]
        WANTED_FIELD_NUMBER: _ClassVar[int]
        IS_CLEAN_FIELD_NUMBER: _ClassVar[int]
        topic: str
        subscription: str
        lists: _containers.RepeatedCompositeFieldContainer[Voters.List]
        committed: str
        wanted: _containers.RepeatedScalarFieldContainer[str]
        is_clean: bool
        def __init__(self, topic: _Optional[str] = ..., subscription: _Optional[str] = ..., lists: _Optional[_Iterable[_Union[Voters.List, _Mapping[str, object]]]] = ..., committed: _Optional[str] = ..., wanted: _Optional[_Iterable[str]] = ..., is_clean: bool = ...) -> None: ...
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[Voters.Item]
    def __init__(self, items: _Optional[_Iterable[_Union[Voters.Item, _Mapping[str, object]]]] = ...) -> None: ...
