// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"github.com/mortise-dev/mortise/internal/golden"
)

// TestFiles holds what each file of testdata means, or is refused for. The golden files are what kube-scheduler 1.37.1 makes
// of the same files.
func TestFiles(t *testing.T) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no files: %v", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			if c, err := Parse(data); err != nil {
				got = "refused: " + strings.ReplaceAll(err.Error(), ", ", ",\n  ") + "\n"
			} else {
				got = effective(t, c)
			}
			golden.Compare(t, strings.TrimSuffix(file, ".yaml")+".golden", got)
		})
	}
}

// effective shows a configuration with the arguments as they were decoded.
func effective(t *testing.T, c *Configuration) string {
	t.Helper()
	x := c.DeepCopy()
	for i := range x.Profiles {
		for j := range x.Profiles[i].PluginConfig {
			if a := &x.Profiles[i].PluginConfig[j].Args; a.Object != nil {
				if _, unknown := a.Object.(*runtime.Unknown); !unknown {
					a.Raw = nil
				}
			}
		}
	}
	out, err := json.MarshalIndent(x, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(out) + "\n"
}

const head = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"

func parse(t *testing.T, text string) *Configuration {
	t.Helper()
	c, err := Parse([]byte(head + text))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestArgumentsOfOthersStayAsWritten(t *testing.T) {
	c := parse(t, "profiles:\n- pluginConfig:\n  - {name: Mine, args: {a: [1, b]}}\n  - {name: Bare}\n  - {name: NodeAffinity, args: {}}\n")
	args := Args(&c.Profiles[0])
	raw, ok := args["Mine"].(*runtime.Unknown)
	if !ok || string(raw.Raw) != `{"a":[1,"b"]}` || raw.ContentType != runtime.ContentTypeJSON {
		t.Errorf("arguments of Mine are %#v", args["Mine"])
	}
	if a, there := args["Bare"]; there {
		t.Errorf("arguments of Bare are %#v", a)
	}
	if _, ok := args["NodeAffinity"].(*configv1.NodeAffinityArgs); !ok {
		t.Errorf("arguments of NodeAffinity are %T", args["NodeAffinity"])
	}
}

func TestPluginsThatAreNotBuiltInAreLeftOut(t *testing.T) {
	c := parse(t, "profiles:\n- schedulerName: s\n  plugins: {score: {enabled: [{name: VolumeBinding}, {name: Mine}]}}\n  pluginConfig: [{name: DynamicResources, args: {}}]\n")
	got := c.Without(func(name string) bool { return name == "Mine" || name == "PrioritySort" })
	want := []string{
		"profile s: plug-in DynamicResources is not built in, so it is left out",
		"profile s: plug-in VolumeBinding is not built in, so it is left out",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if d := cmp.Diff([]string{"PrioritySort", "Mine"}, enabled(c.Profiles[0].Plugins)); d != "" {
		t.Errorf("enabled are (-want +got):\n%s", d)
	}
	if got := Default().Without(func(string) bool { return false }); got != nil {
		t.Errorf("without a file: %v", got)
	}
}

func TestWhatHasNoEffectIsSaid(t *testing.T) {
	c := parse(t, "clientConnection: {kubeconfig: /x}\nenableProfiling: true\n")
	if got := c.Unheeded(); len(got) != 2 {
		t.Errorf("said: %q", got)
	}
	if got := parse(t, "parallelism: 3\n").Unheeded(); got != nil {
		t.Errorf("said without reason: %q", got)
	}
}

func FuzzParse(f *testing.F) {
	files, _ := filepath.Glob("testdata/*.yaml")
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Parse(data)
		if err != nil {
			return
		}
		if len(c.Profiles) == 0 || Name(&c.Profiles[0]) == "" {
			t.Errorf("accepted without a profile: %q", data)
		}
		c.Without(func(string) bool { return false })
	})
}
