// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package pullmanager

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	configv1beta1 "k8s.io/kubelet/config/v1beta1"
)

const (
	image = "example.org/team/tool:1"
	ref   = "sha256:abc"
)

var start = time.Date(2026, 11, 23, 12, 0, 0, 500, time.UTC)

func open(t *testing.T, dir string, change func(*Options)) *Manager {
	t.Helper()
	o := Options{
		Dir: dir, Policy: configv1beta1.NeverVerifyPreloadedImages, Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
		Now:    func() time.Time { return start },
		Images: func() ([]*runtimeapi.Image, error) { return nil, errors.New("nobody has asked for images") },
	}
	if change != nil {
		change(&o)
	}
	m, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func secret(namespace, name, hash string) configv1beta1.ImagePullSecret {
	return configv1beta1.ImagePullSecret{UID: "uid-" + namespace + name, Namespace: namespace, Name: name, CredentialHash: hash}
}

func pull(t *testing.T, m *Manager, s *configv1beta1.ImagePullSecret) {
	t.Helper()
	var sources Sources
	if s != nil {
		sources.Secrets = []configv1beta1.ImagePullSecret{*s}
	}
	if err := errors.Join(m.Intend(image), m.Pulled(image, ref, sources)); err != nil {
		t.Fatal(err)
	}
}

func must(t *testing.T, m *Manager, image string, secrets ...configv1beta1.ImagePullSecret) bool {
	t.Helper()
	out, err := m.MustPull(image, ref, func() (Sources, error) { return Sources{Secrets: secrets}, nil })
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestImagePulledWithASecretIsVerifiedForOthers is the heart of the matter: who has no credentials must ask the registry.
func TestImagePulledWithASecretIsVerifiedForOthers(t *testing.T) {
	dir := t.TempDir()
	m := open(t, dir, nil)
	if must(t, m, image) {
		t.Error("an image that somebody else brought must be pulled")
	}
	mine := secret("a", "s", "1")
	pull(t, m, &mine)
	for name, m := range map[string]*Manager{"before": m, "after a start": open(t, dir, nil)} {
		for _, c := range []struct {
			who   string
			image string
			have  []configv1beta1.ImagePullSecret
			want  bool
		}{
			{"who pulled", image, []configv1beta1.ImagePullSecret{mine}, false},
			{"who pulled, by digest", "example.org/team/tool@sha256:" + strings.Repeat("0", 64), []configv1beta1.ImagePullSecret{mine}, false},
			{"nobody", image, nil, true},
			{"another login", image, []configv1beta1.ImagePullSecret{secret("b", "s", "2")}, true},
			{"the same name elsewhere", image, []configv1beta1.ImagePullSecret{{UID: "uid-as", Namespace: "b", Name: "s", CredentialHash: "2"}},
				true},
			{"the same name made again", image, []configv1beta1.ImagePullSecret{{UID: "other", Namespace: "a", Name: "s", CredentialHash: "2"}},
				true},
			{"no hash", image, []configv1beta1.ImagePullSecret{secret("b", "s", "")}, true},
			{"the image by another name", "example.org/other:1", []configv1beta1.ImagePullSecret{mine}, true},
		} {
			if got := must(t, m, c.image, c.have...); got != c.want {
				t.Errorf("%s, %s: must pull %t", name, c.who, got)
			}
		}
	}
	if got := m.Checks(); got[policyAllowed] != 1 || got[recordFound] != 2 || got[mustAuthenticate] != 6 {
		t.Errorf("checks: %v", got)
	}
}

// TestAnswersAreOneUsersOwn has a secret count that the registry or a known login vouches for, and no other.
func TestAnswersAreOneUsersOwn(t *testing.T) {
	m := open(t, t.TempDir(), nil)
	mine, twin, rotated := secret("a", "s", "1"), secret("b", "twin", "1"), secret("a", "s", "2")
	pull(t, m, &mine)
	if must(t, m, image, secret("x", "other", "9"), twin) {
		t.Error("a secret with the same login is refused")
	}
	if must(t, m, image, rotated) {
		t.Error("a secret that has a new login is refused")
	}
	if must(t, m, image, secret("c", "third", "2")) {
		t.Error("the new login is not known")
	}
	if !must(t, m, image, secret("d", "old", "3")) {
		t.Error("a login that nobody has shown is taken")
	}
	record, err := readPulled(m.pulled, ref)
	if err != nil {
		t.Fatal(err)
	}
	want := []configv1beta1.ImagePullSecret{rotated, twin, secret("c", "third", "2")}
	if diff := cmp.Diff(want, record.CredentialMapping["example.org/team/tool"].KubernetesSecrets); diff != "" {
		t.Errorf("secrets (-want +got)\n%s", diff)
	}
	pull(t, m, nil)
	if must(t, m, image) {
		t.Error("an image that was pulled without a secret is not open to all")
	}
	late := secret("e", "late", "5")
	pull(t, m, &late)
	if must(t, m, image) {
		t.Error("a later pull with a secret closed the image")
	}
}

func TestSecretsThatCannotBeRead(t *testing.T) {
	m := open(t, t.TempDir(), nil)
	mine := secret("a", "s", "1")
	pull(t, m, &mine)
	if must, err := m.MustPull(image, ref, func() (Sources, error) { return Sources{}, errors.New("no") }); err == nil ||
		!must {
		t.Errorf("must pull %t, %v", must, err)
	}
}

func TestPolicies(t *testing.T) {
	for _, c := range []struct {
		policy    configv1beta1.ImagePullCredentialsVerificationPolicy
		allowlist []string
		// For an image that somebody else brought, and for one that was pulled with a secret.
		preloaded, pulled bool
	}{
		{configv1beta1.NeverVerify, nil, false, false},
		{configv1beta1.NeverVerifyPreloadedImages, nil, false, true},
		{configv1beta1.NeverVerifyAllowlistedImages, nil, true, true},
		{configv1beta1.NeverVerifyAllowlistedImages, []string{"example.org/team/tool"}, false, false},
		{configv1beta1.NeverVerifyAllowlistedImages, []string{"example.org/team/*"}, false, false},
		{configv1beta1.NeverVerifyAllowlistedImages, []string{"example.org/tea/*", "example.org/team"}, true, true},
		{configv1beta1.AlwaysVerify, nil, true, true},
		{"", nil, true, true},
	} {
		m := open(t, t.TempDir(), func(o *Options) { o.Policy, o.Allowlist = c.policy, c.allowlist })
		if got := must(t, m, image); got != c.preloaded {
			t.Errorf("%s %v: preloaded: must pull %t", c.policy, c.allowlist, got)
		}
		mine := secret("a", "s", "1")
		pull(t, m, &mine)
		if got := must(t, m, image); got != c.pulled {
			t.Errorf("%s %v: pulled: must pull %t", c.policy, c.allowlist, got)
		}
	}
}

func TestValidateAllowlist(t *testing.T) {
	for pattern, want := range map[string]string{
		"example.org/a": "", "example.org/*": "", "busybox": "",
		" a": "leading/trailing spaces are not allowed:  a", "": "the supplied pattern is too short: ",
		"/*":    "at least registry hostname is required",
		"a*/*":  "not a valid wildcard pattern, only patterns ending with '/*' are allowed: a*/*",
		"a:1":   "neither tag nor digest is accepted in an image reference: a:1",
		"a//b!": "failed to parse as an image name: invalid reference format",
	} {
		got := ""
		if err := ValidateAllowlist([]string{pattern}); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%q: %s, want %s", pattern, got, want)
		}
	}
}

// TestPullsThatWereCutOff shows that no crash makes an image that was pulled look like one that somebody else brought.
func TestPullsThatWereCutOff(t *testing.T) {
	dir := t.TempDir()
	m := open(t, dir, nil)
	if err := m.Intend(image); err != nil {
		t.Fatal(err)
	}
	if !must(t, m, image) {
		t.Error("an image that is being pulled is open to all")
	}
	// The runtime does not answer at the start: the intent stays.
	if m = open(t, dir, nil); !must(t, m, image) {
		t.Error("the intent did not outlive the program")
	}
	// It does, and has the image.
	m = open(t, dir, func(o *Options) {
		o.Images = func() ([]*runtimeapi.Image, error) {
			return []*runtimeapi.Image{{Id: ref, RepoTags: []string{image}}}, nil
		}
	})
	if !must(t, m, image) || !must(t, m, "example.org/team/tool:2") {
		t.Error("the record is open to all")
	}
	if intent, err := readIntent(m.pulling, image); intent != nil || err != nil {
		t.Errorf("the intent stayed: %v, %v", intent, err)
	}
	// A name without registry and tag is the runtime's name.
	if err := m.Intend("busybox"); err != nil {
		t.Fatal(err)
	}
	m = open(t, dir, func(o *Options) {
		o.Images = func() ([]*runtimeapi.Image, error) {
			return []*runtimeapi.Image{{Id: "sha256:bb", RepoTags: []string{"docker.io/library/busybox:latest"}}}, nil
		}
	})
	if record, err := readPulled(m.pulled, "sha256:bb"); record == nil || err != nil {
		t.Errorf("the image of a short name has no record: %v, %v", record, err)
	}
}

func TestIntentsAreCounted(t *testing.T) {
	m := open(t, t.TempDir(), nil)
	if err := errors.Join(m.Intend(image), m.Intend(image), m.Failed(image)); err != nil {
		t.Fatal(err)
	}
	if !must(t, m, image) {
		t.Error("the end of one pull ended the other's intent")
	}
	if err := m.Failed(image); err != nil {
		t.Fatal(err)
	}
	if must(t, m, image) {
		t.Error("an intent outlived its pulls")
	}
}

func TestRecordsThatCannotBeRead(t *testing.T) {
	const pulled = `{"kind":"ImagePulledRecord","apiVersion":"kubelet.config.k8s.io/v1beta1","lastUpdatedTime":null,"imageRef":"sha256:abc",`
	for name, text := range map[string]string{
		"half": pulled, "another's": strings.Replace(pulled, "sha256:abc", "sha256:other", 1) + `"credentialMapping":{}}`,
		"unknown field": pulled + `"but":true}`, "other kind": strings.Replace(pulled, "ImagePulledRecord", "ImagePullIntent", 1) +
			`"credentialMapping":{}}`,
		"other version": strings.Replace(pulled, "v1beta1", "v9", 1) + `"credentialMapping":{}}`, "two": pulled + `"credentialMapping":{}}{}`,
		"empty": "",
	} {
		dir := t.TempDir()
		m := open(t, dir, nil)
		if err := os.WriteFile(filepath.Join(m.pulled, fileName(ref)), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if !must(t, m, image) {
			t.Errorf("%s: the image is open to all", name)
		}
		pull(t, m, nil)
		if must(t, m, image) {
			t.Errorf("%s: the record was not written anew", name)
		}
	}
}

// TestRecordsAreKubelets reads what kubelet writes, and writes what kubelet reads.
func TestRecordsAreKubelets(t *testing.T) {
	dir := t.TempDir()
	m := open(t, dir, nil)
	mine := secret("a", "s", "1")
	if err := m.Intend(image); err != nil {
		t.Fatal(err)
	}
	intent := filepath.Join(dir, "image_manager/pulling", fileName(image))
	want := `{"kind":"ImagePullIntent","apiVersion":"kubelet.config.k8s.io/v1beta1","image":"example.org/team/tool:1"}` + "\n"
	if text, err := os.ReadFile(intent); err != nil || string(text) != want {
		t.Errorf("%s, %v, want %s", text, err, want)
	}
	if err := m.Pulled(image, ref, Sources{Secrets: []configv1beta1.ImagePullSecret{mine}}); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "image_manager/pulled", fileName(ref))
	want = `{"kind":"ImagePulledRecord","apiVersion":"kubelet.config.k8s.io/v1beta1","lastUpdatedTime":"2026-11-23T12:00:00Z","imageRef":"sha256:abc","credentialMapping":` +
		`{"example.org/team/tool":{"kubernetesSecrets":[{"uid":"uid-as","namespace":"a","name":"s","credentialHash":"1"}]}}}` + "\n"
	if text, err := os.ReadFile(path); err != nil || string(text) != want {
		t.Errorf("%s, %v, want %s", text, err, want)
	}
	if base, want := filepath.Base(path), "sha256-67e9bc3cfd2163c2978358dfe00d2f912cd4ee0c99f077c3583b39b48aebb124"; base != want {
		t.Errorf("the record is %s, want %s", base, want)
	}
	for path, mode := range map[string]os.FileMode{path: 0o600, filepath.Dir(path): 0o700, filepath.Dir(intent): 0o700} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v", path, info.Mode(), err)
		}
	}
	older := strings.Replace(want, "v1beta1", "v1alpha1", 1)
	if err := os.WriteFile(path, []byte(older), 0o600); err != nil {
		t.Fatal(err)
	}
	if must(t, m, image, mine) || !must(t, m, image) {
		t.Error("a record of v1alpha1 is not understood")
	}
}

