/* Uses every function of the library once, from C. Prints "passed" at the end. */

#undef NDEBUG
#include <assert.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <apus/apus.h>

#define CHECK(call) check((call), #call)

static int32_t check(int32_t number, const char *call)
{
    if (number < 0) {
        fprintf(stderr, "%s: %s (%s): %s\n", call, apus_error_name(number), apus_strerror(number),
                apus_last_error());
        exit(1);
    }
    return number;
}

/* Answers every request with its body, until the port is closed. */
static void *serve(void *port)
{
    apus_request *requests[16];
    int32_t count;
    while ((count = apus_port_recv_many(port, requests, 16, APUS_FOREVER)) > 0) {
        for (int32_t i = 0; i < count; i++) {
            size_t length;
            const void *body = apus_request_body(requests[i], &length);
            if (apus_reply(requests[i], body, length) != 0)
                apus_request_abandon(requests[i]);
        }
    }
    assert(count == APUS_ECLOSED);
    return NULL;
}

static apus_node *start(void)
{
    apus_config *config = apus_config_new();
    apus_node *node;
    CHECK(apus_config_set(config, "listen", "127.0.0.1:0"));
    CHECK(apus_config_apply_environment(config));
    assert(apus_config_set(config, "colour", "red") == APUS_ECONFIG);
    assert(strstr(apus_last_error(), "colour") != NULL);
    assert(apus_config_read(config, "/no/such/file") == APUS_EFILE);
    CHECK(apus_node_start(config, &node));
    apus_config_free(config);
    return node;
}

static void addresses(void)
{
    apus_address address = APUS_ADDRESS_INIT, all[8] = { APUS_ADDRESS_INIT };
    char text[APUS_ADDRESS_TEXT];
    size_t count = 8;
    CHECK(apus_address_parse("10.0.0.1:4000@7000", &address));
    assert(address.family == APUS_IPV4 && address.ip[0] == 10 && address.udp_port == 7000);
    assert(CHECK(apus_address_format(&address, text, sizeof text)) == (int32_t)strlen(text));
    assert(strcmp(text, "10.0.0.1:4000@7000") == 0);
    CHECK(apus_resolve("localhost:4000", all, &count));
    assert(count >= 1 && all[0].port == 4000);
}

static void one_call(apus_client *client, const apus_address *to)
{
    apus_call_options options = APUS_CALL_OPTIONS_INIT;
    apus_message *response, *other;
    size_t length;
    options.deadline_ns = INT64_C(60000000000);
    CHECK(apus_call(client, to, "hello", 5, &options, &response));
    other = apus_message_ref(response);
    apus_message_free(response);
    assert(memcmp(apus_message_data(other, &length), "hello", 5) == 0 && length == 5);
    apus_message_free(other);

    options.deadline_ns = 0;
    assert(apus_call(client, to, "late", 4, &options, &response) == APUS_EDEADLINE);
    assert(response == NULL && apus_error_may_have_executed(APUS_EDEADLINE) == 1);
    (void)apus_last_error_may_have_executed();
}

/* Sends bodies with and without a copy, in an event loop. */
static void many_calls(apus_node *node, apus_client *client, const apus_address *to)
{
    apus_completion completions[4] = { APUS_COMPLETION_INIT };
    apus_call_options later = APUS_CALL_OPTIONS_INIT;
    int outstanding = 10;
    later.flags = APUS_CALL_LATER;
    for (uint64_t tag = 0; tag < 9; tag++) {
        char *body = malloc(100);
        memset(body, (int)tag, 100);
        CHECK(apus_send_owned(client, to, body, 100, free, body, &later, tag));
    }
    CHECK(apus_send(client, to, "\t", 1, NULL, 9));
    struct pollfd watched = { .fd = CHECK(apus_node_fd(node)), .events = POLLIN, .revents = 0 };
    while (outstanding > 0) {
        int32_t count = CHECK(apus_recv_many(client, completions, 4, 0));
        for (int32_t i = 0; i < count; i++) {
            size_t length;
            const unsigned char *body = apus_message_data(completions[i].message, &length);
            assert(completions[i].error == 0 && body[0] == completions[i].tag && length > 0);
            apus_message_free(completions[i].message);
            outstanding--;
        }
        if (count == 0) {
            assert(poll(&watched, 1, 60000) == 1);
            CHECK(apus_node_turn(node));
        }
    }
    assert(apus_cancel(client, 5) == 0);
}

