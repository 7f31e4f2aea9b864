package apus

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime/pprof"
	"sync"
	"testing"
	"time"
)

// limit is a time that only a fault exceeds.
const limit = time.Minute

func start(t *testing.T) *Node {
	t.Helper()
	node, err := Start(map[string]string{"listen": "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { node.Close(0) })
	return node
}

// serve binds port 4000 of a node and returns its address.
func serve(t *testing.T, node *Node, handler Handler) Address {
	t.Helper()
	if err := node.Bind(4000, handler); err != nil {
		t.Fatal(err)
	}
	address, err := node.Address(4000)
	if err != nil {
		t.Fatal(err)
	}
	return address
}

func echo(_ context.Context, request []byte) ([]byte, error) { return request, nil }

func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	return ctx
}

func TestBodiesOfAllLengthsComeBack(t *testing.T) {
	node, to := start(t), serve(t, start(t), echo)
	for _, length := range []int{0, 1, 100, 1_400, 70_000, 3_000_000} {
		body := bytes.Repeat([]byte{7}, length)
		response, err := node.Call(within(t), to, body)
		if err != nil || !bytes.Equal(response, body) {
			t.Fatalf("%d bytes came back as %d: %v", length, len(response), err)
		}
	}
}

func TestManyGoroutinesCallAtOnce(t *testing.T) {
	node, to := start(t), serve(t, start(t), echo)
	callAll(t, node, to)
}

// Requests and responses of a node that calls itself arrive in the middle of operations.
func TestANodeCallsItself(t *testing.T) {
	node := start(t)
	callAll(t, node, serve(t, node, echo))
}

func callAll(t *testing.T, node *Node, to Address) {
	var all sync.WaitGroup
	ctx := within(t)
	for number := range 100 {
		all.Go(func() {
			for round := range 20 {
				body := fmt.Appendf(nil, "call %d of goroutine %d", round, number)
				if response, err := node.Call(ctx, to, body); err != nil || !bytes.Equal(response, body) {
					t.Errorf("%s: %s, %v", body, response, err)
					return
				}
			}
		})
	}
	all.Wait()
}

func TestGoroutinesThatWaitHaveNoThread(t *testing.T) {
	const count = 500
	begun, release := make(chan struct{}, count), make(chan struct{})
	waits := func(_ context.Context, request []byte) ([]byte, error) {
		begun <- struct{}{}
		<-release
		return request, nil
	}
	node, to := start(t), serve(t, start(t), waits)
	before := pprof.Lookup("threadcreate").Count()
	var all sync.WaitGroup
	ctx := within(t)
	for range count {
		all.Go(func() {
			if _, err := node.Call(ctx, to, []byte("wait")); err != nil {
				t.Error(err)
			}
		})
	}
	for range count {
		<-begun
	}
	if further := pprof.Lookup("threadcreate").Count() - before; further > count/10 {
		t.Errorf("%d goroutines that wait have %d further threads", count, further)
	}
	close(release)
	all.Wait()
}

func TestADeadlineEndsACallAndReachesTheHandler(t *testing.T) {
	remaining := make(chan time.Duration, 1)
	slow := func(ctx context.Context, _ []byte) ([]byte, error) {
		deadline, _ := ctx.Deadline()
		remaining <- time.Until(deadline)
		<-ctx.Done()
		return nil, ctx.Err()
	}
	node, to := start(t), serve(t, start(t), slow)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err := node.Call(ctx, to, []byte("late"))
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("%v", err)
	}
	if left := <-remaining; left <= 0 || left > time.Second {
		t.Errorf("the handler has %v", left)
	}
	if _, err := node.Call(ctx, to, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a call after the deadline: %v", err)
	}
}

func TestACancelledContextGivesTheCallUp(t *testing.T) {
	begun, release := make(chan struct{}), make(chan struct{})
	defer close(release)
	waits := func(context.Context, []byte) ([]byte, error) {
		close(begun)
		<-release
		return nil, nil
	}
	node, to := start(t), serve(t, start(t), waits)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-begun
		cancel()
	}()
	if _, err := node.Call(ctx, to, nil); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	node.mu.Lock()
	defer node.mu.Unlock()
	if len(node.waiting) != 0 {
		t.Error("the call is not forgotten")
	}
}

func TestErrorsHaveACodeATextAndWhetherTheRequestMayHaveBeenExecuted(t *testing.T) {
	refuses := func(context.Context, []byte) ([]byte, error) { return nil, errors.New("no") }
	node, server := start(t), start(t)
	to := serve(t, server, refuses)
	absent, err := server.Address(9)
	if err != nil {
		t.Fatal(err)
	}
	_, err = node.Call(within(t), absent, nil)
	var failed *Error
	if !errors.As(err, &failed) || failed.Code != ErrNoSuchPort || failed.MayHaveExecuted || failed.Text == "" {
		t.Errorf("no port: %#v", err)
	}
	if _, err := node.Call(within(t), to, nil); !errors.As(err, &failed) || !failed.MayHaveExecuted {
		t.Errorf("a request that was given up: %#v", err)
	}
	if _, err := Start(map[string]string{"listen": "nowhere"}); !errors.Is(err, &Error{Code: ErrConfig}) {
		t.Errorf("a wrong setting: %v", err)
	}
	if _, err := node.Resolve("no address"); !errors.Is(err, &Error{Code: ErrAddress}) {
		t.Errorf("a wrong address: %v", err)
	}
}

func TestCloseEndsCalls(t *testing.T) {
	begun, release := make(chan struct{}), make(chan struct{})
	defer close(release)
	waits := func(context.Context, []byte) ([]byte, error) {
		close(begun)
		<-release
		return nil, nil
	}
	node, to := start(t), serve(t, start(t), waits)
	go func() {
		<-begun
		node.Close(0)
	}()
	if _, err := node.Call(within(t), to, nil); !errors.Is(err, &Error{Code: ErrClosed}) {
		t.Error(err)
	}
	if _, err := node.Call(within(t), to, nil); !errors.Is(err, &Error{Code: ErrClosed}) {
		t.Error(err)
	}
	if err := node.Close(0); !errors.Is(err, &Error{Code: ErrClosed}) {
		t.Error(err)
	}
}

func TestCloseWaitsForRequestsUnderWay(t *testing.T) {
	begun, release := make(chan struct{}), make(chan struct{})
	waits := func(_ context.Context, request []byte) ([]byte, error) {
		close(begun)
		<-release
		return request, nil
	}
	node, server := start(t), start(t)
	to := serve(t, server, waits)
	closed := make(chan error)
	go func() {
		<-begun
		go close(release)
		closed <- server.Close(limit)
	}()
	if response, err := node.Call(within(t), to, []byte("last")); err != nil || string(response) != "last" {
		t.Errorf("%s, %v", response, err)
	}
	if err := <-closed; err != nil {
		t.Error(err)
	}
}
