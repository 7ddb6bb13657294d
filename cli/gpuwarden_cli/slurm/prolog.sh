#!/bin/sh
# gpuwarden: notes for the agent of this node that a job begins. Written by `gpuwarden slurm install`.
# It writes one file into memory, waits for nobody, and never fails a job: it always ends with 0.
PATH=/usr/bin:/bin
notes=/run/gpuwarden-slurm
case "$SLURM_JOB_ID" in '' | *[!0-9]*) exit 0 ;; esac
{
    umask 027
    # The agent's group may read, nobody but root may write.
    [ -d "$notes" ] || { mkdir "$notes" && chgrp gpuwarden "$notes" && chmod 2750 "$notes"; }
    [ ! -e "$notes/$SLURM_JOB_ID.end" ] || rm -f "$notes/$SLURM_JOB_ID.end"
    printf '%s\0' "SLURM_JOB_ID=$SLURM_JOB_ID" "SLURM_JOB_UID=$SLURM_JOB_UID" \
        "SLURM_JOB_USER=$SLURM_JOB_USER" "SLURM_JOB_ACCOUNT=$SLURM_JOB_ACCOUNT" \
        "SLURM_JOB_PARTITION=$SLURM_JOB_PARTITION" "SLURM_JOB_QOS=$SLURM_JOB_QOS" \
        "SLURM_JOB_RESERVATION=$SLURM_JOB_RESERVATION" "SLURM_JOB_NAME=$SLURM_JOB_NAME" \
        "SLURM_NODELIST=$SLURM_NODELIST" "SLURM_JOB_CPUS_PER_NODE=$SLURM_JOB_CPUS_PER_NODE" \
        "SLURM_ARRAY_JOB_ID=$SLURM_ARRAY_JOB_ID" "SLURM_ARRAY_TASK_ID=$SLURM_ARRAY_TASK_ID" \
        "SLURM_JOB_GPUS=$SLURM_JOB_GPUS" "CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES" . \
        >"$notes/$SLURM_JOB_ID"
} >/dev/null 2>&1
exit 0
