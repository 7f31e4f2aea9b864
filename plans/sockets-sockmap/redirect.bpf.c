// The kernel's own way past TCP within a host: what is sent to a connection whose other end is here as well goes into the receive queue
// of that end (sockmap, BPF_PROG_TYPE_SK_MSG), without the layers below.
#include <linux/bpf.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

enum { AF_INET = 2 };

struct ends {
    __u32 local, remote;
    __u32 local_port, remote_port;
};

struct {
    __uint(type, BPF_MAP_TYPE_SOCKHASH);
    __uint(max_entries, 65536);
    __type(key, struct ends);
    __type(value, __u64);
} connections SEC(".maps");

SEC("sockops")
int established(struct bpf_sock_ops *socket) {
    int is_new = socket->op == BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB || socket->op == BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB;
    if (is_new && socket->family == AF_INET) {
        struct ends ends = {socket->local_ip4, socket->remote_ip4, socket->local_port, bpf_ntohl(socket->remote_port)};
        bpf_sock_hash_update(socket, &connections, &ends, BPF_NOEXIST);
    }
    return 0;
}

SEC("sk_msg")
int redirect(struct sk_msg_md *message) {
    struct ends ends = {message->remote_ip4, message->local_ip4, bpf_ntohl(message->remote_port), message->local_port};
    bpf_msg_redirect_hash(message, &connections, &ends, BPF_F_INGRESS);
    return SK_PASS;
}

char terms[] SEC("license") = "Dual MIT/GPL";
