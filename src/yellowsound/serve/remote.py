"""Pictures by URL, for servers that allow it: public addresses only, checked at every hop, within limits.

A name is resolved once, every address it has is checked, and the connection goes to the checked address, so that a
second look-up cannot lead elsewhere. Messages never repeat what a remote server said.
"""

from __future__ import annotations

import http.client
import ipaddress
import socket
import ssl
import time
from urllib.parse import SplitResult, urljoin, urlsplit

from yellowsound.request import RequestError
from yellowsound.serve.settings import RemotePictures

_PORTS = {"http": 80, "https": 443}
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_CHUNK_BYTES = 1 << 16


def fetch_picture(url: str, rules: RemotePictures) -> bytes:
    """The bytes behind ``url``. Blocks up to ``rules.seconds``. Raises RequestError."""
    deadline = time.monotonic() + rules.seconds
    try:
        for _ in range(rules.redirects + 1):
            found = _fetch_once(url, rules, deadline)
            if isinstance(found, bytes):
                return found
            url = found
    except RequestError:
        raise
    except (OSError, http.client.HTTPException, ValueError):
        raise _refused("could not be fetched") from None
    raise _refused(f"redirects more than {rules.redirects} times")


def is_public(address: str) -> bool:
    """Whether an IP address is one that anybody on the internet may reach."""
    ip = ipaddress.ip_address(address)
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.ipv4_mapped is not None:
            return is_public(str(ip.ipv4_mapped))
        if ip.sixtofour is not None or ip.teredo is not None or ip in _NAT64:
            return False
    return ip.is_global and not ip.is_multicast


def _fetch_once(url: str, rules: RemotePictures, deadline: float) -> bytes | str:
    """The body, or the address it redirects to."""
    parts = urlsplit(url)
    address, port = _checked_address(parts, rules)
    connection = _connect(parts, address, port, deadline)
    sock = connection.sock  # the response may take it over, and its time limit with it
    response = None
    try:
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        headers = {
            "Host": parts.netloc,
            "Accept": "image/*",
            "Accept-Encoding": "identity",
            "User-Agent": "yellowsound",
        }
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        if response.status in (301, 302, 303, 307, 308):
            return urljoin(url, response.getheader("Location") or "")
        if response.status != 200:
            raise _refused("could not be fetched")
        return _read(sock, response, rules, deadline)
    finally:
        if response is not None:
            response.close()
        connection.close()


def _read(sock: socket.socket, response: http.client.HTTPResponse, rules: RemotePictures, deadline: float) -> bytes:
    body = bytearray()
    while chunk := response.read1(_CHUNK_BYTES):
        body += chunk
        if len(body) > rules.bytes:
            raise _refused(f"is larger than {rules.bytes / (1 << 20):g} MiB")
        sock.settimeout(_left(deadline))
    return bytes(body)


def _checked_address(parts: SplitResult, rules: RemotePictures) -> tuple[str, int]:
    if parts.scheme not in _PORTS or not parts.hostname or parts.username is not None:
        raise _refused("must be http:// or https:// without a user name")
    port = parts.port or _PORTS[parts.scheme]
    found = socket.getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM)
    addresses = [str(entry[4][0]) for entry in found]
    for address in addresses:
        if address not in rules.allow_addresses and not is_public(address.partition("%")[0]):
            raise _refused("leads to an address that is not public")
    return addresses[0], port


def _connect(parts: SplitResult, address: str, port: int, deadline: float) -> http.client.HTTPConnection:
    host = parts.hostname or ""
    connection = http.client.HTTPConnection(host, port)
    connection.sock = socket.create_connection((address, port), timeout=_left(deadline))
    if parts.scheme == "https":
        context = ssl.create_default_context()
        connection.sock = context.wrap_socket(connection.sock, server_hostname=host)
    return connection


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _refused(problem: str) -> RequestError:
    return RequestError("image", "the picture's URL", problem)
