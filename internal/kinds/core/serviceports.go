// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"context"
	"errors"
	"fmt"
	"math/big"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/mortise-dev/mortise/resource"
)

// Node ports are given from this range; those below the band only when asked for, or when the rest is used up.
const (
	firstPort = 30000
	lastPort  = 32767
	portBand  = 86
)

var errPortAllocated = errors.New("provided port is already allocated")

// portSet are ports of the range, a bit each from its first on. The zero value is empty.
type portSet struct{ bits big.Int }

func (s *portSet) has(port int32) bool {
	return port >= firstPort && port <= lastPort && s.bits.Bit(int(port-firstPort)) == 1
}

func (s *portSet) set(bit uint, ports []int32) {
	for _, port := range ports {
		if port >= firstPort && port <= lastPort {
			s.bits.SetBit(&s.bits, int(port-firstPort), bit)
		}
	}
}

func (s *portSet) add(ports ...int32)    { s.set(1, ports) }
func (s *portSet) remove(ports ...int32) { s.set(0, ports) }

// without are the ports of s that other lacks.
func (s *portSet) without(other *portSet) []int32 {
	var out []int32
	for port := int32(firstPort); port <= lastPort; port++ {
		if s.has(port) && !other.has(port) {
			out = append(out, port)
		}
	}
	return out
}

// portRecord is the set of all node ports in use, as kube-apiserver keeps it: one RangeAllocation for all servers of a
// store. On a server that stores no records (see [resource.RecordStore]) it is in memory.
type portRecord struct {
	mu     sync.Mutex // held over a change, so that this server's own writers do not fight
	own    portSet    // where the server keeps no records
	leaked map[int32]time.Time
}

const portsKey = "ranges/servicenodeports"

var (
	portRange  = fmt.Sprintf("%d-%d", firstPort, lastPort)
	portsCodec = resource.ProtobufCodec(corev1.SchemeGroupVersion.WithKind("RangeAllocation"),
		func() resource.Object { return &corev1.RangeAllocation{} })
)

// load adds the ports that services hold, and remembers those that none does.
func (p *portRecord) load(ctx context.Context, b resource.Backend, held portSet, now time.Time) error {
	return p.change(ctx, b, func(set *portSet) error {
		p.leaked = map[int32]time.Time{}
		for _, port := range set.without(&held) {
			p.leaked[port] = now
		}
		set.bits.Or(&set.bits, &held.bits)
		return nil
	})
}

// leakedBefore are ports that no service held when they were loaded, if that was before t. They are returned once.
func (p *portRecord) leakedBefore(t time.Time) []int32 {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []int32
	for port, since := range p.leaked {
		if !since.After(t) {
			out = append(out, port)
			delete(p.leaked, port)
		}
	}
	return out
}

// change lets edit change the newest set, and stores it: again when another server was faster.
func (p *portRecord) change(ctx context.Context, b resource.Backend, edit func(set *portSet) error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	records, ok := b.(resource.RecordStore)
	if !ok {
		next := portSet{}
		next.bits.Set(&p.own.bits)
		if err := edit(&next); err != nil {
			return err
		}
		p.own = next
		return nil
	}
	for {
		set, stored, revision, err := readPorts(ctx, records)
		if err != nil {
			return err
		}
		var was big.Int
		was.Set(&set.bits)
		if err := edit(&set); err != nil {
			return err
		}
		if revision > 0 && was.Cmp(&set.bits) == 0 {
			return nil
		}
		stored.Range, stored.Data = portRange, set.bits.Bytes()
		value, err := portsCodec.Encode(stored)
		if err != nil {
			return fmt.Errorf("store node ports: %w", err)
		}
		done, err := records.SetRecord(ctx, portsKey, value, revision)
		if err != nil {
			return fmt.Errorf("store node ports: %w", err)
		}
		if done {
			return nil
		}
	}
}

// look lets see read the newest set.
func (p *portRecord) look(ctx context.Context, b resource.Backend, see func(set *portSet) error) error {
	records, ok := b.(resource.RecordStore)
	if !ok {
		p.mu.Lock()
		defer p.mu.Unlock()
		return see(&p.own)
	}
	set, _, _, err := readPorts(ctx, records)
	if err != nil {
		return err
	}
	return see(&set)
}

// readPorts reads the stored set. One of another range, as a cluster's range may have changed, counts as empty: what its
// services hold was added when this server started.
func readPorts(ctx context.Context, records resource.RecordStore) (set portSet, stored *corev1.RangeAllocation, revision int64, err error) {
	value, revision, err := records.Record(ctx, portsKey)
	if err != nil {
		return set, nil, 0, fmt.Errorf("read node ports: %w", err)
	}
	stored = &corev1.RangeAllocation{}
	if revision > 0 {
		obj, err := portsCodec.Decode(value)
		if err != nil {
			return set, nil, 0, fmt.Errorf("read node ports: %w", err)
		}
		stored, _ = obj.(*corev1.RangeAllocation)
	}
	if stored.Range == portRange {
		set.bits.SetBytes(stored.Data)
	}
	return set, stored, revision, nil
}

