// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package imagecredentials

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"
	configv1 "k8s.io/kubelet/config/v1"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/mortise-dev/mortise/extension"
)

// accounts are those of an API server that is not there.
type accounts struct {
	annotations map[string]string
	asked       []*authenticationv1.TokenRequest
	now         func() time.Time
}

func (a *accounts) ServiceAccount(_ context.Context, namespace, name string) (*corev1.ServiceAccount, error) {
	if name == "gone" {
		return nil, fmt.Errorf("serviceaccounts %q not found", name)
	}
	return &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: name, UID: "uid-of-account", Annotations: a.annotations,
	}}, nil
}

func (a *accounts) Token(
	_ context.Context, _, account string, request *authenticationv1.TokenRequest,
) (*authenticationv1.TokenRequest, error) {
	a.asked = append(a.asked, request)
	out := request.DeepCopy()
	out.Status.Token = fmt.Sprintf("token-%d-of-%s", len(a.asked), account)
	out.Status.ExpirationTimestamp = metav1.NewTime(a.now().Add(time.Hour))
	return out, nil
}

// bench is a directory with providers, and the node around them.
type bench struct {
	*testing.T
	dir      string
	clock    *clocktesting.FakePassiveClock
	accounts *accounts
	events   *record.FakeRecorder
	options  Options
	reloaded chan struct{}
}

// noted is a logger's handler that tells of reloads.
type noted struct {
	slog.Handler
	reloaded chan struct{}
}

func (n noted) Enabled(context.Context, slog.Level) bool { return true }

func (n noted) Handle(_ context.Context, r slog.Record) error {
	if strings.HasPrefix(r.Message, "Reloaded") {
		n.reloaded <- struct{}{}
	}
	return nil
}

func newBench(t *testing.T) *bench {
	b := &bench{T: t, dir: t.TempDir(), clock: clocktesting.NewFakePassiveClock(time.Unix(1e9, 0)), events: record.NewFakeRecorder(100),
		reloaded: make(chan struct{}, 100)}
	b.accounts = &accounts{now: b.clock.Now}
	b.options = Options{
		Config: filepath.Join(b.dir, "config.yaml"), BinDir: filepath.Join(b.dir, "bin"), Tokens: true, Accounts: b.accounts,
		Ledger: extension.NewLedger(clock.RealClock{}), Node: &corev1.ObjectReference{Kind: "Node", Name: "n"}, Events: b.events,
		Metrics: NewMetrics(), Clock: b.clock, Logger: slog.New(noted{slog.DiscardHandler, b.reloaded}),
	}
	b.write("bin/.keep", "")
	return b
}

func (b *bench) write(name, text string) {
	b.Helper()
	path := filepath.Join(b.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		b.Fatal(err)
	}
	if err := os.WriteFile(path+".new", []byte(text), 0o755); err != nil {
		b.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		b.Fatal(err)
	}
}

// program makes a provider's program, which keeps each request, and runs the script.
func (b *bench) program(name, script string) {
	b.write("bin/"+name, fmt.Sprintf("#!/bin/sh\ncat >>%s/requests\necho >>%[1]s/requests\n%s\n", b.dir, script))
}

// requests are those so far, without the header that all have.
func (b *bench) requests() []string {
	b.Helper()
	text, err := os.ReadFile(filepath.Join(b.dir, "requests"))
	if err != nil {
		return nil
	}
	const header = `{"kind":"CredentialProviderRequest","apiVersion":"credentialprovider.kubelet.k8s.io/v1",`
	var out []string
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line != "" {
			out = append(out, strings.TrimPrefix(line, header))
		}
	}
	return out
}

// answers is a script that answers with the key type, and more fields.
func answers(keyType, more string) string {
	return fmt.Sprintf(`echo '{"kind":"CredentialProviderResponse","apiVersion":"credentialprovider.kubelet.k8s.io/v1","cacheKeyType":"%s",%s
"auth":{"registry.test":{"username":"u","password":"p"}}}'`, keyType, more)
}

// configured is a configuration with one provider, and more of its fields.
func configured(name, more string) string {
	return fmt.Sprintf(`apiVersion: kubelet.config.k8s.io/v1
kind: CredentialProviderConfig
providers:
- name: %s
  matchImages: ["*.test", "*.test:5000/team"]
  defaultCacheDuration: 10m
  apiVersion: credentialprovider.kubelet.k8s.io/v1
%s`, name, more)
}

