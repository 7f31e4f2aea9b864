/* Apus for C: Homa for user space. Made by cbindgen from the crate apus-capi; do not edit.
 *
 * Handles. A function that makes a handle writes or returns a pointer, which the program owns and frees with the function
 * apus_..._free() of its type, once. A request is freed by apus_reply() or apus_reply_owned() that succeeds, or by
 * apus_request_abandon(). Freeing NULL does nothing. A handle that was freed may not be used, as with free().
 *
 * Threads. Every function may be called by any number of threads at once, with the same handles. The functions that free a handle
 * are the exception: no other thread may use that handle then, or later. A request is answered by one thread.
 *
 * Bytes. The pointer of apus_message_data() and apus_request_body() is valid until its handle is freed. Bodies are copied; functions whose
 * names end with _owned take them without a copy, and call a release function once for each.
 *
 * Errors. Functions return 0 or a positive number if they succeed, and otherwise a negative one of apus_error. apus_last_error() has
 * the text of the last error of the calling thread. No function throws, aborts or ends the process because of an argument: NULL
 * and values that are not allowed are APUS_EINVAL. A pointer that is not NULL must be valid.
 *
 * Structures begin with their size in bytes, which the program sets (APUS_..._INIT does). Later versions add members at the end, and
 * programs that were compiled with an earlier version go on.
 *
 * Times are in nanoseconds; a negative one, such as APUS_FOREVER, is without end.
 *
 * Forks. A child has copies of the handles of its parent. Functions return APUS_EFORKED there; freeing them is allowed and has no
 * effect on the parent. The child may start nodes of its own.
 */

#ifndef APUS_APUS_H
#define APUS_APUS_H

#include <stddef.h>
#include <stdint.h>

/** The version of the library with which a program was compiled; apus_version() is that with which it runs. */
#define APUS_VERSION "0.1.0"

/** An address that is not set. */
#define APUS_ADDRESS_INIT { sizeof(apus_address), 0, 0, 0, 0, 0, { 0 } }

/** Options with their defaults: no deadline, no trace, and the call waits for room. */
#define APUS_CALL_OPTIONS_INIT { sizeof(apus_call_options), 0, APUS_FOREVER, { { 0 }, { 0 }, 0, { 0 } } }

/** A completion that is not set. */
#define APUS_COMPLETION_INIT { sizeof(apus_completion), 0, 0, NULL, 0, 0 }

/** A counter that is not set. */
#define APUS_STAT_INIT { sizeof(apus_stat), 0, NULL, 0 }

/**
 * The family of an address: 4 bytes of `ip` are used.
 */
#define APUS_IPV4 4

/**
 * The family of an address: 16 bytes of `ip` are used.
 */
#define APUS_IPV6 6

/**
 * The size of a buffer that is long enough for the text of every address.
 */
#define APUS_ADDRESS_TEXT 80

/**
 * A time that does not end, for arguments in nanoseconds.
 */
#define APUS_FOREVER -1

/**
 * Flag of a call: if the limits and budgets of the node have no room for it, it ends at once with APUS_ETOO_MANY_CALLS or
 * APUS_EOVER_BUDGET. Without it apus_call() waits for room; apus_send() never does.
 */
#define APUS_CALL_WITHOUT_WAIT 1

/**
 * Flag of a call of apus_send(): another operation on the node follows within microseconds, and the request may stay queued
 * until then, to share a datagram and a system call with it.
 */
#define APUS_CALL_LATER 2

/**
 * Errors. Functions return 0 or a positive number if they succeed, and one of these numbers otherwise. A number keeps its
 * meaning in all versions; later versions add numbers. apus_last_error() has the details of an error.
 */
