// Echoes over TCP: echo ADDRESS PORT.
package main

import (
	"fmt"
	"io"
	"net"
	"os"
)

func main() {
	listener, err := net.Listen("tcp", net.JoinHostPort(os.Args[1], os.Args[2]))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	for {
		connection, err := listener.Accept()
		if err != nil {
			os.Exit(1)
		}
		go func() {
			defer connection.Close()
			bytes := make([]byte, 4096)
			for {
				length, err := connection.Read(bytes)
				if err == io.EOF || err != nil {
					return
				}
				if _, err := connection.Write(bytes[:length]); err != nil {
					return
				}
			}
		}()
	}
}
