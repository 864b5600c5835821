"""Async functions as nodes: a question to a web service between two kernels, many at a time.

The service, a part of the example, thinks about each question for 50 ms. Up to 16 are under way,
and no thread waits for an answer. One of them is refused, and fails alone. Takes httpx.

    python examples/04_async_functions.py
"""

from __future__ import annotations

import threading
import time
from contextvars import ContextVar
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import numpy as np
import plait as pl
import trio

WORDS = 8
SCORES = pl.TensorSpec("float32", (WORDS,))
client: ContextVar[httpx.AsyncClient] = ContextVar("client")


class Service(BaseHTTPRequestHandler):
    """Answers numbers with their squares, after a while, and refuses those with a 13."""

    protocol_version = "HTTP/1.1"  # which keeps connections open

    def do_POST(self) -> None:
        """Answer a question."""
        asked = np.frombuffer(self.rfile.read(int(self.headers["Content-Length"])), np.float32)
        time.sleep(0.05)
        answer = (asked**2).tobytes()
        self.send_response(422 if 13 in asked else 200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *args: Any) -> None:
        """Print nothing."""


@pl.operator(SCORES, inputs=[SCORES], concurrency=16)
async def ask(words: Any) -> Any:
    """Ask the service."""
    answer = await client.get().post("/", content=words.tobytes())
    answer.raise_for_status()
    return np.frombuffer(answer.content, np.float32)


async def main(url: str) -> None:
    b = pl.GraphBuilder("questions")
    words = b.input("words", "float32", (WORDS,)).relu(name="clip")
    b.output("best", b.call(ask, words, name="ask").max(name="best"))
    plan = pl.plan(b.build(), max_in_flight=32)
    source = ({"words": np.arange(n, n + WORDS, dtype="float32")} for n in range(0, 320, WORDS))
    async with httpx.AsyncClient(base_url=url) as opened:
        client.set(opened)
        async with pl.Session(plan) as session, session.stream(source) as results:
            async for item in results:
                text = str(item.error).splitlines()[0] if item.error else item["best"]
                print(item.index, text)
    print(session.profile().table())


if __name__ == "__main__":
    ThreadingHTTPServer.request_queue_size = 64  # so many connect at once
    with ThreadingHTTPServer(("127.0.0.1", 0), Service) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        try:
            trio.run(main, f"http://127.0.0.1:{server.server_port}")
        finally:
            server.shutdown()
