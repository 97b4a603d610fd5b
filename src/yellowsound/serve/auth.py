"""Who may ask: bearer keys compared in constant time, signed links for <video>, a cookie for the page."""

from __future__ import annotations

import hashlib
import hmac
import math
import time
from collections.abc import Mapping

COOKIE = "yellowsound_session"


class Auth:
    """Checks keys, links and cookies. ``keys`` empty: everybody may ask. ``secret`` signs links and cookies."""

    def __init__(self, keys: tuple[str, ...], secret: bytes, signature_seconds: float) -> None:
        self._digests = [hashlib.sha256(key.encode()).digest() for key in keys]
        self._secret = secret
        self._seconds = signature_seconds

    @property
    def is_open(self) -> bool:
        return not self._digests

    def owner_of_header(self, authorization: str | None) -> str | None:
        """The owner id behind an Authorization header, or None when it is missing or wrong."""
        scheme, _, key = (authorization or "").partition(" ")
        if scheme.lower() != "bearer":
            return None
        return self.owner_of_key(key.strip())

    def owner_of_key(self, key: str) -> str | None:
        """The owner id of ``key`` if it is one of ours; every known key is compared, so time says nothing."""
        given = hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
        found = None
        for digest in self._digests:
            if hmac.compare_digest(given, digest):
                found = digest.hex()[:16]
        return found

    def owner_of_cookie(self, cookies: Mapping[str, str]) -> str | None:
        """The owner id that a session cookie proves, or None."""
        owner, _, signature = cookies.get(COOKIE, "").partition(".")
        known = any(digest.hex()[:16] == owner for digest in self._digests)
        return owner if known and self._matches(f"session:{owner}", signature) else None

    def session_cookie(self, owner: str) -> str:
        """The cookie value that the page gets after a key was shown once."""
        return f"{owner}.{self._sign(f'session:{owner}')}"

    def signed_query(self, job_id: str) -> str:
        """``expires=…&signature=…`` for the files of one job; the same within an hour, so players can cache."""
        expires = math.ceil((time.time() + self._seconds) / 3600) * 3600
        return f"expires={expires}&signature={self._sign(f'{job_id}:{expires}')}"

    def link_is_good(self, job_id: str, expires: str, signature: str) -> bool:
        """Whether a signed link of ``job_id`` is ours and not over."""
        if not (expires.isascii() and expires.isdigit() and len(expires) < 16):
            return False
        return int(expires) >= time.time() and self._matches(f"{job_id}:{expires}", signature)

    def _sign(self, text: str) -> str:
        return hmac.new(self._secret, text.encode(), hashlib.sha256).hexdigest()[:40]

    def _matches(self, text: str, signature: str) -> bool:
        return hmac.compare_digest(self._sign(text).encode(), signature.encode("utf-8", "surrogateescape"))