typedef enum apus_error {
  /**
   * Misuse: an argument is NULL, or has a value that is not allowed.
   */
  APUS_EINVAL = -1,
  /**
   * Misuse: the handle was made by the parent of this process, before the fork.
   */
  APUS_EFORKED = -2,
  /**
   * Misuse: the key or the value of a setting is not allowed, or settings contradict each other.
   */
  APUS_ECONFIG = -3,
  /**
   * Misuse: the text is not an address, or the address is not that of a service.
   */
  APUS_EADDRESS = -4,
  /**
   * Misuse: the body is longer than this node, or a Linux host, allows. Nothing was sent.
   */
  APUS_ETOO_LONG = -5,
  /**
   * Misuse: the body is empty, which a Linux host (`homa://`) does not accept. Nothing was sent.
   */
  APUS_EEMPTY = -6,
  /**
   * Misuse: a thread called the port that it serves itself, and no other thread serves it.
   */
  APUS_EOWN_SERVICE = -7,
  /**
   * Misuse: the function was called by a release function, which may not do that.
   */
  APUS_EIN_RELEASE = -8,
  /**
   * Misuse: the node cannot be turned by an event loop: its setting `delivery` has another mode than suspend, or it has
   * shards.
   */
  APUS_EEVENT_LOOP = -9,
  /**
   * Misuse: this node has no certificate, so it speaks with its own machine only, and the address is of another one, or the
   * function is about the names of peers. Nothing was sent.
   */
  APUS_ENO_IDENTITY = -10,
  /**
   * Misuse: the `homa://` address is not of a host with which this node speaks plain. Nothing was sent.
   */
  APUS_ENO_PLAIN_PEER = -11,
  /**
   * Local: a fault of the library. apus_last_error() has its text. The request of a call may have been executed.
   */
  APUS_EPANIC = -30,
  /**
   * Local: the client, the port or the node is closed. The request of a call may have been executed.
   */
  APUS_ECLOSED = -31,
  /**
   * Local: the call was cancelled. Its request may have been executed.
   */
  APUS_ECANCELLED = -32,
  /**
   * Local: the deadline of the call passed. Its request may have been executed.
   */
  APUS_EDEADLINE = -33,
  /**
   * Local: as many calls to the peer are outstanding as the setting `calls_max` allows. Nothing was sent.
   */
  APUS_ETOO_MANY_CALLS = -34,
  /**
   * Local: the message does not fit the budgets beside others. Nothing was sent.
   */
  APUS_EOVER_BUDGET = -35,
  /**
   * Local: as many peers are in use as the setting `peers_max` allows. Nothing was sent.
   */
  APUS_ETOO_MANY_PEERS = -36,
  /**
   * Local: the response is longer than this node accepts. The request was executed.
   */
  APUS_ERESPONSE_TOO_LONG = -37,
  /**
   * Local: the path ended before the request was sent. It was not executed.
   */
  APUS_ENOT_SENT = -38,
  /**
   * Local: the shared engine has ended, or does not answer. Nothing was sent.
   */
  APUS_ENO_ENGINE = -39,
  /**
   * Local: the shared engine ended while the call was under way. Its request may have been executed.
   */
  APUS_EENGINE_ENDED = -40,
  /**
   * Local: another node or program uses the port or the address.
   */
  APUS_EIN_USE = -41,
  /**
   * Local: the address to listen at is not one of this machine.
   */
  APUS_EADDRESS_NOT_AVAILABLE = -42,
  /**
   * Local: the process lacks a permission.
   */
  APUS_EPERMISSION = -43,
  /**
   * Local: the process or the system has no memory, thread, descriptor or port left.
   */
  APUS_ENO_RESOURCES = -44,
  /**
   * Local: a file cannot be read or written, or has the wrong contents.
   */
  APUS_EFILE = -45,
  /**
   * Local: the network cannot be used.
   */
  APUS_ELINK = -46,
  /**
   * Local: the resolver does not know the name of the host.
   */
  APUS_ELOOKUP = -47,
  /**
   * Local: calls, requests or responses had not ended when the node was closed. It is closed nevertheless.
   */
  APUS_EUNFINISHED = -48,
  /**
   * Peer: it is silent. The request may have been executed.
   */
  APUS_EPEER_TIMEOUT = -60,
  /**
   * Peer: the network reports that it cannot be reached, or that no node is there. The request may have been executed.
   */
  APUS_EPEER_UNREACHABLE = -61,
  /**
   * Peer: no service has the port. The request was not executed.
   */
  APUS_ENO_SUCH_PORT = -62,
  /**
   * Peer: its handler panicked. The request may have been executed in part.
   */
  APUS_EHANDLER_PANICKED = -63,
  /**
   * Peer: it has given the response up. The request may have been executed.
   */
  APUS_ERESPONSE_LOST = -64,
  /**
   * Peer: it was restarted, or has forgotten this client. The request may have been executed.
   */
  APUS_EMAY_HAVE_EXECUTED = -65,
  /**
   * Peer: it has another version of the wire format. The request was not executed.
   */
  APUS_EOTHER_VERSION = -66,
  /**
   * Peer: the request is longer than it accepts. It was not executed.
   */
  APUS_EREQUEST_TOO_LONG = -67,
  /**
   * Peer: it had no room for the request. It was not executed.
   */
  APUS_EOVERLOADED = -68,
  /**
   * Peer: its certificate has another name than the client expects. Nothing was sent to it.
   */
  APUS_EWRONG_PEER = -69,
  /**
   * Peer or local: the two nodes did not verify each other. The request may have been executed.
   */
  APUS_EHANDSHAKE = -70,
  /**
   * Peer: it has no certificate, and this node calls nobody in plain. The request was not executed.
   */
  APUS_EPLAIN_ONLY = -71,
  /**
   * Peer: the rule of the port does not admit this node. The request was not executed.
   */
  APUS_EFORBIDDEN = -72,
  /**
   * Peer: it takes sealed packets only, and this node has no certificate. The request was not executed.
   */
  APUS_ESEALED_ONLY = -73,
  /**
   * Peer: the client no longer waits for this response.
   */
  APUS_EGONE = -74,
  /**
   * An error that this version has no number for. The request of a call may have been executed.
   */
  APUS_EOTHER = -90,
} apus_error;

