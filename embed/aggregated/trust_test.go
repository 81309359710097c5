// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package aggregated

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

// TestWrongTrustKeepsTheOld takes content as it comes, and holds on to it while what comes is garbage.
func TestWrongTrustKeepsTheOld(t *testing.T) {
	m, err := selfSigned([]string{"a"}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	other, err := selfSigned([]string{"b"}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	trust := newTrust(nil, slog.New(slog.NewTextHandler(&log, nil)))
	if _, ok := trust.proxyOptions(); ok {
		t.Error("a proxy is believed before anything is known")
	}
	say := func(ca, names string) {
		trust.take(&corev1.ConfigMap{Data: map[string]string{
			"requestheader-client-ca-file": ca, "requestheader-allowed-names": names, "requestheader-username-headers": `["X-Remote-User"]`,
		}})
	}
	say(string(m.bundle), `["front-proxy-client"]`)
	select {
	case <-trust.known:
	default:
		t.Fatal("it is not known")
	}
	first := trust.current()
	if !cmp.Equal(first.names, []string{"front-proxy-client"}) || !cmp.Equal(first.user, []string{"X-Remote-User"}) || first.proxies == nil ||
		first.clients != nil {
		t.Errorf("believed: %+v", first)
	}
	for _, wrong := range [][2]string{{"garbage", `[]`}, {string(other.bundle), `{`}} {
		say(wrong[0], wrong[1])
		if trust.current() != first {
			t.Errorf("%q is believed", wrong)
		}
	}
	if n := strings.Count(log.String(), "level=ERROR"); n != 2 {
		t.Errorf("the log says:\n%s", &log)
	}
	say(string(other.bundle), `[]`)
	if trust.current() == first || trust.current().proxies.Equal(first.proxies) {
		t.Error("the new authority is not believed")
	}
}

func FuzzTrust(f *testing.F) {
	f.Add("client-ca-file", "-----BEGIN CERTIFICATE-----")
	f.Add("requestheader-allowed-names", `["a"]`)
	f.Fuzz(func(t *testing.T, key, value string) {
		b, err := parseTrust(map[string]string{key: value})
		if (err == nil) != (b != nil) {
			t.Fatal(b, err)
		}
	})
}
