package apus

// #include <apus/apus.h>
import "C"

import (
	"context"
	"time"
	"unsafe"
)

// answer is the end of a call.
type answer struct {
	body []byte
	err  error
}

// batch is the number of results or requests that are taken at once.
const batch = 64

// Call calls a service and waits for its response. The deadline of the context is that of the call, and a service can read what is left of it.
// A context that is cancelled gives the call up. The request may have been executed then.
func (n *Node) Call(ctx context.Context, to Address, body []byte) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	ended := make(chan answer, 1)
	tag := n.addCall(ended)
	if err := n.send(ctx, to, body, tag); err != nil {
		n.removeCall(tag)
		return nil, err
	}
	select {
	case end := <-ended:
		return end.body, end.err
	case <-ctx.Done():
		if n.removeCall(tag) != nil {
			n.cancel(tag)
		}
		return nil, ctx.Err()
	}
}

func (n *Node) send(ctx context.Context, to Address, body []byte, tag C.uint64_t) error {
	options := C.apus_call_options{size: C.sizeof_apus_call_options, deadline_ns: C.APUS_FOREVER}
	if deadline, ok := ctx.Deadline(); ok {
		options.deadline_ns = C.int64_t(max(time.Until(deadline), 0))
	}
	n.life.RLock()
	defer n.life.RUnlock()
	if n.handle == nil {
		return closed()
	}
	_, err := attempt(func() C.int32_t {
		data, length := unsafe.Pointer(unsafe.SliceData(body)), C.size_t(len(body))
		return C.apus_send(n.client, &to.address, data, length, &options, tag)
	})
	return err
}

func (n *Node) cancel(tag C.uint64_t) {
	n.life.RLock()
	defer n.life.RUnlock()
	if n.handle != nil {
		C.apus_cancel(n.client, tag)
	}
}

// takeAnswers ends the calls whose results have arrived.
func (n *Node) takeAnswers() {
	var results [batch]C.apus_completion
	results[0].size = C.sizeof_apus_completion
	for {
		count := int(C.apus_recv_many(n.client, &results[0], batch, 0))
		for i := range max(count, 0) {
			result := &results[i]
			end := answer{body: bytesOf(result.message)}
			if result.error != 0 {
				end = answer{err: &Error{Code(result.error), string(end.body), result.may_have_executed != 0}}
			}
			C.apus_message_free(result.message)
			// Nobody waits for a call that was given up.
			if call := n.removeCall(result.tag); call != nil {
				call <- end
			}
		}
		if count < batch {
			return
		}
	}
}

// bytesOf returns a copy of a message.
func bytesOf(message *C.apus_message) []byte {
	var length C.size_t
	data := C.apus_message_data(message, &length)
	return append([]byte{}, unsafe.Slice((*byte)(data), length)...)
}

// addCall returns the tag of a new call, whose end goes to a channel.
func (n *Node) addCall(ended chan<- answer) C.uint64_t {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.nextTag++
	n.waiting[n.nextTag] = ended
	return n.nextTag
}

// removeCall returns the channel of a call that has not ended, or nil.
func (n *Node) removeCall(tag C.uint64_t) chan<- answer {
	n.mu.Lock()
	defer n.mu.Unlock()
	call := n.waiting[tag]
	delete(n.waiting, tag)
	return call
}
