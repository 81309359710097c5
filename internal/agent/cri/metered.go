// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Metrics are kubelet's metrics of calls of the runtime.
type Metrics struct {
	calls, failures *prometheus.CounterVec
	took            *prometheus.HistogramVec

	sandboxes        *prometheus.HistogramVec // by the handler of the runtime class
	sandboxesFailing *prometheus.CounterVec
}

// NewMetrics makes the metrics.
func NewMetrics() *Metrics {
	operation, handler := []string{"operation_type"}, []string{"runtime_handler"}
	return &Metrics{
		sandboxes: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Subsystem: "kubelet", Name: "run_podsandbox_duration_seconds", Buckets: prometheus.DefBuckets,
			Help: "Duration in seconds of the run_podsandbox operations. Broken down by RuntimeClass.Handler.",
		}, handler),
		sandboxesFailing: prometheus.NewCounterVec(prometheus.CounterOpts{
			Subsystem: "kubelet", Name: "run_podsandbox_errors_total",
			Help: "Cumulative number of the run_podsandbox operation errors by RuntimeClass.Handler.",
		}, handler),
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Subsystem: "kubelet", Name: "runtime_operations_total", Help: "Cumulative number of runtime operations by operation type.",
		}, operation),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Subsystem: "kubelet", Name: "runtime_operations_errors_total", Help: "Cumulative number of runtime operation errors by operation type.",
		}, operation),
		took: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Subsystem: "kubelet", Name: "runtime_operations_duration_seconds", Buckets: prometheus.ExponentialBuckets(.005, 2.5, 14),
			Help: "Duration in seconds of runtime operations. Broken down by operation type.",
		}, operation),
	}
}

// Collectors returns the metrics for registration.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.calls, m.failures, m.took, m.sandboxes, m.sandboxesFailing}
}

// Measure has the calls counted and timed, as kubelet does: streams by what opens them. It is called before the client is used.
func (c *Client) Measure(m *Metrics, now func() time.Time) {
	all := meter{m, now}
	c.Runtime = meteredRuntime{
		meteredContainers{c.Runtime, all}, meteredSandboxes{c.Runtime, all}, meteredStats{c.Runtime, all}, meteredRest{c.Runtime, all},
	}
	c.Images = meteredImages{c.Images, all}
}

// meter counts calls.
type meter struct {
	metrics *Metrics
	now     func() time.Time
}

func (m meter) observe(operation string, call func() error) error {
	start := m.now()
	err := call()
	m.metrics.calls.WithLabelValues(operation).Inc()
	m.metrics.took.WithLabelValues(operation).Observe(m.now().Sub(start).Seconds())
	if err != nil {
		m.metrics.failures.WithLabelValues(operation).Inc()
	}
	return err
}

func observed[T any](m meter, operation string, call func() (T, error)) (out T, err error) {
	err = m.observe(operation, func() error {
		out, err = call()
		return err
	})
	return out, err
}

// meteredRuntime counts the calls of a runtime service, by its parts.
type meteredRuntime struct {
	meteredContainers
	meteredSandboxes
	meteredStats
	meteredRest
}

type (
	meteredContainers struct {
		service internalapi.ContainerManager
		meter
	}
	meteredSandboxes struct {
		service internalapi.PodSandboxManager
		meter
	}
	meteredStats struct {
		service internalapi.ContainerStatsManager
		meter
	}
	// meteredRest has what belongs to none of the parts.
	meteredRest struct {
		internalapi.RuntimeService
		meter
	}
)

// meteredImages counts the calls of an image service.
type meteredImages struct {
	internalapi.ImageManagerService
	meter
}

func (m meteredRest) Version(ctx context.Context, apiVersion string) (*runtimeapi.VersionResponse, error) {
	return observed(m.meter, "version", func() (*runtimeapi.VersionResponse, error) {
		return m.RuntimeService.Version(ctx, apiVersion)
	})
}

func (m meteredContainers) CreateContainer(
	ctx context.Context, podSandboxID string, config *runtimeapi.ContainerConfig, sandboxConfig *runtimeapi.PodSandboxConfig,
) (string, error) {
	return observed(m.meter, "create_container", func() (string, error) {
		return m.service.CreateContainer(ctx, podSandboxID, config, sandboxConfig)
	})
}

func (m meteredContainers) StartContainer(ctx context.Context, containerID string) error {
	return m.observe("start_container", func() error { return m.service.StartContainer(ctx, containerID) })
}

func (m meteredContainers) StopContainer(ctx context.Context, containerID string, timeout int64) error {
	return m.observe("stop_container", func() error { return m.service.StopContainer(ctx, containerID, timeout) })
}

func (m meteredContainers) RemoveContainer(ctx context.Context, containerID string) error {
	return m.observe("remove_container", func() error { return m.service.RemoveContainer(ctx, containerID) })
}

func (m meteredContainers) ListContainers(ctx context.Context, filter *runtimeapi.ContainerFilter) ([]*runtimeapi.Container, error) {
	return observed(m.meter, "list_containers", func() ([]*runtimeapi.Container, error) {
		return m.service.ListContainers(ctx, filter)
	})
}

