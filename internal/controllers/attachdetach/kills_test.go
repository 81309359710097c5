// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package attachdetach

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/internal/controllers"
	"github.com/mortise-dev/mortise/internal/controllers/controllertest"
)

var (
	killedSeeds = flag.Uint64("kills", 3, "how many seeds TestKills tries")
	killedFrom  = flag.Uint64("kills.from", 1, "the first of them")
)

// killedFor is the simulated time of one seed.
const killedFor = time.Hour

var killedNodes = []string{"n1", "n2", "n3"}

// killedVolumes are the volumes, two of which only one pod may use.
var killedVolumes = map[string]corev1.PersistentVolumeAccessMode{
	"once": corev1.ReadWriteOncePod, "only": corev1.ReadWriteOncePod, "one": corev1.ReadWriteOnce, "many": corev1.ReadWriteMany,
}

func modeOf(volume string) corev1.PersistentVolumeAccessMode { return killedVolumes[volume] }

func killedObject[T runtime.Object](name string) (out T) {
	for _, obj := range volumeObjects(name, "") {
		if o, ok := obj.(T); ok {
			out = o
		}
	}
	if pv, ok := any(out).(*corev1.PersistentVolume); ok {
		pv.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{modeOf(name)}
	}
	return out
}

// hour is one hour of a cluster.
type hour struct {
	w        *controllertest.World
	array    *array
	nodes    []*simulatedNode
	attacher chan struct{} // has a value when VolumeAttachments have changed
}

// TestKills has pods with volumes come and go on three nodes for a simulated hour, while the nodes' agents, the driver's processes, the
// external-attacher and the controller are killed at random, between any two calls and during them, and while nodes lose their power, some
// for more than six minutes, some with the taint out-of-service, some for good. The controller, the nodes' volume managers and their files
// on the disk are real; the driver keeps books. No volume for one pod is published twice, none is lost while its pod runs, none is
// detached where it is staged, and in the end nothing is published, staged or attached that no pod uses.
func TestKills(t *testing.T) {
	uses := 0
	for seed := *killedFrom; seed < *killedFrom+*killedSeeds; seed++ {
		h := &hour{}
		began := time.Now()
		wrong, _ := controllertest.Simulate(t, seed, []controllers.Controller{Controller()}, h.steps(t.TempDir()), h.check,
			func(*controllertest.World) string { return "" })
		if wrong != "" {
			t.Fatalf("seed %d:\n%s", seed, wrong)
		}
		uses += h.array.uses
		lives := 0
		for _, n := range h.nodes {
			lives += n.lives
		}
		t.Logf("seed %d: %d publications, agents killed %d times, %v", seed, h.array.uses, lives, time.Since(began))
	}
	if uses < 50*int(*killedSeeds) {
		t.Errorf("only %d publications", uses)
	}
}

// pass lets simulated time pass.
func pass(d time.Duration) { <-clock.RealClock{}.After(d) }

// later does something after a while.
func later(w *controllertest.World, what string, longest time.Duration, do func()) {
	go func() {
		w.Pause(what, longest)
		do()
	}()
}

// steps are the hour: its beginning, its events and its end.
func (h *hour) steps(dir string) []controllertest.Step {
	return []controllertest.Step{{Name: "hour", Do: func(w *controllertest.World) {
		h.w, h.array, h.attacher = w, newArray(w), make(chan struct{}, 1)
		ctx, cancel := context.WithCancel(context.Background())
		h.begin(ctx, dir)
		for end := time.Now().Add(killedFor); time.Now().Before(end) && !w.Failed(); {
			w.Pause("event", 90*time.Second)
			h.event()
		}
		h.settle()
		cancel()
		for _, n := range h.nodes {
			n.mu.Lock()
			n.ended = true
			if n.life != nil {
				n.life.end()
			}
			n.mu.Unlock()
		}
		pass(15 * time.Minute) // what still waits ends
	}}}
}

// begin makes the cluster.
func (h *hour) begin(ctx context.Context, dir string) {
	for _, name := range killedNodes {
		h.nodes = append(h.nodes, &simulatedNode{
			w: h.w, name: name, dir: filepath.Join(dir, name), array: h.array, heard: make(chan struct{}, 1), pods: make(chan struct{}, 1),
			mounts: map[string]bool{}, running: map[string]bool{},
		})
	}
	for _, name := range slices.Sorted(maps.Keys(killedVolumes)) {
		h.w.Put(volumesResource, "", killedObject[*corev1.PersistentVolume](name))
		h.w.Put(claimsResource, "default", killedObject[*corev1.PersistentVolumeClaim](name))
	}
	go h.attach(ctx)
	for _, n := range h.nodes {
		if err := os.MkdirAll(n.root(), 0o750); err != nil {
			panic(err)
		}
		h.join(n)
		go n.listen(ctx)
		n.powerOn()
	}
}

