// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package persistentvolume

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/rogpeppe/go-internal/txtar"
)

// dice makes scenarios. All of a scenario follows from its seed.
type dice struct{ *rand.Rand }

// in tells true so many times out of a hundred.
func (d dice) in(percent int) bool { return d.IntN(100) < percent }

func pick[T any](d dice, of ...T) T { return of[d.IntN(len(of))] }

// scenario is a sequence of steps, each followed by an expect section.
type scenario struct {
	dice    dice
	archive txtar.Archive
	made    int      // objects so far, for their names
	volumes []string // names that are there
	kept    []string // those of them that are not recycled
	claims  []string
	pods    []string
	classes []string // that no claim has yet
}

// steps is how many steps a scenario has.
const steps = 12

// newScenario makes the scenario of a seed.
func newScenario(seed uint64) *txtar.Archive {
	s := &scenario{dice: dice{rand.New(rand.NewPCG(seed, 25))}, classes: []string{"", "now", "waits", "other"}}
	s.apply(classes(s.dice))
	for range steps {
		s.step()
	}
	// kube-controller-manager's controller waits for the pods that empty volumes, and would not end.
	for n := range s.made + 1 {
		s.archive.Files = append(s.archive.Files, txtar.File{Name: "delete", Data: fmt.Appendf(nil, "persistentvolumes pv%d\n", n)})
	}
	s.archive.Files = append(s.archive.Files, txtar.File{Name: "phase Failed !user"}, txtar.File{Name: "advance 31s"})
	return &s.archive
}

// add adds a section. kube-controller-manager looks at all objects each 15 s, and may need to do so twice.
func (s *scenario) add(name, text string) {
	s.archive.Files = append(s.archive.Files, txtar.File{Name: name, Data: []byte(text)}, txtar.File{Name: "advance 31s"},
		txtar.File{Name: "expect"})
}

func (s *scenario) apply(documents string) { s.add("apply", documents) }

// classes are those of a cluster: one that binds at once, one that waits, and sometimes defaults.
func classes(d dice) string {
	other := pick(d, "kubernetes.io/no-provisioner", "kubernetes.io/cinder", "kubernetes.io/glusterfs", "other.example.com")
	mark := func(percent int) string {
		if d.in(percent) {
			return `"true"`
		}
		return `"false"`
	}
	return fmt.Sprintf(`apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: now, annotations: {storageclass.kubernetes.io/is-default-class: %s}}
provisioner: d.example.com
volumeBindingMode: Immediate
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: waits}
provisioner: d.example.com
volumeBindingMode: WaitForFirstConsumer
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: other}
provisioner: %s
volumeBindingMode: %s`, mark(20), other, pick(d, "Immediate", "WaitForFirstConsumer"))
}

// step adds one step. It changes one object: of several, kube-controller-manager may see the last one first.
func (s *scenario) step() {
	switch d := s.dice; d.IntN(14) {
	case 0, 1, 2:
		s.volumes = append(s.volumes, s.name("pv"))
		s.apply(s.volume(s.volumes[len(s.volumes)-1]))
	case 3, 4, 5:
		s.claims = append(s.claims, s.name("c"))
		s.apply(s.claim(s.claims[len(s.claims)-1]))
	case 6:
		s.add("phase Succeeded !user", "")
	case 7, 8:
		if name := take(d, &s.claims); name != "" {
			s.add("delete", "persistentvolumeclaims default/"+name+"\n")
		}
	case 9:
		if name := take(d, &s.volumes); name != "" {
			s.add("delete", "persistentvolumes "+name+"\n")
		}
	case 10:
		if len(s.claims) > 0 {
			s.pods = append(s.pods, s.name("p"))
			s.apply(s.pod(s.pods[len(s.pods)-1]))
		}
	case 11:
		if name := take(d, &s.pods); name != "" {
			s.add("delete", "pods default/"+name+"\n")
		}
	case 12:
		s.add("phase "+pick(d, "Succeeded", "Failed")+" !user", "") // the pods that empty volumes
	case 13:
		s.apply(fmt.Sprintf(`apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: %s, annotations: {storageclass.kubernetes.io/is-default-class: "true"}}
provisioner: d.example.com
volumeBindingMode: Immediate`, pick(d, "late", "now")))
	}
}

// name returns the name of a new object.
func (s *scenario) name(kind string) string {
	s.made++
	return fmt.Sprintf("%s%d", kind, s.made)
}

// take removes one of the names, and returns it; empty: there is none.
func take(d dice, names *[]string) string {
	if len(*names) == 0 {
		return ""
	}
	at := d.IntN(len(*names))
	name := (*names)[at]
	*names = slices.Delete(*names, at, at+1)
	return name
}

var (
	sizes = []string{"1Gi", "2Gi", "5Gi"}
	modes = []string{"[ReadWriteOnce]", "[ReadWriteMany]", "[ReadWriteOnce, ReadOnlyMany]", "[ReadWriteOncePod]"}
	names = []string{"", "", "now", "waits", "other", "other", "late", "none-1", "none-2"}
)

