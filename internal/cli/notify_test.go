// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// systemd is a stand-in for systemd: a socket that receives what services report.
func systemd(t *testing.T) (receive func() string) {
	t.Helper()
	address := &net.UnixAddr{Name: filepath.Join(t.TempDir(), "notify"), Net: "unixgram"}
	c, err := net.ListenUnixgram(address.Net, address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	t.Setenv("NOTIFY_SOCKET", address.Name)
	return func() string {
		b := make([]byte, 4096)
		if err := c.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		n, err := c.Read(b)
		if err != nil {
			t.Fatalf("nothing was reported: %v", err)
		}
		return string(b[:n])
	}
}

// TestServiceReports: systemd learns when the cluster is ready, and when it ends.
func TestServiceReports(t *testing.T) {
	receive := systemd(t)
	var out, errs bytes.Buffer
	code := Main(t.Context(), []string{"up", "--data-dir", t.TempDir(), "--listen", "127.0.0.1:7"},
		Program{In: strings.NewReader(""), Out: &out, Err: &errs, Start: startNothing, AddFlags: addFlags, Engines: engines})
	if code != 1 {
		t.Errorf("exit code %d: %s", code, errs.String())
	}
	for _, want := range []string{"READY=1\nSTATUS=Ready at https://127.0.0.1:7, node: auto", "STOPPING=1"} {
		if got := receive(); got != want {
			t.Errorf("systemd has %q, want %q", got, want)
		}
	}
}

// TestWatchdog: systemd hears of a service for as long as it is healthy.
func TestWatchdog(t *testing.T) {
	receive := systemd(t)
	t.Setenv("WATCHDOG_USEC", "2000")
	t.Setenv("WATCHDOG_PID", "")
	ctx, cancel := context.WithCancel(t.Context())
	asked := 0
	ended := make(chan struct{})
	var log bytes.Buffer
	go func() {
		defer close(ended)
		watchdog(ctx, slog.New(slog.NewTextHandler(&log, nil)), func(context.Context) error {
			if asked++; asked == 1 {
				return errors.New("it hangs")
			}
			return nil
		})
	}()
	for range 2 {
		if got := receive(); got != "WATCHDOG=1" {
			t.Errorf("systemd has %q", got)
		}
	}
	cancel()
	<-ended
	if asked < 3 || !strings.Contains(log.String(), "it hangs") {
		t.Errorf("asked %d times, log %s", asked, log.String())
	}
	t.Setenv("WATCHDOG_USEC", "")
	watchdog(t.Context(), slog.New(slog.DiscardHandler), nil) // returns
}

// TestProgress: people are told of the steps of a start, and of its end, that take longer than a second.
func TestProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		p := newProgress(&out)
		for step, d := range []time.Duration{time.Millisecond, 3500 * time.Millisecond, 900 * time.Millisecond, 2 * time.Second} {
			p.begin([]string{"check the selection", "open the store", "serve", "run nodes"}[step])
			time.Sleep(d)
			synctest.Wait()
		}
		p.end()
		p.end()
		time.Sleep(time.Minute)
		p.stop()
		time.Sleep(1500 * time.Millisecond)
		p.end()
		want := "mortise: open the store ...\nmortise: open the store: ended after 3.5 s\n" +
			"mortise: run nodes ...\nmortise: run nodes: ended after 2.0 s\n" +
			"mortise: finish requests and write state to disk; pods keep running ...\n" +
			"mortise: finish requests and write state to disk; pods keep running: ended after 1.5 s\n"
		if out.String() != want {
			t.Errorf("got\n%swant\n%s", out.String(), want)
		}
	})
}
