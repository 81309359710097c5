// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package dra

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	drahealth "k8s.io/kubelet/pkg/apis/dra-health/v1"
	drahealthv1alpha1 "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"

	"github.com/mortise-dev/mortise/internal/durable"
)

const (
	healthName = "dra_health_state" // of kubelet's file

	healthTimeout = 30 * time.Second // after which a device's health is unknown, unless the driver says another
	healthRetry   = 5 * time.Second  // between the end of a stream and the next one
	mostDevices   = 16384            // of one driver, as with kubelet
)

// deviceHealth is the health of a device, in the format of kubelet's file.
type deviceHealth struct {
	PoolName           string
	DeviceName         string
	Health             corev1.ResourceHealthStatus
	LastUpdated        time.Time
	HealthCheckTimeout time.Duration // 0: healthTimeout
	Message            string
}

func (d deviceHealth) stale(now time.Time) bool {
	limit := d.HealthCheckTimeout
	if limit <= 0 {
		limit = healthTimeout
	}
	return now.Sub(d.LastUpdated) > limit
}

// driverHealth has a driver's devices, by "POOL/DEVICE".
type driverHealth struct {
	Devices map[string]deviceHealth
}

// health is what drivers have said of their devices.
type health struct {
	path   string
	now    func() time.Time
	logger *slog.Logger

	mu      sync.Mutex
	drivers map[string]driverHealth
}

// openHealth reads kubelet's file. One that cannot be read counts as none: drivers say it anew.
func openHealth(dir string, now func() time.Time, logger *slog.Logger) *health {
	h := &health{path: filepath.Join(dir, healthName), now: now, logger: logger, drivers: map[string]driverHealth{}}
	info, err := os.Stat(h.path)
	var text []byte
	if err == nil && info.Size() <= mostCheckpoint {
		text, err = os.ReadFile(h.path)
	}
	if err == nil {
		var read map[string]driverHealth
		if read, err = decodeHealth(text); err == nil {
			h.drivers = read
		}
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		logger.Warn("Could not read the health of DRA devices, waiting for their drivers", "file", h.path, "err", err)
	}
	return h
}

func decodeHealth(text []byte) (map[string]driverHealth, error) {
	out := map[string]driverHealth{}
	if len(text) == 0 {
		return out, nil
	}
	if err := json.Unmarshal(text, &out); err != nil {
		return nil, err
	}
	if out == nil {
		out = map[string]driverHealth{}
	}
	return out, nil
}

// get returns the health of a device: unknown if its driver has not said it lately.
func (h *health) get(driver, pool, name string) deviceHealth {
	h.mu.Lock()
	defer h.mu.Unlock()
	d, ok := h.drivers[driver].Devices[pool+"/"+name]
	if !ok || d.stale(h.now()) {
		return deviceHealth{PoolName: pool, DeviceName: name, Health: corev1.ResourceHealthStatusUnknown}
	}
	return d
}

// update takes a driver's report, and returns the devices ("POOL/DEVICE") whose health differs. Devices that are not in the report are
// dropped once their health is stale.
func (h *health) update(driver string, report []deviceHealth) map[string]bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.now()
	devices := maps.Clone(h.drivers[driver].Devices)
	if devices == nil {
		devices = map[string]deviceHealth{}
	}
	changed, said, ignored, dropped := map[string]bool{}, map[string]bool{}, 0, false
	for _, d := range report {
		name := d.PoolName + "/" + d.DeviceName
		said[name] = true
		had, ok := devices[name]
		if !ok && len(devices) >= mostDevices {
			ignored++
			continue
		}
		if !ok || had.Health != d.Health || had.Message != d.Message || had.HealthCheckTimeout != d.HealthCheckTimeout {
			changed[name] = true
		}
		d.LastUpdated = now
		devices[name] = d
	}
	for name, d := range devices {
		if !said[name] && d.stale(now) {
			delete(devices, name)
			dropped = true
			if d.Health != corev1.ResourceHealthStatusUnknown {
				changed[name] = true
			}
		}
	}
	h.drivers[driver] = driverHealth{devices}
	if ignored > 0 {
		h.logger.Warn("A DRA driver reports the health of too many devices, ignoring some",
			"driver", driver, "limit", mostDevices, "ignored", ignored)
	}
	if len(changed) > 0 || dropped {
		h.save()
	}
	return changed
}