static void facts(apus_node *node, apus_client *client)
{
    apus_address to = APUS_ADDRESS_INIT, from = APUS_ADDRESS_INIT;
    apus_completion completion = APUS_COMPLETION_INIT;
    apus_request *request;
    apus_trace trace;
    apus_port *port;
    char name[64];
    CHECK(apus_node_address(node, &to));
    to.port = 5000;
    CHECK(apus_bind(node, 5000, &port));
    CHECK(apus_send(client, &to, NULL, 0, NULL, 1));
    assert(CHECK(apus_port_recv_many(port, &request, 1, APUS_FOREVER)) == 1);
    CHECK(apus_request_from(request, &from));
    assert(CHECK(apus_request_peer(request, name, sizeof name)) == 0);
    assert(CHECK(apus_request_trace(request, &trace)) == 0);
    assert(apus_request_remaining_ns(request) == APUS_FOREVER);
    assert(CHECK(apus_request_is_cancelled(request)) == 0);
    CHECK(apus_reply_owned(request, name, 1, (apus_release)apus_message_free, NULL));
    assert(CHECK(apus_recv_many(client, &completion, 1, APUS_FOREVER)) == 1);
    apus_message_free(completion.message);
    assert(apus_port_allow(port, (const char *[]){ "any" }, 1) == APUS_ENO_IDENTITY);
    assert(apus_client_expect(client, (const char *[]){ "any" }, 1) == APUS_ENO_IDENTITY);
    CHECK(apus_send(client, &to, NULL, 0, NULL, 2));
    assert(CHECK(apus_port_recv_many(port, &request, 1, APUS_FOREVER)) == 1);
    apus_request_abandon(request);
    assert(CHECK(apus_recv_many(client, &completion, 1, APUS_FOREVER)) == 1);
    assert(completion.error == APUS_ERESPONSE_LOST && completion.may_have_executed == 1);
    fprintf(stderr, "as expected: %s\n", (const char *)apus_message_data(completion.message, NULL));
    apus_message_free(completion.message);
    CHECK(apus_port_shutdown(port));
    apus_port_free(port);
}

static void counters(apus_node *node)
{
    int32_t count = CHECK(apus_stats(node, NULL, 0));
    apus_stat *stats = calloc((size_t)count, sizeof *stats);
    stats[0].size = sizeof *stats;
    CHECK(apus_stats(node, stats, (size_t)count));
    uint64_t calls = 0;
    for (int32_t i = 0; i < count; i++)
        if (strcmp(stats[i].name, "calls") == 0)
            calls = stats[i].value;
    assert(calls > 10);
    free(stats);
}

int main(void)
{
    apus_address to = APUS_ADDRESS_INIT;
    apus_node *server = start(), *node = start();
    apus_client *client;
    apus_port *port;
    pthread_t thread;
    assert(strcmp(apus_version(), APUS_VERSION) == 0);
    addresses();
    CHECK(apus_bind(server, 4000, &port));
    assert(pthread_create(&thread, NULL, serve, port) == 0);
    CHECK(apus_node_address(server, &to));
    char text[APUS_ADDRESS_TEXT];
    to.port = 4000;
    CHECK(apus_address_format(&to, text, sizeof text));
    CHECK(apus_node_resolve(node, text, &to));
    CHECK(apus_client_open(node, &client));
    CHECK(apus_connect(client, &to, INT64_C(60000000000)));
    one_call(client, &to);
    many_calls(node, client, &to);
    facts(node, client);
    counters(node);
    CHECK(apus_port_shutdown(port));
    pthread_join(thread, NULL);
    apus_client_free(client);
    apus_port_free(port);
    CHECK(apus_node_close(node, INT64_C(10000000000)));
    assert(apus_node_close(node, 0) == APUS_ECLOSED);
    apus_node_free(node);
    apus_node_free(server);
    puts("passed");
    return 0;
}
