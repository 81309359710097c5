// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mortise-dev/mortise/internal/agent/podspec"
)

// containerLogs writes one container's log. It detects all errors before the first byte, so that an error has a status; after it, the log
// just ends.
func (s *Server) containerLogs(w http.ResponseWriter, r *http.Request) {
	o, err := logOptions(r.URL.Query())
	if err != nil {
		http.Error(w, fmt.Sprintf(`{"message": %q}`, err.Error()), http.StatusBadRequest)
		return
	}
	t := target(r)
	o.Container = t.Container
	if o.TailLines != nil && *o.TailLines < 0 || o.LimitBytes != nil && *o.LimitBytes < 1 ||
		o.SinceSeconds != nil && (*o.SinceSeconds < 1 || o.SinceTime != nil) {
		http.Error(w, `{"message": "Invalid request."}`, http.StatusUnprocessableEntity)
		return
	}
	pod := s.find(t)
	if pod == nil {
		http.Error(w, fmt.Sprintf("pod %q does not exist", t.Pod), http.StatusNotFound)
		return
	}
	if !hasContainer(pod, t.Container) {
		http.Error(w, fmt.Sprintf("container %q not found in pod %q", t.Container, t.Pod), http.StatusNotFound)
		return
	}
	t.UID = pod.UID // a new pod of the same name must not be used
	out := &logWriter{w: w, flush: o.Follow}
	var stdout, stderr io.Writer = out, out
	if o.Stream != nil {
		switch *o.Stream {
		case corev1.LogStreamAll:
		case corev1.LogStreamStdout:
			stderr = nil
		case corev1.LogStreamStderr:
			stdout = nil
		default:
			http.Error(w, fmt.Sprintf("invalid stream type %q", *o.Stream), http.StatusBadRequest)
			return
		}
	}
	w.Header().Set("Content-Type", "text/plain")
	if err := s.node.ContainerLogs(r.Context(), t, o, stdout, stderr); err != nil {
		if !out.begun {
			writeError(w, err, http.StatusBadRequest)
		} else if r.Context().Err() == nil {
			s.o.Logger.Debug("Could not send the rest of a log", "pod", t.Namespace+"/"+t.Pod, "container", t.Container, "error", err)
		}
	}
}

// logWriter records whether anything was written, and flushes each line for clients that follow the log.
type logWriter struct {
	w     http.ResponseWriter
	flush bool
	begun bool
}

func (l *logWriter) Write(p []byte) (int, error) {
	l.begun = true
	n, err := l.w.Write(p)
	if err == nil && l.flush {
		err = http.NewResponseController(l.w).Flush()
	}
	return n, err
}

// logOptions parses the query of a log request.
func logOptions(q url.Values) (*corev1.PodLogOptions, error) {
	o := &corev1.PodLogOptions{Follow: isTrue(q, "follow"), Previous: isTrue(q, "previous"), Timestamps: isTrue(q, "timestamps")}
	if q.Get("tailLines") == "" && q.Get("tail") != "" { // the old name
		q["tailLines"] = q["tail"]
	}
	if q.Get("tailLines") == "all" {
		delete(q, "tailLines")
	}
	for name, field := range map[string]**int64{"tailLines": &o.TailLines, "limitBytes": &o.LimitBytes, "sinceSeconds": &o.SinceSeconds} {
		if text := q.Get(name); text != "" {
			n, err := strconv.ParseInt(text, 10, 64)
			if err != nil {
				return nil, fmt.Errorf("read %s: %w", name, err)
			}
			*field = &n
		}
	}
	if text := q.Get("sinceTime"); text != "" {
		t, err := time.Parse(time.RFC3339, text)
		if err != nil {
			return nil, fmt.Errorf("read sinceTime: %w", err)
		}
		o.SinceTime = &metav1.Time{Time: t}
	}
	if text := q.Get("stream"); text != "" {
		o.Stream = &text
	}
	return o, nil
}

// isTrue parses a boolean parameter as the API does: a present parameter is true, unless it is false or 0.
func isTrue(q url.Values, name string) bool {
	v, ok := q[name]
	return ok && len(v) > 0 && v[0] != "0" && !strings.EqualFold(v[0], "false")
}

// podFinder is a node that finds a pod without listing all pods.
type podFinder interface {
	// Pod returns the node's pod of that name, or nil.
	Pod(namespace, name string) *corev1.Pod
}

// find returns the node's pod of that name, or nil.
func (s *Server) find(t podspec.Target) *corev1.Pod {
	if n, ok := s.node.(podFinder); ok {
		if p := n.Pod(t.Namespace, t.Pod); p != nil && (t.UID == "" || t.UID == p.UID) {
			return p
		}
		return nil
	}
	for _, p := range s.node.Pods() {
		if p.Namespace == t.Namespace && p.Name == t.Pod && (t.UID == "" || t.UID == p.UID) {
			return p
		}
	}
	return nil
}

func hasContainer(pod *corev1.Pod, name string) bool {
	for _, c := range pod.Spec.Containers {
		if c.Name == name {
			return true
		}
	}
	for _, c := range pod.Spec.InitContainers {
		if c.Name == name {
			return true
		}
	}
	for _, c := range pod.Spec.EphemeralContainers {
		if c.Name == name {
			return true
		}
	}
	return false
}
