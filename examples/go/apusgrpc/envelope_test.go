package apusgrpc

import (
	"bytes"
	"encoding/hex"
	"errors"
	"reflect"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
)

// The example of docs/rpc-wire.md.
const (
	exampleRequest = "a1 01 01 01 02 03 04 05 06 07 08" +
		"0e 2f 73 68 6f 70 2e 43 61 6c 63 2f 41 64 64 01 00 1b 01 37 68 69"
	exampleResponse = "a1 02 00 00 00 00 6f 6b"
)

func unhex(t *testing.T, text string) []byte {
	t.Helper()
	found, err := hex.DecodeString(strings.ReplaceAll(text, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func TestTheExampleOfThePage(t *testing.T) {
	open := &request{path: "/shop.Calc/Add", metadata: metadata.Pairs("x-tenant-id", "7"), body: []byte("hi")}
	encoded, err := open.encode(0x0102030405060708)
	if err != nil || !bytes.Equal(encoded, unhex(t, exampleRequest)) {
		t.Errorf("%x, %v", encoded, err)
	}
	if decoded, err := decodeRequest(encoded); err != nil || !reflect.DeepEqual(decoded, open) {
		t.Errorf("%+v, %v", decoded, err)
	}
	end := &response{body: []byte("ok")}
	encoded, err = end.encode()
	if err != nil || !bytes.Equal(encoded, unhex(t, exampleResponse)) {
		t.Errorf("%x, %v", encoded, err)
	}
	if decoded, err := decodeResponse(encoded); err != nil || string(decoded.body) != "ok" || decoded.code != codes.OK {
		t.Errorf("%+v, %v", decoded, err)
	}
}

func TestAResponseWithEverythingComesBack(t *testing.T) {
	end := &response{
		metadata: metadata.Pairs("picture-bin", "\x00\xff", "a", "1", "a", "2"), code: codes.NotFound, message: "nö",
		details: []byte{1}, trailers: metadata.Pairs("traceparent", "0"), notExecuted: true, body: []byte{},
	}
	encoded, err := end.encode()
	if err != nil {
		t.Fatal(err)
	}
	if decoded, err := decodeResponse(encoded); err != nil || !reflect.DeepEqual(decoded, end) {
		t.Errorf("%+v, %v", decoded, err)
	}
	for length := range len(encoded) {
		if _, err := decodeResponse(encoded[:length]); err == nil {
			t.Errorf("the first %d bytes are a response", length)
		}
	}
}

func TestRefusals(t *testing.T) {
	head := "a1 01 01 01 02 03 04 05 06 07 08 04 2f 61 2f 62" // of /a/b
	for _, row := range []struct {
		message string
		code    codes.Code
		reason  string
	}{
		{"", codes.Unimplemented, "not_an_envelope"},
		{"51", codes.Unimplemented, "not_an_envelope"},
		{"a2 01", codes.Unimplemented, "other_version"},
		{"a1 02 00", codes.Unimplemented, "unknown_kind"},
		{"a1 01 01 00", codes.Internal, "too_short"},
		{"a1 01 00" + head[8:] + "00", codes.Unimplemented, "no calls with streams"},
		{"a1 01 01 01 02 03 04 05 06 07 08 84 00", codes.Internal, "bad_varint"},
		{"a1 01 01 01 02 03 04 05 06 07 08 ff ff ff ff ff ff ff ff ff 02", codes.Internal, "bad_varint"},
		{"a1 01 01 01 02 03 04 05 06 07 08 03 2f 2f 62", codes.Internal, "bad_path"},
		{head + "81 01", codes.ResourceExhausted, "too_many_pairs"},
		{head + "01 00 20 00", codes.Internal, "unknown_name"},
		{head + "01 01 41 00", codes.Internal, "bad_name"},
		{head + "01 01 61 01 0a", codes.Internal, "bad_value"},
		{head + "01 01 61 80 80 01" + strings.Repeat("61", headMax), codes.ResourceExhausted, "head_too_long"},
	} {
		_, err := decodeRequest(unhex(t, row.message))
		var refused *refusal
		if !errors.As(err, &refused) || refused.code != row.code || !strings.Contains(refused.text, row.reason) {
			t.Errorf("%.40s: %v", row.message, err)
		}
	}
	if _, err := decodeResponse(unhex(t, "a1 06 00 00 00 00")); err == nil {
		t.Error("MORE and END together are accepted")
	}
	if decoded, err := decodeResponse(unhex(t, "a1 02 63 00 00 00")); err != nil || decoded.code != codes.Unknown {
		t.Errorf("code 99: %+v, %v", decoded, err)
	}
}

func FuzzMessagesOfAPeer(f *testing.F) {
	f.Add([]byte{mark, 1})
	f.Fuzz(func(t *testing.T, message []byte) {
		// Neither panics.
		if open, err := decodeRequest(message); err == nil && !isPath(open.path) {
			t.Error(open.path)
		}
		decodeResponse(message)
	})
}
