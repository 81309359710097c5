// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apiserverinternalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"

	"github.com/mortise-dev/mortise/internal/kinds/bootstrap"
	"github.com/mortise-dev/mortise/resource"
)

// reporting starts an API server with the feature gate.
func reporting(t *testing.T) (*assembly, kubernetes.Interface) {
	t.Helper()
	_, a := started(t, Settings{
		Controllers: []string{"none"}, FeatureGates: map[string]bool{storageVersionsGate: true},
		RuntimeConfig: map[string]string{"internal.apiserver.k8s.io/v1alpha1": "true"},
	})
	return a, a.self().ownClient()
}

// TestStorageVersionsAsUpstream compares the reports with those of kube-apiserver 1.37.1: names, encoding and served versions. Mortise
// stores definitions as v1, and does not say that it can decode versions which no server serves any more.
func TestStorageVersionsAsUpstream(t *testing.T) {
	_, client := reporting(t)
	all, err := client.InternalV1alpha1().StorageVersions().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	own, _ := serverID()
	for _, v := range all.Items {
		if len(v.Status.StorageVersions) != 1 || v.Status.CommonEncodingVersion == nil || len(v.Status.Conditions) != 1 {
			t.Fatalf("%s: %+v", v.Name, v.Status)
		}
		is, c := v.Status.StorageVersions[0], v.Status.Conditions[0]
		if is.APIServerID != own || *v.Status.CommonEncodingVersion != is.EncodingVersion || c.Reason != "CommonEncodingVersionSet" ||
			c.Status != apiserverinternalv1alpha1.ConditionTrue || c.LastTransitionTime.IsZero() {
			t.Errorf("%s: %+v", v.Name, v.Status)
		}
		got = append(got, fmt.Sprint(v.Name, " ", is.EncodingVersion, " ", strings.Join(is.ServedVersions, ",")))
	}
	golden, err := os.ReadFile("testdata/storageversions.txt")
	if err != nil {
		t.Fatal(err)
	}
	const definitions = "apiextensions.k8s.io.customresourcedefinitions apiextensions.k8s.io/"
	text := strings.Replace(strings.TrimSpace(string(golden)), definitions+"v1beta1", definitions+"v1", 1)
	want := strings.Split(text, "\n")
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("storage versions (-upstream +ours):\n%s", d)
	}
	role, err := client.RbacV1().ClusterRoles().Get(t.Context(), "system:controller:storage-version-garbage-collector", metav1.GetOptions{})
	if err != nil || len(role.Rules) != 3 {
		t.Errorf("the role of the collector: %v, %v", role, err)
	}
}

