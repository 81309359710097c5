// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"fmt"
	"math/big"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	defaultPath = "/api/v1/namespaces/default/"
	widgetsPath = "/apis/example.com/v1/namespaces/default/widgets"
	// swaps is how often one server takes the other's place. In the first ones, the new one is there before the old one is killed: both
	// serve one etcd. In the others the old one is killed first.
	swaps, overlapping = 10, 6
)

// TestHandOverUnderLoad puts kube-apiserver and Mortise in each other's place ten times, while clients write and client-go's informers
// watch through one address. Each server is killed. No acknowledged write is lost, both servers show the same at one revision, no address
// or port is allocated twice, and informers go on where they were.
func TestHandOverUnderLoad(t *testing.T) {
	binary := kubeAPIServer(t)
	c := launch(t, 1).ready(t)
	defer c.remove()
	dir := t.TempDir()
	begin := func(turn int) *server {
		if turn%2 == 0 {
			return upstream(t, c, dir, binary, &server{client: adminOf(t, dir)})
		}
		s, err := start(t, dir, "--store", "etcd", "--etcd-servers", strings.Join(c.urls, ","), "--advertise-address", "192.0.2.10",
			"--controllers", "none")
		must(t, err)
		return s
	}
	now := begin(1)
	definition(t, now)
	now.create(t, "/api/v1/namespaces/default/serviceaccounts", named("default", nil))
	fill(t, now, "before-")
	f := newFront(t)
	f.turn(now.url)
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(dir, "kubeconfig"))
	must(t, err)
	config.Host, config.QPS = f.url(), -1
	watched := []*watching{
		inform(t, config, "", "v1", "configmaps"), inform(t, config, "", "v1", "services"), inform(t, config, "example.com", "v1", "widgets"),
	}
	all := &loaders{}
	for i := range 4 {
		all.add(t, i, f.url(), adminOf(t, dir))
	}
	for i := range swaps {
		who := []string{"kube-apiserver", "Mortise"}[i%2]
		began, retried := time.Now(), all.retries()
		lists := make([]int, len(watched))
		for j, w := range watched {
			lists[j] = w.lists()
		}
		if i < overlapping {
			all.services.Lock()
			next := begin(i)
			all.services.Unlock()
			next.until(t, http.StatusOK, http.MethodGet, widgetsPath, "", nil)
			all.advance(t, 10)
			contend(t, i, now, next)
			sameAt(t, now, next)
			f.turn(next.url)
			now.kill()
			now = next
		} else {
			all.services.Lock()
			f.cut()
			now.kill()
			now = begin(i)
			all.services.Unlock()
			now.until(t, http.StatusOK, http.MethodGet, widgetsPath, "", nil)
			f.turn(now.url)
		}
		all.advance(t, 50)
		mark := fmt.Sprint("mark-", i)
		now.create(t, defaultPath+"configmaps", named(mark, nil))
		now.create(t, defaultPath+"services", named(mark, map[string]any{"spec": map[string]any{"ports": []any{map[string]any{"port": 80}}}}))
		now.create(t, widgetsPath, named(mark, map[string]any{"apiVersion": "example.com/v1", "kind": "Widget"}))
		for j, w := range watched {
			w.await(t, "default/"+mark)
			// A kube-apiserver that begins knows no changes from before.
			may := 0
			if i >= overlapping && i%2 == 0 {
				may = 1
			}
			if more := w.lists() - lists[j]; more > may {
				t.Errorf("swap %d to %s: the informer of %s has listed %d times", i, who, w.resource, more)
			}
		}
		t.Logf("swap %d to %s after %d ms: %d writes acknowledged so far, %d requests cut off by this swap", i, who,
			time.Since(began).Milliseconds(), all.acknowledged(), all.retries()-retried)
	}
	all.stop()
	for _, w := range all.each {
		for path, want := range w.known {
			code, got := now.ask(t, http.MethodGet, path, "", nil)
			if want == nil && code == http.StatusNotFound {
				continue
			}
			for _, d := range differences(path, any(want), any(got)) {
				t.Error(d)
			}
		}
	}
	allocations(t, c, now)
	for _, w := range watched {
		w.settle(t, now)
	}
	u := begin(0) // the last server is Mortise
	sameAt(t, now, u)
	t.Logf("%d writes acknowledged, %d sent again", all.acknowledged(), all.retries())
}

// adminOf returns an administrator's client of the server that has written the kubeconfig in a data directory, or will: then nil.
func adminOf(t *testing.T, dir string) *http.Client {
	t.Helper()
	var s server
	s.access(t, filepath.Join(dir, "kubeconfig"))
	return s.client
}

