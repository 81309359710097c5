// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package embed

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mortise-dev/mortise/store"
	"github.com/mortise-dev/mortise/store/local"
)

// TestTamperedObjects changes secrets in the store of a server that is down: when it is up again, it says which cannot be read,
// and all else works.
func TestTamperedObjects(t *testing.T) {
	const prefix = "/registry/secrets/default/"
	for _, provider := range []string{"aescbc", "aesgcm"} {
		t.Run(provider, func(t *testing.T) {
			ctx, data := t.Context(), t.TempDir()
			file := filepath.Join(data, "encryption.yaml")
			key := base64.StdEncoding.EncodeToString(bytes.Repeat([]byte("k"), 32))
			text := "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n" +
				fmt.Sprintf("- resources: [secrets]\n  providers: [{%s: {keys: [{name: k, secret: %s}]}}]\n", provider, key)
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			// with runs f beside a server on the data.
			with := func(f func(s *Server)) {
				t.Helper()
				s := &Server{Node: NodeNone, Controllers: []string{"none"}, DataDir: filepath.Join(data, "server")}
				s.APIServer.Encryption.ConfigFile = file
				if err := s.Start(ctx); err != nil {
					t.Fatal(err)
				}
				defer func() {
					if err := s.Stop(); err != nil {
						t.Error(err)
					}
				}()
				f(s)
			}
			with(func(s *Server) {
				for _, name := range []string{"cut", "flipped", "plain", "whole"} {
					m := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, StringData: map[string]string{"k": "needle"}}
					if _, err := s.Client().CoreV1().Secrets("default").Create(ctx, m, metav1.CreateOptions{}); err != nil {
						t.Fatal(err)
					}
				}
			})
			tamper(t, filepath.Join(data, "server", "store"), map[string]func([]byte) []byte{
				prefix + "cut":     func(v []byte) []byte { return v[:len("k8s:enc:aescbc:v1:k:")+16] },
				prefix + "flipped": func(v []byte) []byte { v[len(v)-17] ^= 1; return v }, // with aescbc, of the padding's length
				prefix + "plain":   func([]byte) []byte { return []byte(`{"kind":"Secret","apiVersion":"v1"}`) },
			})
			with(func(s *Server) {
				secrets := s.Client().CoreV1().Secrets("default")
				for _, name := range []string{"cut", "flipped", "plain"} {
					_, err := secrets.Get(ctx, name, metav1.GetOptions{})
					if !apierrors.IsInternalError(err) || !strings.Contains(err.Error(), strings.TrimPrefix(prefix, "/registry")+name) {
						t.Errorf("get %s: %v", name, err)
					}
				}
				if m, err := secrets.Get(ctx, "whole", metav1.GetOptions{}); err != nil || string(m.Data["k"]) != "needle" {
					t.Errorf("get of a secret that nobody changed: %v", err)
				}
				if _, err := secrets.List(ctx, metav1.ListOptions{}); err == nil || !strings.Contains(err.Error(), prefix) {
					t.Errorf("list: %v", err)
				}
				if _, err := secrets.Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "new"}}, metav1.CreateOptions{}); err != nil {
					t.Errorf("create beside what cannot be read: %v", err)
				}
				maps := s.Client().CoreV1().ConfigMaps("default")
				if _, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "new"}}, metav1.CreateOptions{}); err != nil {
					t.Errorf("create of what is not encrypted: %v", err)
				}
				if l, err := maps.List(ctx, metav1.ListOptions{}); err != nil || len(l.Items) == 0 {
					t.Errorf("list of what is not encrypted: %v", err)
				}
			})
		})
	}
}

// tamper replaces values in the store of a server that is down.
func tamper(t *testing.T, dir string, changes map[string]func([]byte) []byte) {
	t.Helper()
	e, err := local.Open(dir, local.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}()
	for key, change := range changes {
		r, _, err := e.Get(t.Context(), key)
		if err != nil || r == nil {
			t.Fatalf("%s: %v", key, err)
		}
		if _, _, err := e.Commit(t.Context(), store.Op{Key: key, Value: change(bytes.Clone(r.Value)), Expect: store.Any}); err != nil {
			t.Fatal(err)
		}
	}
}
