// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// credentialPlugin is the variable that makes this binary a credential plug-in: it notes what it was asked in the file that
// the first argument names, and answers what stands in the second.
const credentialPlugin = "MORTISE_TEST_CREDENTIAL_PLUGIN"

func runCredentialPlugin() int {
	log, err := os.OpenFile(os.Args[1], os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return 1
	}
	defer log.Close()
	fmt.Fprintln(log, os.Getenv("KUBERNETES_EXEC_INFO"))
	b, err := os.ReadFile(os.Args[2])
	if err != nil {
		return 1
	}
	_, err = os.Stdout.Write(b)
	if err != nil {
		return 1
	}
	return 0
}

// plugged is a kubeconfig whose user is a credential plug-in.
type plugged struct {
	t                 *testing.T
	file, log, answer string
	server            *rest.Config
	version           string
}

func plug(t *testing.T, server *rest.Config, version string) *plugged {
	t.Helper()
	dir := t.TempDir()
	p := &plugged{t: t, file: filepath.Join(dir, "kubeconfig"), log: filepath.Join(dir, "log"), answer: filepath.Join(dir, "answer"),
		server: server, version: version}
	p.write(&clientcmdapi.ExecConfig{
		APIVersion: version, Command: os.Args[0], Args: []string{p.log, p.answer},
		Env:                []clientcmdapi.ExecEnvVar{{Name: credentialPlugin, Value: "1"}},
		ProvideClusterInfo: true, InteractiveMode: clientcmdapi.NeverExecInteractiveMode,
	})
	return p
}

func (p *plugged) write(e *clientcmdapi.ExecConfig) {
	p.t.Helper()
	c := clientcmdapi.NewConfig()
	c.Clusters["c"] = &clientcmdapi.Cluster{Server: p.server.Host, CertificateAuthorityData: p.server.CAData}
	c.AuthInfos["u"] = &clientcmdapi.AuthInfo{Exec: e}
	c.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u", Namespace: "default"}
	c.CurrentContext = "x"
	if err := clientcmd.WriteToFile(*c, p.file); err != nil {
		p.t.Fatal(err)
	}
}

// answers has the plug-in answer a status from now on.
func (p *plugged) answers(status map[string]any) {
	p.t.Helper()
	b, err := json.Marshal(map[string]any{"apiVersion": p.version, "kind": "ExecCredential", "status": status})
	if err != nil {
		p.t.Fatal(err)
	}
	if err := os.WriteFile(p.answer, b, 0o600); err != nil {
		p.t.Fatal(err)
	}
}

// asked are the requests that the plug-in got.
func (p *plugged) asked() []string {
	p.t.Helper()
	b, err := os.ReadFile(p.log)
	if err != nil && !os.IsNotExist(err) {
		p.t.Fatal(err)
	}
	return strings.FieldsFunc(string(b), func(r rune) bool { return r == '\n' })
}

// whoami asks with kubectl who the plug-in's credential belongs to.
func (p *plugged) whoami() (string, error) {
	p.t.Helper()
	path, err := binary()
	if err != nil {
		p.t.Fatal(err)
	}
	c := exec.CommandContext(p.t.Context(), path, "kubectl", "--kubeconfig", p.file, "auth", "whoami", "-o",
		"jsonpath={.status.userInfo.username}")
	out, err := c.CombinedOutput()
	return string(out), err
}

