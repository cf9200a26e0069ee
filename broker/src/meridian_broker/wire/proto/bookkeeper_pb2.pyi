from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class LedgerMetadataFormat(_message.Message):
    __slots__ = ("write_quorum", "ensemble_size", "length", "last_entry", "state", "segment", "digest", "password", "ack_quorum", "created_ms", "custom")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        OPEN: _ClassVar[LedgerMetadataFormat.State]
        IN_RECOVERY: _ClassVar[LedgerMetadataFormat.State]
        CLOSED: _ClassVar[LedgerMetadataFormat.State]
    OPEN: LedgerMetadataFormat.State
    IN_RECOVERY: LedgerMetadataFormat.State
    CLOSED: LedgerMetadataFormat.State
    class Digest(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        CRC32: _ClassVar[LedgerMetadataFormat.Digest]
        HMAC: _ClassVar[LedgerMetadataFormat.Digest]
        CRC32C: _ClassVar[LedgerMetadataFormat.Digest]
        DUMMY: _ClassVar[LedgerMetadataFormat.Digest]
    CRC32: LedgerMetadataFormat.Digest
    HMAC: LedgerMetadataFormat.Digest
    CRC32C: LedgerMetadataFormat.Digest
    DUMMY: LedgerMetadataFormat.Digest
    class Segment(_message.Message):
        __slots__ = ("bookie", "first_entry")
        BOOKIE_FIELD_NUMBER: _ClassVar[int]
        FIRST_ENTRY_FIELD_NUMBER: _ClassVar[int]
        bookie: _containers.RepeatedScalarFieldContainer[str]
        first_entry: int
        def __init__(self, bookie: _Optional[_Iterable[str]] = ..., first_entry: _Optional[int] = ...) -> None: ...
    class Custom(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: bytes
        def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
    WRITE_QUORUM_FIELD_NUMBER: _ClassVar[int]
    ENSEMBLE_SIZE_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    LAST_ENTRY_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    PASSWORD_FIELD_NUMBER: _ClassVar[int]
    ACK_QUORUM_FIELD_NUMBER: _ClassVar[int]
    CREATED_MS_FIELD_NUMBER: _ClassVar[int]
    CUSTOM_FIELD_NUMBER: _ClassVar[int]
    write_quorum: int
    ensemble_size: int
    length: int
    last_entry: int
    state: LedgerMetadataFormat.State
    segment: _containers.RepeatedCompositeFieldContainer[LedgerMetadataFormat.Segment]
    digest: LedgerMetadataFormat.Digest
    password: bytes
    ack_quorum: int
    created_ms: int
    custom: _containers.RepeatedCompositeFieldContainer[LedgerMetadataFormat.Custom]
    def __init__(self, write_quorum: _Optional[int] = ..., ensemble_size: _Optional[int] = ..., length: _Optional[int] = ..., last_entry: _Optional[int] = ..., state: _Optional[_Union[LedgerMetadataFormat.State, str]] = ..., segment: _Optional[_Iterable[_Union[LedgerMetadataFormat.Segment, _Mapping[str, object]]]] = ..., digest: _Optional[_Union[LedgerMetadataFormat.Digest, str]] = ..., password: _Optional[bytes] = ..., ack_quorum: _Optional[int] = ..., created_ms: _Optional[int] = ..., custom: _Optional[_Iterable[_Union[LedgerMetadataFormat.Custom, _Mapping[str, object]]]] = ...) -> None: ...

class BookieRegistration(_message.Message):
    __slots__ = ("endpoint",)
    class Endpoint(_message.Message):
        __slots__ = ("id", "port", "host", "protocol")
        ID_FIELD_NUMBER: _ClassVar[int]
        PORT_FIELD_NUMBER: _ClassVar[int]
        HOST_FIELD_NUMBER: _ClassVar[int]
        PROTOCOL_FIELD_NUMBER: _ClassVar[int]
        id: str
        port: int
        host: str
        protocol: str
        def __init__(self, id: _Optional[str] = ..., port: _Optional[int] = ..., host: _Optional[str] = ..., protocol: _Optional[str] = ...) -> None: ...
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    endpoint: _containers.RepeatedCompositeFieldContainer[BookieRegistration.Endpoint]
    def __init__(self, endpoint: _Optional[_Iterable[_Union[BookieRegistration.Endpoint, _Mapping[str, object]]]] = ...) -> None: ...

class Header(_message.Message):
    __slots__ = ("version", "operation", "request")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    version: int
    operation: int
    request: int
    def __init__(self, version: _Optional[int] = ..., operation: _Optional[int] = ..., request: _Optional[int] = ...) -> None: ...

class Request(_message.Message):
    __slots__ = ("header", "read_entry", "write_lac", "read_lac", "start_tls")
    class ReadEntry(_message.Message):
        __slots__ = ("ledger", "entry", "previous_lac", "patience", "flag")
        LEDGER_FIELD_NUMBER: _ClassVar[int]
        ENTRY_FIELD_NUMBER: _ClassVar[int]
        PREVIOUS_LAC_FIELD_NUMBER: _ClassVar[int]
        PATIENCE_FIELD_NUMBER: _ClassVar[int]
        FLAG_FIELD_NUMBER: _ClassVar[int]
        ledger: int
        entry: int
        previous_lac: int
        patience: int
        flag: int
        def __init__(self, ledger: _Optional[int] = ..., entry: _Optional[int] = ..., previous_lac: _Optional[int] = ..., patience: _Optional[int] = ..., flag: _Optional[int] = ...) -> None: ...
    class WriteLac(_message.Message):
        __slots__ = ("ledger", "lac", "key", "body")
        LEDGER_FIELD_NUMBER: _ClassVar[int]
        LAC_FIELD_NUMBER: _ClassVar[int]
        KEY_FIELD_NUMBER: _ClassVar[int]
        BODY_FIELD_NUMBER: _ClassVar[int]
        ledger: int
        lac: int
        key: bytes
        body: bytes
        def __init__(self, ledger: _Optional[int] = ..., lac: _Optional[int] = ..., key: _Optional[bytes] = ..., body: _Optional[bytes] = ...) -> None: ...
    class ReadLac(_message.Message):
        __slots__ = ("ledger",)
        LEDGER_FIELD_NUMBER: _ClassVar[int]
        ledger: int
        def __init__(self, ledger: _Optional[int] = ...) -> None: ...
    class StartTls(_message.Message):
        __slots__ = ()
        def __init__(self) -> None: ...
    HEADER_FIELD_NUMBER: _ClassVar[int]
    READ_ENTRY_FIELD_NUMBER: _ClassVar[int]
    WRITE_LAC_FIELD_NUMBER: _ClassVar[int]
    READ_LAC_FIELD_NUMBER: _ClassVar[int]
    START_TLS_FIELD_NUMBER: _ClassVar[int]
    header: Header
    read_entry: Request.ReadEntry
    write_lac: Request.WriteLac
    read_lac: Request.ReadLac
    start_tls: Request.StartTls
    def __init__(self, header: _Optional[_Union[Header, _Mapping[str, object]]] = ..., read_entry: _Optional[_Union[Request.ReadEntry, _Mapping[str, object]]] = ..., write_lac: _Optional[_Union[Request.WriteLac, _Mapping[str, object]]] = ..., read_lac: _Optional[_Union[Request.ReadLac, _Mapping[str, object]]] = ..., start_tls: _Optional[_Union[Request.StartTls, _Mapping[str, object]]] = ...) -> None: ...

class Answer(_message.Message):
    __slots__ = ("header", "status", "read_entry", "write_lac", "read_lac")
    class ReadEntry(_message.Message):
        __slots__ = ("status", "lac")
        STATUS_FIELD_NUMBER: _ClassVar[int]
        LAC_FIELD_NUMBER: _ClassVar[int]
        status: int
        lac: int
        def __init__(self, status: _Optional[int] = ..., lac: _Optional[int] = ...) -> None: ...
    class WriteLac(_message.Message):
        __slots__ = ("status",)
        STATUS_FIELD_NUMBER: _ClassVar[int]
        status: int
        def __init__(self, status: _Optional[int] = ...) -> None: ...
    class ReadLac(_message.Message):
        __slots__ = ("status", "explicit_body", "last_entry")
        STATUS_FIELD_NUMBER: _ClassVar[int]
        EXPLICIT_BODY_FIELD_NUMBER: _ClassVar[int]
        LAST_ENTRY_FIELD_NUMBER: _ClassVar[int]
        status: int
        explicit_body: bytes
        last_entry: bytes
        def __init__(self, status: _Optional[int] = ..., explicit_body: _Optional[bytes] = ..., last_entry: _Optional[bytes] = ...) -> None: ...
    HEADER_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    READ_ENTRY_FIELD_NUMBER: _ClassVar[int]
    WRITE_LAC_FIELD_NUMBER: _ClassVar[int]
    READ_LAC_FIELD_NUMBER: _ClassVar[int]
    header: Header
    status: int
    read_entry: Answer.ReadEntry
    write_lac: Answer.WriteLac
    read_lac: Answer.ReadLac
    def __init__(self, header: _Optional[_Union[Header, _Mapping[str, object]]] = ..., status: _Optional[int] = ..., read_entry: _Optional[_Union[Answer.ReadEntry, _Mapping[str, object]]] = ..., write_lac: _Optional[_Union[Answer.WriteLac, _Mapping[str, object]]] = ..., read_lac: _Optional[_Union[Answer.ReadLac, _Mapping[str, object]]] = ...) -> None: ...
