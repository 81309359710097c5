// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package dra

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/resource"
)

func one() *resource.Quantity { return resource.NewQuantity(1, resource.DecimalSI) }

// kubelets is a file that kubelet 1.37.1 wrote.
const kubelets = `{"Data":"{\"kind\":\"DRACheckpoint\",\"apiVersion\":\"checkpoint.dra.kubelet.k8s.io/v1\",\"ClaimInfoStateList\":[` +
	`{\"ClaimUID\":\"uid-one\",\"ClaimName\":\"one\",\"Namespace\":\"ns\",\"PodUIDs\":{\"uid-a\":{}},` +
	`\"DriverState\":{\"d.test\":{\"Devices\":[` +
	`{\"PoolName\":\"pool\",\"DeviceName\":\"dev1\",\"ShareID\":null,` +
	`\"RequestNames\":[\"r\"],\"CDIDeviceIDs\":[\"d.test/class=dev1\"]}]}}}]}",` +
	`"Checksum":CHECKSUM}`

// kubeletsSum is its checksum.
const kubeletsSum = "2171681662"

// A node takes over what kubelet has prepared, and kubelet what the node has.
func TestKubeletsFile(t *testing.T) {
	w := newWorld(t)
	text := strings.Replace(kubelets, "CHECKSUM", kubeletsSum, 1)
	if err := os.WriteFile(filepath.Join(w.dir, checkpointName), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	m := w.manager()
	w.run(m)
	d := newDriver(w, "d.test")
	d.start(m)
	a := pod("a", "one")
	w.claim("one", []string{"d.test/r/dev1"}, a)
	if got := w.devices(m, a); got != "d.test/class=dev1" {
		t.Errorf("devices %s", got)
	}
	back, err := encodeCheckpoint(m.claims.claims)
	if err != nil || cmp.Diff(text, string(back)) != "" {
		t.Errorf("%v, %s", err, cmp.Diff(text, string(back)))
	}
	w.release(m, a)
	d.calledAs("unprepare one") // kubelet's file does not say that it was never called
	empty, err := os.ReadFile(filepath.Join(w.dir, checkpointName))
	const want = `{"Data":"{\"kind\":\"DRACheckpoint\",\"apiVersion\":\"checkpoint.dra.kubelet.k8s.io/v1\",\"ClaimInfoStateList\":null}",` +
		`"Checksum":4010664294}`
	if err != nil || string(empty) != want {
		t.Errorf("%v: %s", err, empty)
	}
}

func TestFileThatCannotBeRead(t *testing.T) {
	for text, want := range map[string]string{
		"{": "unexpected end of JSON input", strings.Replace(kubelets, "CHECKSUM", "1", 1): "checkpoint is corrupted",
	} {
		w := newWorld(t)
		if err := os.WriteFile(filepath.Join(w.dir, checkpointName), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := New(w.options()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %s", err, want)
		}
	}
}

func FuzzCheckpoint(f *testing.F) {
	f.Add([]byte(strings.Replace(kubelets, "CHECKSUM", kubeletsSum, 1)))
	f.Fuzz(func(t *testing.T, text []byte) {
		claims, err := decodeCheckpoint(text)
		if err != nil {
			return
		}
		again, err := encodeCheckpoint(claims)
		if err != nil {
			t.Fatal(err)
		}
		back, err := decodeCheckpoint(again)
		if err != nil || len(back) != len(claims) {
			t.Errorf("%v: %d claims of %d", err, len(back), len(claims))
		}
		for _, c := range claims {
			c.clone().PodUIDs.Insert("a")
			c.cdiDevices("r")
		}
	})
}

func FuzzHealth(f *testing.F) {
	f.Add([]byte(`{"d.test":{"Devices":{"pool/dev1":{"PoolName":"pool","DeviceName":"dev1","Health":"Healthy",` +
		`"LastUpdated":"2026-01-02T03:04:05Z",` +
		`"HealthCheckTimeout":30000000000,"Message":"m"}}}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		if read, err := decodeHealth(text); err == nil && read == nil {
			t.Error("neither table nor error")
		}
	})
}
