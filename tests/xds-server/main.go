// A control plane for tests: go-control-plane, as Envoy Gateway has it, with a door by which a test says what to serve.
//
// It prints one line, `ready XDS-ADDRESS DOOR-ADDRESS`, and ends when its standard input does.
//
//	POST /snapshot?node=ID&version=V   a JSON list of resources, which become the snapshot of that node
//	GET  /requests                     every request that came, in order, as JSON
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/v3"
	ratelimit "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

// Fields that the published Go package does not have yet.
const (
	quotaModeField = 7
	metadataField  = 8
)

// The same for units.
var units = map[string]ratelimit.RateLimitUnit{"MONTH": 5, "YEAR": 6, "WEEK": 7}

type config struct {
	Name        string
	Domain      string
	Descriptors []descriptor
}

type descriptor struct {
	Key            string
	Value          string
	RateLimit      *policy `json:"rate_limit"`
	Descriptors    []descriptor
	ShadowMode     bool `json:"shadow_mode"`
	DetailedMetric bool `json:"detailed_metric"`
	QuotaMode      bool `json:"quota_mode"`
	Metadata       map[string]any
}

type policy struct {
	Unit            string
	RequestsPerUnit uint32 `json:"requests_per_unit"`
	Unlimited       bool
	Name            string
	Replaces        []string
}

type request struct {
	Stream   int64             `json:"stream"`
	Version  string            `json:"version"`
	Nonce    string            `json:"nonce"`
	Error    string            `json:"error"`
	TypeURL  string            `json:"type_url"`
	Names    []string          `json:"names"`
	Node     string            `json:"node"`
	Metadata map[string]any    `json:"metadata"`
	Headers  map[string]string `json:"headers"`
}

// What a test may ask about.
type journal struct {
	sync.Mutex
	requests []request
	headers  map[int64]map[string]string
}

func main() {
	listen := flag.String("listen", "127.0.0.1:0", "where to serve xDS")
	cert := flag.String("cert", "", "certificate; with it, clients must have one, too")
	key := flag.String("key", "", "its key")
	ca := flag.String("ca", "", "the authority of clients")
	flag.Parse()

	snapshots := cache.NewSnapshotCache(false, cache.IDHash{}, nil)
	seen := &journal{headers: map[int64]map[string]string{}}
	var options []grpc.ServerOption
	if *cert != "" {
		options = append(options, grpc.Creds(credentials.NewTLS(mutual(*cert, *key, *ca))))
	}
	service := grpc.NewServer(options...)
	ads := server.NewServer(context.Background(), snapshots, seen.callbacks())
	discovery.RegisterAggregatedDiscoveryServiceServer(service, ads)

	xds, err := net.Listen("tcp", *listen)
	must(err)
	door, err := net.Listen("tcp", "127.0.0.1:0")
	must(err)
	http.HandleFunc("POST /snapshot", func(writer http.ResponseWriter, asked *http.Request) {
		if err := serve(snapshots, asked); err != nil {
			http.Error(writer, err.Error(), http.StatusBadRequest)
		}
	})
	http.HandleFunc("GET /requests", func(writer http.ResponseWriter, _ *http.Request) {
		seen.Lock()
		defer seen.Unlock()
		text, err := json.Marshal(seen.requests)
		must(err)
		// Else a long one goes out in chunks, which the test's client does not read.
		writer.Header().Set("Content-Length", strconv.Itoa(len(text)))
		_, _ = writer.Write(text)
	})
	go func() { log.Fatal(http.Serve(door, nil)) }()
	go func() { log.Fatal(service.Serve(xds)) }()
	fmt.Println("ready", xds.Addr(), door.Addr())

	_, _ = io.Copy(io.Discard, os.Stdin)
}

func mutual(cert, key, ca string) *tls.Config {
	pair, err := tls.LoadX509KeyPair(cert, key)
	must(err)
	pem, err := os.ReadFile(ca)
	must(err)
	clients := x509.NewCertPool()
	clients.AppendCertsFromPEM(pem)
	return &tls.Config{Certificates: []tls.Certificate{pair}, ClientCAs: clients, ClientAuth: tls.RequireAndVerifyClientCert}
}

