"""A stand-in for tritonserver that starts at once: it takes its flags and answers its health URL.

What it does wrong is told by FAKE in its environment: `dies` as it starts, `misreads` a
configuration, does not know a `flag`, `never ready`, `locked` without the key `door: open`, `deaf`
to SIGTERM, or leaves a `straggler`: a process in a session of its own that outlives it. FAKE_VERSION
is what it says in its metadata, FAKE_FLAGS what its help names.
"""

import os
import signal
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

FAULT = os.environ.get("FAKE", "")
VERSION = os.environ.get("FAKE_VERSION", "2.51.0")
PAGES = {
    "/v2/health/ready": b"",
    "/v2": f'{{"version": "{VERSION}"}}'.encode(),
    "/metrics": b"",
}
# Its help names these, as the real one's does, in its own columns.
FLAGS = os.environ.get("FAKE_FLAGS", "http-restricted-api strict-readiness")


class Answer(BaseHTTPRequestHandler):
    def do_GET(self):
        locked = FAULT == "locked" and self.path != "/metrics" and self.headers["door"] != "open"
        body = None if FAULT == "never ready" or locked else PAGES.get(self.path)
        self.send_response(503 if body is None else 200)
        self.end_headers()
        self.wfile.write(body or b"")

    def log_message(self, *_):
        pass


def main():
    if sys.argv[1:] == ["--help"]:
        print("Usage: tritonserver [options]", file=sys.stderr)
        for name in FLAGS.split():
            print(f"  --{name} <string>\n\tWhat it does.", file=sys.stderr)
        sys.exit(1)
    flags = dict(flag.removeprefix("--").split("=", 1) for flag in sys.argv[1:])
    print("fake server", " ".join(sys.argv[1:]), flush=True)
    print("cwd", Path.cwd(), list(Path.cwd().iterdir()), flush=True)
    for name in ("LD_LIBRARY_PATH", "PATH", *(name for name in os.environ if name[:3] == "GE_")):
        print(name, os.environ.get(name), flush=True)
    if FAULT == "misreads":
        print("[libprotobuf ERROR text_format.cc:337] Error parsing text-format X: 3:1: Expected y")
        print("E1 m.cc:1] \"Poll failed for model directory 'm': failed to read text proto\"")
        print("\n".join(["|"] * 50), flush=True)
        sys.exit(3)
    if FAULT == "flag":
        print(f"{sys.argv[0]}: unrecognized option '--no-such-flag'")
        print("\n".join(["Usage:", *["  --flag"] * 50]), flush=True)
        sys.exit(1)
    if FAULT == "dies":
        print("error: no such luck", flush=True)
        sys.exit(3)
    if FAULT == "straggler":
        subprocess.Popen(["/bin/sleep", "100"], start_new_session=True)
    if FAULT == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    for name in ("metrics", "http"):
        server = HTTPServer((flags[f"{name}-address"], int(flags[f"{name}-port"])), Answer)
        threading.Thread(target=server.serve_forever, daemon=True).start()
    print("it listens", flush=True)
    while True:
        signal.pause()


main()
