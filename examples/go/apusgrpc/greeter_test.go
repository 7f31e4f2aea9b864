package apusgrpc

import (
	"bufio"
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	pb "google.golang.org/grpc/examples/helloworld/helloworld"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/apus-rpc/apus/examples/go/apus"
)

func start(t *testing.T) *apus.Node {
	t.Helper()
	node, err := apus.Start(map[string]string{"listen": "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { node.Close(0) })
	return node
}

func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func client(t *testing.T, target string) *ClientConn {
	t.Helper()
	found, err := NewClient(start(t), target)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// greeter is a service of the stubs that protoc has made, unchanged.
type greeter struct {
	pb.UnimplementedGreeterServer
}

func (greeter) SayHello(ctx context.Context, request *pb.HelloRequest) (*pb.HelloReply, error) {
	if request.Name == "" {
		refused, err := status.New(codes.InvalidArgument, "a name has one or more characters").
			WithDetails(&errdetails.ErrorInfo{Reason: "EMPTY"})
		if err != nil {
			return nil, err
		}
		return nil, refused.Err()
	}
	received, _ := metadata.FromIncomingContext(ctx)
	if err := grpc.SetHeader(ctx, metadata.Pairs("x-tenant-id", strings.Join(received.Get("x-tenant-id"), ","))); err != nil {
		return nil, err
	}
	if err := grpc.SetTrailer(ctx, metadata.Pairs("sum-bin", "\x00\x01")); err != nil {
		return nil, err
	}
	return &pb.HelloReply{Message: "Hello " + request.Name + "!"}, nil
}

// serve starts a server in this process and returns its address.
func serve(t *testing.T) string {
	t.Helper()
	node, server := start(t), &Server{}
	pb.RegisterGreeterServer(server, greeter{})
	if err := node.Bind(4000, server.Handle); err != nil {
		t.Fatal(err)
	}
	address, err := node.Address(4000)
	if err != nil {
		t.Fatal(err)
	}
	return "apus://" + address.String()
}

func TestStubsCallAServiceOfStubs(t *testing.T) {
	stub := pb.NewGreeterClient(client(t, serve(t)))
	var header, trailer metadata.MD
	ctx := metadata.AppendToOutgoingContext(within(t), "x-tenant-id", "7", "x-tenant-id", "8")
	reply, err := stub.SayHello(ctx, &pb.HelloRequest{Name: "Ada"}, grpc.Header(&header), grpc.Trailer(&trailer))
	if err != nil || reply.Message != "Hello Ada!" {
		t.Fatalf("%v, %v", reply, err)
	}
	if header.Get("x-tenant-id")[0] != "7,8" || trailer.Get("sum-bin")[0] != "\x00\x01" {
		t.Errorf("%v, %v", header, trailer)
	}
	_, err = stub.SayHello(within(t), &pb.HelloRequest{})
	found := status.Convert(err)
	if found.Code() != codes.InvalidArgument || len(found.Details()) != 1 {
		t.Errorf("%v with %v", err, found.Details())
	}
}

func TestCallsThatAreNotCarriedSayWhy(t *testing.T) {
	conn := client(t, serve(t))
	_, err := conn.NewStream(within(t), &grpc.StreamDesc{}, "/a.B/Stream")
	if status.Code(err) != codes.Unimplemented || !strings.Contains(err.Error(), "/a.B/Stream has streams") {
		t.Error(err)
	}
	err = conn.Invoke(within(t), "/a.B/None", &pb.HelloRequest{}, &pb.HelloReply{})
	if status.Code(err) != codes.Unimplemented || !strings.Contains(err.Error(), "/a.B/None: no such method") {
		t.Error(err)
	}
	err = conn.Invoke(within(t), "/a.B/None", &pb.HelloRequest{}, &pb.HelloReply{}, grpc.UseCompressor("gzip"))
	if status.Code(err) != codes.Unimplemented || !strings.Contains(err.Error(), "CompressorCallOption") {
		t.Error(err)
	}
}

func TestErrorsOfTheTransportHaveTheirCode(t *testing.T) {
	node := start(t)
	address, err := node.Address(9)
	if err != nil {
		t.Fatal(err)
	}
	stub := pb.NewGreeterClient(client(t, address.String()))
	_, err = stub.SayHello(within(t), &pb.HelloRequest{Name: "Ada"})
	if status.Code(err) != codes.Unavailable || MayHaveExecuted(err) {
		t.Errorf("no such port: %v", err)
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = stub.SayHello(cancelled, &pb.HelloRequest{Name: "Ada"})
	if status.Code(err) != codes.Canceled || !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// program is the example greeter of apus-tonic.
func program(t *testing.T) string {
	t.Helper()
	path := os.Getenv("APUS_TEST_GREETER")
	if path == "" {
		t.Skip("skipped: gRPC between languages: APUS_TEST_GREETER does not name the example greeter of apus-tonic")
	}
	return path
}

func TestStubsCallAServerOfTonic(t *testing.T) {
	server := exec.Command(program(t), "serve")
	output, err := server.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	defer server.Wait()
	defer server.Process.Kill()
	line, err := bufio.NewReader(output).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	stub := pb.NewGreeterClient(client(t, strings.TrimSpace(line)))
	var header metadata.MD
	ctx := metadata.AppendToOutgoingContext(within(t), "x-tenant-id", "7")
	reply, err := stub.SayHello(ctx, &pb.HelloRequest{Name: "Ada"}, grpc.Header(&header))
	if err != nil || reply.Message != "Hello Ada!" || len(header.Get("x-tenant-id")) != 1 {
		t.Fatalf("%v, %v, %v", reply, header, err)
	}
	long := strings.Repeat("a", 200_000)
	if reply, err := stub.SayHello(within(t), &pb.HelloRequest{Name: long}); err != nil || len(reply.Message) != len(long)+7 {
		t.Errorf("a long name: %v", err)
	}
	_, err = stub.SayHello(within(t), &pb.HelloRequest{})
	if status.Code(err) != codes.InvalidArgument || status.Convert(err).Message() != "a name has one or more characters" {
		t.Error(err)
	}
}

func TestAClientOfTonicCallsAServiceOfStubs(t *testing.T) {
	greeter, address := program(t), serve(t)
	for name, wanted := range map[string]string{
		"Ada": "Hello Ada!\n",
		"":    "InvalidArgument: a name has one or more characters\n",
	} {
		output, err := exec.CommandContext(within(t), greeter, "call", address, name).Output()
		if err != nil || string(output) != wanted {
			t.Errorf("%q: %q, %v", name, output, err)
		}
	}
}
