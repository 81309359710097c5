// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package reload

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestWatch(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "config")
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("config", "1")
	ctx, cancel := context.WithCancel(t.Context())
	seen, ended := make(chan string, 100), make(chan struct{})
	go func() {
		defer close(ended)
		Watch(ctx, time.Hour, slog.New(slog.DiscardHandler), func() {
			b, _ := os.ReadFile(file)
			seen <- string(b)
		}, file)
	}()
	await := func(want string) {
		t.Helper()
		for late := time.After(10 * time.Second); ; {
			select {
			case got := <-seen:
				if got == want {
					return
				}
			case <-late:
				t.Fatalf("the file was not read as %q", want)
			}
		}
	}
	await("1")
	write("config", "2") // in its place
	await("2")
	write("new", "3")
	if err := os.Rename(filepath.Join(dir, "new"), file); err != nil { // by renaming
		t.Fatal(err)
	}
	await("3")
	cancel()
	<-ended
}
