-- Wireshark dissector for Homa: IP protocol 146, as Linux Homa sends it, and UDP, as Apus sends it.
--
-- The formats are those of docs/wire.md; "W8" and the like are its rules. docs/capture.md says how to install and use this file.
--
--   homa   one Homa packet: all of its fields, its RPC, its message
--   apus   one UDP datagram: a packet or a bundle of packets, each of which is shown as `homa`; or a sealed datagram
--
-- A sealed datagram shows its clear fields. With a key log (preference apus.keylog, or the variable APUS_KEYLOG) and GcryptCipher, which
-- Wireshark 4.0 does not have yet, it shows its packets as well.
--
-- Wireshark calls a dissector for every packet in order, and later again for any packet in any order. What depends on earlier packets
-- (RPCs, reassembly, most expert information) is determined in the first pass and kept for each packet. What only depends on
-- the bytes of the packet is determined every time.
--
-- Works with Lua 5.2 and later (Wireshark 3.6 and later).

set_plugin_info({
    version = "1.0",
    description = "Homa over IP protocol 146 (Linux Homa) and over UDP (Apus)",
    repository = "https://github.com/apus-rpc/apus",
})

local homa = Proto("homa", "Homa")
local apus = Proto("apus", "Homa over UDP (Apus)")

local IP_PROTOCOL = 146
local COMMON_LEN = 28
local DATA_LEN = 56
local USE_SEQUENCE = 0xFFFFFFFF
local FLAGS_HOMA = 0x06
local URGENT_HOMA = 0xB97D

local DATA, GRANT, RESEND, RPC_UNKNOWN, BUSY = 0x10, 0x11, 0x12, 0x13, 0x14
local CUTOFFS, FREEZE, NEED_ACK, ACK = 0x15, 0x16, 0x17, 0x18
local OPEN, TOKEN, CONFIRM, ABORT, MEET = 0x19, 0x1A, 0x1B, 0x1C, 0x1D

local TYPES = {
    [DATA] = "DATA", [GRANT] = "GRANT", [RESEND] = "RESEND", [RPC_UNKNOWN] = "RPC_UNKNOWN", [BUSY] = "BUSY",
    [CUTOFFS] = "CUTOFFS", [FREEZE] = "FREEZE", [NEED_ACK] = "NEED_ACK", [ACK] = "ACK",
    [OPEN] = "OPEN", [TOKEN] = "TOKEN", [CONFIRM] = "CONFIRM", [ABORT] = "ABORT", [MEET] = "MEET",
}

-- Shortest packet of each type (W2).
local SHORTEST = {
    [DATA] = DATA_LEN, [GRANT] = 33, [RESEND] = 36, [RPC_UNKNOWN] = 28, [BUSY] = 28, [CUTOFFS] = 62, [FREEZE] = 28,
    [NEED_ACK] = 28, [ACK] = 80, [OPEN] = 48, [TOKEN] = 48, [CONFIRM] = 48, [ABORT] = 28, [MEET] = 52,
}

local REASONS = {
    [0] = "not stated", [1] = "port not served", [2] = "request was executed, response given up",
    [3] = "request too long", [4] = "budgets of the server are full", [5] = "other version", [6] = "token not known",
    [7] = "handler panicked", [8] = "port of this first contact not served",
    [9] = "sealed packets only", [10] = "not allowed by the rule of the service",
    [11] = "sealed packets only, at this first contact", [12] = "not allowed by the rule of the service, at this first contact",
}

local EXTENSIONS = { [0] = "filler", [1] = "deadline", [2] = "trace context" }

-- Fields -----------------------------------------------------------------------------------------------------------------------

local f = {
    -- The common header.
    source_port = ProtoField.uint16("homa.srcport", "Source port", base.DEC),
    dest_port = ProtoField.uint16("homa.dstport", "Destination port", base.DEC),
    port = ProtoField.uint16("homa.port", "Source or destination port", base.DEC),
    sequence = ProtoField.uint32("homa.sequence", "Sequence", base.DEC, nil, nil,
        "Message offset of the payload, if the segment offset is 0xffffffff"),
    version = ProtoField.uint8("apus.version", "Version", base.DEC, nil, nil, "Version of the sender's wire format"),
    token = ProtoField.uint64("apus.token", "Token", base.HEX, nil, nil,
        "The receiver's token for the sender; in OPEN, the sender's for the receiver"),
    token_high = ProtoField.uint32("apus.token.high", "Token, upper half", base.HEX),
    token_low = ProtoField.uint32("apus.token.low", "Token, lower half", base.HEX),
    features = ProtoField.uint8("apus.features", "Features", base.HEX, { [0] = "none", [1] = "compact bundles" }),
    reserved = ProtoField.bytes("homa.reserved", "Reserved"),
    packet_type = ProtoField.uint8("homa.type", "Type", base.HEX, TYPES),
    header_words = ProtoField.uint8("homa.header_words", "Header words, as in TCP", base.DEC, nil, 0xF0),
    header_rest = ProtoField.uint8("homa.header_rest", "Unused bits", base.HEX, nil, 0x0F),
    flags = ProtoField.uint8("homa.flags", "TCP flags", base.HEX),
    window = ProtoField.uint16("homa.window", "Window", base.DEC),
    checksum = ProtoField.uint16("homa.checksum", "Checksum, which no receiver verifies", base.HEX),
    urgent = ProtoField.uint16("homa.urgent", "Urgent pointer", base.HEX),
    id = ProtoField.uint64("homa.id", "RPC id, sender's form", base.DEC, nil, nil, "Even from the client, odd from the server"),
    -- DATA.
    message_length = ProtoField.uint32("homa.message_length", "Message length", base.DEC),
    incoming = ProtoField.uint32("homa.incoming", "Incoming", base.DEC, nil, nil, "Bytes that come without another grant"),
    ack_id = ProtoField.uint64("homa.ack.id", "Acknowledged RPC id", base.DEC),
    ack_port = ProtoField.uint16("homa.ack.port", "Acknowledged RPC, server port", base.DEC),
    ack_rpc = ProtoField.uint32("homa.ack.rpc", "Acknowledged RPC of this capture", base.DEC),
    cutoff_version = ProtoField.uint16("homa.cutoff_version", "Cutoff version", base.DEC),
    retransmit = ProtoField.uint8("homa.retransmit", "Retransmission", base.DEC, { [0] = "no", [1] = "yes" }),
    data_flags = ProtoField.uint8("homa.data_flags", "Apus flags", base.HEX),
    data_incast = ProtoField.bool("homa.data_flags.incast", "Incast", 8, { "yes", "no" }, 0x01),
    data_empty = ProtoField.bool("homa.data_flags.empty", "Empty message", 8, { "yes", "no" }, 0x02),
    data_unused = ProtoField.uint8("homa.data_flags.unused", "Unused", base.HEX, nil, 0x7C),
    data_extended = ProtoField.bool("homa.data_flags.extended", "Extension follows the header", 8, { "yes", "no" }, 0x80),
    extension_words = ProtoField.uint8("homa.extension.words", "Words of extension", base.DEC),
    segment_offset = ProtoField.uint32("homa.segment_offset", "Segment offset", base.DEC),
    offset = ProtoField.uint32("homa.offset", "Message offset of the payload", base.DEC),
    payload = ProtoField.bytes("homa.payload", "Payload"),
    payload_length = ProtoField.uint32("homa.payload_length", "Bytes of payload", base.DEC),
    extension_type = ProtoField.uint8("homa.extension.type", "Item", base.DEC, EXTENSIONS),
    extension_length = ProtoField.uint8("homa.extension.length", "Length", base.DEC),
    deadline = ProtoField.uint32("homa.extension.deadline", "Time until the deadline, in µs", base.DEC),
    trace_id = ProtoField.bytes("homa.extension.trace_id", "Trace id"),
    span_id = ProtoField.bytes("homa.extension.span_id", "Span id"),
    trace_flags = ProtoField.uint8("homa.extension.trace_flags", "Trace flags", base.HEX),
    -- GRANT, RESEND, RPC_UNKNOWN, CUTOFFS, ACK.
    grant_offset = ProtoField.uint32("homa.grant.offset", "Granted bytes", base.DEC, nil, nil,
        "The sender may transmit all bytes below this offset"),
    priority = ProtoField.uint8("homa.priority", "Priority", base.DEC),
    resend_offset = ProtoField.uint32("homa.resend.offset", "First byte wanted", base.DEC),
    resend_length = ProtoField.int32("homa.resend.length", "Bytes wanted", base.DEC, nil, nil,
        "-1: nothing has arrived, send again all that was sent"),
    reason = ProtoField.uint8("homa.reason", "Reason", base.DEC, REASONS),
    cutoff = ProtoField.uint32("homa.cutoff", "Longest message of the priority", base.DEC),
    cutoffs_version = ProtoField.uint16("homa.cutoffs.version", "Version of the cutoffs", base.DEC),
    ack_count = ProtoField.uint16("homa.ack.count", "Entries", base.DEC),
    ack_unused = ProtoField.bytes("homa.ack.unused", "Unused entries"),
    -- OPEN, TOKEN, CONFIRM, MEET.
    open_known = ProtoField.uint64("apus.open.known", "Known token", base.HEX, nil, nil,
        "The receiver's token that the sender has and doubts; 0 at a first contact"),
    offered = ProtoField.uint64("apus.offered", "Token for packets to the sender", base.HEX),
    code = ProtoField.uint64("apus.code", "Code", base.HEX),
    issued = ProtoField.uint32("apus.issued", "Issued", base.DEC, nil, nil, "When the code was made, in units of its maker"),
    nonce = ProtoField.bytes("apus.nonce", "Nonce"),
    place = ProtoField.uint64("apus.place", "Place", base.HEX),
    -- Bytes to which docs/wire.md gives no meaning.
    unknown = ProtoField.bytes("homa.unknown", "Unknown"),
    -- Found by looking at other packets.
    rpc = ProtoField.uint32("homa.rpc", "RPC of this capture", base.DEC, nil, nil,
        "Number of the RPC in this capture, from 0; the same in all packets of the RPC, both ways"),
    rpc_id = ProtoField.uint64("homa.rpc.id", "RPC id, client's form", base.DEC),
    from_client = ProtoField.bool("homa.from_client", "From the client"),
    request_in = ProtoField.framenum("homa.request_in", "Request begins in", base.NONE, frametype.REQUEST),
    response_in = ProtoField.framenum("homa.response_in", "Response is complete in", base.NONE, frametype.RESPONSE),
    time = ProtoField.relative_time("homa.time", "Time since the request began"),
    message = ProtoField.string("homa.message", "About the", base.ASCII, "Whether the packet is about the request or the response"),
    reassembled_in = ProtoField.framenum("homa.reassembled_in", "Message is complete in", base.NONE),
    reassembled_length = ProtoField.uint32("homa.reassembled.length", "Length of the complete message", base.DEC),
    reassembled_data = ProtoField.bytes("homa.reassembled.data", "Complete message"),
    fragment = ProtoField.framenum("homa.fragment", "Piece in", base.NONE),
    fragment_count = ProtoField.uint32("homa.fragment.count", "Pieces", base.DEC),
}
homa.fields = f

