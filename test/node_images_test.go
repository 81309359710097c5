// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mortise-dev/mortise/internal/machine/images"
)

// pulls has images come from a registry that wants to know who asks.
func pulls(t *testing.T, n *realNode) {
	host := privateRegistry(t)
	image := host + "/private/tool:1"
	config := fmt.Sprintf(`{"auths":{%q:{"auth":%q}}}`, host, base64.StdEncoding.EncodeToString([]byte("robot:secret")))
	if _, err := n.c.CoreV1().Secrets("default").Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "tools"}, Type: corev1.SecretTypeDockerConfigJson,
		Data: map[string][]byte{corev1.DockerConfigJsonKey: []byte(config)},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if out, err := exec.Command("ctr", "-a", n.socket, "-n", "k8s.io", "images", "rm", image).CombinedOutput(); err != nil {
			t.Errorf("remove image: %v\n%s", err, out)
		}
	})
	pod := func(name string, policy corev1.PullPolicy, secrets ...string) *corev1.Pod {
		p := idlePod(name)
		p.Spec.Containers[0].Image, p.Spec.Containers[0].ImagePullPolicy = image, policy
		for _, s := range secrets {
			p.Spec.ImagePullSecrets = append(p.Spec.ImagePullSecrets, corev1.LocalObjectReference{Name: s})
		}
		return p
	}
	waits := func(name, reason string) {
		t.Helper()
		n.pod(t, name, func(p *corev1.Pod) bool {
			return len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].State.Waiting != nil &&
				p.Status.ContainerStatuses[0].State.Waiting.Reason == reason
		})
	}
	n.create(t, pod("never", corev1.PullNever), pod("stranger", corev1.PullAlways), pod("mistaken", corev1.PullIfNotPresent, "none"))
	waits("never", "ErrImageNeverPull")
	n.hasEvent(t, "never", "ErrImageNeverPull", "is not present with pull policy of Never")
	waits("stranger", "ImagePullBackOff")
	n.hasEvent(t, "stranger", "Failed", `Failed to pull image "`+image+`"`)
	waits("mistaken", "ImagePullBackOff")
	n.hasEvent(t, "mistaken", "FailedToRetrieveImagePullSecret", "Unable to retrieve some image pull secrets (none)")
	n.create(t, pod("known", corev1.PullIfNotPresent, "none", "tools"))
	p := n.ready(t, "known")
	if id := p.Status.ContainerStatuses[0].ImageID; !strings.Contains(id, "sha256:") {
		t.Errorf("the image is %q", id)
	}
	n.hasEvent(t, "known", "Pulling", `Pulling image "`+image+`"`)
	n.hasEvent(t, "known", "Pulled", `Successfully pulled image "`+image+`"`)
	// The image is on the node now: for those with credentials, and for nobody else.
	n.create(t, pod("again", corev1.PullIfNotPresent, "tools"), pod("late", corev1.PullIfNotPresent), pod("hidden", corev1.PullNever))
	n.ready(t, "again")
	n.hasEvent(t, "again", "Pulled", "already present on machine and can be accessed by the pod")
	waits("late", "ImagePullBackOff")
	n.hasEvent(t, "late", "Failed", `Failed to pull image "`+image+`"`)
	waits("hidden", "ErrImageNeverPull")
}

// privateRegistry starts a registry that has private/tool:1 for the user robot, and returns its HOST:PORT.
func privateRegistry(t *testing.T) string {
	t.Helper()
	store := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	push(t, store, "private/tool")
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, ok := r.BasicAuth(); !ok || user != "robot" || password != "secret" {
			w.Header().Set("WWW-Authenticate", `Basic realm="tools"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		store.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

// push gives a registry the image of busybox, as version 1 of a repository.
func push(t *testing.T, to http.Handler, repository string) {
	t.Helper()
	path, err := exec.LookPath("busybox")
	if err != nil {
		t.Fatal(err)
	}
	busybox, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	built, err := images.Build(busybox, []string{"sh", "sleep"})
	if err != nil {
		t.Fatal(err)
	}
	image := built[images.Busybox]
	send := func(method, path, kind string, body []byte) {
		t.Helper()
		r := httptest.NewRequest(method, "/v2/"+repository+path, bytes.NewReader(body))
		r.Header.Set("Content-Type", kind)
		w := httptest.NewRecorder()
		if to.ServeHTTP(w, r); w.Code != http.StatusCreated {
			t.Fatalf("%s %s: %d %s", method, path, w.Code, w.Body)
		}
	}
	layers, err := image.Layers()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range layers {
		digest, err := l.Digest()
		if err != nil {
			t.Fatal(err)
		}
		r, err := l.Compressed()
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		send("POST", "/blobs/uploads/?digest="+digest.String(), "application/octet-stream", body)
	}
	config, err := image.RawConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	digest, _, err := v1.SHA256(bytes.NewReader(config))
	if err != nil {
		t.Fatal(err)
	}
	send("POST", "/blobs/uploads/?digest="+digest.String(), "application/octet-stream", config)
	manifest, err := image.RawManifest()
	if err != nil {
		t.Fatal(err)
	}
	kind, err := image.MediaType()
	if err != nil {
		t.Fatal(err)
	}
	send("PUT", "/manifests/1", string(kind), manifest)
}
