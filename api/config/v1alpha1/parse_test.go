// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package v1alpha1_test

import (
	"os"
	"strings"
	"testing"

	"github.com/mortise-dev/mortise/api/config/v1alpha1"
)

const head = "apiVersion: config.mortise.dev/v1alpha1\nkind: SimulatedNodes\n"

func TestWrongFilesAreRefused(t *testing.T) {
	for file, want := range map[string]string{
		"":   `it is of apiVersion "" and kind ""`,
		"[]": "cannot unmarshal array",
		"apiVersion: config.mortise.dev/v1\nkind: SimulatedNodes":                           `it is of apiVersion "config.mortise.dev/v1"`,
		"apiVersion: v1\nkind: Node":                                                        `and kind "Node": want config.mortise.dev/v1alpha1 and SimulatedNodes`,
		head:                                                                                "groups: Required value",
		head + "groups: [{namePrefix: a, nodes: 4}]":                                        `unknown field "nodes"`,
		head + "groups: [{namePrefix: a, namePrefix: b}]":                                   `key "namePrefix" already set`,
		head + "groups: [{namePrefix: a, count: 0}]":                                        "groups[0].count: Invalid value: 0: want 1 or more",
		head + "groups: [{namePrefix: a, count: 100001}]":                                   "groups: Invalid value: 100001: want 100000 nodes at most",
		head + "groups: [{namePrefix: A_}]":                                                 "groups[0].namePrefix: Invalid value",
		head + "groups: [{namePrefix: a}, {namePrefix: a}]":                                 "groups[1].namePrefix: Duplicate value",
		head + "groups: [{namePrefix: a, capacity: {cpu: much}}]":                           "quantities must match",
		head + "groups: [{namePrefix: a, capacity: {cpu: -1}}]":                             "groups[0].capacity[cpu]: Invalid value",
		head + "groups: [{namePrefix: a, capacity: {cpu: 1}, allocatable: {cpu: 2}}]":       "is more than the capacity",
		head + "groups: [{namePrefix: a, labels: {'b c': d}}]":                              "groups[0].labels: Invalid value",
		head + "groups: [{namePrefix: a, annotations: {'b c': d}}]":                         "groups[0].annotations: Invalid value",
		head + "groups: [{namePrefix: a, taints: [{key: k}]}]":                              "groups[0].taints[0].effect: Unsupported value",
		head + "groups: [{namePrefix: a, taints: [{key: '', effect: NoSchedule}]}]":         "groups[0].taints[0].key: Invalid value",
		head + "groups: [{namePrefix: a, zones: [b, '']}]":                                  "groups[0].zones[1]: Required value",
		head + "groups: [{namePrefix: a, region: 'b c'}]":                                   "groups[0].region: Invalid value",
		head + "groups: [{namePrefix: a, pods: {load: Heavy}}]":                             `groups[0].pods.load: Unsupported value: "Heavy": supported values: "PerPod", "Shared"`,
		head + "groups: [{namePrefix: a, pods: {starts: -1s}}]":                             "groups[0].pods.starts: Invalid value",
		head + "groups: [{namePrefix: a}]\npods: {ready: soon}":                             "invalid duration",
		head + "groups: [{namePrefix: a, count: 0, region: 'b c'}]\npods: {completes: -1s}": "pods.completes: Invalid value",
	} {
		if c, err := v1alpha1.ParseSimulatedNodes([]byte(file)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\nis read as %+v, %v, want an error with %s", file, c, err, want)
		}
	}
}

// TestExample reads the example of the guide.
func TestExample(t *testing.T) {
	data, err := os.ReadFile("../../../examples/simulated/nodes.yaml")
	if err != nil {
		t.Fatal(err)
	}
	guide, err := os.ReadFile("../../../docs/simulated-nodes.md")
	if err != nil {
		t.Fatal(err)
	}
	if _, file, _ := strings.Cut(string(data), "\n"); !strings.Contains(string(guide), "```yaml\n"+file+"```\n") { // without its first comment
		t.Error("docs/simulated-nodes.md shows another file than examples/simulated/nodes.yaml")
	}
	c, err := v1alpha1.ParseSimulatedNodes(data)
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Groups) != 2 || c.Groups[0].NamePrefix != "worker" || *c.Groups[0].Count != 12 || len(c.Groups[0].Zones) != 3 ||
		len(c.Groups[1].Taints) != 1 || c.Pods.Ready == nil {
		t.Errorf("it is read as %+v", c)
	}
}

func FuzzParseSimulatedNodes(f *testing.F) {
	f.Add([]byte(head + "groups: [{namePrefix: a, count: 3, capacity: {cpu: 1}, zones: [x, y], pods: {starts: 1s}}]"))
	f.Add([]byte(head))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := v1alpha1.ParseSimulatedNodes(data)
		if (c == nil) != (err != nil) {
			t.Errorf("%q: %v, %v", data, c, err)
		}
	})
}
