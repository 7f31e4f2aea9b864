// Apus for C++17: Homa for user space. A layer over apus.h, in this header alone.
//
// Handles are objects that can be moved and not copied, and are freed with the object. A function that can fail returns a Result,
// which has a value or an Error; none throws, but for std::bad_alloc of the containers and strings that it makes. The rules of
// apus.h about threads, bytes and forks hold: an object that is moved from, assigned to or destroyed is used by no other thread.
//
// With the macro APUS_COROUTINES before the header, and C++20, a Dispatcher lets coroutines await calls.
#ifndef APUS_APUS_HPP
#define APUS_APUS_HPP

#include <apus/apus.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#ifdef APUS_COROUTINES
#include <coroutine>
#include <unordered_map>
#endif

namespace apus {

/// Why a function has failed.
class Error {
public:
    Error(std::int32_t number, std::string text, bool may_have_executed)
        : number_(number), text_(std::move(text)), may_have_executed_(may_have_executed) {}

    /// The last error of this thread.
    static Error last(std::int32_t number) {
        return Error(number, apus_last_error(), apus_last_error_may_have_executed() != 0);
    }

    /// One of apus_error.
    std::int32_t number() const noexcept { return number_; }
    const std::string &text() const noexcept { return text_; }
    /// Whether the request of a call may have been executed. If not, it can be repeated.
    bool may_have_executed() const noexcept { return may_have_executed_; }

private:
    std::int32_t number_;
    std::string text_;
    bool may_have_executed_;
};

/// A value or an error, as std::expected of C++23.
template <class T>
class [[nodiscard]] Result {
public:
    Result(T value) : either_(std::in_place_index<0>, std::move(value)) {}
    Result(Error error) : either_(std::in_place_index<1>, std::move(error)) {}

    bool has_value() const noexcept { return either_.index() == 0; }
    explicit operator bool() const noexcept { return has_value(); }

    /// The value; ends the program if there is none.
    T &operator*() & { return value(); }
    T &&operator*() && { return std::move(value()); }
    T *operator->() { return &value(); }
    T &value() {
        if (!has_value()) std::abort();
        return *std::get_if<0>(&either_);
    }
    const T &operator*() const & { return value(); }
    const T *operator->() const { return &value(); }
    const T &value() const {
        if (!has_value()) std::abort();
        return *std::get_if<0>(&either_);
    }

    /// The error; ends the program if there is none.
    const Error &error() const {
        if (has_value()) std::abort();
        return *std::get_if<1>(&either_);
    }

private:
    std::variant<T, Error> either_;
};

/// Success or an error.
template <>
class [[nodiscard]] Result<void> {
public:
    Result() = default;
    Result(Error error) : error_(std::move(error)) {}

    bool has_value() const noexcept { return !error_.has_value(); }
    explicit operator bool() const noexcept { return has_value(); }
    const Error &error() const {
        if (has_value()) std::abort();
        return *error_;
    }

private:
    std::optional<Error> error_;
};

/// The bytes of a body, which stay with their owner: a text, or a container of one-byte elements in a row (std::vector,
/// std::array, std::span).
class Body {
public:
    constexpr Body() noexcept = default;
    constexpr Body(const void *data, std::size_t size) noexcept : data_(data), size_(size) {}
    constexpr Body(std::string_view text) noexcept : data_(text.data()), size_(text.size()) {}
    Body(const char *text) noexcept : Body(std::string_view(text)) {}
    Body(const std::string &text) noexcept : data_(text.data()), size_(text.size()) {}
    template <class Bytes, class Element = std::remove_pointer_t<decltype(std::declval<const Bytes &>().data())>,
              class = std::enable_if_t<sizeof(Element) == 1 && std::is_trivially_copyable_v<Element> &&
                                       !std::is_convertible_v<const Bytes &, std::string_view>>>
    constexpr Body(const Bytes &bytes) noexcept : data_(bytes.data()), size_(bytes.size()) {}