// TestCredentialPlugins has kubectl and client-go log in by plug-ins: tokens, certificates, their ends, refusals.
func TestCredentialPlugins(t *testing.T) {
	t.Parallel()
	server := up(t, t.TempDir(), "--node", "none", "--controllers", "none")
	admin := kubernetes.NewForConfigOrDie(server.config)
	if _, err := admin.CoreV1().ServiceAccounts("default").Create(t.Context(),
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "ci"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	token := func() string {
		t.Helper()
		r, err := admin.CoreV1().ServiceAccounts("default").CreateToken(t.Context(), "ci", &authenticationv1.TokenRequest{},
			metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return r.Status.Token
	}
	const ci = "system:serviceaccount:default:ci"

	for _, version := range []string{"client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1"} {
		p := plug(t, server.config, version)
		p.answers(map[string]any{"token": token()})
		if who, err := p.whoami(); err != nil || who != ci {
			t.Errorf("%s, a token: %v, %s", version, err, who)
		}
		asked := p.asked()
		if len(asked) != 1 || !strings.Contains(asked[0], `"apiVersion":"`+version+`"`) ||
			!strings.Contains(asked[0], `"server":"`+server.config.Host+`"`) || !strings.Contains(asked[0], `"interactive":false`) {
			t.Errorf("%s: asked %q", version, asked)
		}
		p.answers(map[string]any{"clientCertificateData": string(server.config.CertData), "clientKeyData": string(server.config.KeyData)})
		if who, err := p.whoami(); err != nil || who != "kubernetes-admin" {
			t.Errorf("%s, a certificate: %v, %s", version, err, who)
		}
		for _, other := range []string{"client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1"} {
			if other == version {
				continue
			}
			p.version = other
			p.answers(map[string]any{"token": token()})
			if who, err := p.whoami(); err == nil || !strings.Contains(who, "plugin returned version "+other) {
				t.Errorf("%s, an answer in another version: %v, %s", version, err, who)
			}
		}
	}

	client := func(p *plugged) kubernetes.Interface {
		t.Helper()
		c, err := clientcmd.BuildConfigFromFlags("", p.file)
		if err != nil {
			t.Fatal(err)
		}
		return kubernetes.NewForConfigOrDie(c)
	}
	ask := func(c kubernetes.Interface) (string, error) {
		r, err := c.AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
		if err != nil {
			return "", err
		}
		return r.Status.UserInfo.Username, nil
	}
	for _, c := range []struct {
		name   string
		status map[string]any
		calls  int // for two requests
	}{
		{"without an end", map[string]any{"token": token()}, 1},
		{"that ends later", map[string]any{"token": token(), "expirationTimestamp": time.Now().Add(time.Hour).UTC().Format(time.RFC3339)}, 1},
		// once more, to see whether it gives certificates
		{"that has ended", map[string]any{"token": token(), "expirationTimestamp": time.Now().Add(-time.Minute).UTC().Format(time.RFC3339)}, 3},
	} {
		p := plug(t, server.config, "client.authentication.k8s.io/v1")
		p.answers(c.status)
		k := client(p)
		for range 2 {
			if who, err := ask(k); err != nil || who != ci {
				t.Errorf("a token %s: %v, %s", c.name, err, who)
			}
		}
		if n := len(p.asked()); n != c.calls {
			t.Errorf("a token %s: asked %d times", c.name, n)
		}
	}

	// A token that is refused is asked for anew; the request that met the refusal is not said again.
	p := plug(t, server.config, "client.authentication.k8s.io/v1")
	p.answers(map[string]any{"token": "a.b.c"})
	k := client(p)
	if who, err := ask(k); !apierrors.IsUnauthorized(err) {
		t.Errorf("a wrong token: %v, %s", err, who)
	}
	p.answers(map[string]any{"token": token()})
	if who, err := ask(k); err != nil && !apierrors.IsUnauthorized(err) {
		t.Errorf("after it: %v, %s", err, who)
	}
	if who, err := ask(k); err != nil || who != ci {
		t.Errorf("with the new one: %v, %s", err, who)
	}

	// mortise credential is such a plug-in.
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	cache := filepath.Join(t.TempDir(), "cache")
	own := plug(t, server.config, "client.authentication.k8s.io/v1")
	own.write(&clientcmdapi.ExecConfig{
		APIVersion: own.version, Command: path, InteractiveMode: clientcmdapi.NeverExecInteractiveMode,
		Args: []string{"credential", "service-account", "ci", "--namespace", "default", "--kubeconfig", server.kubeconfig, "--duration", "10m",
			"--cache-dir", cache},
	})
	for range 3 {
		if who, err := own.whoami(); err != nil || who != ci {
			t.Errorf("mortise credential: %v, %s", err, who)
		}
	}
	kept, err := filepath.Glob(filepath.Join(cache, "*.json"))
	if err != nil || len(kept) != 1 {
		t.Fatalf("%d tokens are kept, %v", len(kept), err)
	}
	// The account is made anew: the token that is kept is refused, and a process that meets that gets another.
	if err := admin.CoreV1().ServiceAccounts("default").Delete(t.Context(), "ci", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.CoreV1().ServiceAccounts("default").Create(t.Context(),
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "ci"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	again := client(own)
	if who, err := ask(again); !apierrors.IsUnauthorized(err) {
		t.Errorf("the token of an account that was deleted: %v, %s", err, who)
	}
	if who, err := ask(again); err != nil || who != ci {
		t.Errorf("the second time: %v, %s", err, who)
	}
}
