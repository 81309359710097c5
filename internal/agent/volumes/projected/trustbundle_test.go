// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package projected

import (
	"bytes"
	"encoding/pem"
	"hash/maphash"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mortise-dev/mortise/internal/agent/volumes/disktest"
)

// bundle has certificates whose contents are words: what is in them, volumes do not look at.
func bundle(name, signer string, labels map[string]string, text ...string) *certificatesv1.ClusterTrustBundle {
	return &certificatesv1.ClusterTrustBundle{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Spec:       certificatesv1.ClusterTrustBundleSpec{SignerName: signer, TrustBundle: strings.Join(text, "")},
	}
}

func block(word string) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte(word)}))
}

// words are the contents of PEM blocks, in their order.
func words(t *testing.T, text string) []string {
	t.Helper()
	out := []string{}
	rest := []byte(text)
	for len(rest) > 0 {
		if !bytes.HasPrefix(rest, []byte("-----BEGIN CERTIFICATE-----\n")) {
			t.Fatalf("%q is not a plain block", rest)
		}
		var b *pem.Block
		if b, rest = pem.Decode(rest); b == nil || len(b.Headers) > 0 {
			t.Fatalf("%q holds what is no plain block", text)
		}
		out = append(out, string(b.Bytes))
	}
	return out
}

// projecting is a pod with one volume of one source.
func projecting(source corev1.VolumeProjection) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "n", UID: "u"}, Spec: corev1.PodSpec{ServiceAccountName: "robot"}}
	pod.Spec.Volumes = []corev1.Volume{{Name: "v",
		VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{source}}}}}
	return pod
}

