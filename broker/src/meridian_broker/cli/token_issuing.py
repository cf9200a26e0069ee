# SPDX-License-Identifier: Apache-2.0
"""Keeps a Secret of Kubernetes supplied with a short-lived token: the operator's token for one region.

This runs in the region, because the key that signs tokens stays there. A new token is written when half of the old
one's lifetime is over, so nobody has to renew it, and the operator may be away for any length of time. Whoever steals a
token has it for the rest of its lifetime: without the key it cannot be renewed.

It may run twice at once: both write tokens that are valid. Clocks may differ by almost half a lifetime.
"""

from __future__ import annotations

import base64
import binascii
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn, Protocol

from meridian_broker.gateway.authentication import ADMIN_SCOPE, Authentication, NotAuthenticated
from meridian_broker.gateway.key_files import BadKey
from meridian_broker.gateway.token_keys import SECRET_SUFFIX, key_paths, read_secret_key, secret_key
from meridian_broker.gateway.token_signing import SigningKey, make_token

LOOK_SECONDS: Final = 30.0
"""Between checks of the Secret."""
RETRY_SECONDS: Final = 5.0
"""Between attempts after a failure: the operator's chart may create the Secret at any time."""
SPREAD_SECONDS: Final = 180.0
"""A key that appears during a rotation signs after this time: brokers' files may be updated later than ours."""
CALL_SECONDS: Final = 10.0
LARGEST_ANSWER: Final = 4 << 20
"""Bytes of an answer of the API server. A Secret has a mebibyte at most."""
KEY: Final = "token"
"""The Secret's key."""


class CannotIssue(Exception):
    """The token was not issued. The message has the reason and what to do."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the token is for."""

    region: str
    subject: str
    """Its role."""
    lifetime: int
    """In seconds."""


def why_due(held: bytes, key: SigningKey, wanted: Wanted, now: int) -> str:
    """Why a new token is due; empty: the current one will do.

    :param held: the current content of the Secret.
    :param now: in seconds since 1970.
    """
    if not held:
        return "there was none"
    try:
        granted = Authentication((secret_key(key.key),), frozenset(), wanted.region).check(held)
    except NotAuthenticated as reason:
        return str(reason)
    if (granted.role, granted.scope) != (wanted.subject, ADMIN_SCOPE):
        return "it was for something else"
    left = None if granted.expires is None else granted.expires - now
    if left is None or left > wanted.lifetime:
        return "it was valid for too long"
    return "half of its lifetime was over" if 2 * left <= wanted.lifetime else ""


class RegionKeys:
    """The region's keys, of which one signs: ``secret.key``, or the next one during a rotation.

    :param directory: with ``secret.key``.
    :param following: where the next key appears; the last one by name counts.
    :param clock: seconds, monotonic.
    """

    def __init__(self, directory: Path, following: Path | None, clock: Callable[[], float]) -> None:
        self._directory = directory
        self._following = following
        self._clock = clock
        self._since: tuple[bytes, float] | None = None

    def signing(self) -> SigningKey:
        """:raises BadKey: the key cannot be read."""
        following = self._next()
        if following is None or self._since is None or self._since[0] != following.key:
            self._since = None if following is None else (following.key, self._clock())
        elif self._clock() - self._since[1] >= SPREAD_SECONDS:
            return following
        return SigningKey(read_secret_key(self._directory / f"secret{SECRET_SUFFIX}"), id="secret")

    def _next(self) -> SigningKey | None:
        if self._following is None or not self._following.is_dir():
            return None
        paths = key_paths(str(self._following), SECRET_SUFFIX)
        return SigningKey(read_secret_key(paths[-1]), id=paths[-1].stem) if paths else None


class TokenPlace(Protocol):
    """Where the token is put for the operator."""

    def read(self) -> bytes:
        """The token there; empty: there is none. :raises CannotIssue: it cannot be read."""
        ...

    def write(self, token: str, /) -> None:
        """:raises CannotIssue: it was not written, or it is not known whether it was."""
        ...


