// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package embedtest_test

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mortise-dev/mortise/embed"
)

// short is a T that ends before the benchmark does.
type short struct {
	*testing.B
	cleanups []func()
}

func (s *short) Cleanup(f func()) { s.cleanups = append(s.cleanups, f) }

func (s *short) end() {
	for i := len(s.cleanups) - 1; i >= 0; i-- {
		s.cleanups[i]()
	}
}

// BenchmarkFork forks a cluster, asks the fork one question in this process, and stops it.
func BenchmarkFork(b *testing.B) {
	for _, c := range []struct {
		name        string
		controllers []string
	}{{"bare", []string{"none"}}, {"full", nil}} {
		b.Run(c.name, func(b *testing.B) {
			first := &embed.Server{Controllers: c.controllers}
			if err := first.Start(b.Context()); err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() {
				if err := first.Stop(); err != nil {
					b.Error(err)
				}
			})
			<-first.Settled()
			b.ReportAllocs()
			for b.Loop() {
				t := &short{B: b}
				_, err := first.ForkInProcess(t).Client().CoreV1().Namespaces().Get(b.Context(), "default", metav1.GetOptions{})
				if err != nil {
					b.Fatal(err)
				}
				t.end()
			}
		})
	}
}
