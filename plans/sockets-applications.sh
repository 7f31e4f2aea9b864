#!/usr/bin/env bash
# Applications of Debian plain, over kernel TCP, and under `apus run`, in alternation: requests per second, medians and their ratio. For
# redis also CPU time of server and client for each request, in microseconds, plain and under `apus run`.
#
#     plans/sockets-applications.sh [RUNS] [SECONDS] [NAME]        (3 runs of 2 s each; only rows with NAME)
#
# The server is pinned to core 0 and the load generator to core 1; "same core" pins both to core 0, and "free" pins neither to one.
# Programs that are not installed are skipped: redis-server, redis-benchmark, memcached, memcslap, nginx, wrk, node, haproxy, postgres and
# pgbench (as root only, since the server runs as the user postgres), sockperf, qperf, iperf3.
set -euo pipefail
runs=${1:-3} seconds=${2:-2}
root=$(cd "$(dirname "$0")/.." && pwd)
(cd "$root" && cargo build --release --locked -p apus-cli 2>/dev/null)
apus=${APUS:-${CARGO_TARGET_DIR:-$root/target}/release/apus}
work=$(mktemp -d)
server=
stop() { [ -z "$server" ] || { kill "$server" 2>/dev/null; wait "$server" 2>/dev/null; server=; } || true; }
trap 'stop; rm -rf "$work"' EXIT

