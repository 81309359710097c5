// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/mortise-dev/mortise/test/programs"
)

// TestExportAndImport takes a cluster from a data directory to etcd, by a snapshot file and by writing to its members, and back.
func TestExportAndImport(t *testing.T) {
	first := t.TempDir()
	s, err := start(t, first)
	must(t, err)
	for i := range 300 {
		s.must(t, http.MethodPost, "/api/v1/namespaces/default/configmaps", object("ConfigMap", fmt.Sprint("c", i)))
	}
	s.must(t, http.MethodPost, "/api/v1/namespaces/default/events", map[string]any{
		"apiVersion": "v1", "kind": "Event", "metadata": map[string]any{"name": "e", "namespace": "default"},
		"involvedObject": map[string]any{"kind": "ConfigMap", "name": "c1", "namespace": "default"}, "reason": "Tried", "message": "m",
	})
	for i := range 10 { // the newest changes are deletes
		s.must(t, http.MethodDelete, fmt.Sprint("/api/v1/namespaces/default/configmaps/c", i), nil)
	}
	want, newest := objects(t, s)
	s.kill()

	t.Run("snapshot", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "snapshot.db")
		mortise(t, "store", "export", "--data-dir", first, "--to", file)
		c := unstarted(t, 1)
		defer c.remove()
		out, err := exec.Command(programs.Path("etcdutl"), "snapshot", "restore", file, "--data-dir", c.data(0), "--name", "m0",
			"--initial-cluster", "m0="+c.peers[0], "--initial-advertise-peer-urls", c.peers[0]).CombinedOutput()
		if err != nil {
			t.Fatalf("etcdutl refuses the file: %v\n%s", err, out)
		}
		c.start(t, 0)
		c.ready(t)
		on := up(t, c, filepath.Join(first, "pki"))
		if got, _ := objects(t, on); !maps.Equal(got, want) {
			t.Errorf("on etcd: %s", difference(want, got))
		}
		code, got := on.ask(t, http.MethodGet, fmt.Sprintf("/api/v1/configmaps?watch=1&timeoutSeconds=2&resourceVersion=%d", newest-5), "", nil)
		if text := fmt.Sprint(got); code == http.StatusOK && !strings.Contains(text, "410") {
			t.Errorf("a watch from before the export: %d %v, want 410", code, got)
		}
		on.must(t, http.MethodPost, "/api/v1/namespaces/default/configmaps", object("ConfigMap", "later"))
		if got, _ := objects(t, on); got["configmaps/later"] <= newest {
			t.Errorf("a new object has revision %d, the newest of the export %d", got["configmaps/later"], newest)
		}
		on.must(t, http.MethodDelete, "/api/v1/namespaces/default/configmaps/later", nil)
		on.kill()

		back := t.TempDir()
		must(t, os.CopyFS(filepath.Join(back, "pki"), os.DirFS(filepath.Join(first, "pki"))))
		mortise(t, "store", "import", "--data-dir", back, "--from", "etcd://"+strings.TrimPrefix(c.urls[0], "http://"))
		again, err := start(t, back)
		must(t, err)
		if got, _ := objects(t, again); !maps.Equal(got, want) {
			t.Errorf("back in a data directory: %s", difference(want, got))
		}
	})

	t.Run("members", func(t *testing.T) {
		c := launch(t, 1).ready(t)
		defer c.remove()
		to := "etcd://" + strings.TrimPrefix(c.urls[0], "http://")
		for range 2 { // the second goes on after the first, and finds everything there
			mortise(t, "store", "export", "--data-dir", first, "--to", to)
		}
		on := up(t, c, filepath.Join(first, "pki"))
		got, _ := objects(t, on)
		for name, revision := range got {
			if old, ok := want[name]; ok && revision <= newest {
				t.Errorf("%s has revision %d, before %d; clients have seen %d", name, revision, old, newest)
			}
		}
		if len(got) != len(want) {
			t.Errorf("on etcd: %s", difference(want, got))
		}
		pastOfEtcd(t, on, to)
		// Other content is refused.
		on.kill()
		out, err := exec.Command(programs.Path("mortise"), "store", "export", "--data-dir", first, "--to", to).CombinedOutput()
		if err == nil || !strings.Contains(string(out), "than the source") && !strings.Contains(string(out), "which the source does not have") {
			t.Errorf("an export over a cluster in use: %v\n%s", err, out)
		}
	})
}

