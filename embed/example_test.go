// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package embed_test

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mortise-dev/mortise/embed"
)

// example stands for the *testing.T of a test.
type example struct{ cleanups []func() }

func (*example) Helper()                        {}
func (e *example) Cleanup(f func())             { e.cleanups = append(e.cleanups, f) }
func (*example) Logf(format string, a ...any)   { fmt.Printf(format+"\n", a...) }
func (*example) Errorf(format string, a ...any) { fmt.Printf(format+"\n", a...) }
func (*example) Fatalf(format string, a ...any) { panic(fmt.Sprintf(format, a...)) }
func (*example) Context() context.Context       { return context.Background() }
func (e *example) end() {
	for i := len(e.cleanups) - 1; i >= 0; i-- {
		e.cleanups[i]()
	}
}

// Each test forks a cluster that is prepared once.
func ExampleServer_Fork() {
	t := &example{} // in a test: its *testing.T
	defer t.end()
	prepared := &embed.Server{Controllers: []string{"none"}}
	if err := prepared.Start(t.Context()); err != nil {
		fmt.Println(err)
		return
	}
	defer prepared.Stop()

	cluster := prepared.Fork(t)
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "mine"}}
	if _, err := cluster.Client().CoreV1().Namespaces().Create(t.Context(), namespace, metav1.CreateOptions{}); err != nil {
		fmt.Println(err)
	}
	for _, s := range []*embed.Server{cluster, prepared} {
		_, err := s.Client().CoreV1().Namespaces().Get(t.Context(), "mine", metav1.GetOptions{})
		fmt.Println(err)
	}
	// Output:
	// <nil>
	// namespaces "mine" not found
}
