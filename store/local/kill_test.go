// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package local_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"testing"

	"github.com/mortise-dev/mortise/store"
	"github.com/mortise-dev/mortise/store/local"
)

const killDir = "MORTISE_TEST_KILL_DIR" // set in the process that is to be killed

// TestKill writes from another process, kills it amid its commits, and finds all that it was promised.
func TestKill(t *testing.T) {
	if dir := os.Getenv(killDir); dir != "" {
		writeForEver(t, dir)
	}
	dir := t.TempDir()
	last := int64(1)
	for round := range 3 {
		c := exec.Command(os.Args[0], "-test.run=^TestKill$")
		c.Env = append(os.Environ(), killDir+"="+dir)
		out, err := c.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		acked := map[int64]bool{}
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			revision, err := strconv.ParseInt(lines.Text(), 10, 64)
			if err != nil {
				t.Fatalf("the writer says %q", lines.Text())
			}
			acked[revision] = true
			last = max(last, revision)
			if len(acked) == 200+50*round {
				if err := c.Process.Kill(); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := c.Wait(); err == nil {
			t.Fatal("the writer ended by itself")
		}
		e, err := local.Open(dir, local.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if e.Revision() < last {
			t.Errorf("revision %d, %d was acknowledged", e.Revision(), last)
		}
		w, err := e.Watch(context.Background(), "/kill/", 1)
		if err != nil {
			t.Fatal(err)
		}
		for revision := int64(1); revision < e.Revision(); {
			b, err := w.Next(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			for _, event := range b.Events {
				if revision++; event.Revision != revision {
					t.Fatalf("revision %d follows %d", event.Revision, revision-1)
				}
			}
		}
		w.Close()
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// writeForEver commits with several writers, and prints each revision that is acknowledged. It never returns.
func writeForEver(t *testing.T, dir string) {
	e, err := local.Open(dir, local.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	for writer := range 8 {
		wg.Go(func() {
			for {
				revision, _, err := e.Commit(context.Background(), store.Op{
					Key: fmt.Sprint("/kill/", writer), Value: make([]byte, 500), Expect: store.Any,
				})
				if err != nil {
					panic(err)
				}
				mu.Lock()
				_, err = fmt.Println(revision)
				mu.Unlock()
				if err != nil {
					panic(err)
				}
			}
		})
	}
	wg.Wait()
}