func (m meteredContainers) ContainerStatus(
	ctx context.Context, containerID string, verbose bool,
) (*runtimeapi.ContainerStatusResponse, error) {
	return observed(m.meter, "container_status", func() (*runtimeapi.ContainerStatusResponse, error) {
		return m.service.ContainerStatus(ctx, containerID, verbose)
	})
}

func (m meteredContainers) UpdateContainerResources(
	ctx context.Context, containerID string, resources *runtimeapi.ContainerResources,
) error {
	return m.observe("update_container", func() error { return m.service.UpdateContainerResources(ctx, containerID, resources) })
}

func (m meteredContainers) ExecSync(
	ctx context.Context, containerID string, cmd []string, timeout time.Duration,
) (out, errs []byte, err error) {
	err = m.observe("exec_sync", func() error {
		out, errs, err = m.service.ExecSync(ctx, containerID, cmd, timeout)
		return err
	})
	return out, errs, err
}

func (m meteredContainers) Exec(ctx context.Context, request *runtimeapi.ExecRequest) (*runtimeapi.ExecResponse, error) {
	return observed(m.meter, "exec", func() (*runtimeapi.ExecResponse, error) {
		return m.service.Exec(ctx, request)
	})
}

func (m meteredContainers) Attach(ctx context.Context, req *runtimeapi.AttachRequest) (*runtimeapi.AttachResponse, error) {
	return observed(m.meter, "attach", func() (*runtimeapi.AttachResponse, error) {
		return m.service.Attach(ctx, req)
	})
}

func (m meteredContainers) ReopenContainerLog(ctx context.Context, ContainerID string) error {
	return m.observe("reopen_container_log", func() error { return m.service.ReopenContainerLog(ctx, ContainerID) })
}

func (m meteredContainers) CheckpointContainer(ctx context.Context, options *runtimeapi.CheckpointContainerRequest) error {
	return m.observe("checkpoint_container", func() error { return m.service.CheckpointContainer(ctx, options) })
}

func (m meteredContainers) GetContainerEvents(
	ctx context.Context, events chan *runtimeapi.ContainerEventResponse,
	established func(runtimeapi.RuntimeService_GetContainerEventsClient),
) error {
	return m.observe("get_container_events", func() error {
		return m.service.GetContainerEvents(ctx, events, established)
	})
}

func (m meteredSandboxes) RunPodSandbox(ctx context.Context, config *runtimeapi.PodSandboxConfig, runtimeHandler string) (string, error) {
	start := m.now()
	id, err := observed(m.meter, "run_podsandbox", func() (string, error) {
		return m.service.RunPodSandbox(ctx, config, runtimeHandler)
	})
	m.metrics.sandboxes.WithLabelValues(runtimeHandler).Observe(m.now().Sub(start).Seconds())
	if err != nil {
		m.metrics.sandboxesFailing.WithLabelValues(runtimeHandler).Inc()
	}
	return id, err
}

func (m meteredSandboxes) StopPodSandbox(ctx context.Context, podSandboxID string) error {
	return m.observe("stop_podsandbox", func() error { return m.service.StopPodSandbox(ctx, podSandboxID) })
}

func (m meteredSandboxes) RemovePodSandbox(ctx context.Context, podSandboxID string) error {
	return m.observe("remove_podsandbox", func() error { return m.service.RemovePodSandbox(ctx, podSandboxID) })
}

func (m meteredSandboxes) PodSandboxStatus(
	ctx context.Context, podSandboxID string, verbose bool,
) (*runtimeapi.PodSandboxStatusResponse, error) {
	return observed(m.meter, "podsandbox_status", func() (*runtimeapi.PodSandboxStatusResponse, error) {
		return m.service.PodSandboxStatus(ctx, podSandboxID, verbose)
	})
}

func (m meteredSandboxes) ListPodSandbox(ctx context.Context, filter *runtimeapi.PodSandboxFilter) ([]*runtimeapi.PodSandbox, error) {
	return observed(m.meter, "list_podsandbox", func() ([]*runtimeapi.PodSandbox, error) {
		return m.service.ListPodSandbox(ctx, filter)
	})
}

func (m meteredSandboxes) PortForward(
	ctx context.Context, request *runtimeapi.PortForwardRequest,
) (*runtimeapi.PortForwardResponse, error) {
	return observed(m.meter, "port_forward", func() (*runtimeapi.PortForwardResponse, error) {
		return m.service.PortForward(ctx, request)
	})
}

func (m meteredSandboxes) UpdatePodSandboxResources(
	ctx context.Context, request *runtimeapi.UpdatePodSandboxResourcesRequest,
) (*runtimeapi.UpdatePodSandboxResourcesResponse, error) {
	return observed(m.meter, "update_podsandbox_resources", func() (*runtimeapi.UpdatePodSandboxResourcesResponse, error) {
		return m.service.UpdatePodSandboxResources(ctx, request)
	})
}