local b = {
    version = ProtoField.uint8("apus.bundle.version", "Version of the bundle", base.DEC),
    mark = ProtoField.uint16("apus.bundle.mark", "Mark of a bundle", base.HEX),
    count = ProtoField.uint8("apus.bundle.count", "Packets", base.DEC),
    length = ProtoField.uint16("apus.bundle.length", "Length of the packet", base.DEC),
    token = ProtoField.uint64("apus.bundle.token", "Token", base.HEX),
    base_id = ProtoField.uint64("apus.bundle.base_id", "Base of the ids", base.DEC),
    cutoff_version = ProtoField.uint16("apus.bundle.cutoff_version", "Version of the cutoffs", base.DEC),
    entry = ProtoField.bytes("apus.entry", "Entry"),
    id_offset = ProtoField.int32("apus.entry.id_offset", "Id, from the base on", base.DEC),
    acks = ProtoField.uint16("apus.entry.acks", "Acknowledged RPCs", base.DEC),
    segment = ProtoField.uint16("apus.segment.length", "Length of each datagram before segmentation", base.DEC),
    trailing = ProtoField.bytes("apus.unknown", "Unknown"),
    -- Sealed datagrams and hints.
    sealed_version = ProtoField.uint8("apus.sealed.version", "Version", base.DEC, { [2] = "sealed datagram", [3] = "hint" }),
    sealed_epoch = ProtoField.uint8("apus.sealed.epoch", "Epoch, modulo 4", base.DEC, nil, 0xC0),
    sealed_reserved = ProtoField.uint8("apus.sealed.reserved", "Reserved", base.DEC, nil, 0x20),
    sealed_words = ProtoField.uint8("apus.sealed.header_words", "Words of the header behind the payload", base.DEC, nil, 0x1F,
        "0: the content is a packet or a bundle"),
    sealed_path = ProtoField.uint64("apus.sealed.path", "Path id", base.HEX, nil, nil, "Chosen by the receiver of the datagram"),
    sealed_shard = ProtoField.uint8("apus.sealed.shard", "Shard of the receiver", base.DEC, nil, 0xFC),
    sealed_lane = ProtoField.uint8("apus.sealed.lane", "Lane", base.DEC, nil, 0xF0),
    sealed_priority = ProtoField.uint8("apus.sealed.priority", "Priority", base.DEC, nil, 0xE0),
    sealed_counter = ProtoField.uint64("apus.sealed.counter", "Counter of the lane", base.DEC),
    sealed_content = ProtoField.bytes("apus.sealed.content", "Sealed content"),
    sealed_tag = ProtoField.bytes("apus.sealed.tag", "Tag"),
    sealed_key_epoch = ProtoField.uint32("apus.sealed.key_epoch", "Epoch of the key that opens it", base.DEC),
}
apus.fields = b

local CHAT, NOTE = expert.severity.CHAT, expert.severity.NOTE
local WARN, ERROR = expert.severity.WARN, expert.severity.ERROR
local SEQUENCE, MALFORMED = expert.group.SEQUENCE, expert.group.MALFORMED
local PROTOCOL, CODE, UNDECODED = expert.group.PROTOCOL, expert.group.RESPONSE_CODE, expert.group.UNDECODED

local e = {
    too_short = ProtoExpert.new("homa.expert.too_short", "Packet is shorter than its type requires", MALFORMED, ERROR),
    unknown_type = ProtoExpert.new("homa.expert.unknown_type", "Unknown packet type", MALFORMED, ERROR),
    source_port_zero = ProtoExpert.new("homa.expert.source_port_zero", "Source port is 0", MALFORMED, ERROR),
    zero_length = ProtoExpert.new("homa.expert.zero_length_message", "Message of no bytes", MALFORMED, ERROR),
    empty_payload = ProtoExpert.new("homa.expert.empty_payload", "DATA without payload", MALFORMED, ERROR),
    past_end = ProtoExpert.new("homa.expert.past_end", "Payload extends past the end of the message", MALFORMED, ERROR),
    negative_length = ProtoExpert.new("homa.expert.negative_length", "RESEND of a negative length", MALFORMED, ERROR),
    bad_priority = ProtoExpert.new("homa.expert.bad_priority", "Priority above 7", MALFORMED, ERROR),
    bad_extension = ProtoExpert.new("homa.expert.bad_extension", "Extension item does not fit", MALFORMED, WARN),
    not_native = ProtoExpert.new("homa.expert.not_native", "Packet type that exists over UDP only", PROTOCOL, WARN),
    reserved = ProtoExpert.new("homa.expert.reserved", "Reserved bytes are not zero", PROTOCOL, CHAT),
    unknown = ProtoExpert.new("homa.expert.unknown", "Bytes without a known meaning", UNDECODED, NOTE),
    unknown_reason = ProtoExpert.new("homa.expert.unknown_reason", "Unknown reason", UNDECODED, NOTE),
    cut = ProtoExpert.new("homa.expert.cut", "Packet was not captured completely", UNDECODED, NOTE),
    unclear = ProtoExpert.new("homa.expert.unclear_segments", "Segments of more than one length fit", MALFORMED, WARN),
    version = ProtoExpert.new("homa.expert.other_version", "Other version of the wire format", PROTOCOL, WARN),
    retransmission = ProtoExpert.new("homa.expert.retransmission", "Retransmission", SEQUENCE, NOTE),
    resend = ProtoExpert.new("homa.expert.resend", "Missing bytes are requested", SEQUENCE, NOTE),
    busy = ProtoExpert.new("homa.expert.busy", "Peer is busy: it has nothing to send yet", SEQUENCE, NOTE),
    rpc_unknown = ProtoExpert.new("homa.expert.rpc_unknown", "RPC is not known", CODE, WARN),
    abort = ProtoExpert.new("homa.expert.abort", "Client has given the call up", CODE, NOTE),
    need_ack = ProtoExpert.new("homa.expert.need_ack", "Server asks for an acknowledgement", SEQUENCE, CHAT),
    freeze = ProtoExpert.new("homa.expert.freeze", "Debugging aid of the Linux module", PROTOCOL, NOTE),
    unseen = ProtoExpert.new("homa.expert.unseen_request", "No request of this RPC was captured before", SEQUENCE, NOTE),
    duplicate = ProtoExpert.new("homa.expert.duplicate", "All bytes were captured before", SEQUENCE, NOTE),
    overlap = ProtoExpert.new("homa.expert.overlap", "Some bytes were captured before", SEQUENCE, NOTE),
    gap = ProtoExpert.new("homa.expert.gap", "Earlier bytes of the message were not captured yet", SEQUENCE, NOTE),
    beyond_grant = ProtoExpert.new("homa.expert.beyond_grant", "Data beyond the granted bytes", PROTOCOL, WARN),
    length_changed = ProtoExpert.new("homa.expert.length_changed", "Length differs from that of earlier packets of the message",
        PROTOCOL, WARN),
    repeated_grant = ProtoExpert.new("homa.expert.repeated_grant", "Grant of bytes that were granted before", SEQUENCE, CHAT),
    grant_past_end = ProtoExpert.new("homa.expert.grant_past_end", "Grant past the end of the message", PROTOCOL, NOTE),
    resend_past_end = ProtoExpert.new("homa.expert.resend_past_end", "RESEND past the end of the message", PROTOCOL, NOTE),
}
homa.experts = e

local be = {
    malformed = ProtoExpert.new("apus.expert.malformed_bundle", "Malformed bundle", MALFORMED, ERROR),
    segmented = ProtoExpert.new("apus.expert.segmented", "Several datagrams, captured before segmentation or after they were joined",
        PROTOCOL, CHAT),
    malformed_sealed = ProtoExpert.new("apus.expert.malformed_sealed", "Malformed sealed datagram", MALFORMED, ERROR),
    hint = ProtoExpert.new("apus.expert.hint", "The peer does not have the keys of this path", SEQUENCE, NOTE),
    not_opened = ProtoExpert.new("apus.expert.not_opened", "No key of the key log opens the datagram", UNDECODED, NOTE),
    no_cipher = ProtoExpert.new("apus.expert.no_cipher",
        "This Wireshark has no GcryptCipher; `apus capture open` writes a file with the content", UNDECODED, NOTE),
}
apus.experts = be

