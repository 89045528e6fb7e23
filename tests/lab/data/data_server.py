"""A local HTTP server that can fail in several ways."""

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Server(ThreadingHTTPServer):
    """Serves `files` by name.

    `status` is the HTTP status of every response. `cut` closes the connection after that many bytes, once per file or,
    with `always_cut`, every time. `ranges` enables range requests. `delay` is in seconds. `requests` records the name
    and the range of each request.
    """

    daemon_threads = True

    def __init__(self, files: Mapping[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files = dict(files)
        self.status = 200
        self.cut: int | None = None
        self.always_cut = False
        self.ranges = True
        self.delay = 0.0
        self.requests: list[tuple[str, str | None]] = []
        self._seen: set[str] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def is_first_request(self, name: str) -> bool:
        seen = name in self._seen
        self._seen.add(name)
        return not seen


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        name, requested = self.path.strip("/"), self.headers.get("Range")
        self.server.requests.append((name, requested))
        time.sleep(self.server.delay)
        if self.server.status != 200 or name not in self.server.files:
            self.send_error(self.server.status if self.server.status != 200 else 404)
            return
        content = self.server.files[name]
        resumed = requested is not None and self.server.ranges
        start = int(requested.removeprefix("bytes=").removesuffix("-")) if resumed else 0
        body = content[start:]
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        cut = self.server.cut is not None and (self.server.is_first_request(name) or self.server.always_cut)
        self.wfile.write(body[: self.server.cut] if cut else body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serve(files: Mapping[str, bytes]) -> Iterator[Server]:
    with Server(files) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
