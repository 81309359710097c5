// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// TestCompressedPieces reads lists and watches of many objects compressed and plain, before and after changes of some of them. Both are the
// same, whatever was kept of earlier answers.
func TestCompressedPieces(t *testing.T) {
	f := start(t)
	maps := kubernetes.NewForConfigOrDie(f.tls).CoreV1().ConfigMaps("zip")
	of := func(i int, text string) *corev1.ConfigMap {
		m := metav1.ObjectMeta{Name: fmt.Sprintf("m%03d", i), Labels: map[string]string{"odd": fmt.Sprint(i % 2)}}
		return &corev1.ConfigMap{ObjectMeta: m, Data: map[string]string{"k": strings.Repeat(text, 200)}}
	}
	for i := range 400 {
		if _, err := maps.Create(t.Context(), of(i, fmt.Sprintf("%08x", i*7919)), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	config := rest.CopyConfig(f.tls)
	config.DisableCompression = true
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	get := func(path, accept, encoding string) []byte {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, f.tls.Host+path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Accept", accept)
		r.Header.Set("Accept-Encoding", encoding)
		res, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		from := io.Reader(res.Body)
		if encoding == "gzip" {
			if res.Header.Get("Content-Encoding") != "gzip" {
				t.Fatalf("%s: headers %v", path, res.Header)
			}
			if from, err = gzip.NewReader(res.Body); err != nil {
				t.Fatal(err)
			}
		}
		b, err := io.ReadAll(from)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	const root = "/api/v1/namespaces/zip/configmaps"
	const watch = "?watch=1&timeoutSeconds=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
	same := func() {
		t.Helper()
		for _, path := range []string{root, root, "/api/v1/configmaps", root + "?limit=300", root + "?labelSelector=odd%3D1"} {
			for _, accept := range []string{"application/json", "application/vnd.kubernetes.protobuf"} {
				if plain, zipped := get(path, accept, "identity"), get(path, accept, "gzip"); !bytes.Equal(plain, zipped) {
					t.Errorf("%s as %s: %d bytes compressed, %d plain, or others", path, accept, len(zipped), len(plain))
				}
			}
		}
	}
	same()
	for i := 0; i < 400; i += 111 {
		if _, err := maps.Update(t.Context(), of(i, "changed!"), metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := maps.Delete(t.Context(), fmt.Sprintf("m%03d", i+1), metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		same()
	}
	for _, accept := range []string{"application/json", "application/vnd.kubernetes.protobuf;stream=watch"} {
		if plain, zipped := get(root+watch, accept, "identity"), get(root+watch, accept, "gzip"); !bytes.Equal(plain, zipped) ||
			bytes.Count(plain, []byte("ADDED")) != 396 {
			t.Errorf("watch as %s: %d bytes compressed, %d plain, or others", accept, len(zipped), len(plain))
		}
	}
}
