#!/bin/sh
# dpkg gives the word configure, rpm how many versions are installed.
set -e
case $1 in configure | [0-9]*) ;; *) exit 0 ;; esac
if [ -d /run/systemd/system ]; then
    @installed@ install
else
    echo "gpuwarden-@part@: no systemd runs here; @installed@ install when it does"
fi