homa.prefs.reassemble = Pref.bool("Reassemble messages", true, "Show complete messages. Takes memory for all payload of the capture.")
apus.prefs.ports = Pref.range("UDP ports", "20146-20147",
    "Datagrams of these ports are Apus. At other ports they are recognised by their first bytes.", 65535)

apus.prefs.keylog = Pref.string("Key log", "", "File that a node has written with the setting keylog (APUS_KEYLOG)")

-- Complete messages are offered to the dissectors of this table, by the Homa port of the server.
local by_server_port = DissectorTable.new("homa.port", "Homa server port", ftypes.UINT16, base.DEC, homa)

-- Of the layers around: whether the packet is quoted by an ICMP error.
local icmp, icmpv6 = Field.new("icmp"), Field.new("icmpv6")

-- Envelopes of apus-rpc (docs/rpc-wire.md) -------------------------------------------------------------------------------------

local rpc_proto = Proto("apus_rpc", "Apus RPC")

local REQUEST_KINDS = { [1] = "OPEN", [2] = "PUSH", [3] = "PULL", [4] = "HOLD", [5] = "CANCEL" }

local CODES = {
    [0] = "OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
    "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED",
    "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED",
}

-- The table of names (E9).
local NAMES = {
    [0] = "content-type", "content-encoding", "accept-encoding", "user-agent",
    "authorization", "date", "server", "grpc-encoding",
    "grpc-accept-encoding", "grpc-timeout", "grpc-message-type", "grpc-previous-rpc-attempts",
    "grpc-retry-pushback-ms", "grpc-trace-bin", "grpc-tags-bin", "grpc-server-stats-bin",
    "endpoint-load-metrics-bin", "traceparent", "tracestate", "baggage",
    "b3", "x-request-id", "x-correlation-id", "x-forwarded-for",
    "x-forwarded-proto", "x-real-ip", "x-api-key", "x-tenant-id",
    "x-user-id", "x-session-id", "idempotency-key", "connect-protocol-version",
}

local r = {
    version = ProtoField.uint8("apus_rpc.version", "Version", base.DEC, nil, 0x0F),
    kind = ProtoField.uint8("apus_rpc.kind", "Kind", base.DEC, REQUEST_KINDS),
    request_flags = ProtoField.uint8("apus_rpc.request_flags", "Flags", base.HEX),
    response_flags = ProtoField.uint8("apus_rpc.response_flags", "Flags", base.HEX),
    request_end = ProtoField.bool("apus_rpc.request_end", "END: the requests end here", 8, nil, 0x01),
    holds = ProtoField.bool("apus_rpc.holds", "HOLDS: a HOLD follows", 8, nil, 0x02),
    head = ProtoField.bool("apus_rpc.head", "HEAD: metadata follows", 8, nil, 0x01),
    response_end = ProtoField.bool("apus_rpc.response_end", "END: the response ends here", 8, nil, 0x02),
    more = ProtoField.bool("apus_rpc.more", "MORE: the response goes on", 8, nil, 0x04),
    not_executed = ProtoField.bool("apus_rpc.not_executed", "NOT_EXECUTED: no handler has begun", 8, nil, 0x08),
    draining = ProtoField.bool("apus_rpc.draining", "DRAINING: the server is about to end", 8, nil, 0x10),
    id = ProtoField.uint64("apus_rpc.id", "Id of the call", base.HEX),
    sequence = ProtoField.uint64("apus_rpc.seq", "Number", base.DEC),
    path = ProtoField.string("apus_rpc.path", "Path"),
    metadata = ProtoField.string("apus_rpc.metadata", "Metadata"),
    trailer = ProtoField.string("apus_rpc.trailer", "Trailer"),
    code = ProtoField.uint32("apus_rpc.code", "Code", base.DEC, CODES),
    message = ProtoField.string("apus_rpc.message", "Message"),
    details = ProtoField.bytes("apus_rpc.details", "Details"),
    body = ProtoField.bytes("apus_rpc.body", "Body, or a part of it"),
    body_length = ProtoField.uint32("apus_rpc.body.length", "Bytes of the body", base.DEC),
}
rpc_proto.fields = r

local re = {
    malformed = ProtoExpert.new("apus_rpc.expert.malformed", "The envelope breaks a rule of the format", expert.group.MALFORMED,
        expert.severity.ERROR),
    failed = ProtoExpert.new("apus_rpc.expert.failed", "The call has failed", expert.group.RESPONSE_CODE, expert.severity.NOTE),
}
rpc_proto.experts = re

-- Paths of calls with streams, by client, server and id.
local paths_of_calls = {}

-- Reads the fields of an envelope. Each function returns nil when the bytes do not suffice.
local function reader(range)
    local it = { at = 0 }
    function it.take(length)
        if length < 0 or it.at + length > range:len() then return nil end
        local from = it.at
        it.at = from + length
        return { at = from, length = length }
    end
    function it.varint()
        local from, value, scale = it.at, 0, 1
        for _ = 1, 10 do
            local byte = it.take(1)
            if not byte then return nil end
            local bits = range(byte.at, 1):uint()
            value = value + bits % 128 * scale
            -- A longer one is no number of an envelope, and Lua could not print it.
            if value >= 2 ^ 53 then return nil end
            if bits < 128 then return value, { at = from, length = it.at - from } end
            scale = scale * 128
        end
        return nil
    end
    function it.bytes()
        local length = it.varint()
        return length and it.take(length)
    end
    return it
end

-- The part of a range; nil if it is empty.
local function part(range, place)
    return place.length > 0 and range(place.at, place.length) or nil
end

local function text(range, place)
    local bytes = part(range, place)
    return bytes and bytes:raw() or ""
end

-- Adds pairs of names and values; returns whether they were complete.
local function add_pairs(tree, range, it, field)
    local count = it.varint()
    if not count or count * 3 > range:len() then return false end
    for _ = 1, count do
        local from, length = it.at, it.varint()
        if not length then return false end
        local name
        if length == 0 then
            local index = it.take(1)
            name = index and NAMES[range(index.at, 1):uint()]
        else
            local place = it.take(length)
            name = place and text(range, place)
        end
        local value = name and it.bytes()
        if not value then return false end
        local shown
        if name:sub(-4) == "-bin" then
            shown = value.length > 0 and tostring(range(value.at, value.length):bytes()):lower() or ""
        else
            shown = text(range, value)
        end
        tree:add(field, range(from, it.at - from), name .. ": " .. shown)
    end
    return true
end

local function add_body(tree, range, it)
    local length = range:len() - it.at
    tree:add(r.body_length, length):set_generated()
    if length > 0 then tree:add(r.body, range(it.at)) end
end

-- Shows a request; returns its line, or nil if it is malformed.
local function show_request(range, tree, rpc, call_key)
    local it = reader(range)
    tree:add(r.version, range(0, 1))
    local first = it.take(3)
    local kind = first and range(1, 1):uint()
    if not REQUEST_KINDS[kind] then return nil end
    tree:add(r.kind, range(1, 1))
    local flags = tree:add(r.request_flags, range(2, 1))
    if kind <= 2 then flags:add(r.request_end, range(2, 1)) end
    if kind == 1 then flags:add(r.holds, range(2, 1)) end
    local id = it.take(8)
    if not id then return nil end
    tree:add(r.id, range(id.at, 8))
    local key = call_key .. " " .. tostring(range(id.at, 8):bytes())
    local line = REQUEST_KINDS[kind]
    if kind == 2 or kind == 3 then
        local number, place = it.varint()
        if not number then return nil end
        tree:add(r.sequence, range(place.at, place.length), UInt64.new(number))
        line = line .. string.format(" %d", number)
    end
    if kind == 1 then
        local path = it.bytes()
        if not path then return nil end
        rpc.path = text(range, path)
        paths_of_calls[key] = rpc.path
        tree:add(r.path, range(path.at, path.length), rpc.path)
        if not add_pairs(tree, range, it, r.metadata) then return nil end
    else
        rpc.path = rpc.path or paths_of_calls[key]
        if rpc.path then tree:add(r.path, rpc.path):set_generated() end
    end
    add_body(tree, range, it)
    if range(2, 1):uint() % 2 == 1 and kind <= 2 then line = line .. " END" end
    return rpc.path and line .. " " .. rpc.path or line
end

-- Shows a response; returns its line, or nil if it is malformed.
local function show_response(range, tree, rpc)
    local it = reader(range)
    if not it.take(2) then return nil end
    tree:add(r.version, range(0, 1))
    local flags, flags_tree = range(1, 1):uint(), tree:add(r.response_flags, range(1, 1))
    for _, field in ipairs({ r.head, r.response_end, r.more, r.not_executed, r.draining }) do
        flags_tree:add(field, range(1, 1))
    end
    if rpc.path then tree:add(r.path, rpc.path):set_generated() end
    local line = flags % 8 >= 4 and "MORE" or ""
    if flags % 2 == 1 and not add_pairs(tree, range, it, r.metadata) then return nil end
    if flags % 4 >= 2 then
        local code, place = it.varint()
        local message, details = it.bytes(), it.bytes()
        if not (code and message and details) then return nil end
        local code_tree = tree:add(r.code, range(place.at, place.length), code)
        if message.length > 0 then tree:add(r.message, range(message.at, message.length)) end
        if details.length > 0 then tree:add(r.details, range(details.at, details.length)) end
        if not add_pairs(tree, range, it, r.trailer) then return nil end
        line = CODES[code] or string.format("code %d", code)
        if code > 0 then code_tree:add_proto_expert_info(re.failed, text(range, message)) end
    end
    add_body(tree, range, it)
    if line == "" then line = "credit" end
    return rpc.path and line .. " " .. rpc.path or line
