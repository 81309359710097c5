// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"net"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// exampleDevices is a device plug-in of two devices.
type exampleDevices struct {
	pluginapi.UnimplementedDevicePluginServer
}

func (exampleDevices) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	return &pluginapi.DevicePluginOptions{}, nil
}

func (exampleDevices) ListAndWatch(_ *pluginapi.Empty, stream grpc.ServerStreamingServer[pluginapi.ListAndWatchResponse]) error {
	if err := stream.Send(&pluginapi.ListAndWatchResponse{Devices: []*pluginapi.Device{
		{ID: "d1", Health: pluginapi.Healthy}, {ID: "d2", Health: pluginapi.Healthy},
	}}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

func (exampleDevices) Allocate(_ context.Context, q *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	return &pluginapi.AllocateResponse{ContainerResponses: []*pluginapi.ContainerAllocateResponse{{
		Envs:    map[string]string{"DEVICE": q.GetContainerRequests()[0].GetDevicesIds()[0]},
		Devices: []*pluginapi.DeviceSpec{{ContainerPath: "/dev/example", HostPath: "/dev/zero", Permissions: "r"}},
		Mounts:  []*pluginapi.Mount{{ContainerPath: "/etc/example", HostPath: "/etc/hostname", ReadOnly: true}},
	}}}, nil
}

// devicesEndToEnd: a container that requests a device has its variable, its device node and its mount.
func devicesEndToEnd(t *testing.T, c *cluster) {
	dir := filepath.Join(c.options.Host.RootDir, "device-plugins")
	var config net.ListenConfig
	l, err := config.Listen(t.Context(), "unix", filepath.Join(dir, "example.sock"))
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	pluginapi.RegisterDevicePluginServer(server, exampleDevices{})
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	conn, err := grpc.NewClient("unix:"+filepath.Join(dir, "kubelet.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := pluginapi.NewRegistrationClient(conn).Register(t.Context(), &pluginapi.RegisterRequest{
		Version: "v1beta1", Endpoint: "example.sock", ResourceName: "example.com/dev",
	}, grpc.WaitForReady(true)); err != nil {
		t.Fatal(err)
	}
	// There is no scheduler to wait until the Node shows the devices.
	watch, err := c.client.CoreV1().Nodes().Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Stop()
	shows := func(node *corev1.Node) bool {
		q := node.Status.Allocatable["example.com/dev"]
		return q.Value() == 2
	}
	node, err := c.client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for !shows(node) {
		select {
		case event := <-watch.ResultChan():
			node = event.Object.(*corev1.Node)
		case <-time.After(time.Minute):
			t.Fatal("the Node does not show the devices")
		}
	}
	const script = `test "$DEVICE" = d1 && test -s /etc/example && test "$(head -c 4 /dev/example | od -An -tx1 | tr -d ' ')" = 00000000`
	c.create(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "device"}, Spec: corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyNever,
		Containers: []corev1.Container{{Name: "c", Command: sh(script), Resources: corev1.ResourceRequirements{
			Limits: corev1.ResourceList{"example.com/dev": resource.MustParse("1")},
		}}},
	}})
	pod := c.await("device", "over", func(pod *corev1.Pod) bool {
		return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
	})
	if pod.Status.Phase != corev1.PodSucceeded {
		t.Errorf("the container found no device: %v", pod.Status)
	}
}