func TestPrune(t *testing.T) {
	m := open(t, t.TempDir(), nil)
	pull(t, m, nil)
	count := func() (n int) {
		t.Helper()
		if err := each(m.pulled, func(string, []byte) error { n++; return nil }); err != nil {
			t.Fatal(err)
		}
		return n
	}
	for _, c := range []struct {
		refs   []string
		listed time.Time
		want   int
	}{
		{[]string{ref}, start.Add(time.Hour), 1},
		{nil, start.Add(time.Millisecond), 1}, // pulled in the second of the list
		{nil, start.Add(-time.Hour), 1},
		{nil, start.Add(time.Second), 0},
	} {
		if err := m.Prune(c.refs, c.listed); err != nil {
			t.Fatal(err)
		}
		if got := count(); got != c.want {
			t.Errorf("of a list of %v at %v: %d records", c.refs, c.listed, got)
		}
	}
}

func FuzzRecords(f *testing.F) {
	f.Add([]byte(`{"kind":"ImagePulledRecord","apiVersion":"kubelet.config.k8s.io/v1beta1","lastUpdatedTime":null,"imageRef":"r","credentialMapping":{"a":{"nodePodsAccessible":true}}}`))
	f.Add([]byte(`{"kind":"ImagePullIntent","apiVersion":"kubelet.config.k8s.io/v1beta1","image":"a"}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		if r, err := decodePulled(text, "r"); err == nil && (r.ImageRef != "r" || r.Kind != kindPulled) {
			t.Errorf("%s was read as %v", text, r)
		}
		if i, err := decodeIntent(text, "a"); err == nil && (i.Image != "a" || i.Kind != kindIntent) {
			t.Errorf("%s was read as %v", text, i)
		}
	})
}
