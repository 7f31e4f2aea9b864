// Echo is a server and a client of Apus.
//
//	echo serve [LISTEN]        such as 0.0.0.0:20146; by default a port of loopback that the system chooses
//	echo call ADDRESS TEXT     such as localhost:4000 hello
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/apus-rpc/apus/examples/go/apus"
)

func main() {
	log.SetFlags(0)
	var err error
	switch arguments := os.Args[1:]; {
	case len(arguments) == 1 && arguments[0] == "serve":
		err = serve("127.0.0.1:0")
	case len(arguments) == 2 && arguments[0] == "serve":
		err = serve(arguments[1])
	case len(arguments) == 3 && arguments[0] == "call":
		err = call(arguments[1], arguments[2])
	default:
		log.Print("usage: echo serve [LISTEN] | echo call ADDRESS TEXT")
		os.Exit(2)
	}
	if err != nil {
		log.Fatal(err)
	}
}

func serve(listen string) error {
	node, err := apus.Start(map[string]string{"listen": listen})
	if err != nil {
		return err
	}
	echo := func(_ context.Context, request []byte) ([]byte, error) { return request, nil }
	if err := node.Bind(4000, echo); err != nil {
		return err
	}
	address, err := node.Address(4000)
	if err != nil {
		return err
	}
	fmt.Println("serving", address)
	ends := make(chan os.Signal, 1)
	signal.Notify(ends, syscall.SIGINT, syscall.SIGTERM)
	<-ends
	return node.Close(10 * time.Second)
}

func call(address, text string) error {
	node, err := apus.Start(nil)
	if err != nil {
		return err
	}
	defer node.Close(0)
	to, err := node.Resolve(address)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	response, err := node.Call(ctx, to, []byte(text))
	if err != nil {
		return err
	}
	fmt.Printf("%s\n", response)
	return nil
}