func (b *bench) open() *Providers {
	b.Helper()
	p, err := Open(b.options)
	if err != nil {
		b.Fatal(err)
	}
	return p
}

func pod(account string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "uid-of-pod"}, Spec: corev1.PodSpec{ServiceAccountName: account},
	}
}

// lookup returns the logins for an image, as USER:PASSWORD.
func (b *bench) lookup(p *Providers, account, image string) string {
	b.Helper()
	found, err := p.Lookup(b.Context(), pod(account), image)
	if err != nil {
		b.Fatal(err)
	}
	var out []string
	for _, c := range found {
		text := c.Username + ":" + c.Password
		if c.Account != nil {
			text += " of " + c.Account.Namespace + "/" + c.Account.Name + "/" + c.Account.UID
		}
		out = append(out, text)
	}
	return strings.Join(out, " ")
}

func (b *bench) event() string {
	select {
	case text := <-b.events.Events:
		return text
	case <-time.After(20 * time.Second):
		b.Fatal("no event")
		return ""
	}
}

// failures are the counted errors, by provider.
func (b *bench) failures() map[string]float64 {
	b.Helper()
	r := prometheus.NewRegistry()
	r.MustRegister(b.options.Metrics.errors)
	families, err := r.Gather()
	if err != nil {
		b.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		for _, m := range f.Metric {
			out[m.Label[0].GetValue()] = m.GetCounter().GetValue()
		}
	}
	return out
}

func TestProvidersAreAskedForWhatTheyMatch(t *testing.T) {
	b := newBench(t)
	b.write("config.yaml", configured("one", "  args: [a]\n  env: [{name: SAID, value: x}]\n"))
	b.program("one", `[ "$1 $SAID" = "a x" ] || exit 9; [ -n "$PATH" ] || exit 8; `+answers("Image", ""))
	p := b.open()
	for image, want := range map[string]string{
		"registry.test/team/tool:1": "u:p", "busybox": "", "registry.test:5000/team/tool": "",
		"other.test/a@sha256:" + strings.Repeat("0", 64): "",
	} {
		if got := b.lookup(p, "", image); got != want {
			t.Errorf("%s: %q, want %q", image, got, want)
		}
	}
	got := map[string]bool{}
	for _, r := range b.requests() {
		got[r] = true
	}
	if diff := cmp.Diff(map[string]bool{
		`"image":"registry.test/team/tool"}`: true, `"image":"registry.test:5000/team/tool"}`: true, `"image":"other.test/a"}`: true,
	}, got); diff != "" {
		t.Errorf("requests (-want +got)\n%s", diff)
	}
	entries := b.options.Ledger.Snapshot()
	if len(entries) != 1 || entries[0].Point != extension.ImageCredentials || entries[0].Name != "one" || entries[0].Calls != 3 ||
		entries[0].Where != b.options.Config {
		t.Errorf("the ledger has %+v", entries)
	}
	if len(b.events.Events) > 0 {
		t.Error(b.event())
	}
}

func TestLoginsAreKept(t *testing.T) {
	for _, c := range []struct {
		keyType, more string
		images        string
		calls         int
	}{
		{"Image", "", "registry.test/a registry.test/a:2 registry.test/b", 2},
		{"Registry", "", "registry.test/a registry.test/b other.test/a", 2},
		{"Global", "", "registry.test/a registry.test/b other.test/a", 1},
		{"Image", `"cacheDuration":"0s",`, "registry.test/a registry.test/a", 2},
		{"Image", `"cacheDuration":"5m",`, "registry.test/a +6m registry.test/a", 2},
		{"Image", "", "registry.test/a +6m registry.test/a +6m registry.test/a", 2},
	} {
		t.Run(c.keyType+c.more+c.images, func(t *testing.T) {
			b := newBench(t)
			b.write("config.yaml", configured("one", ""))
			b.program("one", answers(c.keyType, c.more))
			p := b.open()
			for _, image := range strings.Fields(c.images) {
				if after, ok := strings.CutPrefix(image, "+"); ok {
					d, _ := time.ParseDuration(after)
					b.clock.SetTime(b.clock.Now().Add(d))
					continue
				}
				b.lookup(p, "", image)
			}
			if got := len(b.requests()); got != c.calls {
				t.Errorf("%d calls, want %d: %v", got, c.calls, b.requests())
			}
		})
	}
}