// TestStorageVersionsOfSeveralServers: servers that store in different versions have none in common, and what a server has reported goes
// with its Lease.
func TestStorageVersionsOfSeveralServers(t *testing.T) {
	a, client := reporting(t)
	versions, held := client.InternalV1alpha1().StorageVersions(), client.CoordinationV1().Leases(metav1.NamespaceSystem)
	const older = "apiserver-older"
	l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
		Name: older, Labels: map[string]string{bootstrap.IdentityLabel: bootstrap.IdentityValue},
	}}
	if _, err := held.Create(t.Context(), l, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	other := &storageVersions{server: older, log: a.settings.Logger}
	other.backend, other.reports = a.server.Backend(), []storageVersion{
		{name: "batch.jobs", is: apiserverinternalv1alpha1.ServerStorageVersion{
			APIServerID: older, EncodingVersion: "batch/v0", DecodableVersions: []string{"batch/v0"},
		}},
		{name: "gone.things", is: apiserverinternalv1alpha1.ServerStorageVersion{
			APIServerID: older, EncodingVersion: "gone/v1", DecodableVersions: []string{"gone/v1"},
		}},
	}
	other.keep(t.Context())
	jobs := func(common bool, servers int) *apiserverinternalv1alpha1.StorageVersion {
		t.Helper()
		v, err := versions.Get(t.Context(), "batch.jobs", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if (v.Status.CommonEncodingVersion != nil) != common || len(v.Status.StorageVersions) != servers ||
			(v.Status.Conditions[0].Status == apiserverinternalv1alpha1.ConditionTrue) != common {
			t.Errorf("%d servers: %+v", servers, v.Status)
		}
		return v
	}
	before := jobs(false, 2)
	a.versions.keep(t.Context())
	if again := jobs(false, 2); again.ResourceVersion != before.ResourceVersion {
		t.Error("a report that is as it should be was written again")
	}
	if err := held.Delete(t.Context(), older, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	a.versions.keep(t.Context())
	jobs(true, 1)
	if _, err := versions.Get(t.Context(), "gone.things", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the report of a server that is gone: %v", err)
	}
	if err := versions.Delete(t.Context(), "batch.jobs", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	a.versions.keep(t.Context())
	jobs(true, 1)
}

// failing is a backend that cannot write reports.
type failing struct {
	resource.Backend
	resource.ServerWriter
	err error
}

func (f failing) UpdateAsServer(context.Context, schema.GroupResource, string, string, string, bool, func(resource.Object) error) (
	resource.Object, error,
) {
	return nil, f.err
}

// TestWritesWaitForStorageVersions: writes of a kind are refused until its storage version is reported, as kube-apiserver refuses them.
func TestWritesWaitForStorageVersions(t *testing.T) {
	a, client := reporting(t)
	s := a.versions
	working, kinds := s.backend, builtInOf(a.server)
	s.begin(failing{working, working.(resource.ServerWriter), errors.New("no quorum")}, kinds)
	s.keep(t.Context())
	maps := client.CoreV1().ConfigMaps("default")
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
	_, err := maps.Create(t.Context(), m, metav1.CreateOptions{})
	const want = "wait for storage version registration to complete for resource: configmaps, last seen error: no quorum"
	if !apierrors.IsServiceUnavailable(err) || err.Error() != want {
		t.Errorf("a write: %v", err)
	}
	if _, err := maps.List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Errorf("a read: %v", err)
	}
	l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "leader"}}
	if _, err := client.CoordinationV1().Leases(metav1.NamespaceSystem).Create(t.Context(), l, metav1.CreateOptions{}); err != nil {
		t.Errorf("a Lease of kube-system: %v", err)
	}
	s.begin(working, kinds)
	s.keep(t.Context())
	if _, err := maps.Create(t.Context(), m, metav1.CreateOptions{}); err != nil {
		t.Errorf("a write after the report: %v", err)
	}
}

// TestAgree: the time of the condition is that of the last change of the common version.
func TestAgree(t *testing.T) {
	v := &apiserverinternalv1alpha1.StorageVersion{}
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for i, step := range []struct {
		encodings string
		common    string
		changed   int // the step that the condition's time is of
	}{
		{"v1", "v1", 0}, {"v1 v1", "v1", 0}, {"v1 v2", "", 2}, {"v2 v1", "", 2}, {"v2 v2", "v2", 4}, {"v3", "v3", 5}, {"", "", 6},
	} {
		v.Status.StorageVersions = nil
		for _, e := range strings.Fields(step.encodings) {
			v.Status.StorageVersions = append(v.Status.StorageVersions, apiserverinternalv1alpha1.ServerStorageVersion{EncodingVersion: e})
		}
		agree(v, begin.Add(time.Duration(i)*time.Hour))
		common := ""
		if c := v.Status.CommonEncodingVersion; c != nil {
			common = *c
		}
		at := v.Status.Conditions[0].LastTransitionTime.Time
		if common != step.common || len(v.Status.Conditions) != 1 || !at.Equal(begin.Add(time.Duration(step.changed)*time.Hour)) {
			t.Errorf("%q: common version %q, changed at %v", step.encodings, common, at)
		}
	}
}