func (m meteredSandboxes) CheckpointPod(ctx context.Context, options *runtimeapi.CheckpointPodRequest) error {
	return m.observe("checkpoint_pod", func() error { return m.service.CheckpointPod(ctx, options) })
}

func (m meteredSandboxes) RestorePod(ctx context.Context, options *runtimeapi.RestorePodRequest) (*runtimeapi.RestorePodResponse, error) {
	return observed(m.meter, "restore_pod", func() (*runtimeapi.RestorePodResponse, error) {
		return m.service.RestorePod(ctx, options)
	})
}

func (m meteredStats) ContainerStats(ctx context.Context, containerID string) (*runtimeapi.ContainerStats, error) {
	return observed(m.meter, "container_stats", func() (*runtimeapi.ContainerStats, error) {
		return m.service.ContainerStats(ctx, containerID)
	})
}

func (m meteredStats) ListContainerStats(
	ctx context.Context, filter *runtimeapi.ContainerStatsFilter,
) ([]*runtimeapi.ContainerStats, error) {
	return observed(m.meter, "list_container_stats", func() ([]*runtimeapi.ContainerStats, error) {
		return m.service.ListContainerStats(ctx, filter)
	})
}

func (m meteredStats) PodSandboxStats(ctx context.Context, podSandboxID string) (*runtimeapi.PodSandboxStats, error) {
	return observed(m.meter, "podsandbox_stats", func() (*runtimeapi.PodSandboxStats, error) {
		return m.service.PodSandboxStats(ctx, podSandboxID)
	})
}

func (m meteredStats) ListPodSandboxStats(
	ctx context.Context, filter *runtimeapi.PodSandboxStatsFilter,
) ([]*runtimeapi.PodSandboxStats, error) {
	return observed(m.meter, "list_podsandbox_stats", func() ([]*runtimeapi.PodSandboxStats, error) {
		return m.service.ListPodSandboxStats(ctx, filter)
	})
}

func (m meteredStats) ListMetricDescriptors(ctx context.Context) ([]*runtimeapi.MetricDescriptor, error) {
	return observed(m.meter, "list_metric_descriptors", func() ([]*runtimeapi.MetricDescriptor, error) {
		return m.service.ListMetricDescriptors(ctx)
	})
}

func (m meteredStats) ListPodSandboxMetrics(ctx context.Context) ([]*runtimeapi.PodSandboxMetrics, error) {
	return observed(m.meter, "list_podsandbox_metrics", func() ([]*runtimeapi.PodSandboxMetrics, error) {
		return m.service.ListPodSandboxMetrics(ctx)
	})
}

func (m meteredRest) UpdateRuntimeConfig(ctx context.Context, runtimeConfig *runtimeapi.RuntimeConfig) error {
	return m.observe("update_runtime_config", func() error { return m.RuntimeService.UpdateRuntimeConfig(ctx, runtimeConfig) })
}

func (m meteredRest) Status(ctx context.Context, verbose bool) (*runtimeapi.StatusResponse, error) {
	return observed(m.meter, "status", func() (*runtimeapi.StatusResponse, error) {
		return m.RuntimeService.Status(ctx, verbose)
	})
}

func (m meteredRest) RuntimeConfig(ctx context.Context) (*runtimeapi.RuntimeConfigResponse, error) {
	return observed(m.meter, "runtime_config", func() (*runtimeapi.RuntimeConfigResponse, error) {
		return m.RuntimeService.RuntimeConfig(ctx)
	})
}

func (m meteredImages) ListImages(ctx context.Context, filter *runtimeapi.ImageFilter) ([]*runtimeapi.Image, error) {
	return observed(m.meter, "list_images", func() ([]*runtimeapi.Image, error) {
		return m.ImageManagerService.ListImages(ctx, filter)
	})
}

func (m meteredImages) ImageStatus(
	ctx context.Context, image *runtimeapi.ImageSpec, verbose bool,
) (*runtimeapi.ImageStatusResponse, error) {
	return observed(m.meter, "image_status", func() (*runtimeapi.ImageStatusResponse, error) {
		return m.ImageManagerService.ImageStatus(ctx, image, verbose)
	})
}

func (m meteredImages) PullImage(
	ctx context.Context, image *runtimeapi.ImageSpec, auth *runtimeapi.AuthConfig, podSandboxConfig *runtimeapi.PodSandboxConfig,
) (string, error) {
	return observed(m.meter, "pull_image", func() (string, error) {
		return m.ImageManagerService.PullImage(ctx, image, auth, podSandboxConfig)
	})
}

func (m meteredImages) RemoveImage(ctx context.Context, image *runtimeapi.ImageSpec) error {
	return m.observe("remove_image", func() error { return m.ImageManagerService.RemoveImage(ctx, image) })
}

func (m meteredImages) ImageFsInfo(ctx context.Context) (*runtimeapi.ImageFsInfoResponse, error) {
	return observed(m.meter, "image_fs_info", func() (*runtimeapi.ImageFsInfoResponse, error) {
		return m.ImageManagerService.ImageFsInfo(ctx)
	})
}