/**
 * A client: makes calls from a port of its own.
 */
typedef struct apus_client apus_client;

/**
 * The settings of a node that is to be started.
 */
typedef struct apus_config apus_config;

/**
 * A response. A handle that is counted: apus_message_ref() adds one to the count and apus_message_free() takes one away.
 */
typedef struct apus_message apus_message;

/**
 * A node: an endpoint on the network. Clients and ports are opened on it.
 */
typedef struct apus_node apus_node;

/**
 * A port that clients call: the server's side of a service.
 */
typedef struct apus_port apus_port;

/**
 * A request of a client, executed at most once. Any thread may answer it, at any time.
 */
typedef struct apus_request apus_request;

/**
 * The address of a service: a node, by its IP address and UDP port, and a Homa port on it. Begin with APUS_ADDRESS_INIT.
 */
typedef struct apus_address {
  /**
   * sizeof(apus_address). The first element of an array states the size of all.
   */
  uint32_t size;
  /**
   * APUS_IPV4 or APUS_IPV6.
   */
  uint16_t family;
  /**
   * The Homa port of the service.
   */
  uint16_t port;
  /**
   * The UDP port of the node; 0 for a host that is reached by IP protocol 146 (`homa://`).
   */
  uint16_t udp_port;
  /**
   * Zero.
   */
  uint16_t reserved;
  /**
   * The interface of a link-local IPv6 address; otherwise 0.
   */
  uint32_t scope_id;
  /**
   * The IP address in network order.
   */
  uint8_t ip[16];
} apus_address;

/**
 * The place of a call in a distributed trace, as in a `traceparent` header of W3C Trace Context.
 */
