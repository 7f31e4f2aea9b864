// Package apus is a small binding of libapus, the C library of Apus: calls and services for goroutines. It is an example, without a promise.
//
// A node has one descriptor, which is in Go's netpoller. One goroutine waits there for it, and takes responses and requests when it is
// readable. A goroutine that waits for a response is parked as at a socket of package net: it has no thread of the system.
package apus

// #cgo pkg-config: apus
// #include <stdlib.h>
// #include <apus/apus.h>
import "C"

import (
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"
	"unsafe"
)

// Node is an endpoint on the network. All methods may be called by any goroutine.
type Node struct {
	// Read by operations, which do not wait while they have it; written by the one that frees the handles.
	life   sync.RWMutex
	handle *C.apus_node // nil once the node is closed
	client *C.apus_client
	file   *os.File

	mu      sync.Mutex // guards what follows
	ports   []port
	nextTag C.uint64_t
	waiting map[C.uint64_t]chan<- answer
}

// Start starts a node with settings, whose keys are those of a settings file: "listen", "peer_timeout" and others. Variables APUS_… override
// them.
func Start(settings map[string]string) (*Node, error) {
	config := C.apus_config_new()
	defer C.apus_config_free(config)
	for key, value := range settings {
		ckey, cvalue := C.CString(key), C.CString(value)
		_, err := attempt(func() C.int32_t { return C.apus_config_set(config, ckey, cvalue) })
		C.free(unsafe.Pointer(ckey))
		C.free(unsafe.Pointer(cvalue))
		if err != nil {
			return nil, err
		}
	}
	if _, err := attempt(func() C.int32_t { return C.apus_config_apply_environment(config) }); err != nil {
		return nil, err
	}
	n := &Node{waiting: make(map[C.uint64_t]chan<- answer)}
	if _, err := attempt(func() C.int32_t { return C.apus_node_start(config, &n.handle) }); err != nil {
		return nil, err
	}
	if err := n.begin(); err != nil {
		n.free()
		return nil, err
	}
	return n, nil
}

// begin opens the client and has the netpoller watch the node.
func (n *Node) begin() error {
	if _, err := attempt(func() C.int32_t { return C.apus_client_open(n.handle, &n.client) }); err != nil {
		return err
	}
	descriptor, err := attempt(func() C.int32_t { return C.apus_node_fd(n.handle) })
	if err != nil {
		return err
	}
	if n.file, err = watched(descriptor); err != nil {
		return err
	}
	connection, err := n.file.SyscallConn()
	if err != nil {
		return err
	}
	// Read calls receive at the start and whenever the descriptor becomes readable, until the file is closed.
	go connection.Read(func(uintptr) bool { return n.receive() })
	return nil
}

// watched returns a file of the netpoller for a descriptor, which stays the node's.
func watched(descriptor int) (*os.File, error) {
	copied, _, errno := syscall.Syscall(syscall.SYS_FCNTL, uintptr(descriptor), syscall.F_DUPFD_CLOEXEC, 0)
	if errno != 0 {
		return nil, fmt.Errorf("cannot copy the descriptor of the node: %w", errno)
	}
	// The netpoller takes descriptors that do not block. This one is never read.
	if err := syscall.SetNonblock(int(copied), true); err != nil {
		return nil, err
	}
	file := os.NewFile(copied, "apus")
	if err := file.SetReadDeadline(time.Time{}); err != nil {
		file.Close()
		return nil, fmt.Errorf("the netpoller does not take the descriptor of the node: %w", err)
	}
	return file, nil
}

// receive takes everything that has arrived: the netpoller notifies only of changes. It returns whether the node is closed.
func (n *Node) receive() bool {
	n.life.RLock()
	defer n.life.RUnlock()
	if n.handle == nil {
		return true
	}
	for more := true; more; {
		more = C.apus_node_turn(n.handle) > 0
		n.takeAnswers()
		n.takeRequests()
	}
	return false
}

// Close takes no further calls and requests, waits for at most the given time until those under way have ended, and stops the node.
func (n *Node) Close(timeout time.Duration) error {
	n.life.RLock()
	if n.handle == nil {
		n.life.RUnlock()
		return closed()
	}
	_, err := attempt(func() C.int32_t { return C.apus_node_close(n.handle, C.int64_t(timeout)) })
	n.life.RUnlock()
	if failed, ok := err.(*Error); ok && failed.Code == ErrClosed {
		return err // by another goroutine
	}
	n.file.Close() // ends the goroutine that receives
	n.free()
	return err
}

func (n *Node) free() {
	n.life.Lock()
	defer n.life.Unlock()
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, port := range n.ports {
		C.apus_port_free(port.handle)
	}
	C.apus_client_free(n.client)
	C.apus_node_free(n.handle)
	n.handle, n.client, n.ports = nil, nil, nil
	for _, call := range n.waiting {
		call <- answer{err: &Error{Code: ErrClosed, Text: "the node is closed", MayHaveExecuted: true}}
	}
	clear(n.waiting)
}