class KubeSecret:
    """One Secret, by the API server of the cluster in which this process is a pod.

    :param url: the API server's.
    :param account: directory with the service account's ``token``, which Kubernetes renews, and with ``ca.crt``.
    """

    def __init__(self, namespace: str, name: str, url: str, account: Path) -> None:
        self._url = f"{url}/api/v1/namespaces/{namespace}/secrets/{name}"
        self._name = f"{namespace}/{name}"
        self._account = account

    def read(self) -> bytes:
        """As in ``TokenPlace``."""
        found = self._call("GET").get("data")
        text = found.get(KEY) if isinstance(found, dict) else None
        try:
            return base64.b64decode(text if isinstance(text, str) else "")
        except binascii.Error:
            return b"?"

    def write(self, token: str) -> None:
        """As in ``TokenPlace``."""
        self._call("PATCH", {"data": {KEY: base64.b64encode(token.encode()).decode()}})

    def _call(self, method: str, body: Any = None) -> dict[str, Any]:
        try:
            own = (self._account / "token").read_text(encoding="utf-8").strip()
            headers = {"Authorization": f"Bearer {own}", "Content-Type": "application/merge-patch+json"}
            data = None if body is None else json.dumps(body).encode()
            request = urllib.request.Request(self._url, data, headers, method=method)
            context = (
                ssl.create_default_context(cafile=self._account / "ca.crt") if self._url.startswith("https:") else None
            )
            with urllib.request.urlopen(request, timeout=CALL_SECONDS, context=context) as response:
                answer = json.loads(response.read(LARGEST_ANSWER))
        except urllib.error.HTTPError as error:
            advice = _ADVICE.get(error.code, error.reason)
            raise CannotIssue(f"{method} Secret {self._name}: HTTP {error.code}: {advice}") from error
        except (OSError, ValueError) as error:
            raise CannotIssue(f"{method} Secret {self._name}: {error}") from error
        if not isinstance(answer, dict):
            raise CannotIssue(f"{method} Secret {self._name}: the answer is not an object")
        return answer


_ADVICE: Final = {
    403: "this service account is not allowed to: name it in tokenIssuer of the region in the operator's chart",
    404: "it does not exist: the operator's chart creates it where the region has a tokenIssuer",
}


class TokenIssuer:
    """Issues the token whenever one is due."""

    def __init__(self, place: TokenPlace, keys: RegionKeys, wanted: Wanted, now: Callable[[], float]) -> None:
        self._place = place
        self._keys = keys
        self._wanted = wanted
        self._now = now

    def look(self) -> str:
        """Issue a token if one is due. Returns what was done; empty: nothing.

        :raises CannotIssue: the key or the Secret cannot be used.
        """
        try:
            key = self._keys.signing()
        except BadKey as problem:
            raise CannotIssue(str(problem)) from problem
        wanted, now = self._wanted, int(self._now())
        if not (why := why_due(self._place.read(), key, wanted, now)):
            return ""
        until = now + wanted.lifetime
        self._place.write(
            make_token(key, wanted.subject, until, lifetime=wanted.lifetime, regions=[wanted.region], scope=ADMIN_SCOPE)
        )
        return f"issued a token for region {wanted.region} ({why}), signed with key {key.id}"


def keep_issuing(issuer: TokenIssuer, say: Callable[[str], object], sleep: Callable[[float], object]) -> NoReturn:
    """Check for ever. A failure is reported once, an issued token each time."""
    failure = ""
    while True:
        try:
            if told := issuer.look():
                say(told)
        except CannotIssue as problem:
            if failure != str(problem):
                failure = str(problem)
                say(f"cannot issue a token, trying again: {failure}")
            sleep(RETRY_SECONDS)
        else:
            failure = ""
            sleep(LOOK_SECONDS)