typedef struct apus_trace {
  /**
   * The id of the trace. All zeros, with a span of zeros: none.
   */
  uint8_t trace_id[16];
  /**
   * The id of the span of the caller.
   */
  uint8_t span_id[8];
  /**
   * 1: the caller may have recorded its span. Others pass through.
   */
  uint8_t flags;
  /**
   * Zeros.
   */
  uint8_t reserved[7];
} apus_trace;

/**
 * Options of a call. APUS_CALL_OPTIONS_INIT has the defaults.
 */
typedef struct apus_call_options {
  /**
   * sizeof(apus_call_options).
   */
  uint32_t size;
  /**
   * Some of the flags APUS_CALL_….
   */
  uint32_t flags;
  /**
   * The call ends with APUS_EDEADLINE if it has no response this many nanoseconds after its start. Negative, as APUS_FOREVER:
   * it has no deadline, and ends when the peer has been silent for the setting `peer_timeout`. Zero ends it at once.
   */
  int64_t deadline_ns;
  /**
   * The place of the call in a distributed trace; zeros: none.
   */
  struct apus_trace trace;
} apus_call_options;

/**
 * Gives a body back to the program, with the argument that the program gave with it. It is called once for each body, by any
 * thread, also one of the library, in the middle of its work: it must be quick, must not throw or jump, and may call no
 * function of this library but apus_message_free(). Others return APUS_EIN_RELEASE; those that return no error number do
 * nothing and return NULL or 0, so that a handle is not freed.
 */
typedef void (*apus_release)(void *argument);

/**
 * The result of a call of apus_send() or apus_send_owned().
 */
typedef struct apus_completion {
  /**
   * sizeof(apus_completion). The first element of an array states the size of all.
   */
  uint32_t size;
  /**
   * 0, or the number of the error with which the call ended.
   */
  int32_t error;
  /**
   * The tag of the call.
   */
  uint64_t tag;
  /**
   * The response; if there is an error, a message with its text, behind which there is a NUL. Free it in both cases.
   */
  struct apus_message *message;
  /**
   * 1 if the request may have been executed, 0 if it was not and will not be.
   */
  int32_t may_have_executed;
  /**
   * Zero.
   */
  uint32_t reserved;
} apus_completion;

/**
 * A counter of a node. APUS_STAT_INIT is one without a name.
 */
typedef struct apus_stat {
  /**
   * sizeof(apus_stat). The first element of an array states the size of all.
   */
  uint32_t size;
  /**
   * Zero.
   */
  uint32_t reserved;
  /**
   * The name, valid for ever.
   */
  const char *name;
  /**
   * The value since the start of the node.
   */
  uint64_t value;
} apus_stat;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Returns the defaults: a node listens at a UDP port that the system chooses, on all IPv4 addresses. A server sets `listen` to
 * "0.0.0.0:20146", whose port is the default of addresses. Free it with apus_config_free().
 */
struct apus_config *apus_config_new(void);

/**
 * Changes one setting. Its key is that of a settings file, without the prefix of environment variables: `listen`, `link`,
 * `delivery`, `peer_timeout`, `tls_cert` and others. Sizes are texts like "64 KiB", and times like "20 ms".
 *
 * Returns 0, or APUS_ECONFIG, and the configuration is then unchanged: apus_last_error() has the known keys, or the allowed
 * values.
 */
int32_t apus_config_set(struct apus_config *config,
                        const char *key,
                        const char *value);

/**
 * Changes the settings that a file in TOML names.
 *
 * Returns 0, APUS_EFILE if the file cannot be read, or APUS_ECONFIG. Settings before the error are changed.
 */
int32_t apus_config_read(struct apus_config *config,
                         const char *path);

/**
 * Changes the settings that environment variables name: `APUS_` and a key in capitals, such as `APUS_LISTEN`. Call it last, so
 * that the environment takes precedence.
 *
 * Returns 0, or APUS_ECONFIG. Settings before the error are changed.
 */
int32_t apus_config_apply_environment(struct apus_config *config);

/**
 * Frees a configuration. Nodes that were started with it go on. Does nothing with NULL.
 */
