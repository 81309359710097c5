// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package envtest_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	upstream "sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/mortise-dev/mortise/embed/envtest"
)

// environment is what a suite starts and stops.
type environment interface {
	Start() (*rest.Config, error)
	Stop() error
}

// kind is a kind of environment. Of its processes, whose has the server's memory.
type kind struct {
	name  string
	made  func() environment
	whose int
}

// TestMain drops what controller-runtime logs.
func TestMain(m *testing.M) {
	log.SetLogger(logr.Discard())
	os.Exit(m.Run())
}

// kinds are this package's environment and, if KUBEBUILDER_ASSETS is set, controller-runtime's with the programs there.
func kinds() []kind {
	all := []kind{{"mortise", func() environment { return &envtest.Environment{} }, syscall.RUSAGE_SELF}}
	if os.Getenv("KUBEBUILDER_ASSETS") != "" {
		all = append(all, kind{"programs", func() environment { return &upstream.Environment{} }, syscall.RUSAGE_CHILDREN})
	}
	return all
}

// The attributes of the benchmarks are cells of the table that scripts/testcost prints.

// BenchmarkEnvironment starts an environment, asks it one question and stops it. It reports the processor time of the programs and of this
// process, and the largest resident memory of the process of the API server.
func BenchmarkEnvironment(b *testing.B) {
	for _, k := range kinds() {
		b.Run(k.name, func(b *testing.B) {
			before := processorTime(b, syscall.RUSAGE_SELF) + processorTime(b, syscall.RUSAGE_CHILDREN)
			var starts time.Duration
			for b.Loop() {
				began, env := time.Now(), k.made()
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
			b.ReportMetric(float64(usage(b, k.whose).Maxrss)/1024, "resident-MB")
			n := int64(b.N)
			b.Attr(k.name, fmt.Sprintf("%d ms; %d ms of processor time with its stop", starts.Milliseconds()/n, used.Milliseconds()/n))
		})
	}
}

// BenchmarkParallelEnvironments runs tests, as many at once as there are processors, each with an environment that gets a Deployment: that
// is all that a test without controllers can do with it.
func BenchmarkParallelEnvironments(b *testing.B) {
	for _, k := range kinds() {
		b.Run(k.name, func(b *testing.B) {
			before := processorTime(b, syscall.RUSAGE_SELF) + processorTime(b, syscall.RUSAGE_CHILDREN)
			b.RunParallel(func(all *testing.PB) {
				for all.Next() {
					if err := deploy(b.Context(), k.made()); err != nil {
						b.Error(err)
						return
					}
				}
			})
			used := processorTime(b, syscall.RUSAGE_SELF) + processorTime(b, syscall.RUSAGE_CHILDREN) - before
			b.Attr("parallel-"+k.name, fmt.Sprintf("%d tests in %.1f s, %.1f s of processor time, %d MB resident in the largest process", b.N,
				b.Elapsed().Seconds(), used.Seconds(), usage(b, k.whose).Maxrss/1024))
		})
	}
}

// deploy starts an environment, creates a Deployment and stops the environment.
func deploy(ctx context.Context, env environment) (err error) {
	config, err := env.Start()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, env.Stop()) }()
	c, err := client.New(config, client.Options{})
	if err != nil {
		return err
	}
	labels := map[string]string{"app": "web"}
	return c.Create(ctx, &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}, Spec: appsv1.DeploymentSpec{
		Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: labels},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
		},
	}})
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
