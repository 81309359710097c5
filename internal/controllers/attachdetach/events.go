// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package attachdetach

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"
)

// reporter records events.
type reporter struct{ recorder record.EventRecorder }

// tell records an event for each pod that uses a volume on a node. The form of the message is upstream's, with its spaces.
func (r reporter) tell(s *spot, kind, reason, what, why string) {
	for _, pod := range s.pods {
		r.recorder.Eventf(pod, kind, reason, "%s for volume %q %s", what, s.disk.pv.Name, why)
	}
}

// tellConflict tells the pods of a node which pods of other nodes use the volume that they wait for. The messages are upstream's: a pod's
// user does not learn the names of pods in other namespaces.
func (r reporter) tellConflict(s *spot, others []*spot) {
	var holders []*corev1.Pod
	for _, other := range others {
		holders = append(holders, other.pods...)
	}
	for _, pod := range s.pods {
		one := *s
		one.pods = []*corev1.Pod{pod}
		r.tell(&one, corev1.EventTypeWarning, "FailedAttachVolume", "Waiting for detach", conflict(pod.Namespace, holders))
	}
}

// conflict describes the holders of a volume to a pod of a namespace.
func conflict(namespace string, holders []*corev1.Pod) string {
	if len(holders) == 0 {
		return "Volume is already exclusively attached to one node, waiting on detach before it can be attached to another node"
	}
	var local []string
	foreign := 0
	for _, pod := range holders {
		if pod.Namespace == namespace {
			local = append(local, pod.Name)
		} else {
			foreign++
		}
	}
	switch {
	case len(local) == 0:
		return fmt.Sprintf("Volume is already used by %d pod(s) in different namespaces", foreign)
	case foreign > 0:
		return fmt.Sprintf("Volume is already used by pod(s) %s and %d pod(s) in different namespaces", strings.Join(local, ", "), foreign)
	}
	return "Volume is already used by pod(s) " + strings.Join(local, ", ")
}
