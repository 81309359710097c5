// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/mortise-dev/mortise/store"
	"github.com/mortise-dev/mortise/store/etcd"
	"github.com/mortise-dev/mortise/store/local"
	"github.com/mortise-dev/mortise/store/mvcc"
	"github.com/mortise-dev/mortise/store/storetest"
	"github.com/mortise-dev/mortise/test/programs"
)

const defaultMaps = "/api/v1/namespaces/default/configmaps"

// many is more config maps than one page of the backup's reads from etcd has.
const many = 6000

// writeMany writes config maps to etcd, which a server did not write.
func writeMany(t *testing.T, client *clientv3.Client) {
	t.Helper()
	for i := 0; i < many; i += 100 {
		var ops []clientv3.Op
		for j := range 100 {
			name := fmt.Sprintf("many-%05d", i+j)
			ops = append(ops, clientv3.OpPut("/registry/configmaps/default/"+name, fmt.Sprintf(
				`{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":%q,"namespace":"default","uid":%q}}`, name, name)))
		}
		_, err := client.Txn(t.Context()).Then(ops...).Commit()
		must(t, err)
	}
}

// mapsAt returns the config maps of a revision, 0 for the newest one: their data and their revisions, by name.
func mapsAt(t *testing.T, s *server, at int64) map[string]string {
	t.Helper()
	path := defaultMaps
	if at > 0 {
		path += fmt.Sprintf("?resourceVersionMatch=Exact&resourceVersion=%d", at)
	}
	code, list := s.ask(t, http.MethodGet, path, "", nil)
	if code != http.StatusOK {
		t.Fatalf("%s: %d %v", path, code, list)
	}
	all := map[string]string{}
	for _, item := range list["items"].([]any) {
		o := item.(map[string]any)
		all[field(o, "metadata", "name").(string)] = fmt.Sprint(o["data"], " at ", field(o, "metadata", "resourceVersion"))
	}
	return all
}

// backedUp runs `mortise store backup` for a data directory and returns the revision that it tells.
func backedUp(t *testing.T, file, dir string, flags ...string) (revision int64) {
	t.Helper()
	args := append([]string{"store", "backup", file, "--data-dir", dir}, flags...)
	out, err := exec.Command(programs.Path("mortise"), args...).CombinedOutput()
	if err != nil {
		t.Fatalf("back up: %v\n%s", err, out)
	}
	_, text, _ := strings.Cut(string(out), "at revision ")
	_, err = fmt.Sscan(text, &revision)
	must(t, err)
	return revision
}