// contend creates Services at both servers at once, and objects of the same names.
func contend(t *testing.T, turn int, servers ...*server) {
	t.Helper()
	const each = 10
	var both sync.WaitGroup
	var mu sync.Mutex
	codes := map[int]int{}
	for i, s := range servers {
		both.Go(func() {
			for n := range each {
				code, got := s.ask(t, http.MethodPost, defaultPath+"services", "", named(fmt.Sprintf("both-%d-%d-%d", turn, i, n), map[string]any{
					"spec": map[string]any{"type": "NodePort", "ports": []any{map[string]any{"port": 80}}}}))
				if code != http.StatusCreated {
					t.Errorf("turn %d: create a Service: %d %v", turn, code, got)
				}
				code, _ = s.ask(t, http.MethodPost, defaultPath+"configmaps", "", named(fmt.Sprintf("one-%d-%d", turn, n), nil))
				mu.Lock()
				codes[code]++
				mu.Unlock()
			}
		})
	}
	both.Wait()
	if codes[http.StatusCreated] != each || codes[http.StatusConflict] != each {
		t.Errorf("turn %d: names created at both servers: %v", turn, codes)
	}
}

// sameAt compares all objects of two servers as they were at one revision, while clients write.
func sameAt(t *testing.T, a, b *server) {
	t.Helper()
	compared := 0
	for _, path := range collections(t, b) {
		if strings.HasSuffix(path, "/componentstatuses") || strings.Contains(path, "mortise.dev") { // what others see; Mortise's own
			continue
		}
		_, list := b.ask(t, http.MethodGet, path+"?limit=1", "", nil)
		revision, _ := field(list, "metadata", "resourceVersion").(string)
		exact := path + "?resourceVersionMatch=Exact&resourceVersion=" + url.QueryEscape(revision)
		// Each asks etcd for what it has not seen yet.
		x, y := items(t, a, exact), items(t, b, exact)
		told := differences(path, any(toAny(x)), any(toAny(y)))
		if len(told) > 0 {
			t.Errorf("%s at revision %s: %d differences:\n%s", path, revision, len(told), strings.Join(told[:min(len(told), 8)], "\n"))
		}
		compared += len(y)
	}
	t.Logf("%d objects are the same at both, at their revisions", compared)
}

func toAny(objects map[string]map[string]any) map[string]any {
	out := map[string]any{}
	for name, o := range objects {
		out[name] = o
	}
	return out
}

// allocations compares the allocated addresses and ports with those that Services have. Those of a Service whose creation was cut off may
// stay allocated until a server repairs them.
func allocations(t *testing.T, c *members, s *server) {
	t.Helper()
	services, addresses, ports := items(t, s, "/api/v1/services"), sets.Set[string]{}, sets.Set[int]{}
	for name, o := range services {
		ip, _ := field(o, "spec", "clusterIP").(string)
		if ip == "None" {
			continue
		}
		if addresses.Has(ip) || ip == "" {
			t.Errorf("the address %q of %s belongs to another Service, too", ip, name)
		}
		addresses.Insert(ip)
		list, _ := field(o, "spec", "ports").([]any)
		for _, p := range list {
			if port, ok := p.(map[string]any)["nodePort"].(float64); ok {
				if ports.Has(int(port)) {
					t.Errorf("the port %v of %s belongs to another Service, too", port, name)
				}
				ports.Insert(int(port))
			}
		}
	}
	allocated := sets.Set[string]{}
	for name := range items(t, s, "/apis/networking.k8s.io/v1/ipaddresses") {
		allocated.Insert(strings.TrimPrefix(name, "<nil>/"))
	}
	if missing := addresses.Difference(allocated); len(missing) > 0 {
		t.Errorf("addresses of Services that are not allocated: %v", sets.List(missing))
	}
	client := c.client(t)
	defer client.Close()
	got, err := client.Get(t.Context(), "/registry/ranges/servicenodeports")
	must(t, err)
	decoded, _, err := scheme.Codecs.UniversalDeserializer().Decode(got.Kvs[0].Value, nil, nil)
	must(t, err)
	bits := new(big.Int).SetBytes(decoded.(*corev1.RangeAllocation).Data)
	set := sets.Set[int]{}
	for i := range bits.BitLen() {
		if bits.Bit(i) == 1 {
			set.Insert(30000 + i)
		}
	}
	if missing := ports.Difference(set); len(missing) > 0 {
		t.Errorf("ports of Services that are not allocated: %v", sets.List(missing))
	}
	t.Logf("%d addresses and %d ports of Services; %d and %d allocated without a Service", len(addresses), len(ports),
		len(allocated.Difference(addresses)), len(set.Difference(ports)))
}
