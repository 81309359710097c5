// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package crd

import (
	"runtime"
	"testing"

	v1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/mortise-dev/mortise/resource"
)

// BenchmarkCompile measures the compilation of a stored definition.
func BenchmarkCompile(b *testing.B) {
	def := definition(b, "gadget")
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Compile(def, nil); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkFirstCreate compiles validators and CEL programs, which later creates reuse.
func BenchmarkFirstCreate(b *testing.B) {
	def := definition(b, "gadget")
	body := []byte(`{"apiVersion":"dlg.example.com/v1","kind":"Gadget","metadata":{"name":"g"},"spec":{"size":3}}`)
	for b.Loop() {
		d, err := Compile(def, nil)
		if err != nil {
			b.Fatal(err)
		}
		if _, _, err := create(in("v1"), d, "v1", object(b, body)); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkCreate(b *testing.B) {
	d := compile(b, "gadget")
	body := []byte(`{"apiVersion":"dlg.example.com/v1","kind":"Gadget","metadata":{"name":"g"},"spec":{"size":3,"parts":[{"key":"a"}],"tags":["x"]}}`)
	for b.Loop() {
		if _, _, err := create(in("v1"), d, "v1", object(b, body)); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkMemory reports the memory of a definition after the create of its first object.
func BenchmarkMemory(b *testing.B) {
	def := definition(b, "gadget")
	body := []byte(`{"apiVersion":"dlg.example.com/v1","kind":"Gadget","metadata":{"name":"g"},"spec":{"size":3}}`)
	measure := func(written bool) float64 {
		const n = 50
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		kept := make([]*resource.Descriptor, 0, n)
		defs := make([]*v1.CustomResourceDefinition, 0, n)
		for range n {
			defs = append(defs, def.DeepCopy())
			d, err := Compile(defs[len(defs)-1], nil)
			if err != nil {
				b.Fatal(err)
			}
			if written {
				if _, _, err := create(in("v1"), d, "v1", object(b, body)); err != nil {
					b.Fatal(err)
				}
			}
			kept = append(kept, d)
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		runtime.KeepAlive(kept)
		runtime.KeepAlive(defs)
		return float64(after.HeapAlloc-before.HeapAlloc) / n / 1024
	}
	for b.Loop() {
		b.ReportMetric(measure(false), "idle-KB/definition")
		b.ReportMetric(measure(true), "written-KB/definition")
	}
}
