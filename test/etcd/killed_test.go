// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"bufio"
	"bytes"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/mortise-dev/mortise/store"
	"github.com/mortise-dev/mortise/store/local"
	"github.com/mortise-dev/mortise/test/programs"
)

// killedAt runs the program and kills it at the first line that begins like at; it reports whether such a line came.
func killedAt(t *testing.T, at string, args ...string) bool {
	t.Helper()
	c := exec.Command(programs.Path("mortise"), args...)
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	lines, err := c.StderrPipe()
	must(t, err)
	must(t, c.Start())
	found := false
	for s := bufio.NewScanner(lines); s.Scan(); {
		if strings.HasPrefix(s.Text(), at) {
			found = true
			must(t, c.Process.Kill())
			break
		}
	}
	_ = c.Wait()
	return found
}

// TestTransferIsKilled kills exports and imports in the middle. The next one goes on, or begins again, and everything is there in the end.
func TestTransferIsKilled(t *testing.T) {
	const keys = 20_000
	want := store.Content{Revision: keys + 15_000}
	for i := range keys {
		want.Records = append(want.Records, &store.Record{Key: fmt.Sprintf("/registry/configmaps/default/c%06d", i),
			Value: bytes.Repeat([]byte{byte(i)}, 200), Revision: int64(i + 2), Created: int64(i + 2)})
	}
	dir := t.TempDir()
	must(t, local.Create(t.Context(), filepath.Join(dir, "store"), want, local.Options{}))

	c := launch(t, 1).ready(t)
	defer c.remove()
	members := "etcd://" + strings.TrimPrefix(c.urls[0], "http://")
	export := []string{"store", "export", "--data-dir", dir, "--to", members}
	for _, stage := range []string{"raise the revision", "write the keys"} {
		if !killedAt(t, stage+": 10", export...) {
			t.Errorf("the export does not tell of its progress to %s", stage)
		}
	}
	client := c.client(t)
	defer client.Close()
	got, err := client.Get(t.Context(), "/registry/", clientv3.WithPrefix(), clientv3.WithCountOnly())
	must(t, err)
	t.Logf("etcd has %d of %d keys when the export is killed", got.Count, keys)
	mortise(t, export...)
	same := func(c store.Content, revisions bool) {
		t.Helper()
		if len(c.Records) != len(want.Records) {
			t.Fatalf("%d keys, want %d", len(c.Records), len(want.Records))
		}
		for i, r := range c.Records {
			w := want.Records[i]
			if r.Key != w.Key || !bytes.Equal(r.Value, w.Value) || revisions && r.Revision != w.Revision || r.Revision <= 1 {
				t.Fatalf("key %q at %d, want %q at %d", r.Key, r.Revision, w.Key, w.Revision)
			}
		}
	}

	back := t.TempDir()
	load := []string{"store", "import", "--data-dir", back, "--from", members}
	for _, stage := range []string{"read the keys", "check the keys"} {
		if !killedAt(t, stage, load...) {
			t.Fatalf("the import does not tell of its progress to %s", stage)
		}
		_, err := local.ReadContent(t.Context(), filepath.Join(back, "store"), local.Options{})
		if stage == "read the keys" && err == nil {
			t.Errorf("an import that was killed while it read has left a store")
		}
		if stage == "check the keys" { // all is there, and a server may use it: the next import does not overwrite it
			out, err := exec.Command(programs.Path("mortise"), load...).CombinedOutput()
			if err == nil || !strings.Contains(string(out), "a store is there") {
				t.Errorf("an import over a store: %v\n%s", err, out)
			}
		}
	}
	all, err := local.ReadContent(t.Context(), filepath.Join(back, "store"), local.Options{})
	must(t, err)
	same(all, false)

	file := filepath.Join(t.TempDir(), "snapshot.db")
	export = []string{"store", "export", "--data-dir", dir, "--to", file}
	if !killedAt(t, "write the file", export...) {
		t.Error("the export does not tell of its progress to write the file")
	}
	mortise(t, export...) // an error if the first has left a part of it under its name
	again := t.TempDir()
	mortise(t, "store", "import", "--data-dir", again, "--from", file)
	all, err = local.ReadContent(t.Context(), filepath.Join(again, "store"), local.Options{})
	must(t, err)
	same(all, true)
}
