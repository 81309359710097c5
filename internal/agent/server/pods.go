// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"encoding/json"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func uid(s string) types.UID { return types.UID(s) }

// pods lists the pods bound to the node.
func (s *Server) pods(w http.ResponseWriter, _ *http.Request) {
	list := podList()
	for _, p := range s.node.Pods() {
		list.Items = append(list.Items, *p)
	}
	s.writeJSON(w, list)
}

// runningPods lists the pods with a running container, with no more fields than a runtime knows.
func (s *Server) runningPods(w http.ResponseWriter, _ *http.Request) {
	list := podList()
	for _, p := range s.node.Pods() {
		running := map[string]bool{}
		for _, c := range p.Status.ContainerStatuses {
			running[c.Name] = c.State.Running != nil
		}
		out := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: p.Name, Namespace: p.Namespace, UID: p.UID}}
		for _, c := range p.Spec.Containers {
			if running[c.Name] {
				out.Spec.Containers = append(out.Spec.Containers, corev1.Container{Name: c.Name, Image: c.Image})
			}
		}
		if len(out.Spec.Containers) > 0 {
			list.Items = append(list.Items, out)
		}
	}
	s.writeJSON(w, list)
}

func podList() *corev1.PodList {
	return &corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}, Items: []corev1.Pod{}}
}

func (s *Server) writeJSON(w http.ResponseWriter, v any) {
	data, err := json.Marshal(v)
	if err != nil {
		writeError(w, err, http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Write(data)
}
