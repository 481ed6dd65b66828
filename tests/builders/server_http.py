"""A server's HTTP interface, told what to say."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class ServerHttp:
    """Answers what stands in `answers`, by method and path; remembers what it was asked.

    What stands in `refuses`, by path, is refused with that reason; what stands in `restricts`, to
    who does not show that header.
    """

    def __init__(self):
        self.answers = {
            ("GET", "/v2"): {"name": "triton", "version": "2.51.0"},
            ("GET", "/v2/health/live"): None,
            ("GET", "/v2/health/ready"): None,
        }
        self.refuses, self.restricts = {}, {}
        self.asked, self.bodies, self.headers = [], [], []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def port(self):
        return self._server.server_address[1]

    def models(self, **states):
        entries = [{"name": name, "version": "1", "state": state} for name, state in states.items()]
        self.answers["POST", "/v2/repository/index"] = entries
        self.serves(*((name, "1") for name, state in states.items() if state == "READY"))

    def serves(self, *versions):
        told = [{"name": name, "version": version} for name, version in versions]
        self.answers["GET", "/v2/models/stats"] = {"model_stats": told}

    def config(self, model, **config):
        self.answers["GET", f"/v2/models/{model}/config"] = {"name": model, **config}

    def close(self):
        self._server.shutdown()
        self._server.server_close()

    def _handler(server):  # noqa: N805 - the class within has a self of its own
        class Handler(BaseHTTPRequestHandler):
            def answer(self):
                server.bodies.append(self.rfile.read(int(self.headers.get("Content-Length", 0))))
                key = self.command, self.path
                server.asked.append(key)
                server.headers.append(self.headers)
                refused = server.refuses.get(self.path)
                status = 200 if key in server.answers and refused is None else 400
                header = server.restricts.get(self.path)
                if header and not self.headers.get(header):
                    status, refused = 403, f"This API is restricted, expecting header '{header}'"
                answer = {"error": refused} if refused else server.answers.get(key)
                body = b"" if answer is None else json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST = answer  # noqa: N815 - http.server's names

            def log_message(self, *_):
                pass

        return Handler
