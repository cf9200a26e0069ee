# SPDX-License-Identifier: Apache-2.0
"""Who a client is: signed tokens (JSON Web Tokens, RFC 7519), as Pulsar's token authentication has them.

A token is signed with the region's secret key and names a role, its subject. Nothing about clients is stored. Brokers
of other regions are no role: a connection is a peer's because of what it knows (R7), never because of a name that a
token bears. A token is never logged and never part of an error.
"""

from __future__ import annotations

from typing import Final

ALGORITHMS: Final = ["HS256", "HS384", "HS512"]
METHOD: Final = "token"
"""Name of this method in CONNECT."""
RESERVED_ROLES: Final = frozenset({"meridian-peer"})
"""Names that brokers use among themselves. No token may bear one: people hand out tokens by users' own names."""
LARGEST_TOKEN: Final = 16 * 1024
"""Bytes: more is no token, and is not decoded."""

_SENTENCES: Final = {
    "ExpiredSignatureError": "the token has expired: get a new one",
    "ImmatureSignatureError": "the token is not valid yet",
    "InvalidSignatureError": "the token is not signed with this region's key",
    "InvalidAlgorithmError": f"the token is signed in another way than by {', '.join(ALGORITHMS)}",
    "MissingRequiredClaimError": "the token names no role: it has no subject",
    "InvalidSubjectError": "the token names no role: its subject is no text",
    "PyJWTError": "this is no token, or it is damaged",
}
"""What client and log are told, by PyJWT's error. PyJWT's own texts quote the token, which anybody can write."""


class NotAuthenticated(Exception):
    """The client did not show who it is. The message says what is missing and is fit for the client."""


class Authentication:
    """Checks tokens. Without a key everybody is welcome, and nameless.

    PyJWT brings a whole library of cryptography along: only brokers that have a key load it, and before they serve.
    """

    def __init__(self, secret_key: bytes | None, super_users: frozenset[str]) -> None:
        if secret_key is not None:
            import jwt  # noqa: F401
        self._key = secret_key
        self._super_users = super_users

    @property
    def required(self) -> bool:
        """Must clients show a token?"""
        return self._key is not None

    def role(self, token: bytes) -> str:
        """The role that a token names.

        :raises NotAuthenticated: it is none of ours, changed, not valid yet, or expired.
        """
        if self._key is None:
            return ""
        if len(token) > LARGEST_TOKEN:
            raise NotAuthenticated("this is no token: it is too long")
        import jwt

        try:
            claims = jwt.decode(token, self._key, algorithms=ALGORITHMS, options={"require": ["sub"]})
        except jwt.PyJWTError as error:
            sentence = next(_SENTENCES[kind.__name__] for kind in type(error).__mro__ if kind.__name__ in _SENTENCES)
            raise NotAuthenticated(sentence) from None
        role = str(claims["sub"])
        if not role:
            raise NotAuthenticated("the token names no role: its subject is empty")
        if role in RESERVED_ROLES:
            raise NotAuthenticated(f"the token's subject {role} is reserved for brokers: get one with another subject")
        return role

    def is_super_user(self, role: str) -> bool:
        """May this role use the whole admin API?"""
        return not self.required or role in self._super_users


def make_token(secret_key: bytes, role: str, expires: int | None = None) -> str:
    """A token for a role. ``expires`` is in seconds since 1970; None: never."""
    import jwt

    claims: dict[str, object] = {"sub": role}
    if expires is not None:
        claims["exp"] = expires
    return jwt.encode(claims, secret_key, algorithm=ALGORITHMS[0])