    constexpr const void *data() const noexcept { return data_; }
    constexpr std::size_t size() const noexcept { return size_; }

private:
    const void *data_ = nullptr;
    std::size_t size_ = 0;
};

using Nanoseconds = std::chrono::nanoseconds;

/// A time without end.
inline constexpr Nanoseconds forever{APUS_FOREVER};

namespace detail {

/// Frees a handle.
template <auto Free>
struct Freer {
    template <class Handle>
    void operator()(Handle *handle) const noexcept {
        Free(handle);
    }
};

template <class Handle, auto Free>
using Owner = std::unique_ptr<Handle, Freer<Free>>;

inline Result<void> outcome(std::int32_t number) {
    if (number < 0) return Error::last(number);
    return {};
}

inline std::vector<const char *> texts(const std::vector<std::string> &strings) {
    std::vector<const char *> pointers;
    pointers.reserve(strings.size());
    for (const std::string &string : strings) pointers.push_back(string.c_str());
    return pointers;
}

/// Has a container at a place of its own, which the library gives back.
template <class Bytes>
void drop(void *bytes) noexcept {
    delete static_cast<Bytes *>(bytes);
}

} // namespace detail

/// The address of a service.
class Address {
public:
    Address() noexcept : address_(APUS_ADDRESS_INIT) {}
    explicit Address(const apus_address &address) noexcept : address_(address) {}

    /// Reads IP:PORT or IP:PORT@UDPPORT; never blocks.
    static Result<Address> parse(const std::string &text) {
        Address address;
        const std::int32_t number = apus_address_parse(text.c_str(), &address.address_);
        if (number < 0) return Error::last(number);
        return address;
    }

    /// Finds a service by the name of its host. May block for seconds.
    static Result<Address> resolve(const std::string &text) {
        Address address;
        std::size_t count = 1;
        const std::int32_t number = apus_resolve(text.c_str(), &address.address_, &count);
        if (number < 0) return Error::last(number);
        return address;
    }

    std::string to_string() const {
        char text[APUS_ADDRESS_TEXT] = "";
        apus_address_format(&address_, text, sizeof text);
        return text;
    }

    /// The Homa port.
    std::uint16_t port() const noexcept { return address_.port; }
    Address with_port(std::uint16_t port) const noexcept {
        Address other = *this;
        other.address_.port = port;
        return other;
    }

    const apus_address *get() const noexcept { return &address_; }
    apus_address *get() noexcept { return &address_; }

private:
    apus_address address_;
};

/// Options of calls.
class CallOptions {
public:
    CallOptions() noexcept : options_(APUS_CALL_OPTIONS_INIT) {}

    /// Ends the call with APUS_EDEADLINE after this time.
    CallOptions &deadline(Nanoseconds time) noexcept {
        options_.deadline_ns = time.count();
        return *this;
    }
    CallOptions &trace(const apus_trace &trace) noexcept {
        options_.trace = trace;
        return *this;
    }
    CallOptions &flags(std::uint32_t flags) noexcept {
        options_.flags = flags;
        return *this;
    }

    const apus_call_options *get() const noexcept { return &options_; }

private:
    apus_call_options options_;
};

/// A response.
class Message {
public:
    explicit Message(apus_message *message) noexcept : message_(message) {}

    /// The bytes, which are valid as long as a handle to the message is.
    std::string_view text() const noexcept {
        std::size_t size = 0;
        const void *data = apus_message_data(message_.get(), &size);
        return {static_cast<const char *>(data), size};
    }
    const std::byte *data() const noexcept {
        return static_cast<const std::byte *>(apus_message_data(message_.get(), nullptr));
    }
    std::size_t size() const noexcept { return text().size(); }

    /// Another handle to the same bytes.
    Message share() const noexcept { return Message(apus_message_ref(message_.get())); }

    apus_message *get() const noexcept { return message_.get(); }

private:
    detail::Owner<apus_message, apus_message_free> message_;
};

/// The result of a call of Client::send.
struct Completion {
    std::uint64_t tag;
    Result<Message> result;
};

/// Makes calls.
class Client {
public:
    explicit Client(apus_client *client) noexcept : client_(client) {}

    /// Makes a call and waits for its end.
    Result<Message> call(const Address &to, Body body, const CallOptions &options = {}) {
        apus_message *response = nullptr;
        const std::int32_t number =
            apus_call(get(), to.get(), body.data(), body.size(), options.get(), &response);
        if (number < 0) return Error::last(number);
        return Message(response);
    }

    /// Calls only peers whose certificate has a name of one of the patterns.
    Result<void> expect(const std::vector<std::string> &patterns) {
        const std::vector<const char *> texts = detail::texts(patterns);
        return detail::outcome(apus_client_expect(get(), texts.data(), texts.size()));
    }

    /// Makes first contact with a node.
    Result<void> connect(const Address &to, Nanoseconds timeout = forever) {
        return detail::outcome(apus_connect(get(), to.get(), timeout.count()));
    }

