// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package state

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/cpuset"
)

func sample() State {
	s := State{Policy: "static", Shared: cpuset.New(0, 1, 4), Pods: map[string]cpuset.CPUSet{"b": cpuset.New(5, 6)}}
	s.Set("a", "app", cpuset.New(2, 3))
	s.Set("b", "app", cpuset.New(5))
	s.Set("b", "log", cpuset.New(6))
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
	if diff := cmp.Diff(sample(), got, cmp.Comparer(cpuset.CPUSet.Equals)); diff != "" {
		t.Error(diff)
	}
	if _, err := Decode([]byte(strings.Replace(string(text), `\"2-3\"`, `\"2-4\"`, 1))); !errors.Is(err, ErrCorrupt) {
		t.Errorf("a changed file: error %v", err)
	}
}

// A file of kubelet 1.35, from kubelet's own tests: without the fields of 1.37.
func TestOlderFile(t *testing.T) {
	s, err := Decode([]byte(`{"policyName":"none","defaultCpuSet":"4-6","entries":{"pod":{"container1":"4-6","container2":"1-3"}},"checksum":0}`))
	if err != nil {
		t.Fatal(err)
	}
	if s.Shared.String() != "4-6" || s.Containers["pod"]["container2"].String() != "1-3" {
		t.Errorf("state %+v", s)
	}
	_, err = Decode([]byte(`{"policyName":"none","defaultCpuSet":"4-6","entries":{},"checksum":1234}`))
	if !errors.Is(err, ErrCorrupt) {
		t.Errorf("a wrong checksum: error %v", err)
	}
}

func TestHostileFile(t *testing.T) {
	for _, text := range []string{
		`{"policyName":"static","defaultCpuSet":"0-4000000000"}`, `{"policyName":"static","defaultCpuSet":"x"}`, `[`, `{"data":"{"}`,
		`{"policyName":"static","defaultCpuSet":"0","entries":{"a":{"b":"9-1"}}}`,
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
	f.Add([]byte(`{"policyName":"none","defaultCpuSet":"4-6","entries":{"pod":{"container1":"4-6"}},"podEntries":{"pod":{"cpuSet":"1"}},"checksum":1}`))
	f.Add([]byte(`{"policyName":"static","defaultCpuSet":"0-3,8","checksum":0}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := Decode(text)
		if err != nil {
			return
		}
		again, err := Encode(s)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := Decode(again); err != nil || !cmp.Equal(s, got, cmp.Comparer(cpuset.CPUSet.Equals)) {
			t.Fatalf("state %+v becomes %+v, error %v", s, got, err)
		}
	})
}
