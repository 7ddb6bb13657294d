#!/usr/bin/env python3
"""Exits with 0 if the part of this image answers at /healthz, over TLS or without."""

import http.client
import ssl
import sys

TIMEOUT_S = 3

port = int(sys.argv[1])
# The request goes to the loopback address, which no certificate names.
anybody = ssl._create_unverified_context()
for connection in (
    http.client.HTTPSConnection("127.0.0.1", port, timeout=TIMEOUT_S, context=anybody),
    http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S),
):
    try:
        connection.request("GET", "/healthz")
        sys.exit(connection.getresponse().status != 200)
    except (OSError, http.client.HTTPException):
        continue
sys.exit(1)
