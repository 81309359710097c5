// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package attachdetach

import (
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/mortise-dev/mortise/internal/controllers"
	"github.com/mortise-dev/mortise/internal/controllers/controllertest"
)

var simulations = flag.Uint64("simulations", 60, "how many seeds TestSimulation tries")

var (
	nodesResource       = corev1.SchemeGroupVersion.WithResource("nodes")
	podsResource        = corev1.SchemeGroupVersion.WithResource("pods")
	volumesResource     = corev1.SchemeGroupVersion.WithResource("persistentvolumes")
	claimsResource      = corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims")
	attachmentsResource = storagev1.SchemeGroupVersion.WithResource("volumeattachments")

	simulatedNodes = []string{"n1", "n2"}
	// The first volume can be attached to one node, the second one to several.
	simulatedVolumes = map[string]corev1.PersistentVolumeAccessMode{"one": corev1.ReadWriteOnce, "many": corev1.ReadWriteMany}
)

const attacherFinalizer = "external-attacher/d-example-com"

// machines are the kubelets and the external-attacher of a simulation, which take turns.
type machines struct {
	mounted map[string]bool // by NODE VOLUME
}

// TestSimulation has pods come and go on two nodes while watches are late, writes fail and the controller dies. No volume is detached while
// its node has it mounted, none that is not shared is attached to a second node, and in the end each pod has its volume.
func TestSimulation(t *testing.T) {
	for seed := uint64(1); seed <= *simulations; seed++ {
		simulate := func(steps []controllertest.Step) string {
			m := &machines{mounted: map[string]bool{}}
			wrong, _ := controllertest.Simulate(t, seed, []controllers.Controller{Controller()}, bind(m, steps), m.check, m.done)
			return wrong
		}
		steps := wishes(seed)
		wrong := simulate(steps)
		if wrong == "" {
			continue
		}
		steps = controllertest.Shortest(steps, func(fewer []controllertest.Step) bool { return simulate(fewer) != "" })
		var names []string
		for _, s := range steps {
			names = append(names, s.Name)
		}
		t.Fatalf("seed %d, steps: %s\n%s", seed, strings.Join(names, "; "), simulate(steps))
	}
}

// bind adds the objects of the cluster before the steps, and a turn of the machines after each.
func bind(m *machines, steps []controllertest.Step) []controllertest.Step {
	all := []controllertest.Step{{Name: "cluster", Do: func(w *controllertest.World) {
		for _, node := range simulatedNodes {
			w.Put(nodesResource, "", &corev1.Node{
				ObjectMeta: metav1.ObjectMeta{Name: node, Annotations: map[string]string{"volumes.kubernetes.io/controller-managed-attach-detach": "true"}},
				Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
			})
		}
		for _, name := range []string{"one", "many"} {
			for _, obj := range volumeObjects(name, "") {
				switch o := obj.(type) {
				case *corev1.PersistentVolume:
					o.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{simulatedVolumes[name]}
					w.Put(volumesResource, "", o)
				case *corev1.PersistentVolumeClaim:
					w.Put(claimsResource, "default", o)
				}
			}
		}
	}}}
	for _, s := range steps {
		all = append(all, controllertest.Step{Name: s.Name, Do: func(w *controllertest.World) { s.Do(w); m.turn(w) }})
	}
	return all
}

// wishes are pods that come and go.
func wishes(seed uint64) []controllertest.Step {
	var steps []controllertest.Step
	for i := range 16 {
		name := fmt.Sprintf("p%d", i%4)
		steps = append(steps, controllertest.Step{Name: fmt.Sprintf("step %d of %d", i, seed), Do: func(w *controllertest.World) {
			if w.Chance(5, "remove "+name) < 2 {
				w.Remove(podsResource, "default", name)
				return
			}
			volume, node := "one", simulatedNodes[w.Chance(2, "node of "+name)]
			if w.Chance(3, "volume of "+name) == 0 {
				volume = "many"
			}
			if exists(w, name) {
				return
			}
			w.Put(podsResource, "default", &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
				Spec: corev1.PodSpec{NodeName: node, Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
					PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: volume},
				}}}},
			})
		}})
	}
	return steps
}

func exists(w *controllertest.World, name string) bool {
	pods := controllertest.All[*corev1.PodList](w, podsResource, "Pod").Items
	return slices.ContainsFunc(pods, func(p corev1.Pod) bool { return p.Name == name })
}

// users returns the volumes that pods of a node use.
func users(w *controllertest.World, node string) map[string]bool {
	used := map[string]bool{}
	for _, pod := range controllertest.All[*corev1.PodList](w, podsResource, "Pod").Items {
		if pod.Spec.NodeName == node && !terminated(&pod) {
			used[volumeName(pod.Spec.Volumes[0].PersistentVolumeClaim.ClaimName)] = true
		}
	}
	return used
}

// turn is one of the external-attacher, and one of each kubelet.
func (m *machines) turn(w *controllertest.World) {
	for _, a := range controllertest.All[*storagev1.VolumeAttachmentList](w, attachmentsResource, "VolumeAttachment").Items {
		m.attacher(w, a)
	}
	for _, node := range simulatedNodes {
		m.kubelet(w, node)
	}
}

