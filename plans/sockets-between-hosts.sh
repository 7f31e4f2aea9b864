#!/usr/bin/env bash
# Calls of 100 bytes beside bulk transfers between the hosts of a lab: an unmodified program over kernel TCP, and under `apus run --net`,
# in alternation. Needs root, as the lab does.
#
#     plans/sockets-between-hosts.sh [RUNS] [SECONDS] [MBPS] [HOSTS] [LOAD]     (3 runs of 20 s, links of 50 Mb/s, 10 hosts, 0.8)
#
# Bulk transfers of 500 kB fill LOAD of each link, without the headers of packets. Each host makes 50 calls a second. A row has the
# 50th, 99th and 99.9th percentile of the calls, the 50th and 99th percentile of the transfers, their rate, how busy the processors of
# the machine were, and how many ends of connections were carried. A row above 85 % says more about the machine than about the network.
set -euo pipefail
runs=${1:-3} seconds=${2:-20} mbps=${3:-50} hosts=${4:-10} load=${5:-0.8}
root=$(cd "$(dirname "$0")/.." && pwd)
[ -n "${APUS:-}" ] || (cd "$root" && cargo build --release --locked -p apus-cli 2>/dev/null)
apus=${APUS:-${CARGO_TARGET_DIR:-$root/target}/release/apus}
work=$(mktemp -d)
lab=between$$
warmup=15
processes=()
stop() {
    for process in "${processes[@]}"; do kill "$process" 2>/dev/null || true; done
    "$apus" lab down "$lab" >/dev/null || true
    rm -rf "$work"
}
trap stop EXIT
cc -O2 -pthread -o "$work/program" "$root/plans/sockets-between-hosts.c" -lm
made=$("$apus" lab up "$lab" --hosts "$hosts" --link-mbps "$mbps")
prefix=$(sed -E 's/.* h0 ([0-9.]*\.)1 to .*/\1/' <<<"$made")
bulk=$(awk "BEGIN { print $mbps * 1000 * $load }")

ticks() { awk '/^cpu / { idle = $5 + $6; all = 0; for (i = 2; i <= 9; i++) all += $i; print idle, all }' /proc/stat; }
quantile() { # kind, share
    sed -n "s/^$1 //p" "$work"/*.out | sort -n | awk -v share="$2" '{ a[NR] = $1 } END { i = int(NR * share) + 1; if (i > NR) i = NR; print (NR ? a[i] : "-") }'
}
measure() { # name, prefix of the command
    local name=$1 start before after i
    shift
    rm -f "$work"/*.out "$work"/*.err
    start=$(($(date +%s) + 6))
    processes=()
    for i in $(seq 0 $((hosts - 1))); do
        "$apus" lab exec --lab "$lab" "h$i" -- "$@" "$work/program" "$i" "$hosts" "$prefix" 7000 "$start" "$warmup" "$seconds" "$bulk" 50 \
            >"$work/$i.out" 2>"$work/$i.err" &
        processes+=($!)
    done
    sleep $((start + warmup - $(date +%s)))
    before=$(ticks)
    sleep "$seconds"
    after=$(ticks)
    for i in "${processes[@]}"; do wait "$i" || grep -h "^host" "$work"/*.err >&2; done
    processes=()
    local transfers carried
    carried=$(cat "$work"/*.err | grep -c "carried between hosts" || true)
    transfers=$(cat "$work"/*.out | grep -c ^bulk || true)
    printf '%-14s %8s %8s %8s %10s %10s %9s %6s %7s\n' "$name" "$(quantile call 0.5)" "$(quantile call 0.99)" "$(quantile call 0.999)" \
        "$(quantile bulk 0.5)" "$(quantile bulk 0.99)" \
        "$(awk "BEGIN { printf \"%.1f\", $transfers * 4 / $seconds / $hosts }")" \
        "$(awk "BEGIN { split(\"$before $after\", t); printf \"%.0f\", 100 - 100 * (t[3] - t[1]) / (t[4] - t[2]) }")" "$carried"
}

printf '%-14s %8s %8s %8s %10s %10s %9s %6s %7s\n' "µs" "call p50" "p99" "p99.9" "bulk p50" "p99" "Mb/s/host" "busy %" "carried"
for _ in $(seq "$runs"); do
    measure "TCP"
    APUS_LINK_MBPS=$mbps APUS_PACING_BACKLOG=100us measure "apus run --net" "$apus" run --net --explain
    sleep 6 # The carriers end.
done
