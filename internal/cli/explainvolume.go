// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/mortise-dev/mortise/extension/trace"
)

// storageView is what is said of a claim or a persistent volume: its writes, the calls to its driver, and what it waits for.
type storageView struct {
	trace.View
	Claim  string   `json:"claim,omitempty"` // NAMESPACE/NAME
	Volume string   `json:"volume,omitempty"`
	Driver string   `json:"driver,omitempty"`
	Waits  []string `json:"waits,omitempty"`
}

// storageObjects are a claim, its volume, and what concerns them. What does not exist is nil.
type storageObjects struct {
	claim       *corev1.PersistentVolumeClaim
	volume      *corev1.PersistentVolume
	class       *storagev1.StorageClass
	attachments []storagev1.VolumeAttachment
	pods        []corev1.Pod
	drivers     map[string][]string // by node: those that have registered
}

// runStorage explains a claim or a persistent volume.
func (o *explainOptions) runStorage(ctx context.Context, w io.Writer, config *rest.Config, query url.Values) error {
	body, err := ask(ctx, config, trace.Route, query)
	if err != nil {
		return err
	}
	v := &storageView{}
	if err := json.Unmarshal(body, &v.View); err != nil {
		return fmt.Errorf("read answer: %w", err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	s, err := findStorage(ctx, client, query.Get(trace.ParamNamespace), query.Get(trace.ParamName))
	if err != nil {
		return err
	}
	if s.claim != nil {
		v.Claim = s.claim.Namespace + "/" + s.claim.Name
	}
	if s.volume != nil {
		v.Volume, v.Driver = s.volume.Name, driverOf(s.volume)
		if v.Calls == nil {
			query.Set(trace.ParamResource, "persistentvolumes")
			query.Set(trace.ParamName, s.volume.Name)
			query.Del(trace.ParamNamespace)
			if body, err = ask(ctx, config, trace.Route, query); err != nil {
				return err
			}
			var of trace.View
			if err := json.Unmarshal(body, &of); err != nil {
				return fmt.Errorf("read answer: %w", err)
			}
			v.Calls = of.Calls
		}
	}
	v.Waits = s.waits(time.Now())
	if o.output == "json" {
		return printJSON(w, v)
	}
	return printStorage(w, v)
}

// findStorage reads the objects. Without a namespace, the name is a volume's.
func findStorage(ctx context.Context, client kubernetes.Interface, namespace, name string) (*storageObjects, error) {
	s := &storageObjects{drivers: map[string][]string{}}
	core, storage := client.CoreV1(), client.StorageV1()
	claim, volume := name, ""
	var err error
	if namespace == "" {
		claim, volume = "", name
	}
	if claim != "" {
		if s.claim, err = found(core.PersistentVolumeClaims(namespace).Get(ctx, claim, metav1.GetOptions{})); err != nil {
			return nil, err
		}
		if s.claim != nil {
			volume = s.claim.Spec.VolumeName
		}
	}
	if volume != "" {
		if s.volume, err = found(core.PersistentVolumes().Get(ctx, volume, metav1.GetOptions{})); err != nil {
			return nil, err
		}
	}
	if s.volume != nil && s.claim == nil && s.volume.Spec.ClaimRef != nil {
		of := s.volume.Spec.ClaimRef
		if s.claim, err = found(core.PersistentVolumeClaims(of.Namespace).Get(ctx, of.Name, metav1.GetOptions{})); err != nil {
			return nil, err
		}
		if s.claim != nil && of.UID != "" && s.claim.UID != of.UID {
			s.claim = nil // a younger one of that name
		}
	}
	if s.volume != nil {
		all, err := storage.VolumeAttachments().List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, fmt.Errorf("list attachments: %w", err)
		}
		for _, a := range all.Items {
			if of := a.Spec.Source.PersistentVolumeName; of != nil && *of == s.volume.Name {
				s.attachments = append(s.attachments, a)
			}
		}
	}
	if s.claim == nil {
		return s, nil
	}
	if class := s.claim.Spec.StorageClassName; class != nil && *class != "" {
		if s.class, err = found(storage.StorageClasses().Get(ctx, *class, metav1.GetOptions{})); err != nil {
			return nil, err
		}
	}
	return s, s.findPods(ctx, client)
}

// findPods reads the pods that use the claim, and which drivers their nodes have.
func (s *storageObjects) findPods(ctx context.Context, client kubernetes.Interface) error {
	all, err := client.CoreV1().Pods(s.claim.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list pods: %w", err)
	}
	for _, pod := range all.Items {
		if !slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return s.uses(&pod, v) }) {
			continue
		}
		s.pods = append(s.pods, pod)
		node := pod.Spec.NodeName
		if _, known := s.drivers[node]; known || node == "" {
			continue
		}
		has, err := found(client.StorageV1().CSINodes().Get(ctx, node, metav1.GetOptions{}))
		if err != nil {
			return err
		}
		s.drivers[node] = []string{}
		if has != nil {
			for _, d := range has.Spec.Drivers {
				s.drivers[node] = append(s.drivers[node], d.Name)
			}
		}
	}
	return nil
}