// join makes the Node if there is none.
func (h *hour) join(n *simulatedNode) {
	if nodeOf(h.w, n.name) == nil {
		h.w.Put(nodesResource, "", &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: n.name, Annotations: map[string]string{"volumes.kubernetes.io/controller-managed-attach-detach": "true"}},
		})
	}
}

// check tells the machines of changes.
func (h *hour) check(_ *controllertest.World, event controllertest.Event) string {
	switch o := event.Object.(type) {
	case *corev1.Node:
		for _, n := range h.nodes {
			if n.name == o.Name {
				ring(n.heard)
			}
		}
	case *corev1.Pod:
		for _, n := range h.nodes {
			if n.name == o.Spec.NodeName {
				ring(n.pods)
			}
		}
	case *storagev1.VolumeAttachment:
		ring(h.attacher)
	}
	return ""
}

// event is something that happens.
func (h *hour) event() {
	w := h.w
	n := h.nodes[w.Chance(len(h.nodes), "node of event")]
	switch luck := w.Chance(100, "event"); {
	case luck < 35:
		h.wish(n.name)
	case luck < 55:
		h.unwish()
	case luck < 75: // in the middle of what it does next
		n.mu.Lock()
		n.fuse = 1 + w.Chance(14, "fuse of "+n.name)
		n.mu.Unlock()
	case luck < 88:
		n.mu.Lock()
		n.driver.fuse = 1 + w.Chance(4, "fuse of driver of "+n.name)
		n.mu.Unlock()
	case luck < 96:
		controllertest.Kill(w)
	default:
		h.blackout(n)
	}
}

// wish creates a pod.
func (h *hour) wish(node string) {
	name := fmt.Sprintf("p%d", h.w.Chance(10, "pod"))
	volumes := slices.Sorted(maps.Keys(killedVolumes))
	volume := volumes[h.w.Chance(len(volumes), "volume of "+name)]
	if exists(h.w, name) {
		return
	}
	h.w.Put(podsResource, "default", &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Finalizers: []string{nodeHolds}},
		Spec: corev1.PodSpec{
			NodeName:   node,
			Containers: []corev1.Container{{Name: "c", VolumeMounts: []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}}},
			Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: volume},
			}}},
		},
	})
}

// unwish deletes a pod.
func (h *hour) unwish() {
	if pods := controllertest.All[*corev1.PodList](h.w, podsResource, "Pod").Items; len(pods) > 0 {
		h.w.Remove(podsResource, "default", pods[h.w.Chance(len(pods), "unwish")].Name)
	}
}

// blackout takes the power from a node: for a while, for so long that its volumes are detached by force, with the taint out-of-service, or
// with its Node deleted. Whoever does the latter two has made sure that nothing of the node runs any more.
func (h *hour) blackout(n *simulatedNode) {
	n.mu.Lock()
	off := n.off
	n.mu.Unlock()
	if off {
		return
	}
	n.powerOff()
	kind := h.w.Chance(4, "blackout of "+n.name)
	go func() {
		h.w.Pause("silence of "+n.name, time.Minute)
		h.w.Change(nodesResource, "", n.name, "status", func(o runtime.Object) {
			o.(*corev1.Node).Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown}}
		})
		switch kind {
		case 0:
			h.w.Pause("blackout of "+n.name, 2*time.Minute)
		case 1:
			h.evict(n.name, false)
			pass(10 * time.Minute)
		case 2:
			h.taint(n.name, corev1.Taint{Key: corev1.TaintNodeOutOfService, Effect: corev1.TaintEffectNoExecute})
			h.evict(n.name, true)
			h.w.Pause("blackout of "+n.name, 9*time.Minute)
		case 3:
			h.evict(n.name, true)
			h.w.Remove(nodesResource, "", n.name)
			h.w.Pause("blackout of "+n.name, 9*time.Minute)
		}
		h.w.Pause("power of "+n.name, time.Second)
		h.join(n)
		h.taint(n.name)
		n.powerOn()
	}()
}

func (h *hour) taint(node string, taints ...corev1.Taint) {
	h.w.Change(nodesResource, "", node, "", func(o runtime.Object) { o.(*corev1.Node).Spec.Taints = taints })
}

// evict deletes the pods of a node, by force if no node holds them any more.
func (h *hour) evict(node string, force bool) {
	for _, pod := range controllertest.All[*corev1.PodList](h.w, podsResource, "Pod").Items {
		if pod.Spec.NodeName != node {
			continue
		}
		h.w.Remove(podsResource, "default", pod.Name)
		if force {
			h.w.Change(podsResource, "default", pod.Name, "", func(o runtime.Object) { o.(*corev1.Pod).Finalizers = nil })
		}
	}
}

// attach is the external-attacher, which dies at times between the driver's answer and its own write.
func (h *hour) attach(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-h.attacher:
		}
		h.w.Pause("attacher", 2*time.Second)
		for _, a := range controllertest.All[*storagev1.VolumeAttachmentList](h.w, attachmentsResource, "VolumeAttachment").Items {
			h.serve(a.DeepCopy())
		}
	}
}

