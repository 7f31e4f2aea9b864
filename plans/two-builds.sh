#!/bin/bash
# What one build of the program costs against another: runs of both by turns, so that what slows the machine for a while slows both.
# Prints the medians, their ratio, and the median of the ratios of pairs. Needs jq.
#   plans/two-builds.sh BEFORE AFTER [PAIRS [rtt|rate [TRANSPORT]]]
set -euo pipefail
(($# >= 2)) || { echo "two-builds.sh: two programs are needed: BEFORE AFTER" >&2; exit 2; }
before=$1 after=$2 pairs=${3:-30} bench=${4:-rtt} transport=${5:-apus-udp-fullbusy}
command -v jq >/dev/null || { echo "jq is not installed" >&2; exit 1; }
case $bench in
rtt) value=p50_us ;;
rate) value=calls_per_s ;;
*) echo "two-builds.sh: '$bench': rtt or rate" >&2; exit 2 ;;
esac
# A run that is refused as a measurement counts: the other build's had the same chance.
measure() { { "$1" bench "$bench" --transports "$transport" --runs 1 --seconds 0.6 --json - || true; } | jq ".rows[0].$value"; }
for ((pair = 0; pair < pairs; pair++)); do
    if ((pair % 2)); then
        second=$(measure "$after") first=$(measure "$before")
    else
        first=$(measure "$before") second=$(measure "$after")
    fi
    echo "[$first, $second]"
done | jq -rs --arg value "$value" '
    def median: sort | .[length / 2 | floor];
    (map(.[0]) | median) as $before | (map(.[1]) | median) as $after
    | "\($value): before \($before), after \($after), ratio \($after / $before), median of pairs \(map(.[1] / .[0]) | median)"'
