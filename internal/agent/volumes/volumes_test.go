// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"pgregory.net/rapid"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// read returns what users of the volume see: names without the bookkeeping.
func read(t interface{ Fatal(...any) }, dir string) map[string]string {
	out := map[string]string{}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "..") {
			continue
		}
		err := filepath.Walk(filepath.Join(dir, e.Name())+"/", func(p string, info os.FileInfo, err error) error {
			if err != nil || info.IsDir() {
				return nil
			}
			text, err := os.ReadFile(p)
			name, _ := filepath.Rel(dir, p)
			out[name] = string(text)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		if text, err := os.ReadFile(filepath.Join(dir, e.Name())); err == nil {
			out[e.Name()] = string(text)
		}
	}
	return out
}

// After any number of writes the volume holds exactly the last one's files.
func TestWriteHoldsTheLast(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp("", "volume")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		payload := rapid.MapOfN(rapid.SampledFrom([]string{"a", "b", "c", "d/e", "d/f", "g/h/i"}), rapid.StringN(0, 3, 3), 0, 5)
		for range rapid.IntRange(1, 4).Draw(t, "writes") {
			want := payload.Draw(t, "files")
			files := map[string]File{}
			for name, text := range want {
				files[name] = File{Data: []byte(text), Mode: 0o644}
			}
			if _, err := Write(dir, files, nil, epoch); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, read(t, dir)); diff != "" {
				t.Fatalf("(-want +got)\n%s", diff)
			}
			changed, err := Write(dir, files, nil, epoch)
			if err != nil || changed {
				t.Fatalf("the same again: changed %v, %v", changed, err)
			}
			entries, err := os.ReadDir(dir)
			if err != nil {
				t.Fatal(err)
			}
			stamps := slices.DeleteFunc(entries, func(e os.DirEntry) bool { return !e.IsDir() })
			if len(stamps) > 1 {
				t.Fatalf("old contents are left: %v", stamps)
			}
		}
	})
}

func TestWriteRefusesNamesThatLeave(t *testing.T) {
	for _, name := range []string{"", "/etc/passwd", "../x", "a/../../x", "..data"} {
		if _, err := Write(t.TempDir(), map[string]File{name: {}}, nil, epoch); err == nil {
			t.Errorf("name %q was taken", name)
		}
	}
}

// mounts plays the kernel.
type mounts map[string]string

func (m mounts) Tmpfs(dir string, _ int64) error { m[dir] = "tmpfs"; return nil }
func (m mounts) Huge(dir string, page int64) error {
	m[dir] = fmt.Sprintf("huge %d", page)
	return nil
}
func (m mounts) Mount(_ context.Context, source, dir, kind string, options []string) error {
	if strings.Contains(source, "gone") {
		return errors.New("mount failed: no such server")
	}
	m[dir] = fmt.Sprint(kind, " ", source, " ", options)
	return nil
}
func (m mounts) Unmount(dir string) error { delete(m, dir); return nil }
func (m mounts) Bind(source, target string) error {
	real, err := os.Readlink(source)
	m[target] = real
	return err
}
func (m mounts) IsMountPoint(dir string) (bool, error) { _, ok := m[dir]; return ok, nil }

func (m mounts) Below(dir string) ([]string, error) {
	var out []string
	for path := range m {
		if strings.HasPrefix(path, dir+"/") {
			out = append(out, path)
		}
	}
	slices.Sort(out)
	return out, nil
}

func FuzzBelow(f *testing.F) {
	f.Add("36 35 98:0 / /a/b\\040c rw - ext3 /dev/root rw\n37 35 98:0 / /ab rw - x y z\n")
	f.Fuzz(func(t *testing.T, text string) {
		for _, path := range below(text, "/a") {
			if !strings.HasPrefix(path, "/a/") {
				t.Errorf("%q is not below /a", path)
			}
		}
	})
}

func TestBelow(t *testing.T) {
	got := below("1 2 3 /\n1 2 3 / /a/short\n36 35 98:0 / /a/b\\040c rw - ext3 /dev/root rw\n37 35 98:0 / /ab rw - x y z\n38 35 98:0 / /a rw - x y z\n", "/a")
	if diff := cmp.Diff([]string{"/a/short", "/a/b c"}, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

type sources struct {
	pv      *corev1.PersistentVolume // nil: one of the node's own directories
	tokens  int
	fail    bool
	bundles []*certificatesv1.ClusterTrustBundle
	*signer
}

func (s *sources) ConfigMap(_ context.Context, _, name string) (*corev1.ConfigMap, error) {
	if name != "cm" {
		return nil, apierrors.NewNotFound(corev1.Resource("configmap"), name)
	}
	return &corev1.ConfigMap{Data: map[string]string{"k": "text"}, BinaryData: map[string][]byte{"b": {1}}}, nil
}

func (s *sources) Secret(_ context.Context, _, name string) (*corev1.Secret, error) {
	if name == "no" {
		return nil, apierrors.NewNotFound(corev1.Resource("secret"), name)
	}
	return &corev1.Secret{Data: map[string][]byte{"s": []byte("secret")}}, nil
}

func (s *sources) Token(_ context.Context, _, account string, r *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
	if s.fail {
		return nil, fmt.Errorf("no token today")
	}
	s.tokens++
	r.Status = authenticationv1.TokenRequestStatus{Token: fmt.Sprintf("token-%s-%d", account, s.tokens), ExpirationTimestamp: metav1.NewTime(epoch.Add(time.Duration(s.tokens) * time.Hour))}
	return r, nil
}

func (s *sources) Claim(context.Context, string, string) (*corev1.PersistentVolumeClaim, error) {
	return &corev1.PersistentVolumeClaim{Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "pv"}, Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound}}, nil
}