void apus_config_free(struct apus_config *config);

/**
 * Reads an address in numbers: `IP:PORT`, or `IP:PORT@UDPPORT` if the UDP port of the node is not 20146, with IPv6 addresses in
 * brackets; `homa://IP:PORT` for a host that is reached by IP protocol 146. Never blocks. apus_resolve() takes names as well.
 *
 * Returns 0, or APUS_EADDRESS.
 */
int32_t apus_address_parse(const char *text,
                           struct apus_address *address);

/**
 * Writes the text of an address, and a NUL, to a buffer of `size` bytes; APUS_ADDRESS_TEXT is enough.
 *
 * Returns the length of the text without the NUL, or APUS_EINVAL if it does not fit.
 */
int32_t apus_address_format(const struct apus_address *address,
                            char *buffer,
                            size_t size);

/**
 * Finds the addresses of a service: `HOST:PORT` or `HOST:PORT@UDPPORT`, where HOST is a name or an IP address, or
 * `homa://HOST:PORT`. Writes up to `*count` of them to `addresses`, IPv4 addresses first, and the number of those found to
 * `*count`. A name is looked up with the system's resolver, which may block for seconds.
 *
 * A node with a certificate expects the name that apus_node_resolve() found.
 *
 * Returns 0, APUS_EADDRESS or APUS_ELOOKUP.
 */
int32_t apus_resolve(const char *text,
                     struct apus_address *addresses,
                     size_t *count);

/**
 * Starts a node with these settings, and writes its handle to `node`. The configuration may be changed or freed afterwards.
 *
 * Returns 0, or an error: a setting is not allowed (APUS_ECONFIG), the address or port is in use (APUS_EIN_USE) or not one of
 * this machine, a file of the settings cannot be used (APUS_EFILE), or a permission or resource is missing.
 */
int32_t apus_node_start(const struct apus_config *config,
                        struct apus_node **node);

/**
 * Takes no further calls. Waits for at most `timeout_ns` until all outstanding calls have ended, all requests are answered and
 * all responses are acknowledged; then stops the node. Zero stops it at once, and a negative time waits without end. Clients and
 * ports that are still open return APUS_ECLOSED. The handle is still to be freed.
 *
 * Returns 0; APUS_EUNFINISHED if something had not ended, and the node is stopped nevertheless; APUS_ECLOSED if it was closed
 * before.
 */
int32_t apus_node_close(struct apus_node *node,
                        int64_t timeout_ns);

/**
 * Frees a node. If it was not closed it runs until its last client, port and request is freed, and then stops at once. Does
 * nothing with NULL.
 */
void apus_node_free(struct apus_node *node);

/**
 * Writes the address of a node, with a Homa port of 0, to `address`. The UDP port is the one that the system chose if the
 * setting `listen` has port 0. An IP address of zeros stays one: peers use an address of the machine instead.
 *
 * Returns 0, or APUS_ECLOSED.
 */
int32_t apus_node_address(const struct apus_node *node,
                          struct apus_address *address);

/**
 * Finds the first address of a service as apus_resolve() does, and remembers its name: clients of a node with a certificate then
 * expect a server with that name at the address. May block for seconds, also after apus_node_close().
 *
 * Returns 0, APUS_EADDRESS or APUS_ELOOKUP.
 */
int32_t apus_node_resolve(struct apus_node *node,
                          const char *text,
                          struct apus_address *address);

/**
 * Returns a descriptor for an event loop (epoll, libuv, poll): it is readable, level-triggered, when apus_node_turn() is to be
 * called. From the first call on, the loop takes the place of the library's thread. A message then wakes the loop's thread only.
 * If the loop is late, the library's thread helps out after some milliseconds. The node has the descriptor: it is watched and
 * not read, and is closed when the node is freed.
 *
 * Returns the descriptor, or APUS_EEVENT_LOOP if the setting `delivery` has another mode than suspend, which is the default, or
 * the node has more than one shard.
 */
