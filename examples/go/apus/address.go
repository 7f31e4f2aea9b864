package apus

// #include <stdlib.h>
// #include <apus/apus.h>
import "C"

import "unsafe"

// Address is that of a service: a node, by its IP address and UDP port, and a port on it.
type Address struct{ address C.apus_address }

func newAddress() Address {
	return Address{C.apus_address{size: C.sizeof_apus_address}}
}

// String is the form that Resolve reads: IP:PORT, or IP:PORT@UDPPORT if the UDP port of the node is not 20146.
func (a Address) String() string {
	var text [C.APUS_ADDRESS_TEXT]C.char
	if C.apus_address_format(&a.address, &text[0], C.size_t(len(text))) < 0 {
		return "no address"
	}
	return C.GoString(&text[0])
}

// Resolve finds the first address of a service: HOST:PORT or HOST:PORT@UDPPORT. It may block for seconds, and Close waits for it.
func (n *Node) Resolve(text string) (Address, error) {
	n.life.RLock()
	defer n.life.RUnlock()
	if n.handle == nil {
		return Address{}, closed()
	}
	ctext := C.CString(text)
	defer C.free(unsafe.Pointer(ctext))
	address := newAddress()
	_, err := attempt(func() C.int32_t { return C.apus_node_resolve(n.handle, ctext, &address.address) })
	return address, err
}

// Address returns the address of a port of this node.
func (n *Node) Address(port uint16) (Address, error) {
	n.life.RLock()
	defer n.life.RUnlock()
	if n.handle == nil {
		return Address{}, closed()
	}
	address := newAddress()
	_, err := attempt(func() C.int32_t { return C.apus_node_address(n.handle, &address.address) })
	address.address.port = C.uint16_t(port)
	return address, err
}
