// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"
	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	externaljwt "k8s.io/externaljwt/apis/v1"

	"github.com/mortise-dev/mortise/api/extension/v1alpha1"
	"github.com/mortise-dev/mortise/embed"
	"github.com/mortise-dev/mortise/embed/embedtest"
	"github.com/mortise-dev/mortise/embed/options"
	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/extension/egress/egresstest"
	"github.com/mortise-dev/mortise/internal/apiserver/encryption/kmstest"
)

// What becomes of a point in the ledger.
const (
	counted   = "TestExtensionPointsCount calls it"
	onNodes   = "TestContainers calls it, on a node with containers"
	onPlugIns = "the tests of internal/agent's packages devicemanager and plugins call it"
	inAgent   = "the tests of internal/agent/csi, internal/agent/dra and internal/agent/imagecredentials call it, and read the ledger"
	silent    = "the server calls nobody, and lists nothing"
)

// counts has every point of the catalogue.
var counts = map[extension.Point]string{
	extension.TokenWebhook:         counted,
	extension.OIDCIssuer:           counted,
	extension.TokenSigner:          counted,
	extension.AuthorizationWebhook: counted,
	extension.AuditWebhook:         counted,
	extension.KMS:                  counted,
	extension.ConversionWebhook:    counted,
	extension.AggregatedAPI:        counted,
	extension.MetricsAPI:           counted,
	extension.MutatingWebhook:      counted,
	extension.ValidatingWebhook:    counted,
	extension.MutatingPolicy:       counted,
	extension.ValidatingPolicy:     counted,
	extension.ImagePolicyWebhook:   counted,
	extension.Initializer:          counted,
	extension.SchedulerExtender:    counted,
	extension.EgressProxy:          counted,
	extension.ContainerRuntime:     onNodes,
	extension.NetworkPlugin:        onNodes,
	extension.DevicePlugin:         onPlugIns,
	extension.NodePlugin:           onPlugIns,
	extension.ResourceDriver:       inAgent,
	extension.ImageCredentials:     inAgent,
	extension.StorageDriver:        inAgent,

	// A client of the API, or of the machine's other programs, does the work.
	extension.KubectlPlugin:         silent,
	extension.ExecCredential:        silent,
	extension.CertificateSigner:     silent,
	extension.Scheduler:             silent,
	extension.CloudController:       silent,
	extension.AnnotationsAndLabels:  silent,
	extension.ExternalLoadBalancing: silent,
	// The work is in this process, or in a pod's own container.
	extension.CustomResource:      silent,
	extension.AdmissionPlugin:     silent,
	extension.Controller:          silent,
	extension.SchedulerPlugin:     silent,
	extension.RuntimeClass:        silent,
	extension.LifecycleHook:       silent,
	extension.StoreEngine:         silent,
	extension.ComponentConfigFile: silent,
}

// TestExtensionPointsAreKnown: counts has the catalogue's points, and says of those that are called that they count.
func TestExtensionPointsAreKnown(t *testing.T) {
	known := map[extension.Point]bool{}
	for _, d := range extension.Points() {
		known[d.Point] = true
		switch how := counts[d.Point]; {
		case how == "":
			t.Errorf("no test says what becomes of calls of %s", d.Point)
		case d.Way == extension.Called && how == silent:
			t.Errorf("%s is called, and no test wants its calls to be counted", d.Point)
		}
	}
	for p := range counts {
		if !known[p] {
			t.Errorf("%s is not in the catalogue", p)
		}
	}
}

