// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

func TestWithTag(t *testing.T) {
	for image, want := range map[string]string{
		"busybox": "busybox:latest", "busybox:1": "busybox:1", "a/b": "a/b:latest", "example.org:5000/a": "example.org:5000/a:latest",
		"example.org:5000/a:2": "example.org:5000/a:2", "a@sha256:00": "a@sha256:00", "Example.org/a": "Example.org/a:latest",
		"Busybox": "", "": "", "a:": "", "a b": "", "A/b": "",
	} {
		got, err := withTag(image)
		if got != want || (err != nil) != (want == "") {
			t.Errorf("withTag(%q) = %q, %v, want %q", image, got, err, want)
		}
	}
}

func TestCredentials(t *testing.T) {
	secret := &corev1.Secret{Type: corev1.SecretTypeDockerConfigJson, Data: map[string][]byte{corev1.DockerConfigJsonKey: []byte(
		`{"auths":{"https://index.docker.io/v1/":{"auth":"dTpw"},"example.org":{"username":"a","password":"b"}}}`)}}
	for image, want := range map[string][]string{"busybox:1": {"u:p"}, "example.org/x": {"a:b"}, "elsewhere.org/x": nil} {
		var got []string
		for _, c := range credentials(secret, image) {
			got = append(got, c.Username+":"+c.Password)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got)\n%s", image, diff)
		}
	}
}

func FuzzCredentials(f *testing.F) {
	f.Add([]byte(`{"auths":{"example.org":{"auth":"dTpw"}}}`), "example.org/x")
	f.Fuzz(func(t *testing.T, text []byte, image string) {
		secret := &corev1.Secret{Type: corev1.SecretTypeDockerConfigJson, Data: map[string][]byte{corev1.DockerConfigJsonKey: text}}
		if len(text) == 0 && len(credentials(secret, image)) > 0 {
			t.Error("credentials from nothing")
		}
		credentials(secret, image)
	})
}

func FuzzWithTag(f *testing.F) {
	f.Add("example.org:5000/a")
	f.Fuzz(func(t *testing.T, image string) {
		if got, err := withTag(image); err == nil && !strings.HasPrefix(got, image) {
			t.Errorf("withTag(%q) = %q", image, got)
		}
	})
}