// attacher advances a VolumeAttachment: it adds its finalizer, then attaches; it detaches, then removes its finalizer. Some calls fail.
func (m *machines) attacher(w *controllertest.World, a storagev1.VolumeAttachment) {
	fails := w.Chance(4, "driver fails "+a.Name) == 0
	status := func(change func(*storagev1.VolumeAttachmentStatus)) {
		w.Change(attachmentsResource, "", a.Name, "status", func(o runtime.Object) { change(&o.(*storagev1.VolumeAttachment).Status) })
	}
	failure := &storagev1.VolumeError{Message: "no"}
	switch {
	case a.DeletionTimestamp != nil && fails:
		status(func(s *storagev1.VolumeAttachmentStatus) { s.DetachError = failure })
	case a.DeletionTimestamp != nil || len(a.Finalizers) == 0:
		w.Change(attachmentsResource, "", a.Name, "", func(o runtime.Object) {
			if a := o.(*storagev1.VolumeAttachment); a.DeletionTimestamp != nil {
				a.Finalizers = nil
			} else {
				a.Finalizers = []string{attacherFinalizer}
			}
		})
	case !a.Status.Attached && fails:
		status(func(s *storagev1.VolumeAttachmentStatus) { s.AttachError = failure })
	case !a.Status.Attached:
		status(func(s *storagev1.VolumeAttachmentStatus) { s.Attached, s.AttachError = true, nil })
	}
}

// kubelet writes volumesInUse, mounts the attached volumes among them, and unmounts all others.
func (m *machines) kubelet(w *controllertest.World, name string) {
	used, twice := users(w, name), false
	w.Change(nodesResource, "", name, "status", func(o runtime.Object) {
		node := o.(*corev1.Node)
		for volume := range used {
			listed := slices.Contains(node.Status.VolumesInUse, corev1.UniqueVolumeName(volume))
			attached := slices.ContainsFunc(node.Status.VolumesAttached, func(v corev1.AttachedVolume) bool { return string(v.Name) == volume })
			if listed && attached {
				m.mounted[name+" "+volume] = true
				if volume == volumeName("one") && m.mounted["n1 "+volume] && m.mounted["n2 "+volume] {
					twice = true
				}
			}
		}
		node.Status.VolumesInUse = nil
		for claim := range simulatedVolumes {
			volume := volumeName(claim)
			if !used[volume] {
				delete(m.mounted, name+" "+volume)
			} else {
				node.Status.VolumesInUse = append(node.Status.VolumesInUse, corev1.UniqueVolumeName(volume))
			}
		}
		slices.Sort(node.Status.VolumesInUse)
	})
	if twice {
		w.Fail("a volume that is not shared is mounted on both nodes")
	}
}

// check is what holds after each write.
func (m *machines) check(w *controllertest.World, event controllertest.Event) string {
	switch o := event.Object.(type) {
	case *storagev1.VolumeAttachment:
		volume := volumeName(*o.Spec.Source.PersistentVolumeName)
		if (event.Type == watch.Deleted || o.DeletionTimestamp != nil) && m.mounted[o.Spec.NodeName+" "+volume] {
			return fmt.Sprintf("%s is detached from %s, which has it mounted", volume, o.Spec.NodeName)
		}
		if event.Type != watch.Added || simulatedVolumes[*o.Spec.Source.PersistentVolumeName] == corev1.ReadWriteMany {
			return ""
		}
		for _, other := range controllertest.All[*storagev1.VolumeAttachmentList](w, attachmentsResource, "VolumeAttachment").Items {
			if other.Name != o.Name && *other.Spec.Source.PersistentVolumeName == *o.Spec.Source.PersistentVolumeName &&
				other.DeletionTimestamp == nil && other.Status.Attached {
				return fmt.Sprintf("%s is to be attached to %s, but is attached to %s", volume, o.Spec.NodeName, other.Spec.NodeName)
			}
		}
	case *corev1.Node:
		for _, v := range o.Status.VolumesAttached {
			if !w.ByController() {
				continue
			}
			_, handle, _ := parseName(string(v.Name))
			if a := find(w, attachmentName(volumeName(handle), o.Name)); a == nil || !a.Status.Attached {
				return fmt.Sprintf("%s lists %s, which is not attached", o.Name, v.Name)
			}
			for _, other := range controllertest.All[*corev1.NodeList](w, nodesResource, "Node").Items {
				if simulatedVolumes[handle] != corev1.ReadWriteMany && other.Name != o.Name && slices.Contains(other.Status.VolumesAttached, v) {
					return fmt.Sprintf("%s and %s both list %s", o.Name, other.Name, v.Name)
				}
			}
		}
	}
	return ""
}

func find(w *controllertest.World, name string) *storagev1.VolumeAttachment {
	all := controllertest.All[*storagev1.VolumeAttachmentList](w, attachmentsResource, "VolumeAttachment").Items
	if at := slices.IndexFunc(all, func(a storagev1.VolumeAttachment) bool { return a.Name == name }); at >= 0 {
		return &all[at]
	}
	return nil
}

// done takes a turn, and returns what is still missing: each pod has its volume mounted, unless the volume is not shared and a pod of the
// other node has it; no other volume is attached.
func (m *machines) done(w *controllertest.World) string {
	m.turn(w)
	var missing []string
	for claim, mode := range simulatedVolumes {
		volume := volumeName(claim)
		wanted, has := 0, 0
		for _, node := range simulatedNodes {
			if users(w, node)[volume] {
				wanted++
			} else if find(w, attachmentName(volume, node)) != nil {
				missing = append(missing, volume+" is still attached to "+node)
			}
			if m.mounted[node+" "+volume] {
				has++
			}
		}
		if mode != corev1.ReadWriteMany {
			wanted = min(wanted, 1)
		}
		if has != wanted {
			missing = append(missing, fmt.Sprintf("%s is mounted on %d nodes, want %d", volume, has, wanted))
		}
	}
	return strings.Join(missing, ", ")
}
