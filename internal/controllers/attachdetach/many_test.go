// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package attachdetach

import (
	"context"
	"fmt"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	metadatafake "k8s.io/client-go/metadata/fake"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/internal/controllers"
)

// BenchmarkVolumes attaches and detaches a thousand volumes on ten nodes, with a client that keeps the objects in memory and an attacher
// that attaches at once. It reports the CPU time for one volume; that of the client and the attacher is part of it.
func BenchmarkVolumes(b *testing.B) {
	const nodes, volumes = 10, 1000
	size := watch.DefaultChanSize
	watch.DefaultChanSize = 100 * volumes // the client's watches hold all events
	defer func() { watch.DefaultChanSize = size }()
	for range b.N {
		b.StopTimer()
		var objects []runtime.Object
		for i := range nodes {
			objects = append(objects, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", i),
				Annotations: map[string]string{"volumes.kubernetes.io/controller-managed-attach-detach": "true"}}})
		}
		for i := range volumes {
			objects = append(objects, volumeObjects(fmt.Sprint("v", i), fmt.Sprint("n", i%nodes))...)
		}
		client := fake.NewClientset(objects...)
		definitions := runtime.NewScheme()
		if err := metav1.AddMetaToScheme(definitions); err != nil {
			b.Fatal(err)
		}
		ctx, cancel := context.WithCancel(b.Context())
		attachments, err := client.StorageV1().VolumeAttachments().Watch(ctx, metav1.ListOptions{})
		if err != nil {
			b.Fatal(err)
		}
		statuses, err := client.CoreV1().Nodes().Watch(ctx, metav1.ListOptions{})
		if err != nil {
			b.Fatal(err)
		}
		before := cpu(b)
		b.StartTimer()
		done := make(chan error, 1)
		go func() {
			done <- controllers.RunWith(ctx, []controllers.Controller{Controller()}, &controllers.Deps{
				Client: client, Discovery: client.Discovery(), Metadata: metadatafake.NewSimpleMetadataClient(definitions),
				Dynamic: dynamicfake.NewSimpleDynamicClient(definitions),
			}, controllers.Options{Clock: clock.RealClock{}})
		}()
		listed, exist := map[string]int{}, 0
		total := func() (n int) {
			for _, on := range listed {
				n += on
			}
			return n
		}
		next := func() {
			select {
			case e := <-attachments.ResultChan():
				a, ok := e.Object.(*storagev1.VolumeAttachment)
				switch {
				case ok && e.Type == watch.Added:
					exist++
					a = a.DeepCopy()
					a.Status.Attached = true
					if _, err := client.StorageV1().VolumeAttachments().UpdateStatus(ctx, a, metav1.UpdateOptions{}); err != nil {
						b.Fatal(err)
					}
				case ok && e.Type == watch.Deleted:
					exist--
				}
			case e := <-statuses.ResultChan():
				if node, ok := e.Object.(*corev1.Node); ok {
					listed[node.Name] = len(node.Status.VolumesAttached)
				}
			}
		}
		for total() < volumes {
			next()
		}
		middle := cpu(b)
		for i := range volumes {
			if err := client.CoreV1().Pods("default").Delete(ctx, fmt.Sprint("v", i), metav1.DeleteOptions{}); err != nil {
				b.Fatal(err)
			}
		}
		for exist > 0 || total() > 0 {
			next()
		}
		after := cpu(b)
		cancel()
		if err := <-done; err != nil {
			b.Fatal(err)
		}
		b.ReportMetric((middle-before).Seconds()*1000/volumes, "ms-attach/volume")
		b.ReportMetric((after-middle).Seconds()*1000/volumes, "ms-detach/volume")
	}
}

// cpu returns the CPU time of this process.
func cpu(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
