#!/bin/sh
# One task of a sweep as an array job: runs its share of the points of a plan.
#   deploy/sim-sweep.sh PLAN.toml
# The scheduler says which task this is: Kubernetes by JOB_COMPLETION_INDEX (set APUS_TASKS to
# `completions`), Slurm by SLURM_ARRAY_TASK_ID, _MIN and _COUNT. Results go to APUS_RESULTS (results).
# A point whose file exists is not run again, so a task that was stopped can be run again.
set -eu
plan=${1:?the plan to sweep}
if [ -n "${JOB_COMPLETION_INDEX:-}" ]; then
    task=$JOB_COMPLETION_INDEX
    tasks=${APUS_TASKS:?how many tasks there are}
else
    task=$((${SLURM_ARRAY_TASK_ID:?neither Kubernetes nor Slurm says which task this is} - ${SLURM_ARRAY_TASK_MIN:-0}))
    tasks=${SLURM_ARRAY_TASK_COUNT:?how many tasks there are}
fi
exec apus sim sweep "$plan" --dir "${APUS_RESULTS:-results}" --shard "$task/$tasks" --jobs "${APUS_JOBS:-1}"