port=0
free_port() { # a port that is free now
    port=$(python3 -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
}
wait_for() { # until somebody listens at the port
    for _ in $(seq 100); do
        (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null && return
        sleep 0.05
    done
    echo "nobody listens at port $port" >&2
    return 1
}

redis() { # cores of the server, of the client, connections, requests
    free_port
    taskset -c "$1" "${under[@]}" redis-server --port "$port" --save "" --appendonly no >/dev/null &
    server=$!
    wait_for
    local TIMEFORMAT='%U %S' before
    before=$(cpu_ns "$server")
    { time taskset -c "$2" "${under[@]}" redis-benchmark -p "$port" -c "$3" -n "$4" -t get --csv 2>/dev/null >"$work/out"; } 2>"$work/client"
    awk -v server=$(($(cpu_ns "$server") - before)) -v n="$4" '{ print (($1 + $2) * 1e6 + server / 1e3) / n }' "$work/client" >>"$cpu"
    tail -1 "$work/out" | cut -d, -f2 | tr -d '"'
    stop
}
cpu_ns() { # CPU time of all threads of a process
    cat "/proc/$1/task/"*/schedstat | awk '{ sum += $1 } END { printf "%d", sum }'
}
memcached_get() { # connections
    free_port
    taskset -c 0 "${under[@]}" memcached -u root -l 127.0.0.1 -p "$port" -U 0 -t 1 &
    server=$!
    wait_for
    taskset -c 1 "${under[@]}" memcslap --servers="127.0.0.1:$port" --concurrency="$1" --execute-number=10000 --test=get --tcp-nodelay |
        sed -n 's/Time to get *\([0-9]*\) keys.*: *\([0-9.]*\) sec.*/\1 \2/p' | awk '{ print $1 / $2 }'
    stop
}
nginx_get() { # path, connections
    free_port
    mkdir -p "$work/logs" "$work/html"
    head -c 1000 /dev/zero >"$work/html/1k"
    head -c 100000 /dev/zero >"$work/html/100k"
    cat >"$work/nginx.conf" <<END
user root; worker_processes 1; daemon off; pid $work/nginx.pid; error_log $work/logs/error.log;
events { worker_connections 1024; }
http { access_log off; keepalive_requests 1000000000; sendfile on;
       server { listen 127.0.0.1:$port; root $work/html; location /empty { return 200 "hello"; } } }
END
    taskset -c 0 "${under[@]}" nginx -p "$work" -c "$work/nginx.conf" &
    server=$!
    wait_for
    taskset -c 1 "${under[@]}" wrk -t1 -c"$2" -d"${seconds}s" "http://127.0.0.1:$port/$1" | sed -n 's/Requests\/sec: *//p'
    stop
}
node_get() { # connections
    free_port
    UV_USE_IO_URING=1 taskset -c 0 "${under[@]}" node -e 'require("http").createServer((_, to) => to.end("hello")).listen(process.argv[1], "127.0.0.1")' "$port" &
    server=$!
    wait_for
    taskset -c 1 "${under[@]}" wrk -t1 -c"$1" -d"${seconds}s" "http://127.0.0.1:$port/" | sed -n 's/Requests\/sec: *//p'
    stop
}
haproxy_get() { # connections; haproxy and nginx share core 0
    free_port
    local behind=$port
    cat >"$work/nginx.conf" <<END
user root; worker_processes 1; daemon off; pid $work/nginx.pid; error_log $work/error.log;
events { worker_connections 1024; }
http { access_log off; keepalive_requests 1000000000; server { listen 127.0.0.1:$behind; location / { return 200 "hello"; } } }
END
    taskset -c 0 "${under[@]}" nginx -p "$work" -c "$work/nginx.conf" &
    local nginx=$!
    wait_for
    free_port
    cat >"$work/haproxy.cfg" <<END
global
    nbthread 1
defaults
    mode http
    timeout connect 5s
    timeout client 30s
    timeout server 30s
    http-reuse always
frontend clients
    bind 127.0.0.1:$port
    default_backend servers
backend servers
    server nginx 127.0.0.1:$behind
END
    taskset -c 0 "${under[@]}" haproxy -q -db -f "$work/haproxy.cfg" &
    server=$!
    wait_for
    taskset -c 1 "${under[@]}" wrk -t1 -c"$1" -d"${seconds}s" "http://127.0.0.1:$port/" | sed -n 's/Requests\/sec: *//p'
    stop
    kill "$nginx"
    wait "$nginx" 2>/dev/null || true
}
pgbench_select() { # connections
    free_port
    local bin
    bin=$(ls -d /usr/lib/postgresql/*/bin | tail -1)
    as_postgres() { (cd "$work/pg" && setpriv --reuid=postgres --regid=postgres --clear-groups env HOME="$work/pg" "$@"); }
    if [ ! -d "$work/pg" ]; then
        chmod 755 "$work"
        install -d -o postgres "$work/pg"
        as_postgres "$bin/initdb" -D "$work/pg/data" -A trust >/dev/null
    fi
    (cd "$work/pg" && exec setpriv --reuid=postgres --regid=postgres --clear-groups taskset -c 0 "${under[@]}" "$bin/postgres" \
        -D "$work/pg/data" -p "$port" -k "$work/pg" -c listen_addresses=127.0.0.1 >/dev/null 2>&1) &
    server=$!
    wait_for
    until as_postgres "$bin/pg_isready" -q -h 127.0.0.1 -p "$port"; do sleep 0.1; done
    [ -e "$work/filled" ] || as_postgres "$bin/pgbench" -i -q -h 127.0.0.1 -p "$port" postgres >/dev/null 2>&1
    touch "$work/filled"
    as_postgres taskset -c 1 "${under[@]}" "$bin/pgbench" -n -S -c "$1" -T "$seconds" -h 127.0.0.1 -p "$port" postgres 2>/dev/null |
        sed -n 's/^tps = \([0-9.]*\).*/\1/p'
    stop
}
sockperf_ping() { # size; the tool reports half of a round trip
    free_port
    taskset -c 0 "${under[@]}" sockperf server --tcp -i 127.0.0.1 -p "$port" >/dev/null 2>&1 &
    server=$!
    sleep 1
    taskset -c 1 "${under[@]}" sockperf ping-pong --tcp -i 127.0.0.1 -p "$port" -m "$1" -t "$seconds" 2>&1 |
        sed -n 's/.*avg-latency=\([0-9.]*\).*/\1/p' | awk '{ print 1e6 / (2 * $1) }' | tail -1
    stop
}
qperf_by() { # test, options; round trips per second or Gb/s
    free_port
    taskset -c 0 "${under[@]}" qperf -lp "$port" &
    server=$!
    sleep 0.5
    taskset -c 1 "${under[@]}" qperf -lp "$port" -t "$seconds" -uu "${@:2}" 127.0.0.1 "$1" |
        awk '/latency/ { print 1e9 / (2 * $3) } / bw / { print $3 * 8 / 1e9 }'
    stop
}
iperf() { # size of each write
    free_port
    taskset -c 0 "${under[@]}" iperf3 -s -1 -p "$port" >/dev/null &
    server=$!
    sleep 0.3
    taskset -c 1 "${under[@]}" iperf3 -c 127.0.0.1 -p "$port" -t "$seconds" -l "$1" -J | python3 -c 'import json, sys
print(json.load(sys.stdin)["end"]["sum_received"]["bits_per_second"] / 1e9)'
    stop
}

median() { sort -g | awk '{ a[NR] = $1 } END { print a[int((NR + 1) / 2)] }'; }
only=${3:-}
row() { # name, needed programs, function, arguments
    local name=$1 needed=$2 i
    shift 2
    [[ $name == *"$only"* ]] || return 0
    for program in $needed; do
        command -v "$program" >/dev/null || { printf '%-34s skipped: %s is not installed\n' "$name" "$program"; return; }
    done
    rm -f "$work"/{plain,carried}*
    for i in $(seq "$runs"); do
        under=() cpu=$work/plain.cpu && "$@" >>"$work/plain"
        under=("$apus" run) cpu=$work/carried.cpu && "$@" >>"$work/carried"
    done
    awk -v name="$name" -v p="$(median <"$work/plain")" -v q="$(median <"$work/carried")" \
        'BEGIN { printf "%-34s %12.5g %12.5g %8.2f", name, p, q, q / p }'
    if [ -s "$work/plain.cpu" ]; then
        printf ' %10.3g %10.3g' "$(median <"$work/plain.cpu")" "$(median <"$work/carried.cpu")"
    fi
    printf '\n'
}

sed -n 's/^model name.*: /CPU: /p' /proc/cpuinfo | head -1
uname -r
printf '%-34s %12s %12s %8s %10s %10s\n' "requests per second" plain "apus run" ratio "CPU us" "apus run"
row "redis GET, 1 connection" "redis-server redis-benchmark" redis 0 1 1 60000
row "redis GET, 1, same core" "redis-server redis-benchmark" redis 0 0 1 30000
row "redis GET, 1, free" "redis-server redis-benchmark" redis 0,1 0,1 1 30000
row "redis GET, 50 connections" "redis-server redis-benchmark" redis 0 1 50 200000
row "memcached get, 1 connection" "memcached memcslap" memcached_get 1
row "memcached get, 16 connections" "memcached memcslap" memcached_get 16
row "nginx, 5 bytes, 1 connection" "nginx wrk" nginx_get empty 1
row "nginx, 5 bytes, 50 connections" "nginx wrk" nginx_get empty 50
row "nginx, file of 1 kB, 1" "nginx wrk" nginx_get 1k 1
row "nginx, file of 1 kB, 50" "nginx wrk" nginx_get 1k 50
row "nginx, file of 100 kB, 1" "nginx wrk" nginx_get 100k 1
row "node, 5 bytes, 1 connection" "node wrk" node_get 1
row "node, 5 bytes, 50 connections" "node wrk" node_get 50
row "haproxy and nginx, 1 connection" "haproxy nginx wrk" haproxy_get 1
row "haproxy and nginx, 50" "haproxy nginx wrk" haproxy_get 50
if [ "$(id -u)" = 0 ] && id postgres >/dev/null 2>&1; then
    row "pgbench -S, 1 connection" "pgbench setpriv" pgbench_select 1
    row "pgbench -S, 8 connections" "pgbench setpriv" pgbench_select 8
fi
row "sockperf, 100 bytes" "sockperf" sockperf_ping 100
row "qperf tcp_lat, 1 byte" "qperf" qperf_by tcp_lat -m 1
row "qperf tcp_bw, 64 KiB (Gb/s)" "qperf" qperf_by tcp_bw -m 65536
row "iperf3, writes of 128 kB (Gb/s)" "iperf3" iperf 131072
