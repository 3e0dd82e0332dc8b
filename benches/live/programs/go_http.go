// go_http SECONDS: a net/http server and one client with one keep-alive connection, in one process; prints the
// requests per second.
package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"time"
)

func main() {
	seconds, err := strconv.ParseFloat(os.Args[1], 64)
	check(err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	check(err)
	handler := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "hello\n") })
	go http.Serve(listener, handler)
	url := "http://" + listener.Addr().String() + "/"
	start := time.Now()
	requests := 0
	for time.Since(start).Seconds() < seconds {
		response, err := http.Get(url)
		check(err)
		io.Copy(io.Discard, response.Body)
		response.Body.Close()
		requests++
	}
	fmt.Printf("requests/s: %.1f\n", float64(requests)/time.Since(start).Seconds())
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "go_http:", err)
		os.Exit(1)
	}
}