    /// Begins a call, whose result recv_many returns with the tag. The body is copied.
    Result<void> send(const Address &to, Body body, std::uint64_t tag, const CallOptions &options = {}) {
        return detail::outcome(
            apus_send(get(), to.get(), body.data(), body.size(), options.get(), tag));
    }

    /// As send, without a copy: the library has the container until the body is sent.
    template <class Bytes, class = std::enable_if_t<!std::is_lvalue_reference_v<Bytes>>>
    Result<void> send_owned(const Address &to, Bytes &&bytes, std::uint64_t tag,
                            const CallOptions &options = {}) {
        auto *owned = new std::remove_const_t<Bytes>(std::move(bytes));
        const Body body(*owned);
        return detail::outcome(apus_send_owned(
            get(), to.get(), body.data(), body.size(), detail::drop<std::remove_const_t<Bytes>>, owned,
            options.get(), tag));
    }

    /// Appends up to `max` results, at most 64 at a time. Returns their number, 0 if none came in time.
    Result<std::size_t> recv_many(std::vector<Completion> &batch, std::size_t max = 64,
                                  Nanoseconds timeout = forever) {
        apus_completion completions[64] = {APUS_COMPLETION_INIT};
        const std::int32_t count =
            apus_recv_many(get(), completions, max < 64 ? max : 64, timeout.count());
        if (count < 0) return Error::last(count);
        batch.reserve(batch.size() + static_cast<std::size_t>(count));
        for (std::int32_t i = 0; i < count; i++)
            batch.push_back({completions[i].tag, result(completions[i])});
        return static_cast<std::size_t>(count);
    }

    /// Ends the outstanding calls of send with this tag. Returns whether there was one.
    Result<bool> cancel(std::uint64_t tag) {
        const std::int32_t number = apus_cancel(get(), tag);
        if (number < 0) return Error::last(number);
        return number == 1;
    }

    apus_client *get() const noexcept { return client_.get(); }

private:
    static Result<Message> result(const apus_completion &completion) {
        Message message(completion.message);
        if (completion.error == 0) return message;
        return Error(completion.error, std::string(message.text()), completion.may_have_executed != 0);
    }

    detail::Owner<apus_client, apus_client_free> client_;
};

/// A request. It is answered once; an object that is destroyed without an answer gives it up.
class Request {
public:
    explicit Request(apus_request *request) noexcept : request_(request) {}

    /// The bytes, which are valid until the request is answered.
    std::string_view body() const noexcept {
        std::size_t size = 0;
        const void *data = apus_request_body(request_.get(), &size);
        return {static_cast<const char *>(data), size};
    }
    Address from() const noexcept {
        Address address;
        apus_request_from(request_.get(), address.get());
        return address;
    }
    /// The time until the deadline, if there is one.
    std::optional<Nanoseconds> remaining() const noexcept {
        const std::int64_t time = apus_request_remaining_ns(request_.get());
        if (time < 0) return std::nullopt;
        return Nanoseconds(time);
    }
    /// False if it is not known, as in a forked child.
    bool is_cancelled() const noexcept { return apus_request_is_cancelled(request_.get()) == 1; }
    /// The name of the client's certificate; empty for one without.
    Result<std::string> peer() const {
        std::string name(256, '\0');
        for (;;) {
            const std::int32_t length = apus_request_peer(get(), name.data(), name.size());
            if (length >= 0) {
                name.resize(static_cast<std::size_t>(length));
                return name;
            }
            // A name of a certificate has at most 64 KiB.
            if (length != APUS_EINVAL || name.size() > (1u << 16)) return Error::last(length);
            name.resize(2 * name.size());
        }
    }
    /// The place of the call in a distributed trace, if the client has sent one.
    std::optional<apus_trace> trace() const noexcept {
        apus_trace trace = {};
        if (apus_request_trace(get(), &trace) != 1) return std::nullopt;
        return trace;
    }

    /// Answers the request. After an error it can be answered again.
    Result<void> reply(Body body) {
        const std::int32_t number = apus_reply(request_.get(), body.data(), body.size());
        if (number < 0) return Error::last(number);
        static_cast<void>(request_.release()); // The library has freed it.
        return {};
    }

