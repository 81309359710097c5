// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package state

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

func sample() State {
	block := []Block{{NUMAAffinity: []int{0}, Type: corev1.ResourceMemory, Size: 1024}}
	s := State{Policy: "Static", Pods: PodMemoryAssignments{"b": {MemoryBlocks: block}}, Machine: NUMANodeMap{0: {
		NumberOfAssignments: 2, Cells: []int{0},
		MemoryMap: map[corev1.ResourceName]*MemoryTable{corev1.ResourceMemory: {TotalMemSize: 4096, SystemReserved: 512, Allocatable: 3584,
			Reserved: 2048, Free: 1536}},
	}}}
	s.Set("a", "app", block)
	s.Set("b", "app", block)
	return s
}

func TestRoundTrip(t *testing.T) {
	text, err := Encode(sample())
	if err != nil {
		t.Fatal(err)
	}
	got, err := Decode(text)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(sample(), got); diff != "" {
		t.Error(diff)
	}
	if _, err := Decode([]byte(strings.Replace(string(text), `\"size\":1024`, `\"size\":1025`, 1))); !errors.Is(err, ErrCorrupt) {
		t.Errorf("a changed file: error %v", err)
	}
}

func TestHostileFile(t *testing.T) {
	for _, text := range []string{
		`{"policyName":"Static","machineState":{"-1":{}}}`, `{"policyName":"Static","machineState":{"0":null}}`,
		`{"policyName":"Static","machineState":{"0":{"memoryMap":{"memory":null}}}}`, `[`, `{"data":"{"}`,
		`{"policyName":"Static","entries":{"a":{"b":[{"numaAffinity":[64],"type":"memory","size":1}]}}}`,
		`{"policyName":"Static","entries":{"a":{"b":[{"numaAffinity":[],"type":"memory","size":1}]}}}`,
	} {
		if _, err := Decode([]byte(text)); err == nil {
			t.Errorf("%s: no error", text)
		}
	}
}

func FuzzDecode(f *testing.F) {
	text, err := Encode(sample())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte(`{"policyName":"Static","machineState":{"0":{"numberOfAssignments":0,"memoryMap":{"memory":{"total":2048}},"cells":[]}},"checksum":0}`))
	f.Add([]byte(`{"policyName":"Static","entries":{"a":{"b":[{"numaAffinity":[0,1],"type":"memory","size":1}]}},"podEntries":{"a":{}},"checksum":7}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := Decode(text)
		if err != nil {
			return
		}
		again, err := Encode(s)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Decode(again); err != nil {
			t.Fatalf("state %+v cannot be read again: %v", s, err)
		}
	})
}