// uses reports whether a volume of a pod is the claim, or makes it.
func (s *storageObjects) uses(pod *corev1.Pod, v corev1.Volume) bool {
	switch {
	case v.PersistentVolumeClaim != nil:
		return v.PersistentVolumeClaim.ClaimName == s.claim.Name
	case v.Ephemeral != nil:
		return pod.Name+"-"+v.Name == s.claim.Name
	}
	return false
}

// found returns nil for an object that does not exist.
func found[T any](obj *T, err error) (*T, error) {
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read objects: %w", err)
	}
	return obj, nil
}

// driverOf returns the CSI driver of a volume; empty: it has none.
func driverOf(v *corev1.PersistentVolume) string {
	if v == nil || v.Spec.CSI == nil {
		return ""
	}
	return v.Spec.CSI.Driver
}

// waits says what the claim and its volume wait for.
func (s *storageObjects) waits(now time.Time) []string {
	return slices.Concat(s.claimWaits(), s.volumeWaits(), s.attachmentWaits(now), s.podWaits())
}

// claimWaits says what the claim waits for.
func (s *storageObjects) claimWaits() []string {
	c := s.claim
	if c == nil {
		return nil
	}
	if c.DeletionTimestamp != nil && len(s.pods) > 0 {
		return []string{"the end of " + s.podNames() + ", before the claim is deleted"}
	}
	if c.Status.Phase == corev1.ClaimBound {
		return s.changes()
	}
	driver := cmp.Or(c.Annotations["volume.kubernetes.io/storage-provisioner"], c.Annotations["volume.beta.kubernetes.io/storage-provisioner"])
	switch class := c.Spec.StorageClassName; {
	case c.Spec.VolumeName != "" && s.volume == nil:
		return []string{"the PersistentVolume " + c.Spec.VolumeName + ", which the claim names, and which does not exist"}
	case driver != "":
		return []string{"the external-provisioner of " + driver + ", to provision a volume"}
	case class == nil || *class == "":
		return []string{"a PersistentVolume without a class that fits"}
	case s.class == nil:
		return []string{"a PersistentVolume of the class " + *class + " that fits, or the StorageClass of that name, which does not exist"}
	case s.class.VolumeBindingMode != nil && *s.class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer:
		if len(s.pods) == 0 {
			return []string{"a pod that uses the claim: its class has WaitForFirstConsumer"}
		}
		return []string{"the scheduler, to choose a node for " + s.podNames()}
	}
	return []string{"a PersistentVolume that fits, or a volume of " + s.class.Provisioner}
}

// changes says what a bound claim waits for.
func (s *storageObjects) changes() (out []string) {
	driver := cmp.Or(driverOf(s.volume), "its driver")
	for _, c := range s.claim.Status.Conditions {
		if c.Status != corev1.ConditionTrue {
			continue
		}
		who := ""
		switch c.Type {
		case corev1.PersistentVolumeClaimResizing, corev1.PersistentVolumeClaimControllerResizeError:
			who = "the external-resizer of " + driver + ", to expand the volume to " + s.claim.Spec.Resources.Requests.Storage().String()
		case corev1.PersistentVolumeClaimFileSystemResizePending, corev1.PersistentVolumeClaimNodeResizeError:
			who = "a node with a pod that uses the claim, to expand the file system"
		case corev1.PersistentVolumeClaimVolumeModifyingVolume, corev1.PersistentVolumeClaimVolumeModifyVolumeError:
			who = "the external-resizer of " + driver + ", to modify the volume"
		default:
			continue
		}
		out = append(out, because(who, c.Message))
	}
	return out
}

