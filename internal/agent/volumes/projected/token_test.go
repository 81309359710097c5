// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package projected

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/mortise-dev/mortise/internal/agent/volumes"
	"github.com/mortise-dev/mortise/internal/agent/volumes/disktest"
	"github.com/mortise-dev/mortise/internal/agent/volumes/volumetest"
)

// sources is an API server with a signer.
type sources struct {
	*volumetest.Sources
	*signer
}

func (s *sources) RequestCertificate(ctx context.Context, r *certificatesv1.PodCertificateRequest) (*certificatesv1.PodCertificateRequest,
	error) {
	return s.signer.RequestCertificate(ctx, r)
}

func (s *sources) CertificateRequest(ctx context.Context, namespace, name string) (*certificatesv1.PodCertificateRequest, error) {
	return s.signer.CertificateRequest(ctx, namespace, name)
}

func newManager(t *testing.T) (*volumes.Manager, *sources, volumetest.Kernel, *clocktesting.FakeClock) {
	m, s, k, c := volumetest.New(t, New)
	with := &sources{s, &signer{}}
	m.Sources = with
	return m, with, k, c
}

// issuer answers requests for tokens as it is told, and writes them down.
type issuer struct {
	*sources
	asked []string
	life  func() time.Time // when tokens end
}

func (i *issuer) Token(
	_ context.Context, namespace, account string, r *authenticationv1.TokenRequest,
) (*authenticationv1.TokenRequest, error) {
	if i.Fail {
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
	i := &issuer{sources: s, life: func() time.Time { return volumetest.Epoch.Add(time.Hour) }}
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
	got := disktest.Read(t, filepath.Join(m.PodDir("u"), "volumes/kubernetes.io~projected/v"))
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
			if got := m.NextRenewal("u"); !got.Equal(volumetest.Epoch.Add(c.want)) {
				t.Errorf("renewal after %v, want %v", got.Sub(volumetest.Epoch), c.want)
			}
			after(c.want-1, 1)
			after(1, 2)
		})
	}
}

// The next renewal is the first one of the pod, be it of a token or of a certificate. Pods that are gone are forgotten, others not.
func TestRenewalsOfPods(t *testing.T) {
	m, s, _, clock := newManager(t)
	ends := volumetest.Epoch.Add(2 * time.Hour)
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
		if got := m.NextRenewal(pod.UID); !got.Equal(volumetest.Epoch.Add(want)) {
			t.Errorf("renewal after %v, want %v", got.Sub(volumetest.Epoch), want)
		}
	}
	setUp(other, 96*time.Minute)
	ends = volumetest.Epoch.Add(time.Hour)
	setUp(pod, 48*time.Minute)
	// Of three tokens, the first one is renewed alone.
	clock.Step(50 * time.Minute)
	ends = volumetest.Epoch.Add(10 * time.Hour)
	setUp(pod, 50*time.Minute+550*time.Minute*4/5)
	setUp(other, 96*time.Minute)

	certified := pod.DeepCopy()
	source := everyFile
	projected := certified.Spec.Volumes[0].Projected
	projected.Sources = append(projected.Sources, corev1.VolumeProjection{PodCertificate: &source})
	if err := m.SetUp(t.Context(), certified, nil); err == nil {
		t.Fatal("a certificate is there that nobody issued")
	}
	s.answer(issuedType, "one", volumetest.Epoch.Add(time.Hour), volumetest.Epoch.Add(2*time.Hour))
	setUp(certified, time.Hour)
	setUp(other, 96*time.Minute)

	if err := m.TearDown(t.Context(), "u"); err != nil {
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
	m.Sources = &issuer{sources: s, life: func() time.Time { return volumetest.Epoch.Add(2 * time.Hour) }}
	pod := tokens(corev1.ServiceAccountTokenProjection{Path: "a"})
	setUp := func(want string) {
		t.Helper()
		err := m.SetUp(t.Context(), pod, nil)
		if want == "" && err != nil || want != "" && (err == nil || err.Error() != `MountVolume.SetUp failed for volume "v" : `+want) {
			t.Errorf("error %v, want %s", err, want)
		}
	}
	s.Fail = true
	setUp("failed to fetch token: no token today")
	s.Fail = false
	setUp("")
	s.Fail = true
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

func TestProjectedVolumeAndTokenRenewal(t *testing.T) {
	m, s, mounted, clock := newManager(t)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "n", UID: "u"}}
	pod.Spec.Volumes = []corev1.Volume{{Name: "v",
		VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
			{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token"}},
			{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "cm"},
				Items: []corev1.KeyToPath{{Key: "k", Path: "sub/ca.crt"}}}},
			{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{{Path: "namespace",
				FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.namespace"}}}}},
		}}}}}
	dir := filepath.Join(m.PodDir("u"), "volumes/kubernetes.io~projected/v")
	check := func(token string) {
		t.Helper()
		if err := m.SetUp(t.Context(), pod, nil); err != nil {
			t.Fatal(err)
		}
		want := map[string]string{"token": token, "sub/ca.crt": "text", "namespace": "n"}
		if diff := cmp.Diff(want, disktest.Read(t, dir)); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
	}
	check("token-default-1")
	check("token-default-1")
	if mounted[dir] != "tmpfs" {
		t.Errorf("a token lies on disk: %v", mounted)
	}
	if want := volumetest.Epoch.Add(48 * time.Minute); !m.NextRenewal("u").Equal(want) {
		t.Errorf("renewal at %v, want %v", m.NextRenewal("u"), want)
	}
	clock.Step(49 * time.Minute)
	s.Fail = true
	check("token-default-1")
	s.Fail = false
	check("token-default-2")
	if err := m.TearDown(t.Context(), "u"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(m.PodDir("u")); !os.IsNotExist(err) || len(mounted) > 0 {
		t.Errorf("left: %v, %v", err, slices.Collect(maps.Keys(mounted)))
	}
}