end

-- Whether a request is an envelope: an OPEN with a path, or a message about a call that was seen, or of the length of a HOLD or CANCEL.
local function is_envelope(range, rpc, call_key)
    if range:len() < 11 or range(0, 1):uint() ~= 0xA1 then return false end
    local kind = range(1, 1):uint()
    if kind == 1 then return range:len() > 13 and range(12, 1):uint() == 0x2F or range:len() > 14 and range(13, 1):uint() == 0x2F end
    if (kind == 4 or kind == 5) and range:len() == 11 then return true end
    return REQUEST_KINDS[kind] ~= nil and paths_of_calls[call_key .. " " .. tostring(range(3, 8):bytes())] ~= nil
end

-- Shows a complete message if it is an envelope; returns its line.
local function show_envelope(tvb, root, rpc, is_request, call_key)
    local range = tvb()
    if is_request then rpc.has_envelope = is_envelope(range, rpc, call_key) end
    if not rpc.has_envelope or range:len() == 0 then return nil end
    local tree = root:add(rpc_proto, range)
    local line
    if range(0, 1):uint() == 0xA1 then
        if is_request then line = show_request(range, tree, rpc, call_key) else line = show_response(range, tree, rpc) end
    end
    if not line then tree:add_proto_expert_info(re.malformed) end
    line = line or "malformed"
    tree:append_text(", " .. line)
    return line
end

-- RPCs and messages ------------------------------------------------------------------------------------------------------------

-- RPCs of the capture, from 0, and the last one of each pair of nodes and id.
local rpc_count, rpc_by_key = 0, {}
-- What the first pass found about each packet: results[frame][position in the frame].
local results = {}

local function forget()
    rpc_count, rpc_by_key, results, paths_of_calls = 0, {}, {}, {}
end

function homa.init()
    forget()
end

local function new_message()
    -- pieces are sorted by offset and do not overlap; frames are those of DATA, each once, in order of capture.
    return { pieces = {}, have = 0, top = 0, granted = 0, frames = {} }
end

-- The RPC of a packet: by both nodes and the id, which is unique per client node. The token of packets to the server distinguishes two
-- runs of the nodes, once the request is complete: a client that has restarted uses the same ids.
local function rpc_of(packet, context)
    local client, server = context.from, context.to
    if not packet.from_client then client, server = server, client end
    local key = client .. " " .. server .. " " .. packet.even_key
    local rpc = rpc_by_key[key]
    local token = packet.from_client and packet.kind == DATA and packet.token_key or nil
    local again = rpc and token and rpc.token and token ~= rpc.token and (rpc.request.done_in or rpc.response.done_in)
    if not rpc or again then
        rpc = { number = rpc_count, request = new_message(), response = new_message() }
        rpc_count = rpc_count + 1
        rpc_by_key[key] = rpc
    end
    rpc.token = token or rpc.token
    return rpc
end

-- Puts bytes into a message; returns how many of them were not there before. Pieces usually arrive in order, so the search starts
-- at the end.
local function put(message, offset, bytes)
    local pieces = message.pieces
    local at = #pieces
    while at > 0 and pieces[at].from > offset do at = at - 1 end
    local from, to, added = offset, offset + #bytes, 0
    if at > 0 then from = math.max(from, pieces[at].to) end
    -- Fills the gaps before each of the pieces that follow, and the one after the last.
    while from < to do
        local following = pieces[at + 1]
        local gap_end = following and math.min(to, following.from) or to
        if gap_end > from then
            local kept = homa.prefs.reassemble and bytes:sub(from - offset + 1, gap_end - offset) or ""
            table.insert(pieces, at + 1, { from = from, to = gap_end, bytes = kept })
            added = added + gap_end - from
            at = at + 1
        end
        following = pieces[at + 1]
        if not following then break end
        from = math.max(from, following.to)
        at = at + 1
    end
    message.have = message.have + added
    return added
end

local function joined(message)
    local parts = {}
    for index, piece in ipairs(message.pieces) do parts[index] = piece.bytes end
    return table.concat(parts)
end

local function note(result, which, text)
    table.insert(result.notes, { which = which, text = text })
end

