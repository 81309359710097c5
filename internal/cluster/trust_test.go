// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
	"k8s.io/client-go/util/cert"

	"github.com/mortise-dev/mortise/embed/options"
	"github.com/mortise-dev/mortise/internal/apiserver/authenticate"
	"github.com/mortise-dev/mortise/internal/kinds/bootstrap"
)

// authority is a certificate of an authority, PEM, and its common name.
func authority(t *testing.T, name string) string {
	t.Helper()
	pem, _, err := cert.GenerateSelfSignedCertKey(name, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem)
}

// awaitMap waits until a config map of kube-system is as done says.
func awaitMap(t *testing.T, s *Cluster, name string, done func(*corev1.ConfigMap) bool) *corev1.ConfigMap {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	lw := cache.NewListWatchFromClient(kubernetes.NewForConfigOrDie(s.Config()).CoreV1().RESTClient(), "configmaps", metav1.NamespaceSystem,
		fields.OneTermEqualSelector("metadata.name", name))
	e, err := watchtools.UntilWithSync(ctx, lw, &corev1.ConfigMap{}, nil, func(e watch.Event) (bool, error) {
		m, ok := e.Object.(*corev1.ConfigMap)
		return ok && e.Type != watch.Deleted && done(m), nil
	})
	if err != nil {
		t.Fatalf("await %s: %v", name, err)
	}
	return e.Object.(*corev1.ConfigMap)
}

// TestTrustsAreKept: extension API servers learn of authorities when their files change; what others wrote stays.
func TestTrustsAreKept(t *testing.T) {
	dir, first, second, proxy := t.TempDir(), authority(t, "first"), authority(t, "second"), authority(t, "proxy")
	clients, proxies := filepath.Join(dir, "clients"), filepath.Join(dir, "proxies")
	for path, text := range map[string]string{clients: "a comment\n" + first, proxies: proxy} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s, made := started(t, Settings{Controllers: []string{"none"}, APIServer: options.APIServer{Authentication: options.Authentication{
		ClientCAFile:  clients,
		RequestHeader: options.RequestHeader{ClientCAFile: proxies, AllowedNames: []string{"gate"}, UsernameHeaders: []string{"X-Who"}},
	}}})
	c := kubernetes.NewForConfigOrDie(s.Config()).CoreV1().ConfigMaps(metav1.NamespaceSystem)
	m, err := c.Get(t.Context(), bootstrap.AuthenticationName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"client-ca-file":                     string(made.material.CA.CertPEM) + bare(t, first),
		"requestheader-client-ca-file":       bare(t, proxy),
		"requestheader-allowed-names":        `["gate"]`,
		"requestheader-username-headers":     `["X-Who"]`,
		"requestheader-group-headers":        `[]`,
		"requestheader-extra-headers-prefix": `[]`,
	}
	if diff := cmp.Diff(want, m.Data); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if f := m.ManagedFields; len(f) != 1 || f[0].Manager != "kube-apiserver" || f[0].Operation != metav1.ManagedFieldsOperationUpdate {
		t.Errorf("managed by %+v", f)
	}

	m.Data["requestheader-allowed-names"] = `["other"]`
	if _, err := c.Update(t.Context(), m, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(clients, []byte(second), 0o600); err != nil {
		t.Fatal(err)
	}
	m = awaitMap(t, s, bootstrap.AuthenticationName, func(m *corev1.ConfigMap) bool {
		return strings.Contains(m.Data["client-ca-file"],
			bare(t, second))
	})
	if !strings.Contains(m.Data["client-ca-file"], bare(t, first)) || m.Data["requestheader-allowed-names"] != `["other","gate"]` {
		t.Errorf("after another authority: %v", m.Data)
	}

	if err := c.Delete(t.Context(), bootstrap.AuthenticationName, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	m = awaitMap(t, s, bootstrap.AuthenticationName, func(updated *corev1.ConfigMap) bool { return updated.UID != m.UID })
	if want["client-ca-file"] = string(made.material.CA.CertPEM) + bare(t, second); !maps.Equal(want, m.Data) {
		t.Errorf("after its deletion: %s", cmp.Diff(want, m.Data))
	}

	// The day since which uses of tokens are noted is corrected at once. Deleted, it would stay away for half an hour.
	since, err := c.Get(t.Context(), bootstrap.TrackingName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	right := since.Data[bootstrap.TrackingKey]
	since.Data = map[string]string{bootstrap.TrackingKey: "once", "other": "stays"}
	if _, err := c.Update(t.Context(), since, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	since = awaitMap(t, s, bootstrap.TrackingName, func(m *corev1.ConfigMap) bool { return m.Data[bootstrap.TrackingKey] != "once" })
	if since.Data[bootstrap.TrackingKey] < right || since.Data["other"] != "stays" {
		t.Errorf("corrected to %v", since.Data)
	}
	if err := c.Delete(t.Context(), bootstrap.TrackingName, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	k := &tracking{configMapPublisher: &configMapPublisher{server: made.server, self: made.self()}, made: time.Now().Add(-time.Minute)}
	if again, err := k.keep(t.Context()); err != nil || again < 28*time.Minute || again > 29*time.Minute {
		t.Errorf("made a minute ago: again after %v, %v", again, err)
	}
	k.made = time.Now().Add(-remakeAfter)
	if again, err := k.keep(t.Context()); err != nil || again != 0 {
		t.Errorf("made long ago: again after %v, %v", again, err)
	}
	awaitMap(t, s, bootstrap.TrackingName, func(m *corev1.ConfigMap) bool { return m.Data[bootstrap.TrackingKey] >= right })
}

// bare is the certificate without what stands around it, in the form that the server writes.
func bare(t *testing.T, pem string) string {
	t.Helper()
	b, err := unite([]byte(pem), nil, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestCombine(t *testing.T) {
	mine, theirs := authority(t, "mine"), authority(t, "theirs")
	tr := &trusts{clients: []byte(mine), names: []string{"a", "b"}, headers: authenticate.Headers{UID: []string{"X-Remote-Uid"}}}
	now := time.Now()
	if got, err := tr.combine(nil, now); err != nil || !slices.Equal(slices.Collect(maps.Keys(got)), []string{"client-ca-file"}) {
		t.Errorf("without proxies: %v, %v", got, err)
	}
	tr.proxies = []byte(mine + mine)
	got, err := tr.combine(map[string]string{
		"requestheader-client-ca-file": theirs, "requestheader-allowed-names": `["c","b","b"]`, "unknown": "goes",
		"requestheader-group-headers": "null",
	}, now)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"client-ca-file": bare(t, mine), "requestheader-client-ca-file": bare(t, theirs) + bare(t, mine),
		"requestheader-allowed-names": `["c","b","a"]`,
		"requestheader-uid-headers":   `["X-Remote-Uid"]`, "requestheader-username-headers": `[]`, "requestheader-group-headers": `[]`,
		"requestheader-extra-headers-prefix": `[]`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if got, err := tr.combine(want, now.AddDate(200, 0, 0)); err != nil || len(got) != 0 {
		t.Errorf("when all have expired: %v, %v", got, err)
	}
	for _, bad := range []map[string]string{{"client-ca-file": "none"}, {"requestheader-client-ca-file": "none"},
		{"requestheader-allowed-names": "{}"}} {
		if _, err := tr.combine(bad, now); err == nil {
			t.Errorf("%v is taken", bad)
		}
	}
}
