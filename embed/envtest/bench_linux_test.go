// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package envtest_test

import (
	"os"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	upstream "sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/mortise-dev/mortise/embed/envtest"
)

// environment is what a suite starts and stops.
type environment interface {
	Start() (*rest.Config, error)
	Stop() error
}

// BenchmarkEnvironment starts an environment, asks it one question and stops it: controller-runtime's with the programs in
// KUBEBUILDER_ASSETS, if that is set, and this package's. It reports the processor time of the programs and of this process, and the
// largest resident memory of a program.
func BenchmarkEnvironment(b *testing.B) {
	all := map[string]func() environment{"mortise": func() environment { return &envtest.Environment{} }}
	if os.Getenv("KUBEBUILDER_ASSETS") != "" {
		all["programs"] = func() environment { return &upstream.Environment{} }
	}
	for name, made := range all {
		b.Run(name, func(b *testing.B) {
			before := processorTime(b, syscall.RUSAGE_SELF) + processorTime(b, syscall.RUSAGE_CHILDREN)
			var starts time.Duration
			for b.Loop() {
				began, env := time.Now(), made()
				config, err := env.Start()
				if err != nil {
					b.Fatal(err)
				}
				c, err := client.New(config, client.Options{})
				if err != nil {
					b.Fatal(err)
				}
				if err := c.Get(b.Context(), types.NamespacedName{Name: "default"}, &corev1.Namespace{}); err != nil {
					b.Fatal(err)
				}
				starts += time.Since(began)
				if err := env.Stop(); err != nil {
					b.Fatal(err)
				}
			}
			used := processorTime(b, syscall.RUSAGE_SELF) + processorTime(b, syscall.RUSAGE_CHILDREN) - before
			b.ReportMetric(float64(starts.Milliseconds())/float64(b.N), "start-ms/op")
			b.ReportMetric(float64(used.Milliseconds())/float64(b.N), "processor-ms/op")
			b.ReportMetric(float64(usage(b, syscall.RUSAGE_CHILDREN).Maxrss)/1024, "program-MB")
		})
	}
}

func usage(b *testing.B, of int) (r syscall.Rusage) {
	b.Helper()
	if err := syscall.Getrusage(of, &r); err != nil {
		b.Fatal(err)
	}
	return r
}

func processorTime(b *testing.B, of int) time.Duration {
	b.Helper()
	r := usage(b, of)
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