// TestBackUpEtcd backs up a server on etcd while it is written to, now and in the past. The backups have all objects of their revision and
// can be restored into a data directory, into a new etcd, and into the same one, where informers go back in time.
func TestBackUpEtcd(t *testing.T) {
	c := launch(t, 1).ready(t)
	defer c.remove()
	dir, files := t.TempDir(), t.TempDir()
	s, err := start(t, dir, "--store", "etcd", "--etcd-servers", strings.Join(c.urls, ","))
	must(t, err)
	client := c.client(t)
	defer client.Close()
	writeMany(t, client)
	s.create(t, "/api/v1/namespaces/default/events", map[string]any{
		"metadata": map[string]any{"name": "e", "namespace": "default"}, "reason": "Tried", "message": "m",
		"involvedObject": map[string]any{"kind": "ConfigMap", "name": "c", "namespace": "default"},
	})
	point := revision(t, s.create(t, defaultMaps, named("past", nil)))
	s.must(t, http.MethodDelete, defaultMaps+"/past", nil)
	s.create(t, defaultMaps, named("busy", nil))

	ctx, stop := context.WithCancel(t.Context())
	var writing sync.WaitGroup
	writing.Go(func() {
		for n := 0; ctx.Err() == nil; n++ {
			o := named("busy", map[string]any{"data": map[string]any{"n": fmt.Sprint(n)}})
			if code, got := s.ask(t, http.MethodPut, defaultMaps+"/busy", "", o); code != http.StatusOK {
				t.Errorf("write: %d %v", code, got)
			}
		}
	})
	now, then := filepath.Join(files, "now"), filepath.Join(files, "then")
	newest := backedUp(t, now, dir)
	if got := backedUp(t, then, dir, "--revision", fmt.Sprint(point)); got != point {
		t.Errorf("the backup of revision %d has %d", point, got)
	}
	stop()
	writing.Wait()
	want, past := mapsAt(t, s, newest), mapsAt(t, s, point)
	if _, ok := past["past"]; !ok || len(want) <= many {
		t.Fatalf("%d config maps, %d in the past", len(want), len(past))
	}

	// Into a data directory.
	for file, want := range map[string]map[string]string{now: want, then: past} {
		to := t.TempDir()
		must(t, os.CopyFS(filepath.Join(to, "pki"), os.DirFS(filepath.Join(dir, "pki"))))
		mortise(t, "store", "restore", file, "--data-dir", to)
		restored, err := start(t, to)
		must(t, err)
		if got := mapsAt(t, restored, 0); !maps.Equal(got, want) {
			t.Errorf("%s in a data directory: %d config maps, want %d", filepath.Base(file), len(got), len(want))
		}
		restored.must(t, http.MethodGet, "/api/v1/namespaces/default/events/e", nil)
		restored.kill()
	}

	// Into a new etcd, by a file.
	snapshot := filepath.Join(files, "snapshot.db")
	mortise(t, "store", "restore", now, "--to", snapshot)
	fresh := unstarted(t, 1)
	defer fresh.remove()
	out, err := exec.Command(programs.Path("etcdutl"), "snapshot", "restore", snapshot, "--data-dir", fresh.data(0), "--name", "m0",
		"--initial-cluster", "m0="+fresh.peers[0], "--initial-advertise-peer-urls", fresh.peers[0]).CombinedOutput()
	if err != nil {
		t.Fatalf("etcdutl refuses the file: %v\n%s", err, out)
	}
	fresh.start(t, 0)
	restored := up(t, fresh.ready(t), filepath.Join(dir, "pki"))
	if got := mapsAt(t, restored, 0); !maps.Equal(got, want) {
		t.Errorf("in a new etcd: %d config maps, want %d", len(got), len(want))
	}
	if made := revision(t, restored.create(t, defaultMaps, named("later", nil))); made <= newest+1_000_000 {
		t.Errorf("in a new etcd, an object has revision %d, and clients may have seen %d", made, newest)
	}
	restored.kill()

	// Refusals name the reason, and write no file.
	_, err = client.Compact(t.Context(), newest)
	must(t, err)
	for flag, says := range map[string]string{
		fmt.Sprint("--revision=", point):          fmt.Sprint("the history begins at revision ", newest),
		fmt.Sprint("--revision=", newest+100_000): "the store is at revision",
		"--at=2001-01-01T00:00:00Z":               "before this server has begun",
		"--at=2101-01-01T00:00:00Z":               "future",
	} {
		none := filepath.Join(files, "none")
		out, err := exec.Command(programs.Path("mortise"), "store", "backup", none, "--data-dir", dir, flag).CombinedOutput()
		if _, other := os.Stat(none); err == nil || !strings.Contains(string(out), says) || other == nil {
			t.Errorf("%s: %v, %s", flag, err, out)
		}
	}
	timeMachine(t, c, s, dir, then, past)
}

// timeMachine restores a backup into the etcd that it is from. An informer that has followed the server sees what was restored.
func timeMachine(t *testing.T, c *members, s *server, dir, backup string, want map[string]string) {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(dir, "kubeconfig"))
	must(t, err)
	w := inform(t, config, "", "v1", "configmaps")
	w.await(t, "default/busy")
	s.kill()
	client := c.client(t)
	defer client.Close()
	_, err = client.Delete(t.Context(), "/registry/", clientv3.WithPrefix())
	must(t, err)
	mortise(t, "store", "restore", backup, "--to", "etcd://"+strings.TrimPrefix(c.urls[0], "http://"), "--bump", "0")
	again, err := start(t, dir, "--store", "etcd", "--etcd-servers", strings.Join(c.urls, ","),
		"--listen", strings.TrimPrefix(s.url, "https://"))
	must(t, err)
	again.must(t, http.MethodGet, defaultMaps+"/past", nil)
	has := func(name string) bool {
		_, ok, err := w.informer.GetStore().GetByKey("default/" + name)
		return ok && err == nil
	}
	late := time.After(limit)
	for !has("past") || has("busy") {
		w.mu.Lock()
		seen := w.seen
		w.mu.Unlock()
		if has("past") && !has("busy") {
			break
		}
		select {
		case <-seen:
		case <-late:
			t.Fatalf("the informer has %d config maps: past %v, busy %v", len(w.informer.GetStore().ListKeys()), has("past"), has("busy"))
		}
	}
	for name := range want {
		if !has(name) {
			t.Errorf("the informer lacks %s", name)
		}
	}
}