const tokenFields = `  tokenAttributes:
    serviceAccountTokenAudience: registry
    requireServiceAccount: true
    requiredServiceAccountAnnotationKeys: [registry/role]
    optionalServiceAccountAnnotationKeys: [registry/region]
    cacheType: %s
`

func TestServiceAccountTokens(t *testing.T) {
	b := newBench(t)
	b.write("config.yaml", configured("one", fmt.Sprintf(tokenFields, "ServiceAccount")))
	b.program("one", answers("Registry", ""))
	p := b.open()
	const image = "registry.test/a"
	if got := b.lookup(p, "", image) + b.lookup(p, "sa", image); got != "" || len(b.requests()) > 0 || len(b.accounts.asked) > 0 {
		t.Errorf("without account or annotation: %q, %v", got, b.requests())
	}
	b.accounts.annotations = map[string]string{"registry/role": "r", "registry/region": "e", "other": "o"}
	if got, want := b.lookup(p, "sa", image), "u:p of ns/sa/uid-of-account"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	want := []string{`"image":"registry.test/a","serviceAccountToken":"token-1-of-sa",` +
		`"serviceAccountAnnotations":{"registry/region":"e","registry/role":"r"}}`}
	if diff := cmp.Diff(want, b.requests()); diff != "" {
		t.Errorf("requests (-want +got)\n%s", diff)
	}
	request := &authenticationv1.TokenRequest{ObjectMeta: metav1.ObjectMeta{UID: "uid-of-account"}}
	request.Spec.Audiences = []string{"registry"}
	request.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: "p", UID: "uid-of-pod"}
	if diff := cmp.Diff(request, b.accounts.asked[0]); diff != "" {
		t.Errorf("token request (-want +got)\n%s", diff)
	}
	// By account: other annotations or another account are asked for anew, a new token is not.
	b.lookup(p, "sa", image)
	b.clock.SetTime(b.clock.Now().Add(9 * time.Minute)) // the default keeps for ten
	b.lookup(p, "sa", image)
	if len(b.requests()) != 1 {
		t.Errorf("asked again: %v", b.requests())
	}
	b.accounts.annotations = map[string]string{"registry/role": "s"}
	b.lookup(p, "sa", image)
	b.lookup(p, "other", image)
	if len(b.requests()) != 3 {
		t.Errorf("requests %v", b.requests())
	}
	b.lookup(p, "gone", image)
	if got := b.event(); !strings.Contains(got, `failed to get service account: serviceaccounts "gone" not found`) {
		t.Error(got)
	}
}

// A token is renewed after four fifths of its life; logins that are kept by token are then asked for again.
func TestLoginsOfATokenEndWithIt(t *testing.T) {
	for kind, want := range map[string]int{"Token": 2, "ServiceAccount": 1} {
		b := newBench(t)
		b.accounts.annotations = map[string]string{"registry/role": "r"}
		b.write("config.yaml", configured("one", fmt.Sprintf(tokenFields, kind)))
		b.program("one", answers("Registry", `"cacheDuration":"10h",`))
		p := b.open()
		for _, wait := range []time.Duration{0, 47 * time.Minute, 2 * time.Minute} {
			b.clock.SetTime(b.clock.Now().Add(wait))
			b.lookup(p, "sa", "registry.test/a")
		}
		if got := len(b.requests()); got != want || len(b.accounts.asked) != 2 {
			t.Errorf("%s: %d calls, want %d; %d tokens", kind, got, want, len(b.accounts.asked))
		}
	}
}

// A program that gives the token back as a password needs the cache type Token.
func TestTokenAsPassword(t *testing.T) {
	for kind, want := range map[string]string{"Token": "u:token-1-of-sa of ns/sa/uid-of-account", "ServiceAccount": ""} {
		b := newBench(t)
		b.accounts.annotations = map[string]string{"registry/role": "r"}
		b.write("config.yaml", configured("one", fmt.Sprintf(tokenFields, kind)))
		b.program("one", strings.Replace(answers("Image", ""), `"p"`, `"token-1-of-sa"`, 1))
		if got := b.lookup(b.open(), "sa", "registry.test/a"); got != want {
			t.Errorf("%s: %q, want %q", kind, got, want)
		}
		if want == "" && !strings.Contains(b.event(), "returned the service account token as the password") {
			t.Error("no event")
		}
	}
}

