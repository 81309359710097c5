// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/mortise-dev/mortise/internal/apiserver/encryption/kmstest"
)

// needle is what must not be found on disk.
const needle = "the-needle-that-nobody-may-find"

// haystack searches all files below a folder.
func haystack(t *testing.T, dir string) (found []string, sealed int) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if bytes.Contains(data, []byte(needle)) {
			found = append(found, path)
		}
		sealed += bytes.Count(data, []byte("k8s:enc:kms:v2:vault:"))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found, sealed
}

func encryptionFile(t *testing.T, dir, socket string, resources ...string) string {
	t.Helper()
	if len(resources) == 0 {
		resources = []string{"secrets", "widgets.example.com"}
	}
	file := filepath.Join(dir, "encryption.yaml")
	text := fmt.Sprintf("apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n- resources: ['%s']\n  providers:\n"+
		"  - kms: {apiVersion: v2, name: vault, endpoint: 'unix://%s', timeout: 2s}\n  - identity: {}\n", strings.Join(resources, "', '"), socket)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestEncryptionAtRest: with a KMS v2 plug-in, secrets are on disk sealed alone, over a kill, a rotation and the plug-in's own
// troubles.
func TestEncryptionAtRest(t *testing.T) {
	ctx := context.Background()
	dir, data := t.TempDir(), t.TempDir()
	kms := kmstest.New(t, filepath.Join(dir, "kms.sock"))
	args := []string{"--node", "none", "--controllers", "none", "--encryption-provider-config", encryptionFile(t, dir, kms.Socket)}
	secret := func(name string) *corev1.Secret {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, StringData: map[string]string{"k": needle}}
	}

	// before there is a plug-in, and before there was encryption
	p := up(t, data, args[:4]...)
	if _, err := p.client().CoreV1().Secrets("default").Create(ctx, secret("old"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	p.stop()
	p = up(t, data, args...)
	if _, err := p.client().CoreV1().Secrets("default").Create(ctx, secret("early"), metav1.CreateOptions{}); err == nil {
		t.Error("a secret was stored without its plug-in")
	}
	if text, code := ask(t, p, "/readyz/kms-providers"); code != 500 || !strings.Contains(text, "vault") {
		t.Errorf("health without the plug-in: %d %s", code, text)
	}
	if _, code := ask(t, p, "/livez/kms-providers"); code != 404 {
		t.Errorf("a plug-in that is down ends the server: livez knows it (%d)", code)
	}
	if err := kms.Start(); err != nil {
		t.Fatal(err)
	}
	p.stop()

	// with it: what is old is written anew by reading and replacing it, as upstream's documentation says
	p = up(t, data, args...)
	if _, err := p.client().CoreV1().Secrets("default").Create(ctx, secret("new"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	migrate := func() {
		t.Helper()
		c := exec.Command("bash", "-c", fmt.Sprintf(
			"set -o pipefail; %[1]s kubectl --kubeconfig %[2]s get secrets -A -o json | %[1]s kubectl --kubeconfig %[2]s replace -f -", path,
			p.kubeconfig))
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("replace: %v\n%s", err, out)
		}
	}
	old, err := p.client().CoreV1().Secrets("default").Get(ctx, "old", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	migrate()
	now, err := p.client().CoreV1().Secrets("default").Get(ctx, "old", metav1.GetOptions{})
	if err != nil || now.ResourceVersion == old.ResourceVersion {
		t.Errorf("a secret that was stored plain was not written anew: %v", err)
	}
	migrate()
	if again, _ := p.client().CoreV1().Secrets("default").Get(ctx, "old", metav1.GetOptions{}); again.ResourceVersion != now.ResourceVersion {
		t.Error("a secret that was sealed with the newest key was written anew")
	}
	backup := filepath.Join(dir, "backup")
	p.kill()

	// after a kill: only the log of what was there before encryption may hold the needle, which a backup leaves behind
	if out, err := exec.Command(path, "store", "check", "--data-dir", data).CombinedOutput(); err != nil {
		t.Errorf("check of the store: %v\n%s", err, out)
	}
	if out, err := exec.Command(path, "store", "backup", "--data-dir", data, backup).CombinedOutput(); err != nil {
		t.Fatalf("backup of the store: %v\n%s", err, out)
	}
	clean := t.TempDir()
	if out, err := exec.Command(path, "store", "restore", "--data-dir", clean, backup).CombinedOutput(); err != nil {
		t.Fatalf("restore of the store: %v\n%s", err, out)
	}
	if b, err := os.ReadFile(backup); err != nil || bytes.Contains(b, []byte(needle)) || !bytes.Contains(b, []byte("k8s:enc:kms:v2:vault:")) {
		t.Errorf("the backup holds plain text, or nothing sealed: %v", err)
	}
	p = up(t, clean, args...)
	for range 20 {
		s := secret("")
		s.GenerateName = "more-"
		if _, err := p.client().CoreV1().Secrets("default").Create(ctx, s, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := p.client().CoreV1().Secrets("default").List(ctx, metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	kms.Rotate("key-2")
	kms.Stop() // mid-way: reads and, for three minutes, writes go on
	if l, err := p.client().CoreV1().Secrets("default").List(ctx, metav1.ListOptions{}); err != nil || len(l.Items) != 22 ||
		string(l.Items[0].Data["k"]) != needle {
		t.Errorf("list while the plug-in is down: %v", err)
	}
	if _, err := p.client().CoreV1().Secrets("default").Create(ctx, secret("coasting"), metav1.CreateOptions{}); err != nil {
		t.Errorf("create while the plug-in is down: %v", err)
	}
	p.kill()
	if found, sealed := haystack(t, clean); len(found) > 0 || sealed < 23 {
		t.Errorf("plain text in %v; %d values are sealed", found, sealed)
	}

	// down at the start: what is sealed cannot be read, and says why; then it can
	p = up(t, clean, args...)
	if _, err := p.client().CoreV1().Secrets("default").Get(ctx, "new", metav1.GetOptions{}); err == nil ||
		!strings.Contains(err.Error(), "/secrets/default/new") {
		t.Errorf("get without the plug-in: %v", err)
	}
	if err := kms.Start(); err != nil {
		t.Fatal(err)
	}
	p.stop()
	p = up(t, clean, args...)
	if l, err := p.client().CoreV1().Secrets("default").List(ctx, metav1.ListOptions{}); err != nil || len(l.Items) != 23 {
		t.Errorf("list after all: %v", err)
	}
	before, _ := p.client().CoreV1().Secrets("default").Get(ctx, "new", metav1.GetOptions{})
	migrate() // what the plug-in's first key sealed is written with its second
	after, err := p.client().CoreV1().Secrets("default").Get(ctx, "new", metav1.GetOptions{})
	if err != nil || before.ResourceVersion == after.ResourceVersion {
		t.Errorf("a secret of the old key was not written anew: %v", err)
	}
	p.stop()
	if found, _ := haystack(t, clean); len(found) > 0 {
		t.Errorf("plain text in %v", found)
	}
}

// TestPluginDownAtStart: a server comes up without the plug-in that seals its config maps, and makes them when it is there; one
// whose roles are sealed too waits for it. Both with a new store and with one that is sealed already.
func TestPluginDownAtStart(t *testing.T) {
	for _, c := range []struct {
		name      string
		resources []string
		waits     bool
	}{
		{name: "config maps", resources: []string{"secrets", "configmaps"}},
		{name: "everything", resources: []string{"*.*"}, waits: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir, data := t.TempDir(), t.TempDir()
			kms := kmstest.New(t, filepath.Join(dir, "kms.sock"))
			file := encryptionFile(t, dir, kms.Socket, c.resources...)
			for _, when := range []string{"new", "sealed"} {
				p := launch(t, data, "--node", "none", "--controllers", "none", "--encryption-provider-config", file)
				if c.waits {
					p.says("Waiting for a KMS plug-in")
					if err := kms.Start(); err != nil {
						t.Fatal(err)
					}
				}
				p.comesUp()
				if !c.waits {
					if _, code := ask(t, p, "/readyz/kms-providers"); code != 500 {
						t.Errorf("%s: health without the plug-in: %d", when, code)
					}
					if _, err := p.client().RbacV1().ClusterRoles().Get(t.Context(), "view", metav1.GetOptions{}); err != nil {
						t.Errorf("%s: %v", when, err)
					}
					if err := kms.Start(); err != nil {
						t.Fatal(err)
					}
				}
				p.says("KMS plug-in is healthy again")
				await(t, p.client(), "kube-system", "extension-apiserver-authentication", func(*corev1.ConfigMap) bool { return true })
				p.kill()
				kms.Stop()
				if _, sealed := haystack(t, data); sealed == 0 {
					t.Errorf("%s: nothing is sealed", when)
				}
			}
		})
	}
}

// ask asks for a path and returns the body and the code.
func ask(t *testing.T, p *program, path string) (string, int) {
	t.Helper()
	client, err := rest.HTTPClientFor(p.config)
	if err != nil {
		t.Fatal(err)
	}
	r, err := client.Get(p.config.Host + path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body), r.StatusCode
}