// serve advances a VolumeAttachment.
func (h *hour) serve(a *storagev1.VolumeAttachment) {
	luck := h.w.Chance(20, "attach "+a.Name)
	node, volume := a.Spec.NodeName, *a.Spec.Source.PersistentVolumeName
	status := func(change func(*storagev1.VolumeAttachmentStatus)) {
		h.w.Change(attachmentsResource, "", a.Name, "status", func(o runtime.Object) {
			if now := o.(*storagev1.VolumeAttachment); now.UID == a.UID {
				change(&now.Status)
			}
		})
	}
	failure := &storagev1.VolumeError{Time: metav1.Now(), Message: "not today"}
	again := func() { later(h.w, "attacher again", 5*time.Second, func() { ring(h.attacher) }) }
	switch {
	case a.DeletionTimestamp != nil && len(a.Finalizers) == 0, a.DeletionTimestamp == nil && a.Status.Attached:
	case a.DeletionTimestamp != nil && luck == 0:
		status(func(s *storagev1.VolumeAttachmentStatus) { s.DetachError = failure })
		again()
	case a.DeletionTimestamp != nil:
		h.array.detach(node, volume)
		if luck == 1 { // it dies
			again()
			return
		}
		h.w.Change(attachmentsResource, "", a.Name, "", func(o runtime.Object) { o.(*storagev1.VolumeAttachment).Finalizers = nil })
	case len(a.Finalizers) == 0:
		h.w.Change(attachmentsResource, "", a.Name, "", func(o runtime.Object) {
			o.(*storagev1.VolumeAttachment).Finalizers = []string{attacherFinalizer}
		})
	case luck == 0:
		status(func(s *storagev1.VolumeAttachmentStatus) { s.AttachError = failure })
		again()
	default:
		h.array.attach(node, volume)
		if luck == 1 {
			again()
			return
		}
		status(func(s *storagev1.VolumeAttachmentStatus) { s.Attached, s.AttachError = true, nil })
	}
}

// settle waits until all is as the pods want it.
func (h *hour) settle() {
	var why string
	for range 60 {
		h.w.Pause("settle", 15*time.Second)
		pass(15 * time.Second)
		if why = h.missing(); why == "" || h.w.Failed() {
			return
		}
	}
	h.w.Fail("after 15 minutes: " + why)
}

// missing returns what is not as it should be in the end.
func (h *hour) missing() string {
	var missing []string
	pods := controllertest.All[*corev1.PodList](h.w, podsResource, "Pod").Items
	for _, volume := range slices.Sorted(maps.Keys(killedVolumes)) {
		wanted, running := 0, 0
		for _, n := range h.nodes {
			here := 0
			for _, pod := range pods {
				if pod.Spec.NodeName != n.name || pod.Spec.Volumes[0].PersistentVolumeClaim.ClaimName != volume {
					continue
				}
				if pod.DeletionTimestamp != nil {
					missing = append(missing, pod.Name+" still exists")
				}
				here++
				n.mu.Lock()
				if runs := n.running[string(pod.UID)]; runs {
					running++
					if !h.array.publishedAt(n.name, volume, string(pod.UID)) {
						missing = append(missing, fmt.Sprintf("%s runs on %s without %s", pod.Name, n.name, volume))
					}
				}
				n.mu.Unlock()
			}
			wanted += here
			if left := h.array.left(n.name, volume); left != "" && here == 0 {
				missing = append(missing, fmt.Sprintf("%s is still %s on %s", volume, left, n.name))
			}
			if node := nodeOf(h.w, n.name); node == nil {
				missing = append(missing, n.name+" is not there")
			} else if here == 0 && slices.Contains(node.Status.VolumesInUse, corev1.UniqueVolumeName(volumeName(volume))) {
				missing = append(missing, fmt.Sprintf("%s still says that it uses %s", n.name, volume))
			}
		}
		switch mode := modeOf(volume); {
		case mode == corev1.ReadWriteOncePod && running != min(wanted, 1), mode == corev1.ReadWriteMany && running != wanted,
			wanted > 0 && running == 0:
			missing = append(missing, fmt.Sprintf("%s: %d pods of %d run", volume, running, wanted))
		}
	}
	for _, n := range h.nodes {
		missing = append(missing, n.remains(pods)...)
	}
	return strings.Join(missing, ", ")
}

// remains returns what is on the node's disk of pods that do not exist.
func (n *simulatedNode) remains(pods []corev1.Pod) (out []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	entries, err := os.ReadDir(filepath.Join(n.root(), "pods"))
	if err != nil {
		return nil
	}
	for _, e := range entries {
		if !slices.ContainsFunc(pods, func(p corev1.Pod) bool { return string(p.UID) == e.Name() && p.Spec.NodeName == n.name }) {
			out = append(out, fmt.Sprintf("%s still has %s", n.name, e.Name()))
		}
	}
	if n.off || n.life == nil {
		out = append(out, n.name+" is down")
	}
	return out
}
