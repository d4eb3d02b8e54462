"""An OpenAI-compatible server that answers at once: what is left to measure is who asks.

usage: python -m benchmarks.null_server PORT
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TIPS = "\n".join(f"{n}. Put your phone into another room for {n}0 minutes and begin." for n in range(1, 6))
MODELS = {"object": "list", "data": [{"id": "null", "meta": {"n_params": 1_000_000, "size": 2_000_000}}]}
ANSWER = {
    "id": "null",
    "object": "chat.completion",
    "created": 0,
    "model": "null",
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": TIPS}}],
    "usage": {"prompt_tokens": 200, "completion_tokens": 70, "total_tokens": 270},
}


class Handler(BaseHTTPRequestHandler):
    """One answer for everything."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._send(MODELS)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._send(ANSWER)

    def _send(self, body: object) -> None:
        content = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Nothing."""


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
    # One packet an answer, sent at once.
    Handler.wbufsize = -1
    server.serve_forever()