// callee is all extensions that are called over HTTPS.
func callee(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	answer := func(text string) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, text)
	}
	switch path := r.URL.Path; {
	case path == "/authn":
		answer(`{"apiVersion":"authentication.k8s.io/v1","kind":"TokenReview","status":{"authenticated":true,"user":{"username":"jane"}}}`)
	case path == "/authz":
		answer(`{"apiVersion":"authorization.k8s.io/v1","kind":"SubjectAccessReview","status":{"allowed":true}}`)
	case path == "/image":
		answer(`{"apiVersion":"imagepolicy.k8s.io/v1alpha1","kind":"ImageReview","status":{"allowed":true}}`)
	case path == "/audit":
		answer(`{}`)
	case path == "/admit":
		var q admissionv1.AdmissionReview
		_ = json.Unmarshal(body, &q)
		q.Response = &admissionv1.AdmissionResponse{UID: q.Request.UID, Allowed: true}
		_ = json.NewEncoder(w).Encode(q)
	case path == "/extender/filter":
		var q struct{ NodeNames *[]string }
		_ = json.Unmarshal(body, &q)
		_ = json.NewEncoder(w).Encode(q)
	case strings.HasPrefix(path, "/apis/far.example.com/v1"):
		answer(`{"apiVersion":"v1","kind":"APIResourceList","groupVersion":"far.example.com/v1","resources":[]}`)
	case strings.HasPrefix(path, "/apis/external.metrics.k8s.io/v1beta1"):
		answer(`{"apiVersion":"v1","kind":"APIResourceList","groupVersion":"external.metrics.k8s.io/v1beta1","resources":[]}`)
	default:
		http.NotFound(w, r)
	}
}

// tokenSigner signs no token: it is asked, and that counts.
type tokenSigner struct {
	externaljwt.UnimplementedExternalJWTSignerServer
	key []byte
}

func (s *tokenSigner) Metadata(context.Context, *externaljwt.MetadataRequest) (*externaljwt.MetadataResponse, error) {
	return &externaljwt.MetadataResponse{MaxTokenExpirationSeconds: 7200}, nil
}

func (s *tokenSigner) FetchKeys(context.Context, *externaljwt.FetchKeysRequest) (*externaljwt.FetchKeysResponse, error) {
	return &externaljwt.FetchKeysResponse{DataTimestamp: timestamppb.Now(), RefreshHintSeconds: 3600,
		Keys: []*externaljwt.Key{{KeyId: "a", Key: s.key}}}, nil
}

// called is a cluster all of whose extensions are configured.
type called struct {
	t       *testing.T
	dir     string
	behind  *httptest.Server // callee
	cluster *embed.Server
}

func (c *called) file(name, text string) string { return write(c.t, filepath.Join(c.dir, name), text) }

// kubeconfig is a file that leads to a path of the callee.
func (c *called) kubeconfig(name string) string {
	authority := c.file("ca.crt", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.behind.Certificate().Raw})))
	return c.file(name, fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"c",
		"clusters":[{"name":"c","cluster":{"server":"%s/%s","certificate-authority":%q}}],
		"contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],"users":[{"name":"u","user":{}}]}`, c.behind.URL, name, authority))
}

// listen serves on a socket until the test ends.
func (c *called) listen(name string) net.Listener {
	c.t.Helper()
	l, err := net.Listen("unix", filepath.Join(c.dir, name))
	if err != nil {
		c.t.Fatal(err)
	}
	return l
}

