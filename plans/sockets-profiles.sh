#!/usr/bin/env bash
# Where the client of a stream spends its time, by symbol: `apus bench sockets` over plain TCP and under `apus run`, writes of 1 kB,
# 64 kB and 1 MB. Prints Markdown: the throughput, the share of each object, and the symbols with the most samples.
#
#     plans/sockets-profiles.sh [SECONDS] [SYMBOLS]        (3 s each, the first 8 symbols)
#
# The client, which writes, is pinned to core 0 and the server to core 1; samples of core 0 are shown. Needs perf, and permission to
# sample the kernel (root, or kernel.perf_event_paranoid of 1 and kernel.kptr_restrict of 0). The clock takes the samples, because a
# virtual machine may have no hardware counters.
set -euo pipefail
seconds=${1:-3} symbols=${2:-8}
root=$(cd "$(dirname "$0")/.." && pwd)
(cd "$root" && cargo build --release --locked -p apus-cli 2>/dev/null)
apus=${APUS:-${CARGO_TARGET_DIR:-$root/target}/release/apus}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

record() { # transport, size
    taskset -c 0,1 perf record --quiet --event cpu-clock --freq 5000 --sample-cpu --output "$work/$1.data" -- \
        "$apus" bench sockets --only stream --transports "$1" --sizes "$2" --runs 1 --seconds "$seconds" --json "$work/$1.json" \
        >/dev/null 2>&1
}
# "12.3 Gb/s; the client ran for 98 % of the time: 64 % libc.so.6, …". The warm-up is a tenth of the measurement.
summary() { # transport
    local goodput percent
    goodput=$(sed -n 's/.*"goodput_gbps":\([0-9]*\.[0-9]\).*/\1/p' "$work/$1.json")
    percent=$(perf script --input "$work/$1.data" --cpu 0 --fields cpu 2>/dev/null | wc -l |
        awk -v seconds="$seconds" '{ printf "%.0f", $1 / 50 / (seconds * 1.1) }')
    printf -- '- `%s`: %s Gb/s; the client ran for %s %% of the time: ' "$1" "$goodput" "$percent"
    shares "$1" dso | awk 'NR <= 3 { printf "%s%.0f %% `%s`", (NR > 1 ? ", " : ""), $1, $2 } END { print "" }'
}
shares() { # transport, what to sort by: lines of a share and a name
    perf report --input "$work/$1.data" --cpu 0 --no-children --call-graph none --stdio --fields "overhead,$2" 2>/dev/null |
        grep -v '^#' | sed -n 's/^ *\([0-9.]*\)% *\(.*[^ ]\) *$/\1 \2/p'
}
cells() { # transport
    shares "$1" sym | awk -v lines="$symbols" 'NR <= lines { share = $1; sub(/^[^ ]* /, ""); printf " %.1f %% | `%s` |\n", share, $0 }'
}

for size in 1kB 64kB 1MB; do
    for transport in tcp apus-run; do
        record "$transport" "$size"
    done
    printf '**Writes of %s**\n\n%s\n%s\n\n' "$(sed 's/[kM]B/ &/' <<<"$size")" "$(summary tcp)" "$(summary apus-run)"
    printf '| | `tcp` | | `apus-run` |\n|---:|---|---:|---|\n'
    paste -d '' <(cells tcp | sed 's/^/|/') <(cells apus-run)
    printf '\n'
done
