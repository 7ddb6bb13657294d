#!/bin/sh
# dpkg gives the word remove, rpm how many versions stay.
set -e
case $1 in remove | 0) ;; *) exit 0 ;; esac
if [ -d /run/systemd/system ]; then
    @installed@ uninstall
fi
