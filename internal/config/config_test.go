// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/spf13/pflag"

	"github.com/mortise-dev/mortise/api/config/v1alpha1"
	"github.com/mortise-dev/mortise/embed"
	"github.com/mortise-dev/mortise/embed/options"
	"github.com/mortise-dev/mortise/internal/config"
)

const head = "apiVersion: config.mortise.dev/v1alpha1\nkind: ServerConfiguration\n"

// newFlags are the flags of an API server, and some of the server around it.
func newFlags() (*pflag.FlagSet, *options.APIServer) {
	f, o := pflag.NewFlagSet("", pflag.ContinueOnError), &options.APIServer{}
	embed.AddFlags(f, o)
	f.String("store", "local", "")
	config.Allow(f.Lookup("store"), "local", "memory")
	f.String("controllers", "*", "")
	f.StringSlice("runtime-config", nil, "")
	f.Int("nodes", 1, "")
	return f, o
}

func TestWrongFilesAreRefused(t *testing.T) {
	for file, want := range map[string]string{
		"":                          "the file is empty: want a ServerConfiguration",
		"[]":                        `apiVersion "" and kind ""`,
		"kind: ServerConfiguration": `apiVersion "" and kind "ServerConfiguration": want config.mortise.dev/v1alpha1`,
		"apiVersion: config.mortise.dev/v1alpha1\nkind: SimulatedNodes": `kind "SimulatedNodes"`,
		head + "---\n" + head:                                    "more than one document",
		head + "authentication: {anonymus: {}}":                  "line 3: authentication.anonymus: unknown field, want one of anonymous, apiAudiences,",
		head + "authentication: {oidc: {}, oidc: {}}":            "authentication.oidc: duplicate field, it is on line 3 too",
		head + "authentication: {oidc: {}, oidc: {clientID: a}}": "authentication.oidc: duplicate field",
		head + "Store: {}":                                       "line 3: Store: unknown field",
		head + "store: {engine: etcd}":                           `store.engine: "etcd": want one of local, memory`,
		head + "store: local":                                    "store: want fields",
		head + "authentication: {anonymous: {enabled: 'no'}}":    `authentication.anonymous.enabled: "no": want true or false`,
		head + "authentication: {apiAudiences: a}":               "authentication.apiAudiences: want a list",
		head + "authentication: {apiAudiences: [a, [b]]}":        "authentication.apiAudiences[1]: a list: want text",
		head + "flowControl: {requestTimeout: soon}":             `flowControl.requestTimeout: "soon": want a duration such as`,
		head + "flowControl: {requestTimeout: 60}":               `want a duration`,
		head + "flowControl: {maxConnections: 3000000000}":       `flowControl.maxConnections: "3000000000": want a whole number of 32 bits`,
		head + "flowControl: {maxConnections: 1.5}":              `want a whole number`,
		head + "flowControl: {goawayChance: .nan}":               `flowControl.goawayChance: ".nan": want a number`,
		head + "controllers: {concurrentSyncs: {job: 1}}":        `controllers.concurrentSyncs: unknown key "job", want one of cronjob-controller,`,
		head + "flowControl: {goawayChance: .inf}":               `goawayChance: ".inf": want a number`,
		head + "featureGates: {'A=true,B': true}":                `featureGates: "A=true,B": want a key without =`,
		head + "featureGates: {A: maybe}":                        `featureGates[A]: "maybe": want true or false`,
		head + "listen: &a x\nkubeconfig: *a":                    "kubeconfig: aliases are not allowed",
		head + "listen: 1":                                       `listen: "1": want text`,
		head + "node: {mode: docker}\nlogging: {level: loud}":    `node.mode: "docker": want one of auto, cri, simulated, none`,
		head + "node: {mode: docker}\nlogging: {level: [loud]}":  "line 4: logging.level: a list: want text",
	} {
		f, _ := newFlags()
		if c, err := config.Parse([]byte(file), f); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\nis read with the error %v, want one with %s (%+v)", file, err, want, c)
		}
	}
}