// configure returns the settings that name the extensions.
func (c *called) configure() options.APIServer {
	c.t.Helper()
	var o options.APIServer
	proxy := &egresstest.Proxy{Route: func(string) string { return c.behind.Listener.Addr().String() }}
	proxy.Serve(c.t, c.listen("proxy"))
	o.Egress.ConfigFile = c.file("egress.yaml", fmt.Sprintf(`apiVersion: apiserver.k8s.io/v1beta1
kind: EgressSelectorConfiguration
egressSelections:
- name: controlplane
  connection: {proxyProtocol: HTTPConnect, transport: {uds: {udsName: %s/proxy}}}
- name: cluster
  connection: {proxyProtocol: HTTPConnect, transport: {uds: {udsName: %[1]s/proxy}}}
`, c.dir))
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		c.t.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		c.t.Fatal(err)
	}
	signing := grpc.NewServer()
	externaljwt.RegisterExternalJWTSignerServer(signing, &tokenSigner{key: der})
	l := c.listen("signer")
	ended := make(chan struct{})
	go func() { defer close(ended); _ = signing.Serve(l) }()
	c.t.Cleanup(func() { signing.Stop(); <-ended })
	o.Authentication.ServiceAccounts.SigningEndpoint = filepath.Join(c.dir, "signer")
	kms := kmstest.New(c.t, filepath.Join(c.dir, "kms"))
	if err := kms.Start(); err != nil {
		c.t.Fatal(err)
	}
	o.Encryption.ConfigFile = encryptionFile(c.t, c.dir, kms.Socket, "secrets")

	o.Authentication.TokenWebhook = options.TokenWebhook{ConfigFile: c.kubeconfig("authn"), Version: "v1"}
	o.Authentication.OIDC = options.OIDC{IssuerURL: c.behind.URL, ClientID: "mortise", CAFile: filepath.Join(c.dir, "ca.crt")}
	o.Authorization.Modes = []string{"RBAC", "Webhook"}
	o.Authorization.Webhook = options.AuthorizationWebhook{ConfigFile: c.kubeconfig("authz"), Version: "v1"}
	o.Audit.PolicyFile = c.file("policy", "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n- level: Metadata\n")
	o.Audit.Webhook.ConfigFile, o.Audit.Webhook.Batch.Mode = c.kubeconfig("audit"), "blocking"
	o.Admission.Enable = []string{"ImagePolicyWebhook"}
	o.Admission.ConfigFile = c.file("admission.yaml", fmt.Sprintf(`apiVersion: apiserver.config.k8s.io/v1
kind: AdmissionConfiguration
plugins:
- name: ImagePolicyWebhook
  configuration: {imagePolicy: {kubeConfigFile: %s, allowTTL: 50, denyTTL: 50, retryBackoff: 500, defaultAllow: true}}
`, c.kubeconfig("image")))
	o.Admission.Initializers = true
	o.Scheduler.ConfigFile = c.file("scheduler.yaml", fmt.Sprintf(`apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
extenders:
- {urlPrefix: %s/extender, filterVerb: filter, enableHTTPS: true, tlsConfig: {caFile: %s/ca.crt}, nodeCacheCapable: true, httpTimeout: 20s}
`, c.behind.URL, c.dir))
	return o
}

// create makes objects, in their order.
func (c *called) create(objects ...string) {
	c.t.Helper()
	ca := base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.behind.Certificate().Raw}))
	fill := strings.NewReplacer("URL", c.behind.URL, "CA", ca, "NONE", `"sideEffects":"None","admissionReviewVersions":["v1"]`,
		"MAPS", `[{"apiGroups":[""],"apiVersions":["v1"],"resources":["configmaps"],"operations":["CREATE"]}]`)
	for _, o := range objects {
		path, text, _ := strings.Cut(o, " ")
		if err := c.cluster.Client().CoreV1().RESTClient().Post().AbsPath(path).SetHeader("Content-Type", "application/json").
			Body([]byte(fill.Replace(text))).Do(c.t.Context()).Error(); err != nil {
			c.t.Fatalf("create at %s: %v", path, err)
		}
	}
}

// ledgerRows are the rows of a server's ledger, by the API.
func ledgerRows(t *testing.T, client kubernetes.Interface) []extension.Row {
	t.Helper()
	data, err := client.Discovery().RESTClient().Get().AbsPath("/debug/extensions").DoRaw(t.Context())
	var view extension.View
	if err == nil {
		err = json.Unmarshal(data, &view)
	}
	if err != nil {
		t.Fatal(err)
	}
	return view.Extensions
}

// countsCalls reports whether one extension of a point was called.
func countsCalls(rows []extension.Row, p extension.Point) bool {
	return slices.ContainsFunc(rows, func(r extension.Row) bool { return r.Point == p && r.Calls > 0 && r.State != extension.Unused })
}

