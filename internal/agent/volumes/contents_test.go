// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// issuer answers requests for tokens as it is told, and writes them down.
type issuer struct {
	*sources
	asked []string
	life  func() time.Time // when tokens end
}

func (i *issuer) Token(
	_ context.Context, namespace, account string, r *authenticationv1.TokenRequest,
) (*authenticationv1.TokenRequest, error) {
	if i.fail {
		return nil, errors.New("no token today")
	}
	i.asked = append(i.asked, fmt.Sprintf("%s/%s %q %ds for %s %s %s %s", namespace, account, r.Spec.Audiences, *r.Spec.ExpirationSeconds,
		r.Spec.BoundObjectRef.APIVersion, r.Spec.BoundObjectRef.Kind, r.Spec.BoundObjectRef.Name, r.Spec.BoundObjectRef.UID))
	r.Status = authenticationv1.TokenRequestStatus{Token: fmt.Sprint("token ", len(i.asked)), ExpirationTimestamp: metav1.NewTime(i.life())}
	return r, nil
}

func tokens(sources ...corev1.ServiceAccountTokenProjection) *corev1.Pod {
	pod := projecting(corev1.VolumeProjection{})
	projected := pod.Spec.Volumes[0].Projected
	projected.Sources = nil
	for i := range sources {
		projected.Sources = append(projected.Sources, corev1.VolumeProjection{ServiceAccountToken: &sources[i]})
	}
	return pod
}

