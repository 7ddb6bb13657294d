#!/bin/sh
# gpuwarden: notes for the agent of this node that a job is over. Written by `gpuwarden slurm install`.
# It writes one file into memory, waits for nobody, and never fails a job: it always ends with 0.
PATH=/usr/bin:/bin
notes=/run/gpuwarden-slurm
case "$SLURM_JOB_ID" in '' | *[!0-9]*) exit 0 ;; esac
{
    umask 027
    printf '%s\0' "SLURM_JOB_EXIT_CODE=$SLURM_JOB_EXIT_CODE" . >"$notes/$SLURM_JOB_ID.end"
    # An agent that is away for an hour learns of an end from the controller.
    set -- "$notes"/*.end
    if [ "$#" -gt 64 ]; then
        find "$notes" -name '*.end' -mmin +60 | while read -r end; do rm -f "$end" "${end%.end}"; done
    fi
} >/dev/null 2>&1
exit 0