-- First pass of DATA: reassembly, and what is remarkable about the bytes.
local function handle_data(packet, result, context)
    local rpc, message = result.rpc, result.message
    local frame = context.frame
    if message.frames[#message.frames] ~= frame then table.insert(message.frames, frame) end
    if not message.length then
        message.length = packet.message_length
        message.first_in, message.first_at = frame, context.time
    elseif message.length ~= packet.message_length then
        note(result, e.length_changed, string.format("%u bytes here, %u before", packet.message_length, message.length))
        return
    end
    message.granted = math.max(message.granted, math.min(packet.incoming, message.length))
    local added, sent = 0, 0
    for _, segment in ipairs(packet.segments) do
        if segment.offset > message.top then
            note(result, e.gap, string.format("Bytes from %u to %u were not captured yet", message.top, segment.offset - 1))
        end
        message.top = math.max(message.top, segment.offset + #segment.bytes)
        sent = sent + #segment.bytes
        added = added + put(message, segment.offset, segment.bytes)
        -- The stripped module has no grants and says so by an `incoming` of 0.
        local last = segment.offset + #segment.bytes
        -- A packet that begins within the granted bytes may end beyond them: senders do not cut packets for that.
        if packet.incoming > 0 and segment.offset >= message.granted and not packet.retransmit then
            note(result, e.beyond_grant, string.format("Bytes up to %u; %u are granted", last, message.granted))
        end
    end
    if added == 0 then
        note(result, e.duplicate)
    elseif added < sent then
        note(result, e.overlap)
    end
    if not message.done_in and message.have == message.length then
        message.done_in, message.done_at = frame, context.time
        result.completes = true
        result.bytes = homa.prefs.reassemble and joined(message) or nil
        if message == rpc.response then rpc.ended_in = frame end
        -- The bytes are with the packet that completed the message, and the pieces only say what is there.
        for _, piece in ipairs(message.pieces) do piece.bytes = nil end
    end
end

local function handle_grant(packet, result)
    local message = result.message
    if packet.grant_offset <= message.granted then
        note(result, e.repeated_grant, string.format("%u bytes were granted before", message.granted))
    end
    if message.length and packet.grant_offset > message.length then
        note(result, e.grant_past_end, string.format("The message has %u bytes", message.length))
    end
    message.granted = math.max(message.granted, packet.grant_offset)
end

local function handle_resend(packet, result)
    local length = result.message.length
    local last = packet.resend_offset + math.max(packet.resend_length, 0)
    if length and last > length then
        note(result, e.resend_past_end, string.format("Bytes up to %u of %u", last, length))
    end
    -- What is requested was granted, also if the GRANT was lost.
    result.message.granted = math.max(result.message.granted, last)
end

-- First pass: the RPC and message of a packet, and its state after the earlier packets.
local function first_pass(packet, context)
    local result = { notes = {} }
    if packet.id_is_zero or not TYPES[packet.kind] then return result end
    local rpc = rpc_of(packet, context)
    result.rpc = rpc
    -- GRANT and RESEND go against the direction of the message that they are about.
    local about_request = packet.from_client
    if packet.kind == GRANT or packet.kind == RESEND then about_request = not about_request end
    result.about_request = about_request
    result.message = about_request and rpc.request or rpc.response
    local first_contact = packet.kind == OPEN or packet.kind == TOKEN or packet.kind == CONFIRM
    local is_request = packet.kind == DATA and packet.from_client
    if not (is_request or first_contact or rpc.request.length) then note(result, e.unseen) end
    if packet.segments and #packet.segments > 0 then
        handle_data(packet, result, context)
    elseif packet.kind == GRANT then
        handle_grant(packet, result)
    elseif packet.kind == RESEND then
        handle_resend(packet, result)
    end
    if rpc.request.first_at and context.time >= rpc.request.first_at then
        result.elapsed = context.time - rpc.request.first_at
    end
    result.acked = {}
    for index, even_key in ipairs(packet.acked) do
        local key = context.from .. " " .. context.to .. " " .. even_key
        result.acked[index] = rpc_by_key[key] and rpc_by_key[key].number or nil
    end
    return result
end

-- The result of the first pass for the packet at `context.position` of the frame.
local function result_of(packet, context)
    if context.quoted then return { notes = {}, acked = {} } end
    local frame = results[context.frame]
    if not frame then
        frame = {}
        results[context.frame] = frame
    end
    -- In the first pass of `tshark -2 -R`, the frame after one that does not match has the same number.
    if context.first_pass or not frame[context.position] then frame[context.position] = first_pass(packet, context) end
    return frame[context.position]
end

-- Bytes of one packet ----------------------------------------------------------------------------------------------------------

-- Adds bytes that have to be zero.
local function add_reserved(tree, range)
    local item = tree:add(f.reserved, range)
    if range:bytes():tohex():find("[^0]") then item:add_proto_expert_info(e.reserved) end
end

local function add_unknown(tree, range)
    tree:add(f.unknown, range):add_proto_expert_info(e.unknown)
end

local function add_priority(tree, range)
    local item = tree:add(f.priority, range)
    if range:uint() > 7 then item:add_proto_expert_info(e.bad_priority) end
    return range:uint()
end

-- An id in its client's form: as a key, and as a number.
local function even(range)
    local high, low = range(0, 4):uint(), range(4, 4):uint()
    low = low - low % 2
    return string.format("%08x%08x", high, low), UInt64.new(low, high)
end

-- The common header. Fills `packet`; nothing in it is missing.
local function common_header(range, tree, packet, native)
    tree:add(f.source_port, range(0, 2))
    tree:add(f.dest_port, range(2, 2))
    tree:add(f.port, range(0, 2)):set_hidden()
    tree:add(f.port, range(2, 2)):set_hidden()
    packet.source_port, packet.dest_port = range(0, 2):uint(), range(2, 2):uint()
    if native then
        tree:add(f.sequence, range(4, 4))
        add_reserved(tree, range(8, 3))
    else
        local high, low = range(4, 4):uint(), range(14, 4):uint()
        packet.token_key = string.format("%08x%08x", high, low)
        local token = tree:add(f.token, range(4, 14), UInt64.new(low, high))
        token:add(f.token_high, range(4, 4))
        token:add(f.token_low, range(14, 4))
        local version = tree:add(f.version, range(8, 1))
        packet.version = range(8, 1):uint()
        if packet.version ~= 1 then
            version:add_proto_expert_info(e.version, string.format("Version %u; this dissector knows version 1", packet.version))
        end
        if packet.kind == TOKEN or packet.kind == CONFIRM then
            tree:add(f.features, range(9, 1))
            add_reserved(tree, range(10, 1))
        else
            add_reserved(tree, range(9, 2))
        end
    end
    local kind = tree:add(f.packet_type, range(11, 1))
    if not TYPES[packet.kind] then kind:add_proto_expert_info(e.unknown_type) end
    if native and packet.kind >= OPEN and packet.kind <= MEET then kind:add_proto_expert_info(e.not_native) end
    tree:add(f.header_words, range(12, 1))
    tree:add(f.header_rest, range(12, 1))
    tree:add(f.flags, range(13, 1))
    if native then
        tree:add(f.window, range(14, 2))
        tree:add(f.checksum, range(16, 2))
    end
    tree:add(f.urgent, range(18, 2))
    tree:add(f.id, range(20, 8))
    packet.even_key, packet.even_id = even(range(20, 8))
    packet.from_client = range(27, 1):uint() % 2 == 0
    packet.id_is_zero = packet.even_key == "0000000000000000"
    if packet.source_port == 0 then tree:add_proto_expert_info(e.source_port_zero) end
end

-- One acknowledged RPC (10 bytes); an id of 0 has no meaning (W11).
local function add_acked(tree, range, packet)
    local id = tree:add(f.ack_id, range(0, 8))
    local port = tree:add(f.ack_port, range(8, 2))
    local key = even(range(0, 8))
    if key == "0000000000000000" then
        id:append_text(" (none)")
        port:append_text(" (none)")
    else
        table.insert(packet.acked, key)
        packet.acked_trees[#packet.acked] = { tree = tree, range = range }
    end
end

local function add_extension(tree, range)
    local at = 0
    while at < range:len() do
        if range:len() - at < 2 then
            if range(at, 1):uint() == 0 then return end
            tree:add(f.extension_type, range(at, 1)):add_proto_expert_info(e.bad_extension)
            return
        end
        local kind, length = range(at, 1):uint(), range(at + 1, 1):uint()
        local type_item = tree:add(f.extension_type, range(at, 1))
        tree:add(f.extension_length, range(at + 1, 1))
        at = at + 2
        if length > range:len() - at then
            type_item:add_proto_expert_info(e.bad_extension)
            if at < range:len() then add_unknown(tree, range(at)) end
            return
        end
        if kind == 1 and length == 4 then
            tree:add(f.deadline, range(at, 4))
        elseif kind == 2 and length == 25 then
            tree:add(f.trace_id, range(at, 16))
            tree:add(f.span_id, range(at + 16, 8))
            tree:add(f.trace_flags, range(at + 24, 1))
        elseif length > 0 then
            add_unknown(tree, range(at, length))
        end
        at = at + length
    end
end

-- The length of the segments of a packet that no device has cut (W40): nil for a packet of one segment, 0 if it is unknown.
local function segment_length(range, first)
    local payload = range:len() - DATA_LEN
    if math.floor(range(12, 1):uint() / 16) ~= 13 or range(48, 1):uint() ~= 0 or payload <= 504 then return nil end
    local bytes, total, found = range:bytes():raw(), range:len(), nil
    local message_length = range(28, 4):uint()
    local function offset_at(at)
        local a, c, d, g = bytes:byte(at + 1, at + 4)
        return ((a * 256 + c) * 256 + d) * 256 + g
    end
    local function fits(length)
        local at, expected = 52, first
        while total - at > length + 4 do
            at, expected = at + length + 4, expected + length
            if total - at <= 4 or offset_at(at) ~= expected then return false end
        end
        return expected + total - at - 4 <= message_length
    end
    for length = 500, math.min(9140, payload - 5) do
        if offset_at(52 + length + 4) == first + length and fits(length) then
            if found then return 0 end
            found = length
        end
    end
    return found
end

-- One piece of a message; `cut` if the capture does not have all of it.
local function add_piece(tree, range, offset, packet, cut)
    tree:add(f.payload, range)
    tree:add(f.payload_length, range, range:len()):set_generated()
    local past = offset + range:len() > packet.message_length
    if past and packet.message_length > 0 then
        tree:add_proto_expert_info(e.past_end,
            string.format("Bytes up to %u of a message of %u", offset + range:len(), packet.message_length))
    end
    if not past and not cut then
        table.insert(packet.segments, { offset = offset, bytes = range:bytes():raw() })
    end
end

local function add_data_flags(range, tree)
    local flags = tree:add(f.data_flags, range(49, 1))
    flags:add(f.data_incast, range(49, 1))
    flags:add(f.data_empty, range(49, 1))
    flags:add(f.data_unused, range(49, 1))
    flags:add(f.data_extended, range(49, 1))
    return range(49, 1):uint() >= 128
end

local function data(range, tree, packet, native, cut)
    tree:add(f.message_length, range(28, 4))
    tree:add(f.incoming, range(32, 4))
    add_acked(tree, range(36, 10), packet)
    tree:add(f.cutoff_version, range(46, 2))
    local retransmit = tree:add(f.retransmit, range(48, 1))
    local extended = add_data_flags(range, tree)
    packet.message_length, packet.incoming = range(28, 4):uint(), range(32, 4):uint()
    packet.retransmit, packet.segments = range(48, 1):uint() ~= 0, {}
    if packet.retransmit then retransmit:add_proto_expert_info(e.retransmission) end
    if packet.message_length == 0 then tree:add_proto_expert_info(e.zero_length) end
    tree:add(f.extension_words, range(50, 1))
    add_reserved(tree, range(51, 1))
    -- W8
    local explicit = tree:add(f.segment_offset, range(52, 4))
    local offset = range(52, 4):uint()
    local from_sequence = offset == USE_SEQUENCE
    if from_sequence then
        explicit:append_text(" (the sequence has the offset)")
        offset = range(4, 4):uint()
    end
    packet.offset = offset
    local offset_range = from_sequence and range(4, 4) or range(52, 4)
    tree:add(f.offset, offset_range, offset):set_generated()
    local start = DATA_LEN + (extended and 4 * range(50, 1):uint() or 0)
    if extended and start > range:len() then
        add_unknown(tree, range(DATA_LEN))
        if not cut then tree:add_proto_expert_info(e.too_short) end
        return
    elseif start > DATA_LEN then
        add_extension(tree, range(DATA_LEN, start - DATA_LEN))
    end
    if start == range:len() then
        if not cut then tree:add_proto_expert_info(e.empty_payload) end
        return
    end
    local length = native and segment_length(range, offset) or nil
    if length == nil then
        add_piece(tree, range(start), offset, packet, cut)
    elseif length == 0 then
        tree:add(f.payload, range(start)):add_proto_expert_info(e.unclear)
    else
        local at = start
        add_piece(tree, range(at, length), offset, packet, cut)
        at, offset = at + length, offset + length
        while at < range:len() do
            tree:add(f.segment_offset, range(at, 4))
            tree:add(f.offset, range(at, 4), offset):set_generated()
            local bytes = math.min(length, range:len() - at - 4)
            add_piece(tree, range(at + 4, bytes), offset, packet, cut)
            at, offset = at + 4 + bytes, offset + bytes
        end
    end
    packet.payload = range:len() - start - (length and 4 * (#packet.segments - 1) or 0)
end

-- The bodies of control packets: each adds its fields and returns where the packet ends.
local bodies = {}

bodies[GRANT] = function(range, tree, packet)
    tree:add(f.grant_offset, range(28, 4))
    packet.grant_offset = range(28, 4):uint()
    packet.priority = add_priority(tree, range(32, 1))
    if range:len() == 33 then return 33 end
    add_reserved(tree, range(33, 1))
    return 34
end

bodies[RESEND] = function(range, tree, packet)
    local item = tree:add(f.resend_offset, range(28, 4))
    local length = tree:add(f.resend_length, range(32, 4))
    packet.resend_offset, packet.resend_length = range(28, 4):uint(), range(32, 4):int()
    if packet.resend_length == -1 then length:append_text(" (all that was sent)") end
    if packet.resend_length < -1 then length:add_proto_expert_info(e.negative_length) end
    item:add_proto_expert_info(e.resend)
    -- That of the stripped module has no priority (W14).
    if range:len() == 36 then return 36 end
    packet.priority = add_priority(tree, range(36, 1))
    return 37
end

bodies[RPC_UNKNOWN] = function(range, tree, packet)
    packet.reason = 0
    local item = tree
    if range:len() > 28 then
        item = tree:add(f.reason, range(28, 1))
        packet.reason = range(28, 1):uint()
        if not REASONS[packet.reason] then item:add_proto_expert_info(e.unknown_reason) end
    end
    item:add_proto_expert_info(e.rpc_unknown, "RPC is not known: " .. (REASONS[packet.reason] or REASONS[0]))
    return math.min(range:len(), 29)
end

bodies[BUSY] = function(_, tree)
    tree:add_proto_expert_info(e.busy)
    return 28
end

bodies[CUTOFFS] = function(range, tree)
    for priority = 0, 7 do
        tree:add(f.cutoff, range(28 + 4 * priority, 4)):prepend_text("Priority " .. priority .. ": ")
    end
    tree:add(f.cutoffs_version, range(60, 2))
    return 62
end

bodies[FREEZE] = function(_, tree)
    tree:add_proto_expert_info(e.freeze)
    return 28
end

bodies[NEED_ACK] = function(_, tree)
    tree:add_proto_expert_info(e.need_ack)
    return 28
end

bodies[ACK] = function(range, tree, packet)
    tree:add(f.ack_count, range(28, 2))
    local count = math.min(range(28, 2):uint(), 5)
    for index = 0, count - 1 do add_acked(tree, range(30 + 10 * index, 10), packet) end
    if count < 5 then tree:add(f.ack_unused, range(30 + 10 * count, 50 - 10 * count)) end
    return 80
end

bodies[OPEN] = function(range, tree)
    tree:add(f.open_known, range(28, 8))
    add_reserved(tree, range(36, 12))
    return 48
end

bodies[TOKEN] = function(range, tree)
    tree:add(f.offered, range(28, 8))
    tree:add(f.code, range(36, 8))
    tree:add(f.issued, range(44, 4))
    return 48
end
bodies[CONFIRM] = bodies[TOKEN]

bodies[ABORT] = function(_, tree)
    tree:add_proto_expert_info(e.abort)
    return 28
end

bodies[MEET] = function(range, tree)
    tree:add(f.nonce, range(28, 16))
    tree:add(f.place, range(44, 8))
    return 52
end

-- What is shown -----------------------------------------------------------------------------------------------------------------

-- One line about a packet, for the column "Info" and the head of its tree.
local function summary(packet, result)
    local line = string.format("%s %u → %u", TYPES[packet.kind] or string.format("type 0x%02x", packet.kind),
        packet.source_port, packet.dest_port)
    if result.rpc then line = line .. string.format(", RPC %u", result.rpc.number) end
    local about = result.about_request and "request" or "response"
    if packet.kind == DATA and packet.payload then
        line = line .. string.format(", %s bytes %u-%u of %u", about, packet.offset, packet.offset + packet.payload - 1,
            packet.message_length)
        if packet.retransmit then line = line .. " [retransmission]" end
        if result.completes then line = line .. " [complete]" end
    elseif packet.kind == GRANT then
        line = line .. string.format(", %s up to %u at priority %u", about, packet.grant_offset, packet.priority)
    elseif packet.kind == RESEND and packet.resend_length == -1 then
        line = line .. string.format(", all of the %s", about)
    elseif packet.kind == RESEND then
        line = line .. string.format(", %d bytes of the %s from %u", packet.resend_length, about, packet.resend_offset)
    elseif packet.kind == RPC_UNKNOWN then
        line = line .. ": " .. (REASONS[packet.reason] or "unknown reason")
    end
    return line
end

-- The RPC and its two messages.
local function add_rpc(tree, range, packet, result)
    local rpc = result.rpc
    tree:add(f.rpc, range(20, 8), rpc.number):set_generated()
    tree:add(f.rpc_id, range(20, 8), packet.even_id):set_generated()
    tree:add(f.from_client, range(27, 1), packet.from_client):set_generated()
    tree:add(f.message, range(20, 8), result.about_request and "request" or "response"):set_generated()
    if rpc.request.first_in then tree:add(f.request_in, rpc.request.first_in):set_generated() end
    if rpc.response.done_in then tree:add(f.response_in, rpc.response.done_in):set_generated() end
    if result.elapsed then
        local seconds = math.floor(result.elapsed)
        local time = NSTime.new(seconds, math.floor((result.elapsed - seconds) * 1e9 + 0.5))
        tree:add(f.time, time):set_generated()
    end
    for index, acked in ipairs(packet.acked_trees) do
        local number = result.acked[index]
        if number then acked.tree:add(f.ack_rpc, acked.range, number):set_generated() end
    end
end

-- The message that this packet completes, or where it is complete. Returns the line of its envelope, if it has one.
local function add_message(tree, range, packet, result, pinfo, root, context)
    local message = result.message
    if not result.completes then
        if message.done_in then tree:add(f.reassembled_in, message.done_in):set_generated() end
        return
    end
    tree:add(f.reassembled_length, range, message.length):set_generated()
    local pieces = tree:add(f.fragment_count, range, #message.frames):set_generated()
    for _, frame in ipairs(message.frames) do pieces:add(f.fragment, frame):set_generated() end
    if not result.bytes then return end
    local complete = ByteArray.new(result.bytes, true):tvb("Homa message")
    tree:add(f.reassembled_data, complete()):set_generated()
    local server_port = packet.from_client and packet.dest_port or packet.source_port
    if by_server_port:get_dissector(server_port) then
        by_server_port:try(server_port, complete, pinfo, root)
        return
    end
    local call_key = string.format("%s %u %s %u", context.from, packet.source_port, context.to, packet.dest_port)
    return show_envelope(complete, root, result.rpc, packet.from_client, call_key)
end

-- Shows one packet; returns its line.
local function show(tvb, pinfo, root, context)
    local range, total = tvb(), tvb:reported_len()
    local cut = tvb:len() < total
    local tree = root:add(homa, range)
    if cut and not context.quoted then tree:add_proto_expert_info(e.cut) end
    if tvb:len() < COMMON_LEN then
        if not cut then tree:add_proto_expert_info(e.too_short, string.format("%u bytes; a header has %u", total, COMMON_LEN)) end
        add_unknown(tree, range)
        return "too short"
    end
    local packet = { kind = range(11, 1):uint(), acked = {}, acked_trees = {} }
    common_header(range, tree, packet, context.native)
    local shortest, complete = SHORTEST[packet.kind], false
    if not shortest or (packet.version and packet.version ~= 1 and packet.kind ~= RPC_UNKNOWN) then
        -- Nothing is known of other types and other versions (W30).
        if range:len() > COMMON_LEN then add_unknown(tree, range(COMMON_LEN)) end
    elseif range:len() < shortest then
        if not cut then
            tree:add_proto_expert_info(e.too_short, string.format("%u bytes; %s needs %u", total, TYPES[packet.kind], shortest))
        end
        if range:len() > COMMON_LEN then add_unknown(tree, range(COMMON_LEN)) end
    elseif packet.kind == DATA then
        data(range, tree, packet, context.native, cut)
        complete = true
    else
        local last = bodies[packet.kind](range, tree, packet)
        if last < range:len() then add_unknown(tree, range(last)) end
        complete = true
    end
    if not complete then
        tree:append_text(", malformed")
        return (TYPES[packet.kind] or string.format("type 0x%02x", packet.kind)) .. ", malformed"
    end
    local result, envelope = result_of(packet, context), nil
    if result.rpc then
        add_rpc(tree, range, packet, result)
        if packet.kind == DATA then envelope = add_message(tree, range, packet, result, pinfo, root, context) end
    end
    for _, it in ipairs(result.notes) do
        if it.text then
            tree:add_proto_expert_info(it.which, it.text)
        else
            tree:add_proto_expert_info(it.which)
        end
    end
    local line = summary(packet, result)
    tree:append_text(", " .. line)
    return envelope and line .. ", " .. envelope or line
end

-- The nodes and the place of a packet in the capture.
local function context_of(pinfo, native)
    local from, to = tostring(pinfo.src), tostring(pinfo.dst)
    if not native then
        from, to = from .. ":" .. pinfo.src_port, to .. ":" .. pinfo.dst_port
    end
    return {
        native = native, from = from, to = to, frame = pinfo.number, time = pinfo.rel_ts, position = 1,
        first_pass = not pinfo.visited,
        quoted = icmp() ~= nil or icmpv6() ~= nil,
    }
end

function homa.dissector(tvb, pinfo, tree)
    if tvb:len() == 0 then return 0 end
    pinfo.cols.protocol = "Homa"
    pinfo.cols.info = show(tvb, pinfo, tree, context_of(pinfo, true))
    return tvb:len()
end

-- UDP ---------------------------------------------------------------------------------------------------------------------------

-- Whether a Homa header begins here, as every Apus node sends it.
local function looks_like_packet(tvb, at)
    if tvb:len() < at + COMMON_LEN then return false end
    local kind = tvb(at + 11, 1):uint()
    return tvb(at, 2):uint() ~= 0 and kind >= DATA and kind <= MEET and tvb(at + 13, 1):uint() == FLAGS_HOMA
        and tvb(at + 18, 2):uint() == URGENT_HOMA
end

local function looks_like_compact(tvb, at)
    return tvb:len() >= at + 36 and tvb(at, 3):uint() == 4 and tvb(at + 3, 1):uint() > 0 and tvb(at + 22, 2):uint() == 0
        and tvb(at + 24, 4):uint() == 0
end

local SEALED, HINT = 2, 3
-- Of a sealed datagram: its clear bytes, its tag, the least that it holds, and the least words of a header behind a payload.
local CLEAR_LEN, TAG_LEN, SEALED_MIN, WORDS_MIN = 20, 16, 64, 14

-- The fault of a sealed datagram that begins at `at`, whose mark and version are right; nil if there is none (W43).
local function sealed_fault(tvb, at)
    local length = tvb:len() - at
    if length < SEALED_MIN then return "too short" end
    local marks, lane = tvb(at + 3, 1):uint(), math.floor(tvb(at + 12, 1):uint() / 16)
    local words = marks % 32
    if marks % 64 >= 32 then return "the reserved bit is set" end
    if words > 0 and words < WORDS_MIN then return "the header behind the payload is too short" end
    if words > 0 and length < CLEAR_LEN + TAG_LEN + 1 + 4 * words then return "too short" end
    if (lane % 2 == 1) ~= (words > 0) then return "the lane belongs to the other form" end
    if tvb(at + 4, 4):uint() == 0 and tvb(at + 8, 4):uint() == 0 then return "the path id is 0" end
    if tvb(at + 12, 4):uint() % 0x10000000 == 0 and tvb(at + 16, 4):uint() == 0 then return "the counter is 0" end
end

local function looks_like_sealed(tvb, at)
    return tvb:len() >= at + SEALED_MIN and tvb(at, 3):uint() == SEALED and not sealed_fault(tvb, at)
end

-- Several sealed datagrams of one length to one node are one before a device cuts them, and after they were joined. Their length: that
-- at which each begins with the same path id, or that of the whole.
local function sealed_length(tvb)
    local total, bytes = tvb:len(), tvb:raw()
    local mark, id = bytes:sub(1, 3), bytes:sub(5, 12)
    local function begins(at)
        return total - at >= SEALED_MIN and bytes:sub(at + 1, at + 3) == mark and bytes:sub(at + 5, at + 12) == id
    end
    local function begins_everywhere(length)
        for at = length, total - 1, length do
            if not begins(at) then return false end
        end
        return true
    end
    local from = SEALED_MIN + 5
    while true do
        local found = bytes:find(id, from, true)
        if not found then return total end
        if begins_everywhere(found - 5) then return found - 5 end
        from = found + 1
    end
end

local function looks_like_bundle(tvb, at)
    if looks_like_compact(tvb, at) then return true end
    return tvb:len() >= at + 6 + COMMON_LEN and tvb(at, 3):uint() == 1 and tvb(at + 3, 1):uint() > 0
        and looks_like_packet(tvb, at + 6)
end

-- Before a device cuts them, several datagrams of one length are one (UDP_SEGMENT), and after they were joined (UDP_GRO). Their
-- length: that at which every one of them begins with a header, or that of the whole.
local function datagram_length(tvb)
    local total = tvb:len()
    if total < 2 * COMMON_LEN or not looks_like_packet(tvb, 0) or tvb(11, 1):uint() ~= DATA then return total end
    local bytes, from = tvb:raw(), DATA_LEN + 1
    local function begins_everywhere(length)
        for at = length, total - 1, length do
            if not looks_like_packet(tvb, at) and not looks_like_bundle(tvb, at) then return false end
            -- To the same node: the token is the same.
            if looks_like_packet(tvb, at) and bytes:sub(at + 5, at + 9) ~= bytes:sub(5, 9) then return false end
        end
        return true
    end
    while true do
        -- Its urgent pointer is at bytes 18 and 19 of a header.
        local found = bytes:find("\185\125", from + 18, true)
        if not found then return total end
        local length = found - 1 - 18
        if length >= COMMON_LEN and begins_everywhere(length) then return length end
        from = found - 17
    end
end

-- The bytes of the DATA packet that an entry of a compact bundle stands for.
local function data_of_entry(head, body, envelope, id)
    return ByteArray.new(head(4, 4):bytes():tohex() .. envelope.token:sub(1, 8) .. "01000010e006" .. envelope.token:sub(9)
        .. "b97d" .. id:tohex() .. string.rep(string.format("%08x", head(8, 2):uint()), 2) .. string.rep("0", 20)
        .. envelope.cutoffs .. "00" .. head(10, 2):bytes():tohex() .. "00" .. "00000000" .. body)
end

-- The bytes of an ACK packet for `count` RPCs, at most six, from `id` on.
local function ack_of_entry(envelope, id, count)
    local entries = {}
    for number = 1, count - 1 do table.insert(entries, (id + UInt64.new(2 * number)):tohex() .. "0001") end
    local text = "00010001" .. envelope.token:sub(1, 8) .. "010000185006" .. envelope.token:sub(9) .. "b97d" .. id:tohex()
        .. string.format("%04x", count - 1) .. table.concat(entries)
    return ByteArray.new(text .. string.rep("0", 160 - #text))
end

-- Shows a compact bundle that begins at `at` (W53); returns where it ends. Its entries appear as the packets that they stand for.
local function compact(tvb, at, pinfo, tree, root, context, lines)
    local count = tvb(at + 3, 1):uint()
    if tvb:len() < at + 24 then
        tree:add_proto_expert_info(be.malformed, "Bundle ends too early")
        return tvb:len()
    end
    tree:add(b.token, tvb(at + 4, 8))
    tree:add(b.base_id, tvb(at + 12, 8))
    tree:add(b.cutoff_version, tvb(at + 20, 2))
    local base_id = tvb(at + 12, 8):uint64()
    local envelope = { token = tvb(at + 4, 8):bytes():tohex(), cutoffs = tvb(at + 20, 2):bytes():tohex() }
    local function packet(bytes)
        table.insert(lines, show(bytes:tvb("Packet"), pinfo, root, context))
        context.position = context.position + 1
    end
    at = at + 24
    for _ = 1, count do
        if tvb:len() < at + 12 then
            tree:add_proto_expert_info(be.malformed, "Bundle ends too early")
            if tvb:len() > at then tree:add(b.trailing, tvb(at)) end
            return tvb:len()
        end
        local head, offset = tvb(at, 12), tvb(at, 4):int()
        local id = offset < 0 and base_id - UInt64.new(-offset) or base_id + UInt64.new(offset)
        local length, is_acks = tvb(at + 8, 2):uint(), tvb(at + 4, 2):uint() == 0
        local words = tvb(at + 10, 1):uint() >= 128 and not is_acks and 4 * tvb(at + 11, 1):uint() or 0
        local whole = is_acks and 12 or 12 + words + length
        local item = tree:add(b.entry, tvb(at, math.min(whole, tvb:len() - at)))
        item:add(b.id_offset, tvb(at, 4))
        if length == 0 or is_acks and length > 255 then
            item:add_proto_expert_info(be.malformed, "Entry of no bytes, or of too many acknowledgements")
            return tvb:len()
        elseif is_acks then
            item:add(b.acks, tvb(at + 8, 2))
            for first = 0, length - 1, 6 do
                packet(ack_of_entry(envelope, id + UInt64.new(2 * first), math.min(6, length - first)))
            end
        elseif tvb:len() < at + whole then
            item:add_proto_expert_info(be.malformed, "Bundle ends too early")
            return tvb:len()
        else
            packet(data_of_entry(head, tvb(at + 12, words + length):bytes():tohex(), envelope, id))
        end
        at = at + whole
    end
    return at
end

-- Shows a bundle that begins at `at`; returns where it ends. Packets before an error are valid (W29).
local function bundle(tvb, at, pinfo, tree, root, context, lines)
    tree:add(b.mark, tvb(at, 2))
    if tvb:len() < at + 4 then
        tree:add_proto_expert_info(be.malformed, "Bundle ends too early")
        if tvb:len() > at + 2 then tree:add(b.trailing, tvb(at + 2)) end
        return tvb:len()
    end
    local version = tree:add(b.version, tvb(at + 2, 1))
    local count_item = tree:add(b.count, tvb(at + 3, 1))
    if tvb(at + 2, 1):uint() == 4 and tvb(at + 3, 1):uint() > 0 then
        return compact(tvb, at, pinfo, tree, root, context, lines)
    end
    if tvb(at + 2, 1):uint() ~= 1 then
        version:add_proto_expert_info(be.malformed, "Bundle of unknown version")
        if tvb:len() > at + 4 then tree:add(b.trailing, tvb(at + 4)) end
        return tvb:len()
    end
    local count = tvb(at + 3, 1):uint()
    if count == 0 then count_item:add_proto_expert_info(be.malformed, "Bundle of no packets") end
    at = at + 4
    for _ = 1, count do
        if tvb:len() < at + 2 then
            tree:add_proto_expert_info(be.malformed, "Bundle ends too early")
            if tvb:len() > at then tree:add(b.trailing, tvb(at)) end
            return tvb:len()
        end
        local length = tvb(at, 2):uint()
        local item = tree:add(b.length, tvb(at, 2))
        at = at + 2
        if length == 0 then
            item:add_proto_expert_info(be.malformed, "Packet of no bytes")
        elseif tvb:len() < at + length then
            item:add_proto_expert_info(be.malformed, "Bundle ends too early")
        elseif length >= 2 and tvb(at, 2):uint() == 0 then
            item:add_proto_expert_info(be.malformed, "Bundle within a bundle")
        else
            table.insert(lines, show(tvb(at, length):tvb(), pinfo, root, context))
            context.position = context.position + 1
            at = at + length
            length = nil
        end
        if length then
            if tvb:len() > at then tree:add(b.trailing, tvb(at)) end
            return tvb:len()
        end
    end
    return at
end

-- Sealed datagrams ---------------------------------------------------------------------------------------------------------------

-- Keys by path id and the two bits of the epoch, in hexadecimal digits, and the place in the key log up to which it was read.
local keys, keys_read = {}, 0

local SUITES = GcryptCipher and {
    { length = 32, algorithm = GCRY_CIPHER_AES128 or GCRY_CIPHER_AES, mode = GCRY_CIPHER_MODE_GCM },
    { length = 64, algorithm = GCRY_CIPHER_AES256, mode = GCRY_CIPHER_MODE_GCM },
    { length = 64, algorithm = GCRY_CIPHER_CHACHA20, mode = GCRY_CIPHER_MODE_POLY1305 },
} or {}

local function key_log()
    local path = apus.prefs.keylog
    if path ~= "" then return path end
    return os and os.getenv and os.getenv("APUS_KEYLOG") or ""
end

-- Reads the lines that were added to the key log. A line without an end is not complete yet.
local function read_keys()
    local path = key_log()
    local file = path ~= "" and io.open(path, "rb")
    if not file then return end
    file:seek("set", keys_read)
    local text = file:read("*a") or ""
    file:close()
    local last = 0
    for line, after in text:gmatch("([^\n]*)\n()") do
        last = after - 1
        local id, epoch, suite, key, iv = line:lower():match("^apus2 (%x+) (%x+) (%x+) (%x+) (%x+)%s*$")
        if id and #id == 16 and #epoch <= 8 and #iv == 24 then
            epoch = tonumber(epoch, 16)
            local place = id .. epoch % 4
            keys[place] = keys[place] or {}
            table.insert(keys[place], { epoch = epoch, suite = tonumber(suite, 16), key = key, iv = iv })
        end
    end
    keys_read = keys_read + last
end

function apus.init()
    keys, keys_read = {}, 0
    read_keys()
end

-- The nonce of a datagram, in hexadecimal digits: its clear bytes 0 to 3 and 12 to 19, XOR the vector of the key (W44).
local function nonce(clear, iv)
    local bound, digits = clear:sub(1, 8) .. clear:sub(25, 40), {}
    for at = 1, 24 do
        local a, b = tonumber(bound:sub(at, at), 16), tonumber(iv:sub(at, at), 16)
        local xor = 0
        for bit = 0, 3 do
            if math.floor(a / 2 ^ bit) % 2 ~= math.floor(b / 2 ^ bit) % 2 then xor = xor + 2 ^ bit end
        end
        digits[at] = string.format("%x", xor)
    end
    return table.concat(digits)
end

-- The content that a key opens; nil if the tag does not fit, or the suite is not there.
local function open_with(key, datagram, clear)
    local suite = SUITES[key.suite]
    if not suite or not suite.algorithm or not suite.mode or #key.key ~= suite.length then return nil end
    local ok, content = pcall(function()
        local cipher = GcryptCipher.open(suite.algorithm, suite.mode, 0)
        cipher:setkey(ByteArray.new(key.key))
        cipher:setiv(ByteArray.new(nonce(clear, key.iv)))
        local sealed = datagram:len() - CLEAR_LEN - TAG_LEN
        local content = cipher:decrypt(nil, datagram(CLEAR_LEN, sealed):bytes())
        local fits = cipher:checktag(datagram(CLEAR_LEN + sealed, TAG_LEN):bytes())
        return fits == 0 and content or nil
    end)
    return ok and content or nil
end

-- The content of a sealed datagram and the key that opens it; nil without such a key.
local function open_sealed(datagram, pinfo)
    local clear = datagram(0, CLEAR_LEN):bytes():tohex():lower()
    local place = clear:sub(9, 24) .. math.floor(datagram(3, 1):uint() / 64)
    for round = 1, 2 do
        for _, key in ipairs(keys[place] or {}) do
            local content = open_with(key, datagram, clear)
            if content then return content, key end
        end
        -- While packets are captured, the key log grows.
        if round == 1 and not pinfo.visited then read_keys() end
    end
end

-- The clear fields that sealed datagrams and hints have.
local function clear_fields(tvb, tree)
    tree:add(b.mark, tvb(0, 2))
    tree:add(b.sealed_version, tvb(2, 1))
    if tvb:len() < CLEAR_LEN then return end
    for _, field in ipairs({ b.sealed_epoch, b.sealed_reserved, b.sealed_words }) do tree:add(field, tvb(3, 1)) end
    tree:add(b.sealed_path, tvb(4, 8)):add(b.sealed_shard, tvb(4, 1))
    tree:add(b.sealed_lane, tvb(12, 1))
    tree:add(b.sealed_priority, tvb(12, 1))
    local counter = UInt64.new(tvb(16, 4):uint(), tvb(12, 4):uint() % 0x10000000)
    tree:add(b.sealed_counter, tvb(12, 8), counter)
    return string.format("path %s, number %u:%s", tvb(4, 8):bytes():tohex():lower(), math.floor(tvb(12, 1):uint() / 16),
        tostring(counter))
end

local function hint(tvb, tree, lines)
    local text = clear_fields(tvb, tree)
    if tvb:len() ~= CLEAR_LEN then
        tree:add_proto_expert_info(be.malformed_sealed, "Hint of another length")
        if tvb:len() > CLEAR_LEN then tree:add(b.trailing, tvb(CLEAR_LEN)) end
    else
        tree:add_proto_expert_info(be.hint)
    end
    table.insert(lines, "hint, " .. (text or "malformed"))
end

-- Shows a sealed datagram, and its packets if a key opens it.
local function sealed(tvb, cut, pinfo, tree, root, context, lines)
    local text = clear_fields(tvb, tree)
    local fault = sealed_fault(tvb, 0)
    if cut or fault then
        if fault and not cut then tree:add_proto_expert_info(be.malformed_sealed, "Malformed sealed datagram: " .. fault) end
        if tvb:len() > CLEAR_LEN then tree:add(b.sealed_content, tvb(CLEAR_LEN)) end
        table.insert(lines, "sealed, " .. (text or "malformed"))
        return
    end
    local length = tvb:len() - CLEAR_LEN - TAG_LEN
    tree:add(b.sealed_content, tvb(CLEAR_LEN, length))
    tree:add(b.sealed_tag, tvb(CLEAR_LEN + length, TAG_LEN))
    local content, key
    if key_log() ~= "" then
        if not GcryptCipher then
            tree:add_proto_expert_info(be.no_cipher)
        else
            content, key = open_sealed(tvb, pinfo)
            if not content then tree:add_proto_expert_info(be.not_opened) end
        end
    end
    if not content then
        table.insert(lines, string.format("sealed, %s, %u bytes", text, length))
        return
    end
    tree:add(b.sealed_key_epoch, tvb(3, 1), key.epoch):set_generated()
    local header = 4 * (tvb(3, 1):uint() % 32)
    if header > 0 then
        local payload = content:subset(0, length - header)
        content = content:subset(length - header, header)
        content:append(payload)
    end
    local opened = content:tvb("Opened datagram")
    if opened(0, 2):uint() == 0 then
        bundle(opened, 0, pinfo, tree, root, context, lines)
    else
        table.insert(lines, show(opened, pinfo, root, context))
        context.position = context.position + 1
    end
end

function apus.dissector(tvb, pinfo, root)
    if tvb:len() == 0 then return 0 end
    pinfo.cols.protocol = "Apus"
    local tree = root:add(apus, tvb())
    local context, lines = context_of(pinfo, false), {}
    local total = tvb:len()
    local length = tvb:len() == tvb:reported_len() and datagram_length(tvb) or total
    local at, begun = 0, 0
    while at < total do
        local rest = total - at
        begun = begun + 1
        local version = rest >= 3 and tvb(at, 2):uint() == 0 and tvb(at + 2, 1):uint()
        if version == SEALED or version == HINT then
            local cut = tvb:len() < tvb:reported_len()
            if begun == 1 and version == SEALED and not cut and not sealed_fault(tvb, 0) then length = sealed_length(tvb) end
            local size = math.min(rest, length)
            local part = (at == 0 and size == total) and tvb or tvb(at, size):tvb()
            if version == HINT then hint(part, tree, lines) else sealed(part, cut, pinfo, tree, root, context, lines) end
            at = at + size
        elseif rest >= 2 and tvb(at, 2):uint() == 0 then
            local last = bundle(tvb, at, pinfo, tree, root, context, lines)
            -- What follows a bundle is refused (W28), unless it is another datagram that was not cut off yet.
            if begun == 1 and last < total then
                length = last
                if not looks_like_bundle(tvb, last) and not looks_like_packet(tvb, last) then
                    tree:add(b.trailing, tvb(last)):add_proto_expert_info(be.malformed,
                        string.format("%u bytes after the last packet", total - last))
                    break
                end
            end
            at = last
        else
            local size = math.min(rest, length)
            local part = (at == 0 and size == total) and tvb or tvb(at, size):tvb()
            table.insert(lines, show(part, pinfo, root, context))
            context.position = context.position + 1
            at = at + size
        end
    end
    if begun > 1 then
        tree:add(b.segment, tvb(), length):set_generated()
        tree:add_proto_expert_info(be.segmented)
    end
    tree:append_text(#lines == 1 and ", 1 packet" or string.format(", %u packets", #lines))
    pinfo.cols.info = table.concat(lines, " | ")
    return tvb:len()
end

-- Datagrams of other ports are recognised by what every Apus node sends; from then on all of the conversation is Apus.
apus:register_heuristic("udp", function(tvb, pinfo, tree)
    if not looks_like_packet(tvb, 0) and not looks_like_bundle(tvb, 0) and not looks_like_sealed(tvb, 0) then return false end
    pinfo.conversation = apus
    apus.dissector(tvb, pinfo, tree)
    return true
end)

local udp_ports, registered = DissectorTable.get("udp.port"), nil

local function register_ports()
    local ports = tostring(apus.prefs.ports)
    if registered and registered ~= "" then udp_ports:remove(registered, apus) end
    if ports ~= "" then udp_ports:add(ports, apus) end
    registered = ports
end

apus.prefs_changed = register_ports
register_ports()
DissectorTable.get("ip.proto"):add(IP_PROTOCOL, homa)
