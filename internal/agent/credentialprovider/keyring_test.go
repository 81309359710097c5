// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package credentialprovider

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

// configured is a secret whose keys each have a login of the key's own name.
func configured(t *testing.T, keys ...string) *corev1.Secret {
	t.Helper()
	auths := map[string]any{}
	for _, key := range keys {
		auths[key] = map[string]string{"username": key}
	}
	text, err := json.Marshal(map[string]any{"auths": auths})
	if err != nil {
		t.Fatal(err)
	}
	return &corev1.Secret{Type: corev1.SecretTypeDockerConfigJson, Data: map[string][]byte{corev1.DockerConfigJsonKey: text}}
}

func found(t *testing.T, image string, secrets ...*corev1.Secret) string {
	t.Helper()
	var k Keyring
	for _, s := range secrets {
		if err := k.Add(s); err != nil {
			t.Fatal(err)
		}
	}
	credentials, err := k.Lookup(image)
	if err != nil {
		return err.Error()
	}
	var out []string
	for _, c := range credentials {
		out = append(out, c.Username)
	}
	return strings.Join(out, " ")
}

// TestKeyringIsKubelets has the answers of kubelet's keyring, as its documentation and its own tests give them.
func TestKeyringIsKubelets(t *testing.T) {
	for _, c := range []struct{ keys, image, want string }{
		// Hosts.
		{"example.org", "example.org/a:1", "example.org"},
		{"https://example.org", "example.org/a", "https://example.org"},
		{"https://example.org/v1/ http://other.org/v2/", "other.org/a", "http://other.org/v2/"},
		{"example.org", "sub.example.org/a", ""},
		{"*.example.org", "sub.example.org/a", "*.example.org"},
		{"*.example.org", "example.org/a", ""},
		{"*.example.org", "a.b.example.org/a", ""},
		{"*.*.example.org", "a.b.example.org/a", "*.*.example.org"},
		{"prefix.*.org", "prefix.kubernetes.org/a", "prefix.*.org"},
		{"pre*-x.example.org", "prefix-x.example.org/a", "pre*-x.example.org"},
		{"?.example.org", "ab.example.org/a", ""},
		{"[a-.example.org", "a.example.org/a", ""},
		{"*", "example.org/a", ""},
		// Ports.
		{"example.org:5000", "example.org:5000/a", "example.org:5000"},
		{"example.org:5000", "example.org/a", ""},
		{"example.org", "example.org:5000/a", ""},
		{"*.example.org:5000", "a.example.org:5001/a", ""},
		// Paths.
		{"example.org/team", "example.org/team/tool:1", "example.org/team"},
		{"example.org/team", "example.org/other/tool:1", ""},
		{"example.org/team/tool", "example.org/team/tool@sha256:" + strings.Repeat("0", 64), "example.org/team/tool"},
		{"example.org/team/", "example.org/team/tool", "example.org/team/"},
		{"https://example.org/v2/team", "example.org/team/tool", "https://example.org/v2/team"},
		// Order.
		{"example.org example.org/team example.org/team/tool", "example.org/team/tool", "example.org/team/tool example.org/team example.org"},
		{"example.org example.org/team", "example.org/other", "example.org"},
		// Docker Hub.
		{"https://index.docker.io/v1/", "busybox", "https://index.docker.io/v1/"},
		{"index.docker.io", "docker.io/library/busybox:1", "index.docker.io"},
		{"index.docker.io", "team/tool", "index.docker.io"},
		{"docker.io/library", "busybox", "docker.io/library"},
		{"docker.io index.docker.io", "busybox", "docker.io"},
		{"index.docker.io", "example.org/a", ""},
		{"index.docker.io/team", "team/tool", ""},
		{"docker.io/team", "busybox", ""},
	} {
		if got := found(t, c.image, configured(t, strings.Fields(c.keys)...)); got != c.want {
			t.Errorf("%s for %s: %q, want %q", c.keys, c.image, got, c.want)
		}
	}
}