// volume makes a volume.
func (s *scenario) volume(name string) string {
	d := s.dice
	var meta, spec []string
	policy := pick(d, "Retain", "Delete", "Delete", "Recycle")
	if policy != "Recycle" {
		s.kept = append(s.kept, name)
	}
	spec = append(spec, "capacity: {storage: "+pick(d, sizes...)+"}", "accessModes: "+pick(d, modes...),
		"persistentVolumeReclaimPolicy: "+policy,
		pick(d, "csi: {driver: d.example.com, volumeHandle: h}", "hostPath: {path: /tmp/mortise-test-none}", "local: {path: /d}",
			"nfs: {server: s, path: /p}", "cinder: {volumeID: v}"))
	if class := pick(d, names...); class != "" {
		spec = append(spec, "storageClassName: "+class)
	}
	if d.in(15) {
		spec = append(spec, "volumeMode: Block")
	} else if d.in(80) {
		spec = append(spec, "volumeMode: Filesystem")
	}
	if d.in(10) {
		spec = append(spec, "volumeAttributesClassName: gold")
	}
	if d.in(25) {
		// For a claim that is there, that comes, or that is gone.
		claim, uid := fmt.Sprintf("c%d", 1+d.IntN(s.made+2)), ""
		if d.in(40) {
			uid = ", uid: persistentvolumeclaims-" + claim
		}
		spec = append(spec, "claimRef: {kind: PersistentVolumeClaim, apiVersion: v1, namespace: default, name: "+claim+uid+"}")
	}
	if d.in(25) {
		meta = append(meta, "pv.kubernetes.io/provisioned-by: "+pick(d, "d.example.com", "kubernetes.io/cinder", "kubernetes.io/host-path"))
	}
	if d.in(10) {
		meta = append(meta, `volume.alpha.kubernetes.io/pre-resize-capacity: "512Mi"`)
	}
	return object("PersistentVolume", "", name, meta, nil, spec)
}

// claim makes a claim.
func (s *scenario) claim(name string) string {
	d := s.dice
	var meta, spec []string
	spec = append(spec, "resources: {requests: {storage: "+pick(d, sizes...)+"}}", "accessModes: "+pick(d, modes...))
	if class, ok := s.class(); ok {
		spec = append(spec, fmt.Sprintf("storageClassName: %q", class))
	}
	if d.in(15) {
		spec = append(spec, "volumeMode: Block")
	} else if d.in(80) {
		spec = append(spec, "volumeMode: Filesystem")
	}
	if d.in(10) {
		spec = append(spec, "volumeAttributesClassName: gold")
	}
	if d.in(10) {
		spec = append(spec, "selector: {matchLabels: {a: b}}")
	}
	if len(s.kept) > 0 && d.in(25) {
		spec = append(spec, "volumeName: "+pick(d, append(slices.Clone(s.kept), "none")...))
		if d.in(15) {
			meta = append(meta, `pv.kubernetes.io/bind-completed: "yes"`)
		}
		if d.in(15) {
			meta = append(meta, `pv.kubernetes.io/bound-by-controller: "yes"`)
		}
	}
	if d.in(10) {
		meta = append(meta, "volume.kubernetes.io/selected-node: n1")
	}
	if d.in(5) {
		meta = append(meta, "volume.kubernetes.io/storage-provisioner: kubernetes.io/cinder")
	}
	return object("PersistentVolumeClaim", "default", name, meta, nil, spec)
}

// class returns the class of a claim; it may have none. No two claims have one class, for kube-controller-manager offers a new volume to
// claims in any order.
func (s *scenario) class() (string, bool) {
	if len(s.classes) == 0 {
		return fmt.Sprintf("none-%d", 1+s.dice.IntN(2)+2*s.made), true
	}
	at := s.dice.IntN(len(s.classes))
	class := s.classes[at]
	s.classes = slices.Delete(s.classes, at, at+1)
	if now := slices.Index(s.classes, "now"); class == "" && now >= 0 && s.dice.in(60) {
		s.classes = slices.Delete(s.classes, now, now+1) // it may become the claim's, as the default
		return "", false
	}
	return class, true
}

// pod makes a pod that uses a claim.
func (s *scenario) pod(name string) string {
	spec := []string{
		"containers: [{name: c, image: i}]", "volumes: [{name: v, persistentVolumeClaim: {claimName: " + pick(s.dice, s.claims...) + "}}]",
	}
	if s.dice.in(50) {
		spec = append(spec, "nodeName: n1")
	}
	return object("Pod", "default", name, nil, []string{`user: "yes"`}, spec)
}

// object writes an object.
func object(kind, namespace, name string, annotations, labels, spec []string) string {
	meta := "name: " + name
	if namespace != "" {
		meta += ", namespace: " + namespace
	}
	if len(annotations) > 0 {
		meta += ", annotations: {" + strings.Join(annotations, ", ") + "}"
	}
	if len(labels) > 0 {
		meta += ", labels: {" + strings.Join(labels, ", ") + "}"
	}
	return fmt.Sprintf("apiVersion: v1\nkind: %s\nmetadata: {%s}\nspec: {%s}", kind, meta, strings.Join(spec, ", "))
}
