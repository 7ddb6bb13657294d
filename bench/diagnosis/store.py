"""A store of files on the network, for loops that fetch: answers late, and with as many bytes as asked.

python store.py ADDRESS FILE        FILE is given the port
"""

import contextlib
import http.server
import os
import sys
import time
import urllib.parse

CHUNK = bytes(1 << 16)


class Handler(http.server.BaseHTTPRequestHandler):
    """GET /?bytes=N&wait_s=S"""

    def do_GET(self) -> None:
        asked = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)
        time.sleep(float(asked["wait_s"][0]))
        left = int(asked["bytes"][0])
        self.send_response(200)
        self.send_header("Content-Length", str(left))
        self.end_headers()
        with contextlib.suppress(ConnectionError):  # who asked was killed
            while left:
                left -= self.wfile.write(CHUNK[:left])

    def log_message(self, *arguments: object) -> None:
        """Nothing to say."""


def main() -> None:
    address, file = sys.argv[1:]
    server = http.server.ThreadingHTTPServer((address, 0), Handler)
    with open(f"{file}.new", "w", encoding="ascii") as new:
        new.write(f"{address}:{server.server_port}")
    os.rename(f"{file}.new", file)
    server.serve_forever()


if __name__ == "__main__":
    main()