// TestCredentialsGoWhereTheyAreWrittenFor shows that no registry has credentials whose key names something else of it.
func TestCredentialsGoWhereTheyAreWrittenFor(t *testing.T) {
	secret := configured(t, "example.org/team", "index.docker.io")
	for image, want := range map[string]string{
		"example.org/team/tool": "example.org/team", "example.org/thief/tool": "", "example.org.thief.org/team/tool": "",
		"thief.org/example.org/team/tool": "", "example.org:444/team/tool": "", "localhost/team/tool": "", "localhost:5000/tool": "",
		"library/tool": "index.docker.io",
	} {
		if got := found(t, image, secret); got != want {
			t.Errorf("%s is given %q, want %q", image, got, want)
		}
	}
}

func TestSecretsOfAPod(t *testing.T) {
	first, second := configured(t, "example.org"), &corev1.Secret{Type: corev1.SecretTypeDockercfg, Data: map[string][]byte{
		corev1.DockerConfigKey: []byte(`{"example.org":{"username":"u","password":"p","email":"e"},"example.org/a":{"username":"specific"}}`),
	}}
	second.Name, second.Namespace, second.UID = "two", "ns", "uid"
	other := &corev1.Secret{Type: corev1.SecretTypeOpaque, Data: map[string][]byte{corev1.DockerConfigJsonKey: []byte("{")}}
	empty := &corev1.Secret{Type: corev1.SecretTypeDockerConfigJson}
	if got := found(t, "example.org/a", first, other, empty, second); got != "specific example.org u" {
		t.Errorf("found %q", got)
	}
	var k Keyring
	if err := k.Add(second); err != nil {
		t.Fatal(err)
	}
	credentials, err := k.Lookup("example.org/b")
	if err != nil || len(credentials) != 1 {
		t.Fatalf("found %v, %v", credentials, err)
	}
	// The hash is that of kubelet's AuthConfig: {"username":"u","password":"p","email":"e"}.
	const hash = "2f4f03e762821dfdb66ecda497a8f7c477946b7cdc3e28bf1da2e9da1054c40d"
	got := credentials[0]
	if got.Secret.Name != "two" || got.Secret.Namespace != "ns" || got.Secret.UID != "uid" || got.Secret.CredentialHash != hash ||
		got.Password != "p" {
		t.Errorf("found %+v", got)
	}
}

func TestConfigurationsThatCannotBeRead(t *testing.T) {
	for text, want := range map[string]string{
		`{`:                                     "unexpected end of JSON input",
		`{"auths":{"a.org":{"auth":"!"}}}`:      "illegal base64 data at input byte 0",
		`{"auths":{"a.org":{"auth":"YWJj"}}}`:   "unable to parse auth field, must be formatted as base64(username:password)",
		`{"auths":{"a.org":{"auth":"dTpwOg"}}}`: "", // without padding
	} {
		err := new(Keyring).Add(&corev1.Secret{Type: corev1.SecretTypeDockerConfigJson,
			Data: map[string][]byte{corev1.DockerConfigJsonKey: []byte(text)}})
		got := ""
		if err != nil {
			got = err.Error()
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got)\n%s", text, diff)
		}
	}
}

func FuzzKeyring(f *testing.F) {
	f.Add([]byte(`{"auths":{"example.org":{"auth":"dTpw"}}}`), "example.org/x")
	f.Add([]byte(`{"auths":{"*.example.org:5000/a":{"username":"u"},"http://%zz":{}}}`), "a.example.org:5000/a/b@sha256:00")
	f.Fuzz(func(t *testing.T, text []byte, image string) {
		var k Keyring
		if k.Add(&corev1.Secret{Type: corev1.SecretTypeDockerConfigJson, Data: map[string][]byte{corev1.DockerConfigJsonKey: text}}) != nil {
			return
		}
		if found, err := k.Lookup(image); err == nil && len(found) > 0 && len(text) == 0 {
			t.Error("credentials from nothing")
		}
	})
}