int32_t apus_node_fd(struct apus_node *node);

/**
 * Receives what has arrived, runs timers and transmits: for an event loop, when the descriptor of apus_node_fd() is readable.
 * Then the loop takes responses and requests with apus_recv_many() and apus_port_recv_many() and a timeout of 0, until they
 * return 0. Never waits.
 *
 * Returns the number of datagrams and of messages from processes of this host. It is bounded: the descriptor stays readable if
 * more have arrived. Returns APUS_ECLOSED if the node was closed.
 */
int32_t apus_node_turn(struct apus_node *node);

/**
 * Opens a client on a node, and writes its handle to `client`. A client keeps its node running.
 *
 * Returns 0, APUS_ECLOSED, or APUS_ENO_RESOURCES if all 32,768 client ports are taken.
 */
int32_t apus_client_open(struct apus_node *node, struct apus_client **client);

/**
 * Closes a client and frees it. Outstanding calls of apus_send() are given up, and responses that were not received are lost.
 * Does nothing with NULL.
 */
void apus_client_free(struct apus_client *client);

/**
 * Calls only peers whose certificate has a name of one of the `count` patterns, from now on: a DNS name, `*.example.org` for
 * names below one, a SPIFFE id, one that ends with a slash and an asterisk for ids below it, an IP address, or `any`. Without
 * it, the name that apus_node_resolve() found is expected.
 *
 * Returns 0, APUS_EINVAL if a text is not a pattern, or APUS_ENO_IDENTITY.
 */
int32_t apus_client_expect(struct apus_client *client,
                           const char *const *patterns,
                           size_t count);

/**
 * Makes first contact with the node at an address, which takes one round trip, and with a node of this host waits until memory
 * is shared with it. Without it, the first call to a node takes longer than later ones. A negative time waits until the node has
 * been silent for the setting `peer_timeout`.
 *
 * Returns 0, or an error of a call.
 */
int32_t apus_connect(struct apus_client *client,
                     const struct apus_address *to,
                     int64_t timeout_ns);

/**
 * Makes a call and waits for its end. The body is copied. `options` may be NULL. The response is written to `response`, as a
 * message that is to be freed with apus_message_free(); NULL is written with an error.
 *
 * Returns 0, or an error. apus_last_error_may_have_executed() says whether the request may have been executed nevertheless.
 */
int32_t apus_call(struct apus_client *client,
                  const struct apus_address *to,
                  const void *body,
                  size_t length,
                  const struct apus_call_options *options,
                  struct apus_message **response);

/**
 * Begins a call, whose result apus_recv_many() returns with `tag`. The body is copied. `options` may be NULL. Never waits: if
 * the limits of the node have no room, the call ends at once with APUS_ETOO_MANY_CALLS or APUS_EOVER_BUDGET.
 *
 * Returns 0, or an error: nothing was sent then, and apus_recv_many() returns nothing for this call.
 */
int32_t apus_send(struct apus_client *client,
                  const struct apus_address *to,
                  const void *body,
                  size_t length,
                  const struct apus_call_options *options,
                  uint64_t tag);

/**
 * As apus_send(), without a copy: the library has the bytes of `data` until it calls `release` with `argument`. It does so once,
 * whether this function returns an error or not, perhaps before this function returns. `release` is free() and `argument` is
 * `data` for memory of malloc().
 *
 * Returns 0, or an error: nothing was sent then.
 */
int32_t apus_send_owned(struct apus_client *client,
                        const struct apus_address *to,
                        const void *data,
                        size_t length,
                        apus_release release,
                        void *argument,
                        const struct apus_call_options *options,
                        uint64_t tag);

/**
 * Takes results of calls of apus_send(), up to `max` of them, in the order of their arrival. Waits for the first one for at most
 * `timeout_ns`; 0 does not wait, and a negative time waits without end. Writes them to `completions`, whose first element states
 * the size of all. The message of each is to be freed.
 *
 * Returns their number; 0 if none came in time; or APUS_ECLOSED.
 */
