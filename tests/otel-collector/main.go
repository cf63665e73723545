// The OpenTelemetry Collector's own receiver of OTLP, without the rest of a collector: what it takes, it prints.
//
// Standard output has a line for each protocol, `http 127.0.0.1:PORT` and `grpc 127.0.0.1:PORT`, and then one for each batch of traces:
// an object with the headers that it came with, and the traces in OTLP's JSON. It ends when standard input does.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"sync"

	"go.opentelemetry.io/collector/client"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
	"go.opentelemetry.io/collector/receiver/receivertest"
)

// The kernel's choice of a port may be somebody else's before it is bound again.
const attempts = 20

type batch struct {
	Headers map[string][]string `json:"headers"`
	Traces  json.RawMessage     `json:"traces"`
}

func main() {
	cert := flag.String("cert", "", "speak TLS with this certificate")
	key := flag.String("key", "", "its key")
	clientCA := flag.String("client-ca", "", "who signs the certificates of clients")
	flag.Parse()

	tls := map[string]any{}
	if *cert != "" {
		tls = map[string]any{"tls": map[string]any{"cert_file": *cert, "key_file": *key, "client_ca_file": *clientCA}}
	}
	var err error
	for range attempts {
		var stop func()
		if stop, err = start(tls); err == nil {
			io.Copy(io.Discard, os.Stdin)
			stop()
			return
		}
	}
	log.Fatal(err)
}

func start(tls map[string]any) (func(), error) {
	protocols, addresses := map[string]any{}, ""
	for _, protocol := range []string{"http", "grpc"} {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		address := listener.Addr().String()
		defer listener.Close()
		settings := map[string]any{"endpoint": address, "include_metadata": true}
		for name, value := range tls {
			settings[name] = value
		}
		protocols[protocol] = settings
		addresses += fmt.Sprintf("%s %s\n", protocol, address)
		listener.Close()
	}
	factory := otlpreceiver.NewFactory()
	config := factory.CreateDefaultConfig()
	if err := confmap.NewFromStringMap(map[string]any{"protocols": protocols}).Unmarshal(config); err != nil {
		return nil, err
	}
	out := &printer{}
	traces, err := consumer.NewTraces(out.traces)
	if err != nil {
		return nil, err
	}
	ctx, settings := context.Background(), receivertest.NewNopSettings(factory.Type())
	receiver, err := factory.CreateTraces(ctx, settings, config, traces)
	if err != nil {
		return nil, err
	}
	stop := func() { receiver.Shutdown(ctx) }
	if err := receiver.Start(ctx, componenttest.NewNopHost()); err != nil {
		stop()
		return nil, err
	}
	fmt.Print(addresses)
	return stop, nil
}

// Prints a line at a time.
type printer struct{ one sync.Mutex }

func (p *printer) traces(ctx context.Context, traces ptrace.Traces) error {
	text, err := (&ptrace.JSONMarshaler{}).MarshalTraces(traces)
	if err != nil {
		return err
	}
	return p.print(ctx, batch{Traces: text})
}

func (p *printer) print(ctx context.Context, batch batch) error {
	batch.Headers = map[string][]string{}
	metadata := client.FromContext(ctx).Metadata
	for name := range metadata.Keys() {
		batch.Headers[name] = metadata.Get(name)
	}
	line, err := json.Marshal(batch)
	if err != nil {
		return err
	}
	p.one.Lock()
	defer p.one.Unlock()
	_, err = fmt.Println(string(line))
	return err
}
