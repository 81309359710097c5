// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package endpoints

import (
	"math"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/endpointslice"
	"k8s.io/endpointslice/util"
	netutils "k8s.io/utils/net"

	"github.com/mortise-dev/mortise/internal/podconditions"
)

// capacity is the number of addresses that an Endpoints object holds; EndpointSlices hold all.
const capacity = 1000

// podAddress is one pod's address, ready or not, and the ports that it serves.
type podAddress struct {
	address corev1.EndpointAddress
	ready   bool
	ports   []corev1.EndpointPort
}

// subsets returns the endpoints of a service's pods, in canonical form.
func subsets(service *corev1.Service, pods []*corev1.Pod) []corev1.EndpointSubset {
	var each []corev1.EndpointSubset
	for _, pod := range pods {
		p, ok := locate(service, pod)
		if !ok {
			continue
		}
		set := corev1.EndpointSubset{Ports: p.ports}
		if p.ready {
			set.Addresses = []corev1.EndpointAddress{p.address}
		} else {
			set.NotReadyAddresses = []corev1.EndpointAddress{p.address}
		}
		each = append(each, set)
	}
	return Repack(each)
}

// locate returns the pod's address for the service; false if the pod does not serve it.
func locate(service *corev1.Service, pod *corev1.Pod) (podAddress, bool) {
	if !util.ShouldPodBeInEndpoints(pod, service.Spec.PublishNotReadyAddresses) {
		return podAddress{}, false
	}
	ip := address(service, pod)
	if ip == "" {
		return podAddress{}, false
	}
	p := podAddress{
		ready: service.Spec.PublishNotReadyAddresses || podconditions.IsReady(pod),
		address: corev1.EndpointAddress{
			IP: ip, NodeName: &pod.Spec.NodeName,
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
		},
	}
	if util.ShouldSetHostname(pod, service) {
		p.address.Hostname = pod.Spec.Hostname
	}
	for i := range service.Spec.Ports {
		port := &service.Spec.Ports[i]
		if number, err := endpointslice.FindPort(pod, port); err == nil {
			p.ports = append(p.ports, corev1.EndpointPort{Name: port.Name, Port: int32(number), Protocol: port.Protocol,
				AppProtocol: port.AppProtocol})
		}
	}
	headless := len(service.Spec.Ports) == 0 && service.Spec.ClusterIP == corev1.ClusterIPNone
	return p, len(p.ports) > 0 || headless
}

// address returns the pod's address of the service's first family, or of the pod's own if the service names none.
func address(service *corev1.Service, pod *corev1.Pod) string {
	six := len(service.Spec.IPFamilies) > 0 && service.Spec.IPFamilies[0] == corev1.IPv6Protocol
	if len(service.Spec.IPFamilies) == 0 {
		like := service.Spec.ClusterIP
		if like == "" || like == corev1.ClusterIPNone {
			like = pod.Status.PodIP
		}
		six = netutils.IsIPv6String(like)
	}
	for _, ip := range pod.Status.PodIPs {
		if parsed := netutils.ParseIPSloppy(ip.IP); parsed != nil && netutils.IsIPv6(parsed) == six {
			return parsed.String()
		}
	}
	return ""
}

// truncate reduces subsets to capacity: ready addresses before others, each subset by its share. It reports whether it removed any.
func truncate(sets []corev1.EndpointSubset) bool {
	ready, other := 0, 0
	for _, s := range sets {
		ready += len(s.Addresses)
		other += len(s.NotReadyAddresses)
	}
	if ready+other <= capacity {
		return false
	}
	room, total, cutReady := capacity-ready, other, ready > capacity
	if cutReady {
		room, total = capacity, ready
	}
	left := room
	for i := range sets {
		cut := &sets[i].NotReadyAddresses
		if cutReady {
			cut = &sets[i].Addresses
			sets[i].NotReadyAddresses = nil
		}
		share := min(int(math.Ceil(float64(len(*cut))/float64(total)*float64(room))), left)
		*cut = (*cut)[:min(share, len(*cut))]
		left -= len(*cut)
	}
	return true
}