// A token is asked for with the audience and for the time of its source, for the pod's account, bound to the pod.
func TestTokenRequests(t *testing.T) {
	m, s, _, _ := newManager(t)
	i := &issuer{sources: s, life: func() time.Time { return epoch.Add(time.Hour) }}
	m.Sources = i
	pod := tokens(
		corev1.ServiceAccountTokenProjection{Path: "a"},
		corev1.ServiceAccountTokenProjection{Path: "b", Audience: "vault"},
		corev1.ServiceAccountTokenProjection{Path: "c", Audience: "vault", ExpirationSeconds: new(int64(600))},
		corev1.ServiceAccountTokenProjection{Path: "sub/../d"},
	)
	nobody := pod.DeepCopy()
	nobody.UID, nobody.Name, nobody.Spec.ServiceAccountName = "w", "q", ""
	nobody.Spec.Volumes[0].Projected.Sources = nobody.Spec.Volumes[0].Projected.Sources[:1]
	for range 2 {
		for _, pod := range []*corev1.Pod{pod, nobody} {
			if err := m.SetUp(t.Context(), pod, nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	want := []string{
		`n/robot [] 3600s for v1 Pod p u`, `n/robot ["vault"] 3600s for v1 Pod p u`,
		`n/robot ["vault"] 600s for v1 Pod p u`, `n/default [] 3600s for v1 Pod q w`,
	}
	if diff := cmp.Diff(want, i.asked); diff != "" {
		t.Errorf("asked for (-want +got)\n%s", diff)
	}
	got := read(t, filepath.Join(m.PodDir("u"), "volumes/kubernetes.io~projected/v"))
	if diff := cmp.Diff(map[string]string{"a": "token 1", "b": "token 2", "c": "token 3", "d": "token 1"}, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// A token is renewed when a fifth of its life is left, and each day.
func TestWhenTokensAreRenewed(t *testing.T) {
	for name, c := range map[string]struct{ life, want time.Duration }{
		"an hour":           {time.Hour, 48 * time.Minute},
		"a week":            {7 * 24 * time.Hour, 24 * time.Hour},
		"no end is said":    {0, 8 * time.Minute},
		"it ended long ago": {-time.Hour, 8 * time.Minute},
		"a moment":          {5 * time.Nanosecond, 4 * time.Nanosecond},
	} {
		t.Run(name, func(t *testing.T) {
			m, s, _, clock := newManager(t)
			i := &issuer{sources: s, life: func() time.Time { return clock.Now().Add(c.life) }}
			m.Sources = i
			pod := tokens(corev1.ServiceAccountTokenProjection{Path: "a", ExpirationSeconds: new(int64(600))})
			after := func(step time.Duration, asked int) {
				t.Helper()
				clock.Step(step)
				if err := m.SetUp(t.Context(), pod, nil); err != nil || len(i.asked) != asked {
					t.Errorf("asked %d times, want %d; %v", len(i.asked), asked, err)
				}
			}
			after(0, 1)
			if got := m.NextRenewal("u"); !got.Equal(epoch.Add(c.want)) {
				t.Errorf("renewal after %v, want %v", got.Sub(epoch), c.want)
			}
			after(c.want-1, 1)
			after(1, 2)
		})
	}
}

// The next renewal is the first one of the pod, be it of a token or of a certificate. Pods that are gone are forgotten, others not.
func TestRenewalsOfPods(t *testing.T) {
	m, s, _, clock := newManager(t)
	ends := epoch.Add(2 * time.Hour)
	i := &issuer{sources: s, life: func() time.Time { return ends }}
	m.Sources = i
	m.Jitter = func() time.Duration { return 0 }
	pod := tokens(
		corev1.ServiceAccountTokenProjection{Path: "a"},
		corev1.ServiceAccountTokenProjection{Path: "b", Audience: "b"},
		corev1.ServiceAccountTokenProjection{Path: "c", Audience: "c"},
	)
	other := pod.DeepCopy()
	other.UID = "w"
	setUp := func(pod *corev1.Pod, want time.Duration) {
		t.Helper()
		if err := m.SetUp(t.Context(), pod, nil); err != nil {
			t.Fatal(err)
		}
		if got := m.NextRenewal(pod.UID); !got.Equal(epoch.Add(want)) {
			t.Errorf("renewal after %v, want %v", got.Sub(epoch), want)
		}
	}
	setUp(other, 96*time.Minute)
	ends = epoch.Add(time.Hour)
	setUp(pod, 48*time.Minute)
	// Of three tokens, the first one is renewed alone.
	clock.Step(50 * time.Minute)
	ends = epoch.Add(10 * time.Hour)
	setUp(pod, 50*time.Minute+550*time.Minute*4/5)
	setUp(other, 96*time.Minute)

	certified := pod.DeepCopy()
	source := everyFile
	projected := certified.Spec.Volumes[0].Projected
	projected.Sources = append(projected.Sources, corev1.VolumeProjection{PodCertificate: &source})
	if err := m.SetUp(t.Context(), certified, nil); err == nil {
		t.Fatal("a certificate is there that nobody issued")
	}
	s.answer(issuedType, "one", epoch.Add(time.Hour), epoch.Add(2*time.Hour))
	setUp(certified, time.Hour)
	setUp(other, 96*time.Minute)

	if err := m.TearDown("u"); err != nil {
		t.Fatal(err)
	}
	if got := m.NextRenewal("u"); !got.IsZero() {
		t.Errorf("a pod that is gone has a renewal at %v", got)
	}
	setUp(other, 96*time.Minute)
	asked := len(i.asked)
	setUp(pod, 50*time.Minute+550*time.Minute*4/5)
	if len(i.asked) != asked+3 {
		t.Error("tokens of a pod that is gone are used")
	}
}

// A token that cannot be renewed is used as long as it is valid.
func TestTokenThatCannotBeHad(t *testing.T) {
	m, s, _, clock := newManager(t)
	m.Sources = &issuer{sources: s, life: func() time.Time { return epoch.Add(2 * time.Hour) }}
	pod := tokens(corev1.ServiceAccountTokenProjection{Path: "a"})
	setUp := func(want string) {
		t.Helper()
		err := m.SetUp(t.Context(), pod, nil)
		if want == "" && err != nil || want != "" && (err == nil || err.Error() != `MountVolume.SetUp failed for volume "v" : `+want) {
			t.Errorf("error %v, want %s", err, want)
		}
	}
	s.fail = true
	setUp("failed to fetch token: no token today")
	s.fail = false
	setUp("")
	s.fail = true
	clock.Step(2*time.Hour - 1)
	setUp("")
	clock.Step(1)
	setUp("token expired and refresh failed: no token today")
}

// A token is for the one user that all containers run as, else for the pod's group, else for all.
func TestOwnersOfTokens(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: giving files away needs root")
	}
	running := func(users ...*int64) []corev1.Container {
		var out []corev1.Container
		for _, u := range users {
			out = append(out, corev1.Container{SecurityContext: &corev1.SecurityContext{RunAsUser: u}})
		}
		return out
	}
	one, two, group := new(int64(1)), new(int64(2)), new(int64(3))
	for name, c := range map[string]struct {
		pod       *corev1.PodSecurityContext
		init, own []corev1.Container
		uid, gid  uint32
		mode      os.FileMode
	}{
		"no user":                {nil, nil, running(nil), 0, 0, 0o644},
		"the container's":        {nil, nil, running(one), 1, 0, 0o600},
		"the pod's":              {&corev1.PodSecurityContext{RunAsUser: two}, nil, []corev1.Container{{}}, 2, 0, 0o600},
		"not the pod's":          {&corev1.PodSecurityContext{RunAsUser: two}, nil, running(one), 1, 0, 0o600},
		"the same":               {nil, running(one), running(new(int64(1)), one), 1, 0, 0o600},
		"the same as the pod's":  {&corev1.PodSecurityContext{RunAsUser: one}, running(one), running(nil), 1, 0, 0o600},
		"two":                    {nil, nil, running(one, two), 0, 0, 0o644},
		"another at first":       {nil, running(two), running(one), 0, 0, 0o644},
		"nobody knows the first": {nil, running(nil), running(one), 0, 0, 0o644},
		"a group":                {&corev1.PodSecurityContext{FSGroup: group}, nil, running(nil), 0, 3, 0o640},
		"a user and a group":     {&corev1.PodSecurityContext{FSGroup: group}, nil, running(one), 1, 3, 0o640},
		"other settings":         {&corev1.PodSecurityContext{}, nil, running(nil), 0, 0, 0o644},
	} {
		m, _, _, _ := newManager(t)
		pod := tokens(corev1.ServiceAccountTokenProjection{Path: "a"})
		pod.Spec.SecurityContext, pod.Spec.InitContainers, pod.Spec.Containers = c.pod, c.init, c.own
		if err := m.SetUp(t.Context(), pod, nil); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(filepath.Join(m.PodDir("u"), "volumes/kubernetes.io~projected/v/a"))
		if err != nil {
			t.Fatal(err)
		}
		if stat := info.Sys().(*syscall.Stat_t); stat.Uid != c.uid || stat.Gid != c.gid || info.Mode() != c.mode {
			t.Errorf("%s: owned by %d:%d, %v", name, stat.Uid, stat.Gid, info.Mode())
		}
	}
}

// A volume of the downward API holds the pod's fields, the node's and the pod's addresses, and what containers may use.
func TestDownwardAPIVolume(t *testing.T) {
	m, _, _, _ := newManager(t)
	m.Allocatable = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4")}
	item := func(path, field string, mode *int32) corev1.DownwardAPIVolumeFile {
		return corev1.DownwardAPIVolumeFile{Path: path, Mode: mode, FieldRef: &corev1.ObjectFieldSelector{FieldPath: field}}
	}
	source := &corev1.DownwardAPIVolumeSource{DefaultMode: new(int32(0o444)), Items: []corev1.DownwardAPIVolumeFile{
		item("labels", "metadata.labels", nil), item("sub/../pod", "status.podIP", new(int32(0o400))), item("host", "status.hostIP", nil),
		{Path: "limit", ResourceFieldRef: &corev1.ResourceFieldSelector{ContainerName: "c", Resource: "limits.memory"}},
		{Path: "cpu", ResourceFieldRef: &corev1.ResourceFieldSelector{ContainerName: "c", Resource: "limits.cpu"}},
	}}
	pod := holding(corev1.VolumeSource{DownwardAPI: source})
	pod.Labels = map[string]string{"app": "a"}
	limits := corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Mi")}
	pod.Spec.Containers = []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{Limits: limits}}}
	dir := filepath.Join(m.PodDir("u"), "volumes/kubernetes.io~downward-api/v")
	for _, hosts := range []func() []string{nil, func() []string { return []string{"10.0.0.1"} }} {
		m.HostIPs = hosts
		if err := m.SetUp(t.Context(), pod, []string{"10.1.0.2"}); err != nil {
			t.Fatal(err)
		}
		want := map[string]string{"labels": `app="a"`, "pod": "10.1.0.2", "host": "", "limit": "1048576", "cpu": "4"}
		if hosts != nil {
			want["host"] = "10.0.0.1"
		}
		if diff := cmp.Diff(want, read(t, dir)); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
	}
	for name, mode := range map[string]os.FileMode{"labels": 0o444, "pod": 0o400} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode() != mode {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
}

// Without items, a volume holds all of the keys; with items, those that there are.
func TestKeysOfMaps(t *testing.T) {
	missing := []corev1.KeyToPath{{Key: "no", Path: "a"}, {Key: "k", Path: "c"}}
	for name, c := range map[string]struct {
		source corev1.VolumeSource
		want   map[string]string
	}{
		"a configMap":   {configMap("cm", false), map[string]string{"k": "text", "b": "\x01"}},
		"an item":       {configMap("cm", false, corev1.KeyToPath{Key: "b", Path: "x/../y"}), map[string]string{"y": "\x01"}},
		"missing ones":  {configMap("cm", true, missing...), map[string]string{"c": "text"}},
		"a missing one": {configMap("no", true), map[string]string{}},
		"a secret":      {corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s"}}, map[string]string{"s": "secret"}},
		"no secret":     {corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "no", Optional: new(true)}}, map[string]string{}},
	} {
		m, _, _, _ := newManager(t)
		pod := holding(c.source)
		if err := m.SetUp(t.Context(), pod, nil); err != nil {
			t.Fatal(err)
		}
		dir, err := m.Path(t.Context(), pod, &pod.Spec.Volumes[0])
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(c.want, read(t, dir)); diff != "" {
			t.Errorf("%s (-want +got)\n%s", name, diff)
		}
	}
}