// TestFlagsWinOverTheFile applies a file beside a command line.
func TestFlagsWinOverTheFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "server.yaml")
	text := head + `
store: {engine: memory}
authorization: {modes: [RBAC, Webhook]}
authentication: {oidc: {requiredClaims: {a: "b,c", d: e}}, anonymous: {enabled: true}}
controllers: {enabled: ["*", -job-controller], concurrentSyncs: {gc: 1}}
networking: {masqueradeAll: false}
flowControl: {maxRequestBytesInflight: 0, maxConnections: 20000, requestTimeout: 30s}
audit: {webhook: {initialBackoff: 1m}}
`
	text = strings.Replace(text, "gc: 1", "garbage-collector-controller: 3", 1)
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	f, o := newFlags()
	file, err := config.Read(name, f)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Parse([]string{"--store=local", "--authorization-mode=Node", "--request-timeout=10s",
		"--audit-webhook-batch-initial-backoff=3s"}); err != nil {
		t.Fatal(err)
	}
	applied, err := file.Apply(f)
	if err != nil {
		t.Fatal(err)
	}
	if got := f.Lookup("store").Value.String(); got != "local" {
		t.Errorf("the store is %s, the flag says local", got)
	}
	if !slices.Equal(o.Authorization.Modes, []string{"Node"}) || o.FlowControl.RequestTimeout.String() != "10s" {
		t.Errorf("authorization modes are %v, the request timeout %s: flags must win", o.Authorization.Modes, o.FlowControl.RequestTimeout)
	}
	if got := o.Audit.Webhook.InitialBackoff.String(); got != "3s" {
		t.Errorf("the initial backoff is %s, the flag of the deprecated name says 3s", got)
	}
	if want := map[string]string{"a": "b,c", "d": "e"}; !cmp.Equal(o.Authentication.OIDC.RequiredClaims, want) {
		t.Errorf("required claims are %v, want %v", o.Authentication.OIDC.RequiredClaims, want)
	}
	if o.Authentication.Anonymous == nil || o.Network.GivenMasqueradeAll() == nil || o.FlowControl.BodyBytes == nil {
		t.Error("optional settings of the file are not set")
	}
	if o.FlowControl.Connections != nil {
		t.Error("a value that is the default is set")
	}
	if got := o.Controllers.Settings["concurrent-gc-syncs"]; got != "3" {
		t.Errorf("the garbage collector has %q workers, want 3", got)
	}
	if got := f.Lookup("controllers").Value.String(); got != "*,-job-controller" {
		t.Errorf("controllers are %s", got)
	}
	if got := applied.Explain(os.ErrInvalid); got != os.ErrInvalid {
		t.Errorf("an error that names no flag becomes %v", got)
	}
}

// TestErrorsNameTheField adds the field to an error about a flag, if the file set it.
func TestErrorsNameTheField(t *testing.T) {
	f, o := newFlags()
	c, err := config.Parse([]byte(head+"explain: {memoryMiB: 100000}"), f)
	if err != nil {
		t.Fatal(err)
	}
	applied, err := (&config.File{Name: "server.yaml", Config: c}).Apply(f)
	if err != nil {
		t.Fatal(err)
	}
	const want = "--explain-memory 100000: want 1 to 16384 (in server.yaml, --explain-memory is explain.memoryMiB)"
	if got := applied.Explain(o.Explain.Check()); got == nil || got.Error() != want {
		t.Errorf("the error is %v, want %s", got, want)
	}
	c.FlowControl.GoawayChance = nil
	c.Authentication.OIDC.RequiredClaims = map[string]string{"": ""}
	if _, err := (&config.File{Name: "server.yaml", Config: c}).Apply(f); err != nil {
		t.Error(err)
	}
}

// TestRoundTrip prints what flags mean, reads it, and has the same settings again.
func TestRoundTrip(t *testing.T) {
	for _, line := range []string{
		"",
		"--anonymous-auth=false --oidc-issuer-url=https://x --oidc-required-claim=a=b,c --oidc-required-claim=d=e",
		"--authorization-mode=RBAC,ABAC --authorization-policy-file=p --authorization-webhook-cache-authorized-ttl=5m0s",
		"--audit-policy-file=a --audit-log-path=- --audit-log-batch-throttle-qps=2.5 --audit-webhook-mode=blocking --audit-log-maxage=0",
		"--concurrent-job-syncs=9 --controllers=*,-job-controller --node-eviction-rate=0.3 --unhealthy-zone-threshold=1",
		"--masquerade-all=false --nodeport-addresses=10.0.0.0/8,fd00::/8 --node-cidr-mask-size-ipv4=26 --leader-elect",
		"--max-request-bytes-inflight=0 --goaway-chance=0.001 --admission-deadline=90s --explain=true --explain-memory=32",
		"--runtime-config=api/beta=true,batch/v1=false --nodes=7 --default-not-ready-toleration-seconds=0",
		"--tls-cert-file=a --tls-private-key-file=b --tls-sni-cert-key=c,d:e,f --tls-sni-cert-key=g,h --cert-dir=d",
		"--emulated-version=1.37 --emulated-version=kube=1.37,1.37 --emulation-forward-compatible --min-compatibility-version=1.36",
		"--service-account-issuer=https://a,b --service-account-issuer=https://c --service-account-max-token-expiration=24h",
	} {
		f, o := newFlags()
		if err := f.Parse(strings.Fields(line)); err != nil {
			t.Fatal(err)
		}
		first := printed(t, f)
		c, err := config.Parse(first, f)
		if err != nil {
			t.Errorf("%s: what was printed is refused: %v\n%s", line, err, first)
			continue
		}
		again, same := newFlags()
		if _, err := (&config.File{Config: c}).Apply(again); err != nil {
			t.Errorf("%s: %v", line, err)
			continue
		}
		if diff := cmp.Diff(string(first), string(printed(t, again))); diff != "" {
			t.Errorf("%s: printed again:\n%s", line, diff)
		}
		if diff := cmp.Diff(o, same, cmpopts.IgnoreUnexported(options.Network{}), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s: the options differ:\n%s", line, diff)
		}
		if (o.Network.GivenMasqueradeAll() == nil) != (same.Network.GivenMasqueradeAll() == nil) {
			t.Errorf("%s: masquerade-all is given by one of the two only", line)
		}
	}
}