    /// As reply, without a copy: the library has the container until the response is sent.
    template <class Bytes, class = std::enable_if_t<!std::is_lvalue_reference_v<Bytes>>>
    Result<void> reply_owned(Bytes &&bytes) {
        auto *owned = new std::remove_const_t<Bytes>(std::move(bytes));
        const Body body(*owned);
        const std::int32_t number = apus_reply_owned(
            get(), body.data(), body.size(), detail::drop<std::remove_const_t<Bytes>>, owned);
        if (number < 0) return Error::last(number);
        static_cast<void>(request_.release()); // The library has freed it.
        return {};
    }

    apus_request *get() const noexcept { return request_.get(); }

private:
    detail::Owner<apus_request, apus_request_abandon> request_;
};

/// A port that clients call.
class Port {
public:
    explicit Port(apus_port *port) noexcept : port_(port) {}

    /// The next request; none if the time is over.
    Result<std::optional<Request>> recv(Nanoseconds timeout = forever) {
        apus_request *request = nullptr;
        const std::int32_t count = apus_port_recv_many(port_.get(), &request, 1, timeout.count());
        if (count < 0) return Error::last(count);
        if (count == 0) return std::optional<Request>();
        return std::optional<Request>(Request(request));
    }

    /// Gives each request to a function, until the port or its node is closed, which is success.
    template <class Handler>
    Result<void> serve(Handler &&handler) {
        for (;;) {
            Result<std::optional<Request>> request = recv();
            if (!request && request.error().number() == APUS_ECLOSED) return {};
            if (!request) return request.error();
            if (*request) handler(std::move(**request));
        }
    }

    /// Admits requests only of peers whose certificate has a name of one of the patterns.
    Result<void> allow(const std::vector<std::string> &patterns) {
        const std::vector<const char *> texts = detail::texts(patterns);
        return detail::outcome(apus_port_allow(get(), texts.data(), texts.size()));
    }

    /// Ends serve and recv of all threads.
    Result<void> shutdown() { return detail::outcome(apus_port_shutdown(port_.get())); }

    apus_port *get() const noexcept { return port_.get(); }

private:
    detail::Owner<apus_port, apus_port_free> port_;
};

/// The settings of a node.
class Config {
public:
    Config() noexcept : config_(apus_config_new()) {}

    Result<void> set(const std::string &key, const std::string &value) {
        return detail::outcome(apus_config_set(get(), key.c_str(), value.c_str()));
    }
    Result<void> read(const std::string &path) {
        return detail::outcome(apus_config_read(get(), path.c_str()));
    }
    Result<void> apply_environment() { return detail::outcome(apus_config_apply_environment(get())); }

    apus_config *get() const noexcept { return config_.get(); }

private:
    detail::Owner<apus_config, apus_config_free> config_;
};

/// A node.
class Node {
public:
    static Result<Node> start(const Config &config) {
        apus_node *node = nullptr;
        const std::int32_t number = apus_node_start(config.get(), &node);
        if (number < 0) return Error::last(number);
        return Node(node);
    }

    Result<Client> client() {
        apus_client *client = nullptr;
        const std::int32_t number = apus_client_open(get(), &client);
        if (number < 0) return Error::last(number);
        return Client(client);
    }
    Result<Port> bind(std::uint16_t number) {
        apus_port *port = nullptr;
        const std::int32_t error = apus_bind(get(), number, &port);
        if (error < 0) return Error::last(error);
        return Port(port);
    }
    /// The address of the node, with a Homa port of 0.
    Result<Address> address() const {
        Address address;
        const std::int32_t number = apus_node_address(get(), address.get());
        if (number < 0) return Error::last(number);
        return address;
    }
    /// Finds a service and remembers its name, which its certificate must have.
    Result<Address> resolve(const std::string &text) {
        Address address;
        const std::int32_t number = apus_node_resolve(get(), text.c_str(), address.get());
        if (number < 0) return Error::last(number);
        return address;
    }
    /// The descriptor that an event loop watches.
    Result<int> fd() {
        const std::int32_t descriptor = apus_node_fd(get());
        if (descriptor < 0) return Error::last(descriptor);
        return static_cast<int>(descriptor);
    }
    /// What an event loop calls when the descriptor is readable.
    Result<std::size_t> turn() {
        const std::int32_t count = apus_node_turn(get());
        if (count < 0) return Error::last(count);
        return static_cast<std::size_t>(count);
    }
    /// Waits for calls and requests to end, and stops the node.
    Result<void> close(Nanoseconds timeout) { return detail::outcome(apus_node_close(get(), timeout.count())); }

