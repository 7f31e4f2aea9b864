package apus

// #include <apus/apus.h>
import "C"

import (
	"context"
	"time"
	"unsafe"
)

// Handler answers a request. The context has the deadline of the client. An error gives the request up: the client's call ends without a
// response, and its text stays here. A protocol above has errors of its own, in responses.
type Handler func(ctx context.Context, request []byte) ([]byte, error)

type port struct {
	handle  *C.apus_port
	handler Handler
}

// Bind opens a port, 1 to 32766, and has a handler answer its requests, each in a goroutine, until the node is closed.
func (n *Node) Bind(number uint16, handler Handler) error {
	n.life.RLock()
	defer n.life.RUnlock()
	if n.handle == nil {
		return closed()
	}
	opened := port{handler: handler}
	_, err := attempt(func() C.int32_t { return C.apus_bind(n.handle, C.uint16_t(number), &opened.handle) })
	if err != nil {
		return err
	}
	n.mu.Lock()
	n.ports = append(n.ports, opened)
	n.mu.Unlock()
	// Requests may have arrived before the port was in the list.
	n.takeRequests()
	return nil
}

// takeRequests begins to handle the requests that have arrived.
func (n *Node) takeRequests() {
	n.mu.Lock()
	ports := n.ports // an append does not change these
	n.mu.Unlock()
	for _, port := range ports {
		var requests [batch]*C.apus_request
		for {
			count := int(C.apus_port_recv_many(port.handle, &requests[0], batch, 0))
			for i := range max(count, 0) {
				go answerRequest(requests[i], port.handler)
			}
			if count < batch {
				break
			}
		}
	}
}

// answerRequest runs a handler. The request, which keeps its node running, has one owner, this goroutine.
func answerRequest(request *C.apus_request, handler Handler) {
	ctx := context.Background()
	if remaining := C.apus_request_remaining_ns(request); remaining >= 0 {
		bounded, cancel := context.WithTimeout(ctx, time.Duration(remaining))
		defer cancel()
		ctx = bounded
	}
	var length C.size_t
	data := C.apus_request_body(request, &length)
	response, err := handler(ctx, append([]byte{}, unsafe.Slice((*byte)(data), length)...))
	// A reply that succeeds frees the request. The client may have gone.
	if err != nil || C.apus_reply(request, unsafe.Pointer(unsafe.SliceData(response)), C.size_t(len(response))) != 0 {
		C.apus_request_abandon(request)
	}
}