func TestTrustBundles(t *testing.T) {
	all := []*certificatesv1.ClusterTrustBundle{
		bundle("plain", "", nil, block("one"), block("two"), block("one")),
		bundle("odd", "", nil, "a comment\n", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Headers: map[string]string{"k": "v"},
			Bytes: []byte("one")})), "more\n"),
		bundle("a:1", "a.example/s", map[string]string{"live": "yes"}, block("one"), block("two")),
		bundle("a:2", "a.example/s", map[string]string{"live": "no"}, block("two"), block("three")),
		bundle("b:1", "b.example/s", map[string]string{"live": "yes"}, block("four")),
	}
	const prefix = `MountVolume.SetUp failed for volume "v" : `
	for name, c := range map[string]struct {
		source corev1.ClusterTrustBundleProjection
		want   []string
		err    string
	}{
		"by name":              {source: corev1.ClusterTrustBundleProjection{Name: new("plain")}, want: []string{"one", "two"}},
		"comments and headers": {source: corev1.ClusterTrustBundleProjection{Name: new("odd")}, want: []string{"one"}},
		"no such name": {source: corev1.ClusterTrustBundleProjection{Name: new("no")},
			err: `while getting ClusterTrustBundle: clustertrustbundle.certificates.k8s.io "no" not found`},
		"no such name, optional": {source: corev1.ClusterTrustBundleProjection{Name: new("no"), Optional: new(true)}, want: []string{}},
		"of a signer": {source: corev1.ClusterTrustBundleProjection{SignerName: new("a.example/s"),
			LabelSelector: &metav1.LabelSelector{}}, want: []string{"one", "three", "two"}},
		"of a signer, with labels": {source: corev1.ClusterTrustBundleProjection{SignerName: new("a.example/s"),
			LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"live": "yes"}}}, want: []string{"one", "two"}},
		"of a signer, without any": {source: corev1.ClusterTrustBundleProjection{SignerName: new("a.example/s"),
			LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"live": "so"}}},
			err: "combination of signerName and labelSelector matched zero ClusterTrustBundles"},
		"no selector selects none": {source: corev1.ClusterTrustBundleProjection{SignerName: new("a.example/s")},
			err: "combination of signerName and labelSelector matched zero ClusterTrustBundles"},
		"no selector, optional": {source: corev1.ClusterTrustBundleProjection{SignerName: new("a.example/s"), Optional: new(true)},
			want: []string{}},
		"neither": {source: corev1.ClusterTrustBundleProjection{},
			err: "ClusterTrustBundle projection requires either name or signerName to be set"},
		"a selector just short enough": {source: corev1.ClusterTrustBundleProjection{SignerName: new("a.example/s"), Optional: new(true),
			LabelSelector: &metav1.LabelSelector{MatchExpressions: append(long(3199), exists(32))}}, want: []string{}},
		"a selector a byte too long": {source: corev1.ClusterTrustBundleProjection{SignerName: new("a.example/s"), Optional: new(true),
			LabelSelector: &metav1.LabelSelector{MatchExpressions: append(long(3199), exists(33))}},
			err: "label selector length (102401) is larger than 102400"},
		"a selector that is too long": {source: corev1.ClusterTrustBundleProjection{SignerName: new("a.example/s"),
			LabelSelector: &metav1.LabelSelector{MatchExpressions: long(4096)}}, err: "label selector length (131071) is larger than 102400"},
		"a selector that makes no sense": {source: corev1.ClusterTrustBundleProjection{SignerName: new("a.example/s"),
			LabelSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "k", Operator: "Near"}}}},
			err: `while parsing label selector: "Near" is not a valid label selector operator`},
	} {
		t.Run(name, func(t *testing.T) {
			m, s, mounted, _ := newManager(t)
			s.Bundles = all
			c.source.Path = "sub/ca.pem"
			dir := filepath.Join(m.PodDir("u"), "volumes/kubernetes.io~projected/v")
			err := m.SetUp(t.Context(), projecting(corev1.VolumeProjection{ClusterTrustBundle: &c.source}), nil)
			if c.err != "" {
				if err == nil || err.Error() != prefix+c.err {
					t.Errorf("error %v, want %s", err, prefix+c.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			got := words(t, disktest.Read(t, dir)["sub/ca.pem"])
			slices.Sort(got)
			if diff := cmp.Diff(c.want, got); diff != "" || mounted[dir] != "tmpfs" {
				t.Errorf("(-want +got)\n%s%v", diff, mounted)
			}
		})
	}
}

// long makes requirements of 32 bytes each, comma and all.
func long(n int) (out []metav1.LabelSelectorRequirement) {
	for range n {
		out = append(out, exists(31))
	}
	return out
}

func exists(length int) metav1.LabelSelectorRequirement {
	return metav1.LabelSelectorRequirement{Key: strings.Repeat("k", length), Operator: metav1.LabelSelectorOpExists}
}

// A list that cannot be had is not an empty one.
func TestTrustBundlesThatCannotBeListed(t *testing.T) {
	m, s, _, _ := newManager(t)
	s.Fail = true
	source := corev1.ClusterTrustBundleProjection{SignerName: new("a.example/s"), LabelSelector: &metav1.LabelSelector{}, Optional: new(true),
		Path: "ca.pem"}
	err := m.SetUp(t.Context(), projecting(corev1.VolumeProjection{ClusterTrustBundle: &source}), nil)
	if want := "while listing ClusterTrustBundles matching label selector"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, want %s", err, want)
	}
}

// Who relies on the order is found out, but a bundle that did not change leaves its volumes alone.
func TestOrderOfTrustAnchors(t *testing.T) {
	seed := maphash.MakeSeed()
	there := trustAnchors(seed, []*certificatesv1.ClusterTrustBundle{bundle("", "", nil, block("1"), block("2")),
		bundle("", "", nil, block("3"), block("4"))})
	back := trustAnchors(seed, []*certificatesv1.ClusterTrustBundle{bundle("", "", nil, block("4"), block("3"), block("2")),
		bundle("", "", nil, block("1"), block("4"))})
	if !bytes.Equal(there, back) {
		t.Errorf("%s\nand\n%s", there, back)
	}
	for range 100 {
		if other := trustAnchors(maphash.MakeSeed(), []*certificatesv1.ClusterTrustBundle{bundle("", "", nil, block("1"), block("2"), block("3"),
			block("4"))}); !bytes.Equal(there, other) {
			return
		}
	}
	t.Error("the order is always the same")
}

// A bundle that changes changes the volume; one that goes leaves it as it was.
func TestTrustBundleChanges(t *testing.T) {
	m, s, _, _ := newManager(t)
	pod := projecting(corev1.VolumeProjection{ClusterTrustBundle: &corev1.ClusterTrustBundleProjection{Name: new("b"), Path: "ca.pem"}})
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: new(int64(0))}
	dir := filepath.Join(m.PodDir("u"), "volumes/kubernetes.io~projected/v")
	for _, step := range []struct {
		bundles []*certificatesv1.ClusterTrustBundle
		want    string
		fails   bool
	}{
		{fails: true},
		{bundles: []*certificatesv1.ClusterTrustBundle{bundle("b", "", nil, block("old"))}, want: block("old")},
		{bundles: []*certificatesv1.ClusterTrustBundle{bundle("b", "", nil, block("new"))}, want: block("new")},
		{want: block("new"), fails: true},
	} {
		s.Bundles = step.bundles
		if err := m.SetUp(t.Context(), pod, nil); (err != nil) != step.fails {
			t.Errorf("%q: %v", step.want, err)
		}
		if step.want == "" {
			continue
		}
		if got := disktest.Read(t, dir)["ca.pem"]; got != step.want {
			t.Errorf("%q, want %q", got, step.want)
		}
		if info, err := os.Stat(filepath.Join(dir, "ca.pem")); err != nil || info.Mode().Perm() != 0o640 {
			t.Errorf("mode %v, %v", info, err)
		}
	}
}

// All that is wrong with a volume is said at once, in kubelet's way.
func TestAllSourcesThatAreMissing(t *testing.T) {
	m, _, _, _ := newManager(t)
	pod := projecting(corev1.VolumeProjection{ClusterTrustBundle: &corev1.ClusterTrustBundleProjection{Name: new("b"), Path: "ca.pem"}})
	projected := pod.Spec.Volumes[0].Projected
	projected.Sources = append(projected.Sources,
		corev1.VolumeProjection{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "no"}}})
	want := `MountVolume.SetUp failed for volume "v" : [while getting ClusterTrustBundle: clustertrustbundle.certificates.k8s.io "b" not found, configmap "no" not found]`
	if err := m.SetUp(t.Context(), pod, nil); err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
}