// A provider that fails is an event of the pod; the others are asked all the same.
func TestProvidersThatFail(t *testing.T) {
	for script, want := range map[string]string{
		`echo "denied: password=hunter2 for https://joe:pw1234@registry.test/x" >&2; exit 3`: "with exit code 3: " +
			"denied: password=[redacted] for https://[redacted]@registry.test/x",
		`echo "Authorization: Bearer abcdefghijk" >&2; exit 1`:   "with exit code 1: Authorization: [redacted]",
		`echo "using $MY_TOKEN now" >&2; exit 1`:                 "with exit code 1: using [redacted] now",
		`exit 2`:                                                 "with exit code 2",
		`kill -9 $$`:                                             "signal: killed",
		`echo '{"secret":"s3cr3t"}'`:                             "actual apiVersion:",
		`echo 's3cr3t'`:                                          "error reading GVK from response",
		strings.Replace(answers("Image", ""), `"u"`, `1`, 1):     "error decoding credential provider plugin response from stdout",
		answers("Never", ""):                                     "did not return a valid cacheKeyType: Never",
		answers("Image", `"s3cr3t":"s3cr3t",`):                   "error decoding credential provider plugin response from stdout",
		`head -c 3000000 /dev/zero`:                              "it writes too much",
		strings.Replace(answers("Image", ""), "/v1", "/v2", 1):   "did not match expected apiVersion:credentialprovider.kubelet.k8s.io/v1",
		strings.Replace(answers("Image", ""), "Response", "", 1): "error decoding credential provider plugin response from stdout",
	} {
		b := newBench(t)
		text := configured("bad", "  env: [{name: MY_TOKEN, value: topsecretvalue}]\n")
		text += strings.Join(strings.Split(configured("good", ""), "\n")[3:], "\n")
		b.write("config.yaml", text)
		b.program("bad", script)
		b.program("good", answers("Image", ""))
		if got := b.lookup(b.open(), "", "registry.test/a"); got != "u:p" {
			t.Errorf("%s: %q", script, got)
		}
		got := b.event()
		if !strings.Contains(got, "Warning FailedCredentialProvider Credential provider bad failed for image registry.test/a") ||
			!strings.Contains(got, want) || strings.Contains(got, "s3cr3t") {
			t.Errorf("%s: the event is %s, want %s", script, got, want)
		}
		if diff := cmp.Diff(map[string]float64{"bad": 1}, b.failures()); diff != "" && !strings.Contains(script, "Never") {
			t.Errorf("%s: errors counted (-want +got)\n%s", script, diff)
		}
	}
}