// TestExtensionPointsCount has a cluster call one extension of each point, and reads the ledger by its API and by `mortise extensions`.
func TestExtensionPointsCount(t *testing.T) {
	dir, err := os.MkdirTemp("", "points") // a socket's path is to be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	c := &called{t: t, dir: dir, behind: httptest.NewTLSServer(http.HandlerFunc(callee))}
	t.Cleanup(c.behind.Close)
	kubeconfig := filepath.Join(dir, "kubeconfig")
	c.cluster = embedtest.Start(t, &embed.Server{Controllers: []string{"replicaset-controller"}, Node: embed.NodeSimulated,
		KubeconfigFile: kubeconfig, APIServer: c.configure()})
	admin := c.cluster.Client()
	const registration = "/apis/admissionregistration.k8s.io/v1/"
	c.create(
		registration+`mutatingwebhookconfigurations {"metadata":{"name":"same"},"webhooks":[{"name":"same.example.com",
			"clientConfig":{"url":"URL/admit","caBundle":"CA"},"rules":MAPS,NONE}]}`,
		registration+`validatingwebhookconfigurations {"metadata":{"name":"same"},"webhooks":[{"name":"same.example.com",
			"clientConfig":{"url":"URL/admit","caBundle":"CA"},"rules":MAPS,NONE}]}`,
		registration+`validatingadmissionpolicies {"metadata":{"name":"same"},"spec":{"matchConstraints":{"resourceRules":MAPS},
			"validations":[{"expression":"true"}]}}`,
		registration+`validatingadmissionpolicybindings {"metadata":{"name":"same"},"spec":{"policyName":"same","validationActions":["Deny"]}}`,
		registration+`mutatingadmissionpolicies {"metadata":{"name":"same"},"spec":{"matchConstraints":{"resourceRules":MAPS},
			"reinvocationPolicy":"Never","mutations":[{"patchType":"ApplyConfiguration","applyConfiguration":
			{"expression":"Object{metadata: Object.metadata{labels: {'a': 'b'}}}"}}]}}`,
		registration+`mutatingadmissionpolicybindings {"metadata":{"name":"same"},"spec":{"policyName":"same"}}`,
		`/apis/extension.mortise.dev/v1alpha1/initializerconfigurations {"apiVersion":"extension.mortise.dev/v1alpha1",
			"kind":"InitializerConfiguration","metadata":{"name":"one"},"initializers":[{"name":"one.example.com",
			"rules":[{"apiGroups":[""],"apiVersions":["v1"],"resources":["podtemplates"]}]}]}`,
		`/apis/apiextensions.k8s.io/v1/customresourcedefinitions {"metadata":{"name":"boxes.ext.example.com"},"spec":{"group":"ext.example.com",
			"scope":"Namespaced","names":{"plural":"boxes","kind":"Box"},"conversion":{"strategy":"Webhook","webhook":
			{"clientConfig":{"url":"URL/convert","caBundle":"CA"},"conversionReviewVersions":["v1"]}},"versions":[
			{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object"}}},
			{"name":"v2","served":true,"storage":false,"schema":{"openAPIV3Schema":{"type":"object"}}}]}}`,
		`/api/v1/namespaces/default/services {"metadata":{"name":"far"},"spec":{"type":"ExternalName","externalName":"service.invalid"}}`,
		`/apis/apiregistration.k8s.io/v1/apiservices {"metadata":{"name":"v1.far.example.com"},"spec":{"group":"far.example.com","version":"v1",
			"groupPriorityMinimum":1,"versionPriority":1,"insecureSkipTLSVerify":true,"service":{"namespace":"default","name":"far"}}}`,
		`/apis/apiregistration.k8s.io/v1/apiservices {"metadata":{"name":"v1beta1.external.metrics.k8s.io"},"spec":{
			"group":"external.metrics.k8s.io","version":"v1beta1","groupPriorityMinimum":1,"versionPriority":1,"insecureSkipTLSVerify":true,
			"service":{"namespace":"default","name":"far"}}}`,
		`/api/v1/namespaces/default/configmaps {"metadata":{"name":"a"}}`,
		`/api/v1/namespaces/default/secrets {"metadata":{"name":"a"}}`,
		`/api/v1/namespaces/default/serviceaccounts {"metadata":{"name":"a"}}`,
		`/api/v1/namespaces/default/pods {"metadata":{"name":"a"},"spec":{"serviceAccountName":"a","automountServiceAccountToken":false,
			"tolerations":[{"operator":"Exists"}],"containers":[{"name":"a","image":"a"}]}}`,
	)
	if err := admin.CoreV1().RESTClient().Post().AbsPath("/apis/ext.example.com/v2/namespaces/default/boxes").SetHeader("Content-Type",
		"application/json").Body([]byte(`{"apiVersion":"ext.example.com/v2","kind":"Box","metadata":{"name":"a"}}`)).Do(t.Context()).
		Error(); err == nil {
		t.Error("an object went through a conversion webhook that does not answer")
	}
	if _, err := admin.CoreV1().ServiceAccounts("default").CreateToken(t.Context(), "a", &authenticationv1.TokenRequest{},
		metav1.CreateOptions{}); err == nil {
		t.Error("a signer that does not sign made a token")
	}
	jane := rest.AnonymousClientConfig(c.cluster.Config())
	jane.BearerToken = "hers"
	if _, err := kubernetes.NewForConfigOrDie(jane).CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Errorf("jane, by webhooks: %v", err)
	}
	c.initialize()

	awaitEvent(t, admin, "pods", "default", fields.OneTermEqualSelector("metadata.name", "a"), &corev1.Pod{}, time.Minute,
		func(e watch.Event) bool {
			p, ok := e.Object.(*corev1.Pod)
			return ok && p.Spec.NodeName != ""
		})

	// The issuer's discovery and what finishes an initialization are at work beside the requests.
	var missing []extension.Point
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		missing = nil
		rows := ledgerRows(t, admin)
		for p, how := range counts {
			listed := slices.ContainsFunc(rows, func(r extension.Row) bool { return r.Point == p })
			if how == counted && !countsCalls(rows, p) || how == silent && listed {
				missing = append(missing, p)
			}
		}
		if len(missing) == 0 {
			break
		}
		if ctx.Err() != nil {
			t.Fatalf("the ledger is wrong about %q: %+v", missing, rows)
		}
	}
	out, err := exec.CommandContext(t.Context(), built(t), "extensions", "--kubeconfig", kubeconfig).CombinedOutput()
	if err != nil || strings.Contains(string(out), string(extension.Unused)) {
		t.Errorf("mortise extensions: %v\n%s", err, out)
	}
	for p, how := range counts {
		if how == counted && !strings.Contains(string(out), "\n"+string(p)+" ") {
			t.Errorf("mortise extensions shows no %s:\n%s", p, out)
		}
	}
}

// initialize is an object with its initializer.
func (c *called) initialize() {
	c.t.Helper()
	config := rest.CopyConfig(c.cluster.Config())
	config.Wrap(v1alpha1.SeeUninitialized)
	templates := kubernetes.NewForConfigOrDie(config).CoreV1().PodTemplates("default")
	m, err := templates.Create(c.t.Context(), &corev1.PodTemplate{ObjectMeta: metav1.ObjectMeta{Name: "a"},
		Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "a", Image: "a"}}}}}, metav1.CreateOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	if err := v1alpha1.Finish(m, "one.example.com"); err != nil {
		c.t.Fatal(err)
	}
	if _, err := templates.Update(c.t.Context(), m, metav1.UpdateOptions{}); err != nil {
		c.t.Fatal(err)
	}
}