// pastOfEtcd reads from etcd what it had at an older revision: as a backup, and into a data directory.
func pastOfEtcd(t *testing.T, s *server, from string) {
	t.Helper()
	const maps = "/api/v1/namespaces/default/configmaps"
	point := revision(t, s.create(t, maps, object("ConfigMap", "past")))
	s.must(t, http.MethodDelete, maps+"/past", nil)
	backup, dirs := filepath.Join(t.TempDir(), "backup"), []string{t.TempDir(), t.TempDir()}
	mortise(t, "store", "backup", backup, "--from", from, "--revision", fmt.Sprint(point))
	mortise(t, "store", "restore", backup, "--data-dir", dirs[0])
	mortise(t, "store", "import", "--from", from, "--revision", fmt.Sprint(point), "--data-dir", dirs[1])
	for _, dir := range dirs {
		restored, err := start(t, dir)
		must(t, err)
		if got := restored.until(t, http.StatusOK, http.MethodGet, maps+"/past", "", nil); revision(t, got) != point {
			t.Errorf("restored %v, want revision %d", got, point)
		}
		restored.kill()
	}
	for wrong, says := range map[string]string{"1": "compacted", fmt.Sprint(point + 1_000_000): "it is at"} {
		out, err := exec.Command(programs.Path("mortise"), "store", "backup", backup, "--from", from, "--revision", wrong).CombinedOutput()
		if err == nil || !strings.Contains(string(out), says) {
			t.Errorf("revision %s: %v %s", wrong, err, out)
		}
	}
}

func object(kind, name string) map[string]any {
	return map[string]any{"apiVersion": "v1", "kind": kind, "metadata": map[string]any{"name": name}}
}

// must sends a request that is to succeed.
func (s *server) must(t *testing.T, method, path string, body any) {
	t.Helper()
	if code, got := s.ask(t, method, path, "", body); code >= http.StatusBadRequest {
		t.Fatalf("%s %s: %d %v", method, path, code, got)
	}
}

// objects returns the resource versions of objects that no controller changes, and the newest revision.
func objects(t *testing.T, s *server) (map[string]int64, int64) {
	t.Helper()
	out, newest := map[string]int64{}, int64(0)
	for _, path := range []string{"configmaps", "events", "serviceaccounts"} {
		_, list := s.ask(t, http.MethodGet, "/api/v1/namespaces/default/"+path, "", nil)
		newest = max(newest, revision(t, list))
		items, ok := list["items"].([]any)
		if !ok || len(items) == 0 {
			t.Fatalf("%s: %v", path, list)
		}
		for _, item := range items {
			o := item.(map[string]any)
			out[path+"/"+o["metadata"].(map[string]any)["name"].(string)] = revision(t, o)
		}
	}
	return out, newest
}

func revision(t *testing.T, o map[string]any) int64 {
	t.Helper()
	text, _ := o["metadata"].(map[string]any)["resourceVersion"].(string)
	n, err := strconv.ParseInt(text, 10, 64)
	must(t, err)
	return n
}

func difference(want, got map[string]int64) string {
	var out []string
	for name, revision := range want {
		if got[name] != revision {
			out = append(out, fmt.Sprintf("%s has %d, want %d", name, got[name], revision))
		}
	}
	for name, revision := range got {
		if _, ok := want[name]; !ok {
			out = append(out, fmt.Sprintf("%s has %d, want none", name, revision))
		}
	}
	return fmt.Sprintf("%d differences: %s", len(out), strings.Join(out[:min(len(out), 10)], ", "))
}

func mortise(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command(programs.Path("mortise"), args...).CombinedOutput(); err != nil {
		t.Fatalf("mortise %v: %v\n%s", args, err, out)
	}
}
