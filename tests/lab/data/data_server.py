"""An HTTP server on this machine that can misbehave."""

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Server(ThreadingHTTPServer):
    """Serves `files` by name.

    `status` is the answer to every request; `cut` breaks off each file's first answer after so many bytes; `ranges`
    says whether it can go on in the middle of a file; `delay` is in seconds. `requests` lists what was asked for.
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
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def first(self, name: str) -> bool:
        seen = name in self._seen
        self._seen.add(name)
        return not seen


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        name, asked = self.path.strip("/"), self.headers.get("Range")
        self.server.requests.append((name, asked))
        time.sleep(self.server.delay)
        if self.server.status != 200 or name not in self.server.files:
            self.send_error(self.server.status if self.server.status != 200 else 404)
            return
        content = self.server.files[name]
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and self.server.ranges else 0
        body = content[start:]
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        cut = self.server.cut is not None and (self.server.first(name) or self.server.always_cut)
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
