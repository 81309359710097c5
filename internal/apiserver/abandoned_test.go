// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/mortise-dev/mortise/internal/kinds/rbac"
	"github.com/mortise-dev/mortise/resource"
	"github.com/mortise-dev/mortise/store"
	"github.com/mortise-dev/mortise/store/local"
	"github.com/mortise-dev/mortise/store/local/disk"
)

// heldDisk is an in-memory disk whose next sync a test can block.
type heldDisk struct {
	*disk.Mem
	hold    chan struct{} // the test sends to it to block the next sync
	holding chan struct{} // receives when that sync has begun
	release chan struct{} // the test sends to it to continue the sync
}

func newHeldDisk() *heldDisk {
	d := &heldDisk{Mem: disk.NewMem(), hold: make(chan struct{}, 1), holding: make(chan struct{}), release: make(chan struct{})}
	d.Hook = func(op, _ string) error {
		if op != "datasync" && op != "sync" {
			return nil
		}
		select {
		case <-d.hold:
			d.holding <- struct{}{}
			<-d.release
		default:
		}
		return nil
	}
	return d
}

// TestCommitOfClientThatLeaves checks that followers of commits see a write whose client disconnects while it is being
// synced. The write becomes durable, so the roles that it grants or removes must be in force.
func TestCommitOfClientThatLeaves(t *testing.T) {
	d := newHeldDisk()
	engine, err := local.Open("/store", local.Options{Disk: d})
	if err != nil {
		t.Fatal(err)
	}
	var authority rbac.Authority
	s, err := New(Options{Store: store.New(engine), Kinds: []*resource.Descriptor{
		configMaps(), rbac.Role(authority), rbac.ClusterRole(authority), rbac.RoleBinding(authority), rbac.ClusterRoleBinding(authority),
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.end()
		s.lifetime.Group.Wait()
		if err := engine.Close(); err != nil {
			t.Errorf("close store: %v", err)
		}
	})
	const rbacPath = "/apis/rbac.authorization.k8s.io/v1/"
	// leave sends a request whose client disconnects during the sync, and returns when the server has finished it.
	leave := func(method, path, body string) {
		t.Helper()
		d.hold <- struct{}{}
		ctx, disconnect := context.WithCancel(t.Context())
		r := httptest.NewRequest(method, path, strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		if method == http.MethodPatch {
			r.Header.Set("Content-Type", "application/merge-patch+json")
		}
		admin := &user.DefaultInfo{Name: "root", Groups: []string{user.SystemPrivilegedGroup}}
		served := make(chan struct{})
		go func() {
			defer close(served)
			s.Handler().ServeHTTP(httptest.NewRecorder(), r.WithContext(request.WithUser(ctx, admin)))
		}()
		<-d.holding
		disconnect()
		d.release <- struct{}{}
		<-served
	}
	jane := func(want int) {
		t.Helper()
		if w := as(s, "jane", http.MethodGet, "/api/v1/namespaces/ns/configmaps", ""); w.Code != want {
			t.Errorf("jane lists config maps: %d, want %d: %s", w.Code, want, w.Body)
		}
	}
	jane(http.StatusForbidden)
	leave(http.MethodPost, rbacPath+"clusterroles",
		`{"metadata":{"name":"r"},"rules":[{"apiGroups":[""],"resources":["configmaps"],"verbs":["list"]}]}`)
	leave(http.MethodPost, rbacPath+"clusterrolebindings",
		`{"metadata":{"name":"b"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"r"},"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":"jane"}]}`)
	jane(http.StatusOK)
	leave(http.MethodPatch, rbacPath+"clusterroles/r", `{"rules":[{"apiGroups":[""],"resources":["configmaps"],"verbs":["get"]}]}`)
	jane(http.StatusForbidden)
	leave(http.MethodPatch, rbacPath+"clusterroles/r", `{"rules":[{"apiGroups":[""],"resources":["configmaps"],"verbs":["list"]}]}`)
	jane(http.StatusOK)
	leave(http.MethodDelete, rbacPath+"clusterrolebindings/b", "")
	jane(http.StatusForbidden)
}
