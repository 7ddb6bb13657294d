#!/bin/sh
# gpuwarden-@part@ @version@ for @machine@, with its own Python: `sudo sh FILE install`, `sh FILE --help`.
# Behind the last line is a zip file, which the Python in it reads.
main() {
    set -eu
    file=$0 start=@start@ size=@size@ work=
    [ -f "$file" ] && [ -r "$file" ] || say "run it as a file: sh FILE install"
    [ "$(uname -m)" = @machine@ ] || say "this bundle is for @machine@, and this is $(uname -m)"
    [ "$(wc -c <"$file")" -eq $((start + size)) ] || say "$file is not whole: fetch it again"
    sum=$(part $start $size | sha256sum)
    [ "${sum%% *}" = @sha256@ ] || say "$file is damaged: fetch it again"
    trap 'rm -rf "$work"' EXIT
    trap 'exit 130' INT TERM HUP
    unpack
    "$work/bin/python3" -IBc "" 2>"$work/why" ||
        say "this host needs glibc 2.31 or newer: $(head -n 1 "$work/why")"
    "$work/bin/python3" -IB "$file" "$@" || exit $?
    exit 0
}

say() {
    echo "gpuwarden installer: $*" >&2
    exit 1
}

# part OFFSET SIZE: these bytes of the file.
part() {
    tail -c "+$(($1 + 1))" "$file" | head -c "$2"
}

# Puts Python where there is room and programs may run, and sets work.
unpack() {
    why=
    for folder in "${TMPDIR:-/tmp}" /var/tmp /run /opt; do
        work=$(mktemp -d "$folder/gpuwarden.XXXXXXXX" 2>/dev/null) || continue
        part @unpack_start@ @unpack_size@ >"$work/unpack" 2>/dev/null &&
            chmod 0700 "$work/unpack" &&
            part @python_start@ @python_size@ | "$work/unpack" "$work" 2>"$work.why" &&
            rm -f "$work.why" && return
        why="$why; $folder: $(head -n 1 "$work.why" 2>/dev/null || :)"
        rm -rf "$work" "$work.why"
    done
    say "no folder that has @room@ MB and lets programs run${why}: name one as TMPDIR"
}

main "$@"