func TestConfigurationIsReloaded(t *testing.T) {
	b := newBench(t)
	b.write("config.yaml", configured("one", ""))
	b.program("one", answers("Global", ""))
	b.program("two", answers("Global", ""))
	p := b.open()
	if got := b.lookup(p, "", "registry.test/a"); got != "u:p" {
		t.Fatal(got)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- p.Watch(ctx) }()
	for _, bad := range []struct{ text, want string }{
		{configured("missing", ""), "plugin binary executable " + b.options.BinDir + "/missing did not exist"},
		{configured("one", "  colour: red\n"), `unknown field "providers[0].colour"`},
		{"{", "error decoding config"},
	} {
		b.write("config.yaml", bad.text)
		const kept = "Warning InvalidCredentialProviderConfig Kept the previous"
		if got := b.event(); !strings.Contains(got, kept) || !strings.Contains(got, bad.want) {
			t.Errorf("%s: %s", bad.text, got)
		}
		b.lookup(p, "", "registry.test/a")
	}
	if n := len(b.requests()); n != 1 {
		t.Errorf("the provider lost its cache: %d calls", n)
	}
	b.write("config.yaml", configured("two", ""))
	select {
	case <-b.reloaded:
	case <-time.After(20 * time.Second):
		t.Fatal("the new configuration is not in effect")
	}
	b.lookup(p, "", "registry.test/a")
	if n := len(b.requests()); n != 2 {
		t.Errorf("%d calls", n)
	}
	if e := b.options.Ledger.Snapshot(); len(e) != 1 || e[0].Name != "two" {
		t.Errorf("the ledger has %+v", e)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestFilesOfADirectory(t *testing.T) {
	b := newBench(t)
	b.program("one", answers("Image", ""))
	b.program("two", answers("Image", ""))
	b.options.Config = filepath.Join(b.dir, "config.d")
	b.write("config.d/b.yml", strings.Replace(configured("one", ""), "k8s.io/v1\nkind", "k8s.io/v1beta1\nkind", 1))
	b.write("config.d/a.yaml", strings.Replace(configured("two", ""), "k8s.io/v1\nkind", "k8s.io/v1alpha1\nkind", 1))
	b.write("config.d/c.txt", "no")
	p := b.open()
	all := *p.all.Load()
	if len(all) != 2 || all[0].config.Name != "two" || all[1].config.Name != "one" {
		t.Errorf("%v", all)
	}
	b.write("config.d/c.json", strings.Replace(configured("one", ""), "v1\nkind", "v1\nkind", 1))
	if _, err := Open(b.options); err == nil || err.Error() != `duplicate provider name "one" found in configuration file(s)` {
		t.Error(err)
	}
}

func TestConfigurationsThatAreNotValid(t *testing.T) {
	const head = "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\n"
	change := func(from, to string) string { return strings.Replace(configured("one", ""), from, to, 1) }
	tokens := func(cacheType, from, to string) string {
		return configured("one", strings.Replace(fmt.Sprintf(tokenFields, cacheType), from, to, 1))
	}
	for text, want := range map[string]string{
		head: "failed to validate credential provider config: providers: Required value: at least 1 item in plugins is required",
		"apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n": `failed to decode "KubeletConfiguration" (wrong Kind)`,
		configured("a/b", ""): `providers.name: Invalid value: "a/b": provider name cannot contain '/'`,
		configured("..", ""):  `providers.name: Invalid value: "..": provider name cannot be '..'`,
		change("defaultCacheDuration: 10m", "defaultCacheDuration: -1s"): "must be greater than or equal to 0",
		change("  defaultCacheDuration: 10m\n", ""):                      "providers.defaultCacheDuration: Required value",
		change(`["*.test", "*.test:5000/team"]`, "[]"):                   "providers.matchImages: Required value",
		change("credentialprovider.kubelet.k8s.io/v1", "a/v1"):           `providers.apiVersion: Unsupported value: "a/v1"`,
		tokens(`""`, "", ""):                                "cacheType is required to be set when tokenAttributes is specified",
		tokens("Pod", "", ""):                               `providers.tokenAttributes.cacheType: Unsupported value: "Pod"`,
		tokens("Token", "registry/region", "registry/role"): "annotation keys cannot be both required and optional",
		tokens("Token", "true", "false"):                    "requireServiceAccount cannot be false when",
		configured("one", ""):                               "plugin binary executable",
	} {
		b := newBench(t)
		b.write("config.yaml", text)
		if _, err := Open(b.options); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\nerror %v\nwant %s", text, err, want)
		}
	}
}

func FuzzDecodeConfig(f *testing.F) {
	f.Add([]byte(configured("one", fmt.Sprintf(tokenFields, "Token"))))
	f.Add([]byte(strings.Replace(configured("one", ""), "v1\nkind", "v1alpha1\nkind", 1)))
	decoder, err := configDecoder()
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(_ *testing.T, text []byte) {
		if list, err := decodeConfig(decoder, text); err == nil {
			_ = validate(list, true)
		}
	})
}

func FuzzDecodeResponse(f *testing.F) {
	dir := f.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "one"), []byte("#!/bin/sh\n"), 0o755); err != nil {
		f.Fatal(err)
	}
	b := newCallerFor(f, dir)
	f.Add([]byte(strings.Trim(strings.TrimPrefix(answers("Image", ""), "echo "), "'")))
	f.Fuzz(func(t *testing.T, text []byte) {
		if r, err := b.decode(text); err == nil && r == nil {
			t.Error("neither answer nor error")
		}
	})
}

func FuzzRedact(f *testing.F) {
	f.Add("password=x https://a:b@c Bearer abcdefgh", "secret")
	f.Fuzz(func(t *testing.T, text, secret string) {
		got := redact(text+" "+secret, secret)
		if len(got) > mostStderr+4 {
			t.Errorf("%d bytes", len(got))
		}
	})
}
func newCallerFor(t testing.TB, dir string) *caller {
	t.Helper()
	c, err := newCaller(dir, configv1.CredentialProvider{Name: "one", APIVersion: "credentialprovider.kubelet.k8s.io/v1"})
	if err != nil {
		t.Fatal(err)
	}
	return c
}
