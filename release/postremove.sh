#!/bin/sh
# dpkg's alone.
set -e
if [ "$1" = purge ]; then
    rm -rf @state@ @settings@
    rmdir --ignore-fail-on-non-empty /etc/gpuwarden 2>/dev/null || true
fi
