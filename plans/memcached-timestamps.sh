#!/usr/bin/env bash
# Compares the median that `apus bench memcached` reports with packet timestamps of the kernel (AF_PACKET): a memcached of its own on
# the loopback interface, a load of reads, and a capture of its port. With one outstanding query on each connection, the packet of a
# request and the next packet of the response on its connection belong together.
#
#     plans/memcached-timestamps.sh [QPS [SECONDS [ARGUMENT…]]]        (20,000 queries per second for 3 s; arguments of apus bench memcached)
#
# The packet of a request is seen when it is sent, that of the response when the server sends it. What the generator adds, its own
# queue and the system calls at both ends, is in its latency only. With --stamps it also reports the time between the kernel's stamps of
# its packets, which are taken at the same places as those of the capture. Prints all three medians, and how far the generator's two are
# from that of the capture; fails if either is more than 15 % and 5 µs away.
# The generator is pinned to core 0 and memcached to core 1. On a machine that others use, run it with a higher priority (nice -n -20):
# otherwise the generator is late, and its run is refused.
# Needs memcached, dumpcap and tshark, and permission to capture.
set -euo pipefail
qps=${1:-20000} seconds=${2:-3}
root=$(cd "$(dirname "$0")/.." && pwd)
[ -n "${APUS:-}" ] || (cd "$root" && cargo build --release --locked -p apus-cli 2>/dev/null)
apus=${APUS:-${CARGO_TARGET_DIR:-$root/target}/release/apus}
work=$(mktemp -d)
started=()
trap 'for id in "${started[@]}"; do kill "$id" 2>/dev/null || true; done; wait; rm -rf "$work"' EXIT
until_it() { # words, command …: waits until the command succeeds
    local words=$1 tries
    shift
    for tries in $(seq 200); do
        ! "$@" 2>/dev/null || return 0
        sleep 0.05
    done
    echo "$words: not within 10 s" >&2
    exit 1
}

MEMCACHED_PORT_FILENAME=$work/port taskset -c 1 memcached -u root -l 127.0.0.1 -p -1 -U 0 -t 1 &
started+=($!)
until_it "memcached reports its port" test -s "$work/port"
port=$(sed -n 's/^TCP INET: //p' "$work/port")
load=("$apus" bench memcached "127.0.0.1:$port" --pin 0 --update 0 --connections 64 --depth 1 --runs 1 --stamps "${@:3}")
"${load[@]}" --seconds 0.2 >/dev/null # sets the values
chrt -o 0 dumpcap -q -i lo -s 128 -B 64 -f "tcp port $port" -w "$work/packets.pcapng" 2>"$work/dumpcap" &
capture=$!
started+=($capture)
until_it "dumpcap captures" test -s "$work/packets.pcapng"
status=0
"${load[@]}" --no-load --qps "$qps" --seconds "$seconds" --warmup 0.1 --json "$work/result.json" >/dev/null || status=$?
kill -INT "$capture"
wait "$capture" || true
if [ "$status" != 0 ]; then
    sed -n '/"warnings"/,/\]/p' "$work/result.json"
    exit "$status"
fi

# Times between the packet of a request and the next packet of its connection from the server, in µs.
tshark -r "$work/packets.pcapng" --disable-protocol memcache -Y 'tcp.len > 0' \
    -T fields -e frame.time_epoch -e tcp.stream -e tcp.dstport 2>/dev/null |
    awk -v port="$port" '
        $3 == port { split($1, time, "."); asked[$2] = (time[1] % 100000) * 1e6 + substr(time[2], 1, 9) / 1e3; next }
        $2 in asked { split($1, time, "."); print (time[1] % 100000) * 1e6 + substr(time[2], 1, 9) / 1e3 - asked[$2]; delete asked[$2] }' |
    sort -n >"$work/times"
lost=$(grep -o 'dropped on interface[^(]*' "$work/dumpcap" | grep -o '[0-9]*/[0-9]*' | tail -n 1 || true)
packets=$(awk '{ all[NR] = $1 } END { printf "%.1f", all[int((NR + 1) / 2)] }' "$work/times")
reported=$(sed -n 's/.*"p50_us":\([0-9.]*\).*"packets_p50_us".*/\1/p' "$work/result.json")
stamped=$(sed -n 's/.*"packets_p50_us":\([0-9.]*\).*/\1/p' "$work/result.json")
late=$(sed -n 's/.*"late_pct":\([0-9.e-]*\).*/\1/p' "$work/result.json")
awk -v packets="$packets" -v reported="$reported" -v stamped="$stamped" -v late="$late" -v count="$(wc -l <"$work/times")" -v lost="${lost:-unknown}" 'BEGIN {
    printf "%d requests in packets (received/dropped by the capture: %s), %.2f %% of the queries sent late\n", count, lost, late
    printf "median of the capture               %7.1f µs\n", packets
    agrees = agrees_with("median of the kernel'"'"'s stamps", stamped)
    agrees = agrees_with("median latency, from the intended start", reported) && agrees
    exit !agrees
}
function agrees_with(words, median,    apart) {
    apart = median - packets
    printf "%-35s %7.1f µs, %.1f µs or %.0f %% more\n", words, median, apart, apart / packets * 100
    if (apart < 0) apart = -apart
    return apart <= 5 || apart <= 0.15 * packets
}'