// volumeWaits says what the volume waits for.
func (s *storageObjects) volumeWaits() []string {
	v := s.volume
	if v == nil {
		return nil
	}
	switch {
	case v.Status.Phase == corev1.VolumeFailed:
		return []string{because("an administrator: the volume could not be reclaimed", v.Status.Message)}
	case v.Status.Phase == corev1.VolumeReleased && v.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete:
		return []string{because("the external-provisioner of "+cmp.Or(driverOf(v), "its driver")+", to delete the volume", v.Status.Message)}
	case v.Status.Phase == corev1.VolumeReleased:
		return []string{"an administrator: the volume has the reclaim policy " + string(v.Spec.PersistentVolumeReclaimPolicy)}
	}
	return nil
}

// attachmentWaits says what attachments wait for.
func (s *storageObjects) attachmentWaits(now time.Time) (out []string) {
	for _, a := range s.attachments {
		who, since, failed := "", a.CreationTimestamp.Time, a.Status.AttachError
		switch {
		case a.DeletionTimestamp != nil:
			who, since, failed = "to detach it from", a.DeletionTimestamp.Time, a.Status.DetachError
		case !a.Status.Attached:
			who = "to attach it to"
		default:
			continue
		}
		text := fmt.Sprintf("the external-attacher of %s, %s node %s, for %s", a.Spec.Attacher, who, a.Spec.NodeName,
			now.Sub(since).Round(time.Second))
		if failed != nil {
			text = because(text, failed.Message)
		}
		out = append(out, text)
	}
	return out
}

// podWaits says which driver has not registered.
func (s *storageObjects) podWaits() (out []string) {
	driver := driverOf(s.volume)
	for _, pod := range s.pods {
		if has, ok := s.drivers[pod.Spec.NodeName]; ok && driver != "" && !slices.Contains(has, driver) {
			out = append(out, fmt.Sprintf("the driver %s, to register on node %s, for pod %s", driver, pod.Spec.NodeName, pod.Name))
		}
	}
	return out
}

func (s *storageObjects) podNames() string {
	var names []string
	for _, p := range s.pods {
		names = append(names, "pod "+p.Name)
	}
	return strings.Join(names, ", ")
}

// because adds a reason, if there is one.
func because(who, reason string) string {
	if reason == "" {
		return who
	}
	return who + ": " + reason
}

// printStorage prints what is said of a claim or a volume.
func printStorage(w io.Writer, v *storageView) error {
	fmt.Fprintf(w, "Claim:   %s\nVolume:  %s\nDriver:  %s\n", plain(cmp.Or(v.Claim, "-")), plain(cmp.Or(v.Volume, "-")),
		plain(cmp.Or(v.Driver, "-")))
	for i, one := range v.Waits {
		name := "Waits for:"
		if i > 0 {
			name = "          "
		}
		fmt.Fprintf(w, "%s %s\n", name, plain(one))
	}
	fmt.Fprintln(w)
	view := v.View
	view.Calls = nil
	if err := printWrites(w, &view); err != nil {
		return err
	}
	if len(v.Calls) == 0 {
		_, err := fmt.Fprintln(w, "\nNo calls of the driver by nodes in the server's process.")
		return err
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "\nTIME\tCALL\tTRY\tCODE\tTOOK\tERROR")
	tries := map[string]int{}
	for _, c := range v.Calls {
		tries[c.Method]++
		fmt.Fprintf(t, "%s\t%s\t%d\t%s\t%s\t%s\n", second(c.Time), plain(cmp.Or(c.Method, "-")), tries[c.Method], plain(cmp.Or(c.Code, "-")),
			short(c.Seconds), plain(cmp.Or(c.Error, "-")))
		if c.Error == "" {
			tries[c.Method] = 0
		}
	}
	return t.Flush()
}