// TestBackUpEtcdAtATime: an engine knows the times of the revisions that it has seen come, and a backup has when its leases end.
func TestBackUpEtcdAtATime(t *testing.T) {
	c := launch(t, 1).ready(t)
	defer c.remove()
	clock := storetest.NewClock()
	engine := func() *etcd.Engine {
		e, err := etcd.Open(t.Context(), etcd.Options{Servers: c.urls, Clock: clock, Options: mvcc.Options{MarkEvery: -1}})
		must(t, err)
		t.Cleanup(func() { _ = e.Close() })
		return e
	}
	e := engine()
	write := func(value string, ttl time.Duration) int64 {
		t.Helper()
		at, _, err := e.Commit(t.Context(), store.Op{Key: "/registry/a/" + value, Value: []byte(value), TTL: ttl})
		must(t, err)
		return at
	}
	first := write("1", 0)
	began := clock.Now()
	clock.Advance(time.Minute)
	second := write("2", time.Hour)
	late := engine() // knows nothing of what was before
	clock.Advance(time.Minute)
	third := write("3", 0)
	must(t, late.Probe(t.Context()))
	backUp := func(e *etcd.Engine, state store.Point) (store.Content, error) {
		t.Helper()
		var b bytes.Buffer
		at, err := e.BackupAt(t.Context(), &b, state)
		if err != nil {
			if b.Len() > 0 {
				t.Errorf("%v: %d bytes beside the error %v", state, b.Len(), err)
			}
			return store.Content{}, err
		}
		got, err := local.ReadBackup(t.Context(), &b)
		must(t, err)
		if got.Revision != at {
			t.Errorf("%v: revision %d in the backup, %d beside it", state, got.Revision, at)
		}
		return got, nil
	}
	for _, c := range []struct {
		e    *etcd.Engine
		at   store.Point
		want int64
	}{
		{e, store.Point{}, third}, {e, store.Point{Revision: second}, second}, {late, store.Point{Revision: first}, first},
		{e, store.Point{Time: began}, first}, {e, store.Point{Time: began.Add(time.Minute)}, second},
		{e, store.Point{Time: began.Add(90 * time.Second)}, second}, {e, store.Point{Time: clock.Now()}, third},
		{late, store.Point{Time: began.Add(time.Minute)}, second}, {late, store.Point{Time: began.Add(2 * time.Minute)}, third},
	} {
		got, err := backUp(c.e, c.at)
		if err != nil || got.Revision != c.want || int64(len(got.Records)) != c.want-first+1 {
			t.Errorf("%v: revision %d with %d keys, want %d: %v", c.at, got.Revision, len(got.Records), c.want, err)
		}
		for _, r := range got.Records {
			ends := r.Expires.Sub(clock.Now())
			if string(r.Value) == "2" && (ends < 59*time.Minute || ends > 64*time.Minute) || string(r.Value) != "2" && !r.Expires.IsZero() {
				t.Errorf("%v: %s ends at %v", c.at, r.Key, r.Expires)
			}
		}
	}
	if _, err := backUp(late, store.Point{Time: began}); !errors.Is(err, store.ErrCompacted) || !strings.Contains(err.Error(), "has begun") {
		t.Errorf("a time before the start: %v", err)
	}
	if _, err := backUp(e, store.Point{Time: clock.Now().Add(time.Second)}); !errors.Is(err, store.ErrFuture) {
		t.Errorf("a time to come: %v", err)
	}
	must(t, e.Compact(t.Context(), second))
	if _, err := backUp(late, store.Point{Revision: first}); !errors.Is(err, store.ErrCompacted) ||
		!strings.Contains(err.Error(), fmt.Sprint("the history begins at revision ", second)) {
		t.Errorf("a compacted revision: %v", err)
	}
}
