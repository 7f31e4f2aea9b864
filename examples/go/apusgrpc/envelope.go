package apusgrpc

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
)

// The envelope of services, docs/rpc-wire.md, as far as calls without streams need it. The rules are cited as E1, E2, …

const (
	mark     = 0xA1 // E1: the mark, and version 1
	headMax  = 16 << 10
	pairsMax = 128
	frameMax = 4 << 20

	frameHead = 5 // bytes of gRPC before a message
)

// Kinds of requests, and a flag.
const (
	kindOpen   = 1
	kindPull   = 3
	kindHold   = 4
	requestEnd = 1
)

// Flags of responses.
const (
	responseHead        = 1 << 0
	responseEnd         = 1 << 1
	responseMore        = 1 << 2
	responseNotExecuted = 1 << 3
)

// names is the table of E9.
var names = []string{
	"content-type", "content-encoding", "accept-encoding", "user-agent",
	"authorization", "date", "server", "grpc-encoding",
	"grpc-accept-encoding", "grpc-timeout", "grpc-message-type", "grpc-previous-rpc-attempts",
	"grpc-retry-pushback-ms", "grpc-trace-bin", "grpc-tags-bin", "grpc-server-stats-bin",
	"endpoint-load-metrics-bin", "traceparent", "tracestate", "baggage",
	"b3", "x-request-id", "x-correlation-id", "x-forwarded-for",
	"x-forwarded-proto", "x-real-ip", "x-api-key", "x-tenant-id",
	"x-user-id", "x-session-id", "idempotency-key", "connect-protocol-version",
}

// refusal is the reason why a message is refused, with the code of E15.
type refusal struct {
	code codes.Code
	text string
}

func (r *refusal) Error() string { return r.text }

func refuse(code codes.Code, format string, values ...any) error {
	return &refusal{code, fmt.Sprintf(format, values...)}
}

// request is the OPEN of a call without streams.
type request struct {
	path     string
	metadata metadata.MD
	body     []byte
}

// response is the end of a call, or of its first part if more follows.
type response struct {
	metadata    metadata.MD
	more        bool
	notExecuted bool
	code        codes.Code
	message     string
	details     []byte
	trailers    metadata.MD
	body        []byte
}

func (r *request) encode(id uint64) ([]byte, error) {
	bytes := []byte{mark, kindOpen, requestEnd}
	bytes = binary.BigEndian.AppendUint64(bytes, id)
	bytes = appendString(bytes, r.path)
	bytes, err := appendPairs(bytes, r.metadata)
	return append(bytes, r.body...), err
}

// encodeHold is the request that stands for a call whose response comes in parts.
func encodeHold(id uint64) []byte {
	return binary.BigEndian.AppendUint64([]byte{mark, kindHold, 0}, id)
}

// encodePull is the request for the next part of a response.
func encodePull(id, seq uint64) []byte {
	return binary.AppendUvarint(binary.BigEndian.AppendUint64([]byte{mark, kindPull, 0}, id), seq)
}

func decodeRequest(bytes []byte) (*request, error) {
	in := newReader(bytes)
	in.mark()
	if kind := in.byte(); in.err == nil && kind != kindOpen {
		return nil, refuse(codes.Unimplemented, "unknown_kind: this server has no calls with streams, and got a message of kind %d", kind)
	}
	flags := in.byte()
	in.take(8) // the id names a call with streams
	found := &request{path: string(in.bytes())}
	if in.err == nil && !isPath(found.path) {
		return nil, refuse(codes.Internal, "bad_path: %q is not /SERVICE/METHOD", found.path)
	}
	found.metadata = in.pairs()
	found.body = in.rest
	if in.err == nil && flags&requestEnd == 0 { // E11
		in.err = refuse(codes.Unimplemented, "this server has no calls with streams")
	}
	return found, in.err
}

func (r *response) encode() ([]byte, error) {
	flags := byte(responseEnd)
	if len(r.metadata) > 0 {
		flags |= responseHead
	}
	if r.notExecuted {
		flags |= responseNotExecuted
	}
	bytes := []byte{mark, flags}
	var err error
	if len(r.metadata) > 0 {
		if bytes, err = appendPairs(bytes, r.metadata); err != nil {
			return nil, err
		}
	}
	bytes = binary.AppendUvarint(bytes, uint64(r.code))
	bytes = appendString(bytes, r.message)
	bytes = appendString(bytes, string(r.details))
	bytes, err = appendPairs(bytes, r.trailers)
	return append(bytes, r.body...), err
}

func decodeResponse(bytes []byte) (*response, error) {
	in := newReader(bytes)
	in.mark()
	flags := in.byte()
	found := &response{more: flags&responseMore != 0}
	ends := flags&responseEnd != 0
	if in.err == nil && found.more && ends { // E4
		return nil, refuse(codes.Internal, "bad_flags: MORE together with END")
	}
	if flags&responseHead != 0 {
		found.metadata = in.pairs()
	}
	if ends {
		found.notExecuted = flags&responseNotExecuted != 0
		found.code = codeOf(in.varint())
		message := in.bytes()
		found.details = in.bytes()
		found.trailers = in.pairs()
		found.message = strings.ToValidUTF8(string(message), "")
		if in.err == nil && found.message != string(message) { // E13
			return nil, refuse(codes.Internal, "bad_message: the message of the status is not UTF-8")
		}
	}
	found.body = in.rest
	return found, in.err
}

// codeOf is E13: unknown codes are UNKNOWN.
func codeOf(number uint64) codes.Code {
	if number > uint64(codes.Unauthenticated) {
		return codes.Unknown
	}
	return codes.Code(number)
}