func printed(t *testing.T, f *pflag.FlagSet) []byte {
	t.Helper()
	c, err := config.Effective(f)
	if err != nil {
		t.Fatal(err)
	}
	text, err := config.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// TestEachFieldHasAFlag walks the configuration: each of its fields is in the table, and none holds a secret.
func TestEachFieldHasAFlag(t *testing.T) {
	table := map[string]bool{}
	flags, _ := newFlags()
	for _, s := range config.Settings(flags) {
		field, _, _ := strings.Cut(s.Field, "[")
		table[field] = true
		flag := flags.Lookup(s.Flag)
		if flag == nil {
			flag = &pflag.Flag{Name: s.Flag}
		}
		if config.Heading(flag) == "" {
			t.Errorf("--%s has no heading", s.Flag)
		}
	}
	secret := regexp.MustCompile(`(?i)(token|password|secret|key)$`)
	var walk func(of reflect.Type, path string)
	walk = func(of reflect.Type, path string) {
		for i := range of.NumField() {
			f := of.Field(i)
			if f.Anonymous {
				continue
			}
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			at := strings.TrimPrefix(path+"."+name, ".")
			if f.Type.Kind() == reflect.Struct {
				walk(f.Type, at)
				continue
			}
			if !table[at] {
				t.Errorf("%s has no flag", at)
			}
			if f.Type.Kind() == reflect.String && secret.MatchString(name) {
				t.Errorf("%s holds a secret: name a file", at)
			}
		}
	}
	walk(reflect.TypeFor[v1alpha1.ServerConfiguration](), "")
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(head))
	f.Add([]byte(head + "store: {engine: memory}\ncontrollers: {enabled: [none], concurrentSyncs: {job-controller: 2}}"))
	f.Add([]byte(head + "authentication: {oidc: {requiredClaims: {a: b}}, webhook: {cacheTTL: 1h}}\nflowControl: {goawayChance: 1e-3}"))
	f.Add([]byte(head + `listen: "\x7f\0 0o7"` + "\nkubeconfig: '<<'\ndataDir: 2026-11-23\naudit: {log: {batch: {throttle: {qps: 1e30, burst: 0x10}}}}"))
	f.Add([]byte(`{"apiVersion":"config.mortise.dev/v1alpha1","kind":"ServerConfiguration","audit":{"log":{"batch":{"throttle":{"qps":0.5}}}}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		flags, _ := newFlags()
		c, err := config.Parse(data, flags)
		if err != nil {
			return
		}
		text, err := config.Marshal(c)
		if err != nil {
			t.Fatalf("%q is read, but not written: %v", data, err)
		}
		again, err := config.Parse(text, flags)
		if err != nil {
			t.Fatalf("%q is written as %q, which is refused: %v", data, text, err)
		}
		if diff := cmp.Diff(c, again, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%q is written as %q, which is read as something else:\n%s", data, text, diff)
		}
		_, _ = (&config.File{Config: c}).Apply(flags)
	})
}

// TestGuide compares the table of docs/configuration.md with that of the code, and reads its example.
func TestGuide(t *testing.T) {
	text, err := os.ReadFile("../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	guide := string(text)
	rows := 0
	flags, _ := newFlags()
	for _, s := range config.Settings(flags) {
		mark := ""
		if s.Optional {
			mark = " *"
		}
		if row := "| `" + s.Field + "`" + mark + " | `--" + s.Flag + "` |\n"; strings.Contains(guide, row) {
			rows++
		} else {
			t.Errorf("docs/configuration.md lacks the row %s", row)
		}
	}
	if got := strings.Count(guide, "` | `--") + strings.Count(guide, "` * | `--"); got != rows {
		t.Errorf("docs/configuration.md has %d rows, the table %d", got, rows)
	}
	_, example, _ := strings.Cut(guide, "```yaml\n")
	example, _, _ = strings.Cut(example, "```")
	if _, err := config.Parse([]byte(example), flags); err != nil {
		t.Errorf("the example of docs/configuration.md is refused: %v", err)
	}
}
