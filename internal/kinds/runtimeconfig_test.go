// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package kinds

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourcev1 "k8s.io/api/resource/v1"
	resourcev1beta1 "k8s.io/api/resource/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mortise-dev/mortise/resource"
)

func TestRuntimeConfigRefuses(t *testing.T) {
	for _, c := range []struct{ key, value, want string }{
		{"api/all", "false", "invalid runtime-config with only api/all=false"},
		{"api/beta", "yes", "invalid value api/beta=yes"},
		{"api/beta", "", "invalid value api/beta="},
		{"v1", "true", "runtime-config invalid key v1"},
		{"a/b/c/d", "true", "runtime-config invalid key a/b/c/d"},
		{"foo/v1", "true", "unknown api groups foo/v1"},
		{"apps/v9", "true", "group version apps/v9 that has not been registered"},
		{"apps/v1", "maybe", `invalid value of apps/v1: maybe, err: strconv.ParseBool: parsing "maybe": invalid syntax`},
		{"apps/v1/Deployments", "true", `invalid key apps/v1/Deployments: group/version/resource and resource is always lowercase plural, not "Deployments"`},
	} {
		if _, err := ParseRuntimeConfig(map[string]string{c.key: c.value}); err == nil || err.Error() != c.want {
			t.Errorf("%s=%s: %v, want %s", c.key, c.value, err, c.want)
		}
	}
}

func TestRuntimeConfigServes(t *testing.T) {
	for _, c := range []struct {
		config map[string]string
		served []string // of those below
	}{
		{nil, []string{"apps/v1/deployments", "resource.k8s.io/v1/resourceclaims"}},
		{map[string]string{"api/beta": "true"}, []string{"apps/v1/deployments", "coordination.k8s.io/v1beta1/leasecandidates",
			"resource.k8s.io/v1/resourceclaims", "resource.k8s.io/v1beta1/resourceclaims"}},
		{map[string]string{"api/all": "true", "api/alpha": "false"},
			[]string{"apps/v1/deployments", "coordination.k8s.io/v1beta1/leasecandidates", "resource.k8s.io/v1/resourceclaims",
				"resource.k8s.io/v1beta1/resourceclaims"}},
		{map[string]string{"api/alpha": "true", "apps/v1": "false"},
			[]string{"internal.apiserver.k8s.io/v1alpha1/storageversions", "resource.k8s.io/v1/resourceclaims"}},
		{map[string]string{"api/all": "false", "apps/v1": ""}, []string{"apps/v1/deployments"}},
		{map[string]string{"apps/v1/deployments": "false", "resource.k8s.io/v1beta1/resourceclaims": "true"},
			[]string{"resource.k8s.io/v1/resourceclaims", "resource.k8s.io/v1beta1/resourceclaims"}},
		{map[string]string{"resource.k8s.io/v1": "false", "resource.k8s.io/v1beta1": "true"},
			[]string{"apps/v1/deployments", "resource.k8s.io/v1beta1/resourceclaims"}},
	} {
		config, err := ParseRuntimeConfig(c.config)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, d := range All(Options{RuntimeConfig: config}) {
			if !slices.Contains([]string{"deployments", "leasecandidates", "resourceclaims", "storageversions"}, d.Resource) {
				continue
			}
			for _, v := range d.Versions {
				if !v.Unserved && v.Name != "v1beta2" && v.Name != "v1alpha2" {
					got = append(got, d.Group+"/"+v.Name+"/"+d.Resource)
				}
			}
		}
		slices.Sort(got)
		if diff := cmp.Diff(c.served, got); diff != "" {
			t.Errorf("%v (-want +got):\n%s", c.config, diff)
		}
	}
}

// Versions of all maturities convert to the stored one and back, and lose nothing.
func TestFurtherVersionsConvert(t *testing.T) {
	config, err := ParseRuntimeConfig(map[string]string{"api/all": "true"})
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, d := range All(Options{RuntimeConfig: config}) {
		for _, v := range d.Versions {
			if v.ToHub == nil || d.Group == "autoscaling" || d.HubGroupVersionKind().Group != d.Group {
				continue
			}
			found++
			obj := v.New()
			obj.SetName("x")
			hub, err := v.ToHub(obj)
			if err != nil {
				t.Errorf("%s %s: %v", d.Resource, v.Name, err)
				continue
			}
			back, err := v.FromHub(hub)
			if err != nil || back.GetName() != "x" {
				t.Errorf("%s %s: %v", d.Resource, v.Name, err)
			}
		}
	}
	if want := len(furtherVersions()); found != want {
		t.Errorf("%d versions convert, want %d", found, want)
	}
	i := slices.IndexFunc(furtherVersions(), func(f further) bool { return f.resource == "resourceclaims" && f.version == "v1beta1" })
	d := &resource.Descriptor{Group: "resource.k8s.io", Kind: "ResourceClaim", Storage: "v1", Versions: []resource.Version{{
		Name: "v1", New: func() resource.Object { return &resourcev1.ResourceClaim{} },
	}}}
	furtherVersions()[i].add(d, "v1beta1")
	old := &resourcev1beta1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "c"},
		Spec: resourcev1beta1.ResourceClaimSpec{Devices: resourcev1beta1.DeviceClaim{
			Requests: []resourcev1beta1.DeviceRequest{{Name: "r", DeviceClassName: "gpu", Count: 2}},
		}},
	}
	hub, err := d.Versions[1].ToHub(old.DeepCopy())
	if err != nil {
		t.Fatal(err)
	}
	if r := hub.(*resourcev1.ResourceClaim).Spec.Devices.Requests[0]; r.Exactly == nil || r.Exactly.DeviceClassName != "gpu" ||
		r.Exactly.Count != 2 {
		t.Errorf("request %+v", r)
	}
	back, err := d.Versions[1].FromHub(hub)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(old, back); diff != "" {
		t.Error(diff)
	}
}
