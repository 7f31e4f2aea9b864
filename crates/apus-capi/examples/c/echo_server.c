/* An echo server: two threads answer requests until SIGINT or SIGTERM.
 *
 *     echo_server [LISTEN]         such as 0.0.0.0:20146; by default a port of loopback that the system chooses
 */

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include <apus/apus.h>

#define SECOND INT64_C(1000000000)

static void check(int32_t number, const char *attempt)
{
    if (number < 0) {
        fprintf(stderr, "cannot %s: %s\n", attempt, apus_last_error());
        exit(1);
    }
}

/* Returns when the port is closed. */
static void *serve(void *port)
{
    apus_request *request;
    while (apus_port_recv_many(port, &request, 1, APUS_FOREVER) == 1) {
        size_t length;
        const void *body = apus_request_body(request, &length);
        /* The client may have gone. */
        if (apus_reply(request, body, length) != 0)
            apus_request_abandon(request);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    apus_config *config = apus_config_new();
    check(apus_config_set(config, "listen", argc > 1 ? argv[1] : "127.0.0.1:0"), "listen there");
    check(apus_config_apply_environment(config), "use the environment");

    /* Threads inherit the mask: no signal interrupts them. */
    sigset_t ends;
    sigemptyset(&ends);
    sigaddset(&ends, SIGINT);
    sigaddset(&ends, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &ends, NULL);

    apus_node *node;
    check(apus_node_start(config, &node), "start a node");
    apus_config_free(config);
    apus_port *port;
    check(apus_bind(node, 4000, &port), "open port 4000");

    apus_address address = APUS_ADDRESS_INIT;
    char text[APUS_ADDRESS_TEXT];
    check(apus_node_address(node, &address), "find the address");
    address.port = 4000;
    check(apus_address_format(&address, text, sizeof text), "print the address");
    printf("serving %s\n", text);
    fflush(stdout);

    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        if (pthread_create(&threads[i], NULL, serve, port) != 0)
            return 1;
    int signal;
    sigwait(&ends, &signal);

    /* Waits for requests under way and for responses that were not received yet. */
    int32_t closed = apus_node_close(node, 10 * SECOND);
    if (closed != 0)
        fprintf(stderr, "%s\n", apus_last_error());
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    apus_port_free(port);
    apus_node_free(node);
    return closed == 0 ? 0 : 1;
}
