/* Calls a server and prints its response.
 *
 *     echo_client ADDRESS TEXT     such as localhost:4000 hello
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <apus/apus.h>

#define SECOND INT64_C(1000000000)

static void check(int32_t number, const char *attempt)
{
    if (number < 0) {
        fprintf(stderr, "cannot %s: %s\n", attempt, apus_last_error());
        exit(1);
    }
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: echo_client ADDRESS TEXT\n");
        return 2;
    }
    apus_config *config = apus_config_new();
    check(apus_config_apply_environment(config), "use the environment");
    apus_node *node;
    check(apus_node_start(config, &node), "start a node");
    apus_config_free(config);
    apus_client *client;
    check(apus_client_open(node, &client), "open a client");

    apus_address to = APUS_ADDRESS_INIT;
    check(apus_node_resolve(node, argv[1], &to), "find the server");
    apus_call_options options = APUS_CALL_OPTIONS_INIT;
    options.deadline_ns = 5 * SECOND;
    apus_message *response;
    int32_t error = apus_call(client, &to, argv[2], strlen(argv[2]), &options, &response);
    if (error == 0) {
        size_t length;
        const char *bytes = apus_message_data(response, &length);
        printf("%.*s\n", (int)length, bytes);
        apus_message_free(response);
    } else {
        fprintf(stderr, "%s\n", apus_last_error());
        if (!apus_last_error_may_have_executed())
            fprintf(stderr, "the request was not executed: it can be repeated\n");
    }
    apus_client_free(client);
    apus_node_free(node);
    return error == 0 ? 0 : 1;
}