int32_t apus_recv_many(struct apus_client *client,
                       struct apus_completion *completions,
                       size_t max,
                       int64_t timeout_ns);

/**
 * Ends the outstanding calls of apus_send() with this tag. apus_recv_many() returns them with APUS_ECANCELLED. Their requests
 * may be executed nevertheless.
 *
 * Returns 1 if there was such a call, and otherwise 0.
 */
int32_t apus_cancel(struct apus_client *client,
                    uint64_t tag);

/**
 * Returns the bytes of a message, and their number in `length`, which may be NULL. The pointer is valid until the last handle of
 * the message is freed, and is never NULL: an empty message has a pointer to no byte. Returns NULL and a length of 0 if
 * `message` is NULL.
 */
const void *apus_message_data(const struct apus_message *message,
                              size_t *length);

/**
 * Returns another handle to a message, which is freed on its own. It has the same address, and the same bytes. Returns NULL if
 * `message` is NULL.
 */
struct apus_message *apus_message_ref(struct apus_message *message);

/**
 * Frees a handle to a message; the bytes are freed with the last one. Does nothing with NULL. A release function may call it.
 */
void apus_message_free(struct apus_message *message);

/**
 * Opens the port `number`, 1 to 32766, on a node, and writes its handle to `port`. A port keeps its node running.
 *
 * Returns 0, APUS_EINVAL, APUS_EIN_USE or APUS_ECLOSED.
 */
int32_t apus_bind(struct apus_node *node,
                  uint16_t number,
                  struct apus_port **port);

/**
 * Admits requests only of peers whose certificate has a name of one of the `count` patterns, from now on; those of
 * apus_client_expect().
 *
 * Returns 0, APUS_EINVAL if a text is not a pattern, or APUS_ENO_IDENTITY.
 */
int32_t apus_port_allow(struct apus_port *port,
                        const char *const *patterns,
                        size_t count);

/**
 * Takes requests, up to `max` of them. Waits for the first one for at most `timeout_ns`; 0 does not wait, and a negative time
 * waits without end. Writes their handles to `requests`. Each is answered with apus_reply(), or given up with
 * apus_request_abandon().
 *
 * Returns their number; 0 if none came in time; or APUS_ECLOSED.
 */
int32_t apus_port_recv_many(struct apus_port *port,
                            struct apus_request **requests,
                            size_t max,
                            int64_t timeout_ns);

/**
 * Closes a port. Waiting threads return with APUS_ECLOSED, and requests that are not answered are given up. The handle is still
 * to be freed.
 *
 * Returns 0.
 */
int32_t apus_port_shutdown(struct apus_port *port);

/**
 * Frees a port. It is closed when its last request is answered or given up. Responses that are under way may be lost then;
 * apus_node_close() waits for them. Does nothing with NULL.
 */
void apus_port_free(struct apus_port *port);

/**
 * Returns the bytes of a request, and their number in `length`, which may be NULL. The pointer is valid until the request is
 * answered or given up, and is never NULL: an empty body has a pointer to no byte. Returns NULL and a length of 0 if `request`
 * is NULL.
 */
const void *apus_request_body(const struct apus_request *request,
                              size_t *length);

/**
 * Writes the address of the client to `address`. It is not authenticated; the name of apus_request_peer() is.
 *
 * Returns 0.
 */
int32_t apus_request_from(const struct apus_request *request,
                          struct apus_address *address);

/**
 * Writes the name of the client's certificate, and a NUL, to a buffer of `size` bytes: its SPIFFE id, else its first DNS name.
 *
 * Returns the length of the name without the NUL; 0 if the client has no certificate, and an empty text; or APUS_EINVAL if it
 * does not fit.
 */
int32_t apus_request_peer(const struct apus_request *request,
                          char *buffer,
                          size_t size);

