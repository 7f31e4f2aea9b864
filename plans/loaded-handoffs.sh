#!/bin/bash
# Wake-ups per message while a server is loaded with W1 to W5: three ports with three threads each, 200 calls outstanding, as fast as
# they go (cp_node's `--ports 3 --port-receivers 3 --client-max 200 --gbps 0`). Client and server are two processes of this host and
# use UDP. Counters are those of `apus stat`, of the whole run. Needs jq.
#   plans/loaded-handoffs.sh [SECONDS [MODE…]]
# APUS sets the program. With DIR, an absolute path, the two result files of each line stay there.
set -euo pipefail
apus=$(command -v "${APUS:-apus}") || { echo "APUS: no program '${APUS:-apus}'" >&2; exit 2; }
command -v jq >/dev/null || { echo "jq is not installed" >&2; exit 1; }
seconds=${1:-5}
shift || true
modes=("${@:-base}")
work=$(mktemp -d)
cd "${DIR:-$work}"
server=

end() {
    if [[ -n $server ]]; then
        kill "$server" 2>/dev/null || true
        wait "$server" 2>/dev/null || true
    fi
    server=
}
trap 'end; rm -rf "$work"' EXIT

load=(--ports 3 --link udp)
printf 'mode\tworkload\tcalls_per_s\tp50_us\tp99_us\tserver_messages\tserver_handoffs_per_message\tclient_handoffs_per_message\n'
for mode in "${modes[@]}"; do
    for workload in w1 w2 w3 w4 w5; do
        export APUS_METRICS=$work/metrics
        rm -rf "$APUS_METRICS" "$work/server"
        "$apus" node server --listen 127.0.0.1:0 "${load[@]}" --port-threads 3 --delivery "$mode" >"$work/server" &
        server=$!
        for _ in {1..100}; do
            if grep -qs serving "$work/server"; then break; fi
            sleep 0.1
        done
        at=$(sed -n 's/^serving 127.0.0.1:\([0-9]*\) ports.*/127.0.0.1:4000@\1/p' "$work/server")
        name=loaded-$mode-$workload
        "$apus" node client --servers "$at" --server-ports 3 "${load[@]}" --port-receivers 3 --client-max 200 --delivery "$mode" \
            --workload "$workload" --seconds "$seconds" --json "$name.json" >/dev/null
        "$apus" stat --dir "$APUS_METRICS" --json "$name-counters.json"
        end
        jq -r --slurpfile counters "$name-counters.json" --arg mode "$mode" '
            ($counters[0].processes | map(.counters)) as $all
            | ($all | map(select(.["protocol.requests"] > 0))[0]) as $server
            | ($all | map(select(.["protocol.calls"] > 0))[0]) as $client
            | def per_message: .["delivery.handoffs"] / .["delivery.messages"] * 1000 | round / 1000;
            .rows[0] | [$mode, .workload, (.calls_per_s | round), .p50_us, .p99_us, $server["delivery.messages"],
                ($server | per_message), ($client | per_message)] | @tsv' "$name.json"
    done
done
