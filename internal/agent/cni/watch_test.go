// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestRemovedConfigurationIsRestored: when our configuration is removed, alone or with its directory, it is restored, unless there is
// another's.
func TestRemovedConfigurationIsRestored(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cni", "net.d")
	path := filepath.Join(dir, FileName)
	restored := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan error, 1)
	go func() {
		over <- Watch(ctx, dir, func() {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Error(err)
			}
			if err := os.WriteFile(path, []byte("{}"), 0o600); err != nil {
				t.Error(err)
			}
			restored <- struct{}{}
		})
	}()
	await := func(when string) {
		t.Helper()
		select {
		case <-restored:
		case err := <-over:
			t.Fatalf("%s: the watch has ended: %v", when, err)
		case <-time.After(20 * time.Second):
			t.Fatalf("%s: it is not restored", when)
		}
	}
	do := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	await("nothing is there yet")
	do(os.Remove(path))
	await("the file was removed")
	do(os.Rename(path, filepath.Join(dir, "kept")))
	await("the file was renamed")
	do(os.Rename(dir, dir+".old")) // not RemoveAll, which the restorer would be in the way of
	await("the directory was renamed")
	do(os.Remove(path))
	await("the file was removed from the new directory")
	other := filepath.Join(dir, "05-other.conflist")
	do(os.WriteFile(other, []byte("{}"), 0o600))
	do(os.Remove(path))
	do(os.Remove(other)) // ours comes again only now
	await("the other one was removed")
	cancel()
	if err := <-over; err != nil {
		t.Error(err)
	}
}