/**
 * Returns the time until the deadline of the call in nanoseconds; 0 when it has passed, and if `request` is NULL; APUS_FOREVER
 * if the call has no deadline. A service that makes calls of its own for a request gives them no more: the value fits the member
 * `deadline_ns` of apus_call_options.
 */
int64_t apus_request_remaining_ns(const struct apus_request *request);

/**
 * Returns 1 if the response is no longer needed: the client has given the call up, its deadline has passed, the client is lost,
 * or the node is closed. Otherwise 0. Turns the engine once to find out. A handler that takes long can check this now and then,
 * and stop.
 */
int32_t apus_request_is_cancelled(const struct apus_request *request);

/**
 * Writes the place of the call in a distributed trace to `trace`; zeros if the client has sent none. Any client can name any
 * trace.
 *
 * Returns 1 if there is a place, and otherwise 0.
 */
int32_t apus_request_trace(const struct apus_request *request,
                           struct apus_trace *trace);

/**
 * Answers a request. The body is copied; it may be that of the request. With success the request is freed: its handle and the
 * pointer to its body are not valid any more. With an error it is not, and can be answered again or given up.
 *
 * Returns 0; APUS_EGONE if the client no longer waits; APUS_EOVER_BUDGET or APUS_ETOO_LONG if the response does not fit.
 */
int32_t apus_reply(struct apus_request *request,
                   const void *body,
                   size_t length);

/**
 * As apus_reply(), without a copy: the library has the bytes of `data` until it calls `release` with `argument`. It does so
 * once, whether this function returns an error or not, perhaps before this function returns.
 *
 * Returns 0, or an error of apus_reply().
 */
int32_t apus_reply_owned(struct apus_request *request,
                         const void *data,
                         size_t length,
                         apus_release release,
                         void *argument);

/**
 * Gives a request up and frees it: the client is notified that there will be no response. Does nothing with NULL.
 */
void apus_request_abandon(struct apus_request *request);

/**
 * Writes up to `max` counters of a node to `stats`, whose first element states the size of all. `stats` may be NULL if `max` is
 * 0. Takes the locks of the node.
 *
 * Returns the number of counters that the node has, or APUS_ECLOSED.
 */
int32_t apus_stats(const struct apus_node *node,
                   struct apus_stat *stats,
                   size_t max);

/**
 * Returns a short text for the number of an error; "no error" for 0 and positive numbers, and "unknown error" for a number that
 * this version does not know. The text is valid for ever.
 */
const char *apus_strerror(int32_t error);

/**
 * Returns the name of an error, such as "APUS_EINVAL", or NULL for a number that this version does not know. The text is valid
 * for ever.
 */
const char *apus_error_name(int32_t error);

/**
 * Returns 0 if no call that ended with this error has executed its request: it may be repeated then, whatever the request does.
 * Returns 1 otherwise, and for a number that this version does not know. Some calls that end with APUS_EDEADLINE,
 * APUS_EPEER_TIMEOUT, APUS_EPEER_UNREACHABLE or APUS_EHANDSHAKE were not executed either: apus_last_error_may_have_executed()
 * and the field of an apus_completion state that for one call.
 */
int32_t apus_error_may_have_executed(int32_t error);

/**
 * Returns the version of the library with which the program runs, such as "0.1.0". The text is valid for ever.
 */
const char *apus_version(void);

/**
 * The text of the last error of a function in the calling thread: the argument, its value and the allowed ones, or the cause.
 * Never NULL; empty if no function has failed. A function that succeeds does not change it. The pointer is valid until the next
 * error of this thread.
 */
const char *apus_last_error(void);

/**
 * Returns 1 if the request of the last error of apus_call() in the calling thread may have been executed, and 0 if it was not
 * and will not be: the call may be repeated then, whatever the request does. More exact than apus_error_may_have_executed(),
 * because it depends on how far the request had come. An apus_completion has the same in a field. 0 if no function has failed.
 */
int32_t apus_last_error_may_have_executed(void);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* APUS_APUS_H */