func (s *sources) Volume(context.Context, string) (*corev1.PersistentVolume, error) {
	if s.pv != nil {
		return s.pv, nil
	}
	return &corev1.PersistentVolume{Spec: corev1.PersistentVolumeSpec{PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/tmp"}}}}, nil
}

func (s *sources) TrustBundle(_ context.Context, name string) (*certificatesv1.ClusterTrustBundle, error) {
	for _, b := range s.bundles {
		if b.Name == name {
			return b, nil
		}
	}
	return nil, apierrors.NewNotFound(certificatesv1.Resource("clustertrustbundle"), name)
}

func (s *sources) TrustBundles(context.Context, string) ([]*certificatesv1.ClusterTrustBundle, error) {
	if s.fail {
		return nil, errors.New("no list today")
	}
	return s.bundles, nil
}

func newManager(t *testing.T) (*Manager, *sources, mounts, *clocktesting.FakeClock) {
	s, m, c := &sources{signer: &signer{}}, mounts{}, clocktesting.NewFakeClock(epoch)
	return &Manager{Root: t.TempDir(), Sources: s, Mounter: m, Clock: c}, s, m, c
}

func TestProjectedVolumeAndTokenRenewal(t *testing.T) {
	m, s, mounted, clock := newManager(t)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "n", UID: "u"}}
	pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
		{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token"}},
		{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "cm"}, Items: []corev1.KeyToPath{{Key: "k", Path: "sub/ca.crt"}}}},
		{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{{Path: "namespace", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.namespace"}}}}},
	}}}}}
	dir := filepath.Join(m.PodDir("u"), "volumes/kubernetes.io~projected/v")
	check := func(token string) {
		t.Helper()
		if err := m.SetUp(t.Context(), pod, nil); err != nil {
			t.Fatal(err)
		}
		want := map[string]string{"token": token, "sub/ca.crt": "text", "namespace": "n"}
		if diff := cmp.Diff(want, read(t, dir)); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
	}
	check("token-default-1")
	check("token-default-1")
	if mounted[dir] != "tmpfs" {
		t.Errorf("a token lies on disk: %v", mounted)
	}
	if want := epoch.Add(48 * time.Minute); !m.NextRenewal("u").Equal(want) {
		t.Errorf("renewal at %v, want %v", m.NextRenewal("u"), want)
	}
	clock.Step(49 * time.Minute)
	s.fail = true
	check("token-default-1")
	s.fail = false
	check("token-default-2")
	if err := m.TearDown("u"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(m.PodDir("u")); !os.IsNotExist(err) || len(mounted) > 0 {
		t.Errorf("left: %v, %v", err, slices.Collect(maps.Keys(mounted)))
	}
}

func TestMissingSourcesAreNamed(t *testing.T) {
	m, _, _, _ := newManager(t)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u"}}
	pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "no"}}}}}
	if err := m.SetUp(t.Context(), pod, nil); err == nil || err.Error() != `MountVolume.SetUp failed for volume "v" : configmap "no" not found` {
		t.Errorf("error %v", err)
	}
	pod.Spec.Volumes[0].ConfigMap.Optional = new(true)
	if err := m.SetUp(t.Context(), pod, nil); err != nil {
		t.Error(err)
	}
}

func TestSubPathStaysInside(t *testing.T) {
	m, _, mounted, _ := newManager(t)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u"}}
	pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	if err := m.SetUp(t.Context(), pod, nil); err != nil {
		t.Fatal(err)
	}
	volume := filepath.Join(m.PodDir("u"), "volumes/kubernetes.io~empty-dir/v")
	if err := os.Symlink("/etc", filepath.Join(volume, "out")); err != nil {
		t.Fatal(err)
	}
	mount := func(sub string) error {
		c := &corev1.Container{Name: "c", VolumeMounts: []corev1.VolumeMount{{Name: "v", MountPath: "/m", SubPath: sub}}}
		_, err := m.Mounts(t.Context(), pod, c, nil, nil)
		return err
	}
	for _, sub := range []string{"out", "out/passwd", "../x", "/etc"} {
		if err := mount(sub); err == nil {
			t.Errorf("subPath %q leads out", sub)
		}
	}
	if err := mount("new/dir"); err != nil {
		t.Error(err)
	}
	if got := mounted[filepath.Join(m.PodDir("u"), "volume-subpaths/v/c/0")]; got != filepath.Join(volume, "new/dir") {
		t.Errorf("bound %q", got)
	}
}

func TestHostPathTypes(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		kind corev1.HostPathType
		path string
		ok   bool
	}{
		{corev1.HostPathUnset, dir, true}, {corev1.HostPathDirectory, dir, true}, {corev1.HostPathDirectory, file, false},
		{corev1.HostPathDirectory, dir + "/no", false}, {corev1.HostPathDirectoryOrCreate, dir + "/made", true},
		{corev1.HostPathFile, file, true}, {corev1.HostPathFile, dir, false}, {corev1.HostPathFileOrCreate, dir + "/madefile", true},
		{corev1.HostPathSocket, file, false}, {corev1.HostPathCharDev, "/dev/null", true}, {corev1.HostPathBlockDev, "/dev/null", false},
	} {
		if err := checkHostPath(&corev1.HostPathVolumeSource{Path: c.path, Type: &c.kind}); (err == nil) != c.ok {
			t.Errorf("%s as %q: %v", c.path, c.kind, err)
		}
	}
}