// choosePorts reserves the ports that choose asks for by way of port and anyPort, all or none. It may call choose again,
// with the service as it was.
func (r *reservation) choosePorts(ctx context.Context, choose func() error) error {
	ports, health, free := slices.Clone(r.svc.Spec.Ports), r.svc.Spec.HealthCheckNodePort, r.free.ports
	attempt := func(set *portSet) error {
		copy(r.svc.Spec.Ports, ports)
		r.svc.Spec.HealthCheckNodePort = health
		r.ports, r.took.ports, r.free.ports = set, nil, slices.Clone(free)
		err := choose()
		if err != nil {
			r.took.ports = nil
		}
		return err
	}
	if r.dry {
		return r.a.ports.look(ctx, r.b, attempt)
	}
	err := r.a.ports.change(ctx, r.b, attempt)
	if err != nil {
		r.took.ports = nil
	}
	return err
}

// newPorts reserves node ports for a new service. Ports of one number, of several protocols, share one.
func (r *reservation) newPorts() error {
	ports := r.svc.Spec.Ports
	given := map[int32]int32{}
	for i := range ports {
		p := &ports[i]
		if p.NodePort == 0 && !givesPorts(r.svc) {
			continue
		}
		shared := given[p.Port]
		if shared != 0 && p.NodePort == 0 {
			p.NodePort = shared
		}
		if shared != 0 && p.NodePort == shared {
			continue
		}
		asked := p.NodePort
		for j := i; j < len(ports) && asked == 0 && shared == 0; j++ {
			if ports[j].Port == p.Port {
				asked = ports[j].NodePort
			}
		}
		if asked == 0 {
			port, err := r.anyPort()
			if err != nil {
				return apierrors.NewInternalError(fmt.Errorf("failed to allocate a nodePort: %w", err)) // upstream's words
			}
			p.NodePort = port
		} else {
			if err := r.port(asked); err != nil {
				return r.invalid(field.Invalid(field.NewPath("spec", "ports").Index(i).Child("nodePort"), asked, err.Error()))
			}
			p.NodePort = asked
		}
		if shared == 0 {
			given[p.Port] = p.NodePort
		}
	}
	return nil
}

// changePorts reserves node ports that the old service does not have, and frees those that only it has.
func (r *reservation) changePorts(old *corev1.Service) error {
	had := nodePorts(old)
	if !typeWithPorts(old) {
		had = nil
	}
	var reserved []int32
	type key struct {
		protocol corev1.Protocol
		port     int32
	}
	seen := map[key]bool{}
	for i := range r.svc.Spec.Ports {
		p := &r.svc.Spec.Ports[i]
		switch {
		case p.NodePort == 0 && !givesPorts(r.svc):
			continue
		case p.NodePort == 0:
			port, err := r.anyPort()
			if err != nil {
				return apierrors.NewInternalError(fmt.Errorf("failed to allocate a nodePort: %w", err)) // upstream's words
			}
			p.NodePort = port
		case !slices.Contains(had, p.NodePort) && !slices.Contains(reserved, p.NodePort):
			if err := r.port(p.NodePort); err != nil {
				return r.invalid(field.Invalid(field.NewPath("spec", "ports").Index(i).Child("nodePort"), p.NodePort, err.Error()))
			}
			reserved = append(reserved, p.NodePort)
		}
		k := key{p.Protocol, p.NodePort}
		if seen[k] {
			return fmt.Errorf("duplicate nodePort: {%v %v}", p.Protocol, p.NodePort)
		}
		seen[k] = true
	}
	has := nodePorts(r.svc)
	for _, port := range had {
		if !slices.Contains(has, port) {
			r.free.ports = append(r.free.ports, port)
		}
	}
	return nil
}

// healthPort reserves the health-check port, the one asked for or any.
func (r *reservation) healthPort() error {
	if asked := r.svc.Spec.HealthCheckNodePort; asked != 0 {
		if err := r.port(asked); err != nil {
			return apierrors.NewInternalError(fmt.Errorf("failed to allocate requested HealthCheck NodePort %v: %w", asked, err)) // upstream's words
		}
		return nil
	}
	port, err := r.anyPort()
	if err != nil {
		return apierrors.NewInternalError(fmt.Errorf("failed to allocate a HealthCheck NodePort %v: %w", port, err)) // upstream's words
	}
	r.svc.Spec.HealthCheckNodePort = port
	return nil
}

// port reserves this port.
func (r *reservation) port(port int32) error {
	if (port < firstPort || port > lastPort) && !r.dry { // upstream's dry runs do not look
		return fmt.Errorf("provided port is not in the valid range. The range of valid ports is %d-%d", firstPort, lastPort)
	}
	if r.ports.has(port) || slices.Contains(r.took.ports, port) {
		return errPortAllocated
	}
	if !r.dry {
		r.ports.add(port)
	}
	r.took.ports = append(r.took.ports, port)
	return nil
}

// anyPort reserves a port above the band, or in it when there is no other. A dry run gets one that is in no range, as
// upstream's does: no answer is given that another would then contradict.
func (r *reservation) anyPort() (int32, error) {
	if r.dry {
		last := int32(lastPort + 1)
		if len(r.took.ports) > 0 {
			last = max(slices.Max(r.took.ports), 0)
		}
		port := last + 1
		for port < 100 && slices.Contains(r.took.ports, port) {
			port++
		}
		r.took.ports = append(r.took.ports, port)
		return port, nil
	}
	for _, part := range [2][2]int32{{firstPort + portBand, lastPort}, {firstPort, firstPort + portBand - 1}} {
		size := part[1] - part[0] + 1
		start := rand.Int32N(size)
		for i := range size {
			port := part[0] + (start+i)%size
			if r.port(port) == nil {
				return port, nil
			}
		}
	}
	return 0, errFull
}