func isPath(path string) bool { // E6
	service, method, ok := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	plain := strings.IndexFunc(path, func(c rune) bool { return c <= ' ' || c > '~' }) < 0
	return ok && plain && strings.HasPrefix(path, "/") && service != "" && method != "" && !strings.Contains(method, "/")
}

func isName(name string) bool { // E9
	return name != "" && strings.IndexFunc(name, func(c rune) bool {
		return !(c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || strings.ContainsRune("-_.", c))
	}) < 0
}

func isValue(name, value string) bool { // E10
	return strings.HasSuffix(name, "-bin") || strings.IndexFunc(value, func(c rune) bool { return c < ' ' || c > '~' }) < 0
}

func appendString(bytes []byte, text string) []byte {
	bytes = binary.AppendUvarint(bytes, uint64(len(text)))
	return append(bytes, text...)
}

func appendPairs(bytes []byte, pairs metadata.MD) ([]byte, error) {
	count := 0
	for _, values := range pairs {
		count += len(values)
	}
	bytes = binary.AppendUvarint(bytes, uint64(count))
	for name, values := range pairs {
		for _, value := range values {
			if !isName(name) || !isValue(name, value) {
				return nil, refuse(codes.InvalidArgument, "the metadata '%s' has characters that are not allowed", name)
			}
			if index := slices.Index(names, name); index >= 0 {
				bytes = append(bytes, 0, byte(index))
			} else {
				bytes = appendString(bytes, name)
			}
			bytes = appendString(bytes, value)
		}
	}
	return bytes, nil
}

// reader reads the head of a message. After an error it returns zeros.
type reader struct {
	rest []byte // of the message
	head int    // bytes that the head may still have
	err  error
}

func newReader(bytes []byte) *reader { return &reader{rest: bytes, head: headMax} }

func (r *reader) fail(code codes.Code, format string, values ...any) {
	if r.err == nil {
		r.err = refuse(code, format, values...)
	}
}

func (r *reader) take(length uint64) []byte {
	switch {
	case r.err != nil:
	case length > uint64(r.head) && uint64(len(r.rest)) > uint64(r.head): // E5
		r.fail(codes.ResourceExhausted, "head_too_long: the head of the message is longer than %d bytes", headMax)
	case length > uint64(len(r.rest)): // E3
		r.fail(codes.Internal, "too_short: the message ends within its envelope")
	default:
		taken := r.rest[:length]
		r.rest, r.head = r.rest[length:], r.head-int(length)
		return taken
	}
	return nil
}

func (r *reader) byte() byte {
	if taken := r.take(1); r.err == nil {
		return taken[0]
	}
	return 0
}

func (r *reader) mark() { // E1
	if len(r.rest) == 0 || r.rest[0]>>4 != mark>>4 {
		r.fail(codes.Unimplemented, "not_an_envelope: the message has no envelope")
	} else if r.byte() != mark {
		r.fail(codes.Unimplemented, "other_version: the envelope has another version than %d", mark&0xF)
	}
}

func (r *reader) varint() uint64 { // E2
	var value uint64
	for shift := 0; ; shift += 7 {
		last := r.byte()
		if r.err != nil {
			return 0
		}
		if shift == 63 && last > 1 || shift > 0 && last == 0 {
			r.fail(codes.Internal, "bad_varint: a number has more bytes than it needs, or more than 64 bits")
			return 0
		}
		value |= uint64(last&0x7F) << shift
		if last < 0x80 {
			return value
		}
	}
}

func (r *reader) bytes() []byte { return r.take(r.varint()) }

func (r *reader) pairs() metadata.MD {
	count := r.varint()
	if count > pairsMax { // E8
		r.fail(codes.ResourceExhausted, "too_many_pairs: %d pairs of metadata, and at most %d are accepted", count, pairsMax)
	}
	pairs := metadata.MD{}
	for ; count > 0 && r.err == nil; count-- {
		name, value := r.name(), string(r.bytes())
		if r.err == nil && !isValue(name, value) {
			r.fail(codes.Internal, "bad_value: the value of '%s' has characters that are not allowed", name)
		}
		pairs[name] = append(pairs[name], value)
	}
	return pairs
}

func (r *reader) name() string { // E9
	length := r.varint()
	if length == 0 {
		index := r.byte()
		if int(index) >= len(names) {
			r.fail(codes.Internal, "unknown_name: the table of names has no %d", index)
			return ""
		}
		return names[index]
	}
	name := string(r.take(length))
	if r.err == nil && !isName(name) {
		r.fail(codes.Internal, "bad_name: %q is no name of metadata", name)
	}
	return name
}

// frame puts gRPC's head before a message: it is not compressed, and has a length.
func frame(message []byte) []byte {
	framed := make([]byte, frameHead, frameHead+len(message))
	binary.BigEndian.PutUint32(framed[1:], uint32(len(message)))
	return append(framed, message...)
}

// unframe returns the only message of a body.
func unframe(body []byte) ([]byte, error) {
	switch {
	case len(body) < frameHead || uint64(binary.BigEndian.Uint32(body[1:])) != uint64(len(body)-frameHead):
		return nil, refuse(codes.Internal, "the body has %d bytes, which are not one message of gRPC", len(body))
	case body[0] != 0:
		return nil, refuse(codes.Unimplemented, "the message is compressed")
	case len(body)-frameHead > frameMax: // E17
		return nil, refuse(codes.ResourceExhausted, "frame_too_long: a message of %d bytes, and at most %d are accepted", len(body)-frameHead, frameMax)
	}
	return body[frameHead:], nil
}
