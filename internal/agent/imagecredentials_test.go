// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const privateImage = "registry.test/team/tool:1"

// secretFor makes a secret whose docker configuration has the user for the key, with the password "secret".
func (c *cluster) secretFor(name, key, user string) {
	c.t.Helper()
	text := fmt.Sprintf(`{"auths":{%q:{"username":%q,"password":"secret"}}}`, key, user)
	if _, err := c.client.CoreV1().Secrets("default").Create(c.t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}, Type: corev1.SecretTypeDockerConfigJson,
		Data: map[string][]byte{corev1.DockerConfigJsonKey: []byte(text)},
	}, metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

func withSecrets(name string, secrets ...string) *corev1.Pod {
	pod := onePod(name)
	pod.Spec.Containers[0].Image = privateImage
	for _, s := range secrets {
		pod.Spec.ImagePullSecrets = append(pod.Spec.ImagePullSecrets, corev1.LocalObjectReference{Name: s})
	}
	return pod
}

// An image that one pod pulled with its secret is on the node; a pod without credentials does not get it.
func TestPodsWithoutCredentialsDoNotHaveTheImage(t *testing.T) {
	c, r := newFake(t, nil)
	r.Private(privateImage, "robot", "second")
	c.secretFor("tools", "registry.test/team", "robot")
	c.secretFor("twin", "registry.test", "robot")
	c.secretFor("second", "registry.test", "second")
	c.secretFor("thief", "registry.test", "thief")
	c.secretFor("astray", "registry.test/other", "robot")
	c.create(withSecrets("owner", "thief", "tools"))
	c.await("owner", "running", running(0))
	pulls := r.Calls("PullImage")

	c.create(withSecrets("nobody"))
	c.await("nobody", "refused", waitingFor("ErrImagePull"))
	c.create(withSecrets("stranger", "thief"))
	c.await("stranger", "refused", waitingFor("ErrImagePull"))
	c.create(withSecrets("misdirected", "astray"))
	c.await("misdirected", "refused", waitingFor("ErrImagePull"))
	c.createAs(withSecrets("never"), corev1.PullNever)
	pod := c.await("never", "refused", waitingFor("ErrImageNeverPull"))
	// As of an image that is not there: who may not have it does not learn of it.
	if got, want := pod.Status.ContainerStatuses[0].State.Waiting.Message,
		fmt.Sprintf("Container image %q is not present with pull policy of Never", privateImage); got != want {
		t.Errorf("%s\nnot %s", got, want)
	}
	if r.Calls("PullImage") < pulls+3 {
		t.Error("the registry was not asked")
	}

	c.policy = corev1.PullIfNotPresent
	c.create(withSecrets("same", "tools"))
	c.await("same", "running", running(0))
	c.awaitEvent("same", fmt.Sprintf("Pulled: Container image %q already present on machine and can be accessed by the pod", privateImage))
	c.create(withSecrets("twin", "twin"))
	c.await("twin", "running", running(0))
	c.createAs(withSecrets("offline", "tools"), corev1.PullNever)
	c.await("offline", "running", running(0))

	c.policy = corev1.PullIfNotPresent
	c.create(withSecrets("other", "second"))
	c.await("other", "running", running(0))
	c.awaitEvent("other", fmt.Sprintf("Pulled: Successfully pulled image %q in ", privateImage))
}

// What the node remembers outlives it.
func TestImageCredentialsAfterAStart(t *testing.T) {
	c, r := newFake(t, nil)
	r.Private(privateImage, "robot")
	c.secretFor("tools", "registry.test", "robot")
	c.create(withSecrets("owner", "tools"))
	c.await("owner", "running", running(0))
	c.stop()
	records, err := filepath.Glob(filepath.Join(c.options.Host.RootDir, "image_manager/pulled/sha256-*"))
	if err != nil || len(records) != 1 {
		t.Fatalf("records: %v, %v", records, err)
	}
	if intents, err := os.ReadDir(filepath.Join(c.options.Host.RootDir, "image_manager/pulling")); err != nil || len(intents) != 0 {
		t.Errorf("intents: %v, %v", intents, err)
	}
	c.start()
	c.create(withSecrets("nobody"))
	c.await("nobody", "refused", waitingFor("ErrImagePull"))
	c.create(withSecrets("same", "tools"))
	c.await("same", "running", running(0))
}

// A docker configuration that cannot be read stops the pull with what is wrong, as kubelet does.
func TestPullSecretThatCannotBeRead(t *testing.T) {
	c, r := newFake(t, nil)
	r.Pullable(privateImage)
	if _, err := c.client.CoreV1().Secrets("default").Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "broken", Namespace: "default"}, Type: corev1.SecretTypeDockerConfigJson,
		Data: map[string][]byte{corev1.DockerConfigJsonKey: []byte("{")},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.create(withSecrets("p", "broken"))
	c.await("p", "refused", waitingFor("unexpected end of JSON input"))
	if n := r.Calls("PullImage"); n != 0 {
		t.Errorf("the runtime was asked %d times to pull", n)
	}
}

// The container runs the image that its own pod pulled, whatever the name means by then.
func TestContainerHasTheImageThatItsPodPulled(t *testing.T) {
	c, r := newFake(t, nil)
	r.Pullable(privateImage)
	var asked atomic.Int32
	r.Fault("ImageStatus", func() error {
		// Once for what is there, once for what was pulled: between them another pod moves the name.
		if r.Calls("PullImage") > 0 && asked.Add(1) == 1 {
			r.Move(privateImage, "sha256:another")
		}
		return nil
	})
	c.createAs(withSecrets("p"), corev1.PullAlways)
	c.await("p", "running", running(0))
	if _, config := r.Made("p", "c"); config.Image.Image != "sha256:"+privateImage {
		t.Errorf("the container has %s", config.Image.Image)
	}
}

// A provider's login pulls a private image. It is asked only when the image is to be pulled; a provider that fails is an event.
func TestImageCredentialProviders(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	const provider = `- name: %s
  matchImages: [registry.test]
  defaultCacheDuration: 0s
  apiVersion: credentialprovider.kubelet.k8s.io/v1
`
	write("config.yaml", "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders:\n"+
		fmt.Sprintf(provider, "broken")+fmt.Sprintf(provider, "robots"))
	write("broken", "#!/bin/sh\necho token=abcdef >&2\nexit 7\n")
	write("robots", "#!/bin/sh\necho asked >>"+dir+`/asked
echo '{"kind":"CredentialProviderResponse","apiVersion":"credentialprovider.kubelet.k8s.io/v1","cacheKeyType":"Image",
"auth":{"registry.test/team":{"username":"robot","password":"secret"}}}'
`)
	c, r := newFake(t, nil)
	c.stop()
	c.options.ImageCredentials = ImageCredentialsOptions{Config: filepath.Join(dir, "config.yaml"), BinDir: dir}
	c.start()
	r.Private(privateImage, "robot")
	c.create(withSecrets("first"))
	c.await("first", "running", running(0))
	c.awaitEvent("first", "FailedCredentialProvider: Credential provider broken failed for image registry.test/team/tool with exit code 7: "+
		"token=[redacted]")
	c.policy = corev1.PullIfNotPresent
	c.create(withSecrets("second"))
	c.await("second", "running", running(0))
	asked, err := os.ReadFile(filepath.Join(dir, "asked"))
	if err != nil || string(asked) != "asked\n" {
		t.Errorf("%v: %q", err, asked)
	}
}