func serve(snapshots cache.SnapshotCache, asked *http.Request) error {
	var configs []config
	if err := json.NewDecoder(asked.Body).Decode(&configs); err != nil {
		return err
	}
	resources := []types.Resource{}
	for _, one := range configs {
		descriptors, err := toDescriptors(one.Descriptors)
		if err != nil {
			return err
		}
		resources = append(resources, &ratelimit.RateLimitConfig{Name: one.Name, Domain: one.Domain, Descriptors: descriptors})
	}
	query := asked.URL.Query()
	snapshot, err := cache.NewSnapshot(query.Get("version"), map[resource.Type][]types.Resource{resource.RateLimitConfigType: resources})
	if err != nil {
		return err
	}
	return snapshots.SetSnapshot(context.Background(), query.Get("node"), snapshot)
}

func toDescriptors(from []descriptor) ([]*ratelimit.RateLimitDescriptor, error) {
	var to []*ratelimit.RateLimitDescriptor
	for _, one := range from {
		below, err := toDescriptors(one.Descriptors)
		if err != nil {
			return nil, err
		}
		message := &ratelimit.RateLimitDescriptor{
			Key: one.Key, Value: one.Value, Descriptors: below, ShadowMode: one.ShadowMode, DetailedMetric: one.DetailedMetric,
		}
		if one.RateLimit != nil {
			message.RateLimit = toPolicy(one.RateLimit)
		}
		var unknown []byte
		if one.QuotaMode {
			unknown = protowire.AppendTag(unknown, quotaModeField, protowire.VarintType)
			unknown = protowire.AppendVarint(unknown, 1)
		}
		if one.Metadata != nil {
			fields, err := structpb.NewStruct(one.Metadata)
			if err != nil {
				return nil, err
			}
			bytes, err := proto.Marshal(fields)
			if err != nil {
				return nil, err
			}
			unknown = protowire.AppendTag(unknown, metadataField, protowire.BytesType)
			unknown = protowire.AppendBytes(unknown, bytes)
		}
		message.ProtoReflect().SetUnknown(unknown)
		to = append(to, message)
	}
	return to, nil
}

func toPolicy(from *policy) *ratelimit.RateLimitPolicy {
	unit, isNew := units[from.Unit]
	if !isNew {
		unit = ratelimit.RateLimitUnit(ratelimit.RateLimitUnit_value[from.Unit])
	}
	to := &ratelimit.RateLimitPolicy{Unit: unit, RequestsPerUnit: from.RequestsPerUnit, Unlimited: from.Unlimited, Name: from.Name}
	for _, name := range from.Replaces {
		to.Replaces = append(to.Replaces, &ratelimit.RateLimitReplace{Name: name})
	}
	return to
}

func (seen *journal) callbacks() server.Callbacks {
	return server.CallbackFuncs{
		StreamOpenFunc: func(ctx context.Context, stream int64, _ string) error {
			incoming, _ := metadata.FromIncomingContext(ctx)
			headers := map[string]string{}
			for name, values := range incoming {
				headers[name] = values[0]
			}
			seen.Lock()
			defer seen.Unlock()
			seen.headers[stream] = headers
			return nil
		},
		StreamRequestFunc: func(stream int64, asked *discovery.DiscoveryRequest) error {
			seen.Lock()
			defer seen.Unlock()
			seen.requests = append(seen.requests, request{
				Stream: stream, Version: asked.GetVersionInfo(), Nonce: asked.GetResponseNonce(), Error: asked.GetErrorDetail().GetMessage(),
				TypeURL: asked.GetTypeUrl(), Names: asked.GetResourceNames(), Node: asked.GetNode().GetId(),
				Metadata: asked.GetNode().GetMetadata().AsMap(), Headers: seen.headers[stream],
			})
			return nil
		},
	}
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