    apus_node *get() const noexcept { return node_.get(); }

private:
    explicit Node(apus_node *node) noexcept : node_(node) {}

    detail::Owner<apus_node, apus_node_free> node_;
};

#ifdef APUS_COROUTINES

/// Resumes coroutines that await calls. Its thread watches fd() and calls dispatch(); coroutines await and are resumed in that
/// thread. The node and the client must outlive it, and it must outlive the calls. No one else receives from the client.
class Dispatcher {
public:
    Dispatcher(Node &node, Client &client) noexcept : node_(node), client_(client) {}
    Dispatcher(const Dispatcher &) = delete;
    Dispatcher &operator=(const Dispatcher &) = delete;

    /// A call that has not begun: `co_await dispatcher.call(to, body)` is a Result<Message>. Destroying a coroutine that waits
    /// gives its call up.
    class [[nodiscard]] Call {
    public:
        Call(Dispatcher &dispatcher, const Address &to, Body body, const CallOptions &options)
            : dispatcher_(dispatcher), to_(to), body_(body), options_(options) {}
        Call(const Call &) = delete;
        Call &operator=(const Call &) = delete;
        ~Call() {
            if (dispatcher_.waiting_.erase(tag_) != 0) static_cast<void>(dispatcher_.client_.cancel(tag_));
        }

        bool await_ready() const noexcept { return false; }
        /// Goes on at once if the call cannot begin.
        bool await_suspend(std::coroutine_handle<> coroutine) {
            coroutine_ = coroutine;
            tag_ = ++dispatcher_.last_tag_;
            Result<void> sent = dispatcher_.client_.send(to_, body_, tag_, options_);
            if (!sent) {
                result_.emplace(sent.error());
                return false;
            }
            dispatcher_.waiting_.emplace(tag_, this);
            return true;
        }
        Result<Message> await_resume() { return std::move(*result_); }

    private:
        friend class Dispatcher;
        Dispatcher &dispatcher_;
        Address to_;
        Body body_;
        CallOptions options_;
        std::uint64_t tag_ = 0;
        std::coroutine_handle<> coroutine_;
        std::optional<Result<Message>> result_;
    };

    /// The body stays with its owner until the call is awaited, which copies it.
    Call call(const Address &to, Body body, const CallOptions &options = {}) {
        return Call(*this, to, body, options);
    }

    Result<int> fd() { return node_.fd(); }

    /// The number of coroutines that wait.
    std::size_t waiting() const noexcept { return waiting_.size(); }

    /// Turns the node, and resumes the coroutines whose calls have ended. Never waits. If the node or the client was closed
    /// (APUS_ECLOSED), all coroutines that wait are resumed: their calls have the results that are there, or this error.
    Result<void> dispatch() {
        Result<std::size_t> turned = node_.turn();
        Result<void> received = receive();
        if (turned && received) return {};
        const Error error = turned ? received.error() : turned.error();
        if (error.number() == APUS_ECLOSED || error.number() == APUS_EPANIC) resume_all(error);
        return error;
    }

private:
    Result<void> receive() {
        for (;;) {
            std::vector<Completion> batch;
            Result<std::size_t> count = client_.recv_many(batch, 64, Nanoseconds(0));
            if (!count) return count.error();
            if (*count == 0) return {};
            for (Completion &completion : batch) resume(completion);
        }
    }

    /// Those that begin calls meanwhile wait for the next dispatch.
    void resume_all(const Error &error) {
        std::vector<std::uint64_t> tags;
        tags.reserve(waiting_.size());
        for (const auto &entry : waiting_) tags.push_back(entry.first);
        for (const std::uint64_t tag : tags) {
            // The server may execute a request that has left.
            Completion completion{tag, Error(error.number(), error.text(), true)};
            resume(completion);
        }
    }

    void resume(Completion &completion) {
        // A coroutine that was resumed before may have destroyed this one.
        const auto found = waiting_.find(completion.tag);
        if (found == waiting_.end()) return;
        Call *call = found->second;
        waiting_.erase(found);
        call->result_.emplace(std::move(completion.result));
        call->coroutine_.resume();
    }

    Node &node_;
    Client &client_;
    std::uint64_t last_tag_ = 0;
    std::unordered_map<std::uint64_t, Call *> waiting_;
};

#endif // APUS_COROUTINES

} // namespace apus

#endif // APUS_APUS_HPP
