// Package apusgrpc carries calls of gRPC over Apus: ClientConn is in place of grpc.ClientConn for the clients that protoc-gen-go-grpc makes,
// and Server in place of grpc.Server for its services. Methods without streams only: libapus has no functions of the envelope, so this package
// has it in Go. It is an example, without a promise.
package apusgrpc

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync/atomic"

	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/apus-rpc/apus/examples/go/apus"
)

// ClientConn makes calls to one server. Any goroutine may use it.
type ClientConn struct {
	node *apus.Node
	to   apus.Address
	ids  atomic.Uint64
}

var _ grpc.ClientConnInterface = (*ClientConn)(nil)

// NewClient returns the clients' side of a server, apus://HOST:PORT, on a node.
func NewClient(node *apus.Node, target string) (*ClientConn, error) {
	to, err := node.Resolve(strings.TrimPrefix(target, "apus://"))
	if err != nil {
		return nil, err
	}
	client := &ClientConn{node: node, to: to}
	client.ids.Store(rand.Uint64()) // E7
	return client, nil
}

// Invoke makes a call of a method without streams.
func (c *ClientConn) Invoke(ctx context.Context, method string, args, reply any, options ...grpc.CallOption) error {
	message, err := marshal(args)
	if err != nil {
		return err
	}
	sent, _ := metadata.FromOutgoingContext(ctx)
	open := request{path: method, metadata: sent, body: frame(message)}
	id := c.ids.Add(1)
	body, err := open.encode(id)
	if err != nil {
		return toStatus(err)
	}
	for _, option := range options {
		if err := refuseOption(option); err != nil {
			return err
		}
	}
	received, err := c.exchange(ctx, body)
	if err == nil && received.more {
		received, err = c.pull(ctx, id, received)
	}
	if err != nil {
		return toStatus(err)
	}
	for _, option := range options {
		switch option := option.(type) {
		case grpc.HeaderCallOption:
			*option.HeaderAddr = received.metadata
		case grpc.TrailerCallOption:
			*option.TrailerAddr = received.trailers
		}
	}
	return received.into(reply)
}

// exchange sends a message of a call, and returns the answer.
func (c *ClientConn) exchange(ctx context.Context, message []byte) (*response, error) {
	answer, err := c.node.Call(ctx, c.to, message)
	if err != nil {
		return nil, err
	}
	return decodeResponse(answer) // E16
}

// pull takes the rest of a response that does not fit in one message (E22).
func (c *ClientConn) pull(ctx context.Context, id uint64, first *response) (*response, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the HOLD
	go c.node.Call(ctx, c.to, encodeHold(id))
	body := first.body
	for seq := uint64(1); ; seq++ {
		part, err := c.exchange(ctx, encodePull(id, seq))
		if err != nil {
			return nil, err
		}
		body = append(body, part.body...)
		if len(body) > frameHead+frameMax { // E17
			return nil, refuse(codes.ResourceExhausted, "frame_too_long: a message of more than %d bytes", frameMax)
		}
		if !part.more {
			part.metadata, part.body = first.metadata, body
			return part, nil
		}
	}
}

// NewStream refuses calls with streams.
func (c *ClientConn) NewStream(_ context.Context, _ *grpc.StreamDesc, method string, _ ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, status.Errorf(codes.Unimplemented, "%s has streams, which the package apusgrpc does not carry; over TCP it can be called", method)
}

// into reads the message of a response, or returns its error.
func (r *response) into(reply any) error {
	if r.code != codes.OK {
		details := &spb.Status{}
		if len(r.details) > 0 && proto.Unmarshal(r.details, details) == nil && codes.Code(details.Code) == r.code {
			return status.ErrorProto(details)
		}
		return status.Error(r.code, r.message)
	}
	message, err := unframe(r.body)
	if err != nil {
		return toStatus(err)
	}
	return unmarshal(message, reply)
}

// refuseOption returns an error for options that change the meaning of a call and that have no place here.
func refuseOption(option grpc.CallOption) error {
	switch option.(type) {
	case grpc.CompressorCallOption, grpc.PerRPCCredsCallOption, grpc.ForceCodecCallOption, grpc.CustomCodecCallOption:
		return status.Errorf(codes.Unimplemented, "the package apusgrpc has no %T", option)
	}
	return nil
}

func marshal(message any) ([]byte, error) {
	if message, ok := message.(proto.Message); ok {
		bytes, err := proto.Marshal(message)
		if err != nil {
			return nil, status.Error(codes.Internal, err.Error())
		}
		return bytes, nil
	}
	return nil, status.Errorf(codes.Internal, "%T is no message of protobuf", message)
}

func unmarshal(bytes []byte, message any) error {
	if message, ok := message.(proto.Message); ok {
		if err := proto.Unmarshal(bytes, message); err != nil {
			return status.Error(codes.Internal, err.Error())
		}
		return nil
	}
	return status.Errorf(codes.Internal, "%T is no message of protobuf", message)
}

// MayHaveExecuted returns whether the request of a call that ended with an error may have been executed.
func MayHaveExecuted(err error) bool {
	var failed *apus.Error
	return !errors.As(err, &failed) || failed.MayHaveExecuted
}

// transportError is an error of Apus as a status of gRPC.
type transportError struct {
	status *status.Status
	cause  error
}

func (e *transportError) Error() string              { return e.status.Err().Error() }
func (e *transportError) Unwrap() error              { return e.cause }
func (e *transportError) GRPCStatus() *status.Status { return e.status }

func toStatus(err error) error {
	var refused *refusal
	var failed *apus.Error
	code := codes.Unknown
	switch {
	case errors.As(err, &refused):
		return status.Error(refused.code, refused.text)
	case errors.As(err, &failed):
		code = codeOfCall(failed.Code)
	case errors.Is(err, context.DeadlineExceeded):
		code = codes.DeadlineExceeded
	case errors.Is(err, context.Canceled):
		code = codes.Canceled
	}
	return &transportError{status.New(code, err.Error()), err}
}

// codeOfCall is the table of apus-rpc.
func codeOfCall(code apus.Code) codes.Code {
	switch code {
	case apus.ErrDeadline:
		return codes.DeadlineExceeded
	case apus.ErrCancelled:
		return codes.Canceled
	case apus.ErrTooManyCalls, apus.ErrTooManyPeers, apus.ErrOverBudget, apus.ErrOverloaded, apus.ErrTooLong, apus.ErrAnswerTooLong,
		apus.ErrTooLongThere:
		return codes.ResourceExhausted
	case apus.ErrNoSuchPort, apus.ErrNotSent, apus.ErrNoEngine, apus.ErrPeerTimeout, apus.ErrUnreachable, apus.ErrMayHaveRun,
		apus.ErrEngineEnded, apus.ErrHandshake, apus.ErrClosed:
		return codes.Unavailable
	case apus.ErrOtherVersion, apus.ErrNoIdentity, apus.ErrPlainOnly:
		return codes.FailedPrecondition
	case apus.ErrWrongPeer, apus.ErrSealedOnly:
		return codes.Unauthenticated
	case apus.ErrForbidden:
		return codes.PermissionDenied
	case apus.ErrAddress, apus.ErrInvalid:
		return codes.InvalidArgument
	case apus.ErrPanicked, apus.ErrPanic:
		return codes.Internal
	}
	return codes.Unknown
}
