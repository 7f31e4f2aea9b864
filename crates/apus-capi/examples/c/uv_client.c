/* Makes a thousand calls in libuv's loop, a hundred at a time, beside a timer of the program.
 *
 *     uv_client ADDRESS            such as localhost:4000
 */

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <apus/apus.h>
#include <uv.h>

#define CALLS 1000
#define OUTSTANDING 100
#define BATCH 64

struct program {
    apus_node *node;
    apus_client *client;
    apus_address to;
    uv_poll_t watch;
    uv_timer_t timer;
    uint64_t begun, ended;
};

static void check(int64_t number, const char *attempt)
{
    if (number < 0) {
        fprintf(stderr, "cannot %s: %s\n", attempt, apus_last_error());
        exit(1);
    }
}

static void begin_calls(struct program *program)
{
    while (program->begun < CALLS && program->begun - program->ended < OUTSTANDING) {
        uint64_t tag = program->begun++;
        /* The library gives the body back with free(). */
        char *body = malloc(32);
        int length = snprintf(body, 32, "call %" PRIu64, tag);
        check(apus_send_owned(program->client, &program->to, body, (size_t)length, free, body, NULL, tag),
              "send");
    }
}

static void end_call(struct program *program, const apus_completion *completion)
{
    size_t length;
    const char *bytes = apus_message_data(completion->message, &length);
    char expected[32];
    snprintf(expected, sizeof expected, "call %" PRIu64, completion->tag);
    if (completion->error != 0) {
        /* The message is the text of the error. */
        fprintf(stderr, "call %" PRIu64 ": %s\n", completion->tag, bytes);
        exit(1);
    }
    if (length != strlen(expected) || memcmp(bytes, expected, length) != 0)
        abort();
    apus_message_free(completion->message);
    program->ended++;
}

static void on_readable(uv_poll_t *watch, int status, int events)
{
    struct program *program = watch->data;
    apus_completion completions[BATCH] = { APUS_COMPLETION_INIT };
    int32_t count;
    (void)events;
    if (status != 0)
        abort();
    check(apus_node_turn(program->node), "turn the node");
    while ((count = apus_recv_many(program->client, completions, BATCH, 0)) > 0) {
        for (int32_t i = 0; i < count; i++)
            end_call(program, &completions[i]);
        begin_calls(program);
    }
    check(count, "receive");
    if (program->ended == CALLS) {
        uv_poll_stop(&program->watch);
        uv_timer_stop(&program->timer);
    }
}

static void on_timer(uv_timer_t *timer)
{
    struct program *program = timer->data;
    printf("%" PRIu64 " calls have ended\n", program->ended);
}

int main(int argc, char **argv)
{
    struct program program = { .to = APUS_ADDRESS_INIT };
    if (argc != 2) {
        fprintf(stderr, "usage: uv_client ADDRESS\n");
        return 2;
    }
    apus_config *config = apus_config_new();
    check(apus_config_apply_environment(config), "use the environment");
    check(apus_node_start(config, &program.node), "start a node");
    apus_config_free(config);
    check(apus_client_open(program.node, &program.client), "open a client");
    check(apus_node_resolve(program.node, argv[1], &program.to), "find the server");

    uv_loop_t *loop = uv_default_loop();
    int descriptor = apus_node_fd(program.node);
    check(descriptor, "turn the node");
    uv_poll_init(loop, &program.watch, descriptor);
    uv_timer_init(loop, &program.timer);
    program.watch.data = program.timer.data = &program;
    uv_poll_start(&program.watch, UV_READABLE, on_readable);
    uv_timer_start(&program.timer, on_timer, 100, 100);
    begin_calls(&program);
    uv_run(loop, UV_RUN_DEFAULT);
    printf("%" PRIu64 " calls have ended\n", program.ended);

    uv_close((uv_handle_t *)&program.watch, NULL);
    uv_close((uv_handle_t *)&program.timer, NULL);
    uv_run(loop, UV_RUN_DEFAULT);
    uv_loop_close(loop);
    apus_client_free(program.client);
    apus_node_free(program.node);
    return 0;
}
