// An echo server, or a client that sends a known stream through one: a program that makes system calls by itself.
package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
)

func at(offset int) byte { return byte((offset * 31) >> 3) }

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	if os.Args[1] == "server" {
		listener, err := net.Listen("tcp4", "127.0.0.1:0")
		check(err)
		fmt.Println(listener.Addr().(*net.TCPAddr).Port)
		for {
			connection, err := listener.Accept()
			check(err)
			go func() {
				// Plain reads and writes: io.Copy would have the kernel splice.
				buffer := make([]byte, 50000)
				for {
					count, err := connection.Read(buffer)
					if err != nil {
						break
					}
					if _, err = connection.Write(buffer[:count]); err != nil {
						break
					}
				}
				connection.Close()
			}()
		}
	}
	connection, err := net.Dial("tcp4", "127.0.0.1:"+os.Args[2])
	check(err)
	all, err := strconv.Atoi(os.Args[3])
	check(err)
	go func() {
		buffer := make([]byte, 70000)
		for done, size := 0, 1; done < all; size = size*7%70000 + 1 {
			count := min(size, all-done)
			for i := range count {
				buffer[i] = at(done + i)
			}
			_, err := connection.Write(buffer[:count])
			check(err)
			done += count
		}
		check(connection.(*net.TCPConn).CloseWrite())
	}()
	got, err := io.ReadAll(connection)
	check(err)
	for i, value := range got {
		if value != at(i) {
			fmt.Fprintln(os.Stderr, "the byte at", i, "is wrong")
			os.Exit(1)
		}
	}
	if len(got) != all {
		fmt.Fprintln(os.Stderr, len(got), "of", all, "bytes")
		os.Exit(1)
	}
}
