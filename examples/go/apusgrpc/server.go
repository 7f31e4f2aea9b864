package apusgrpc

import (
	"context"
	"maps"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// Server has the services of a port, for apus.Node.Bind: node.Bind(4000, server.Handle).
type Server struct{ methods map[string]method }

type method struct {
	service any
	desc    *grpc.MethodDesc // nil: it has streams
}

var _ grpc.ServiceRegistrar = (*Server)(nil)

// RegisterService adds a service, before the server's port is bound. Generated code calls it.
func (s *Server) RegisterService(desc *grpc.ServiceDesc, service any) {
	if s.methods == nil {
		s.methods = make(map[string]method)
	}
	for i := range desc.Methods {
		s.methods["/"+desc.ServiceName+"/"+desc.Methods[i].MethodName] = method{service, &desc.Methods[i]}
	}
	for _, stream := range desc.Streams {
		s.methods["/"+desc.ServiceName+"/"+stream.StreamName] = method{service, nil}
	}
}

// Handle answers a request.
func (s *Server) Handle(ctx context.Context, bytes []byte) ([]byte, error) {
	answer, err := s.respond(ctx, bytes).encode()
	if err != nil {
		return (&response{code: codes.Internal, message: err.Error()}).encode()
	}
	return answer, nil
}

func (s *Server) respond(ctx context.Context, bytes []byte) *response {
	open, err := decodeRequest(bytes)
	if err != nil {
		return refused(err)
	}
	called, ok := s.methods[open.path]
	if !ok {
		return refused(refuse(codes.Unimplemented, "%s: no such method", open.path))
	}
	if called.desc == nil {
		return refused(refuse(codes.Unimplemented, "%s has streams, which the package apusgrpc does not carry", open.path))
	}
	message, err := unframe(open.body)
	if err != nil {
		return refused(err)
	}
	sent := &sentMetadata{method: open.path}
	ctx = grpc.NewContextWithServerTransportStream(metadata.NewIncomingContext(ctx, open.metadata), sent)
	reply, err := called.desc.Handler(called.service, ctx, func(into any) error { return unmarshal(message, into) }, nil)
	var body []byte
	if err == nil {
		body, err = marshal(reply)
	}
	return sent.response(body, err)
}

// refused answers a request that no handler has begun with.
func refused(err error) *response {
	found := toStatus(err)
	return &response{notExecuted: true, code: status.Code(found), message: status.Convert(found).Message()} // E14
}

// sentMetadata is what grpc.SetHeader and grpc.SetTrailer of a handler write to.
type sentMetadata struct {
	method   string
	mu       sync.Mutex
	header   metadata.MD
	trailers metadata.MD
}

var _ grpc.ServerTransportStream = (*sentMetadata)(nil)

func (s *sentMetadata) Method() string { return s.method }

func (s *sentMetadata) SetHeader(md metadata.MD) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.header = metadata.Join(s.header, md)
	return nil
}

// SendHeader sends nothing yet: a call without streams has one response.
func (s *sentMetadata) SendHeader(md metadata.MD) error { return s.SetHeader(md) }

func (s *sentMetadata) SetTrailer(md metadata.MD) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trailers = metadata.Join(s.trailers, md)
	return nil
}

func (s *sentMetadata) response(message []byte, err error) *response {
	s.mu.Lock()
	defer s.mu.Unlock()
	answer := &response{metadata: maps.Clone(s.header), trailers: maps.Clone(s.trailers)}
	if err == nil {
		answer.body = frame(message)
		return answer
	}
	failed := status.FromContextError(err)
	if found, ok := status.FromError(err); ok {
		failed = found
	}
	answer.code, answer.message = failed.Code(), failed.Message()
	if len(failed.Details()) > 0 {
		answer.details, _ = proto.Marshal(failed.Proto())
	}
	return answer
}
