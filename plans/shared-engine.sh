#!/bin/bash
# Nine programs of one host share its link: eight send messages of 1 MB, one makes calls of 100 B. First each has an engine of its own,
# then all use that of `apus daemon`. Needs root, for the lab (docs/lab.md), and jq.
#   plans/shared-engine.sh [RUNS [SECONDS]]
# MBPS sets the rate of the link (50), APUS_LINK_MBPS the rate that the programs assume (the same), APUS the program.
set -euo pipefail
apus=${APUS:-apus}
mbps=${MBPS:-50}
runs=${1:-3}
seconds=${2:-10}
lab=engine$$
dir=$(mktemp -d)
processes=()

on() { # HOST PROGRAM…: in the background, until the end of the run
    local host=$1
    shift
    "$apus" lab exec --lab "$lab" "$host" -- "$@" >>"$dir/log" 2>&1 &
    processes+=($!)
}

end_run() {
    if ((${#processes[@]})); then
        kill "${processes[@]}" 2>/dev/null || true
        wait "${processes[@]}" 2>/dev/null || true
    fi
    processes=()
    "$apus" lab down "$lab" >/dev/null 2>&1 || true
}
trap 'end_run; rm -rf "$dir"' EXIT

until_there() { # FILE PATTERN
    for _ in {1..100}; do
        if grep -qs "$2" "$1"; then return; fi
        sleep 0.1
    done
    echo "not within 10 s: $2" >&2
    cat "$dir/log" >&2
    exit 1
}

measure() { # own|shared
    : >"$dir/log"
    "$apus" lab up "$lab" --hosts 2 --link-mbps "$mbps" >/dev/null
    export APUS_LINK_MBPS=${APUS_LINK_MBPS:-$mbps} # A virtual interface reports a wrong rate.
    on h1 "$apus" node server --listen 10.213.0.2:20146
    until_there "$dir/log" serving
    if [[ $1 = shared ]]; then
        on h0 "$apus" daemon --listen 10.213.0.1:20146 --socket "$dir/engine.sock"
        until_there "$dir/log" "engine at"
        export APUS_ENGINE=unix:$dir/engine.sock
    fi
    for n in {1..8}; do
        on h0 "$apus" node client --servers 10.213.0.2:4000 --workload 1MB --one-way --client-max 1
    done
    sleep 2
    "$apus" lab exec --lab "$lab" h0 -- "$apus" node client --servers 10.213.0.2:4000 --workload 100 \
        --gbps 0.0001 --seconds "$seconds" --json "$dir/short.json" >>"$dir/log" 2>&1
    unset APUS_ENGINE
    end_run
    jq -r --arg engine "$1" '.rows[0] | [$engine, .calls, .p50_us, .p99_us, .max_us] | @tsv' "$dir/short.json"
}

printf 'engine\tcalls\tp50_us\tp99_us\tmax_us\n'
for ((run = 0; run < runs; run++)); do
    measure own
    measure shared
done
