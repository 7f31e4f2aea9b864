/* An echo server on one thread, whose epoll set has the node and the signals that end it. A program adds its own descriptors.
 *
 *     epoll_server [LISTEN]        such as 0.0.0.0:20146; by default a port of loopback that the system chooses
 */

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <apus/apus.h>

#define SECOND INT64_C(1000000000)
#define BATCH 64

static void check(int64_t number, const char *attempt)
{
    if (number < 0) {
        fprintf(stderr, "cannot %s: %s\n", attempt, apus_last_error());
        exit(1);
    }
}

static void watch(int set, int descriptor)
{
    struct epoll_event event = { .events = EPOLLIN, .data.fd = descriptor };
    check(epoll_ctl(set, EPOLL_CTL_ADD, descriptor, &event), "watch a descriptor");
}

/* Answers the requests that have arrived. */
static void serve(apus_port *port)
{
    apus_request *requests[BATCH];
    int32_t count;
    while ((count = apus_port_recv_many(port, requests, BATCH, 0)) > 0) {
        for (int32_t i = 0; i < count; i++) {
            size_t length;
            const void *body = apus_request_body(requests[i], &length);
            /* The client may have gone. */
            if (apus_reply(requests[i], body, length) != 0)
                apus_request_abandon(requests[i]);
        }
    }
    check(count, "receive");
}

int main(int argc, char **argv)
{
    sigset_t ends;
    sigemptyset(&ends);
    sigaddset(&ends, SIGINT);
    sigaddset(&ends, SIGTERM);
    sigprocmask(SIG_BLOCK, &ends, NULL);

    apus_config *config = apus_config_new();
    check(apus_config_set(config, "listen", argc > 1 ? argv[1] : "127.0.0.1:0"), "listen there");
    check(apus_config_apply_environment(config), "use the environment");
    apus_node *node;
    check(apus_node_start(config, &node), "start a node");
    apus_config_free(config);
    apus_port *port;
    check(apus_bind(node, 4000, &port), "open port 4000");

    int set = epoll_create1(EPOLL_CLOEXEC);
    int signals = signalfd(-1, &ends, SFD_CLOEXEC);
    int descriptor = apus_node_fd(node);
    check(set, "make an epoll set");
    check(signals, "receive signals");
    check(descriptor, "turn the node");
    watch(set, signals);
    watch(set, descriptor);

    apus_address address = APUS_ADDRESS_INIT;
    char text[APUS_ADDRESS_TEXT];
    check(apus_node_address(node, &address), "find the address");
    address.port = 4000;
    check(apus_address_format(&address, text, sizeof text), "print the address");
    printf("serving %s\n", text);
    fflush(stdout);

    for (int ended = 0; !ended;) {
        struct epoll_event events[8];
        int count = epoll_wait(set, events, 8, -1);
        for (int i = 0; i < count; i++) {
            if (events[i].data.fd == signals) {
                ended = 1;
            } else {
                check(apus_node_turn(node), "turn the node");
                serve(port);
            }
        }
    }
    int32_t closed = apus_node_close(node, 10 * SECOND);
    apus_port_free(port);
    apus_node_free(node);
    close(signals);
    close(set);
    return closed == 0 ? 0 : 1;
}
