"""A small web server for one page, read-only: who connects, hangs or sends rubbish does not matter to a run."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import ipaddress
import json
import re
import secrets
import socket
import threading
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from .._util.checks import whole_number

__all__ = ["Feed", "PageServer"]

_SLOWEST = 10.0  # seconds a client may take to send its request, or to take what is sent to it
_HEARTBEAT = 5.0  # seconds of silence after which a line is sent, which finds clients that are gone
_STREAMS = 16  # pages that may be open at a time
_CONNECTIONS = 64  # connections at a time, of whatever kind
_GOODBYE = 2.0  # seconds that open pages have to take the last message


class Feed:
    """The newest state of a page, for any number of readers."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._message: dict[str, Any] = {}
        self._version = 0
        self.over = False
        self.readers = 0

    def publish(self, parts: Mapping[str, str], over: bool = False, **values: Any) -> None:
        """Replace the state: parts of the page by name, and other values; parts that are not given stay."""
        with self._changed:
            self._message = {**self._message, **values, "over": over}
            self._message["parts"] = {**self._message.get("parts", {}), **parts}
            self._version += 1
            self.over = over
            self._changed.notify_all()

    def wait(self, version: int, timeout: float) -> tuple[int, dict[str, Any]]:
        """Wait for a newer state than this version; return its version and the state."""
        with self._changed:
            self._changed.wait_for(lambda: self._version != version, timeout)
            return self._version, self._message

    def enter(self) -> bool:
        """Count a reader; False if there are too many already."""
        with self._changed:
            if self.readers >= _STREAMS:
                return False
            self.readers += 1
            self._changed.notify_all()
            return True

    def leave(self) -> None:
        """Count a reader less."""
        with self._changed:
            self.readers -= 1
            self._changed.notify_all()

    def wait_for_reader(self, timeout: float) -> bool:
        """Wait until somebody reads; return whether somebody does."""
        with self._changed:
            return self._changed.wait_for(lambda: self.readers > 0, timeout)

    def wait_for_goodbye(self) -> None:
        """Wait until nobody reads any more, after the last state was published; not for ever."""
        with self._changed:
            self._changed.wait_for(lambda: self.readers == 0, _GOODBYE)


class PageServer:
    """Serves a page at ``/`` and its changes, as server-sent events, at ``/events``.

    Args:
        page: The page.
        feed: The changes.
        host: The address to listen on. With any other than loopback a token is required, and part of `url`.
        port: The port, 0 for a free one.
    """

    def __init__(self, page: str, feed: Feed, host: str, port: int) -> None:
        if not isinstance(host, str) or not host:
            raise TypeError(f"Invalid host: {host!r} (expected an address to listen on, such as '127.0.0.1')")
        port = whole_number("port", port, most=65535)
        self.token = "" if _is_loopback(host) else secrets.token_urlsafe(24)
        names = {"localhost", host.lower(), socket.gethostname().lower()}
        page_bytes, policy = page.encode(errors="backslashreplace"), _policy(page)

        class Handler(_Handler):
            content, security, allowed, token, source = page_bytes, policy, names, self.token, feed

        class Server(_Server):
            address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

        try:
            self._server = Server((host, port), Handler)
        except OSError as error:
            reason = error.strerror or str(error)
            raise ValueError(f"The live page cannot be served at {host}, port {port}: {reason}") from error
        shown = socket.gethostname() if host in ("", "0.0.0.0", "::") else host
        shown = f"[{shown}]" if ":" in shown else shown
        query = f"?token={self.token}" if self.token else ""
        self.url = f"http://{shown}:{self._server.server_address[1]}/{query}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, name="latecomer-live-server", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=_GOODBYE)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _policy(page: str) -> str:
    """Return what a browser may do with the page: run its own script, connect to this server, and nothing else."""
    scripts = re.findall(r"<script>(.*?)</script>", page, flags=re.DOTALL)
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts]
    allowed = " ".join(f"'sha256-{each}'" for each in hashes) or "'none'"
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._room = threading.BoundedSemaphore(_CONNECTIONS)
        super().__init__(address, handler)

    def server_bind(self) -> None:
        """Bind without looking up the name of the machine, which may take seconds."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a thread of its own, if there is room for one."""
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection and make room for the next one."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a client that went away is no concern of the run."""


class _Handler(BaseHTTPRequestHandler):
    timeout = _SLOWEST
    server_version, sys_version = "latecomer", ""
    content: bytes
    security: str
    allowed: set[str]
    token: str
    source: Feed

    def do_GET(self) -> None:
        """Answer with the page or the events, to who asks under a name of this machine and has the token."""
        url = urlsplit(self.path)
        if not self._names_this_machine():
            self._answer(HTTPStatus.FORBIDDEN, b"Unknown Host: ask for the address that the run has printed\n")
        elif self.token and not self._has_token(url.query):
            self._answer(HTTPStatus.FORBIDDEN, b"The token is missing or wrong: use the address that was printed\n")
        elif url.path == "/":
            self._answer(HTTPStatus.OK, self.content, "text/html; charset=utf-8")
        elif url.path == "/events":
            self._events()
        else:
            self._answer(HTTPStatus.NOT_FOUND, b"There is one page, at /\n")

    def _names_this_machine(self) -> bool:
        """Check Host: a page of somebody else whose name was pointed here (DNS rebinding) has that name in it."""
        hosts = self.headers.get_all("Host") or []
        if len(hosts) != 1:
            return False
        try:
            name = urlsplit(f"//{hosts[0]}").hostname or ""
        except ValueError:
            return False
        if name.lower() in self.allowed:
            return True
        with contextlib.suppress(ValueError):
            ipaddress.ip_address(name)  # an address is no name, so nobody can have pointed it here
            return True
        return False

    def _has_token(self, query: str) -> bool:
        found = parse_qs(query, max_num_fields=8).get("token", [""])[0]
        return hmac.compare_digest(found.encode(), self.token.encode())

    def _answer(self, status: HTTPStatus, content: bytes, kind: str = "text/plain; charset=utf-8") -> None:
        self._head(status, kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _head(self, status: HTTPStatus, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Cache-Control", "no-store")
        self.send_header("Content-Security-Policy", self.security)
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")

    def _events(self) -> None:
        if not self.source.enter():
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, b"Too many pages are open\n")
            return
        try:
            self._head(HTTPStatus.OK, "text/event-stream")
            self.end_headers()
            version, sent, over = 0, dict[str, str](), False
            while not over:
                newer, message = self.source.wait(version, _HEARTBEAT)
                if newer == version:
                    self.wfile.write(b": still here\n\n")
                    continue
                version, over = newer, message["over"]
                fresh = {name: part for name, part in message["parts"].items() if sent.get(name) != part}
                sent.update(fresh)
                self.wfile.write(f"data: {json.dumps({**message, 'parts': fresh})}\n\n".encode())
        finally:
            self.source.leave()

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""
