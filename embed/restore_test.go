// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package embed_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"github.com/mortise-dev/mortise/embed"
	"github.com/mortise-dev/mortise/store/local"
)

// TestInformersOverRestore restores a server's store as it was at an older revision. client-go's informers, which have seen newer
// revisions, then have what was restored, and see what comes after it.
func TestInformersOverRestore(t *testing.T) {
	dir := t.TempDir()
	s := &embed.Server{DataDir: dir, Controllers: []string{"none"}}
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	}()
	put := func(name, value string) string {
		t.Helper()
		m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"v": value}}
		maps := s.Client().CoreV1().ConfigMaps("default")
		made, err := maps.Create(t.Context(), m, metav1.CreateOptions{})
		if err != nil {
			made, err = maps.Update(t.Context(), m, metav1.UpdateOptions{})
		}
		if err != nil {
			t.Fatal(err)
		}
		return made.ResourceVersion
	}
	seen := make(chan string, 100)
	tell := func(what string, o any) {
		if m, ok := o.(*corev1.ConfigMap); ok && m.Namespace == "default" {
			seen <- fmt.Sprintf("%s %s=%s", what, m.Name, m.Data["v"])
		}
	}
	await := func(want ...string) {
		t.Helper()
		late := time.After(time.Minute)
		for len(want) > 0 {
			select {
			case got := <-seen:
				for i, w := range want {
					if w == got {
						want = append(want[:i], want[i+1:]...)
						break
					}
				}
			case <-late:
				t.Fatalf("the informer has not seen %q", want)
			}
		}
	}
	point := put("a", "1")
	put("a", "2")
	put("b", "1")
	factory := informers.NewSharedInformerFactory(s.Client(), 0)
	if _, err := factory.Core().V1().ConfigMaps().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) { tell("added", o) }, UpdateFunc: func(_, o any) { tell("updated", o) }, DeleteFunc: func(o any) {
			if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = gone.Obj
			}
			tell("deleted", o)
		},
	}); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	defer factory.Shutdown()
	defer close(stop)
	factory.Start(stop)
	await("added a=2", "added b=1")

	backup, err := s.Client().CoreV1().RESTClient().Get().AbsPath("/store/backup").Param("revision", point).DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	listen := strings.TrimPrefix(s.URL(), "https://")
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(dir, "store"), filepath.Join(dir, "former")); err != nil {
		t.Fatal(err)
	}
	if _, err := local.Restore(t.Context(), bytes.NewReader(backup), filepath.Join(dir, "store"), 1_000_000, local.Options{}); err != nil {
		t.Fatal(err)
	}
	s = &embed.Server{DataDir: dir, Listen: listen, Controllers: []string{"none"}}
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	await("updated a=1", "deleted b=1")
	put("c", "1")
	await("added c=1")
}