// forget drops all of a driver, and returns its devices.
func (h *health) forget(driver string) map[string]bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	gone := map[string]bool{}
	for name := range h.drivers[driver].Devices {
		gone[name] = true
	}
	delete(h.drivers, driver)
	if len(gone) > 0 {
		h.save()
	}
	return gone
}

func (h *health) save() {
	text, err := json.Marshal(h.drivers)
	if err == nil {
		err = durable.Write(h.path, 0o600, text)
	}
	if err != nil {
		h.logger.Warn("Could not write the health of DRA devices", "file", h.path, "err", err)
	}
}

// followHealth takes a driver's reports until ctx is done, or the driver says that it makes none.
func (m *Manager) followHealth(ctx context.Context, i *instance) {
	for ctx.Err() == nil {
		err := m.readHealth(ctx, i)
		m.wakeUsers(i.driver, m.health.forget(i.driver))
		if status.Code(err) == codes.Unimplemented {
			return
		}
		select {
		case <-ctx.Done():
		case <-m.Clock.After(healthRetry):
		}
	}
}

// readHealth reads one stream to its end.
func (m *Manager) readHealth(ctx context.Context, i *instance) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var stream drahealth.DRAResourceHealth_NodeWatchResourcesClient
	var err error
	if i.healthService == drahealthv1alpha1.DRAResourceHealthService {
		old := drahealthv1alpha1.NewDRAResourceHealthClient(i.conn)
		stream, err = drahealth.V1Alpha1ClientWrapper{Client: old}.NodeWatchResources(ctx, &drahealth.NodeWatchResourcesRequest{})
	} else {
		stream, err = drahealth.NewDRAResourceHealthClient(i.conn).NodeWatchResources(ctx, &drahealth.NodeWatchResourcesRequest{})
	}
	if err != nil {
		return err
	}
	for {
		report, err := stream.Recv()
		if err != nil {
			return err
		}
		var devices []deviceHealth
		for _, d := range report.GetDevices() {
			devices = append(devices, healthOf(d))
		}
		m.wakeUsers(i.driver, m.health.update(i.driver, devices))
	}
}

func healthOf(d *drahealth.DeviceHealth) deviceHealth {
	out := deviceHealth{
		PoolName: d.GetDevice().GetPoolName(), DeviceName: d.GetDevice().GetDeviceName(), Health: corev1.ResourceHealthStatusUnknown,
		HealthCheckTimeout: healthTimeout, Message: d.GetMessage(),
	}
	switch d.GetHealth() {
	case drahealth.HealthStatus_HEALTHY:
		out.Health = corev1.ResourceHealthStatusHealthy
	case drahealth.HealthStatus_UNHEALTHY:
		out.Health = corev1.ResourceHealthStatusUnhealthy
	}
	if s := d.GetHealthCheckTimeoutSeconds(); s > 0 && s < int64(time.Duration(1<<62)/time.Second) {
		out.HealthCheckTimeout = time.Duration(s) * time.Second
	}
	if len(out.Message) > corev1.ResourceHealthMessageMaxLength {
		out.Message = out.Message[:corev1.ResourceHealthMessageMaxLength-3] + "..."
	}
	return out
}

// wakeUsers has the status of the pods computed anew that have one of the driver's devices ("POOL/DEVICE").
func (m *Manager) wakeUsers(driver string, devices map[string]bool) {
	if len(devices) == 0 {
		return
	}
	users := map[types.UID]bool{}
	m.claims.each(func(c claim) {
		for _, d := range c.DriverState[driver].Devices {
			if devices[d.PoolName+"/"+d.DeviceName] {
				for uid := range c.PodUIDs {
					users[types.UID(uid)] = true
				}
			}
		}
	})
	if len(users) == 0 {
		return
	}
	var list []types.UID
	for uid := range users {
		list = append(list, uid)
	}
	m.Pods.WakeEach(list)
}
